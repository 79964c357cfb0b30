//! Signed forms of browsers: checks the signature of a form, and the form against the policy in it.
//!
//! With the policy, the signing user allows certain uploads to anyone who has the form. The policy must name every field
//! that S3 evaluates (<https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-HTTPPOSTConstructPolicy.html>).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use s3s::post_policy::{PostPolicy, PostPolicyCondition};
use s3s::{S3ErrorCode, S3Result, s3_error};
use sha1::Sha1;
use sha2::Sha256;
use std::collections::BTreeMap;
use std::time::SystemTime;
use time::OffsetDateTime;

/// The fields of a form before the file, by their names in lower case.
pub(crate) type Fields = BTreeMap<String, String>;

/// The signature of a form, and the access key that it names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PostSignature<'a> {
    /// The access key.
    pub(crate) access_key: &'a str,
    policy: &'a str,
    signature: &'a str,
    /// The scope of a signature of version 4; `None` for version 2.
    scope: Option<CredentialScope<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
struct CredentialScope<'a> {
    date: &'a str,
    region: &'a str,
    service: &'a str,
}

fn hmac(key: &[u8], text: &str) -> Hmac<Sha256> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("invariant: HMAC takes keys of any length");
    hmac.update(text.as_bytes());
    hmac
}

impl PostSignature<'_> {
    /// Reads the signature of a form; returns `None` if the form is not signed.
    pub(crate) fn of(fields: &Fields) -> S3Result<Option<PostSignature<'_>>> {
        let field = |name: &str| fields.get(name).map(String::as_str);
        let names = [
            "policy",
            "signature",
            "awsaccesskeyid",
            "x-amz-algorithm",
            "x-amz-credential",
            "x-amz-date",
            "x-amz-signature",
        ];
        if names.iter().all(|name| field(name).is_none()) {
            return Ok(None);
        }
        let needed = |name: &str| {
            field(name)
                .ok_or_else(|| s3_error!(InvalidArgument, "Bucket POST must contain a field named '{name}'."))
        };
        let policy = needed("policy")?;
        if field("signature").is_some() || field("awsaccesskeyid").is_some() {
            if field("x-amz-signature").is_some() {
                return Err(s3_error!(InvalidArgument, "a form is signed once"));
            }
            let (access_key, signature) = (needed("awsaccesskeyid")?, needed("signature")?);
            return Ok(Some(PostSignature { access_key, policy, signature, scope: None }));
        }
        if needed("x-amz-algorithm")? != "AWS4-HMAC-SHA256" {
            return Err(s3_error!(InvalidArgument, "x-amz-algorithm must be AWS4-HMAC-SHA256"));
        }
        let malformed = || s3_error!(InvalidArgument, "the field x-amz-credential is malformed");
        let credential = needed("x-amz-credential")?;
        // An access key may contain slashes.
        let mut parts = credential.rsplitn(5, '/');
        let (end, service, region, date, access_key) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next());
        let (Some("aws4_request"), Some(service), Some(region), Some(date), Some(access_key)) =
            (end, service, region, date, access_key)
        else {
            return Err(malformed());
        };
        let signed_at = needed("x-amz-date")?;
        let is_date = date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
        if service != "s3" || !is_date || signed_at.split('T').next() != Some(date) {
            return Err(malformed());
        }
        let signature = needed("x-amz-signature")?;
        let scope = Some(CredentialScope { date, region, service });
        Ok(Some(PostSignature { access_key, policy, signature, scope }))
    }

    /// Whether the signature was made with that secret.
    pub(crate) fn is_signed_with(&self, secret: &str) -> bool {
        let Some(scope) = &self.scope else {
            let mut hmac = Hmac::<Sha1>::new_from_slice(secret.as_bytes())
                .expect("invariant: HMAC takes keys of any length");
            hmac.update(self.policy.as_bytes());
            let signature = STANDARD.decode(self.signature).unwrap_or_default();
            return hmac.verify_slice(&signature).is_ok();
        };
        let mut key = format!("AWS4{secret}").into_bytes();
        for part in [scope.date, scope.region, scope.service, "aws4_request"] {
            key = hmac(&key, part).finalize().into_bytes().to_vec();
        }
        let Some(signature) = unhex(self.signature) else { return false };
        hmac(&key, self.policy).verify_slice(&signature).is_ok()
    }

    /// Refuses a form that does not meet its policy; returns the minimum and maximum length of the file.
    pub(crate) fn check_policy(
        &self,
        fields: &Fields,
        bucket: &str,
        now: SystemTime,
    ) -> S3Result<(u64, u64)> {
        let invalid =
            |what: &dyn std::fmt::Display| s3_error!(AccessDenied, "Invalid according to Policy: {what}");
        let policy = PostPolicy::from_base64(self.policy)
            .map_err(|error| s3_error!(InvalidPolicyDocument, "Invalid Policy: {error}."))?;
        // s3s also accepts other formats of times.
        let written = STANDARD.decode(self.policy).ok().and_then(|json| serde_json::from_slice(&json).ok());
        let written: serde_json::Value = written.unwrap_or_default();
        if !written["expiration"].as_str().is_some_and(|time| time.contains('T') && time.ends_with('Z')) {
            return Err(s3_error!(InvalidPolicyDocument, "Invalid Policy: Invalid 'expiration' value."));
        }
        let expiration: OffsetDateTime = policy.expiration.clone().into();
        if OffsetDateTime::from(now) >= expiration {
            return Err(invalid(&"Policy expired."));
        }
        let (mut min, mut max) = (0, u64::MAX);
        let value = |field: &str| match field {
            "bucket" => bucket,
            field => fields.get(field).map_or("", String::as_str),
        };
        let mut covered = vec!["policy", "signature", "awsaccesskeyid", "x-amz-signature"];
        for condition in &policy.conditions {
            let (holds, shown) = match condition {
                PostPolicyCondition::Eq { field, value: wanted } => {
                    covered.push(field);
                    (value(field) == wanted, ["eq", field.as_str(), wanted.as_str()])
                }
                PostPolicyCondition::StartsWith { field, prefix } => {
                    covered.push(field);
                    (value(field).starts_with(prefix), ["starts-with", field.as_str(), prefix.as_str()])
                }
                PostPolicyCondition::ContentLengthRange { min: least, max: most } => {
                    (min, max) = (min.max(*least), max.min(*most));
                    continue;
                }
            };
            if !holds {
                let [operator, field, value] = shown;
                return Err(invalid(&format!(
                    "Policy Condition failed: [\"{operator}\", \"${field}\", \"{value}\"]"
                )));
            }
        }
        if !covered.contains(&"bucket") {
            return Err(invalid(&"Policy must have a condition of the bucket"));
        }
        let is_covered = |name: &str| name.starts_with("x-ignore-") || covered.contains(&name);
        if let Some(name) = fields.keys().find(|name| !is_covered(name)) {
            return Err(invalid(&format!("Extra input fields: {name}")));
        }
        if fields.get("bucket").is_some_and(|named| named != bucket) {
            return Err(invalid(&"the field bucket names another bucket"));
        }
        Ok((min, max))
    }
}

/// Returns the error for a file whose length the policy does not allow.
pub(crate) fn length_error(len: u64, min: u64) -> (S3ErrorCode, &'static str) {
    if len < min {
        let text = "Your proposed upload is smaller than the minimum allowed size";
        return (S3ErrorCode::EntityTooSmall, text);
    }
    (S3ErrorCode::EntityTooLarge, "Your proposed upload exceeds the maximum allowed size")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// The example of AWS' documentation (sigv4-post-example).
    const POLICY: &str = "eyAiZXhwaXJhdGlvbiI6ICIyMDE1LTEyLTMwVDEyOjAwOjAwLjAwMFoiLA0KICAiY29uZGl0aW9ucyI6IFsNCiAgICB7ImJ1Y2tldCI6ICJzaWd2NGV4YW1wbGVidWNrZXQifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRrZXkiLCAidXNlci91c2VyMS8iXSwNCiAgICB7ImFjbCI6ICJwdWJsaWMtcmVhZCJ9LA0KICAgIHsic3VjY2Vzc19hY3Rpb25fcmVkaXJlY3QiOiAiaHR0cDovL3NpZ3Y0ZXhhbXBsZWJ1Y2tldC5zMy5hbWF6b25hd3MuY29tL3N1Y2Nlc3NmdWxfdXBsb2FkLmh0bWwifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRDb250ZW50LVR5cGUiLCAiaW1hZ2UvIl0sDQogICAgeyJ4LWFtei1tZXRhLXV1aWQiOiAiMTQzNjUxMjM2NTEyNzQifSwNCiAgICB7IngtYW16LXNlcnZlci1zaWRlLWVuY3J5cHRpb24iOiAiQUVTMjU2In0sDQogICAgWyJzdGFydHMtd2l0aCIsICIkeC1hbXotbWV0YS10YWciLCAiIl0sDQoNCiAgICB7IngtYW16LWNyZWRlbnRpYWwiOiAiQUtJQUlPU0ZPRE5ON0VYQU1QTEUvMjAxNTEyMjkvdXMtZWFzdC0xL3MzL2F3czRfcmVxdWVzdCJ9LA0KICAgIHsieC1hbXotYWxnb3JpdGhtIjogIkFXUzQtSE1BQy1TSEEyNTYifSwNCiAgICB7IngtYW16LWRhdGUiOiAiMjAxNTEyMjlUMDAwMDAwWiIgfQ0KICBdDQp9";
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    fn example() -> Fields {
        let pairs = [
            ("key", "user/user1/photo.jpg"),
            ("acl", "public-read"),
            ("success_action_redirect", "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html"),
            ("content-type", "image/jpeg"),
            ("x-amz-meta-uuid", "14365123651274"),
            ("x-amz-server-side-encryption", "AES256"),
            ("x-amz-credential", "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request"),
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-date", "20151229T000000Z"),
            ("x-amz-meta-tag", ""),
            ("policy", POLICY),
            ("x-amz-signature", "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e"),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// 2015-12-29.
    fn then() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_451_347_200)
    }

    #[test]
    fn the_documented_example_is_taken() {
        let fields = example();
        let signed = PostSignature::of(&fields).unwrap().unwrap();
        assert_eq!(signed.access_key, "AKIAIOSFODNN7EXAMPLE");
        assert!(signed.is_signed_with(SECRET) && !signed.is_signed_with("another"));
        assert_eq!(signed.check_policy(&fields, "sigv4examplebucket", then()).unwrap(), (0, u64::MAX));
    }

    #[test]
    fn what_the_policy_does_not_say_is_refused() {
        let refusal = |change: &dyn Fn(&mut Fields), bucket: &str, at: SystemTime| {
            let mut fields = example();
            change(&mut fields);
            let signed = PostSignature::of(&fields).unwrap().unwrap();
            signed.check_policy(&fields, bucket, at).unwrap_err().message().unwrap_or_default().to_owned()
        };
        let set = |name: &'static str, value: &'static str| {
            move |fields: &mut Fields| drop(fields.insert(name.to_owned(), value.to_owned()))
        };
        let bucket = "sigv4examplebucket";
        let none = |_: &mut Fields| {};
        assert!(refusal(&none, bucket, then() + Duration::from_secs(3 * 86_400)).contains("Policy expired"));
        assert!(refusal(&none, "other", then()).contains("[\"eq\", \"$bucket\""));
        let other_key = refusal(&set("key", "user/user2/x"), bucket, then());
        assert!(other_key.contains("[\"starts-with\", \"$key\", \"user/user1/\"]"), "{other_key}");
        assert!(
            refusal(&set("x-amz-meta-more", "1"), bucket, then())
                .contains("Extra input fields: x-amz-meta-more")
        );
        assert!(refusal(&set("bucket", "other"), bucket, then()).contains("another bucket"));
        assert!(refusal(&set("policy", "e30="), bucket, then()).contains("Invalid Policy"));
    }

    #[test]
    fn lengths_are_those_that_all_conditions_allow() {
        let mut fields = example();
        let policy = r#"{"expiration": "2015-12-30T12:00:00.000Z", "conditions": [["content-length-range", 5, 20],
            ["content-length-range", 1, 10], {"bucket": "any"}, ["starts-with", "$key", ""], {"x-amz-algorithm": "AWS4-HMAC-SHA256"},
            ["starts-with", "$x-amz-credential", ""], ["starts-with", "$x-amz-date", ""]]}"#;
        fields.retain(|name, _| {
            name == "key" || name.starts_with("x-amz-") && !name.contains("meta") && !name.contains("side")
        });
        fields.insert("policy".into(), STANDARD.encode(policy));
        let signed = PostSignature::of(&fields).unwrap().unwrap();
        assert!(!signed.is_signed_with(SECRET), "another policy than the signed one");
        assert_eq!(signed.check_policy(&fields, "any", then()).unwrap(), (5, 10));
    }

    #[test]
    fn signatures_of_version_2_are_taken() {
        // echo -n POLICY | openssl dgst -sha1 -hmac secret -binary | base64
        let pairs =
            [("policy", "cG9saWN5"), ("awsaccesskeyid", "AK"), ("signature", "xjcOd3+I0tu58AF8jUmwdfvwgBU=")];
        let fields: Fields =
            pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let signed = PostSignature::of(&fields).unwrap().unwrap();
        assert_eq!(signed.access_key, "AK");
        assert!(signed.is_signed_with("secret") && !signed.is_signed_with("Secret"));
    }

    #[test]
    fn signatures_are_whole_or_refused() {
        let mut fields = example();
        assert!(PostSignature::of(&Fields::new()).unwrap().is_none());
        for name in ["policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"] {
            let kept = fields.remove(name).unwrap();
            assert!(PostSignature::of(&fields).is_err(), "{name}");
            fields.insert(name.to_owned(), kept);
        }
        for (name, value) in [
            ("x-amz-credential", "AK/20151229/us-east-1/ec2/aws4_request"),
            ("x-amz-credential", "AK/20151228/us-east-1/s3/aws4_request"),
            ("x-amz-credential", "20151229/us-east-1/s3/aws4_request"),
            ("x-amz-algorithm", "none"),
            ("signature", "old"),
            ("awsaccesskeyid", "AK"),
        ] {
            let mut fields = example();
            fields.insert(name.to_owned(), value.to_owned());
            assert!(PostSignature::of(&fields).is_err(), "{name}: {value}");
        }
        for signature in
            ["", "8afd", "é", "zz", "8AFDBF4008C03F22C2CD3CDB72E4AFBB1F6A588F3255AC628749A66D7F09699F"]
        {
            let mut fields = example();
            fields.insert("x-amz-signature".to_owned(), signature.to_owned());
            assert!(!PostSignature::of(&fields).unwrap().unwrap().is_signed_with(SECRET), "{signature}");
        }
    }
}
