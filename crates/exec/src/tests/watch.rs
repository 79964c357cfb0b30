//! Watches in the object's info, and the effects for the host.

use super::*;

fn watch(cookie: u64) -> Op {
    Op::Watch { cookie, timeout_s: 0 }
}

fn watchers(b: &mut Bench, name: &str) -> Vec<(u64, u64, u32)> {
    let output = b.ok(name, vec![Op::ListWatchers]).ops[0].output.clone();
    let reply: WatchersReply = decode(&output).unwrap();
    reply.watchers.iter().map(|w| (w.client.0, w.cookie, w.timeout_s)).collect()
}

#[test]
fn watches_persist_without_users_seeing_a_change() {
    let mut b = Bench::new();
    b.fails("o", vec![watch(1)], Errno::ENOENT);
    let version = b.ok("o", vec![full("x")]).user_version;
    let executed = b.ok("o", vec![Op::Watch { cookie: 7, timeout_s: 5 }]);
    assert_eq!(executed.effects, [WatchNotifyEffect::Connect { cookie: 7, timeout_s: 5 }]);
    assert_eq!((executed.user_version, b.version), (version, 2));
    let again = b.ok("o", vec![watch(7)]);
    assert!(again.change.is_none(), "it is registered already");
    assert_eq!(again.effects.len(), 1);
    b.client = ClientId(2);
    b.ok("o", vec![watch(7)]);
    assert_eq!(watchers(&mut b, "o"), [(2, 7, 30), (4, 7, 5)]);
    let info = load_context(&b.store, PG, &oid("o")).unwrap().info;
    assert_eq!(info.watchers[0].addr, "127.0.0.1:0/2");
    b.ok("o", vec![Op::AssertVersion { version }, full("y")]);
    assert_eq!(watchers(&mut b, "o").len(), 2, "writes leave watches alone");
    let gone = b.ok("o", vec![Op::Unwatch { cookie: 7 }]);
    assert_eq!(gone.effects, [WatchNotifyEffect::Disconnect { cookie: 7 }]);
    assert_eq!(watchers(&mut b, "o"), [(4, 7, 5)]);
    let nothing = b.ok("o", vec![Op::Unwatch { cookie: 7 }]);
    assert!(nothing.change.is_none());
    assert_eq!(nothing.effects, [WatchNotifyEffect::Disconnect { cookie: 7 }], "the host may know of it yet");
}

#[test]
fn only_registered_watches_reconnect_and_ping() {
    let mut b = Bench::new();
    b.ok("o", vec![full("x")]);
    b.fails("o", vec![Op::WatchReconnect { cookie: 1 }], Errno::ENOTCONN);
    b.fails("o", vec![Op::WatchPing { cookie: 1 }], Errno::ENOTCONN);
    b.ok("o", vec![Op::Watch { cookie: 1, timeout_s: 9 }]);
    let version = b.version;
    let reconnected = b.ok("o", vec![Op::WatchReconnect { cookie: 1 }]);
    assert_eq!(reconnected.effects, [WatchNotifyEffect::Connect { cookie: 1, timeout_s: 9 }]);
    assert_eq!(b.ok("o", vec![Op::WatchPing { cookie: 1 }]).effects, [WatchNotifyEffect::Ping { cookie: 1 }]);
    assert_eq!(b.version, version, "nothing changed");
    for op in [Op::ListWatchers, Op::WatchPing { cookie: 1 }, Op::WatchReconnect { cookie: 1 }] {
        b.fails("absent", vec![op], Errno::ENOENT);
    }
}

#[test]
fn failed_requests_have_no_effects() {
    let mut b = Bench::new();
    b.ok("o", vec![full("x")]);
    let failed = b.run("o", vec![watch(1), get("absent")]);
    assert!(failed.result < 0 && failed.effects.is_empty());
    assert_eq!(watchers(&mut b, "o"), []);
}

#[test]
fn removal_ends_all_watches() {
    let mut b = Bench::new();
    b.ok("o", vec![full("x")]);
    b.ok("o", vec![watch(1)]);
    assert_eq!(b.ok("o", vec![Op::Remove]).effects, [WatchNotifyEffect::DisconnectAll]);
    b.ok("o", vec![full("again")]);
    assert_eq!(watchers(&mut b, "o"), []);
}

#[test]
fn watches_of_one_object_are_bounded() {
    let mut b = Bench::new();
    b.limits.max_object_watches = 2;
    b.ok("o", vec![full("x")]);
    b.ok("o", vec![watch(1)]);
    b.ok("o", vec![watch(2)]);
    b.ok("o", vec![watch(2)]);
    b.fails("o", vec![watch(3)], Errno::ENOSPC);
    b.fails("o", vec![watch(1), watch(2)], Errno::EINVAL);
}

#[test]
fn watches_of_one_session_and_of_all_are_bounded() {
    let mut b = Bench::new();
    (b.limits.max_client_watches, b.limits.max_watches) = (5, 9);
    b.ok("o", vec![full("x")]);
    for (own, all, room) in [(4, 8, true), (5, 8, false), (0, 9, false)] {
        b.watches = (0, 0);
        b.ok("o", vec![watch(1)]);
        b.watches = (own, all);
        // An existing watch continues regardless of the limits.
        b.ok("o", vec![watch(1)]);
        b.ok("o", vec![Op::WatchReconnect { cookie: 1 }]);
        match room {
            true => drop(b.ok("o", vec![watch(2)])),
            false => b.fails("o", vec![watch(2)], Errno::ENOSPC),
        }
        b.ok("o", vec![Op::Unwatch { cookie: 2 }]);
    }
}

#[test]
fn notifies_stand_alone_and_need_their_object() {
    let mut b = Bench::new();
    let notify = || Op::Notify { timeout_s: 0, payload: bytes("hi") };
    b.fails("o", vec![notify()], Errno::ENOENT);
    b.ok("o", vec![full("x")]);
    let effects = b.ok("o", vec![notify()]).effects;
    assert_eq!(effects, [WatchNotifyEffect::Notify { timeout_s: 30, payload: bytes("hi") }]);
    b.fails("o", vec![notify(), Op::Stat], Errno::EINVAL);
    let ack = Op::NotifyAck { notify_id: 5, cookie: 1, payload: bytes("yes") };
    let effects = b.ok("o", vec![ack]).effects;
    assert_eq!(effects, [WatchNotifyEffect::Ack { notify_id: 5, cookie: 1, payload: bytes("yes") }]);
}
