//! Fuzz tests: damaged requests of clients and damaged stored records. See `nacre_fuzz`.

use crate::acl::{Acl, Grant, Grantee, Permission};
use crate::bucket::{Bucket, UserBucketEntry};
use crate::index::Tails;
use crate::object::{DataLocation, Head, Manifest, ManifestPart, StoredChecksum};
use crate::policy::Policy;
use crate::post_policy::{Fields, PostSignature};
use crate::record;
use crate::user::{AccessKey, User};
use nacre_fuzz::Target;
use nacre_types::encoding::Versioned;
use s3s::dto::{AccessControlPolicy, CORSConfiguration, Delete, Tagging, WebsiteConfiguration};
use s3s::xml;
use std::path::Path;
use std::time::UNIX_EPOCH;

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

/// Fuzzes the XML documents of requests, as s3s reads them.
fn document<T: for<'xml> xml::Deserialize<'xml>>(name: &str, seed: &str) {
    let words = [
        "<!DOCTYPE a [<!ENTITY b \"c\">]>",
        "&b;",
        "&#x41;",
        "<![CDATA[",
        "]]>",
        "<!--",
        "</",
        "/>",
        "xmlns=\"x\"",
    ];
    let seeds = vec![seed.as_bytes().to_vec()];
    let target =
        Target { dictionary: &words, max_alloc_per_input_byte: 1024, ..Target::new(name, corpus(), seeds) };
    target.run(|input| {
        let mut reader = xml::Deserializer::new(input);
        T::deserialize(&mut reader).ok()?;
        reader.expect_eof().ok()?;
        Some(input.to_vec())
    });
}

#[test]
fn fuzz_documents() {
    document::<Tagging>(
        "tagging",
        "<Tagging><TagSet><Tag><Key>a</Key><Value>b &amp; c</Value></Tag></TagSet></Tagging>",
    );
    document::<CORSConfiguration>(
        "cors",
        "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin>\
         <MaxAgeSeconds>5</MaxAgeSeconds></CORSRule></CORSConfiguration>",
    );
    document::<Delete>(
        "delete",
        "<Delete><Object><Key>a</Key></Object><Object><Key>b</Key><VersionId>1</VersionId></Object>\
         <Quiet>true</Quiet></Delete>",
    );
    document::<WebsiteConfiguration>(
        "website",
        "<WebsiteConfiguration><ErrorDocument><Key>e</Key></ErrorDocument><IndexDocument><Suffix>i</Suffix></IndexDocument>\
         <RoutingRules><RoutingRule><Condition><KeyPrefixEquals>a/</KeyPrefixEquals></Condition><Redirect><HostName>h\
         </HostName></Redirect></RoutingRule></RoutingRules></WebsiteConfiguration>",
    );
    document::<AccessControlPolicy>(
        "acl",
        "<AccessControlPolicy><Owner><ID>a</ID></Owner><AccessControlList><Grant><Grantee \
         xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"><ID>b</ID></Grantee>\
         <Permission>READ</Permission></Grant></AccessControlList></AccessControlPolicy>",
    );
}

#[test]
fn fuzz_policies_of_forms() {
    let policy = r#"{"expiration":"2030-01-01T00:00:00Z","conditions":[{"bucket":"b"},["starts-with","$key","a/"],
        ["content-length-range",1,10],["eq","$x-amz-meta-a","b"]]}"#;
    let words = ["content-length-range", "starts-with", "eq", "$", "[", "{", "18446744073709551616", "-1"];
    let seeds = vec![policy.as_bytes().to_vec()];
    let target = Target {
        dictionary: &words,
        max_alloc_per_input_byte: 1024,
        ..Target::new("post-policy", corpus(), seeds)
    };
    target.run(|input| {
        use base64::Engine as _;
        let pairs = [
            ("policy", base64::engine::general_purpose::STANDARD.encode(input)),
            ("key", "a/b".to_owned()),
            ("x-amz-meta-a", "b".to_owned()),
            ("awsaccesskeyid", "AK".to_owned()),
            ("signature", "AAAA".to_owned()),
        ];
        let fields: Fields = pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let signed = PostSignature::of(&fields).ok()??;
        assert!(!signed.is_signed_with("secret"));
        signed.check(&fields, "b", UNIX_EPOCH).ok()?;
        Some(input.to_vec())
    });
}

/// Fuzzes the signatures of forms. The input has the form's fields as lines of name and value.
#[test]
fn fuzz_signatures_of_forms() {
    let text = "policy=e30=\nx-amz-algorithm=AWS4-HMAC-SHA256\nx-amz-credential=A/K/20260101/r/s3/aws4_request\n\
                x-amz-date=20260101T000000Z\nx-amz-signature=00ff";
    let words = ["awsaccesskeyid=", "signature=", "/", "\u{e9}", "T", "aws4_request", "\n"];
    let seeds = vec![text.as_bytes().to_vec()];
    let target = Target { dictionary: &words, ..Target::new("form-signature", corpus(), seeds) };
    target.run(|input| {
        let text = std::str::from_utf8(input).ok()?;
        let pairs = text.split('\n').filter_map(|line| line.split_once('='));
        let fields: Fields = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let signed = PostSignature::of(&fields).ok()??;
        assert!(!signed.is_signed_with("a secret that no user has"), "{fields:?}");
        Some(input.to_vec())
    });
}

/// Fuzzes queries and headers with signatures: in an accepted request, every header that matters is signed.
#[test]
fn fuzz_signed_requests() {
    use crate::server::check_signed as check;
    let text = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=60&X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-Signature=00\n\
                AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=00";
    let words = [
        "x-amz-unheard-of",
        "X-Amz-SignedHeaders=",
        "SignedHeaders=",
        "%3B",
        ";",
        "&",
        "Signature=",
        "AWS ",
        "+",
        "%",
        "\n",
    ];
    let target = Target { dictionary: &words, ..Target::new("signed-request", corpus(), vec![text.into()]) };
    target.run(|input| {
        let text = std::str::from_utf8(input).ok()?;
        let (query, header) = text.split_once('\n')?;
        let loose = "x-amz-unheard-of";
        let mut headers = http::HeaderMap::new();
        headers.insert(loose, http::HeaderValue::from_static("1"));
        let is_signed = query.split('&').any(|pair| {
            let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
            urlencoding::decode(&name).is_ok_and(|name| name == "X-Amz-Signature")
        });
        let sound = check(&headers, Some(query), UNIX_EPOCH).is_ok();
        let listed = urlencoding::decode_binary(query.as_bytes())
            .windows(loose.len())
            .any(|part| part == loose.as_bytes());
        assert!(!sound || !is_signed || listed, "{query}");
        headers.insert(http::header::AUTHORIZATION, header.parse().ok()?);
        headers.insert(http::header::DATE, http::HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"));
        let sound = check(&headers, None, UNIX_EPOCH).is_ok();
        assert!(!sound || header.starts_with("AWS ") || header.contains(loose), "{header}");
        Some(input.to_vec())
    });
}
