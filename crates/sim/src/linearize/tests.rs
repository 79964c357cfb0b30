//! The checker must accept correct histories and, above all, refuse wrong ones.

use super::*;
use crate::history::Action::{self, Append, Ensure, Read, Remove, Swap, Truncate, WriteAt, WriteFull};
use crate::history::Token;
use crate::random::{Random, Stream};

fn saw(tokens: &[Token]) -> Outcome {
    Outcome::Saw(Some(Value { tokens: tokens.to_vec(), ..Value::default() }))
}

fn op(client: u32, action: Action, call: Nanos, reply: Nanos, outcome: Outcome) -> Entry {
    Entry::new(client, call, action, (call, Some(reply)), outcome)
}

fn lost(client: u32, action: Action, call: Nanos) -> Entry {
    Entry::new(client, call, action, (call, None), Outcome::Unknown)
}

fn done(action: Action, call: Nanos, version: u64) -> Entry {
    op(0, action, call, call + 5, Outcome::Done).at_version(version)
}

fn rule(entries: &[Entry]) -> Result<(), &'static str> {
    check(entries).map_err(|broken| broken.rule)
}

#[test]
fn concurrent_writes_in_either_order_are_accepted() {
    for last in [1, 2] {
        let entries = [
            op(0, WriteFull(1), 0, 10, Outcome::Done),
            op(1, WriteFull(2), 0, 10, Outcome::Done),
            op(0, Read, 20, 30, saw(&[last])),
        ];
        let in_order = entries.clone().map(|e| match e.action {
            WriteFull(token) => e.at_version(if token == last { 2 } else { 1 }),
            _ => e.at_version(2),
        });
        assert_eq!(rule(&in_order), Ok(()));
        let swapped = in_order.map(|e| match (&e.action, e.version) {
            (WriteFull(_), Some(v)) => e.at_version(3 - v),
            _ => e,
        });
        assert_eq!(
            rule(&swapped),
            Err("not linearizable"),
            "versions name another order than the read shows"
        );
    }
}

#[test]
fn a_lost_write_is_refused() {
    let entries = [done(WriteFull(1), 0, 1), done(Append(2), 10, 2), op(1, Read, 20, 25, saw(&[1]))];
    assert_eq!(rule(&entries), Err("not linearizable"));
    let vanished = [done(WriteFull(1), 0, 1), op(1, Read, 20, 25, Outcome::Saw(None))];
    assert_eq!(rule(&vanished), Err("not linearizable"));
}

#[test]
fn a_stale_read_is_refused_and_a_concurrent_one_is_not() {
    let write = [done(WriteFull(1), 0, 1), op(0, Append(2), 10, 50, Outcome::Done).at_version(2)];
    let read =
        |call, tokens: &[Token]| op(1, Read, call, call + 5, saw(tokens)).at_version(tokens.len() as u64);
    assert_eq!(rule(&[&write[..], &[read(20, &[1])]].concat()), Ok(()));
    assert_eq!(rule(&[&write[..], &[read(20, &[1, 2]), read(30, &[1, 2])]].concat()), Ok(()));
    assert_eq!(rule(&[&write[..], &[read(20, &[1, 2]), read(30, &[1])]].concat()), Err("not linearizable"));
    assert_eq!(rule(&[&write[..], &[read(60, &[1])]].concat()), Err("not linearizable"));
}

#[test]
fn an_object_that_returns_after_its_removal_is_refused() {
    let (write, remove) = (done(WriteFull(1), 0, 1), done(Remove, 20, 2));
    let ensure = |call, reply| op(1, Ensure, call, reply, Outcome::Done);
    let read = |tokens: &[Token], version| op(0, Read, 60, 65, saw(tokens)).at_version(version);
    let gone = op(0, Read, 60, 65, Outcome::Saw(None));
    assert_eq!(rule(&[write.clone(), ensure(10, 15), remove.clone(), gone.clone()]), Ok(()));
    assert_eq!(
        rule(&[write.clone(), ensure(10, 15), remove.clone(), read(&[], 3)]),
        Err("not linearizable"),
        "it was over before the removal"
    );
    assert_eq!(rule(&[write.clone(), ensure(10, 50), remove.clone(), read(&[], 3)]), Ok(()));
    assert_eq!(rule(&[write.clone(), ensure(10, 50), remove.clone(), gone.clone()]), Ok(()));
    assert_eq!(rule(&[write, remove, ensure(30, 50), gone]), Err("not linearizable"), "it made the object");
}

#[test]
fn a_duplicate_append_is_refused() {
    let entries = [done(Append(1), 0, 1), op(1, Read, 20, 25, saw(&[1, 1]))];
    assert_eq!(rule(&entries), Err("write applied twice"));
    // Applied again after another client's write; visible only through the order.
    let entries =
        [done(WriteFull(1), 0, 1), done(WriteFull(2), 10, 2), op(1, Read, 20, 25, saw(&[1])).at_version(3)];
    assert_eq!(rule(&entries), Err("not linearizable"));
}

#[test]
fn values_out_of_thin_air_are_refused() {
    assert_eq!(rule(&[op(0, Read, 0, 5, saw(&[9]))]), Err("not linearizable"));
    let refused = [op(0, WriteFull(9), 0, 5, Outcome::Refused), op(0, Read, 10, 15, saw(&[9]))];
    assert_eq!(rule(&refused), Err("not linearizable"));
}

#[test]
fn an_unknown_outcome_may_show_late_or_never_but_not_come_and_go() {
    let base = done(WriteFull(1), 10, 1);
    let unknown = lost(1, Append(7), 0);
    let read = |call, tokens: &[Token]| op(2, Read, call, call + 5, saw(tokens));
    assert_eq!(rule(&[base.clone(), unknown.clone(), read(20, &[1])]), Ok(()));
    assert_eq!(rule(&[base.clone(), unknown.clone(), read(20, &[1]), read(90, &[1, 7])]), Ok(()));
    assert_eq!(
        rule(&[base.clone(), unknown.clone(), read(20, &[1, 7]), read(90, &[1])]),
        Err("not linearizable")
    );
    let too_early = [base, lost(1, Append(7), 50), read(20, &[1, 7])];
    assert_eq!(rule(&too_early), Err("not linearizable"));
}

#[test]
fn removes_and_swaps_follow_the_state() {
    let swap = |expect, set, call, outcome| op(0, Swap { expect, set }, call, call + 5, outcome);
    let value = |mark| Outcome::Saw(Some(Value { tokens: vec![1], mark, count: 0 }));
    let good = [
        swap(0, 5, 0, Outcome::Absent),
        done(WriteFull(1), 10, 1),
        swap(0, 5, 20, Outcome::Done).at_version(2),
        swap(0, 6, 30, Outcome::Mismatch),
        op(0, Read, 40, 45, value(5)).at_version(2),
        done(Remove, 50, 3),
        op(0, Remove, 60, 65, Outcome::Absent),
        op(0, Read, 70, 75, Outcome::Saw(None)),
    ];
    assert_eq!(rule(&good), Ok(()));
    let both = [
        done(WriteFull(1), 0, 1),
        op(0, Swap { expect: 0, set: 5 }, 10, 20, Outcome::Done).at_version(2),
        op(1, Swap { expect: 0, set: 6 }, 10, 20, Outcome::Done).at_version(3),
    ];
    assert_eq!(rule(&both), Err("not linearizable"), "two swaps from one mark can't both succeed");
    let undead =
        [done(WriteFull(1), 0, 1), done(Remove, 10, 2), op(0, Read, 20, 25, saw(&[1])).at_version(1)];
    assert_eq!(rule(&undead), Err("not linearizable"));
}

#[test]
fn one_version_of_two_writes_is_refused() {
    let entries = [
        op(0, Append(1), 0, 10, Outcome::Done).at_version(1),
        op(1, Append(2), 0, 10, Outcome::Done).at_version(1),
    ];
    assert_eq!(rule(&entries), Err("not linearizable"));
}

/// A random history made by executing requests one after another.
fn executed(random: &mut Random, len: u64) -> Vec<Entry> {
    let (mut state, mut version, mut entries) = (None, 0, Vec::new());
    for n in 0..len {
        let action = match random.range(0, 13) {
            0..5 => Read,
            5 => WriteFull(n + 1),
            6..8 => Append(n + 1),
            8 => WriteAt(random.range(0, 4) as u8, n + 1),
            9 => Truncate(random.range(0, 4) as u8),
            10 => Remove,
            11 => Ensure,
            _ => Swap { expect: state.as_ref().map_or(0, |v: &Value| v.mark), set: n + 1 },
        };
        let at = 100 * n + 100;
        let (call, reply) = (at - random.range(0, 250).min(at), at + 1 + random.range(0, 250));
        let (next, outcome) = action.apply(&state);
        let changes = match action {
            // An existing object stays unchanged.
            Ensure => state.is_none(),
            Truncate(_) => state.is_some(),
            _ => outcome == Outcome::Done,
        };
        state = next;
        version += u64::from(changes);
        // These have no version of their own, as clients record them.
        let is_bare = matches!(action, Ensure | Truncate(_) | Remove);
        let carries = outcome == Outcome::Done && !is_bare || matches!(outcome, Outcome::Saw(Some(_)));
        let mut entry = Entry::new(n as u32 % 4, n, action, (call, Some(reply)), outcome);
        entry.version = carries.then_some(version);
        if random.chance(60) && entry.action.is_write() {
            (entry.reply, entry.outcome, entry.version) = (None, Outcome::Unknown, None);
        }
        entries.push(entry);
    }
    entries
}

#[test]
fn executed_histories_are_accepted_and_quickly() {
    for seed in 0..60 {
        let entries = executed(&mut Random::new(seed, Stream::Workload), 150);
        assert!(check(&entries).is_ok(), "seed {seed}: {:?}", check(&entries));
    }
}

#[test]
fn executed_histories_with_one_lie_are_refused() {
    let mut lies = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed, Stream::Workload);
        let mut entries = executed(&mut random, 60);
        let reads: Vec<usize> = (0..entries.len())
            .filter(|n| matches!(&entries[*n].outcome, Outcome::Saw(Some(v)) if !v.tokens.is_empty()))
            .collect();
        let Some(&read) = random.pick(&reads) else { continue };
        let Outcome::Saw(Some(value)) = &mut entries[read].outcome else { continue };
        value.tokens.push(0xbad);
        assert!(check(&entries).is_err(), "seed {seed}: read {read} saw what nobody wrote");
        lies += 1;
    }
    assert!(lies > 100, "only {lies} histories had a read to spoil");
}

#[test]
fn many_requests_without_an_answer_leave_a_history_decidable() {
    // Of thirty requests that may have taken effect, one did, and a later read shows it.
    let mut entries = vec![done(WriteFull(1), 0, 1)];
    entries.extend((0..30).map(|n| lost(1, Append(100 + n), 10 + n)));
    entries.push(op(0, Truncate(0), 100, 120, Outcome::Done));
    entries.push(op(0, Truncate(0), 101, 120, Outcome::Done));
    entries.push(op(0, Read, 102, 120, saw(&[])).at_version(9));
    entries.push(op(0, Read, 130, 135, saw(&[])).at_version(9));
    entries.push(op(0, Read, 140, 145, saw(&[117])).at_version(12));
    assert_eq!(rule(&entries), Ok(()));
    entries.push(op(0, Read, 150, 155, saw(&[])).at_version(12));
    assert!(rule(&entries).is_err());
}

#[test]
fn a_hundred_shown_requests_without_an_answer_leave_a_history_decidable() {
    let mut entries = vec![done(WriteFull(1), 0, 1)];
    let mut tokens = vec![1];
    for n in 0..100 {
        let at = 10 + n * 10;
        tokens.push(100 + n);
        entries.push(lost(1, Append(100 + n), at));
        entries.push(op(0, Read, at + 2, at + 5, saw(&tokens)).at_version(n + 2));
    }
    assert_eq!(rule(&entries), Ok(()));
    entries.push(op(0, Read, 2000, 2005, saw(&tokens[..50])).at_version(101));
    assert_eq!(rule(&entries), Err("not linearizable"));
}
