//! Fuzz tests: damaged requests of clients. See `nacre_fuzz`.

use crate::post_policy::{Fields, PostSignature};
use nacre_fuzz::Target;
use s3s::dto::{AccessControlPolicy, CORSConfiguration, Delete, Tagging, WebsiteConfiguration};
use s3s::xml;
use std::path::Path;
use std::time::UNIX_EPOCH;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
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
        signed.check_policy(&fields, "b", UNIX_EPOCH).ok()?;
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
