//! The wrapper of every exported function: converts errors to C return values, and stops panics before they unwind into C.

use nacre_types::errno::Errno;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call fails, as the error number that the caller receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) Errno);

/// The result of the body of an entry point.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure(errno)
    }
}

impl From<nacre_client::Error> for Failure {
    fn from(error: nacre_client::Error) -> Failure {
        Failure(error.errno())
    }
}

impl From<nacre_common::Error> for Failure {
    fn from(error: nacre_common::Error) -> Failure {
        Failure(error.errno())
    }
}

impl Failure {
    /// The failure as a return value of a C function.
    pub(crate) fn code(self) -> c_int {
        self.0.negated()
    }
}

/// A type that entry points return.
pub(crate) trait Returned {
    /// The value that reports a failure.
    fn failed(why: Failure) -> Self;
}

impl Returned for c_int {
    fn failed(why: Failure) -> c_int {
        why.code()
    }
}

impl Returned for i64 {
    fn failed(why: Failure) -> i64 {
        why.code().into()
    }
}

impl Returned for isize {
    fn failed(why: Failure) -> isize {
        why.code() as isize
    }
}

impl Returned for u64 {
    fn failed(_: Failure) -> u64 {
        0
    }
}

impl Returned for u32 {
    fn failed(_: Failure) -> u32 {
        0
    }
}

impl Returned for () {
    fn failed(_: Failure) {}
}

/// Runs the body of the entry point `name`.
pub(crate) fn call<T: Returned>(name: &'static str, body: impl FnOnce() -> Outcome<T>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            tracing::debug!(function = name, errno = ?failure.0, "call failed");
            T::failed(failure)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(function = name, panic = text, "internal error; the call fails with EIO");
            T::failed(Failure(Errno::EIO))
        }
    }
}

/// Declares exported functions. A body is an [`Outcome`] of the function's return type.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            $crate::guard::call(stringify!($name), move || $body)
        }
    )*};
}
pub(crate) use exports;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_input_output_error() {
        assert_eq!(call::<c_int>("test", || panic!("on purpose")), -5);
        assert_eq!(call::<i64>("test", || panic!("{}", "on purpose")), -5);
        call::<()>("test", || panic!("on purpose"));
    }

    #[test]
    fn failures_are_negated_error_numbers() {
        assert_eq!(call::<c_int>("test", || Err(Errno::ENOENT.into())), -2);
        assert_eq!(call::<isize>("test", || Err(Errno::ERANGE.into())), -34);
        assert_eq!(call::<c_int>("test", || Ok(7)), 7);
    }
}
