//! Listing objects.

use super::access::bucket_of;
use super::{Protocol, answer, timestamp};
use crate::index::{Entry, ListQuery, Listing};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The most keys in one answer.
const MAX_KEYS: i32 = 1000;

/// How names are written in an answer.
pub(super) struct Names {
    url: bool,
}

impl Names {
    pub(super) fn asked(encoding: Option<&EncodingType>) -> S3Result<Names> {
        match encoding.map(EncodingType::as_str) {
            None => Ok(Names { url: false }),
            Some(EncodingType::URL) => Ok(Names { url: true }),
            Some(other) => Err(s3_error!(InvalidArgument, "unknown encoding type {other}")),
        }
    }

    pub(super) fn write(&self, name: String) -> String {
        if !self.url {
            return name;
        }
        let mut out = String::with_capacity(name.len());
        for byte in name.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    out.push(char::from(byte));
                }
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
        out
    }

    fn objects(&self, entries: Vec<(String, Entry)>, owners: bool) -> Vec<Object> {
        let object = |(key, entry): (String, Entry)| Object {
            key: Some(self.write(key)),
            e_tag: Some(ETag::Strong(entry.etag)),
            last_modified: Some(timestamp(entry.mtime_ns)),
            size: Some(entry.size as i64),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            owner: owners.then(|| Owner { id: Some(entry.owner.clone()), display_name: Some(entry.owner) }),
            ..Object::default()
        };
        entries.into_iter().map(object).collect()
    }

    pub(super) fn prefixes(&self, prefixes: Vec<String>) -> Vec<CommonPrefix> {
        prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(self.write(prefix)) }).collect()
    }
}

pub(super) fn check_max(max: Option<i32>) -> S3Result<i32> {
    match max {
        Some(max) if max < 0 => Err(s3_error!(InvalidArgument, "max-keys is negative")),
        Some(max) => Ok(max.min(MAX_KEYS)),
        None => Ok(MAX_KEYS),
    }
}

/// A continuation token: where to go on, and whether that is a rolled up prefix.
fn token(next: &(String, bool)) -> String {
    URL_SAFE_NO_PAD.encode([&[u8::from(next.1)], next.0.as_bytes()].concat())
}

fn of_token(token: &str) -> S3Result<(String, bool)> {
    let wrong = || s3_error!(InvalidArgument, "The continuation token provided is incorrect");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong())?;
    let (group, name) = bytes.split_first().ok_or_else(wrong)?;
    Ok((String::from_utf8(name.to_vec()).map_err(|_| wrong())?, *group == 1))
}

impl Protocol {
    pub(super) async fn do_list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let bucket = bucket_of(&req)?;
        let input = req.input;
        let (names, max) = (Names::asked(input.encoding_type.as_ref())?, check_max(input.max_keys)?);
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let marker = input.marker.clone().unwrap_or_default();
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default(),
            // A marker that is a rolled up prefix is the last thing of an answer before.
            after_group: !delimiter.is_empty() && marker.ends_with(&delimiter),
            after: marker,
            delimiter,
            max: max as usize,
            markers: false,
        };
        let Listing { entries, prefixes, next } = self.gateway.list(&bucket, &query).await?;
        answer(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(names.write(input.prefix.unwrap_or_default())),
            marker: Some(names.write(input.marker.unwrap_or_default())),
            max_keys: Some(max),
            is_truncated: Some(next.is_some()),
            // S3 tells it only where a delimiter was named; otherwise it is the last key.
            next_marker: next.filter(|_| !query.delimiter.is_empty()).map(|(name, _)| names.write(name)),
            contents: Some(names.objects(entries, true)),
            common_prefixes: Some(names.prefixes(prefixes)),
            delimiter: input.delimiter.map(|delimiter| names.write(delimiter)),
            encoding_type: input.encoding_type,
            request_charged: None,
        })
    }

    pub(super) async fn do_list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let bucket = bucket_of(&req)?;
        let input = req.input;
        let (names, max) = (Names::asked(input.encoding_type.as_ref())?, check_max(input.max_keys)?);
        let (after, after_group) = match &input.continuation_token {
            Some(token) => of_token(token)?,
            None => (input.start_after.clone().unwrap_or_default(), false),
        };
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after,
            after_group,
            max: max as usize,
            markers: false,
        };
        let Listing { entries, prefixes, next } = self.gateway.list(&bucket, &query).await?;
        answer(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(names.write(input.prefix.unwrap_or_default())),
            max_keys: Some(max),
            key_count: Some((entries.len() + prefixes.len()) as i32),
            continuation_token: input.continuation_token,
            is_truncated: Some(next.is_some()),
            next_continuation_token: next.as_ref().map(token),
            contents: Some(names.objects(entries, input.fetch_owner.unwrap_or(false))),
            common_prefixes: Some(names.prefixes(prefixes)),
            delimiter: input.delimiter.map(|delimiter| names.write(delimiter)),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|after| names.write(after)),
            request_charged: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_where_to_go_on() {
        for next in [("a/b".to_owned(), false), ("ü/".to_owned(), true), (String::new(), false)] {
            assert_eq!(of_token(&token(&next)).unwrap(), next);
        }
        for wrong in ["", "?", "AA\u{e4}"] {
            assert!(of_token(wrong).is_err());
        }
    }
}
