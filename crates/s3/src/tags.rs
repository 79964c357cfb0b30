//! S3's rules for tags.

use s3s::dto::Tag;
use s3s::{S3Result, s3_error};

/// The most tags of an object, and the longest key and value of a tag, in characters.
pub(crate) const MAX_OBJECT_TAGS: usize = 10;
const MAX_TAG_KEY_CHARS: usize = 128;
const MAX_TAG_VALUE_CHARS: usize = 256;

/// Checks tags by S3's rules and returns them sorted.
pub(crate) fn check_tags(tags: Vec<Tag>, max: usize) -> S3Result<Vec<(String, String)>> {
    if tags.len() > max {
        return Err(s3_error!(InvalidTag, "no more than {max} tags"));
    }
    let mut checked: Vec<(String, String)> = Vec::with_capacity(tags.len());
    for tag in tags {
        let (key, value) = (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
        let sound = !key.is_empty()
            && key.chars().count() <= MAX_TAG_KEY_CHARS
            && value.chars().count() <= MAX_TAG_VALUE_CHARS
            && checked.iter().all(|(known, _)| *known != key);
        if !sound {
            return Err(s3_error!(InvalidTag, "the tag '{key}' is empty, too long or there twice"));
        }
        checked.push((key, value));
    }
    checked.sort_unstable();
    Ok(checked)
}

/// Parses the value of the header `x-amz-tagging`.
pub(crate) fn tags_of_header(header: Option<&str>) -> S3Result<Vec<(String, String)>> {
    let Some(header) = header else { return Ok(Vec::new()) };
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        urlencoding::decode(&text).map(|text| text.into_owned()).map_err(|_| s3_error!(InvalidTag))
    };
    let mut tags = Vec::new();
    for pair in header.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push(Tag { key: Some(decode(key)?), value: Some(decode(value)?) });
    }
    check_tags(tags, MAX_OBJECT_TAGS)
}
