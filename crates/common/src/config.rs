//! Layered option values and the handle through which code reads them.
//!
//! The layers, each over the one before, are: compiled default, the monitors' configuration database, the configuration file,
//! `CEPH_ARGS`, the command line, run-time overrides. A [`Config`] holds one typed [`Options`] snapshot behind an atomic
//! pointer: a read costs a few nanoseconds; a change builds a new snapshot and calls observers.
//!
//! Invariant: the current snapshot has parsed completely. A change with a bad value changes nothing. After
//! [`Config::freeze_startup_options`], options that can't change at run time keep their values.

mod argv;
mod conf_file;
mod expand;

pub use argv::{Invocation, OptionSettings, ProgramKind, parse_argv, split_args};
pub use conf_file::{ConfEntry, ConfFile};

use crate::error::{Error, Result};
use crate::options::{self, OptionSpec, Options};
use arc_swap::{ArcSwap, Guard};
use expand::Identity;
use nacre_types::ids::{EntityKind, EntityName};
use nacre_types::msg::{ConfigReport, ReportedOption};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source of a value, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigSource {
    /// The option table.
    Default,
    /// `config set`.
    Mon,
    /// The configuration file.
    File,
    /// `CEPH_ARGS`.
    Env,
    /// The command line.
    Cmdline,
    /// Set in the running process.
    Override,
}

impl ConfigSource {
    /// Ceph's spelling in `config show` and `config diff`.
    pub fn as_str(self) -> &'static str {
        match self {
            ConfigSource::Default => "default",
            ConfigSource::Mon => "mon",
            ConfigSource::File => "file",
            ConfigSource::Env => "env",
            ConfigSource::Cmdline => "cmdline",
            ConfigSource::Override => "override",
        }
    }
}

type Layer = BTreeMap<&'static str, String>;

/// The sources of the layers, weakest first.
const SOURCES: [ConfigSource; 5] =
    [ConfigSource::Mon, ConfigSource::File, ConfigSource::Env, ConfigSource::Cmdline, ConfigSource::Override];

/// The canonical spelling of a value, or the text itself if it does not parse.
fn canonical(spec: &OptionSpec, text: &str) -> String {
    spec.canonical(text).unwrap_or_else(|_| text.to_owned())
}

/// The layers above the compiled defaults.
#[derive(Debug, Clone, Default)]
struct Layers {
    by_source: [Layer; 5],
}

impl Layers {
    fn of(&mut self, source: ConfigSource) -> &mut Layer {
        &mut self.by_source[source as usize - 1]
    }

    /// The values set for an option by layers, weakest first, in canonical spelling.
    fn set_values(&self, spec: &OptionSpec) -> Vec<(ConfigSource, String)> {
        let texts = self.by_source.iter().zip(SOURCES);
        let texts = texts.filter_map(|(layer, source)| Some((source, layer.get(spec.name)?)));
        texts.map(|(source, text)| (source, canonical(spec, text))).collect()
    }

    fn lookup(&self, spec: &OptionSpec, daemon: bool) -> (ConfigSource, String) {
        for (layer, source) in self.by_source.iter().zip(SOURCES).rev() {
            if let Some(text) = layer.get(spec.name) {
                return (source, text.clone());
            }
        }
        let default = spec.daemon_default.filter(|_| daemon).unwrap_or(spec.default);
        (ConfigSource::Default, default.to_owned())
    }
}

/// One option's effective value, as `config show` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownOption {
    /// The option.
    pub name: &'static str,
    /// Its value in canonical spelling, with variables expanded.
    pub value: String,
    /// Its source.
    pub source: ConfigSource,
    /// A newer value that takes effect at the next start.
    pub pending: Option<String>,
}

/// Names of options that changed.
pub type ChangedOptions = BTreeSet<&'static str>;
type Observer = Arc<dyn Fn(&Options, &ChangedOptions) + Send + Sync>;

struct State {
    layers: Layers,
    effective: BTreeMap<&'static str, (ConfigSource, String)>,
    pending: BTreeMap<&'static str, String>,
    started: bool,
}

struct Inner {
    identity: Identity,
    conf_path: Option<PathBuf>,
    current: ArcSwap<Options>,
    state: Mutex<State>,
    observers: Mutex<Vec<(BTreeSet<&'static str>, Observer)>>,
}

/// A shared handle on the configuration of one entity. Cloning is cheap.
#[derive(Clone)]
pub struct Config(Arc<Inner>);

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("entity", &self.0.identity.entity.to_string()).finish_non_exhaustive()
    }
}

/// Which configuration file to read.
#[derive(Debug, Clone)]
enum File {
    None,
    Search,
    Path(PathBuf),
    Parsed(ConfFile),
}

/// Builds a [`Config`].
#[derive(Debug, Clone)]
pub struct ConfigBuilder {
    entity: EntityName,
    cluster: String,
    file: File,
    env: OptionSettings,
    cmdline: OptionSettings,
}

impl ConfigBuilder {
    /// Creates a builder with only defaults.
    pub fn new(entity: EntityName) -> ConfigBuilder {
        let cluster = "ceph".to_owned();
        ConfigBuilder {
            entity,
            cluster,
            file: File::None,
            env: OptionSettings::default(),
            cmdline: OptionSettings::default(),
        }
    }

    /// Sets the cluster's name, `$cluster`; the default is `ceph`.
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// Sets the file to read, which must exist.
    pub fn conf(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = File::Path(path.into());
        self
    }

    /// Uses a parsed file.
    pub fn conf_file(mut self, file: ConfFile) -> Self {
        self.file = File::Parsed(file);
        self
    }

    /// Searches for a file where Ceph does, see [`search_conf`]. Continues if there is none.
    pub fn search_conf_file(mut self) -> Self {
        self.file = File::Search;
        self
    }

    /// Sets a value as if on the command line.
    pub fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.cmdline.push((name.to_owned(), value.into()));
        self
    }

    /// Reads files, checks every value and creates the handle. Unknown names in files cause a warning and are ignored; on the
    /// command line and in `CEPH_ARGS` they are errors.
    pub fn build(self) -> Result<Config> {
        let mut layers = Layers::default();
        let path = match &self.file {
            File::None => None,
            File::Search => search_conf(&self.cluster)?,
            File::Path(path) => Some(path.clone()),
            File::Parsed(file) => Some(file.path().to_owned()),
        };
        let file = match (self.file, &path) {
            (File::Parsed(file), _) => Some(file),
            (_, Some(path)) => Some(ConfFile::read(path)?),
            (_, None) => None,
        };
        if let Some(file) = &file {
            *layers.of(ConfigSource::File) = file_layer(file, &self.entity)?;
        }
        for (source, pairs) in [(ConfigSource::Env, self.env), (ConfigSource::Cmdline, self.cmdline)] {
            for (name, value) in pairs.0 {
                let spec = options::get(&name)?;
                spec.canonical(&value)?;
                layers.of(source).insert(spec.name, value);
            }
        }
        let host = layers.lookup(options::get("host")?, false).1;
        let identity = Identity::new(self.cluster, self.entity, host);
        let effective = effective(&layers, &identity)?;
        let options = typed(&effective)?;
        Ok(Config(Arc::new(Inner {
            identity,
            conf_path: path,
            current: ArcSwap::from_pointee(options),
            state: Mutex::new(State { layers, effective, pending: BTreeMap::new(), started: false }),
            observers: Mutex::new(Vec::new()),
        })))
    }
}

/// The settings in a file that apply to an entity: `[osd.3]` over `[osd]` over `[global]`.
fn file_layer(file: &ConfFile, entity: &EntityName) -> Result<Layer> {
    let mut layer = Layer::new();
    for section in sections_of(entity) {
        for entry in file.section(&section) {
            match options::find(&entry.name) {
                Some(spec) => {
                    spec.canonical(&entry.value).map_err(|e| file.syntax_error(entry.line, e.to_string()))?;
                    layer.insert(spec.name, entry.value.clone());
                }
                None => tracing::warn!(
                    file = %file.path().display(), line = entry.line, option = %entry.name,
                    "unknown option is ignored"
                ),
            }
        }
    }
    Ok(layer)
}

/// The sections that apply to an entity, weakest first: `global`, `osd`, `osd.3`.
pub fn sections_of(entity: &EntityName) -> [String; 3] {
    ["global".to_owned(), entity.kind.as_str().to_owned(), entity.to_string()]
}

/// Finds the configuration file of `cluster`, which is the first of these that exists:
///
/// 1. the file that `CEPH_CONF` names, which must exist;
/// 2. `/etc/nacre/CLUSTER.conf`, and `/var/lib/nacre/CLUSTER.conf`, which the unit `nacre.service` creates;
/// 3. the paths of Ceph's programs: `/etc/ceph/CLUSTER.conf`, `~/.ceph/CLUSTER.conf`, `./CLUSTER.conf`;
/// 4. `./data/ceph.conf`, which `nacre serve` creates.
pub fn search_conf(cluster: &str) -> Result<Option<PathBuf>> {
    if let Some(path) = std::env::var_os("CEPH_CONF").filter(|v| !v.is_empty()) {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(Some(path))
        } else {
            Err(Error::NotFound(format!("CEPH_CONF names {}, which is not a file", path.display())))
        };
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    Ok(conf_candidates(cluster, home.as_deref()).into_iter().find(|path| path.is_file()))
}

fn conf_candidates(cluster: &str, home: Option<&Path>) -> Vec<PathBuf> {
    let folders = ["/etc/nacre", "/var/lib/nacre", "/etc/ceph"].map(PathBuf::from);
    let folders = folders.into_iter().chain(home.map(|home| home.join(".ceph"))).chain([PathBuf::new()]);
    let named = folders.map(|folder| folder.join(format!("{cluster}.conf")));
    named.chain([PathBuf::from("./data/ceph.conf")]).collect()
}

fn effective(layers: &Layers, identity: &Identity) -> Result<BTreeMap<&'static str, (ConfigSource, String)>> {
    let daemon = identity.is_daemon();
    let raw = |spec: &OptionSpec| layers.lookup(spec, daemon);
    options::all()
        .map(|spec| {
            let (source, text) = raw(spec);
            let text = identity.expand(&text, &|name| options::find(name).map(|spec| raw(spec).1))?;
            Ok((spec.name, (source, text)))
        })
        .collect()
}

fn typed(effective: &BTreeMap<&'static str, (ConfigSource, String)>) -> Result<Options> {
    Options::from_text(&|spec| Ok(effective[spec.name].1.clone()))
}

impl Config {
    /// Creates the configuration of a program from its parsed command line, `CEPH_ARGS` and the configuration file.
    pub fn load(invocation: &Invocation) -> Result<Config> {
        let file = match &invocation.conf {
            Some(path) => File::Path(path.clone()),
            None => File::Search,
        };
        let builder = ConfigBuilder {
            entity: invocation.entity.clone(),
            cluster: invocation.cluster.clone(),
            file,
            env: invocation.env.clone(),
            cmdline: invocation.options.clone(),
        };
        builder.build()
    }

    /// Returns the current values. Cheap; hold the guard for one decision, not across awaits.
    pub fn get(&self) -> Guard<Arc<Options>> {
        self.0.current.load()
    }

    /// Returns the current values for longer use.
    pub fn snapshot(&self) -> Arc<Options> {
        self.0.current.load_full()
    }

    /// The entity.
    pub fn entity(&self) -> &EntityName {
        &self.0.identity.entity
    }

    /// The cluster's name, `$cluster`.
    pub fn cluster(&self) -> &str {
        &self.0.identity.cluster
    }

    /// The host's name, `$host`.
    pub fn host(&self) -> &str {
        &self.0.identity.host
    }

    /// Whether the entity is a daemon.
    pub fn is_daemon(&self) -> bool {
        self.0.identity.is_daemon()
    }

    /// The file that was read.
    pub fn conf_path(&self) -> Option<&Path> {
        self.0.conf_path.as_deref()
    }

    /// Makes options that can't change at run time keep their values from now on.
    pub fn freeze_startup_options(&self) {
        self.0.state.lock().started = true;
    }

    /// Replaces the values from the monitors' database (a `ConfigPublish`). Values that this release does not know or accept
    /// cause a warning and are ignored. Returns what changed.
    pub fn set_mon_values<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ChangedOptions> {
        let mut layer = Layer::new();
        for (name, value) in values {
            match options::get(name).and_then(|spec| spec.canonical(value).map(|text| (spec, text))) {
                Ok((spec, _)) if spec.flags.no_mon_update => {
                    tracing::warn!(option = name, "option can't come from the monitors and is ignored");
                }
                Ok((spec, text)) => {
                    layer.insert(spec.name, text);
                }
                Err(error) => tracing::warn!(option = name, %error, "value from the monitors is ignored"),
            }
        }
        self.change(|layers| *layers.of(ConfigSource::Mon) = layer)
    }

    /// Overrides one option in this process, above every other source. Fails for options that can't change at run time.
    pub fn set(&self, name: &str, value: &str) -> Result<ChangedOptions> {
        let spec = options::get(name)?;
        if self.0.state.lock().started && !spec.can_update_at_runtime() {
            return Err(Error::bad_value(spec.name, "can't be changed at run time; set it and restart"));
        }
        let text = spec.canonical(value)?;
        self.change(|layers| {
            layers.of(ConfigSource::Override).insert(spec.name, text);
        })
    }

    /// Removes an override.
    pub fn unset(&self, name: &str) -> Result<ChangedOptions> {
        let spec = options::get(name)?;
        self.change(|layers| {
            layers.of(ConfigSource::Override).remove(spec.name);
        })
    }

    fn change(&self, mutate: impl FnOnce(&mut Layers)) -> Result<ChangedOptions> {
        let mut state = self.0.state.lock();
        let mut layers = state.layers.clone();
        mutate(&mut layers);
        let mut wanted = effective(&layers, &self.0.identity)?;
        let mut changed = ChangedOptions::new();
        let mut pending = BTreeMap::new();
        for (name, new) in &mut wanted {
            let old = &state.effective[name];
            if new.1 == old.1 {
                continue;
            }
            let spec = options::find(name).expect("invariant: effective values come from the table");
            if state.started && !spec.can_update_at_runtime() {
                pending.insert(*name, std::mem::replace(new, old.clone()).1);
            } else {
                changed.insert(*name);
            }
        }
        let options = Arc::new(typed(&wanted)?);
        (state.layers, state.effective, state.pending) = (layers, wanted, pending);
        self.0.current.store(options.clone());
        let observers: Vec<Observer> = {
            let list = self.0.observers.lock();
            list.iter().filter(|(names, _)| !names.is_disjoint(&changed)).map(|(_, f)| f.clone()).collect()
        };
        // Called under the state's lock, so that observers see changes one at a time and in order.
        for observer in observers {
            observer(&options, &changed);
        }
        Ok(changed)
    }

    /// Calls `observer` after each change of one of `names`, with the new values and the names of all changed options. It runs
    /// on the changing thread, must be quick, and must not change the configuration itself.
    pub fn observe(
        &self,
        names: &[&str],
        observer: impl Fn(&Options, &ChangedOptions) + Send + Sync + 'static,
    ) {
        let names = names
            .iter()
            .map(|name| options::get(name).expect("invariant: observers name options of the table").name)
            .collect();
        self.0.observers.lock().push((names, Arc::new(observer)));
    }

    /// Returns one option's effective value in canonical spelling; dots for a secret.
    pub fn display_value(&self, name: &str) -> Result<String> {
        let spec = options::get(name)?;
        let value = spec.canonical(&self.0.state.lock().effective[spec.name].1)?;
        Ok(options::redacted(spec.name, &value).to_owned())
    }

    /// Returns each option's values by source, weakest first, including the default, as they were written (`config diff`).
    pub fn layers(&self) -> Vec<(&'static str, Vec<(ConfigSource, String)>)> {
        let state = self.0.state.lock();
        let daemon = self.is_daemon();
        let layers_of = |spec: &'static OptionSpec| {
            let default = spec.daemon_default.filter(|_| daemon).unwrap_or(spec.default);
            let mut found = vec![(ConfigSource::Default, canonical(spec, default))];
            found.extend(state.layers.set_values(spec));
            (spec.name, found)
        };
        options::all().map(layers_of).collect()
    }

    /// Returns the options that are not at their defaults, for the map authority.
    pub fn report(&self) -> ConfigReport {
        let state = self.0.state.lock();
        let set = options::all().filter_map(|spec| {
            let values = state.layers.set_values(spec);
            let shown = |text: &str| options::redacted(spec.name, text).to_owned();
            let values: Vec<_> =
                values.iter().map(|(source, text)| (source.as_str().to_owned(), shown(text))).collect();
            (!values.is_empty()).then(|| ReportedOption { name: spec.name.to_owned(), values })
        });
        ConfigReport { options: set.collect() }
    }

    /// Returns all effective values and their sources (`config show`); those not at their default are `config diff`.
    pub fn show(&self) -> Vec<ShownOption> {
        let state = self.0.state.lock();
        state
            .effective
            .iter()
            .map(|(name, (source, text))| ShownOption {
                name,
                value: options::find(name)
                    .and_then(|spec| spec.canonical(text).ok())
                    .map(|value| options::redacted(name, &value).to_owned())
                    .unwrap_or_else(|| text.clone()),
                source: *source,
                pending: state.pending.get(name).cloned(),
            })
            .collect()
    }
}

/// Whether an entity of this kind is a daemon.
fn is_daemon(kind: EntityKind) -> bool {
    kind != EntityKind::Client
}

#[cfg(test)]
mod tests;
