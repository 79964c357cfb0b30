//! The configuration, keys, and uploaded CRUSH maps.

use super::*;

#[test]
fn configuration_is_checked_shown_and_resolved() {
    let mut desk = Desk::busy();
    let set = |who: &str, name: &str, value: &str| json!({ "who": who, "name": name, "value": value });
    desk.fails("config set", set("osd", "nope", "1"), Errno::EINVAL, "unrecognized config option 'nope'");
    desk.fails(
        "config set",
        set("foo", "osd_max_backfills", "1"),
        Errno::EINVAL,
        "unrecognized config target 'foo'",
    );
    desk.fails(
        "config set",
        set("osd", "osd_data", "/x"),
        Errno::EINVAL,
        "osd_data is special and cannot be stored by the mon",
    );
    let (code, status, _) = desk.run("config set", set("osd", "osd_max_backfills", "abc"));
    assert!(code == Errno::EINVAL.negated() && status.starts_with("error parsing value: "), "{status}");
    for (who, value) in [("global", "4"), ("osd", "5"), ("osd.1", "6"), ("osd/class:ssd", "7")] {
        desk.ok("config set", set(who, "osd_max_backfills", value));
    }
    assert_eq!(
        desk.text("config dump", json!({})),
        "WHO        MASK       LEVEL     OPTION             VALUE  RO\nglobal                advanced  osd_max_backfills  4        \n  \
         osd      class:ssd  advanced  osd_max_backfills  7        \n  osd                 advanced  osd_max_backfills  5        \n    \
         osd.1             advanced  osd_max_backfills  6        \n"
    );
    let key = |who: &str| json!({ "who": who, "key": "osd_max_backfills" });
    assert_eq!(desk.text("config get", key("osd.0")), "5\n");
    assert_eq!(desk.text("config get", key("osd.1")), "6\n");
    assert_eq!(desk.text("config get", key("mon")), "4\n");
    desk.fails(
        "config get",
        json!({ "who": "osd.0", "key": "nope" }),
        Errno::ENOENT,
        "unrecognized key 'nope'",
    );
    desk.ok("config rm", json!({ "who": "osd.1", "name": "osd_max_backfills" }));
    desk.ok("config rm", json!({ "who": "osd.1", "name": "osd_max_backfills" }));
    assert_eq!(desk.text("config get", key("osd.1")), "5\n");
    assert_eq!(desk.state.config_of(&"osd.1".parse().unwrap())["osd_max_backfills"], "5");
    assert!(desk.text("config help", json!({ "key": "osd_objectstore" })).starts_with("osd_objectstore - "));
    assert!(desk.text("config ls", json!({})).contains("mon_osd_down_out_interval\n"));
}

#[test]
fn keys_are_made_once_and_caps_are_checked() {
    let mut desk = Desk::new();
    let who = |entity: &str, caps: &[&str]| json!({ "entity": entity, "caps": caps });
    let made =
        desk.text("auth get-or-create", who("client.x", &["mon", "allow r", "osd", "allow rw pool=p1"]));
    assert!(made.starts_with("[client.x]\n\tkey = AQ"), "{made}");
    assert_eq!(desk.text("auth get-or-create", who("client.x", &[])), made);
    let differs = "key for client.x exists but cap mon does not match";
    desk.fails("auth get-or-create", who("client.x", &["mon", "allow rw"]), Errno::EINVAL, differs);
    let stopped = "mon capability parse failed, stopped at 'foo' of 'foo'";
    desk.fails("auth caps", who("client.x", &["mon", "foo"]), Errno::EINVAL, stopped);
    desk.fails(
        "auth caps",
        who("client.no", &["mon", "allow r"]),
        Errno::ENOENT,
        "couldn't find entry client.no",
    );
    assert_eq!(desk.status("auth caps", who("client.x", &["mon", "allow *"])), "updated caps for client.x");
    let long = format!("allow r{}", ", allow r".repeat(4_000));
    let text = "the capabilities have 36010 bytes, the limit is 32768";
    desk.fails("auth caps", who("client.x", &["mon", &long]), Errno::EINVAL, text);
    let odd = "bad capabilities request; odd number of arguments";
    desk.fails("auth get-or-create", who("client.z", &["mon"]), Errno::EINVAL, odd);
    let exported = desk.ok("auth get", json!({ "entity": "client.x" }));
    assert_eq!(exported.0, "exported keyring for client.x");
    assert!(exported.1.ends_with("\tcaps mon = \"allow *\"\n"), "{}", exported.1);
    assert_eq!(desk.status("auth add", who("client.y", &["mon", "allow r"])), "added key for client.y");
    desk.fails(
        "auth add",
        who("client.y", &[]),
        Errno::EINVAL,
        "entity client.y exists but caps do not match",
    );
    assert!(desk.text("auth ls", json!({})).contains("client.y\n\tkey: AQ"));
    assert_eq!(desk.status("auth rm", json!({ "entity": "client.y" })), "updated");
    assert_eq!(desk.status("auth rm", json!({ "entity": "client.y" })), "entity client.y does not exist");
    desk.fails(
        "auth get",
        json!({ "entity": "client.y" }),
        Errno::ENOENT,
        "failed to find client.y in keyring",
    );
    desk.fails("auth get-key", json!({ "entity": "client.y" }), Errno::ENOENT, "don't have client.y");
    let renamed = exported.1.replace("client.x", "client.new");
    let (code, status, _) = desk.with_input("auth import", json!({}), renamed.as_bytes());
    assert_eq!((code, status.as_str()), (0, "imported keyring"));
    let key = desk.text("auth get-key", json!({ "entity": "client.x" }));
    assert_eq!(desk.text("auth print-key", json!({ "entity": "client.new" })), key);
    for (name, older, args) in [
        ("auth ls", "auth list", json!({})),
        ("auth print-key", "auth print_key", json!({ "entity": "client.new" })),
        ("config-key ls", "config-key list", json!({})),
        ("osd crush rule ls", "osd crush rule list", json!({})),
    ] {
        assert_eq!(desk.ok(older, args.clone()), desk.ok(name, args), "{older}");
    }
    let (code, status, _) = desk.with_input("auth import", json!({}), b"xx");
    assert_eq!((code, status.as_str()), (-22, "error decoding keyring cannot parse buffer: Malformed input"));
}

#[test]
fn crush_maps_go_out_and_only_usable_ones_come_in() {
    let mut desk = Desk::busy();
    let request =
        |desk: &mut Desk, args: Value, input: &[u8]| desk.with_input("osd setcrushmap", args, input);
    let version = desk.state.crush_version();
    let mut crush = (*desk.state.map().crush).clone();
    assert_eq!(request(&mut desk, json!({}), &crush.encode()), (0, version.to_string(), String::new()));
    crush.reweight_item("osd.0", 0x1_0000).unwrap();
    let later = (version + 1).to_string();
    assert_eq!(
        request(&mut desk, json!({ "prior_version": version }), &crush.encode()),
        (0, later.clone(), String::new())
    );
    assert_eq!(*desk.state.map().crush, crush);
    assert_eq!(
        request(&mut desk, json!({ "prior_version": version }), &crush.encode()).1,
        later,
        "a resent request"
    );
    assert_eq!(desk.status("osd getcrushmap", json!({})), later);
    let text = |said: Said| (said.0, said.1);
    assert_eq!(
        text(request(&mut desk, json!({}), b"garbage")),
        (-22, "Failed to parse crushmap: bad magic number: Malformed input".into())
    );
    assert_eq!(
        text(request(&mut desk, json!({}), b"")),
        (-22, "Failed to parse crushmap: End of buffer".into())
    );
    crush.remove_rule("replicated_rule").unwrap();
    assert_eq!(
        text(request(&mut desk, json!({}), &crush.encode())),
        (-22, "the crush rule no 0 has been deleted, but is in use by pool 'p1'".into())
    );
    let mut stranger = (*desk.state.map().crush).clone();
    let place = [("root".to_owned(), "default".to_owned())].into();
    stranger.insert_item(9, 0x1_0000, "osd.9", &place).unwrap();
    assert_eq!(
        text(request(&mut desk, json!({}), &stranger.encode())),
        (-22, "osd.9 in the crush map does not exist".into())
    );
    desk.fails("osd crush rule dump", json!({ "name": "nope" }), Errno::ENOENT, "unknown crush rule 'nope'");
    assert_eq!(
        desk.status("osd crush reweight", json!({ "name": "osd.0", "weight": 0.5 })),
        "reweighted item id 0 name 'osd.0' to 0.5 in crush map"
    );
    assert_eq!(
        desk.status("osd crush reweight", json!({ "name": "osd.0", "weight": 200 })),
        "reweighted item id 0 name 'osd.0' to 200 in crush map"
    );
}
