//! The table of options: name, type, default, range, when it may change, which services read it, and its documentation.
//!
//! Each row is written once, in one file per service group, and generates everything else: the typed field that code reads,
//! parsing, the checks of `config set`, `config help` in Ceph's JSON and text, and the reference page. Names, types and
//! defaults are Ceph's if Ceph has the option; rows that only Nacre has are marked `nacre_only()`.
//!
//! This module is independent of files, sections and the sources of values; these are in [`crate::config`].

mod bluestore;
mod ceph;
mod client;
mod debug;
mod filestore;
mod global;
mod help;
pub mod kinds;
mod memstore;
mod mon;
mod ms;
mod osd;
mod rgw;
mod spec;

pub use bluestore::BluestoreOptions;
pub use ceph::{CephOnlyOption, ceph_only_option, ceph_only_options};
pub use client::ClientOptions;
pub use debug::DebugOptions;
pub use filestore::FilestoreOptions;
pub use global::GlobalOptions;
pub use help::{names, reference_markdown};
pub use kinds::{
    AddrList, AuthMethod, AutoscaleMode, ChecksumType, CompressionAlgorithm, CompressionMode, DebugLevel,
    HitSetType, HostPort, LogLevel, ObjectStoreKind, PromoteAdmission, TierMode,
};
pub use memstore::MemstoreOptions;
pub use mon::MonOptions;
pub use ms::MsOptions;
pub use osd::OsdOptions;
pub use rgw::RgwOptions;
pub use spec::{OptionFlags, OptionLevel, OptionService, OptionSpec, OptionType};

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Every option's value, typed; one field per service group.
#[derive(Debug, Clone)]
pub struct Options {
    /// Options of every program: cluster identity, paths, keys, logs, authentication.
    pub global: GlobalOptions,
    /// Log levels of the subsystems.
    pub debug: DebugOptions,
    /// The messenger.
    pub ms: MsOptions,
    /// The map authority, and pool defaults that it applies.
    pub mon: MonOptions,
    /// Object storage daemons.
    pub osd: OsdOptions,
    /// BlueStore.
    pub bluestore: BluestoreOptions,
    /// MemStore.
    pub memstore: MemstoreOptions,
    /// FileStore.
    pub filestore: FilestoreOptions,
    /// Clients: librados, the objecter.
    pub client: ClientOptions,
    /// The S3 gateway.
    pub rgw: RgwOptions,
}

const GROUPS: [&[OptionSpec]; 10] = [
    global::TABLE,
    debug::TABLE,
    ms::TABLE,
    mon::TABLE,
    osd::TABLE,
    bluestore::TABLE,
    memstore::TABLE,
    filestore::TABLE,
    client::TABLE,
    rgw::TABLE,
];

impl Options {
    /// Builds the typed values from the texts that `text` returns for each option. Fails with the first value that does not
    /// parse.
    pub(crate) fn from_text(text: &dyn Fn(&'static OptionSpec) -> Result<String>) -> Result<Options> {
        Ok(Options {
            global: GlobalOptions::from_text(text)?,
            debug: DebugOptions::from_text(text)?,
            ms: MsOptions::from_text(text)?,
            mon: MonOptions::from_text(text)?,
            osd: OsdOptions::from_text(text)?,
            bluestore: BluestoreOptions::from_text(text)?,
            memstore: MemstoreOptions::from_text(text)?,
            filestore: FilestoreOptions::from_text(text)?,
            client: ClientOptions::from_text(text)?,
            rgw: RgwOptions::from_text(text)?,
        })
    }
}

static BY_NAME: LazyLock<HashMap<&'static str, &'static OptionSpec>> =
    LazyLock::new(|| all().map(|spec| (spec.name, spec)).collect());

/// All rows, group by group.
pub fn all() -> impl Iterator<Item = &'static OptionSpec> {
    GROUPS.iter().flat_map(|group| group.iter())
}

/// Returns the row of `name`. Spaces, dashes and underscores are equivalent: `osd objectstore` is `osd_objectstore`.
pub fn find(name: &str) -> Option<&'static OptionSpec> {
    BY_NAME.get(normalize_name(name).as_str()).copied()
}

/// Like [`find`], with Ceph's error for an unknown name.
pub fn get(name: &str) -> Result<&'static OptionSpec> {
    find(name).ok_or_else(|| Error::UnknownOption(name.to_owned()))
}

/// Checks `value` for the option `name` and returns it in canonical spelling, as `config set` stores it.
pub fn validate(name: &str, value: &str) -> Result<String> {
    get(name)?.canonical(value)
}

/// Returns `value` as it may be shown: dots for a secret option.
pub fn redacted<'a>(name: &str, value: &'a str) -> &'a str {
    if find(name).is_some_and(|spec| spec.secret) && !value.is_empty() { "…" } else { value }
}

/// Replaces runs of spaces and dashes in `name` by one underscore.
pub fn normalize_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.trim().chars() {
        match c {
            ' ' | '\t' | '-' | '_' => {
                if !out.ends_with('_') {
                    out.push('_');
                }
            }
            other => out.push(other),
        }
    }
    out
}

/// Declares one group: a struct with a typed field per option, and the group's `TABLE` of specifications.
///
/// `name: Kind = "default", "one line" [modifiers];` with methods of [`OptionSpec`] as modifiers.
macro_rules! option_group {
    ($(#[$doc:meta])* $group:ident: $($name:ident: $kind:ty = $default:expr, $desc:literal
        [$($modifier:ident($($arg:expr),*)),* $(,)?];)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $group {
            $(#[doc = concat!($desc, ".")] pub $name: <$kind as $crate::options::kinds::OptionKind>::Value,)*
        }

        pub(super) const TABLE: &[$crate::options::OptionSpec] = &[
            $($crate::options::OptionSpec::new::<$kind>(stringify!($name), $default, $desc)
                $(.$modifier($($arg),*))*,)*
        ];

        impl $group {
            pub(super) fn from_text(
                text: &dyn Fn(&'static $crate::options::OptionSpec) -> $crate::error::Result<String>,
            ) -> $crate::error::Result<Self> {
                let mut rows = TABLE.iter();
                $(let $name = {
                    let spec = rows.next().expect("invariant: the table has a row per field");
                    spec.parse::<$kind>(&text(spec)?)?
                };)*
                Ok(Self { $($name),* })
            }
        }
    };
}
use option_group;

#[cfg(test)]
mod tests;
