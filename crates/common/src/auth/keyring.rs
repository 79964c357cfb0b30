//! Keyring files in Ceph's format.

use super::key::Key;
use super::{Caps, Credential, CredentialProvider};
use crate::config::{ConfFile, Config};
use crate::error::{Error, Result};
use nacre_types::ids::EntityName;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

/// Maximum size of a keyring file.
const MAX_BYTES: u64 = 16 << 20;

/// A key and its entity's capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyringEntry {
    /// The secret.
    pub key: Key,
    /// Caps by service.
    pub caps: Caps,
}

/// Keys by entity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring {
    entries: BTreeMap<EntityName, KeyringEntry>,
}

impl Keyring {
    /// Creates an empty keyring.
    pub fn new() -> Keyring {
        Keyring::default()
    }

    /// Adds or replaces an entity.
    pub fn insert(&mut self, entity: EntityName, key: Key, caps: Caps) {
        self.entries.insert(entity, KeyringEntry { key, caps });
    }

    /// Removes an entity.
    pub fn remove(&mut self, entity: &EntityName) -> Option<KeyringEntry> {
        self.entries.remove(entity)
    }

    /// Returns an entity's entry.
    pub fn get(&self, entity: &EntityName) -> Option<&KeyringEntry> {
        self.entries.get(entity)
    }

    /// All entries by name.
    pub fn iter(&self) -> impl Iterator<Item = (&EntityName, &KeyringEntry)> {
        self.entries.iter()
    }

    /// Parses a keyring's text. `path` is for error messages, which contain nothing of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Keyring> {
        let file = ConfFile::parse_sensitive(path, text)?;
        let mut sections = file.into_sections();
        let parsed = Keyring::from_sections(path, &sections);
        for (_, entries) in &mut sections {
            entries.iter_mut().for_each(|entry| entry.value.zeroize());
        }
        parsed
    }

    fn from_sections(path: &Path, sections: &[(String, Vec<crate::config::ConfEntry>)]) -> Result<Keyring> {
        let syntax = |line, reason: String| Error::Syntax { file: path.to_owned(), line, reason };
        let mut keyring = Keyring::new();
        for (name, lines) in sections {
            let first = lines.first().map_or(1, |entry| entry.line);
            let entity: EntityName = name.parse().map_err(|e| syntax(first, format!("{e}")))?;
            let mut key = None;
            let mut caps = Caps::new();
            for entry in lines {
                match entry.name.as_str() {
                    "key" => {
                        key = Some(
                            Key::from_base64(&entry.value).map_err(|e| syntax(entry.line, e.to_string()))?,
                        );
                    }
                    // Ceph's old auid lines no longer have a meaning.
                    "auid" => {}
                    other => match other.strip_prefix("caps_") {
                        Some(service) => {
                            caps.insert(service.to_owned(), entry.value.clone());
                        }
                        None => {
                            return Err(syntax(entry.line, "expected 'key' or 'caps SERVICE'".to_owned()));
                        }
                    },
                }
            }
            let key = key.ok_or_else(|| syntax(first, format!("[{name}] has no key")))?;
            keyring.insert(entity, key, caps);
        }
        Ok(keyring)
    }

    /// Reads a keyring file. Warns if others than the owner can read it.
    pub fn read(path: &Path) -> Result<Keyring> {
        let mut file = File::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::NotFound(format!("keyring {} does not exist", path.display()))
            }
            _ => Error::io("open keyring", path, e),
        })?;
        let meta = file.metadata().map_err(|e| Error::io("stat keyring", path, e))?;
        if meta.mode() & 0o077 != 0 {
            tracing::warn!(
                path = %path.display(), mode = format_args!("{:o}", meta.mode() & 0o777),
                "keyring can be read by others than its owner; chmod 600 it"
            );
        }
        if meta.len() > MAX_BYTES {
            return Err(Error::Corrupt { what: "keyring", detail: format!("{} bytes long", meta.len()) });
        }
        let mut text = Zeroizing::new(String::with_capacity(meta.len() as usize + 1));
        file.read_to_string(&mut text).map_err(|e| Error::io("read keyring", path, e))?;
        Keyring::parse(path, &text)
    }

    /// Formats the file's text.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(String::new());
        for (entity, entry) in &self.entries {
            out.push_str(&format!("[{entity}]\n\tkey = "));
            out.push_str(&entry.key.to_base64());
            out.push('\n');
            for (service, caps) in &entry.caps {
                let caps = caps.replace('\\', "\\\\").replace('"', "\\\"");
                out.push_str(&format!("\tcaps {service} = \"{caps}\"\n"));
            }
        }
        out
    }

    /// Writes the file with mode 0600. Replaces an older one only when complete and durable.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".tmp.{}", std::process::id()));
        let temporary = path.with_file_name(name);
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(self.to_text().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(parent)?.sync_all()
        })();
        written.map_err(|e| {
            // The first error is the relevant one; a temporary file that can't be removed is harmless.
            let _ = std::fs::remove_file(&temporary);
            Error::io("write keyring", path, e)
        })
    }
}

/// The configured entity's key, read from its file at each connection, so that a rotated key is used without a restart. If the
/// file can't be read, the last key remains.
#[derive(Debug)]
pub struct ConfiguredKey {
    config: Config,
    last: Mutex<Credential>,
}

impl ConfiguredKey {
    /// Reads the key for the first time ([`find_key`]).
    pub fn find(config: &Config) -> Result<ConfiguredKey> {
        Ok(ConfiguredKey { config: config.clone(), last: Mutex::new(find_key(config)?) })
    }
}

impl CredentialProvider for ConfiguredKey {
    fn credential(&self) -> Result<Credential> {
        let mut last = self.last.lock();
        match find_key(&self.config) {
            Ok(found) => *last = found,
            Err(error) => tracing::warn!(%error, "going on with the key that was read before"),
        }
        Ok(last.clone())
    }
}

/// Finds the configured entity's credential: option `key`, else `keyfile`, else the first keyring file that exists. If none of
/// the default keyrings exists, `keyring` beside the configuration file is tried too.
pub fn find_key(config: &Config) -> Result<Credential> {
    let options = config.snapshot();
    let entity = config.entity().clone();
    let key = options.global.key.expose();
    if !key.is_empty() {
        return Ok(Credential::Key { key: Key::from_base64(key)?, entity });
    }
    if !options.global.keyfile.is_empty() {
        let path = Path::new(&options.global.keyfile);
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?);
        return Ok(Credential::Key { key: Key::from_base64(&text)?, entity });
    }
    let listed = options.global.keyring.split([',', ';', ' ']).filter(|p| !p.is_empty()).map(PathBuf::from);
    let beside = config.conf_path().and_then(Path::parent).map(|dir| dir.join("keyring"));
    let candidates: Vec<PathBuf> = listed.chain(beside).collect();
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        let tried: Vec<String> = candidates.iter().map(|p| p.display().to_string()).collect();
        return Err(Error::NotFound(format!("no keyring found for {entity}; tried {}", tried.join(", "))));
    };
    match Keyring::read(path)?.get(&entity) {
        Some(entry) => Ok(Credential::Key { entity, key: entry.key.clone() }),
        None => Err(Error::NotFound(format!("keyring {} has no key for {entity}", path.display()))),
    }
}
