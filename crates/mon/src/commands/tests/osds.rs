//! Commands that change OSDs, and the blocklist.

use super::*;
use nacre_types::ids::Epoch;

#[test]
fn an_osd_that_is_down_has_its_full_time_from_when_it_is_reweighted_in() {
    let reweight = |desk: &mut Desk, weight: u32, many: bool| match many {
        true => desk.ok("osd reweightn", json!({ "weights": format!("{{\"2\":{}}}", weight * 65_536) })),
        false => desk.ok("osd reweight", json!({ "id": "2", "weight": weight })),
    };
    for many in [false, true] {
        let mut desk = Desk::busy();
        let since = |desk: &Desk| desk.state.down_since.get(&OsdId(2)).copied();
        desk.now = at(1_000);
        desk.ok("osd down", json!({ "ids": ["2"] }));
        desk.now = at(500_000);
        reweight(&mut desk, 0, many);
        assert_eq!(since(&desk), None);
        desk.now = at(550_000);
        reweight(&mut desk, 1, many);
        assert_eq!(since(&desk), Some(550_000));
    }
}

#[test]
fn osd_commands_answer_in_cephs_words() {
    let mut desk = Desk::busy();
    let ids = |ids: &[&str]| json!({ "ids": ids });
    assert_eq!(desk.status("osd out", ids(&["0"])), "marked out osd.0. ");
    assert_eq!(desk.status("osd out", ids(&["0"])), "osd.0 is already out. ");
    assert_eq!(desk.status("osd in", ids(&["osd.0"])), "marked in osd.0. ");
    assert_eq!(
        desk.status("osd out", ids(&["all"])),
        "marked out osd.0. marked out osd.1. marked out osd.2. "
    );
    assert_eq!(desk.status("osd in", ids(&["any"])), "marked in osd.0. marked in osd.1. marked in osd.2. ");
    assert_eq!(desk.status("osd down", ids(&["77"])), "osd.77 does not exist. ");
    assert_eq!(desk.status("osd down", ids(&["2"])), "marked down osd.2. ");
    let dead = json!({ "ids": ["2"], "definitely_dead": true });
    assert_eq!(desk.status("osd down", dead), "osd.2 is already down. ");
    assert!(!desk.state.map().is_up(OsdId(2)));
    let bad = "Expected option value to be integer, got 'foo'invalid osd id-1";
    desk.fails("osd out", ids(&["0", "foo"]), Errno::EINVAL, bad);
    assert_eq!(
        desk.status("osd reweight", json!({ "id": "1", "weight": "0.5" })),
        "reweighted osd.1 to 0.5 (8000)"
    );
    desk.fails("osd reweight", json!({ "id": "77", "weight": 1 }), Errno::ENOENT, "osd.77 does not exist");
    assert_eq!(desk.status("osd set", json!({ "key": "pause" })), "pauserd,pausewr is set");
    assert_eq!(desk.status("osd unset", json!({ "key": "pause" })), "pauserd,pausewr is unset");
    desk.fails("osd set", json!({ "key": "full" }), Errno::EINVAL, "unrecognized flag 'full'");
    assert_eq!(desk.status("osd set-nearfull-ratio", json!({ "ratio": 0.8 })), "osd set-nearfull-ratio 0.8");
    desk.fails("osd rm", ids(&["0"]), Errno::EBUSY, "osd.0 is still up; must be down before removal. ");
    let sure = "are you SURE?  this might mean real, permanent data loss.  pass --yes-i-really-mean-it if you really do.";
    desk.fails("osd lost", json!({ "id": 2 }), Errno::EPERM, sure);
    desk.fails(
        "osd lost",
        json!({ "id": 0, "yes_i_really_mean_it": true }),
        Errno::EBUSY,
        "osd.0 is not down",
    );
    desk.ok("osd lost", json!({ "id": 2, "yes_i_really_mean_it": true }));
    assert!(desk.state.map().osds[&OsdId(2)].lost_at > Epoch(0));
    desk.ok("osd purge", json!({ "id": 2, "yes_i_really_mean_it": true }));
    assert!(
        !desk.state.map().osds.contains_key(&OsdId(2)) && desk.state.map().crush.item_id("osd.2").is_none()
    );
    assert_eq!(desk.text("osd new", json!({ "uuid": Uuid::from_u128(3).to_string() })), "2\n");
    assert_eq!(desk.text("osd new", json!({ "uuid": Uuid::from_u128(3).to_string() })), "2\n");
    desk.fails("osd metadata", json!({ "id": 77 }), Errno::ENOENT, "osd.77 does not exist");
    desk.fails(
        "osd map",
        json!({ "pool": "nope", "object": "x" }),
        Errno::ENOENT,
        "pool nope does not exist",
    );
    for wrong in ["nonsense", "1.2.3.4:x", "1.2.3.4:0/", "client."] {
        let add = json!({ "blocklistop": "add", "addr": wrong });
        desk.fails("osd blocklist", add, Errno::EINVAL, &format!("unable to parse address {wrong}"));
    }
    let add = json!({ "blocklistop": "add", "addr": "1.2.3.4:0/5" });
    assert!(
        desk.status("osd blocklist", add).starts_with("blocklisting 1.2.3.4:0/5 until 2023-11-14T23:13:20")
    );
    assert!(desk.text("osd blocklist ls", json!({})).starts_with("1.2.3.4:0/5 2023-"));
    let rm = json!({ "blocklistop": "rm", "addr": "1.2.3.4:0/5" });
    assert_eq!(desk.status("osd blocklist", rm.clone()), "un-blocklisting 1.2.3.4:0/5");
    assert_eq!(desk.status("osd blocklist", rm), "1.2.3.4:0/5 isn't blocklisted");
    let range = |op: &str, addr: &str| json!({ "range": "range", "blocklistop": op, "addr": addr });
    for wrong in ["1.2.3.4", "1.2.3.4/0", "x/8", "1.2.3.4:80/8"] {
        let text = format!("You specified a range command, but {wrong} does not parse as a CIDR range");
        desk.fails("osd blocklist", range("add", wrong), Errno::EINVAL, &text);
    }
    let text = "Too many bits in range for that protocol!";
    desk.fails("osd blocklist", range("add", "1.2.0.0/33"), Errno::EINVAL, text);
    let text = desk.status("osd blocklist", range("add", "1.2.0.0/16"));
    assert!(text.starts_with("blocklisting cidr:1.2.0.0:0/16 until 2023-"), "{text}");
    assert_eq!(desk.json("osd blocklist ls", json!({}))[0]["range"], "cidr:1.2.0.0:0/16");
    let dump = desk.json("osd dump", json!({}));
    assert!(dump["blocklist"].as_object().unwrap().is_empty(), "{dump}");
    assert!(dump["range_blocklist"]["cidr:1.2.0.0:0/16"].is_string(), "{dump}");
    let text = desk.status("osd blocklist", range("rm", "1.2.0.0/16"));
    assert_eq!(text, "un-blocklisting cidr:1.2.0.0:0/16");
}
