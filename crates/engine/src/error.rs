//! Why a request of a client did not succeed, by what the caller can do about it.

use nacre_types::encoding::DecodeError;
use nacre_types::errno::Errno;

/// An error of this crate. [`Error::errno`] is what C callers and exit codes see.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The cluster carried the request to its object, which refused it: the number says why.
    #[error("{}", .0.text())]
    Refused(Errno),
    /// The pool does not exist (any more).
    #[error("pool {0} does not exist")]
    NoSuchPool(String),
    /// A command was refused by a daemon, which says why.
    #[error("{status}")]
    Command {
        /// Its error number.
        errno: Errno,
        /// Its text.
        status: String,
    },
    /// An argument is out of its limits; nothing was sent.
    #[error("{detail}")]
    Invalid {
        /// The number that Ceph returns for it.
        errno: Errno,
        /// Which argument, which limit.
        detail: String,
    },
    /// No answer in the time allowed. A write may have taken effect.
    #[error("{0}")]
    TimedOut(String),
    /// No map authority can be reached, or none takes our credentials.
    #[error("{detail}")]
    Unreachable {
        /// ETIMEDOUT where nobody answered, EACCES where the credentials were refused.
        errno: Errno,
        /// Who was tried and what came of it.
        detail: String,
    },
    /// Configuration or keyring is missing or wrong.
    #[error("{detail}")]
    Configuration {
        /// ENOENT where something is missing, EINVAL where it is wrong.
        errno: Errno,
        /// Which file or option, and what to do.
        detail: String,
    },
    /// The cluster has put this client on its blocklist, or the session is over that it was bound to: open a new
    /// connection.
    #[error("this client is blocklisted")]
    Blocklisted,
    /// The handle was shut down.
    #[error("the cluster handle is shut down")]
    ShutDown,
    /// An answer can't be decoded: damaged or of a newer release.
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
}

impl Error {
    /// The error number that C callers and exit codes see.
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

    /// Whether the object (or pool) is simply not there.
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
