//! The gateway's errors, and S3's codes for them.

mod s3_code;

pub use s3_code::log_server_error;

use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;

/// An error of this crate.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// RADOS refused or could not be reached.
    #[error("rados: {0}")]
    Rados(#[from] nacre_client::Error),
    /// A record can't be decoded: it is damaged, or of a newer release.
    #[error("{name}: {source}")]
    Corrupt {
        /// The RADOS object.
        name: String,
        /// What is wrong.
        source: DecodeError,
    },
    /// The request's body is not what its headers and signature say.
    #[error("{0}")]
    Body(#[from] BodyFault),
    /// The gateway failed, not the request. For example, a task panicked, or the system has no random numbers.
    #[error("{what}: {detail}")]
    Internal {
        /// What failed.
        what: &'static str,
        /// Why; for logs only.
        detail: String,
    },
    /// No such user.
    #[error("no such user: {0}")]
    NoSuchUser(String),
    /// The user exists already.
    #[error("user {0} exists already")]
    UserExists(String),
    /// The access key exists already.
    #[error("key {0} exists already")]
    KeyExists(String),
    /// No such role.
    #[error("no such role: {0}")]
    NoSuchRole(String),
    /// The role exists already.
    #[error("role {0} exists already")]
    RoleExists(String),
    /// A limit on the number of something is reached.
    #[error("no more than {0}")]
    LimitExceeded(String),
    /// The token of temporary credentials is missing, belongs to another key, or was not issued by this cluster.
    #[error("the security token is missing or not valid")]
    InvalidToken,
    /// The temporary credentials have expired.
    #[error("the security token has expired")]
    ExpiredToken,
    /// No such notification topic.
    #[error("no such topic: {0}")]
    NoSuchTopic(String),
    /// A topic, a notification configuration or a request for one is not valid.
    #[error("{0}")]
    Topic(#[from] nacre_topics::Error),
    /// The queue of a topic is full, and the topic refuses further events.
    #[error("the queue of topic {0} is full")]
    QueueFull(String),
    /// The zone's data pool can no longer be changed.
    #[error("the zone is in use: the data of its objects is in pool {0}")]
    ZoneInUse(String),
    /// The pool of a storage class can't be changed.
    #[error("storage class {class} is in use with pool {pool}: {why}")]
    ClassInUse {
        /// The class.
        class: String,
        /// Its pool.
        pool: String,
        /// Why it can't be changed.
        why: String,
    },
    /// The zone has no pool for the storage class.
    #[error("The storage class you specified is not valid: {0}")]
    NoSuchStorageClass(String),
    /// No such kind of metadata.
    #[error("no such metadata: {0}")]
    NoSuchMetadata(String),
    /// No such bucket.
    #[error("no such bucket: {0}")]
    NoSuchBucket(String),
    /// The bucket exists and is this user's.
    #[error("bucket {0} exists and is yours")]
    BucketAlreadyOwned(String),
    /// The bucket exists and is another user's.
    #[error("bucket {0} exists")]
    BucketExists(String),
    /// The bucket has objects.
    #[error("bucket {0} is not empty")]
    BucketNotEmpty(String),
    /// The bucket's index is closed, for example because it is being moved; the request may be retried.
    #[error("the index of bucket {0} is busy")]
    IndexBusy(String),
    /// The bucket's access control list can't be disabled, because it grants something to others than the bucket's owner.
    #[error("bucket {0} has an ACL that grants something to others; set it to private first")]
    AclWithOwnership(String),
    /// The request conflicts with the bucket's versioning or object lock.
    #[error("{0}")]
    BucketState(&'static str),
    /// The user has the maximum number of buckets.
    #[error("no more than {0} buckets")]
    TooManyBuckets(u32),
    /// No such object.
    #[error("no such key")]
    NoSuchKey,
    /// The text is not the id of a version.
    #[error("Invalid version id specified")]
    InvalidVersionId,
    /// No such version of an object.
    #[error("The specified version does not exist")]
    NoSuchVersion,
    /// The object or version to be read is a delete marker.
    #[error("there is a delete marker")]
    DeleteMarker {
        /// The id of its version.
        version: String,
        /// When it was created, in nanoseconds since 1970.
        mtime_ns: u64,
        /// Whether the request named that version.
        named: bool,
    },
    /// Object lock forbids the removal of the version, or a weaker protection of it.
    #[error("Access Denied because object protected by object lock.")]
    Locked,
    /// The data is encrypted with another key.
    #[error("the key is not the one that the object is encrypted with")]
    WrongKey,
    /// Too many requests change the same object or record concurrently.
    #[error("{0} is being changed by too many at a time")]
    Contended(String),
    /// No such multipart upload.
    #[error("no such upload")]
    NoSuchUpload,
    /// A part that the request names does not exist, or has another ETag.
    #[error("part {0} is not there or has another ETag")]
    InvalidPart(i32),
    /// The parts that the request names are not in order.
    #[error("parts are not in order")]
    InvalidPartOrder,
    /// A part other than the last one is smaller than the minimum.
    #[error("part {0} is too small")]
    PartTooSmall(i32),
    /// A condition of the request does not hold.
    #[error("a condition does not hold: {0}")]
    Precondition(&'static str),
    /// The data does not match its digest.
    #[error("the data does not have the digest that was sent: {0}")]
    BadDigest(&'static str),
    /// The data exceeds the maximum length of an object or part.
    #[error("too large")]
    TooLarge,
    /// A quota of the bucket or of its owner would be exceeded.
    #[error("the quota is exceeded")]
    QuotaExceeded,
    /// A protection of the bucket or user forbids it.
    #[error("{0}")]
    Denied(&'static str),
    /// An argument is wrong.
    #[error("{0}")]
    Invalid(String),
}

impl From<nacre_notify::Error> for Error {
    fn from(error: nacre_notify::Error) -> Error {
        use nacre_notify::Error as Notify;
        match error {
            Notify::Rados(error) => Error::Rados(error),
            Notify::Topic(error) => Error::Topic(error),
            Notify::NoSuchTopic(arn) => Error::NoSuchTopic(arn.to_string()),
            Notify::Changed(name) | Notify::Contended(name) => Error::Contended(name),
            Notify::Corrupt { object, source } => Error::Corrupt { name: object, source },
            error @ Notify::TooManyGenerations(_) => Error::Invalid(error.to_string()),
            error @ (Notify::Queue(_) | Notify::Index(_) | Notify::Foreign { .. } | Notify::Stopped) => {
                Error::Internal { what: "notifications", detail: error.to_string() }
            }
        }
    }
}

/// What is wrong with a request's body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// Its SHA-256 is not the one that was signed.
    #[error("The provided 'x-amz-content-sha256' header does not match what was computed.")]
    Sha256Mismatch,
    /// The signature of a chunk is wrong.
    #[error("The request signature we calculated does not match the signature you provided.")]
    ChunkSignature,
    /// The body ended early, stalled, or does not have the form that its headers say.
    #[error("You did not provide the number of bytes specified by the Content-Length HTTP header")]
    Incomplete,
}

impl BodyFault {
    /// Returns the fault that an error of s3s represents.
    ///
    /// s3s's `UploadStreamError` and `AwsChunkedStreamError` are in private modules, so they can't be downcast to. Therefore
    /// this function compares texts, which are those of the release in Cargo.lock. No other place does so.
    /// `abuse.py: bodies` and `chunks` fail if a later release changes the texts.
    pub fn of(error: &(dyn std::error::Error + 'static)) -> BodyFault {
        match error.to_string().as_str() {
            "UploadStreamError: Sha256Mismatch" => BodyFault::Sha256Mismatch,
            "AwsChunkedStreamError: SignatureMismatch" => BodyFault::ChunkSignature,
            _ => BodyFault::Incomplete,
        }
    }
}

impl From<nacre_index::Error> for Error {
    fn from(error: nacre_index::Error) -> Error {
        match error {
            nacre_index::Error::Corrupt { name, source } => Error::Corrupt { name, source },
            nacre_index::Error::TooManyPending(key) => Error::Contended(key),
        }
    }
}

impl Error {
    /// Returns the Linux errno that is closest to the error: the exit code of programs.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Rados(error) => error.errno(),
            Error::Corrupt { .. } => Errno::EBADMSG,
            Error::Internal { .. } => Errno::EIO,
            Error::NoSuchUser(_)
            | Error::NoSuchRole(_)
            | Error::NoSuchTopic(_)
            | Error::NoSuchStorageClass(_)
            | Error::NoSuchMetadata(_)
            | Error::NoSuchBucket(_)
            | Error::NoSuchKey
            | Error::NoSuchVersion
            | Error::DeleteMarker { .. }
            | Error::NoSuchUpload => Errno::ENOENT,
            Error::UserExists(_)
            | Error::KeyExists(_)
            | Error::RoleExists(_)
            | Error::BucketAlreadyOwned(_)
            | Error::BucketExists(_) => Errno::EEXIST,
            Error::BucketNotEmpty(_) => Errno::ENOTEMPTY,
            Error::ZoneInUse(_) | Error::ClassInUse { .. } | Error::IndexBusy(_) | Error::Contended(_) => {
                Errno::EBUSY
            }
            Error::LimitExceeded(_)
            | Error::TooManyBuckets(_)
            | Error::QuotaExceeded
            | Error::QueueFull(_) => Errno::EDQUOT,
            Error::InvalidToken
            | Error::ExpiredToken
            | Error::Locked
            | Error::WrongKey
            | Error::Denied(_) => Errno::EACCES,
            Error::Precondition(_) => Errno::ECANCELED,
            Error::TooLarge => Errno::EFBIG,
            Error::Body(_)
            | Error::Topic(_)
            | Error::AclWithOwnership(_)
            | Error::BucketState(_)
            | Error::InvalidVersionId
            | Error::InvalidPart(_)
            | Error::InvalidPartOrder
            | Error::PartTooSmall(_)
            | Error::BadDigest(_)
            | Error::Invalid(_) => Errno::EINVAL,
        }
    }

    /// Returns the error for a request's task that panicked or was cancelled.
    pub fn task_failed(what: &'static str) -> impl FnOnce(tokio::task::JoinError) -> Error {
        move |error| Error::Internal { what, detail: error.to_string() }
    }

    /// Returns the error for a system that has no random numbers.
    pub fn no_random_numbers(error: getrandom::Error) -> Error {
        Error::Internal { what: "no random numbers", detail: error.to_string() }
    }

    /// Whether RADOS reports that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Rados(error) if error.is_not_found())
    }

    /// Whether RADOS can't serve the request at present: it is full, does not answer, or the gateway has lost its
    /// connection.
    pub fn is_unavailable(&self) -> bool {
        use nacre_types::errno::Errno;
        const PASSING: [Errno; 5] =
            [Errno::ENOSPC, Errno::EDQUOT, Errno::ETIMEDOUT, Errno::ENOTCONN, Errno::ESHUTDOWN];
        matches!(self, Error::Rados(error) if PASSING.contains(&error.errno()))
    }

    /// Whether a guard of a RADOS operation did not hold.
    pub(crate) fn is_canceled(&self) -> bool {
        matches!(self, Error::Rados(error) if error.errno() == Errno::ECANCELED)
    }

    /// Whether an object that was to be created already exists.
    pub(crate) fn is_already_exists(&self) -> bool {
        matches!(self, Error::Rados(error) if error.errno() == Errno::EEXIST)
    }

    /// Whether the operation may have taken effect despite the error. This includes operations of a blocklisted session: an
    /// OSD refuses such an operation when it is resent, even if it was applied before and only its reply was lost. ESTALE
    /// means that an OSD can't tell.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        use nacre_client::Error as Rados;
        if matches!(self, Error::Rados(error) if error.errno() == Errno::ESTALE) {
            return true;
        }
        matches!(
            self,
            Error::Rados(
                Rados::TimedOut(_) | Rados::ShutDown | Rados::Unreachable { .. } | Rados::Blocklisted
            )
        )
    }
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::errno::Errno;

    #[test]
    fn what_became_of_a_blocklisted_session_s_operation_is_unknown() {
        let error = |errno| Error::Rados(nacre_client::Error::from(errno));
        assert!(error(Errno::EBLOCKLISTED).is_outcome_unknown());
        assert!(!error(Errno::ENOSPC).is_outcome_unknown() && !error(Errno::ECANCELED).is_outcome_unknown());
    }
}
