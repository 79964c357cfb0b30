//! Errno values for Ceph's clients: replies contain negative Linux errnos.

use nacre_crush::CrushError;
use serde::{Deserialize, Serialize};

/// A positive Linux errno; replies contain its negation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`: ", $text, ".")] pub const $name: Errno = Errno($value);)*

            /// The C library's text for this number.
            pub fn text(self) -> &'static str {
                match self.0 { $($value => $text,)* _ => "Unknown error" }
            }

            /// The symbolic name, `EIO` for instance; `E?` for a number that Nacre does not use.
            pub fn name(self) -> &'static str {
                match self.0 { $($value => stringify!($name),)* _ => "E?" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EINTR = 4, "Interrupted system call";
    EIO = 5, "Input/output error";
    ENXIO = 6, "No such device or address";
    E2BIG = 7, "Argument list too long";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EBUSY = 16, "Device or resource busy";
    EEXIST = 17, "File exists";
    EXDEV = 18, "Invalid cross-device link";
    ENODEV = 19, "No such device";
    ENOTDIR = 20, "Not a directory";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space left on device";
    EROFS = 30, "Read-only file system";
    EDOM = 33, "Numerical argument out of domain";
    ERANGE = 34, "Numerical result out of range";
    ENAMETOOLONG = 36, "File name too long";
    ENOTEMPTY = 39, "Directory not empty";
    ELOOP = 40, "Too many levels of symbolic links";
    ENODATA = 61, "No data available";
    ETIME = 62, "Timer expired";
    EPROTO = 71, "Protocol error";
    EBADMSG = 74, "Bad message";
    EOVERFLOW = 75, "Value too large for defined data type";
    EILSEQ = 84, "Invalid or incomplete multibyte or wide character";
    EMSGSIZE = 90, "Message too long";
    ENOTSUP = 95, "Operation not supported";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ESHUTDOWN = 108, "Cannot send after transport endpoint shutdown";
    ETIMEDOUT = 110, "Connection timed out";
    ECONNREFUSED = 111, "Connection refused";
    EALREADY = 114, "Operation already in progress";
    EINPROGRESS = 115, "Operation now in progress";
    ESTALE = 116, "Stale file handle";
    EDQUOT = 122, "Disk quota exceeded";
    ECANCELED = 125, "Operation canceled";
}

impl Errno {
    /// `-EOPNOTSUPP` of the C headers; the same number as `ENOTSUP` on Linux.
    pub const EOPNOTSUPP: Errno = Errno::ENOTSUP;

    /// The errno for a client on the blocklist in Ceph (`include/rados.h`); the same number as `ESHUTDOWN`.
    pub const EBLOCKLISTED: Errno = Errno::ESHUTDOWN;

    /// Returns the value for replies: the negated number.
    pub fn negated(self) -> i32 {
        -self.0
    }

    /// Interprets a reply's result code: negative values are errors.
    pub fn from_result(code: i32) -> Result<i32, Errno> {
        if code < 0 { Err(Errno(code.checked_neg().unwrap_or(Self::EIO.0))) } else { Ok(code) }
    }
}

impl From<&CrushError> for Errno {
    /// The errno of Ceph's commands for a refused edit of a CRUSH map.
    fn from(error: &CrushError) -> Errno {
        match error {
            CrushError::NotFound(_) => Errno::ENOENT,
            CrushError::Exists(_) => Errno::EEXIST,
            CrushError::InUse(_) => Errno::EBUSY,
            CrushError::NotEmpty(_) => Errno::ENOTEMPTY,
            CrushError::Invalid(_) => Errno::EINVAL,
            CrushError::Loop(_) => Errno::ELOOP,
            CrushError::OutOfRange(_) => Errno::ERANGE,
        }
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::fmt::Display for Errno {
    /// Formats as Ceph does: `(2) No such file or directory`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}) {}", self.0, self.text())
    }
}

impl std::error::Error for Errno {}
