//! The configuration database: the values set with `config set`, their sections and masks, and which daemon each applies to.
//!
//! A value's section is `global`, a kind of daemon or one entity; a mask narrows it to a device class or a CRUSH
//! location. As in Ceph 16.2 the most precise mask wins, and among equals the most specific section.

use nacre_types::ids::{EntityKind, EntityName};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// The daemons that a value is for, `osd/class:ssd` for instance. Sorts in the order of `config dump`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigTarget {
    /// 0 for `global`, 1 for a kind of daemon, 2 for an entity.
    pub(crate) rank: u8,
    kind: Option<EntityKind>,
    /// The section's name.
    pub section: String,
    /// The mask.
    pub mask: ConfigMask,
}

/// Narrows a section to some daemons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigMask {
    /// Daemons on devices of this class.
    Class(String),
    /// Daemons below this bucket: CRUSH type and name.
    Location(String, String),
    /// All daemons.
    None,
}

impl fmt::Display for ConfigMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigMask::None => Ok(()),
            ConfigMask::Class(class) => write!(f, "class:{class}"),
            ConfigMask::Location(type_name, name) => write!(f, "{type_name}:{name}"),
        }
    }
}

impl fmt::Display for ConfigTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.section)?;
        if self.mask == ConfigMask::None { Ok(()) } else { write!(f, "/{}", self.mask) }
    }
}

impl ConfigTarget {
    /// Parses `global`, `osd`, `osd.3`, `osd/class:ssd`, `class:ssd`, `osd/host:a`. `None` for anything else.
    pub fn parse(text: &str) -> Option<ConfigTarget> {
        let mut section = None;
        let mut mask = ConfigMask::None;
        for part in text.split('/') {
            match part.split_once(':') {
                Some(("class", class)) if !class.is_empty() => mask = ConfigMask::Class(class.to_owned()),
                Some((type_name, name)) if !type_name.is_empty() && !name.is_empty() => {
                    mask = ConfigMask::Location(type_name.to_owned(), name.to_owned());
                }
                Some(_) => return None,
                None if section.is_none() => section = Some(part),
                None => return None,
            }
        }
        let section = section.unwrap_or("global");
        let (rank, kind) = if section == "global" {
            (0, None)
        } else if let Ok(kind) = section.parse::<EntityKind>() {
            (1, Some(kind))
        } else {
            let entity: EntityName = section.parse().ok()?;
            (2, Some(entity.kind))
        };
        (!section.contains(char::is_whitespace)).then(|| ConfigTarget {
            rank,
            kind,
            section: section.to_owned(),
            mask,
        })
    }

    fn applies_to(&self, subject: &ConfigSubject<'_>) -> bool {
        let in_section = match self.rank {
            0 => true,
            1 => self.kind == Some(subject.entity.kind),
            _ => self.section == subject.entity.to_string() || self.is_prefix_of(subject.entity),
        };
        in_section
            && match &self.mask {
                ConfigMask::None => true,
                ConfigMask::Class(class) => subject.device_class == Some(class.as_str()),
                ConfigMask::Location(type_name, name) => subject.location.get(type_name) == Some(name),
            }
    }

    /// Whether the section covers `entity`: `client.rgw` is a section of `client.rgw.a`.
    fn is_prefix_of(&self, entity: &EntityName) -> bool {
        entity.to_string().strip_prefix(&self.section).is_some_and(|rest| rest.starts_with('.'))
    }
}

/// The daemon whose configuration is requested.
#[derive(Clone, Debug)]
pub struct ConfigSubject<'a> {
    /// The entity.
    pub entity: &'a EntityName,
    /// Its place in CRUSH, for OSDs.
    pub location: BTreeMap<String, String>,
    /// Its device class, for OSDs.
    pub device_class: Option<&'a str>,
}

/// Versions of the configuration that are kept.
const KEPT_VERSIONS: usize = 100;

/// One change of the configuration, for `config log` and `config reset`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigVersion {
    /// The number of the version, from 1.
    pub number: u64,
    /// When it was made, in nanoseconds since 1970.
    pub stamp_ns: u64,
    /// The reason, unless it was a change of one value.
    pub note: String,
    /// The changed values.
    pub changes: Vec<ConfigChange>,
}

/// One changed value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// The section and mask, as [`ConfigTarget`] prints them.
    pub who: String,
    /// The option.
    pub name: String,
    /// The value before.
    pub before: Option<String>,
    /// The value after.
    pub after: Option<String>,
}

/// The values.
#[derive(Clone, Debug, Default)]
pub struct ConfigDb {
    values: BTreeMap<ConfigTarget, BTreeMap<String, String>>,
    /// The newest versions, oldest first.
    history: VecDeque<ConfigVersion>,
}

impl ConfigDb {
    /// Sets a value that was checked. Returns whether something changed.
    pub fn set(&mut self, who: ConfigTarget, name: &str, value: &str) -> bool {
        let old = self.values.entry(who).or_default().insert(name.to_owned(), value.to_owned());
        old.as_deref() != Some(value)
    }

    /// Removes a value. Returns whether it existed.
    pub fn remove(&mut self, who: &ConfigTarget, name: &str) -> bool {
        let Some(values) = self.values.get_mut(who) else { return false };
        let removed = values.remove(name).is_some();
        if values.is_empty() {
            self.values.remove(who);
        }
        removed
    }

    /// The version that results from values to set and to remove; `None` if nothing changes. If an option occurs several times,
    /// the last value counts. Takes effect with [`ConfigDb::apply`].
    pub fn plan(
        &self,
        wanted: Vec<(ConfigTarget, String, Option<String>)>,
        stamp_ns: u64,
        note: &str,
    ) -> Option<ConfigVersion> {
        let wanted: BTreeMap<(ConfigTarget, String), Option<String>> =
            wanted.into_iter().map(|(who, name, after)| ((who, name), after)).collect();
        let changes: Vec<ConfigChange> = wanted
            .into_iter()
            .filter_map(|((who, name), after)| {
                let before = self.values.get(&who).and_then(|values| values.get(&name)).cloned();
                (before != after).then(|| ConfigChange { who: who.to_string(), name, before, after })
            })
            .collect();
        let number = self.history.back().map_or(0, |version| version.number) + 1;
        let version = ConfigVersion { number, stamp_ns, note: note.to_owned(), changes };
        (!version.changes.is_empty()).then_some(version)
    }

    /// Makes a planned version the newest one.
    pub fn apply(&mut self, version: ConfigVersion) {
        for change in &version.changes {
            let Some(who) = ConfigTarget::parse(&change.who) else { continue };
            match &change.after {
                Some(value) => self.set(who, &change.name, value),
                None => self.remove(&who, &change.name),
            };
        }
        self.history.push_back(version);
    }

    /// Versions that are kept, oldest first.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &ConfigVersion> {
        self.history.iter()
    }

    /// Restores stored versions, oldest first.
    pub fn restore_history(&mut self, versions: Vec<ConfigVersion>) {
        self.history = versions.into();
    }

    /// Removes versions beyond [`KEPT_VERSIONS`], and returns their numbers.
    pub(crate) fn trim_history(&mut self) -> Vec<u64> {
        let beyond = self.history.len().saturating_sub(KEPT_VERSIONS);
        self.history.drain(..beyond).map(|version| version.number).collect()
    }

    /// All values, in the order of `config dump`.
    pub fn iter(&self) -> impl Iterator<Item = (&ConfigTarget, &str, &str)> {
        self.values
            .iter()
            .flat_map(|(who, values)| values.iter().map(move |(k, v)| (who, k.as_str(), v.as_str())))
    }

    /// The values that apply to `subject`: by option, the value and the section that it was set for.
    pub fn resolve(&self, subject: &ConfigSubject<'_>) -> BTreeMap<&str, (&str, &ConfigTarget)> {
        let mut found: BTreeMap<&str, (&str, &ConfigTarget)> = BTreeMap::new();
        // Ascending order is from `global` to entities, so a later value wins unless its mask is less precise.
        for (who, name, value) in self.iter().filter(|(who, _, _)| who.applies_to(subject)) {
            let precise = |who: &ConfigTarget| match who.mask {
                ConfigMask::None => 0,
                ConfigMask::Location(..) => 1,
                ConfigMask::Class(_) => 2,
            };
            match found.get(name) {
                Some((_, current)) if precise(current) > precise(who) => {}
                _ => {
                    found.insert(name, (value, who));
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn db_of(values: &[(&str, &str)]) -> ConfigDb {
        let mut db = ConfigDb::default();
        for (who, value) in values {
            db.set(ConfigTarget::parse(who).unwrap(), "x", value);
        }
        db
    }

    fn value_for(db: &ConfigDb, entity: &str, class: Option<&str>) -> Option<String> {
        let entity = entity.parse().unwrap();
        let location = [("host".to_owned(), "h".to_owned())].into();
        let subject = ConfigSubject { entity: &entity, location, device_class: class };
        db.resolve(&subject).get("x").map(|(v, _)| (*v).to_owned())
    }

    #[test]
    fn masks_win_over_sections_and_entities_over_kinds() {
        let db = db_of(&[
            ("global", "1"),
            ("osd", "2"),
            ("osd.0", "3"),
            ("osd/class:ssd", "4"),
            ("osd/host:h", "5"),
        ]);
        assert_eq!(value_for(&db, "mon.a", None).as_deref(), Some("1"));
        assert_eq!(value_for(&db, "osd.1", Some("ssd")).as_deref(), Some("4"));
        assert_eq!(value_for(&db, "osd.0", Some("hdd")).as_deref(), Some("5"));
        let plain = db_of(&[("global", "1"), ("osd", "2"), ("osd.0", "3"), ("client.rgw", "6")]);
        assert_eq!(value_for(&plain, "osd.0", None).as_deref(), Some("3"));
        assert_eq!(value_for(&plain, "client.rgw.a", None).as_deref(), Some("6"));
        assert_eq!(value_for(&plain, "client.rgwx", None).as_deref(), Some("1"));
    }

    #[test]
    fn targets_parse_and_print_alike() {
        for text in ["global", "osd", "osd.3", "osd/class:ssd", "client.admin", "mon/host:a"] {
            assert_eq!(ConfigTarget::parse(text).unwrap().to_string(), text);
        }
        for bad in ["foo", "osd/", "osd/class:", "osd/ssd", "x.y", ""] {
            assert_eq!(ConfigTarget::parse(bad), None, "{bad}");
        }
        assert_eq!(ConfigTarget::parse("class:ssd").unwrap().to_string(), "global/class:ssd");
    }
}
