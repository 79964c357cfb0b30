//! The kinds of values that options can have: how each is parsed, printed and compared.

use super::spec::OptionType;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;
use uuid::Uuid;
use zeroize::Zeroizing;

/// A kind of value: Ceph's type for users, a Rust type for code.
pub trait OptionKind {
    /// The type that code reads.
    type Value: Clone + fmt::Debug + PartialEq + Send + Sync;
    /// The type that `config help` shows.
    const TYPE: OptionType;
    /// The permitted values of a choice; empty for other kinds.
    const CHOICES: &'static [&'static str] = &[];
    /// Whether values must not be shown.
    const SECRET: bool = false;

    /// Parses a text. The error describes what was expected, in Ceph's words.
    fn read(text: &str) -> Result<Self::Value, String>;
    /// Returns the canonical text.
    fn show(value: &Self::Value) -> String;
    /// Whether `a` is below `b`. Kinds without an order have no ranges.
    fn below(_a: &Self::Value, _b: &Self::Value) -> bool {
        false
    }
}

fn integer<T: TryFrom<i128>>(text: &str) -> Result<T, String> {
    let (digits, factor) = binary_suffix(text.trim());
    let number = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => digits.parse::<i128>(),
    }
    .map_err(|_| format!("Expected option value to be integer, got '{text}'"))?;
    number
        .checked_mul(factor)
        .and_then(|n| T::try_from(n).ok())
        .ok_or_else(|| format!("The option value '{text}' is out of range"))
}

/// Splits off Ceph's binary suffixes: `K` or `Ki`, optionally with `B`, up to `E`. Decimal ones are not supported.
fn binary_suffix(text: &str) -> (&str, i128) {
    let bare = text.strip_suffix("iB").or_else(|| text.strip_suffix('i')).unwrap_or(text);
    let bare = if bare.len() == text.len() { text.strip_suffix('B').unwrap_or(text) } else { bare };
    for (suffix, shift) in [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50), ("E", 60)] {
        if let Some(digits) = bare.strip_suffix(suffix) {
            return (digits.trim_end(), 1 << shift);
        }
    }
    (bare, 1)
}

fn float(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("strict_strtod: expected double, got: '{text}'")),
    }
}

fn seconds(number: f64, text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number).map_err(|_| format!("The option value '{text}' is out of range"))
}

macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, $value:ty, $ty:ident, $read:expr, $show:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}
        impl OptionKind for $name {
            type Value = $value;
            const TYPE: OptionType = OptionType::$ty;
            fn read(text: &str) -> Result<$value, String> { ($read)(text) }
            fn show(value: &$value) -> String { ($show)(value) }
            fn below(a: &$value, b: &$value) -> bool { a < b }
        }
    };
}

kind! {
    /// A signed number.
    Int, i64, Int, integer::<i64>, i64::to_string
}
kind! {
    /// An unsigned number.
    Uint, u64, Uint, integer::<u64>, u64::to_string
}
kind! {
    /// A number with a fraction.
    Float, f64, Float, float, |v: &f64| format!("{v:.6}")
}
kind! {
    /// Bytes, with optional binary suffixes (`64K`, `4Mi`, `1GiB`).
    Size, u64, Size, integer::<u64>, u64::to_string
}
kind! {
    /// Whole seconds, typed `int` in Ceph.
    IntSecs, Duration, Int,
    |text: &str| integer::<u32>(text).map(|n| Duration::from_secs(u64::from(n))),
    |v: &Duration| v.as_secs().to_string()
}
kind! {
    /// Seconds with a fraction, typed `float` in Ceph.
    FloatSecs, Duration, Float,
    |text: &str| float(text).and_then(|n| seconds(n, text)),
    |v: &Duration| format!("{:.6}", v.as_secs_f64())
}
kind! {
    /// Seconds, with optional suffixes `s`, `m`, `h`, `d`, `w`.
    Secs, Duration, Secs, read_secs, |v: &Duration| v.as_secs().to_string()
}
kind! {
    /// Milliseconds.
    Millisecs, Duration, Millisecs,
    |text: &str| integer::<u32>(text).map(|n| Duration::from_millis(u64::from(n))),
    |v: &Duration| v.as_millis().to_string()
}
kind! {
    /// Text; empty for none.
    Str, String, Str, |text: &str| Ok::<_, String>(text.to_owned()), String::clone
}
kind! {
    /// `true` or `false`; also yes, no, on, off, 1, 0.
    Bool, bool, Bool, read_bool, bool::to_string
}
kind! {
    /// A cluster's or disk's id; all zeros mean none.
    UuidKind, Option<Uuid>, Uuid, read_uuid, |v: &Option<Uuid>| v.unwrap_or_default().to_string()
}
kind! {
    /// An address with an optional port; `-` or empty means none. A missing port is 0.
    Addr, Option<SocketAddr>, Addr, read_addr, show_addr
}
kind! {
    /// Monitor addresses in the format of `mon_host`.
    AddrListKind, AddrList, Str, AddrList::parse, AddrList::to_string
}
kind! {
    /// `N` or `N/M`, each 0 to 99.
    Debug, DebugLevel, Str, DebugLevel::parse, DebugLevel::to_string
}

/// Text that is never shown: `Debug` prints dots, and its memory is wiped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A secret text; empty for none.
#[derive(Debug)]
pub enum Secret {}

impl OptionKind for Secret {
    type Value = SecretText;
    const TYPE: OptionType = OptionType::Str;
    const SECRET: bool = true;

    fn read(text: &str) -> Result<SecretText, String> {
        Ok(SecretText(Zeroizing::new(text.to_owned())))
    }

    fn show(value: &SecretText) -> String {
        value.0.to_string()
    }
}

fn read_bool(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        other => integer::<i64>(other).map(|n| n != 0),
    }
}

fn read_secs(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match trimmed[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "wk" | "week" | "weeks" => 604_800,
        _ => return Err(format!("invalid timespan '{text}'")),
    };
    integer::<u32>(digits.trim_end()).map(|n| Duration::from_secs(u64::from(n) * factor))
}

fn read_uuid(text: &str) -> Result<Option<Uuid>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let uuid = Uuid::parse_str(text).map_err(|_| format!("failed to parse: '{text}' as uuid"))?;
    Ok((!uuid.is_nil()).then_some(uuid))
}

fn read_addr(text: &str) -> Result<Option<SocketAddr>, String> {
    let text = text.trim();
    if text.is_empty() || text == "-" {
        return Ok(None);
    }
    let address = text.strip_prefix("v2:").unwrap_or(text);
    let address = address.split_once('/').map_or(address, |(address, _nonce)| address);
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(Some(SocketAddr::new(ip, 0)));
    }
    address.parse().map(Some).map_err(|_| format!("could not parse address '{text}'"))
}

fn show_addr(value: &Option<SocketAddr>) -> String {
    match value {
        None => "-".to_owned(),
        Some(addr) if addr.port() == 0 => addr.ip().to_string(),
        Some(addr) => addr.to_string(),
    }
}

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Addresses of monitors.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddrList(pub Vec<HostPort>);

/// The default port of monitors in `mon_host`: that of Ceph's second protocol.
pub const MON_PORT: u16 = 3300;

impl AddrList {
    /// Parses Ceph's forms: addresses or names separated by commas, semicolons or blanks, each with an optional port. Of a
    /// bracketed vector `[v2:…,v1:…]` only the `v2` address counts.
    pub fn parse(text: &str) -> Result<AddrList, String> {
        let bad = || format!("could not parse monitor addresses '{text}'");
        let mut list = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let vector = rest.strip_prefix('[').filter(|r| r.starts_with("v1:") || r.starts_with("v2:"));
            let entry;
            (entry, rest) = match vector {
                Some(inside) => {
                    let (inside, after) = split_vector(inside).ok_or_else(bad)?;
                    let chosen = inside.split(',').map(str::trim).find_map(|a| a.strip_prefix("v2:"));
                    (chosen, after)
                }
                None => {
                    let end = rest.find([',', ';', ' ', '\t']).unwrap_or(rest.len());
                    let one = &rest[..end];
                    let one = if one.starts_with("v1:") {
                        None
                    } else {
                        Some(one.strip_prefix("v2:").unwrap_or(one))
                    };
                    (one, &rest[end..])
                }
            };
            if let Some(entry) = entry {
                list.push(host_port(entry).ok_or_else(bad)?);
            }
            rest = rest.trim_start_matches([',', ';', ' ', '\t']);
        }
        if list.is_empty() && !text.trim().is_empty() {
            return Err(bad());
        }
        Ok(AddrList(list))
    }

    /// Resolves names and returns all addresses. Blocks on the resolver if there are names.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let mut out = Vec::new();
        for HostPort { host, port } in &self.0 {
            out.extend((host.as_str(), *port).to_socket_addrs()?);
        }
        Ok(out)
    }
}

/// Splits a vector after its closing bracket. IPv6 addresses inside have their own brackets.
fn split_vector(inside: &str) -> Option<(&str, &str)> {
    let mut depth = 1;
    for (at, c) in inside.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&inside[..at], &inside[at + 1..]));
        }
    }
    None
}

fn host_port(entry: &str) -> Option<HostPort> {
    let entry = entry.split_once('/').map_or(entry, |(address, _nonce)| address);
    if let Some(v6) = entry.strip_prefix('[') {
        let (host, after) = v6.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        let port = if after.is_empty() { MON_PORT } else { after.strip_prefix(':')?.parse().ok()? };
        return Some(HostPort { host: host.to_owned(), port });
    }
    if entry.parse::<std::net::Ipv6Addr>().is_ok() {
        return Some(HostPort { host: entry.to_owned(), port: MON_PORT });
    }
    let (host, port) = match entry.split_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (entry, MON_PORT),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!host.is_empty() && host.chars().all(plain)).then(|| HostPort { host: host.to_owned(), port })
}

impl fmt::Display for AddrList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{entry}")?;
        }
        Ok(())
    }
}

/// A subsystem's log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DebugLevel {
    /// The level of lines that are written.
    pub log: u8,
    /// The level that Ceph keeps in memory for a crash dump. It is parsed for compatibility and has no effect.
    pub gather: u8,
}

impl DebugLevel {
    fn parse(text: &str) -> Result<DebugLevel, String> {
        let number = |part: &str| part.trim().parse::<u8>().ok().filter(|n| *n <= 99);
        let parsed = match text.split_once('/') {
            Some((log, gather)) => number(log).zip(number(gather)),
            None => number(text).map(|n| (n, n)),
        };
        let (log, gather) = parsed.ok_or("value must take the form N or N/M, where N and M are integers")?;
        Ok(DebugLevel { log, gather })
    }
}

impl fmt::Display for DebugLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.log, self.gather)
    }
}

/// Declares a choice: an enum with Ceph's spelling of the values, which are parsed in any case.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// Ceph's spelling.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.as_str()) }
        }

        impl OptionKind for $name {
            type Value = $name;
            const TYPE: OptionType = OptionType::Str;
            const CHOICES: &'static [&'static str] = &[$($text),*];
            fn read(text: &str) -> Result<$name, String> {
                $(if text.trim().eq_ignore_ascii_case($text) { return Ok($name::$variant); })*
                Err(format!("'{text}' is not one of the permitted values: {}", Self::CHOICES.join(", ")))
            }
            fn show(value: &$name) -> String { value.as_str().to_owned() }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> { Self::read(text) }
        }
    };
}

choice! {
    /// The kind of an OSD's object store.
    ObjectStoreKind {
        /// Raw blocks and RocksDB.
        Bluestore = "bluestore",
        /// Memory, lost in a crash.
        Memstore = "memstore",
        /// Plain files.
        Filestore = "filestore",
    }
}
choice! {
    /// How a cache tier handles reads and writes: those of Ceph's modes that can be set.
    TierMode {
        /// Not a cache.
        None = "none",
        /// Writes go to the cache and are flushed later.
        Writeback = "writeback",
        /// Reads are cached, writes go to the base pool.
        Readonly = "readonly",
        /// Writes are cached, reads go to the base pool.
        Readproxy = "readproxy",
        /// Everything goes to the base pool.
        Proxy = "proxy",
    }
}
choice! {
    /// How accesses to a cache pool are recorded.
    HitSetType {
        /// In a bloom filter.
        Bloom = "bloom",
        /// By the objects' hashes.
        ExplicitHash = "explicit_hash",
        /// By the objects' names.
        ExplicitObject = "explicit_object",
    }
}
choice! {
    /// The rule that promotes objects in addition to proxying a request.
    PromoteAdmission {
        /// It is in the newest hit sets, as many as the pool's variables require.
        Recency = "recency",
        /// It was accessed more often than the objects being evicted.
        Frequency = "frequency",
    }
}
choice! {
    /// The checksums of data.
    ChecksumType {
        /// None: damage of the device is not detected. Only for pools whose users check their data themselves.
        None = "none",
        /// 32 bits, Castagnoli's polynomial.
        Crc32c = "crc32c",
        /// The lower 16 bits of it.
        Crc32c16 = "crc32c_16",
        /// The lower 8 bits of it.
        Crc32c8 = "crc32c_8",
        /// 32 bits.
        Xxhash32 = "xxhash32",
        /// 64 bits.
        Xxhash64 = "xxhash64",
    }
}
choice! {
    /// When data is compressed.
    CompressionMode {
        /// Never.
        None = "none",
        /// If clients hint that data is compressible.
        Passive = "passive",
        /// Unless clients hint that data is not compressible.
        Aggressive = "aggressive",
        /// Always.
        Force = "force",
    }
}
choice! {
    /// The compression algorithm.
    CompressionAlgorithm {
        /// Snappy, in its raw format.
        Snappy = "snappy",
        /// LZ4, in its block format.
        Lz4 = "lz4",
        /// Zstandard, level 1.
        Zstd = "zstd",
    }
}
choice! {
    /// How the autoscaler handles a pool's number of PGs.
    AutoscaleMode {
        /// Not at all.
        Off = "off",
        /// Health warns if another number would be better.
        Warn = "warn",
        /// It is adjusted.
        On = "on",
    }
}
choice! {
    /// How peers authenticate. Nacre has no unauthenticated mode.
    AuthMethod {
        /// By shared secrets from keyrings.
        Cephx = "cephx",
    }
}
choice! {
    /// The least severe lines that are logged, for all subsystems.
    LogLevel {
        /// An operator must act.
        Error = "error",
        /// Degraded.
        Warn = "warn",
        /// State changes.
        Info = "info",
        /// Each operation.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

/// The protection of a connection's messages once both sides have authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnMode {
    /// Checksums.
    Crc,
    /// Encryption and authentication of every byte.
    Secure,
}

/// Connection modes in order of preference.
#[derive(Debug)]
pub enum ConnModes {}

impl OptionKind for ConnModes {
    type Value = Vec<ConnMode>;
    const TYPE: OptionType = OptionType::Str;

    fn read(text: &str) -> Result<Vec<ConnMode>, String> {
        let mut modes = Vec::new();
        for word in text.split([' ', ',', ';', '\t']).filter(|w| !w.is_empty()) {
            let mode = match word.to_ascii_lowercase().as_str() {
                "crc" => ConnMode::Crc,
                "secure" => ConnMode::Secure,
                _ => return Err(format!("'{word}' is not one of the permitted values: crc, secure")),
            };
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        if modes.is_empty() { Err("at least one of crc and secure is needed".to_owned()) } else { Ok(modes) }
    }

    fn show(value: &Vec<ConnMode>) -> String {
        let words: Vec<&str> =
            value.iter().map(|m| if *m == ConnMode::Crc { "crc" } else { "secure" }).collect();
        words.join(" ")
    }
}
