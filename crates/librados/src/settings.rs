//! A cluster handle's configuration before it connects.
//!
//! Values set by calls take precedence over the command line, that over the environment, and that over the file, in whatever
//! order they were given. Reads only the sources that the caller names.

use crate::guard::ApiResult;
use nacre_common::Config;
use nacre_common::config::{ConfFile, ConfigBuilder, ProgramKind, parse_argv, search_conf, split_args};
use nacre_common::options;
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use std::collections::BTreeMap;
use std::path::Path;

/// The sources of a configuration.
#[derive(Clone)]
pub(crate) struct ClientSettings {
    entity: EntityName,
    cluster: String,
    file: Option<ConfFile>,
    env: Vec<(String, String)>,
    cmdline: Vec<(String, String)>,
    calls: Vec<(String, String)>,
    ignored_options: BTreeMap<&'static str, String>,
}

impl ClientSettings {
    /// Empty settings, except for the environment's `CEPH_KEYRING`.
    pub(crate) fn new(entity: EntityName, cluster: &str) -> ClientSettings {
        let keyring = std::env::var("CEPH_KEYRING").ok().filter(|path| !path.is_empty());
        ClientSettings {
            entity,
            cluster: if cluster.is_empty() { "ceph".to_owned() } else { cluster.to_owned() },
            file: None,
            env: keyring.map(|path| ("keyring".to_owned(), path)).into_iter().collect(),
            cmdline: Vec::new(),
            calls: Vec::new(),
            ignored_options: BTreeMap::new(),
        }
    }

    /// The configuration from the current settings. EINVAL if a value is invalid.
    pub(crate) fn config(&self) -> ApiResult<Config> {
        let mut builder = ConfigBuilder::new(self.entity.clone()).cluster(&self.cluster);
        if let Some(file) = &self.file {
            builder = builder.conf_file(file.clone());
        }
        for (name, value) in self.env.iter().chain(&self.cmdline).chain(&self.calls) {
            builder = builder.set(name, value);
        }
        Ok(builder.build()?)
    }

    /// Reads the first of `paths` (separated by commas) that exists, or otherwise the file that Ceph's programs would find.
    /// ENOENT if there is none.
    pub(crate) fn read_file(&mut self, paths: Option<&str>) -> ApiResult<()> {
        let path = match paths {
            Some(paths) => {
                paths.split(',').map(|p| Path::new(p.trim())).find(|p| p.is_file()).map(Path::to_owned)
            }
            None => search_conf(&self.cluster)?,
        };
        let file = ConfFile::read(&path.ok_or(Errno::ENOENT)?)?;
        let before = self.file.replace(file);
        let checked = self.config();
        if checked.is_err() {
            self.file = before;
        }
        checked.map(drop)
    }

    /// Reads the options in `args` and returns the other arguments.
    pub(crate) fn parse_argv(&mut self, args: &[String]) -> ApiResult<Vec<String>> {
        let parsed = parse_argv(ProgramKind::Client, args, None)?;
        self.cmdline.extend(parsed.options.0);
        Ok(parsed.rest)
    }

    /// Reads the options in the environment variable `name`.
    pub(crate) fn parse_env(&mut self, name: &str) -> ApiResult<()> {
        let args = split_args(&std::env::var(name).unwrap_or_default())?;
        self.env.extend(parse_argv(ProgramKind::Client, &args, None)?.options.0);
        Ok(())
    }

    /// Sets an option. ENOENT if there is no such option, EINVAL for an invalid value.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> ApiResult<()> {
        let Some(spec) = options::find(name) else {
            // Kept, so that reading it returns the value that was set.
            let option = options::ceph_only_option(name).ok_or(Errno::ENOENT)?;
            let value = ceph_spelling(option.ty, value).ok_or(Errno::EINVAL)?;
            self.ignored_options.insert(option.name, value);
            return Ok(());
        };
        options::validate(spec.name, value).map_err(|_| Errno::EINVAL)?;
        // One value per option, however often programs set it.
        self.calls.retain(|(known, _)| known != spec.name);
        self.calls.push((spec.name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// An option's value. ENOENT if there is no such option.
    pub(crate) fn get(&self, name: &str) -> ApiResult<String> {
        match self.ignored_option(name) {
            Some(value) => Ok(value),
            None => option_text(&self.config()?, name),
        }
    }

    /// The value of an option that only Ceph needs: the value that was set, otherwise Ceph's default.
    pub(crate) fn ignored_option(&self, name: &str) -> Option<String> {
        let option = options::ceph_only_option(name)?;
        let set = self.ignored_options.get(option.name).cloned();
        Some(set.unwrap_or_else(|| option.default(false).to_owned()))
    }
}

/// A value of an option that only Ceph needs, as Ceph prints the option's type. `None` if it is invalid.
fn ceph_spelling(ty: &str, value: &str) -> Option<String> {
    match ty {
        "bool" if value.eq_ignore_ascii_case("true") => Some("true".to_owned()),
        "bool" if value.eq_ignore_ascii_case("false") => Some("false".to_owned()),
        "bool" => value.parse::<i32>().ok().map(|number| (number != 0).to_string()),
        "float" => {
            value.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| format!("{number:.6}"))
        }
        "int" => i64::try_from(with_unit(value, 1000)?).ok().map(|number| number.to_string()),
        "uint" => u64::try_from(with_unit(value, 1000)?).ok().map(|number| number.to_string()),
        "size" => u64::try_from(with_unit(value, 1024)?).ok().map(|number| number.to_string()),
        _ => Some(value.to_owned()),
    }
}

/// An integer with a unit, where each unit is `step` times the one before: `10`, `10K`; with steps of 1024 also `10Ki`.
fn with_unit(value: &str, step: i128) -> Option<i128> {
    let (number, unit) = value.split_at(value.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(value.len()));
    let unit = if step == 1024 && unit.len() == 2 { unit.strip_suffix('i')? } else { unit };
    let power = ["", "K", "M", "G", "T", "P", "E"].iter().position(|name| *name == unit);
    let power = power.or_else(|| (unit == "B").then_some(0))?;
    let factor = step.checked_pow(u32::try_from(power).ok()?)?;
    i128::from(number.parse::<i64>().ok()?).checked_mul(factor)
}

/// An option's value in `config`. ENOENT if there is no such option.
pub(crate) fn option_text(config: &Config, name: &str) -> ApiResult<String> {
    let spec = options::find(name).ok_or(Errno::ENOENT)?;
    Ok(config.display_value(spec.name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ClientSettings {
        ClientSettings::new(EntityName::client("admin"), "")
    }

    #[test]
    fn calls_win_over_arguments_and_these_over_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ceph.conf");
        std::fs::write(&path, "[global]\nrados_osd_op_timeout = 1\nrados_mon_op_timeout = 1\n").unwrap();
        let mut settings = settings();
        settings.set("rados_osd_op_timeout", "3").unwrap();
        let args = ["--rados-osd-op-timeout=2", "osd", "--client_mount_timeout", "9", "tree"];
        assert_eq!(settings.parse_argv(&args.map(str::to_owned)).unwrap(), ["osd", "tree"]);
        settings.read_file(Some(&format!("/nonexistent,{}", path.display()))).unwrap();
        assert_eq!(settings.get("rados osd op timeout").unwrap(), "3");
        assert_eq!(settings.get("client_mount_timeout").unwrap(), "9");
        assert_eq!(settings.get("rados_mon_op_timeout").unwrap(), "1");
    }

    #[test]
    fn wrong_names_files_and_values_are_told_apart() {
        let mut settings = settings();
        assert_eq!(settings.set("no_such_option", "1"), Err(Errno::ENOENT.into()));
        assert_eq!(settings.set("client_mount_timeout", "soon"), Err(Errno::EINVAL.into()));
        assert_eq!(settings.get("no_such_option"), Err(Errno::ENOENT.into()));
        assert_eq!(settings.read_file(Some("/nonexistent/ceph.conf")), Err(Errno::ENOENT.into()));
    }

    #[test]
    fn only_the_last_value_that_was_set_is_kept() {
        let mut settings = settings();
        for seconds in 1..100 {
            settings.set("rados_osd_op_timeout", &seconds.to_string()).unwrap();
        }
        assert_eq!(settings.calls.len(), 1);
        assert!(settings.get("rados_osd_op_timeout").unwrap().starts_with("99"));
    }

    #[test]
    fn options_that_only_ceph_needs_have_its_defaults_and_may_be_set() {
        let mut settings = settings();
        assert_eq!(settings.get("err_to_stderr").unwrap(), "false");
        assert_eq!(settings.get("log_max_new").unwrap(), "1000");
        assert_eq!(settings.get("rbd cache").unwrap(), "true");
        settings.set("err-to-stderr", "true").unwrap();
        assert_eq!(settings.get("err_to_stderr").unwrap(), "true");
        let cases = [
            ("err_to_stderr", "0", "false"),
            ("log_max_recent", "2K", "2000"),
            ("objecter_tick_interval", "2.5", "2.500000"),
            ("rbd_cache_size", "1M", "1048576"),
            ("rbd_cache_size", "2Ki", "2048"),
        ];
        for (name, value, spelt) in cases {
            settings.set(name, value).unwrap();
            assert_eq!(settings.get(name).unwrap(), spelt, "{name} {value}");
        }
        for (name, value) in [("log_max_recent", "x"), ("rbd_cache_size", "-1"), ("err_to_stderr", "perhaps")]
        {
            assert_eq!(settings.set(name, value), Err(Errno::EINVAL.into()), "{name} {value}");
        }
    }
}
