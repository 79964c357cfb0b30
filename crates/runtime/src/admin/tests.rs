//! Tests of the commands common to all daemons, directly and through a socket.

use super::socket::{AdminSocket, send_command};
use super::*;
use nacre_common::config::ConfigBuilder;
use nacre_common::metrics::Metric;
use nacre_types::command::osd_commands;
use nacre_types::ids::{EntityName, OsdId};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn admin() -> DaemonCommands {
    let config = ConfigBuilder::new(EntityName::osd(OsdId(3))).set("osd_max_backfills", "2").build().unwrap();
    let perf = PerfCounters::new("osd.3");
    perf.add_source(|out| out.push(Metric::counter("osd", "op", "Client operations", 7)));
    DaemonCommands { config, perf, table: osd_commands() }
}

fn own(_: &Call<'_>) -> CommandResult {
    Err(CommandFailure(Errno::EINVAL, "not mine".into()))
}

fn said(admin: &DaemonCommands, command: Value) -> Value {
    let reply = admin.run(&command.to_string(), own);
    assert_eq!(reply.code, 0, "{command}: {}", reply.status);
    serde_json::from_slice(&reply.output).unwrap()
}

fn refused(admin: &DaemonCommands, command: Value) -> (i32, String) {
    let reply = admin.run(&command.to_string(), own);
    (reply.code, reply.status)
}

#[test]
fn configuration_is_shown_changed_and_compared() {
    let admin = admin();
    let get = json!({ "prefix": "config get", "var": "osd_max_backfills" });
    assert_eq!(said(&admin, get.clone()), json!({ "osd_max_backfills": "2" }));
    let set = json!({ "prefix": "config set", "var": "osd_max_backfills", "val": ["3"] });
    assert_eq!(said(&admin, set), json!({ "success": "osd_max_backfills = '3' " }));
    let diff = said(&admin, json!({ "prefix": "config diff" }));
    let expected = json!({ "default": 1, "cmdline": 2, "override": 3, "final": 3 });
    assert_eq!(diff["diff"]["osd_max_backfills"], expected);
    assert!(diff["diff"].get("osd_op_complaint_time").is_none(), "defaults are no difference");
    assert_eq!(said(&admin, json!({ "prefix": "config show" }))["name"], "osd.3");
    let unset = json!({ "prefix": "config unset", "var": "osd_max_backfills" });
    assert_eq!(said(&admin, unset), json!({ "success": "osd_max_backfills = '2' " }));
    let inject = json!({ "prefix": "injectargs", "injected_args": ["--osd-max-backfills=4 --osd_op_complaint_time 9"] });
    let reply = admin.run(&inject.to_string(), own);
    assert!(reply.status.starts_with("osd_max_backfills = '4' osd_op_complaint_time = '9"), "{reply:?}");
    assert_eq!(said(&admin, get), json!({ "osd_max_backfills": "4" }));
    let help = said(&admin, json!({ "prefix": "config help", "var": "osd_max_backfills" }));
    assert_eq!(help["option"]["type"], "uint");
}

#[test]
fn failures_have_cephs_numbers_and_texts() {
    let admin = admin();
    let missing = "error getting 'nonesuch': (2) No such file or directory";
    assert_eq!(refused(&admin, json!({ "prefix": "config get", "var": "nonesuch" })), (-2, missing.into()));
    let (code, text) =
        refused(&admin, json!({ "prefix": "config set", "var": "osd_max_backfills", "val": ["foo"] }));
    assert_eq!(code, -22);
    assert!(text.starts_with("error setting 'osd_max_backfills' to 'foo': (22) Invalid argument"), "{text}");
    assert_eq!(refused(&admin, json!({ "prefix": "nonesuch" })).0, -22);
    assert_eq!(refused(&admin, json!({ "prefix": "status" })), (-22, "not mine".into()));
    assert_eq!(refused(&admin, json!({ "prefix": "injectargs", "injected_args": ["x"] })).0, -22);
}

#[test]
fn counters_are_dumped_and_reset() {
    let admin = admin();
    assert_eq!(said(&admin, json!({ "prefix": "perf dump" }))["osd"]["op"], 7);
    assert_eq!(said(&admin, json!({ "prefix": "perf schema" }))["osd"]["op"]["metric_type"], "counter");
    let reset = said(&admin, json!({ "prefix": "perf reset", "var": "all" }));
    assert_eq!(reset, json!({ "success": "perf reset all" }));
    assert_eq!(said(&admin, json!({ "prefix": "perf dump", "logger": "osd" }))["osd"]["op"], 0);
}

#[test]
fn the_socket_speaks_cephs_framing_and_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ceph-osd.3.asok");
    let admin = admin();
    let run: socket::CommandHandler = Arc::new(move |json| admin.run(json, own));
    // The socket that a killed daemon left behind is replaced; the socket of a running daemon is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let socket = AdminSocket::listen(&path, run.clone()).unwrap();
    assert!(AdminSocket::listen(&path, run).is_err());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let version: Value =
        serde_json::from_slice(&send_command(&path, r#"{"prefix":"version"}"#).unwrap()).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let dump = String::from_utf8(send_command(&path, "perf dump").unwrap()).unwrap();
    assert!(dump.contains("\"op\": 7"), "{dump}");
    let failed = String::from_utf8(send_command(&path, r#"{"prefix":"status"}"#).unwrap()).unwrap();
    assert_eq!(failed, "ERROR: (22) Invalid argument\nnot mine\n");
    assert!(send_command(&path, &"x".repeat(1 << 20)).is_err(), "commands have a bound");
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_socket_that_another_daemon_has_put_in_the_place_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.asok");
    let run: socket::CommandHandler = Arc::new(|_| AdminReply::default());
    let first = AdminSocket::listen(&path, run.clone()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = AdminSocket::listen(&path, run).unwrap();
    drop(first);
    assert_eq!(send_command(&path, "version").unwrap(), b"");
    drop(second);
    assert!(!path.exists());
}
