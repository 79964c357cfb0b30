//! Compares CRUSH with Ceph: Debian's `crushtool` and `osdmaptool` (package `ceph-base`), `nacre_crush` and this crate
//! process the same maps from a seeded generator. The results must be identical.

#![allow(clippy::unwrap_used)]

#[path = "oracle/balance.rs"]
mod balance;
#[path = "oracle/formats.rs"]
mod formats;
#[path = "oracle/generate.rs"]
mod generate;
#[path = "oracle/mappings.rs"]
mod mappings;
#[path = "oracle/pgs.rs"]
mod pgs;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of maps that the tests generate.
const MAPS: u64 = 100;

/// Runs one of Ceph's tools. If it is missing, the test fails with the package to install.
fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool).args(args).env_remove("CEPH_ARGS").env_remove("CEPH_CONF").output().unwrap_or_else(|error| {
        panic!("can't run {tool} ({error}): these tests compare with the real one, install Debian's ceph-base")
    })
}

/// Like [`run`], but the tool must succeed.
fn run_ok(tool: &str, args: &[&str]) -> Output {
    let output = run(tool, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?} failed with {}: {errors}", output.status);
    output
}

/// Calls `check` with every number below `n`, on as many threads as there are processors.
fn in_parallel(n: u64, check: impl Fn(u64) + Sync) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed) as u64).filter(|i| *i < n)
                {
                    check(number);
                }
            });
        }
    });
}
