//! Operations that list objects.

use super::access::bucket_of;
use super::object::class_name;
use super::owners::{OwnerNames, distinct};
use super::{S3Api, answer, timestamp};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nacre_rgw::gateway::Gateway;
use nacre_rgw::index::{ListQuery, Listing, ListingEntry};
#[allow(clippy::wildcard_imports, reason = "S3's structures, all by their own names")]
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

/// The most keys in one answer.
const MAX_KEYS: i32 = 1000;

/// The encoding of names in an answer.
pub(super) struct KeyEncoder {
    url: bool,
}

impl KeyEncoder {
    pub(super) fn for_encoding(encoding: Option<&EncodingType>) -> S3Result<KeyEncoder> {
        match encoding.map(EncodingType::as_str) {
            None => Ok(KeyEncoder { url: false }),
            Some(EncodingType::URL) => Ok(KeyEncoder { url: true }),
            Some(other) => Err(s3_error!(InvalidArgument, "unknown encoding type {other}")),
        }
    }

    pub(super) fn encode(&self, name: String) -> String {
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

    /// Converts index entries to S3's objects, with their owners if these are given.
    fn objects(&self, entries: Vec<(String, ListingEntry)>, owners: Option<&OwnerNames>) -> Vec<Object> {
        let object = |(key, entry): (String, ListingEntry)| Object {
            key: Some(self.encode(key)),
            e_tag: Some(ETag::Strong(entry.etag)),
            last_modified: Some(timestamp(entry.mtime_ns)),
            size: Some(entry.size as i64),
            storage_class: Some(class_name(&entry.class).to_owned().into()),
            owner: owners.and_then(|owners| owners.owner(&entry.owner)),
            ..Object::default()
        };
        entries.into_iter().map(object).collect()
    }

    pub(super) fn prefixes(&self, prefixes: Vec<String>) -> Vec<CommonPrefix> {
        prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(self.encode(prefix)) }).collect()
    }
}

async fn owners_of(gateway: &Gateway, entries: &[(String, ListingEntry)]) -> OwnerNames {
    OwnerNames::find(gateway, distinct(entries.iter().map(|(_, entry)| entry.owner.as_str()))).await
}

/// Returns the delimiter for an answer. An empty delimiter is omitted.
pub(super) fn non_empty_delimiter(delimiter: Option<String>) -> Option<String> {
    delimiter.filter(|delimiter| !delimiter.is_empty())
}

/// Refuses radosgw's parameter `allow-unordered` together with a delimiter.
pub(super) fn check_unordered<T>(req: &S3Request<T>, delimiter: Option<&str>) -> S3Result<()> {
    let mut pairs = req.uri.query().unwrap_or_default().split('&');
    let unordered = pairs.any(|pair| pair.eq_ignore_ascii_case("allow-unordered=true"));
    if unordered && delimiter.is_some_and(|delimiter| !delimiter.is_empty()) {
        return Err(s3_error!(InvalidArgument, "allow-unordered goes without a delimiter"));
    }
    Ok(())
}

pub(super) fn check_max(max: Option<i32>) -> S3Result<i32> {
    match max {
        Some(max) if max < 0 => Err(s3_error!(InvalidArgument, "max-keys is negative")),
        Some(max) => Ok(max.min(MAX_KEYS)),
        None => Ok(MAX_KEYS),
    }
}

/// Encodes a continuation token: the name after which the listing continues, and whether the name is a common prefix.
fn token(next: &(String, bool)) -> String {
    URL_SAFE_NO_PAD.encode([&[u8::from(next.1)], next.0.as_bytes()].concat())
}

fn of_token(token: &str) -> S3Result<(String, bool)> {
    let wrong = || s3_error!(InvalidArgument, "The continuation token provided is incorrect");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| wrong())?;
    let (group, name) = bytes.split_first().ok_or_else(wrong)?;
    Ok((String::from_utf8(name.to_vec()).map_err(|_| wrong())?, *group == 1))
}

impl S3Api {
    pub(super) async fn do_list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let bucket = bucket_of(&req)?;
        check_unordered(&req, req.input.delimiter.as_deref())?;
        let input = req.input;
        let (names, max) =
            (KeyEncoder::for_encoding(input.encoding_type.as_ref())?, check_max(input.max_keys)?);
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let marker = input.marker.clone().unwrap_or_default();
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default(),
            // A marker that ends with the delimiter is the common prefix at the end of the previous page.
            after_group: !delimiter.is_empty() && marker.ends_with(&delimiter),
            after: marker,
            delimiter,
            max: max as usize,
            markers: false,
        };
        let Listing { entries, prefixes, next } = self.gateway.index.list(&bucket, &query).await?;
        let owners = owners_of(&self.gateway, &entries).await;
        answer(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(names.encode(input.prefix.unwrap_or_default())),
            marker: Some(names.encode(input.marker.unwrap_or_default())),
            max_keys: Some(max),
            is_truncated: Some(next.is_some()),
            // S3 returns it only with a delimiter; without one, the marker is the last key.
            next_marker: next.filter(|_| !query.delimiter.is_empty()).map(|(name, _)| names.encode(name)),
            contents: Some(names.objects(entries, Some(&owners))),
            common_prefixes: Some(names.prefixes(prefixes)),
            delimiter: non_empty_delimiter(input.delimiter).map(|delimiter| names.encode(delimiter)),
            encoding_type: input.encoding_type,
            request_charged: None,
        })
    }

    pub(super) async fn do_list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let bucket = bucket_of(&req)?;
        check_unordered(&req, req.input.delimiter.as_deref())?;
        let input = req.input;
        let (names, max) =
            (KeyEncoder::for_encoding(input.encoding_type.as_ref())?, check_max(input.max_keys)?);
        let (after, after_group) = match &input.continuation_token {
            // An empty token stands for the first page.
            Some(token) if !token.is_empty() => of_token(token)?,
            _ => (input.start_after.clone().unwrap_or_default(), false),
        };
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after,
            after_group,
            max: max as usize,
            markers: false,
        };
        let Listing { entries, prefixes, next } = self.gateway.index.list(&bucket, &query).await?;
        let owners = match input.fetch_owner {
            Some(true) => Some(owners_of(&self.gateway, &entries).await),
            _ => None,
        };
        answer(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(names.encode(input.prefix.unwrap_or_default())),
            max_keys: Some(max),
            key_count: Some((entries.len() + prefixes.len()) as i32),
            continuation_token: input.continuation_token,
            is_truncated: Some(next.is_some()),
            next_continuation_token: next.as_ref().map(token),
            contents: Some(names.objects(entries, owners.as_ref())),
            common_prefixes: Some(names.prefixes(prefixes)),
            delimiter: non_empty_delimiter(input.delimiter).map(|delimiter| names.encode(delimiter)),
            encoding_type: input.encoding_type,
            start_after: input.start_after.map(|after| names.encode(after)),
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
