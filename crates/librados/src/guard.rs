//! The wrapper of every exported function: converts errors to C return values, and stops panics before they unwind into C.

use nacre_types::errno::Errno;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call fails, as the error number that the caller receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ApiError(pub(crate) Errno);

/// The result of the body of an entry point.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl From<Errno> for ApiError {
    fn from(errno: Errno) -> ApiError {
        ApiError(errno)
    }
}

impl From<nacre_client::Error> for ApiError {
    fn from(error: nacre_client::Error) -> ApiError {
        ApiError(error.errno())
    }
}

impl From<nacre_common::Error> for ApiError {
    fn from(error: nacre_common::Error) -> ApiError {
        ApiError(error.errno())
    }
}

impl ApiError {
    /// The failure as a return value of a C function.
    pub(crate) fn code(self) -> c_int {
        self.0.negated()
    }
}

/// A type that entry points return.
pub(crate) trait ApiReturn {
    /// The value that reports a failure.
    fn from_error(why: ApiError) -> Self;
}

impl ApiReturn for c_int {
    fn from_error(why: ApiError) -> c_int {
        why.code()
    }
}

impl ApiReturn for i64 {
    fn from_error(why: ApiError) -> i64 {
        why.code().into()
    }
}

impl ApiReturn for isize {
    fn from_error(why: ApiError) -> isize {
        why.code() as isize
    }
}

impl ApiReturn for u64 {
    fn from_error(_: ApiError) -> u64 {
        0
    }
}

impl ApiReturn for u32 {
    fn from_error(_: ApiError) -> u32 {
        0
    }
}

impl ApiReturn for () {
    fn from_error(_: ApiError) {}
}

/// Runs the body of the entry point `name`.
pub(crate) fn run_entry_point<T: ApiReturn>(name: &'static str, body: impl FnOnce() -> ApiResult<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            tracing::debug!(function = name, errno = ?failure.0, "call failed");
            T::from_error(failure)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(function = name, panic = text, "internal error; the call fails with EIO");
            T::from_error(ApiError(Errno::EIO))
        }
    }
}

/// Declares exported functions. A body is an [`ApiResult`] of the function's return type.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            $crate::guard::run_entry_point(stringify!($name), move || $body)
        }
    )*};
}
pub(crate) use exports;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_input_output_error() {
        assert_eq!(run_entry_point::<c_int>("test", || panic!("on purpose")), -5);
        assert_eq!(run_entry_point::<i64>("test", || panic!("{}", "on purpose")), -5);
        run_entry_point::<()>("test", || panic!("on purpose"));
    }

    #[test]
    fn failures_are_negated_error_numbers() {
        assert_eq!(run_entry_point::<c_int>("test", || Err(Errno::ENOENT.into())), -2);
        assert_eq!(run_entry_point::<isize>("test", || Err(Errno::ERANGE.into())), -34);
        assert_eq!(run_entry_point::<c_int>("test", || Ok(7)), 7);
    }
}
