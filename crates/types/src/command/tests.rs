use super::*;
use crate::errno::Errno;
use crate::ids::OsdId;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn json_of(text: &str) -> String {
    Value::Object(mon_commands().parse_words(&words(text)).unwrap()).to_string()
}

fn error_of(text: &str) -> String {
    mon_commands().parse_words(&words(text)).unwrap_err().to_string()
}

#[test]
fn every_line_parses_and_names_its_command_once() {
    for table in [mon_commands(), osd_commands(), mon_daemon_commands()] {
        let mut prefixes: Vec<_> = table.signatures().iter().map(|s| s.prefix.as_str()).collect();
        assert!(prefixes.iter().all(|prefix| !prefix.contains(['=', '['])));
        let count = prefixes.len();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), count);
        assert_eq!(table.descriptions().as_object().unwrap().len(), count);
    }
}

#[test]
fn words_become_the_json_that_ceph_sends() {
    assert_eq!(
        json_of("osd pool create data 64 replicated"),
        r#"{"prefix":"osd pool create","pool":"data","pg_num":64,"pool_type":"replicated"}"#
    );
    assert_eq!(
        json_of("osd pool rm data data --yes-i-really-really-mean-it"),
        r#"{"prefix":"osd pool rm","yes_i_really_really_mean_it":true,"pool":"data","pool2":"data"}"#
    );
    assert_eq!(json_of("osd out osd.1 2"), r#"{"prefix":"osd out","ids":["osd.1","2"]}"#);
    assert_eq!(json_of("osd reweight osd.3 0.5"), r#"{"prefix":"osd reweight","id":3,"weight":0.5}"#);
    assert_eq!(json_of("osd tree down"), r#"{"prefix":"osd tree","states":["down"]}"#);
    assert_eq!(json_of("osd pool create p --size=2"), r#"{"prefix":"osd pool create","size":2,"pool":"p"}"#);
    assert_eq!(json_of("osd blocklist ls"), r#"{"prefix":"osd blocklist ls"}"#);
    assert_eq!(
        json_of("osd blocklist add 10.0.0.1:0/7 60"),
        r#"{"prefix":"osd blocklist","blocklistop":"add","addr":"10.0.0.1:0/7","expire":60.0}"#
    );
    assert_eq!(
        json_of("osd blocklist range rm 10.0.0.0/24"),
        r#"{"prefix":"osd blocklist","range":"range","blocklistop":"rm","addr":"10.0.0.0/24"}"#
    );
    assert_eq!(
        json_of("osd crush tree --show-shadow"),
        r#"{"prefix":"osd crush tree","shadow":"--show-shadow"}"#
    );
    assert_eq!(json_of("osd df class ssd"), r#"{"prefix":"osd df","filter_by":"class","filter":"ssd"}"#);
    assert_eq!(json_of("osd ok-to-stop 3 --max 4"), r#"{"prefix":"osd ok-to-stop","max":4,"ids":["3"]}"#);
    assert_eq!(
        json_of("config set global k -- --v"),
        r#"{"prefix":"config set","who":"global","name":"k","value":"--v"}"#
    );
}

#[test]
fn errors_name_the_parameter() {
    assert_eq!(error_of("osd pool create"), "missing required parameter pool(<pool>)");
    assert_eq!(error_of("osd reweight 1 2.5"), "weight: 2.5 not in range [0, 1]");
    assert_eq!(error_of("osd reweight x 0.5"), "id: osd id x is not of the form osd.N or N");
    assert_eq!(error_of("pg map nothing"), "pgid: 'nothing' is not a placement group id such as 2.1f");
    assert_eq!(error_of("osd stat more"), "unused arguments: 'more'");
    assert!(error_of("osd pool frobnicate").contains("closest matches:\nosd pool ls [detail]"));
    assert_eq!(error_of("frobnicate"), "no valid command found");
}

#[test]
fn json_is_checked_and_typed() {
    let table = mon_commands();
    let call = table
        .parse_json(r#"{"prefix":"osd reweight","id":"osd.4","weight":"0.25","format":"json"}"#)
        .unwrap();
    assert_eq!(
        (call.osd("id"), call.float("weight"), call.format()),
        (Some(OsdId(4)), Some(0.25), Some("json"))
    );
    let call = table.parse_json(r#"{"prefix":"osd out","ids":"3"}"#).unwrap();
    assert_eq!(call.texts("ids"), ["3"]);
    let call = table
        .parse_json(r#"{"prefix":"osd pool rm","pool":"p","yes_i_really_really_mean_it":true}"#)
        .unwrap();
    assert!(call.flag("yes_i_really_really_mean_it") && call.text("pool2").is_none());
    for wrong in [
        r#"{"prefix":"osd pool rm"}"#,
        r#"{"prefix":"osd out","ids":[]}"#,
        r#"{"prefix":"pg map","pgid":{}}"#,
        r#"{"prefix":"nonsense"}"#,
        r#"{}"#,
        "[",
    ] {
        assert!(table.parse_json(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn usage_is_printed_as_ceph_prints_it() {
    let signature = mon_commands().find("osd pool ls").unwrap();
    assert_eq!(signature.to_string(), "osd pool ls [detail]");
    let signature = mon_commands().find("osd lost").unwrap();
    assert_eq!(signature.to_string(), "osd lost <id:osd.N> [--yes-i-really-mean-it]");
    let description = mon_commands().descriptions();
    let first = description.as_object().unwrap().values().find(|d| d["sig"][1] == "reweight").unwrap();
    assert_eq!(first["sig"][3], serde_json::json!({"name": "weight", "type": "CephFloat", "range": "0|1"}));
}

#[test]
fn commands_of_ceph_are_carried_out_or_refused_by_name() {
    let table = mon_commands();
    let error = table.parse_json(r#"{"prefix":"osd pool mksnap","pool":"a"}"#).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP);
    assert_eq!(error.to_string(), "command 'osd pool mksnap' is not supported: there are no snapshots");
    assert_eq!(error_of("osd pool mksnap p s"), error.to_string());
    let error = table.parse_json(r#"{"prefix":"nonesuch"}"#).unwrap_err();
    assert_eq!((error.errno(), error.to_string().as_str()), (Errno::EINVAL, "command not known"));
    let error = osd_commands().parse_json(r#"{"prefix":"nonesuch"}"#).unwrap_err();
    assert_eq!(error.to_string(), "unknown command prefix nonesuch");

    let all = mon_command_support();
    let refused = all.iter().filter(|(_, support)| support.is_refused());
    assert!(refused.clone().count() > 300 && refused.clone().all(|(_, support)| !support.note().is_empty()));
    for signature in table.signatures() {
        assert!(is_mon_command(&signature.prefix), "{}", signature.prefix);
        assert!(all.contains(&(&*signature.prefix, signature.support)), "{}", signature.prefix);
    }
}
