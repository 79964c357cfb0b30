//! Text that is never printed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The text that is printed in place of a secret.
pub(crate) const MASK: &str = "****";

/// A password, or a part of a URI that may contain one. It is stored in cleartext; `Debug` and `Display` print a mask.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The secret itself, for sending or storing it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_when_printed_and_whole_when_revealed() {
        let secret = Secret::new("hunter2");
        assert_eq!((format!("{secret}"), format!("{secret:?}")), (MASK.to_owned(), MASK.to_owned()));
        assert_eq!(format!("{:?}", Some(&secret)), format!("Some({MASK})"));
        assert_eq!(secret.reveal(), "hunter2");
    }
}
