//! The crate's one error type. Variants say what a caller can do; [`Error::errno`] maps each to the number that the
//! wire, the C interface and exit codes use.

use nacre_types::errno::Errno;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What can go wrong in options, configuration, authentication and messaging.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No option of that name exists. Correct the name.
    #[error("unrecognized config option '{0}'")]
    UnknownOption(String),
    /// An option's value does not fit its type, range or choices. Correct the value.
    #[error("{option}: {reason}")]
    BadValue {
        /// The option.
        option: String,
        /// What is wrong with the value, as Ceph words it.
        reason: String,
    },
    /// A configuration file or keyring can't be parsed. Correct the line.
    #[error("{}:{line}: {reason}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A file, entity or key that must exist does not.
    #[error("{0}")]
    NotFound(String),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was done, on what.
        what: String,
        /// Its answer.
        source: Arc<std::io::Error>,
    },
    /// Somebody else holds it: a lock file, a pid file.
    #[error("{0}")]
    Busy(String),
    /// Authentication failed: unknown entity, wrong key, refused capability. Retrying with the same key is no use.
    #[error("authentication failed: {0}")]
    Denied(String),
    /// A ticket or service key is past its time: fetch a new one and try again.
    #[error("expired: {0}")]
    Expired(String),
    /// Bytes that authenticate or checksum wrongly, or make no sense. Never retried on the same bytes.
    #[error("corrupt {what}: {detail}")]
    Corrupt {
        /// Which structure.
        what: &'static str,
        /// What was found.
        detail: String,
    },
    /// The peer speaks another protocol, or another version of it.
    #[error("{peer}: {reason}")]
    Protocol {
        /// Its address.
        peer: SocketAddr,
        /// What it did.
        reason: String,
    },
    /// Nobody answers at the address; the peer may come back.
    #[error("{peer}: {reason}")]
    Unreachable {
        /// The address.
        peer: SocketAddr,
        /// Whether the connection was refused, which means that no process listens.
        refused: bool,
        /// The system's text.
        reason: String,
    },
    /// A deadline passed.
    #[error("{0} timed out")]
    TimedOut(String),
    /// A bounded queue has no room; wait and send again.
    #[error("the connection's out-queue is full")]
    Full,
    /// The message exceeds what a frame may hold.
    #[error("message of {bytes} bytes exceeds the limit of {limit}")]
    TooBig {
        /// Its size.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// The connection or the messenger has been closed.
    #[error("closed")]
    Closed,
}

/// `std::result::Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The Linux error number.
    pub fn errno(&self) -> Errno {
        match self {
            Error::UnknownOption(_) | Error::BadValue { .. } | Error::Syntax { .. } | Error::Usage(_) => {
                Errno::EINVAL
            }
            Error::NotFound(_) => Errno::ENOENT,
            Error::Io { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::EIO.0)),
            Error::Busy(_) => Errno::EBUSY,
            Error::Denied(_) | Error::Expired(_) => Errno::EACCES,
            Error::Corrupt { .. } => Errno::EBADMSG,
            Error::Protocol { .. } => Errno::EPROTO,
            Error::Unreachable { refused: true, .. } => Errno::ECONNREFUSED,
            Error::Unreachable { refused: false, .. } | Error::Closed => Errno::ENOTCONN,
            Error::TimedOut(_) => Errno::ETIMEDOUT,
            Error::Full => Errno::EAGAIN,
            Error::TooBig { .. } => Errno::E2BIG,
        }
    }

    /// An I/O error on `path`.
    pub fn io(verb: &str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { what: format!("{verb} {}", path.display()), source: Arc::new(source) }
    }

    /// A value that does not fit its option.
    pub fn bad_value(option: &str, reason: impl Into<String>) -> Error {
        Error::BadValue { option: option.to_owned(), reason: reason.into() }
    }
}
