//! Adds messages to answers with errors that have none, for which clients print `Unknown`.

use http::{Response, header};
use s3s::Body;

/// Adds S3's message to an error's document that has none.
pub(super) fn complete(response: Response<Body>) -> Response<Body> {
    if !response.status().is_client_error() && !response.status().is_server_error() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let completed = body.bytes().and_then(|text| with_message(std::str::from_utf8(&text).ok()?));
    let Some(text) = completed else { return Response::from_parts(head, body) };
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        head.headers.insert(header::CONTENT_LENGTH, text.len().into());
    }
    Response::from_parts(head, Body::from(text))
}

/// An error's document with the message of its code; `None` where it has one or is no such document.
fn with_message(text: &str) -> Option<String> {
    let (before, after) = text.split_once("</Code>")?;
    let (_, code) = before.rsplit_once("<Code>")?;
    if text.contains("<Message>") {
        return None;
    }
    Some(format!("{before}</Code><Message>{}</Message>{after}", of_code(code)))
}

/// What S3 says with an error's code.
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
        let (head, body) = complete(response).into_parts();
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
