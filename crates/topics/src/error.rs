//! The crate's errors, and how they are reported to SNS and S3 clients.

use std::fmt::Write as _;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a request, document or attribute is refused. No variant contains a secret: messages may be logged and
/// sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A parameter or attribute has an invalid value.
    #[error("{parameter}: {reason}")]
    Invalid {
        /// The parameter or attribute.
        parameter: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// A required parameter is missing.
    #[error("the parameter {0} is missing")]
    Missing(&'static str),
    /// A form, XML document or JSON document has a syntax error or an unexpected element.
    #[error("malformed {document}: {reason}")]
    Malformed {
        /// The kind of document.
        document: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Something exceeds its size limit.
    #[error("{what} exceeds its limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit, in the unit that `what` names.
        limit: usize,
    },
    /// The gateway's options forbid the request. An operator can allow it.
    #[error("{what}: not allowed unless the option {option} allows it")]
    NotAllowed {
        /// What was requested.
        what: String,
        /// The option that allows it.
        option: &'static str,
    },
    /// The SNS request names an unsupported action.
    #[error("unknown action {0}")]
    UnknownAction(String),
}

impl Error {
    pub(crate) fn invalid(parameter: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Invalid { parameter: parameter.into(), reason: reason.into() }
    }

    pub(crate) fn xml(reason: impl Into<String>) -> Error {
        Error::Malformed { document: "XML document", reason: reason.into() }
    }

    /// The HTTP status of the reply.
    pub fn status(&self) -> u16 {
        match self {
            Error::NotAllowed { .. } => 403,
            _ => 400,
        }
    }

    /// The error code for SNS clients.
    pub fn sns_code(&self) -> &'static str {
        match self {
            Error::Invalid { .. } | Error::TooLarge { .. } => "InvalidParameter",
            Error::Missing(_) => "MissingParameter",
            Error::Malformed { .. } => "MalformedQueryString",
            Error::NotAllowed { .. } => "AuthorizationError",
            Error::UnknownAction(_) => "InvalidAction",
        }
    }

    /// The error code for S3 clients.
    pub fn s3_code(&self) -> &'static str {
        match self {
            Error::Malformed { .. } => "MalformedXML",
            Error::NotAllowed { .. } => "AccessDenied",
            _ => "InvalidArgument",
        }
    }
}

/// The most characters of a client's text that a message quotes.
const QUOTED_CHARS: usize = 80;

/// Quotes a client's text, truncated and with control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("'");
    for (at, letter) in text.chars().enumerate() {
        if at == QUOTED_CHARS {
            out.push('…');
            break;
        }
        if letter.is_control() {
            _ = write!(out, "{}", letter.escape_default());
        } else {
            out.push(letter);
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_bounded_and_printable() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("a\r\nb"), "'a\\r\\nb'");
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), QUOTED_CHARS + 3);
    }

    #[test]
    fn options_that_forbid_something_answer_403_and_all_else_400() {
        let forbidden = Error::NotAllowed { what: "w".into(), option: "o" };
        assert_eq!(
            (forbidden.status(), forbidden.sns_code(), forbidden.s3_code()),
            (403, "AuthorizationError", "AccessDenied")
        );
        assert_eq!(forbidden.to_string(), "w: not allowed unless the option o allows it");
        let invalid = Error::invalid("Name", "is empty");
        assert_eq!(
            (invalid.status(), invalid.sns_code(), invalid.s3_code()),
            (400, "InvalidParameter", "InvalidArgument")
        );
        assert_eq!(Error::xml("x").s3_code(), "MalformedXML");
    }
}
