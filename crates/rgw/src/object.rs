//! Changes of objects ([`crate::stored`] describes how they are stored). Writing the head commits a change; [`IndexOp`] is the
//! change in the index. Tails are written before the head, under names that were never used.

mod body;
mod commit;
mod index_op;
mod md5;
pub mod multipart;
mod put;
mod remove;
mod transition;
pub(crate) mod versions;

use crate::crypt;
pub use crate::crypt::{Cipher, Encryption, SECRET_BYTES, Salt, Secret, SseKeySource, random_salt};
pub(crate) use body::BufferList;
pub use body::{BodyStream, Digests, UploadBody};
pub use index_op::IndexOp;
pub use put::PutOp;
pub use remove::{RemovalEventTypes, RemovalResult};

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::record;
use crate::stored::{ETAG, HEAD, Head, HeadStateId, STRIPE_BYTES};
use bytes::Bytes;
use nacre_index::commit::AssumedHead;
use nacre_index::op::{Guard, Step};
use nacre_index::record::Tails;

/// A condition of a write or removal on the existing object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// There is no condition.
    #[default]
    None,
    /// The object does not exist.
    Absent,
    /// The object exists.
    Present,
    /// The object exists and has this ETag.
    Etag(String),
    /// The object's head is in this state.
    Unchanged(HeadStateId),
}

/// Returns the prefix of the names of the tails that belong to `tag`, in a storage class.
fn tails_name(bucket: &Bucket, class: &str, tag: &str) -> String {
    Tails::name_for(&bucket.id, class, tag)
}

/// Returns the number of tails that hold so many bytes.
fn tail_count(bytes: u64) -> u64 {
    bytes.div_ceil(STRIPE_BYTES)
}

/// Returns the steps that write the data and attributes of a head.
fn head_write_steps(head: &Head, data: impl IntoIterator<Item = Bytes>) -> Vec<Step> {
    let mut pieces = data.into_iter();
    let first = pieces.next().unwrap_or_default();
    let mut offset = first.len() as u64;
    let mut steps = vec![Step::WriteFull(first)];
    for piece in pieces {
        let len = piece.len() as u64;
        steps.push(Step::Write { offset, data: piece });
        offset += len;
    }
    steps.push(Step::SetAttr(HEAD, record::encode(head)));
    steps.push(Step::SetAttr(ETAG, Bytes::from(head.etag.clone().into_bytes())));
    steps
}

impl WriteCondition {
    /// Whether a commit on `base` with [`WriteCondition::guards`] is refused if the condition does not hold. Otherwise the head
    /// must be read.
    fn is_decided_on(&self, base: &AssumedHead) -> bool {
        let is_object = match base {
            AssumedHead::Absent => false,
            AssumedHead::Entry(_) => true,
            AssumedHead::Head(head) => !head.is_tombstone(),
        };
        match self {
            WriteCondition::None => true,
            WriteCondition::Absent => !is_object,
            WriteCondition::Present | WriteCondition::Etag(_) => is_object,
            WriteCondition::Unchanged(mark) => is_object && base.seq() == Some(mark.seq()),
        }
    }

    /// Returns the guards of a commit that is built without reading the head.
    fn guards(&self) -> Vec<Guard> {
        match self {
            WriteCondition::Etag(etag) => {
                vec![Guard::AttrEquals(ETAG, Bytes::from(etag.clone().into_bytes()))]
            }
            WriteCondition::None
            | WriteCondition::Absent
            | WriteCondition::Present
            | WriteCondition::Unchanged(_) => Vec::new(),
        }
    }

    /// Fails if the condition does not hold for the head that was read.
    fn check(&self, there: Option<(&Head, HeadStateId)>) -> Result<()> {
        match (self, there) {
            (WriteCondition::Unchanged(wanted), Some((_, mark))) if wanted.is_same_state(mark) => Ok(()),
            (WriteCondition::Unchanged(_), _) => Err(Error::Precondition("unchanged")),
            (WriteCondition::None, _)
            | (WriteCondition::Absent, None)
            | (WriteCondition::Present, Some(_)) => Ok(()),
            (WriteCondition::Absent, Some(_)) => Err(Error::Precondition("If-None-Match")),
            (WriteCondition::Present | WriteCondition::Etag(_), None) => Err(Error::NoSuchKey),
            (WriteCondition::Etag(etag), Some((head, _))) if *etag == head.etag => Ok(()),
            (WriteCondition::Etag(_), Some(_)) => Err(Error::Precondition("If-Match")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::{DataObjectKind, classify_data_object, head_name};
    use crate::uploads::upload_name;

    fn bucket() -> Bucket {
        Bucket { id: "0123456789abcdef0123456789abcdef".into(), ..Bucket::default() }
    }

    #[test]
    fn conditions_are_decided_by_a_base_or_by_the_head() {
        let seq = |number| nacre_index::seq::Seq { number, ..nacre_index::seq::Seq::LEGACY };
        let entry = AssumedHead::Entry(seq(3));
        let etag = WriteCondition::Etag("e".into());
        for (condition, absent, there) in [
            (&WriteCondition::None, true, true),
            (&WriteCondition::Absent, true, false),
            (&WriteCondition::Present, false, true),
            (&etag, false, true),
        ] {
            let decided = [&AssumedHead::Absent, &entry].map(|base| condition.is_decided_on(base));
            assert_eq!(decided, [absent, there], "{condition:?}");
        }
        assert_eq!(etag.guards(), [Guard::AttrEquals(ETAG, Bytes::from_static(b"e"))]);
    }

    #[test]
    fn names_of_heads_tails_and_uploads_differ() {
        let bucket = bucket();
        let tag = "fedcba9876543210fedcba9876543210";
        for key in
            ["a", "_a", "__a", "_shadow_x_0", "__shadow_x_0", "_multipart_k.u", "multipart_k.u", "/", "a_0"]
        {
            let name = head_name(&bucket.id, key);
            assert_eq!(
                classify_data_object(&bucket.id, &name),
                Some(DataObjectKind::Head(key.to_owned())),
                "{name}"
            );
            let upload = upload_name(&bucket, key, tag);
            assert_eq!(
                classify_data_object(&bucket.id, &upload),
                Some(DataObjectKind::Upload(key.into(), tag.into())),
                "{upload}"
            );
        }
        let run = tails_name(&bucket, "", tag);
        assert_eq!(run, format!("{}__shadow_{tag}", bucket.id), "data that is there already keeps its name");
        for run in [run.clone(), tails_name(&bucket, "COLD", tag), tails_name(&bucket, "STANDARD_IA", tag)] {
            assert_eq!(
                classify_data_object(&bucket.id, &format!("{run}_17")),
                Some(DataObjectKind::Tail(run.clone()))
            );
        }
        // A key can't name it.
        assert_ne!(head_name(&bucket.id, &format!("_shadow_{tag}_17")), format!("{run}_17"));
        assert_eq!(classify_data_object(&bucket.id, "other_a"), None);
    }
}
