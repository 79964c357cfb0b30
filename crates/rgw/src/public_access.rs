//! S3's public access block, which keeps a bucket from being opened to everybody by mistake, and its ownership controls,
//! which determine the owners of the bucket's objects. This module is pure: both are documents of the bucket
//! ([`crate::bucket`]).

use serde::{Deserialize, Serialize};

/// A bucket's public access block, in the format of its document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct PublicAccessBlock {
    /// ACLs that grant something to everybody or to all users can't be set.
    pub block_public_acls: bool,
    /// Grants to everybody or to all users are ignored.
    pub ignore_public_acls: bool,
    /// A policy that allows something to everybody can't be set.
    pub block_public_policy: bool,
    /// A policy that allows something to everybody allows it only to the bucket's owner.
    pub restrict_public_buckets: bool,
}

/// The owner of an object that a user other than the bucket's owner writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ownership {
    /// The writer.
    #[default]
    ObjectWriter,
    /// The bucket's owner, if the writer gives it full control by the canned ACL; otherwise the writer.
    BucketOwnerPreferred,
    /// The bucket's owner. ACLs are ignored.
    BucketOwnerEnforced,
}

impl Ownership {
    /// Returns the setting of that name in S3; `None` if there is none.
    pub fn named(name: &str) -> Option<Ownership> {
        let all = [Ownership::ObjectWriter, Ownership::BucketOwnerPreferred, Ownership::BucketOwnerEnforced];
        all.into_iter().find(|ownership| ownership.name() == name)
    }

    /// Returns its name in S3.
    pub fn name(self) -> &'static str {
        match self {
            Ownership::ObjectWriter => "ObjectWriter",
            Ownership::BucketOwnerPreferred => "BucketOwnerPreferred",
            Ownership::BucketOwnerEnforced => "BucketOwnerEnforced",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_what_s3_calls_things() {
        let block = PublicAccessBlock { ignore_public_acls: true, ..PublicAccessBlock::default() };
        let text = serde_json::to_string(&block).unwrap();
        assert!(text.contains("\"IgnorePublicAcls\":true"), "{text}");
        assert_eq!(serde_json::from_str::<PublicAccessBlock>(&text).unwrap(), block);
        assert!(serde_json::from_str::<PublicAccessBlock>("{\"IgnorePublicAcl\":true}").is_err());
        for ownership in
            [Ownership::ObjectWriter, Ownership::BucketOwnerPreferred, Ownership::BucketOwnerEnforced]
        {
            assert_eq!(Ownership::named(ownership.name()), Some(ownership));
            assert_eq!(serde_json::to_string(&ownership).unwrap(), format!("\"{}\"", ownership.name()));
        }
        assert_eq!(Ownership::named("Nobody"), None);
    }
}
