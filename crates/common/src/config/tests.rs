use super::*;
use crate::options::{DebugLevel, ObjectStoreKind};
use nacre_types::ids::OsdId;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn conf(text: &str) -> ConfFile {
    ConfFile::parse(Path::new("test.conf"), text).unwrap()
}

fn osd(id: u32) -> EntityName {
    EntityName::osd(OsdId(id))
}

fn args(line: &str) -> Vec<String> {
    split_args(line).unwrap()
}

#[test]
fn the_most_specific_section_wins() {
    let file = conf(
        "[osd.1]\nosd max backfills = 3\n[global]\nosd_max_backfills = 1\nosd-heartbeat-grace = 30\n\
         [osd]\nosd max_backfills = 2\n[client]\nosd max backfills = 9\n",
    );
    let backfills = |entity| {
        let config = ConfigBuilder::new(entity).conf_file(file.clone()).build().unwrap();
        assert_eq!(config.get().osd.osd_heartbeat_grace, Duration::from_secs(30));
        config.get().osd.osd_max_backfills
    };
    assert_eq!(backfills(osd(1)), 3);
    assert_eq!(backfills(osd(2)), 2);
    assert_eq!(backfills(EntityName::mon()), 1);
    assert_eq!(backfills(EntityName::client("admin")), 9);
}

#[test]
fn the_packages_configuration_comes_before_cephs() {
    let found = conf_candidates("ceph", Some(Path::new("/home/a")));
    let wanted = [
        "/etc/nacre/ceph.conf",
        "/var/lib/nacre/ceph.conf",
        "/etc/ceph/ceph.conf",
        "/home/a/.ceph/ceph.conf",
        "ceph.conf",
        "./data/ceph.conf",
    ];
    assert_eq!(found, wanted.map(PathBuf::from));
    assert_eq!(
        conf_candidates("other", None)[..2],
        ["/etc/nacre/other.conf", "/var/lib/nacre/other.conf"].map(PathBuf::from)
    );
}

#[test]
fn layers_override_each_other_in_cephs_order() {
    let file = conf("[osd]\nosd max backfills = 3\n");
    let config = ConfigBuilder::new(osd(0)).conf_file(file).build().unwrap();
    let values = |config: &Config| {
        let options = config.get();
        (options.osd.osd_max_backfills, options.osd.osd_recovery_max_active)
    };
    config.set_mon_values([("osd_max_backfills", "2"), ("osd_recovery_max_active", "5")]).unwrap();
    assert_eq!(values(&config), (3, 5), "the file is over the monitors");
    config.set("osd_max_backfills", "7").unwrap();
    assert_eq!(values(&config), (7, 5));
    config.unset("osd_max_backfills").unwrap();
    assert_eq!(values(&config), (3, 5));

    let line = args("--osd-max-backfills 6 --id 0");
    let mut invocation =
        parse_argv(ProgramKind::Daemon(EntityKind::Osd), &line, Some("--osd_max_backfills=5 --debug-osd=20"))
            .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.conf");
    std::fs::write(&path, "[global]\nosd max backfills = 4\n").unwrap();
    invocation.conf = Some(path.clone());
    let config = Config::load(&invocation).unwrap();
    assert_eq!(config.get().osd.osd_max_backfills, 6);
    assert_eq!(config.get().debug.debug_osd, DebugLevel { log: 20, gather: 20 });
    invocation.options.0.clear();
    assert_eq!(Config::load(&invocation).unwrap().get().osd.osd_max_backfills, 5);
    invocation.env.0.clear();
    let config = Config::load(&invocation).unwrap();
    assert_eq!(config.get().osd.osd_max_backfills, 4);
    assert_eq!(config.conf_path(), Some(path.as_path()));
}

#[test]
fn quotes_comments_and_continuation_are_read_as_in_ceph() {
    let file = conf(
        "; comment\n# another\nfsid = 11111111-2222-3333-4444-555555555555 ; of the cluster\n[ osd ]  # header\n\
         osd objectstore = MemStore\nlog file = \"/a b/#c;.log\" # why\nkeyring=/a,\\\n   /b\nhost = a\\#b\n\
         crush location = 'root=default host=x'\n",
    );
    assert_eq!(file.section_names().collect::<Vec<_>>(), ["global", "osd"]);
    let value = |name| file.lookup(&["osd", "global"], name).unwrap();
    assert_eq!(value("fsid"), "11111111-2222-3333-4444-555555555555");
    assert_eq!(value("log-file"), "/a b/#c;.log");
    assert_eq!(value("keyring"), "/a,/b");
    assert_eq!(value("host"), "a#b");
    assert_eq!(value("crush_location"), "root=default host=x");
    let config = ConfigBuilder::new(osd(0)).conf_file(file).build().unwrap();
    assert_eq!(config.get().osd.osd_objectstore, ObjectStoreKind::Memstore);
}

#[test]
fn errors_in_files_name_file_and_line() {
    let parse = |text| ConfFile::parse(Path::new("x.conf"), text).unwrap_err().to_string();
    assert_eq!(parse("\n[osd\n"), "x.conf:2: section header without ']'");
    assert!(parse("[osd]\n\nnonsense\n").starts_with("x.conf:3: expected 'name = value'"));
    assert!(parse("[osd]\nkey = \"a\n").starts_with("x.conf:2: quotation mark"));
    let file = conf("[global]\na=b\nosd heartbeat interval = 99\n");
    let error = ConfigBuilder::new(osd(0)).conf_file(file).build().unwrap_err();
    assert_eq!(error.to_string(), "test.conf:3: osd_heartbeat_interval: Value '99' exceeds maximum 60");
}

#[test]
fn variables_expand_in_values() {
    let file = conf(
        "[global]\nrun dir = /r/$cluster\npid file = ${run_dir}/$name.pid\nlog file = /l/$type.$id.$nothing.$$\n\
         host = box\nmon host = $host:5\n",
    );
    let config = ConfigBuilder::new(osd(4)).cluster("east").conf_file(file).build().unwrap();
    let options = config.get();
    assert_eq!(options.global.pid_file, "/r/east/osd.4.pid");
    assert_eq!(options.global.log_file, "/l/osd.4.$nothing.$$");
    assert_eq!(options.global.mon_host.to_string(), "box:5");
    assert_eq!(options.osd.osd_data, "/var/lib/ceph/osd/east-4");
    let circle = conf("[global]\nrun dir = $admin_socket\nadmin socket = $run_dir/x\n");
    assert!(ConfigBuilder::new(osd(4)).conf_file(circle).build().is_err());
}

#[test]
fn startup_options_wait_for_a_restart_once_started() {
    let config = ConfigBuilder::new(osd(0)).build().unwrap();
    config.set_mon_values([("osd_op_num_shards", "2")]).unwrap();
    assert_eq!(config.get().osd.osd_op_num_shards, 2);
    config.freeze_startup_options();
    let changed = config.set_mon_values([("osd_op_num_shards", "3"), ("osd_max_backfills", "4")]).unwrap();
    assert_eq!(changed, ChangedOptions::from(["osd_max_backfills"]));
    assert_eq!(config.get().osd.osd_op_num_shards, 2);
    let shown = config.show().into_iter().find(|s| s.name == "osd_op_num_shards").unwrap();
    assert_eq!((shown.value.as_str(), shown.pending.as_deref()), ("2", Some("3")));
    assert!(config.set("osd_op_num_shards", "1").is_err());
}

#[test]
fn observers_hear_of_their_options_only() {
    let config = ConfigBuilder::new(osd(0)).build().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    let sum = seen.clone();
    config.observe(&["osd_max_backfills"], move |options, changed| {
        assert!(changed.contains("osd_max_backfills"));
        sum.fetch_add(options.osd.osd_max_backfills, Ordering::Relaxed);
    });
    config.set("osd_max_backfills", "5").unwrap();
    config.set("osd_max_backfills", "5").unwrap();
    config.set("debug_osd", "20").unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

#[test]
fn unknown_options_are_refused_on_set_and_skipped_in_files() {
    let file = conf("[global]\nrgw frontends = beast\nosd max backfills = 2\n");
    let config = ConfigBuilder::new(osd(0)).conf_file(file).build().unwrap();
    assert_eq!(config.get().osd.osd_max_backfills, 2);
    assert_eq!(config.set("osd_nonsense", "1").unwrap_err().errno(), nacre_types::errno::Errno::EINVAL);
    assert!(ConfigBuilder::new(osd(0)).set("osd_nonsense", "1").build().is_err());
    assert!(config.set_mon_values([("osd_nonsense", "1"), ("osd_max_backfills", "x")]).unwrap().is_empty());
    assert!(config.set("osd_max_backfills", "x").is_err());
    assert_eq!(config.get().osd.osd_max_backfills, 2);
}

#[test]
fn secrets_are_never_shown() {
    let secret = "AQBSdFhcAAAAABAAEm+vBQ0tEyVmXPjNhDl9zw==";
    let line = [format!("--key={secret}")];
    let invocation = parse_argv(ProgramKind::Client, &line, Some(&line[0])).unwrap();
    let file = conf(&format!("[global]\nkey = {secret}\n"));
    let builder = ConfigBuilder::new(osd(0)).conf_file(file.clone()).set("key", secret);
    let config = builder.clone().build().unwrap();
    assert_eq!(config.get().global.key.expose(), secret);
    let shown = format!(
        "{invocation:?} {file:?} {builder:?} {config:?} {:?} {:?} {:?}",
        config.get(),
        config.show(),
        config.display_value("key")
    );
    assert!(!shown.contains("AQBSdFhc") && shown.contains('…'), "{shown}");
}

#[test]
fn command_lines_are_taken_apart_as_ceph_does() {
    let parsed = |program, line: &str| parse_argv(program, &args(line), None).unwrap();
    let client = parsed(
        ProgramKind::Client,
        "-c /x.conf --id bob -m 127.0.0.1:40300 -k ring -p pool --no-mon-allow-pool-delete put -i file -- --id no",
    );
    assert_eq!(client.entity.to_string(), "client.bob");
    assert_eq!(client.conf, Some(PathBuf::from("/x.conf")));
    assert_eq!(client.rest, ["-p", "pool", "put", "-i", "file", "--", "--id", "no"]);
    let pairs: Vec<_> = client.options.0.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(
        pairs,
        [("mon_host", "127.0.0.1:40300"), ("keyring", "ring"), ("mon_allow_pool_delete", "false")]
    );
    let daemon =
        parsed(ProgramKind::Daemon(EntityKind::Osd), "-i 3 --ms_crc_data --osd-data=/d --cluster east -f");
    assert_eq!((daemon.entity, daemon.cluster.as_str()), (osd(3), "east"));
    assert_eq!(daemon.rest, ["-f"]);
    assert_eq!(daemon.options.0[0], ("ms_crc_data".to_owned(), "true".to_owned()));
    assert_eq!(parsed(ProgramKind::Client, "").entity.to_string(), "client.admin");
    assert_eq!(parsed(ProgramKind::Client, "-n osd.7").entity, osd(7));
    assert!(parse_argv(ProgramKind::Client, &args("--name"), None).is_err());
    assert!(parse_argv(ProgramKind::Client, &args("--osd-max-backfills x"), None).is_err());
}

proptest! {
    #[test]
    fn no_text_panics_the_parsers(text in "(\\PC|\n|\\\\|[\\[\\]=\"'#;$]){0,200}") {
        if let Ok(file) = ConfFile::parse(Path::new("x"), &text) {
            let _ = ConfigBuilder::new(EntityName::client("a")).conf_file(file).build();
        }
        let _ = split_args(&text);
        let _ = ConfigBuilder::new(EntityName::client("a")).set("log_file", text.clone()).build();
        for name in ["mon_host", "public_addr", "debug_osd", "ms_cluster_mode", "osd_max_object_size", "fsid"] {
            let _ = options::validate(name, &text);
        }
    }

    #[test]
    fn quoted_values_come_back_unchanged(value in "[^\"\\\\\n\r]{0,80}") {
        let file = conf(&format!("[a]\nkey = \"{value}\" ; comment\n"));
        prop_assert_eq!(file.lookup(&["a"], "key"), Some(value.as_str()));
    }
}
