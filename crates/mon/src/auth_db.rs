//! Entities with their keys and caps, as `auth …` commands manage them.

use nacre_common::auth::{Caps, Key, KeyRecord};
use nacre_types::caps::mon::MonCaps;
use nacre_types::ids::EntityName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// The entities.
#[derive(Clone, Debug, Default)]
pub struct AuthDb {
    entries: BTreeMap<EntityName, (KeyRecord, Arc<MonCaps>)>,
}

/// The stored form of one entity.
#[derive(Serialize, Deserialize)]
struct Stored {
    key: String,
    caps: Caps,
}

impl AuthDb {
    /// One entity.
    pub fn get(&self, entity: &EntityName) -> Option<&KeyRecord> {
        self.entries.get(entity).map(|(record, _)| record)
    }

    /// The capabilities of an entity; a text that does not parse grants nothing. `None` if the entity does not exist.
    pub fn caps(&self, entity: &EntityName) -> Option<Arc<MonCaps>> {
        self.entries.get(entity).map(|(_, caps)| Arc::clone(caps))
    }

    /// Adds or replaces an entity.
    pub fn insert(&mut self, entity: EntityName, record: KeyRecord) {
        let text = record.caps.get("mon").map(String::as_str).unwrap_or_default();
        let caps = MonCaps::parse(text).unwrap_or_default();
        self.entries.insert(entity, (record, Arc::new(caps)));
    }

    /// Removes an entity. Returns whether it existed.
    pub fn remove(&mut self, entity: &EntityName) -> bool {
        self.entries.remove(entity).is_some()
    }

    /// All entities, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&EntityName, &KeyRecord)> {
        self.entries.iter().map(|(entity, (record, _))| (entity, record))
    }
}

/// Encodes the record of an entity.
pub fn encode(record: &KeyRecord) -> Vec<u8> {
    let stored = Stored { key: record.key.to_base64().to_string(), caps: record.caps.clone() };
    postcard::to_extend(&stored, Vec::new()).expect("invariant: a plain structure always encodes")
}

/// Decodes the output of [`encode`]; `None` for anything else.
pub fn decode(bytes: &[u8]) -> Option<KeyRecord> {
    let stored: Stored = postcard::from_bytes(bytes).ok()?;
    Some(KeyRecord { key: Key::from_base64(&stored.key).ok()?, caps: stored.caps })
}

/// An entity as a section of a keyring file.
pub fn keyring_text(entity: &EntityName, record: &KeyRecord, with_caps: bool) -> String {
    let mut out = format!("[{entity}]\n\tkey = {}\n", *record.key.to_base64());
    if with_caps {
        for (service, caps) in &record.caps {
            // Writing into a String can't fail.
            let _ = writeln!(out, "\tcaps {service} = \"{caps}\"");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::{CountingAllocator, Target};

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn fuzz_stored_entities() {
        let key = Key::from_base64("AQAAAAAAAAAAABAAAgMEBQYHCAkKCwwNDg8QEQ==").unwrap();
        let record = KeyRecord { key, caps: [("mon".to_owned(), "allow r".to_owned())].into() };
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        Target::new("entity", corpus, vec![encode(&record)])
            .run(|input| decode(input).map(|record| encode(&record)));
    }
}
