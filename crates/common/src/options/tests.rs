use super::*;
use crate::options::kinds::{ConnMode, ConnModes, OptionKind, Size};
use std::collections::HashSet;
use std::time::Duration;

#[test]
fn every_default_and_bound_parses_and_names_are_unique() {
    let mut seen = HashSet::new();
    for spec in all() {
        assert!(seen.insert(spec.name), "{} twice", spec.name);
        assert_eq!(spec.name, normalize_name(spec.name));
        let texts = [Some(spec.default), spec.daemon_default, spec.min, spec.max];
        for text in texts.into_iter().flatten() {
            let canonical = spec.canonical(text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(spec.canonical(&canonical).unwrap(), canonical, "{}", spec.name);
        }
        assert!(!spec.desc.is_empty() && !spec.desc.ends_with('.'), "{}", spec.name);
    }
    for spec in all() {
        for other in spec.see_also {
            assert!(find(other).is_some(), "{} refers to {other}", spec.name);
        }
    }
}

#[test]
fn typed_fields_hold_what_the_table_says() {
    let options = Options::from_text(&|spec| Ok(spec.default.to_owned())).unwrap();
    assert_eq!(options.osd.osd_heartbeat_grace, Duration::from_secs(20));
    assert_eq!(options.osd.osd_max_object_size, 128 << 20);
    assert_eq!(options.osd.osd_objectstore, ObjectStoreKind::Bluestore);
    assert_eq!(options.ms.ms_cluster_mode, [ConnMode::Crc, ConnMode::Secure]);
    assert_eq!(options.global.fsid, None);
}

#[test]
fn validation_speaks_like_ceph() {
    let error = |name, value| validate(name, value).unwrap_err().to_string();
    assert_eq!(error("osd_nonsense", "1"), "unrecognized config option 'osd_nonsense'");
    assert!(error("osd_max_backfills", "many").contains("Expected option value to be integer, got 'many'"));
    assert!(error("osd_heartbeat_interval", "0").contains("Value '0' is below minimum 1"));
    assert!(error("osd_heartbeat_interval", "61").contains("Value '61' exceeds maximum 60"));
    assert!(
        error("osd_objectstore", "tape").contains("'tape' is not one of the permitted values: bluestore")
    );
    assert!(error("mon_osd_full_ratio", "x").contains("strict_strtod: expected double, got: 'x'"));
    assert!(error("debug_osd", "100").contains("N/M"));
    assert!(error("auth_cluster_required", "none").contains("permitted values: cephx"));
    assert_eq!(error("ms_cluster_mode", ""), "ms_cluster_mode: at least one of crc and secure is needed");
}

#[test]
fn values_are_stored_in_canonical_spelling() {
    let canonical = |name, value| validate(name, value).unwrap();
    assert_eq!(canonical("osd objectstore", "MemStore"), "memstore");
    assert_eq!(canonical("osd-max-object-size", "128M"), "134217728");
    assert_eq!(canonical("mon_osd_full_ratio", ".9"), "0.900000");
    assert_eq!(canonical("mon_allow_pool_delete", "1"), "true");
    assert_eq!(canonical("debug_osd", "20"), "20/20");
    assert_eq!(canonical("public_addr", "127.0.0.1"), "127.0.0.1");
    assert_eq!(canonical("log_file", "$run_dir/x"), "$run_dir/x");
}

#[test]
fn sizes_take_binary_suffixes_only() {
    for (text, bytes) in [("1", 1), ("4K", 4096), ("4Ki", 4096), ("4KiB", 4096), ("4KB", 4096), ("0x10", 16)]
    {
        assert_eq!(Size::read(text), Ok(bytes), "{text}");
    }
    for text in ["", "K", "4k5", "-1", "1e3", "99999999999E", "4 kb"] {
        assert!(Size::read(text).is_err(), "{text}");
    }
}

#[test]
fn monitor_addresses_are_read_in_all_of_cephs_forms() {
    let parse = |text: &str| AddrList::parse(text).map(|l| l.to_string());
    assert_eq!(parse("127.0.0.1:40300").unwrap(), "127.0.0.1:40300");
    assert_eq!(parse("a.example b,c:1").unwrap(), "a.example:3300,b:3300,c:1");
    assert_eq!(parse("[v2:127.0.0.1:40300/0,v1:127.0.0.1:40301/0]").unwrap(), "127.0.0.1:40300");
    assert_eq!(parse("[v2:[::1]:40300,v1:[::1]:40301] [::2]:5").unwrap(), "[::1]:40300,[::2]:5");
    assert_eq!(parse("v2:10.0.0.1:3300/0 v1:10.0.0.1:6789/0").unwrap(), "10.0.0.1:3300");
    assert_eq!(parse("").unwrap(), "");
    for bad in ["[v2:1.2.3.4:1", "1.2.3.4:port", "a b c/ :9", "v1:10.0.0.1:6789"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn help_has_cephs_fields_and_layout() {
    let spec = get("osd_heartbeat_interval").unwrap();
    let help = spec.help_json();
    let keys: Vec<&String> = help.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "name",
            "type",
            "level",
            "desc",
            "long_desc",
            "default",
            "daemon_default",
            "tags",
            "services",
            "see_also",
            "enum_values",
            "min",
            "max",
            "can_update_at_runtime",
            "flags"
        ]
    );
    assert_eq!((&help["default"], &help["type"]), (&serde_json::json!(6), &serde_json::json!("int")));
    let text = spec.help_text();
    assert!(text.starts_with(
        "osd_heartbeat_interval - Interval of pings to a peer, in seconds\n  (int, advanced)\n"
    ));
    assert!(text.contains("  Default: 6\n  Minimum: 1\n  Maximum: 60\n  Can update at runtime: true\n"));
    assert!(text.contains("  Services: [osd]\n"));
}

#[test]
fn reference_page_has_every_option() {
    let page = reference_markdown();
    for name in names() {
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn the_reference_page_in_the_repository_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == reference_markdown(),
        "docs/options.md is out of date: cargo run -p nacre-common --example options_reference > docs/options.md"
    );
}

#[test]
fn texts_and_startup_options_do_not_change_at_run_time() {
    for (name, runtime) in [
        ("osd_max_backfills", true),
        ("debug_osd", true),
        ("osd_data", false),
        ("osd_op_num_shards", false),
        ("bluestore_block_size", false),
    ] {
        assert_eq!(get(name).unwrap().can_update_at_runtime(), runtime, "{name}");
    }
    assert_eq!(ConnModes::show(&ConnModes::read("Secure,crc secure").unwrap()), "secure crc");
}
