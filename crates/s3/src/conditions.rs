//! The condition keys of policies, and their values for a request.

use crate::request::RequestOrigin;
use crate::tags::tags_of_header;
use http::{HeaderMap, header};
use nacre_rgw::policy::{EXISTING_TAG, REQUEST_TAG};
use nacre_rgw::role::Role;
use nacre_rgw::user::User;
use s3s::{S3Result, s3_error};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values of condition keys. The keys are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConditionContext(BTreeMap<String, Vec<String>>);

/// Headers and the condition keys that refer to them.
const HEADER_KEYS: [(&str, &str); 4] = [
    ("referer", "aws:referer"),
    ("user-agent", "aws:useragent"),
    ("x-amz-copy-source", "s3:x-amz-copy-source"),
    ("x-amz-content-sha256", "s3:x-amz-content-sha256"),
];
/// Headers that describe a write, and the condition keys that refer to them.
const WRITE_KEYS: [(&str, &str); 15] = [
    ("x-amz-acl", "s3:x-amz-acl"),
    ("x-amz-metadata-directive", "s3:x-amz-metadata-directive"),
    ("x-amz-storage-class", "s3:x-amz-storage-class"),
    ("x-amz-grant-full-control", "s3:x-amz-grant-full-control"),
    ("x-amz-grant-read", "s3:x-amz-grant-read"),
    ("x-amz-grant-read-acp", "s3:x-amz-grant-read-acp"),
    ("x-amz-grant-write", "s3:x-amz-grant-write"),
    ("x-amz-grant-write-acp", "s3:x-amz-grant-write-acp"),
    ("x-amz-server-side-encryption", "s3:x-amz-server-side-encryption"),
    ("x-amz-server-side-encryption-aws-kms-key-id", "s3:x-amz-server-side-encryption-aws-kms-key-id"),
    ("x-amz-server-side-encryption-customer-algorithm", "s3:x-amz-server-side-encryption-customer-algorithm"),
    ("x-amz-object-lock-mode", "s3:object-lock-mode"),
    ("x-amz-object-lock-retain-until-date", "s3:object-lock-retain-until-date"),
    ("x-amz-object-lock-legal-hold", "s3:object-lock-legal-hold"),
    ("x-amz-object-ownership", "s3:x-amz-object-ownership"),
];
/// Query parameters and the condition keys that refer to them.
const QUERY_KEYS: [(&str, &str); 4] = [
    ("prefix", "s3:prefix"),
    ("delimiter", "s3:delimiter"),
    ("max-keys", "s3:max-keys"),
    (VERSION, VERSION_KEY),
];
const VERSION: &str = "versionId";
const VERSION_KEY: &str = "s3:versionid";
/// The condition key for the keys of the tags that a request gives an object.
const REQUEST_TAG_KEYS: &str = "s3:requestobjecttagkeys";
/// All other condition keys.
const OTHER_KEYS: [&str; 10] = [
    REQUEST_TAG_KEYS,
    "aws:securetransport",
    "aws:currenttime",
    "aws:epochtime",
    "aws:username",
    "aws:userid",
    "aws:sourceip",
    "aws:principalarn",
    "s3:authtype",
    "s3:signatureversion",
];

/// Returns whether a condition key, in lower case, is supported.
pub(crate) fn is_known_key(key: &str) -> bool {
    let known = HEADER_KEYS.iter().chain(&WRITE_KEYS).chain(&QUERY_KEYS);
    OTHER_KEYS.contains(&key)
        || known.into_iter().any(|(_, known)| *known == key)
        || [EXISTING_TAG, REQUEST_TAG]
            .iter()
            .any(|prefix| key.len() > prefix.len() && key.starts_with(prefix))
}

/// Decodes a name or a value of a query as the protocol does.
fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    urlencoding::decode(&text).map_or_else(|_| text.clone(), |text| text.into_owned())
}

/// Returns the version that a query names. The protocol refuses a query that names two.
pub(crate) fn version_of_query(query: &str) -> Option<String> {
    // The name is decoded before the comparison: policies must judge the version that the protocol uses.
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut named = pairs.filter(|(name, _)| decoded(name) == VERSION);
    named.next().map(|(_, value)| decoded(value))
}

/// Returns whether the tags in a request's headers become the tags of an object.
pub(crate) fn sets_tags(operation: &str, headers: &HeaderMap) -> bool {
    let replaces =
        || headers.get("x-amz-tagging-directive").is_some_and(|said| said.as_bytes() == b"REPLACE");
    match operation {
        "PutObject" | "CreateMultipartUpload" => true,
        "CopyObject" => replaces(),
        _ => false,
    }
}

/// Refuses `response-*` parameters, which a request without a signature must not have: anybody could make links that show a
/// public object with another type or name.
pub(crate) fn refuse_response_overrides(query: &str) -> S3Result<()> {
    const OVERRIDES: [&str; 6] = [
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
        "response-content-language",
        "response-content-type",
        "response-expires",
    ];
    let mut names = query.split('&').map(|pair| decoded(pair.split_once('=').map_or(pair, |(name, _)| name)));
    if names.any(|name| OVERRIDES.contains(&name.as_str())) {
        return Err(s3_error!(
            InvalidRequest,
            "Request specific response headers cannot be used for anonymous GET requests."
        ));
    }
    Ok(())
}

impl ConditionContext {
    /// Builds the context of a request from its headers, its query, its `peer`, and the user or the role that the user has
    /// assumed.
    pub(crate) fn of(
        headers: &HeaderMap,
        query: &str,
        peer: Option<&RequestOrigin>,
        user: Option<&User>,
        role: Option<&(Arc<Role>, String)>,
    ) -> ConditionContext {
        let now = (nacre_rgw::time::now_ns() / 1_000_000_000).to_string();
        let mut context = ConditionContext::default();
        let mut set =
            |name: &str, value: &str| drop(context.0.insert(name.to_owned(), vec![value.to_owned()]));
        set("aws:currenttime", &now);
        set("aws:epochtime", &now);
        match (user, role) {
            (_, Some((role, session))) => {
                set("aws:userid", &format!("{}:{session}", role.id));
                set("aws:principalarn", &format!("arn:aws:iam:::role/{}", role.name));
            }
            (Some(user), None) => {
                set("aws:principalarn", &format!("arn:aws:iam:::user/{}", user.id));
                set("aws:username", &user.id);
                set("aws:userid", &user.id);
            }
            (None, None) => {}
        }
        if let Some(RequestOrigin { address, secure }) = peer {
            set("aws:sourceip", &address.to_string());
            set("aws:securetransport", if *secure { "true" } else { "false" });
        }
        for (header, name) in HEADER_KEYS.iter().chain(&WRITE_KEYS) {
            if let Some(value) = headers.get(*header).and_then(|value| value.to_str().ok()) {
                set(name, value);
            }
        }
        let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (kind, version) = match authorization {
            Some(text) if text.starts_with("AWS4-") => ("REST-HEADER", Some("AWS4-HMAC-SHA256")),
            Some(_) => ("REST-HEADER", Some("AWS")),
            None if query.contains("X-Amz-Signature=") => ("REST-QUERY-STRING", Some("AWS4-HMAC-SHA256")),
            None if query.contains("Signature=") => ("REST-QUERY-STRING", Some("AWS")),
            None => ("", None),
        };
        if let Some(version) = version {
            set("s3:authtype", kind);
            set("s3:signatureversion", version);
        }
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name);
            if let Some((_, key)) = QUERY_KEYS.into_iter().find(|(query, _)| *query == name) {
                set(key, &decoded(value));
            }
        }
        let tags = headers.get("x-amz-tagging").and_then(|value| value.to_str().ok());
        context.set_request_tags(&tags_of_header(tags).unwrap_or_default());
        context
    }

    /// Returns the values of a key, which is in lower case; empty if the request has none.
    pub(crate) fn get(&self, key: &str) -> Vec<String> {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Sets the value of a key, which is in lower case.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), vec![value.to_owned()]);
    }

    /// Replaces the tags that the request gives an object.
    pub(crate) fn set_request_tags(&mut self, tags: &[(String, String)]) {
        self.0.retain(|name, _| !name.starts_with(REQUEST_TAG) && name != REQUEST_TAG_KEYS);
        self.set_tags(REQUEST_TAG, tags);
        if !tags.is_empty() {
            self.0.insert(REQUEST_TAG_KEYS.to_owned(), tags.iter().map(|(key, _)| key.clone()).collect());
        }
    }

    /// Replaces the tags of the object that the request names.
    pub(crate) fn set_existing_tags(&mut self, tags: &[(String, String)]) {
        self.0.retain(|name, _| !name.starts_with(EXISTING_TAG));
        self.set_tags(EXISTING_TAG, tags);
    }

    /// Adds tags. Condition keys are case-insensitive and keys of tags are not, so a condition key may have several values.
    fn set_tags(&mut self, prefix: &str, tags: &[(String, String)]) {
        for (key, value) in tags {
            self.0.entry(format!("{prefix}{}", key.to_lowercase())).or_default().push(value.clone());
        }
    }

    /// Sets the version that the request names.
    pub(crate) fn set_version(&mut self, version: Option<&str>) {
        match version {
            Some(version) => drop(self.0.insert(VERSION_KEY.to_owned(), vec![version.to_owned()])),
            None => drop(self.0.remove(VERSION_KEY)),
        }
    }

    /// Keeps only the values that apply to reading the source of a copy. Removes the values of write headers and of tags,
    /// and sets the version to the source's.
    pub(crate) fn restrict_to_copy_source(&mut self, version: Option<&str>) {
        self.0.retain(|name, _| !WRITE_KEYS.iter().any(|(_, key)| key == name));
        self.set_request_tags(&[]);
        self.set_existing_tags(&[]);
        self.set_version(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(tags: &[(&str, &str)]) -> Vec<(String, String)> {
        tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_copys_source_is_judged_without_what_the_copy_writes() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-acl", "public-read".parse().unwrap());
        headers.insert("x-amz-tagging", "class=open".parse().unwrap());
        headers.insert("referer", "here".parse().unwrap());
        let mut context = ConditionContext::of(&headers, "versionId=a", None, None, None);
        context.set_existing_tags(&pairs(&[("class", "of the destination")]));
        assert_eq!(context.get("s3:requestobjecttag/class"), ["open"]);
        context.restrict_to_copy_source(Some("b"));
        for gone in ["s3:x-amz-acl", "s3:requestobjecttag/class", "s3:existingobjecttag/class"] {
            assert!(context.get(gone).is_empty(), "{gone}");
        }
        assert!(context.get(REQUEST_TAG_KEYS).is_empty());
        assert_eq!(
            (context.get("s3:versionid"), context.get("aws:referer")),
            (vec!["b".into()], vec!["here".into()])
        );
    }

    #[test]
    fn a_tag_in_other_letters_hides_none() {
        let mut context = ConditionContext::default();
        context.set_existing_tags(&pairs(&[("Class", "open"), ("class", "secret")]));
        assert_eq!(context.get("s3:existingobjecttag/class"), ["open", "secret"]);
        context.set_request_tags(&pairs(&[("A", "1"), ("b", "2")]));
        assert_eq!(context.get(REQUEST_TAG_KEYS), ["A", "b"]);
    }

    #[test]
    fn a_version_is_found_however_its_name_is_written() {
        assert_eq!(version_of_query("a=b&version%49d=%61+b"), Some("a b".into()));
        assert_eq!(version_of_query("versionId"), Some(String::new()));
        assert_eq!(version_of_query("x-versionId=a"), None);
    }
}
