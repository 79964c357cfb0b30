//! Compares the tables behind docs/compatibility.md with a cluster: tries every command, option and flag.

use crate::support::{Serve, TEST_TIMEOUT, free_port};
use bytes::Bytes;
use nacre_client::engine::CommandTarget;
use nacre_client::{Cluster, Error};
use nacre_common::config::ConfigBuilder;
use nacre_common::options;
use nacre_types::OsdId;
use nacre_types::command::{ParamKind, Signature, mon_command_support, mon_commands, osd_commands};
use nacre_types::errno::Errno;
use nacre_types::support_level::SupportLevel;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// A served cluster of three OSDs in memory, and a client of it.
struct Tried {
    cluster: Cluster,
    _serve: Serve,
    _folder: tempfile::TempDir,
}

impl Tried {
    fn start() -> Tried {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        let listen = format!("127.0.0.1:{}", free_port());
        let args =
            ["--listen", &listen, "--objectstore", "memstore", "--osds", "3", "-o", "exporter_http_port=0"];
        let (serve, _) = Serve::start(&data, &args);
        let builder = ConfigBuilder::new("client.admin".parse().unwrap()).conf(data.join("ceph.conf"));
        let cluster = nacre_client::native::connect(&builder.build().unwrap()).wait().unwrap();
        Tried { cluster, _serve: serve, _folder: folder }
    }

    /// A command's output and text, or its error.
    fn send(&self, target: CommandTarget, command: &Value) -> Result<(Bytes, String), (Errno, String)> {
        match self.cluster.engine().command(target, command.to_string(), Bytes::new()).wait() {
            Ok(reply) => Ok((reply.output, reply.status)),
            Err(Error::Command { errno, status }) => Err((errno, status)),
            Err(error) => panic!("{command}: {error}"),
        }
    }

    fn ok(&self, command: Value) -> String {
        let answer = self.send(CommandTarget::Mon, &command);
        let (output, status) = answer.unwrap_or_else(|error| panic!("{command}: {error:?}"));
        format!("{}{status}", String::from_utf8_lossy(&output))
    }

    fn json(&self, mut command: Value) -> Value {
        command["format"] = "json".into();
        let answer = self.send(CommandTarget::Mon, &command);
        let (output, _) = answer.unwrap_or_else(|error| panic!("{command}: {error:?}"));
        serde_json::from_slice(&output)
            .unwrap_or_else(|error| panic!("{command}: {error}: {}", String::from_utf8_lossy(&output)))
    }
}

/// A value for a required parameter that has as little effect as possible.
fn argument(signature: &Signature, name: &str, kind: &ParamKind) -> Value {
    match (signature.prefix.as_str(), name, kind) {
        ("injectargs", ..) => json!(["--debug_ms=0/0"]),
        ("osd setmaxosd", ..) => json!(3),
        ("osd set-full-ratio", ..) => json!(0.95),
        ("osd set-backfillfull-ratio", ..) => json!(0.9),
        ("osd set-nearfull-ratio", ..) => json!(0.85),
        ("osd blocklist" | "osd blacklist", "addr", _) => json!("10.0.0.1:0/1"),
        (_, _, ParamKind::Choice(words)) => json!(words[words.len() - 1]),
        (_, _, ParamKind::Int { min, .. }) => json!((*min).max(1)),
        (_, _, ParamKind::Float { min, .. }) => json!(min.max(0.0)),
        (_, _, ParamKind::Bool) => json!(false),
        (_, _, ParamKind::PgId) => json!("1.0"),
        (_, _, ParamKind::OsdName) => json!("osd.99"),
        (_, _, ParamKind::Uuid) => json!("00000000-0000-0000-0000-000000000001"),
        (_, _, ParamKind::Name) => json!("client.nonesuch"),
        (_, "ids", _) => json!(["99"]),
        _ => json!("nonesuch"),
    }
}

fn call(signature: &Signature) -> Value {
    let mut fields = Map::new();
    fields.insert("prefix".into(), signature.prefix.as_str().into());
    for param in signature.params.iter().filter(|param| param.required) {
        fields.insert(param.name.into(), argument(signature, param.name, &param.kind));
    }
    if signature.prefix == "bench" {
        fields.extend([("count".to_owned(), json!(65_536)), ("size".to_owned(), json!(4096))]);
    }
    fields.insert("format".into(), "json".into());
    Value::Object(fields)
}

/// Commands whose output is data in another format, whatever format is requested.
const DATA: &[&str] =
    &["config assimilate-conf", "config generate-minimal-conf", "osd getcrushmap", "osd getmap"];

/// Whether the answer to a command with JSON output is JSON or has no output.
fn is_document(prefix: &str, answer: &Result<(Bytes, String), (Errno, String)>) -> bool {
    match answer {
        Ok((output, _)) if !DATA.contains(&prefix) => {
            output.is_empty() || serde_json::from_slice::<Value>(output).is_ok()
        }
        _ => true,
    }
}

/// Whether the answer shows that a daemon executed the command, with any outcome.
fn is_carried_out(answer: &Result<(Bytes, String), (Errno, String)>) -> bool {
    match answer {
        Ok(_) => true,
        Err((errno, text)) => *errno != Errno::EOPNOTSUPP && text != "command not known",
    }
}

#[test]
fn commands_options_and_flags_behave_as_the_tables_say() {
    let tried = Tried::start();
    let mut texts = Vec::new();
    for (name, support) in mon_command_support() {
        match support {
            SupportLevel::Refused(reason) => {
                let answer = tried.send(CommandTarget::Mon, &json!({ "prefix": name }));
                let text = format!("command '{name}' is not supported: {reason}");
                assert_eq!(answer, Err((Errno::EOPNOTSUPP, text)));
            }
            _ => {
                let command = call(mon_commands().find(name).unwrap());
                let answer = tried.send(CommandTarget::Mon, &command);
                assert!(is_carried_out(&answer), "{command}: {answer:?}");
                if !is_document(name, &answer) {
                    texts.push(format!("{command}: {answer:?}"));
                }
            }
        }
    }
    let unknown = tried.send(CommandTarget::Mon, &json!({ "prefix": "nonesuch" }));
    assert_eq!(unknown, Err((Errno::EINVAL, "command not known".into())));
    tried.ok(json!({ "prefix": "osd unpause" }));
    tried.ok(json!({ "prefix": "osd unset", "key": "nosnaptrim" }));

    let osd = CommandTarget::Osd(OsdId(0));
    // An OSD in memory refuses commands of BlueStore.
    for signature in osd_commands().signatures().iter().filter(|s| !s.prefix.starts_with("bluestore ")) {
        let answer = tried.send(osd, &call(signature));
        assert!(is_carried_out(&answer), "{}: {answer:?}", signature.prefix);
        if !is_document(&signature.prefix, &answer) {
            texts.push(format!("osd.0 {}: {answer:?}", signature.prefix));
        }
    }
    assert!(texts.is_empty(), "these print text where JSON is asked for: {texts:#?}");
    let unknown = tried.send(osd, &json!({ "prefix": "nonesuch" }));
    assert_eq!(unknown, Err((Errno::EINVAL, "unknown command prefix nonesuch".into())));
    let bench = json!({ "prefix": "bench", "count": 1_048_576, "size": 4096, "format": "json" });
    let (output, _) = tried.send(osd, &bench).unwrap();
    let bench: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!((&bench["bytes_written"], &bench["blocksize"]), (&json!(1_048_576), &json!(4096)));
    let figure = |name: &str| bench[name].as_f64().unwrap();
    assert!((figure("bytes_per_sec") * figure("elapsed_sec") / 1_048_576.0 - 1.0).abs() < 1e-6, "{bench}");
    assert!((figure("iops") * 4096.0 / figure("bytes_per_sec") - 1.0).abs() < 1e-6, "{bench}");

    flags(&tried);
    options_of_the_cluster(&tried);
    cluster_without_data(&tried);
}

/// Each flag is set, warned about, and unset.
fn flags(tried: &Tried) {
    let signature = mon_commands().find("osd set").unwrap();
    let ParamKind::Choice(names) = &signature.params[0].kind else { panic!() };
    let refused = tried.send(CommandTarget::Mon, &json!({ "prefix": "osd set", "key": "full" }));
    assert_eq!(refused, Err((Errno::EINVAL, "unrecognized flag 'full'".into())));
    for name in names.iter().filter(|name| **name != "full") {
        tried.ok(json!({ "prefix": "osd set", "key": name }));
        let health = tried.json(json!({ "prefix": "health" }));
        let text = &health["checks"]["OSDMAP_FLAGS"]["summary"]["message"];
        let shown = if *name == "pause" { "pauserd,pausewr" } else { name };
        assert_eq!(*text, format!("{shown} flag(s) set"));
        tried.ok(json!({ "prefix": "osd unset", "key": name }));
    }
}

fn options_of_the_cluster(tried: &Tried) {
    let get = |name: &str| tried.ok(json!({ "prefix": "config get", "who": "client.x", "key": name }));
    for spec in options::all().filter(|spec| !spec.flags.no_mon_update && !spec.secret) {
        let value = spec.canonical(spec.default).unwrap();
        tried.ok(json!({ "prefix": "config set", "who": "client.x", "name": spec.name, "value": value }));
        assert_eq!(get(spec.name), format!("{value}\n"), "{}", spec.name);
        tried.ok(json!({ "prefix": "config rm", "who": "client.x", "name": spec.name }));
    }
    // Only a sample, because each refusal is a line in the audit log.
    for name in options::ceph_only_options().into_iter().step_by(20) {
        let default = options::ceph_only_option(name).unwrap().default(false);
        assert_eq!(get(name), format!("{default}\n"));
        let set = json!({ "prefix": "config set", "who": "osd", "name": name, "value": "1" });
        let text =
            format!("{name} is an option of Ceph that has no effect here; --force stores it all the same");
        assert_eq!(tried.send(CommandTarget::Mon, &set), Err((Errno::EINVAL, text)));
        let of_daemon = json!({ "prefix": "config get", "var": name });
        assert!(tried.send(CommandTarget::Osd(OsdId(0)), &of_daemon).is_ok(), "{name}");
    }
}

/// What a cluster without objects and manager reports.
fn cluster_without_data(tried: &Tried) {
    let gone = tried.send(CommandTarget::Mon, &json!({ "prefix": "mon dump", "epoch": 5 }));
    assert_eq!(gone, Err((Errno::ENOENT, "there is no map for epoch 5".into())));
    assert_eq!(tried.json(json!({ "prefix": "mon dump", "epoch": 1 }))["epoch"], 1);
    let status = tried.json(json!({ "prefix": "status" }));
    assert_eq!(status["mgrmap"]["available"], tried.json(json!({ "prefix": "mgr stat" }))["available"]);
    // Stores use space themselves; reports arrive every second.
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let stats = tried.json(json!({ "prefix": "df" }))["stats"].clone();
        let field = |name: &str| stats[name].as_u64().unwrap();
        if field("total_used_bytes") > 0 {
            assert_eq!(
                field("total_bytes"),
                field("total_used_bytes") + field("total_avail_bytes"),
                "{stats}"
            );
            break;
        }
        assert!(Instant::now() < deadline, "{stats}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
