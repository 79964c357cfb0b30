//! Functions that exist in two versions in Ceph's library: one for programs linked before Ceph 14.2, one for later ones.
//!
//! Rust can't name a symbol's version, so each version is a jump to a function here. Later programs request
//! `NAME@LIBRADOS_14.2.0`; earlier ones request `NAME` without a version, which resolves to `LIBRADOS_BASE`.

use crate::abi::{Handle, OutPtr, PoolStat, PoolStatBase};
use crate::guard::run_entry_point;
use crate::ioctx::pool_stat;
use crate::unsupported::not_supported;
use std::ffi::c_int;

/// Statistics of the context's pool.
extern "C" fn ioctx_pool_stat(io: Handle, stats: OutPtr<PoolStat>) -> c_int {
    run_entry_point("rados_ioctx_pool_stat", || {
        stats.required()?.set(pool_stat(io)?);
        Ok(0)
    })
}

/// The same with the fields that existed before Ceph 14.2.
extern "C" fn ioctx_pool_stat_base(io: Handle, stats: OutPtr<PoolStatBase>) -> c_int {
    run_entry_point("rados_ioctx_pool_stat", || {
        stats.required()?.set(pool_stat(io)?.base);
        Ok(0)
    })
}

/// Ceph itself removed trivial maps long ago. Only their names remain.
extern "C" fn tmap() -> c_int {
    run_entry_point("rados_tmap", || Err(not_supported("trivial maps (rados_tmap_*)")))
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

macro_rules! versions {
    ($name:literal, $base:path, $since:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"axR\",@progbits"),
            concat!(".globl nacre_base_", $name),
            concat!(".type nacre_base_", $name, ",@function"),
            concat!("nacre_base_", $name, ":"),
            concat!(jump!(), " {base}"),
            concat!(".size nacre_base_", $name, ", . - nacre_base_", $name),
            concat!(".globl nacre_since_", $name),
            concat!(".type nacre_since_", $name, ",@function"),
            concat!("nacre_since_", $name, ":"),
            concat!(jump!(), " {since}"),
            concat!(".size nacre_since_", $name, ", . - nacre_since_", $name),
            concat!(".symver nacre_base_", $name, ", ", $name, "@LIBRADOS_BASE"),
            concat!(".symver nacre_since_", $name, ", ", $name, "@@@LIBRADOS_14.2.0"),
            ".popsection",
            base = sym $base,
            since = sym $since,
        );
    };
}

versions!("rados_ioctx_pool_stat", ioctx_pool_stat_base, ioctx_pool_stat);
versions!("rados_tmap_get", tmap, tmap);
versions!("rados_tmap_put", tmap, tmap);
versions!("rados_tmap_update", tmap, tmap);
