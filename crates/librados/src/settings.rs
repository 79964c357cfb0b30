//! A cluster handle's configuration before it connects: what was read and set so far.
//!
//! Values set by call win over the command line, that over the environment, that over the file, in whatever order they
//! came. Nothing is read that the caller did not ask for.

use crate::guard::Outcome;
use nacre_runtime::Config;
use nacre_runtime::config::{ConfFile, ConfigBuilder, Program, parse_argv, search_conf, split_args};
use nacre_runtime::options;
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use std::collections::BTreeMap;
use std::path::Path;

/// What a configuration will be made from.
#[derive(Clone)]
pub(crate) struct Settings {
    entity: EntityName,
    cluster: String,
    file: Option<ConfFile>,
    env: Vec<(String, String)>,
    cmdline: Vec<(String, String)>,
    calls: Vec<(String, String)>,
    without_effect: BTreeMap<&'static str, String>,
}

impl Settings {
    /// Nothing but the environment's `CEPH_KEYRING`.
    pub(crate) fn new(entity: EntityName, cluster: &str) -> Settings {
        let keyring = std::env::var("CEPH_KEYRING").ok().filter(|path| !path.is_empty());
        Settings {
            entity,
            cluster: if cluster.is_empty() { "ceph".to_owned() } else { cluster.to_owned() },
            file: None,
            env: keyring.map(|path| ("keyring".to_owned(), path)).into_iter().collect(),
            cmdline: Vec::new(),
            calls: Vec::new(),
            without_effect: BTreeMap::new(),
        }
    }

    /// The configuration as it stands; EINVAL where a value is wrong.
    pub(crate) fn config(&self) -> Outcome<Config> {
        let mut builder = ConfigBuilder::new(self.entity.clone()).cluster(&self.cluster);
        if let Some(file) = &self.file {
            builder = builder.conf_file(file.clone());
        }
        for (name, value) in self.env.iter().chain(&self.cmdline).chain(&self.calls) {
            builder = builder.set(name, value);
        }
        Ok(builder.build()?)
    }

    /// Reads the first of `paths` (separated by commas) that exists, or else the file that Ceph's programs would find;
    /// ENOENT where there is none.
    pub(crate) fn read_file(&mut self, paths: Option<&str>) -> Outcome<()> {
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

    /// Takes the options among `args` and returns the others.
    pub(crate) fn parse_argv(&mut self, args: &[String]) -> Outcome<Vec<String>> {
        let parsed = parse_argv(Program::Client, args, None)?;
        self.cmdline.extend(parsed.options.0);
        Ok(parsed.rest)
    }

    /// Takes the options in the environment variable `name`.
    pub(crate) fn parse_env(&mut self, name: &str) -> Outcome<()> {
        let args = split_args(&std::env::var(name).unwrap_or_default())?;
        self.env.extend(parse_argv(Program::Client, &args, None)?.options.0);
        Ok(())
    }

    /// Sets an option: ENOENT where there is none of that name, EINVAL for a wrong value.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Outcome<()> {
        let Some(spec) = options::find(name) else {
            // Kept, so that reading it gives what was set.
            let option = options::ceph_option(name).ok_or(Errno::ENOENT)?;
            self.without_effect.insert(option.name, value.to_owned());
            return Ok(());
        };
        options::validate(spec.name, value).map_err(|_| Errno::EINVAL)?;
        self.calls.push((spec.name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// An option's value; ENOENT where there is none of that name.
    pub(crate) fn get(&self, name: &str) -> Outcome<String> {
        match self.value_without_effect(name) {
            Some(value) => Ok(value),
            None => text_of(&self.config()?, name),
        }
    }

    /// The value of an option that only Ceph needs: what was set, else Ceph's default.
    pub(crate) fn value_without_effect(&self, name: &str) -> Option<String> {
        let option = options::ceph_option(name)?;
        let set = self.without_effect.get(option.name).cloned();
        Some(set.unwrap_or_else(|| option.default(false).to_owned()))
    }
}

/// An option's value in `config`; ENOENT where there is none of that name.
pub(crate) fn text_of(config: &Config, name: &str) -> Outcome<String> {
    let spec = options::find(name).ok_or(Errno::ENOENT)?;
    Ok(config.text(spec.name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(EntityName::client("admin"), "")
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
    fn options_that_only_ceph_needs_have_its_defaults_and_may_be_set() {
        let mut settings = settings();
        assert_eq!(settings.get("err_to_stderr").unwrap(), "false");
        assert_eq!(settings.get("log_max_new").unwrap(), "1000");
        assert_eq!(settings.get("rbd cache").unwrap(), "true");
        settings.set("err-to-stderr", "true").unwrap();
        assert_eq!(settings.get("err_to_stderr").unwrap(), "true");
    }
}
