//! Requests in general: every command is implemented; malformed requests and those without permission are refused.

use super::*;
use proptest::prelude::*;

#[test]
fn every_command_of_the_table_is_carried_out() {
    let mut desk = Desk::busy();
    for signature in mon_commands().signatures() {
        let mut args = json!({});
        for param in signature.params.iter().filter(|p| p.required) {
            use nacre_types::command::ParamKind;
            args[param.name] = match (&param.kind, param.name) {
                (ParamKind::Choice(words) | ParamKind::Words(words), _) => words[0].into(),
                (ParamKind::PgId, _) => "1.0".into(),
                (ParamKind::Name, _) => "client.t".into(),
                (ParamKind::Uuid, _) => Uuid::from_u128(5).to_string().into(),
                (ParamKind::Int { .. } | ParamKind::Float { .. } | ParamKind::OsdName, _) => "0".into(),
                (_, "who") => "osd".into(),
                (_, "key") => "osd_max_backfills".into(),
                _ => "x".into(),
            };
        }
        let (code, status, _) = desk.run(&signature.prefix, args);
        assert!(code != Errno::ENOTSUP.negated(), "{}: {status}", signature.prefix);
    }
}

#[test]
fn what_is_not_allowed_is_denied() {
    let mut desk = Desk::busy();
    desk.caps = Arc::new(MonCaps::parse("allow r").unwrap());
    desk.ok("osd tree", json!({}));
    desk.fails("osd out", json!({ "ids": ["0"] }), Errno::EACCES, "access denied");
    desk.fails("auth ls", json!({}), Errno::EACCES, "access denied");
}

#[test]
fn a_command_that_does_not_fit_into_the_map_store_is_refused() {
    let mut desk = Desk::busy();
    let name = "x".repeat(1 << 20);
    let (code, text, _) = desk.run("auth get-or-create", json!({ "entity": format!("client.{name}") }));
    assert_eq!(code, Errno::E2BIG.negated());
    assert!(text.ends_with(" bytes, the limit is 1048576"), "{text}");
    let (code, _, _) = desk.run("health mute", json!({ "code": name, "sticky": true }));
    assert_eq!(code, Errno::E2BIG.negated());
}

#[test]
fn hostile_requests_are_refused_and_change_nothing() {
    let mut desk = Desk::busy();
    let before = desk.state.working.clone();
    for bad in [
        "",
        "{",
        "[]",
        "{}",
        "null",
        "{\"prefix\":5}",
        "{\"prefix\":\"nope\"}",
        "{\"prefix\":\"osd pool create\"}",
        "{\"prefix\":\"osd pool create\",\"pool\":[1]}",
        "{\"prefix\":\"osd pool create\",\"pool\":\"\"}",
        "{\"prefix\":\"osd pool create\",\"pool\":\"q\",\"pg_num\":\"abc\"}",
        "{\"prefix\":\"osd pool create\",\"pool\":\"q\",\"pg_num\":-1}",
        "{\"prefix\":\"osd out\",\"ids\":[]}",
        "{\"prefix\":\"osd out\",\"ids\":{\"a\":1}}",
        "{\"prefix\":\"osd reweight\",\"id\":0,\"weight\":1.5}",
        "{\"prefix\":\"osd reweight\",\"id\":-1,\"weight\":1}",
        "{\"prefix\":\"osd set\",\"key\":\"zzz\"}",
        "{\"prefix\":\"status\",\"format\":\"zzz\"}",
        "{\"prefix\":\"osd new\",\"uuid\":\"x\"}",
    ] {
        let (code, status, output) = desk.raw(bad, b"");
        assert_eq!((code, output.as_str()), (-22, ""), "{bad}: {status}");
        assert!(!status.is_empty(), "{bad}");
    }
    assert_eq!(desk.state.working, before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_in_any_argument_gets_an_answer(at in 0_usize..200, text in "\\PC{0,24}", number in any::<i64>()) {
        let mut desk = Desk::busy();
        let signatures = mon_commands().signatures();
        let signature = &signatures[at % signatures.len()];
        let mut args = json!({});
        for (i, param) in signature.params.iter().enumerate() {
            args[param.name] = match i % 3 {
                0 => text.as_str().into(),
                1 => number.into(),
                _ => json!([text, number]),
            };
        }
        let (code, ..) = desk.with_input(&signature.prefix, args, text.as_bytes());
        prop_assert!(code <= 0);
    }
}
