//! One row of the option table.

use super::kinds::OptionKind;
use crate::error::{Error, Result};
use nacre_types::support_level::SupportLevel;

/// Ceph's option types, as `config help` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionType {
    /// Signed number.
    Int,
    /// Unsigned number.
    Uint,
    /// Number with a fraction.
    Float,
    /// Text, path or choice.
    Str,
    /// `true` or `false`.
    Bool,
    /// Network address.
    Addr,
    /// Universally unique id.
    Uuid,
    /// Bytes, with binary unit suffixes.
    Size,
    /// Seconds, with time unit suffixes.
    Secs,
    /// Milliseconds.
    Millisecs,
}

impl OptionType {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            OptionType::Int => "int",
            OptionType::Uint => "uint",
            OptionType::Float => "float",
            OptionType::Str => "str",
            OptionType::Bool => "bool",
            OptionType::Addr => "addr",
            OptionType::Uuid => "uuid",
            OptionType::Size => "size",
            OptionType::Secs => "secs",
            OptionType::Millisecs => "millisecs",
        }
    }
}

/// The audience of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionLevel {
    /// All operators.
    Basic,
    /// Operators who know the consequences.
    Advanced,
    /// For developers and tests.
    Dev,
}

impl OptionLevel {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            OptionLevel::Basic => "basic",
            OptionLevel::Advanced => "advanced",
            OptionLevel::Dev => "dev",
        }
    }
}

/// A service that reads an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionService {
    /// Every program.
    Common,
    /// The map authority.
    Mon,
    /// Object storage daemons.
    Osd,
    /// Clients of RADOS.
    Rados,
    /// S3 gateways.
    Rgw,
}

impl OptionService {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            OptionService::Common => "common",
            OptionService::Mon => "mon",
            OptionService::Osd => "osd",
            OptionService::Rados => "rados",
            OptionService::Rgw => "rgw",
        }
    }
}

/// When an option may be set, as Ceph's flags of the same names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OptionFlags {
    /// May change while the daemon runs, although its type suggests otherwise.
    pub runtime: bool,
    /// Takes effect only at the next start.
    pub startup: bool,
    /// Takes effect only when a daemon's store is created.
    pub create: bool,
    /// Takes effect only when the cluster is created.
    pub cluster_create: bool,
    /// Can't come from the monitors' configuration database, because it is needed to reach them.
    pub no_mon_update: bool,
}

/// A row of the option table, built in constants by [`OptionSpec::new`] and the modifiers.
#[derive(Debug)]
pub struct OptionSpec {
    /// Ceph's name, with underscores.
    pub name: &'static str,
    /// The type.
    pub ty: OptionType,
    /// Its audience.
    pub level: OptionLevel,
    /// The compiled default's text.
    pub default: &'static str,
    /// The default for daemons, if it differs.
    pub daemon_default: Option<&'static str>,
    /// The minimum value.
    pub min: Option<&'static str>,
    /// The maximum value.
    pub max: Option<&'static str>,
    /// The permitted values of a choice.
    pub choices: &'static [&'static str],
    /// When it may be set.
    pub flags: OptionFlags,
    /// The services that read it.
    pub services: &'static [OptionService],
    /// A description in one line.
    pub desc: &'static str,
    /// The detailed description.
    pub long_desc: &'static str,
    /// Related options.
    pub see_also: &'static [&'static str],
    /// Whether its value must not be shown.
    pub secret: bool,
    /// Whether Nacre has it and Ceph does not.
    pub nacre_only: bool,
    /// How far its effect is that of Ceph's option.
    pub support: SupportLevel,
    canonical: fn(&OptionSpec, &str) -> Result<String>,
}

fn canonical_of<K: OptionKind>(spec: &OptionSpec, text: &str) -> Result<String> {
    Ok(K::show(&spec.parse::<K>(text)?))
}

impl OptionSpec {
    /// Creates a row of level `advanced` that every program reads.
    pub const fn new<K: OptionKind>(
        name: &'static str,
        default: &'static str,
        desc: &'static str,
    ) -> OptionSpec {
        OptionSpec {
            name,
            ty: K::TYPE,
            level: OptionLevel::Advanced,
            default,
            daemon_default: None,
            min: None,
            max: None,
            choices: K::CHOICES,
            flags: OptionFlags {
                runtime: false,
                startup: false,
                create: false,
                cluster_create: false,
                no_mon_update: false,
            },
            services: &[OptionService::Common],
            desc,
            long_desc: "",
            see_also: &[],
            nacre_only: false,
            secret: K::SECRET,
            support: SupportLevel::Full,
            canonical: canonical_of::<K>,
        }
    }

    /// Sets the level `basic`.
    pub const fn basic(mut self) -> Self {
        self.level = OptionLevel::Basic;
        self
    }

    /// Sets the level `dev`.
    pub const fn dev(mut self) -> Self {
        self.level = OptionLevel::Dev;
        self
    }

    /// Sets the minimum value.
    pub const fn min(mut self, least: &'static str) -> Self {
        self.min = Some(least);
        self
    }

    /// Sets the minimum and the maximum value.
    pub const fn range(mut self, least: &'static str, greatest: &'static str) -> Self {
        self.min = Some(least);
        self.max = Some(greatest);
        self
    }

    /// Sets the default for daemons.
    pub const fn daemon_default(mut self, default: &'static str) -> Self {
        self.daemon_default = Some(default);
        self
    }

    /// Sets the services that read it.
    pub const fn services(mut self, services: &'static [OptionService]) -> Self {
        self.services = services;
        self
    }

    /// Marks an option that may change while the daemon runs.
    pub const fn runtime(mut self) -> Self {
        self.flags.runtime = true;
        self
    }

    /// Marks an option that takes effect at the next start.
    pub const fn startup(mut self) -> Self {
        self.flags.startup = true;
        self
    }

    /// Marks an option that takes effect when a store is created.
    pub const fn create(mut self) -> Self {
        self.flags.create = true;
        self
    }

    /// Marks an option that takes effect when the cluster is created.
    pub const fn cluster_create(mut self) -> Self {
        self.flags.cluster_create = true;
        self
    }

    /// Marks an option that can't come from the monitors.
    pub const fn no_mon_update(mut self) -> Self {
        self.flags.no_mon_update = true;
        self
    }

    /// Sets the detailed description.
    pub const fn long(mut self, text: &'static str) -> Self {
        self.long_desc = text;
        self
    }

    /// Sets related options.
    pub const fn see(mut self, names: &'static [&'static str]) -> Self {
        self.see_also = names;
        self
    }

    /// Marks an option that has only a part of its effect in Ceph; `missing` describes the rest.
    pub const fn partial(mut self, missing: &'static str) -> Self {
        self.support = SupportLevel::Partial(missing);
        self
    }

    /// Marks an option that is accepted and has no effect; `why` gives the reason.
    pub const fn advisory(mut self, why: &'static str) -> Self {
        self.support = SupportLevel::Advisory(why);
        self
    }

    /// Marks an option that Ceph does not have.
    pub const fn nacre_only(mut self) -> Self {
        self.nacre_only = true;
        self
    }

    /// Whether a change reaches a running daemon. Ceph's rule: numbers and switches do unless marked, texts do not.
    pub fn can_update_at_runtime(&self) -> bool {
        let by_type = !matches!(self.ty, OptionType::Str | OptionType::Addr | OptionType::Uuid);
        (self.flags.runtime || by_type)
            && !(self.flags.startup || self.flags.create || self.flags.cluster_create)
    }

    /// Parses a text and checks its range.
    pub(crate) fn parse<K: OptionKind>(&self, text: &str) -> Result<K::Value> {
        let bad = |reason| Error::bad_value(self.name, reason);
        let value = K::read(text).map_err(bad)?;
        let bound = |text: &'static str| {
            K::read(text).expect("invariant: a test parses every default and bound of the table")
        };
        if let Some(min) = self.min
            && K::below(&value, &bound(min))
        {
            return Err(bad(format!("Value '{text}' is below minimum {min}")));
        }
        if let Some(max) = self.max
            && K::below(&bound(max), &value)
        {
            return Err(bad(format!("Value '{text}' exceeds maximum {max}")));
        }
        Ok(value)
    }

    /// Checks `text` and returns it in canonical spelling.
    pub fn canonical(&self, text: &str) -> Result<String> {
        // Values that refer to other options can be checked only when those are known.
        if text.contains('$') {
            return Ok(text.to_owned());
        }
        (self.canonical)(self, text)
    }
}
