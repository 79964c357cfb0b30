//! Why a client's request failed, by what the caller can do about it.

use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;

/// An error of this crate. C callers and exit codes use [`Error::errno`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The OSD refused the operation on the object, with this errno.
    #[error("{}", .0.text())]
    Refused(Errno),
    /// The pool does not exist or no longer exists.
    #[error("pool {0} does not exist")]
    NoSuchPool(String),
    /// A daemon refused a command.
    #[error("{status}")]
    Command {
        /// Its error number.
        errno: Errno,
        /// Its text.
        status: String,
    },
    /// An argument exceeds its limits. Nothing was sent.
    #[error("{detail}")]
    Invalid {
        /// The errno that Ceph returns for it.
        errno: Errno,
        /// The argument and its limit.
        detail: String,
    },
    /// There was no answer within the allowed time. A write may have taken effect.
    #[error("{0}")]
    TimedOut(String),
    /// No map authority can be reached, or none accepts the credentials.
    #[error("{detail}")]
    Unreachable {
        /// ETIMEDOUT without an answer, EACCES if the credentials were refused.
        errno: Errno,
        /// The last address tried, and its result.
        detail: String,
    },
    /// Configuration or keyring is missing or wrong.
    #[error("{detail}")]
    Configuration {
        /// ENOENT if something is missing, EINVAL if it is wrong.
        errno: Errno,
        /// The file or option, and what to do.
        detail: String,
    },
    /// The cluster has blocklisted this client, or the session to which the handle was bound has ended: a new connection is
    /// needed.
    #[error("this client is blocklisted")]
    Blocklisted,
    /// The handle was shut down.
    #[error("the cluster handle is shut down")]
    ShutDown,
    /// An answer can't be decoded: it is damaged or of a newer release.
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
}

impl Error {
    /// Returns the errno for C callers and exit codes.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Refused(errno)
            | Error::Command { errno, .. }
            | Error::Invalid { errno, .. }
            | Error::Unreachable { errno, .. }
            | Error::Configuration { errno, .. } => *errno,
            Error::NoSuchPool(_) => Errno::ENOENT,
            Error::TimedOut(_) => Errno::ETIMEDOUT,
            Error::Blocklisted => Errno::ESHUTDOWN,
            Error::ShutDown => Errno::ENOTCONN,
            Error::Corrupt(_) => Errno::EBADMSG,
        }
    }

    /// Whether the object (or pool) does not exist.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Errno::ENOENT
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        if errno == Errno::EBLOCKLISTED { Error::Blocklisted } else { Error::Refused(errno) }
    }
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
