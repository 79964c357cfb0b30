//! Options that Ceph has and Nacre does not need: their names and defaults, for programs that read them.
//!
//! `config get` and `rados_conf_get` return Ceph's default. Clients may set them on their own handle, without effect. In the
//! monitors' configuration they are refused by name unless forced; in files they are ignored.

use super::{find, normalize_name};

/// Name, type, default and the default of daemons, separated by tabs.
const RECORDED: &str = include_str!("ceph-options.tsv");

/// An option of Ceph 16.2 that is not in the option table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CephOnlyOption {
    /// Its name.
    pub name: &'static str,
    /// Ceph's name of its type.
    pub ty: &'static str,
    default: &'static str,
    daemon_default: &'static str,
}

impl CephOnlyOption {
    fn parse(line: &'static str) -> Option<CephOnlyOption> {
        let mut fields = line.split('\t');
        let (name, ty) = (fields.next()?, fields.next()?);
        let (default, daemon_default) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        Some(CephOnlyOption { name, ty, default, daemon_default })
    }

    /// Ceph's default, as its programs print it.
    pub fn default(&self, daemon: bool) -> &'static str {
        if daemon && !self.daemon_default.is_empty() { self.daemon_default } else { self.default }
    }
}

/// All options of Ceph 16.2. They are parsed from the text each time: a table would stay in the memory of every program.
fn recorded() -> impl Iterator<Item = CephOnlyOption> {
    RECORDED.lines().filter(|line| !line.starts_with('#')).filter_map(CephOnlyOption::parse)
}

/// Returns Ceph's option with this name if the option table does not have it.
pub fn ceph_only_option(name: &str) -> Option<CephOnlyOption> {
    let name = normalize_name(name);
    recorded().find(|option| option.name == name).filter(|option| find(option.name).is_none())
}

/// The names of all options of Ceph that the option table does not have, sorted.
pub fn ceph_only_options() -> Vec<&'static str> {
    let names = recorded().map(|option| option.name);
    let mut names: Vec<&str> = names.filter(|name| find(name).is_none()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_ceph_have_its_defaults() {
        let default = |name: &str, daemon| ceph_only_option(name).map(|option| option.default(daemon));
        assert_eq!(default("err_to_stderr", false), Some("false"));
        assert_eq!(default("ms type", false), Some("async+posix"));
        assert_eq!(default("log_max_new", true), Some("1000"));
        assert_eq!(default("objecter_timeout", false), Some("10.000000"));
        assert_eq!(default("err_to_stderr", true), Some("true"));
        assert_eq!(default("osd_pool_default_size", false), None, "in the option table");
        assert_eq!(default("nonesuch", false), None);
        assert!(ceph_only_options().len() > 1000);
    }
}
