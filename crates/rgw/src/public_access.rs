//! What keeps a bucket from being opened to everybody by mistake, and whose its objects are: the public access block and
//! the ownership controls of S3. Pure: both are documents of the bucket ([`crate::bucket`]).

use serde::{Deserialize, Serialize};

/// A bucket's public access block, as its document has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(crate) struct PublicAccessBlock {
    /// Lists that grant something to everybody or to all users can't be set.
    pub(crate) block_public_acls: bool,
    /// Such grants count for nothing.
    pub(crate) ignore_public_acls: bool,
    /// A policy that allows something to everybody can't be set.
    pub(crate) block_public_policy: bool,
    /// What such a policy allows, it allows to the bucket's owner alone.
    pub(crate) restrict_public_buckets: bool,
}

/// Whose an object is that another user than the bucket's owner writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ownership {
    /// Its writer's.
    #[default]
    ObjectWriter,
    /// The bucket's owner's, where the writer gives it full control by the canned ACL; else its writer's.
    BucketOwnerPreferred,
    /// The bucket's owner's, and lists count for nothing.
    BucketOwnerEnforced,
}

impl Ownership {
    /// The one of that name in S3; `None` where there is no such.
    pub(crate) fn named(name: &str) -> Option<Ownership> {
        let all = [Ownership::ObjectWriter, Ownership::BucketOwnerPreferred, Ownership::BucketOwnerEnforced];
        all.into_iter().find(|ownership| ownership.name() == name)
    }

    /// Its name in S3.
    pub(crate) fn name(self) -> &'static str {
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
