//! Damaged inputs for the protocol's records and keys: see `nacre_fuzz`.

use crate::key;
use crate::record::{
    self, Attributes, ChangeEffect, CommitRecord, Entry, EntryTails, Event, EventSubject, ListingEntry,
    OutboxRecord, Pending, Stats, Tails, Tidy, VersionKind,
};
use crate::seq::{HeadIncarnation, Seq};
use bytes::Bytes;
use nacre_fuzz::Target;
use nacre_types::encoding::Versioned;
use std::path::Path;

const SEQ: Seq = Seq { incarnation: HeadIncarnation { generation: 3, version: 1_000_000 }, number: 17 };
const TAG: &str = "0123456789abcdef0123456789abcdef";

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn stored<T: Versioned>(name: &str, seeds: &[T]) {
    let seeds = seeds.iter().map(|seed| record::encode(seed).to_vec()).collect();
    Target::new(name, corpus(), seeds)
        .run(|input| Some(record::encode(&record::decode::<T>("record", input).ok()?).to_vec()));
}

fn tails() -> Tails {
    Tails { name: "bucket__shadow_tag".into(), count: 3 }
}

fn listed() -> ListingEntry {
    ListingEntry {
        tag: TAG.into(),
        size: 5,
        mtime_ns: 1_700_000_000_000_000_000,
        etag: "5d41402abc4b2a76b9719d911017c592".into(),
        owner: "alice".into(),
        kind: VersionKind::Plain,
        held: Some(Stats { objects: 2, bytes: 10 }),
        class: String::new(),
    }
}

fn subject() -> EventSubject {
    let pair = |name: &str| vec![(name.to_owned(), "value".to_owned())];
    let attributes = Some(Attributes { metadata: pair("colour"), tags: pair("tag") });
    EventSubject { version_id: "null".into(), size: 5, etag: "e".into(), attributes }
}

#[test]
fn fuzz_records_of_shards() {
    let cold = ListingEntry { class: "COLD".into(), ..listed() };
    let entry = |object| Entry { seq: SEQ, object };
    stored("index-entry", &[entry(Some(listed())), entry(None), entry(Some(cold))]);
    stored("index-entry-tails", &[EntryTails { tails: vec![tails(), tails()] }]);
    stored("index-sums", &[Stats { objects: 3, bytes: 1 << 40 }]);
    stored("index-tidy", &[Tidy { up_to: SEQ }]);
    let fixed = Bytes::from_static(b"ObjectCreated:Put");
    let event = Event { fixed: fixed.clone(), candidates: vec!["c".into()], subject: subject() };
    let pending = Pending {
        begun_ns: 7,
        session: "client.4711".into(),
        tails: Some(tails()),
        replaced: vec![tails()],
        parts: vec![tails()],
        upload: Some(TAG.into()),
        slot: true,
        event: Some(event),
    };
    stored("index-pending", &[pending, Pending::default()]);
    let candidates = vec!["c".into(), "d".into()];
    let outbox =
        OutboxRecord { tag: TAG.into(), seq: SEQ, prepared_ns: 7, fixed, candidates, subject: subject() };
    stored("index-outbox", &[outbox]);
}

#[test]
fn fuzz_evidence() {
    let evidence = |content| CommitRecord {
        seq: SEQ,
        tag: TAG.into(),
        content,
        subject: Some(subject()),
        tails: Some(tails()),
        untidy: true,
    };
    let cold = ListingEntry { class: "COLD".into(), ..listed() };
    let contents = [
        ChangeEffect::Object(listed()),
        ChangeEffect::Object(cold),
        ChangeEffect::Unchanged,
        ChangeEffect::Tombstone,
        ChangeEffect::Removed,
    ];
    stored("evidence", &contents.map(evidence));
}

#[test]
fn fuzz_keys() {
    let seeds = [
        key::entry("a\0\u{1}\u{2}b"),
        key::pending("k", TAG),
        key::outbox("k/ü", SEQ),
        key::removal_slot("k"),
    ];
    let seeds = seeds.iter().map(|seed| seed.to_vec()).collect();
    Target::new("index-key", corpus(), seeds).run(|input| {
        let parsed = key::parse(input)?;
        let written = match parsed.kind {
            key::IndexRecordKind::Entry => key::entry(&parsed.key),
            key::IndexRecordKind::Tails => key::tails(&parsed.key),
            key::IndexRecordKind::Slot => key::removal_slot(&parsed.key),
            key::IndexRecordKind::Tidy => key::tidy(&parsed.key),
            key::IndexRecordKind::Pending => key::pending(&parsed.key, &parsed.suffix),
            key::IndexRecordKind::Upload => key::upload(&parsed.key, &parsed.suffix),
            key::IndexRecordKind::Outbox => {
                [&key::prefix(parsed.kind, &parsed.key)[..], parsed.suffix.as_bytes()].concat().into()
            }
        };
        assert_eq!(written, input, "a key has one form");
        Some(written.to_vec())
    });
}
