//! Completes error documents. An error without a message gets one, because clients would print `Unknown`. An error about
//! clocks gets the difference between them.

use http::{HeaderValue, Response, header};
use s3s::Body;
use std::time::SystemTime;
use time::macros::format_description;
use time::{OffsetDateTime, PrimitiveDateTime};

/// Adds S3's message to an error document that has none. `amz_date` is the time that the request states.
pub(super) fn complete_error(response: Response<Body>, amz_date: Option<&HeaderValue>) -> Response<Body> {
    if !response.status().is_client_error() && !response.status().is_server_error() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let difference = || clock_difference(amz_date?.to_str().ok()?, OffsetDateTime::from(SystemTime::now()));
    let completed = body.bytes().and_then(|text| with_message(std::str::from_utf8(&text).ok()?, difference));
    let Some(text) = completed else { return Response::from_parts(head, body) };
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::CONTENT_LENGTH, text.len().into());
    }
    Response::from_parts(head, Body::from(text))
}

/// Returns the difference in seconds between `amz_date`, the time that the client states, and `now`.
fn clock_difference(amz_date: &str, now: OffsetDateTime) -> Option<u64> {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let stated = PrimitiveDateTime::parse(amz_date, format).ok()?.assume_utc();
    Some((now - stated).unsigned_abs().as_secs())
}

/// Returns an error document with the message of its code; `None` if it has a message or is no error document. The message
/// of an error about clocks gets their difference, if it is known.
fn with_message(text: &str, difference: impl FnOnce() -> Option<u64>) -> Option<String> {
    let (before, after) = text.split_once("</Code>")?;
    let (_, code) = before.rsplit_once("<Code>")?;
    if let Some((before, after)) = text.split_once("</Message>") {
        let secs = if code == "RequestTimeTooSkewed" { difference()? } else { return None };
        return Some(format!("{before}: the clocks of both differ by {secs} s</Message>{after}"));
    }
    Some(format!("{before}</Code><Message>{}</Message>{after}", of_code(code)))
}

/// Returns S3's message for an error code.
fn of_code(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "Access Denied",
        "BadDigest" => "The Content-MD5 or checksum value you specified did not match what we received.",
        "BucketAlreadyExists" => "The requested bucket name is not available. Select a different name.",
        "EntityTooLarge" => "Your proposed upload exceeds the maximum allowed object size.",
        "EntityTooSmall" => "Your proposed upload is smaller than the minimum allowed object size.",
        "ExpiredToken" => "The provided token has expired.",
        "IllegalVersioningConfigurationException" => "The versioning configuration is not valid.",
        "IncompleteBody" => "You did not provide the number of bytes specified by the Content-Length header.",
        "InternalError" => "We encountered an internal error. Please try again.",
        "InvalidAccessKeyId" => "The AWS access key ID you provided does not exist in our records.",
        "InvalidArgument" => "Invalid Argument",
        "InvalidBucketName" => {
            "The specified bucket is not valid: names have 3 to 63 characters, which are lower-case letters, digits, \
             dots and hyphens, and begin and end with a letter or digit."
        }
        "InvalidPart" => "One or more of the specified parts could not be found.",
        "InvalidRange" => "The requested range is not satisfiable.",
        "InvalidRequest" => "The request is not valid.",
        "InvalidTag" => "The tag provided was not a valid tag.",
        "InvalidURI" => "Couldn't parse the specified URI.",
        "KeyTooLongError" => "Your key is too long.",
        "MalformedACLError" => {
            "The XML you provided was not well-formed or did not validate against our published schema."
        }
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published schema."
        }
        "MaxPostPreDataLengthExceededError" => {
            "Your POST request fields preceding the upload file were too large."
        }
        "MetadataTooLarge" => "Your metadata headers exceed the maximum allowed metadata size.",
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "NoSuchBucket" => "The specified bucket does not exist.",
        "NoSuchKey" => "The specified key does not exist.",
        "NoSuchTagSet" => "The TagSet does not exist.",
        "NoSuchUpload" => "The specified multipart upload does not exist.",
        "NotImplemented" => {
            "A header or parameter you provided implies functionality that is not implemented."
        }
        "PreconditionFailed" => "At least one of the preconditions you specified did not hold.",
        "RequestTimeTooSkewed" => {
            "The difference between the request time and the server's time is too large: compare the clocks of both."
        }
        "SignatureDoesNotMatch" => {
            "The request signature we calculated does not match the signature you provided. Check your key and signing \
             method."
        }
        _ => "The request can't be carried out.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    fn completed(status: StatusCode, text: &str) -> (Option<u64>, String) {
        let response = Response::builder()
            .status(status)
            .header(header::CONTENT_LENGTH, text.len())
            .body(Body::from(text.to_owned()))
            .unwrap();
        let date = HeaderValue::from_static("20260101T000000Z");
        let (head, body) = complete_error(response, Some(&date)).into_parts();
        let length = head.headers[header::CONTENT_LENGTH].to_str().unwrap().parse().ok();
        (length, String::from_utf8(body.bytes().unwrap().to_vec()).unwrap())
    }

    #[test]
    fn errors_without_a_message_get_that_of_their_code() {
        let short = "<Error><Code>InvalidBucketName</Code></Error>";
        let (length, text) = completed(StatusCode::BAD_REQUEST, short);
        assert!(
            text.starts_with(
                "<Error><Code>InvalidBucketName</Code><Message>The specified bucket is not valid"
            )
        );
        assert!(text.ends_with("</Message></Error>"));
        assert_eq!(length, Some(text.len() as u64));
    }

    #[test]
    fn errors_about_clocks_say_by_how_much_they_differ() {
        let at = |seconds: i64| OffsetDateTime::from_unix_timestamp(1_767_225_600 + seconds).unwrap();
        let difference = |seconds| clock_difference("20260101T000000Z", at(seconds));
        assert_eq!((difference(7200), difference(-3600)), (Some(7200), Some(3600)));
        assert_eq!(clock_difference("yesterday", OffsetDateTime::UNIX_EPOCH), None);
        let text = "<Error><Code>RequestTimeTooSkewed</Code><Message>too far</Message></Error>";
        let shown = with_message(text, || Some(7200)).unwrap();
        let message = "<Message>too far: the clocks of both differ by 7200 s</Message>";
        assert_eq!(shown, format!("<Error><Code>RequestTimeTooSkewed</Code>{message}</Error>"));
        assert_eq!(with_message(text, || None), None);
        let (length, shown) = completed(StatusCode::FORBIDDEN, text);
        assert!(
            shown.contains("the clocks of both differ by ") && length == Some(shown.len() as u64),
            "{shown}"
        );
    }

    #[test]
    fn other_answers_stay_as_they_are() {
        for (status, text) in [
            (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"),
            (StatusCode::OK, "<Error><Code>InternalError</Code></Error>"),
            (StatusCode::NOT_FOUND, "plain text"),
        ] {
            assert_eq!(completed(status, text).1, text);
        }
    }
}
