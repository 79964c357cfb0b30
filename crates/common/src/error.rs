//! The crate's error type. Variants correspond to what a caller can do; [`Error::errno`] maps each to the errno for the wire,
//! the C interface and exit codes.

use nacre_types::errno::Errno;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error in options, configuration, authentication or messaging.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No option with this name exists. Correct the name.
    #[error("unrecognized config option '{0}'")]
    UnknownOption(String),
    /// An option's value does not fit its type, range or choices. Correct the value.
    #[error("{option}: {reason}")]
    BadValue {
        /// The option.
        option: String,
        /// What is wrong with the value, in Ceph's words.
        reason: String,
    },
    /// A configuration file or keyring can't be parsed. Correct the line.
    #[error("{}:{line}: {reason}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
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
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The operating system's error.
        source: Arc<std::io::Error>,
    },
    /// Another process holds a lock file or a pid file.
    #[error("{0}")]
    Busy(String),
    /// Authentication failed: unknown entity, wrong key, refused capability. A retry with the same key does not help.
    #[error("authentication failed: {0}")]
    Denied(String),
    /// A ticket or service key has expired: fetch a new one and try again.
    #[error("expired: {0}")]
    Expired(String),
    /// Bytes with a wrong authentication tag or checksum, or invalid contents. Never retried with the same bytes.
    #[error("corrupt {what}: {detail}")]
    Corrupt {
        /// The structure.
        what: &'static str,
        /// What was found.
        detail: String,
    },
    /// The peer uses another protocol, or another version of it.
    #[error("{peer}: {reason}")]
    Protocol {
        /// Its address.
        peer: SocketAddr,
        /// The mismatch.
        reason: String,
    },
    /// There is no answer from the address; the peer may come back.
    #[error("{peer}: {reason}")]
    Unreachable {
        /// The address.
        peer: SocketAddr,
        /// Whether the connection was refused, which means that no process listens.
        refused: bool,
        /// The system's text.
        reason: String,
    },
    /// A deadline has passed.
    #[error("{0} timed out")]
    TimedOut(String),
    /// A bounded queue is full; wait and send again.
    #[error("the connection's out-queue is full")]
    Full,
    /// The message exceeds the maximum size of a frame.
    #[error("message of {bytes} bytes exceeds the limit of {limit}")]
    TooBig {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The connection or the messenger has been closed.
    #[error("closed")]
    Closed,
}

/// `std::result::Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the Linux errno.
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

    /// Creates an I/O error on `path`.
    pub fn io(verb: &str, path: &Path, source: std::io::Error) -> Error {
        Error::Io { what: format!("{verb} {}", path.display()), source: Arc::new(source) }
    }

    /// Creates an error for a value that does not fit its option.
    pub fn bad_value(option: &str, reason: impl Into<String>) -> Error {
        Error::BadValue { option: option.to_owned(), reason: reason.into() }
    }
}
