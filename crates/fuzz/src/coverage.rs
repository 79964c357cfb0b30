//! Fuzzing guided by coverage: libFuzzer mutates a target's inputs and keeps those that reach new code.
//!
//! `scripts/fuzz` compiles the tests with the counters that libFuzzer reads, and with `cfg(fuzzing)`. Each target then runs
//! for `NACRE_FUZZ_SECONDS` in a process of its own, because libFuzzer ends the process that it runs in. Inputs that reach
//! new code are kept in `NACRE_FUZZ_CORPUS`; the next run starts from them.

#![allow(unsafe_code)]

use crate::Target;
use libfuzzer_sys as _;
use std::cell::Cell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{fs, ptr, slice};

unsafe extern "C" {
    /// libFuzzer's entry (`FuzzerInterface.h`).
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        callback: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// What libfuzzer-sys calls for targets that are programs of their own; targets here pass [`one_input`] to the driver.
#[unsafe(no_mangle)]
#[allow(improper_ctypes_definitions, reason = "the signature is libfuzzer-sys's")]
extern "C" fn rust_fuzzer_test_input(_: &[u8]) -> c_int {
    0
}

type Check<'a> = &'a dyn Fn(&[u8]);

thread_local! {
    /// The check of the target that is being fuzzed. libFuzzer calls back on the thread that called it.
    static CHECK: Cell<Option<*const Check<'static>>> = const { Cell::new(None) };
}

extern "C" fn one_input(data: *const u8, length: usize) -> c_int {
    let check = CHECK.get().expect("invariant: set before the driver is called");
    // SAFETY: `run` keeps what it points to alive until the driver returns, and the driver ends the process.
    let check = unsafe { *check };
    // SAFETY: libFuzzer passes a buffer of that length, which is not null unless it is empty.
    let input = if length == 0 { &[] } else { unsafe { slice::from_raw_parts(data, length) } };
    check(input);
    0
}

/// Returns the dictionary in libFuzzer's format.
fn dictionary(words: &[&str]) -> String {
    let mut text = String::new();
    for word in words {
        text.push('"');
        word.bytes().for_each(|byte| write!(text, "\\x{byte:02x}").expect("invariant: texts take any text"));
        text.push_str("\"\n");
    }
    text
}

/// Fuzzes a target for `NACRE_FUZZ_SECONDS`. `check` panics if an input violates a requirement.
///
/// # Panics
///
/// If libFuzzer finds an input that does, or can't run.
pub(crate) fn run(target: &Target<'_>, inputs: &[Vec<u8>], check: Check<'_>) {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let seconds: u64 = variable("NACRE_FUZZ_SECONDS").parse().expect("NACRE_FUZZ_SECONDS is a number");
    let corpus = PathBuf::from(variable("NACRE_FUZZ_CORPUS"));
    let kept = corpus.join(target.name);
    fs::create_dir_all(&kept).unwrap_or_else(|e| panic!("{}: {e}", kept.display()));
    for input in inputs {
        let path = kept.join(format!("seed-{:016x}", crate::mutate::hash(input)));
        fs::write(&path, input).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let mut arguments = vec![
        "nacre-fuzz".to_owned(),
        format!("-max_total_time={seconds}"),
        format!("-max_len={}", crate::LONGEST_INPUT),
        "-rss_limit_mb=4096".to_owned(),
        "-print_final_stats=1".to_owned(),
        format!("-artifact_prefix={}/nacre-fuzz-{}-", std::env::temp_dir().display(), target.name),
    ];
    if !target.dictionary.is_empty() {
        let path = corpus.join(format!("{}.dict", target.name));
        fs::write(&path, dictionary(target.dictionary)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        arguments.push(format!("-dict={}", path.display()));
    }
    arguments.push(kept.display().to_string());
    let arguments: Vec<CString> = arguments
        .into_iter()
        .map(|argument| CString::new(argument).expect("invariant: paths have no NUL"))
        .collect();
    // SAFETY: the child runs only the driver and the check. No other thread of a test process with one test holds a lock:
    // the one that waits for the test's end does nothing else.
    match unsafe { libc::fork() } {
        0 => drive(&arguments, check),
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        child => {
            let mut status = 0;
            // SAFETY: `status` is a place for the result.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert!(
                waited == child && status == 0,
                "{}: libFuzzer ended with status {status:#x}; its output is above",
                target.name
            );
        }
    }
}

/// Runs libFuzzer and ends the process.
fn drive(arguments: &[CString], check: Check<'_>) -> ! {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        // libFuzzer saves the input of a process that aborts.
        std::process::abort();
    }));
    CHECK.set(Some((&raw const check).cast()));
    let mut pointers: Vec<*mut c_char> =
        arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
    let mut count = c_int::try_from(pointers.len()).expect("invariant: a few arguments");
    pointers.push(ptr::null_mut());
    let mut pointer = pointers.as_mut_ptr();
    // SAFETY: both point to `count` arguments that end with NUL, and a null pointer after them, all alive until the process
    // ends.
    let status = unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut pointer, one_input) };
    std::process::exit(status)
}
