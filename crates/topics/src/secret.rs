//! Text that is never printed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What stands for a secret wherever it would be printed.
pub(crate) const MASK: &str = "****";

/// A password or a part of a URI that may hold one. It is stored as it is; `Debug` and `Display` print a mask.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The secret itself, for whoever sends or stores it.
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
