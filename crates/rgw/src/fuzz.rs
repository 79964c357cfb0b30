//! Fuzz tests: damaged stored records and policies. See `nacre_fuzz`.

use crate::acl::{Acl, Grant, Grantee, Permission};
use crate::bucket::Bucket;
use crate::policy::Policy;
use crate::record;
use crate::stored::{DataLocation, Head, Manifest, ManifestPart, StoredChecksum};
use crate::user::{AccessKey, User};
use crate::user_buckets::UserBucketEntry;
use nacre_fuzz::Target;
use nacre_index::record::Tails;
use nacre_types::encoding::Versioned;
use std::path::Path;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn stored<T: Versioned>(name: &str, seeds: &[T]) {
    let seeds = seeds.iter().map(|seed| record::encode(seed).to_vec()).collect();
    Target::new(name, corpus(), seeds)
        .run(|input| Some(record::encode(&record::decode::<T>("record", input).ok()?).to_vec()));
}

fn acl() -> Acl {
    let grant = |grantee, permission| Grant { grantee, permission };
    Acl {
        grants: vec![
            grant(Grantee::User("alice".into()), Permission::Write),
            grant(Grantee::Everybody, Permission::Read),
        ],
    }
}

#[test]
fn fuzz_records_of_objects() {
    let head = Head {
        tag: "0123456789abcdef0123456789abcdef".into(),
        size: 5,
        mtime_ns: 1_700_000_000_000_000_000,
        etag: "5d41402abc4b2a76b9719d911017c592".into(),
        owner: "alice".into(),
        headers: vec![("content-type".into(), "text/plain".into())],
        metadata: vec![("colour".into(), "green".into())],
        tags: vec![("a".into(), "b".into())],
        checksum: Some(StoredChecksum { algorithm: "CRC32".into(), value: "AAAAAA==".into(), whole: true }),
        acl: acl(),
        ..Head::default()
    };
    let parts = Head { data: DataLocation::Parts(3), upload: "upload".into(), ..head.clone() };
    stored("object-head", &[head, parts, Head::default()]);
    let tails = Tails { name: "t".into(), count: 3 };
    let part = |number| ManifestPart {
        number,
        size: 5 << 20,
        tails: tails.clone(),
        salt: None,
        checksum: Some(StoredChecksum { algorithm: "CRC32".into(), value: "AAAAAA==".into(), whole: true }),
    };
    stored("object-manifest", &[Manifest { parts: vec![part(1), part(7)] }, Manifest::default()]);
}

#[test]
fn fuzz_records_of_users_and_buckets() {
    let key = AccessKey { access_key: "AK".into(), secret_key: "secret".into() };
    let user = User { keys: vec![key], caps: vec![("users".into(), "read".into())], ..User::new("a", "A") };
    stored("user", &[user]);
    let mut bucket = Bucket { name: "photos".into(), owner: "a".into(), acl: acl(), ..Bucket::default() };
    bucket.documents.insert("policy".into(), "{}".into());
    stored("bucket", &[bucket]);
    stored("own-bucket", &[UserBucketEntry { id: "00".into(), created_ns: 7 }]);
}

const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["arn:aws:iam:::user/a"]},
"Action":["s3:Get*","s3:ListBucket"],"Resource":["arn:aws:s3:::photos","arn:aws:s3:::photos/*"],"Condition":{
"IpAddress":{"aws:SourceIp":["10.0.0.0/8","::1/128"]},"StringLike":{"s3:prefix":"home/${aws:username}/*"},
"NumericLessThan":{"s3:max-keys":"10"},"DateGreaterThan":{"aws:CurrentTime":"2026-01-01T00:00:00Z"},
"Bool":{"aws:SecureTransport":"true"},"Null":{"aws:Referer":"true"}}},{"Effect":"Deny","NotPrincipal":"*","NotAction":"*",
"NotResource":"arn:aws:s3:::photos/x"}]}"#;

#[test]
fn fuzz_policies() {
    let words = [
        "\"*\"",
        "Allow",
        "Deny",
        "Principal",
        "Condition",
        "IfExists",
        "ForAnyValue:",
        "[",
        "{",
        "${",
        "10.0.0.0/33",
    ];
    let seeds = vec![POLICY.as_bytes().to_vec()];
    let target = Target {
        dictionary: &words,
        max_alloc_per_input_byte: 1024,
        ..Target::new("policy", corpus(), seeds)
    };
    target.run(|input| {
        let text = std::str::from_utf8(input).ok()?;
        let policy = Policy::read(text, "photos").ok()?;
        // A policy that is accepted must be able to decide any request.
        let context = |_: &str| vec!["10.1.2.3".to_owned()];
        for user in [None, Some("a")] {
            let (action, resource) = ("s3:GetObject", "arn:aws:s3:::photos/x");
            let who = crate::policy::PolicyPrincipal { user, role: None };
            _ = policy.decide(&crate::policy::PolicyRequest { who, action, resource, context: &context });
        }
        policy.is_public();
        Some(input.to_vec())
    });
}
