use super::mon::{MonAccess, MonCaps, Perm, constraint_args};
use super::osd::{ClassCall, OsdAccess, OsdCaps};
use super::*;
use crate::command::mon_commands;
use crate::ids::{EntityName, Epoch};
use crate::pool::Pool;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn recording(name: &str) -> Value {
    let path = format!("{}/tests/recordings/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn texts_are_taken_and_refused_as_ceph_does() {
    let recorded = recording("caps-parse");
    assert!(recorded.as_array().unwrap().len() > 200);
    for row in recorded.as_array().unwrap() {
        let (service, caps, code, status) = (text(&row[0]), text(&row[1]), text(&row[2]), text(&row[3]));
        let ours = validate(service, caps).map_err(|error| error.to_string());
        let theirs = if code == "OK" { Ok(()) } else { Err(status.to_owned()) };
        assert_eq!(ours, theirs, "{service} '{caps}'");
    }
}

#[test]
fn the_monitor_names_the_end_where_nothing_is_left() {
    let error = validate("mon", "").unwrap_err();
    assert_eq!(error.to_string(), "mon capability parse failed, stopped at end of ''");
}

#[test]
fn long_texts_are_refused() {
    let long = "allow r, ".repeat(MAX_CAPS_BYTES / 9 + 1) + "allow r";
    assert_eq!(validate("osd", &long), Err(CapsError::TooLong("osd".into())));
    assert_eq!(validate("mon", &long), Err(CapsError::TooLong("mon".into())));
}

#[test]
fn profiles_shut_out_sessions_but_no_ranges_of_addresses() {
    let caps = MonCaps::parse("profile rbd").unwrap();
    let entity = EntityName::client("x");
    let allowed = |json: &str| {
        let call = mon_commands().parse_json(json).unwrap();
        let args = constraint_args(&call);
        let (service, perm) = (call.signature.module, Perm::of_letters(call.signature.perm));
        let wanted =
            MonAccess { service, command: call.prefix(), args: &args, perm, entity: &entity, peer: HERE };
        caps.allows(&wanted)
    };
    assert!(allowed(r#"{"prefix":"osd blocklist","blocklistop":"add","addr":"10.0.0.1:0/8"}"#));
    let range = r#"{"prefix":"osd blocklist","range":"range","blocklistop":"add","addr":"10.0.0.0/8"}"#;
    assert!(!allowed(range));
}

/// The access of a recorded op: reads, writes, class calls with their declarations.
fn asked(op: &str) -> (bool, bool, Vec<ClassCall<'static>>) {
    let call =
        |class, method, reads, writes| vec![ClassCall { class, method, reads, writes, by_default: true }];
    match op {
        "read" | "stat" | "getxattr" | "getxattrs" | "omap-get-vals" | "list" | "list-all" | "notify" => {
            (true, false, vec![])
        }
        "writefull" | "append" | "setxattr" | "omap-set" | "create-excl" | "truncate" | "write+write"
        | "remove" => (false, true, vec![]),
        "watch" => (true, true, vec![]),
        "hello.say_hello" => (false, false, call("hello", "say_hello", true, false)),
        "hello.record_hello" => (false, false, call("hello", "record_hello", false, true)),
        "write+hello.record_hello" => (false, true, call("hello", "record_hello", false, true)),
        "lock.lock" => (false, false, call("lock", "lock", true, true)),
        "version.read" => (false, false, call("version", "read", true, false)),
        other => panic!("op {other} is not known to the test"),
    }
}

#[test]
fn ops_are_allowed_as_on_ceph() {
    let recorded = recording("caps-osd");
    let mut x = Pool::replicated("x", 3, 2, 0, 8, Epoch(1));
    x.applications.insert("rgw".into(), [("zone".to_owned(), "a".to_owned())].into());
    let y = Pool::replicated("y", 3, 2, 0, 8, Epoch(1));
    let mut compared = 0;
    for row in recorded["allowed"].as_array().unwrap() {
        let (text_of_caps, pool, namespace, object) =
            (text(&row[0]), text(&row[1]), text(&row[2]), text(&row[3]));
        let caps = OsdCaps::parse(text_of_caps).unwrap();
        let allowed: Vec<&str> = row[4].as_array().unwrap().iter().map(text).collect();
        // A class that does not exist is refused before capabilities are checked.
        for op in recorded["ops"].as_array().unwrap().iter().map(text).filter(|op| *op != "nosuch.method") {
            let (reads, writes, calls) = asked(op);
            // Listings concern a namespace and no object. For all namespaces a name is used that matches none of them.
            let (namespace, object) = match op {
                "list" => (namespace, ""),
                "list-all" => ("\u{1}", ""),
                _ => (namespace, object),
            };
            let pool = if pool == "x" { &x } else { &y };
            let access = OsdAccess { pool, namespace, object, reads, writes, calls: &calls, peer: HERE };
            assert_eq!(
                caps.allows(&access),
                allowed.contains(&op),
                "'{text_of_caps}': {op} of {object} in {}/{namespace}",
                pool.name
            );
            compared += 1;
        }
    }
    assert!(compared > 5_000, "{compared} compared");
}

#[test]
fn classes_beyond_the_default_list_need_a_grant_of_their_own() {
    let pool = Pool::replicated("x", 3, 2, 0, 8, Epoch(1));
    let calls = [ClassCall { class: "rare", method: "m", reads: true, writes: false, by_default: false }];
    let allows = |caps: &str| {
        let access = OsdAccess {
            pool: &pool,
            namespace: "",
            object: "o",
            reads: false,
            writes: false,
            calls: &calls,
            peer: HERE,
        };
        OsdCaps::parse(caps).unwrap().allows(&access)
    };
    assert!(!allows("allow rwx"));
    assert!(allows("allow *"));
    assert!(allows("allow class rare"));
    assert!(allows("allow class rare m"));
    assert!(!allows("allow class rare other"));
    assert!(allows("allow r, allow class rare"));
}

#[test]
fn only_unrestricted_all_allows_commands_to_the_daemon() {
    for (caps, expected) in [
        ("allow *", true),
        ("allow all", true),
        ("allow rwx", false),
        ("allow * pool=x", false),
        ("allow *, allow r", true),
        ("allow * network 127.0.0.0/8", true),
        ("allow * network 10.0.0.0/8", false),
    ] {
        assert_eq!(OsdCaps::parse(caps).unwrap().is_allow_all(HERE), expected, "{caps}");
    }
}

#[test]
fn commands_are_allowed_as_on_ceph() {
    let recorded = recording("caps-mon");
    let commands = recorded["commands"].as_array().unwrap();
    let entity: EntityName = "client.t".parse().unwrap();
    let mut compared = 0;
    for row in recorded["allowed"].as_array().unwrap() {
        let caps = MonCaps::parse(text(&row[0])).unwrap();
        // An entity that may not read the maps can't connect there.
        let Some(allowed) = row[1].as_array() else { continue };
        for (at, command) in commands.iter().enumerate() {
            let prefix = text(&command["prefix"]);
            // Every entity may list the commands.
            let Ok(call) = mon_commands().parse_json(&command.to_string()) else { continue };
            if prefix == "get_command_descriptions" {
                continue;
            }
            let args = constraint_args(&call);
            let access = MonAccess {
                service: call.signature.module,
                command: prefix,
                args: &args,
                perm: Perm::of_letters(call.signature.perm),
                entity: &entity,
                peer: HERE,
            };
            assert_eq!(
                caps.allows(&access),
                allowed.contains(&Value::from(at)),
                "'{}': {command}",
                text(&row[0])
            );
            compared += 1;
        }
    }
    assert!(compared > 300, "{compared} compared");
}

#[test]
fn daemons_reach_their_own_secrets_only() {
    let caps = MonCaps::parse("profile osd").unwrap();
    let entity: EntityName = "osd.3".parse().unwrap();
    let allows = |key: &str| {
        let args: BTreeMap<String, String> = [("key".to_owned(), key.to_owned())].into();
        caps.allows(&MonAccess {
            service: "config-key",
            command: "config-key get",
            args: &args,
            perm: Perm::READ,
            entity: &entity,
            peer: HERE,
        })
    };
    assert!(allows("daemon-private/osd.3/dm-crypt"));
    assert!(!allows("daemon-private/osd.30/dm-crypt"));
    assert!(!allows("other"));
}
