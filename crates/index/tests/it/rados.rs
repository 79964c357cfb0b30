//! One RADOS object, in memory: compound writes that are applied whole or not at all, and reads of one moment.

use bytes::Bytes;
use nacre_index::op::{Fetch, Fetched, Guard, Page, Read, ReadReply, Step, Write};
use nacre_types::errno::Errno;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    pub(crate) attrs: BTreeMap<&'static str, Bytes>,
    pub(crate) omap: BTreeMap<Bytes, Bytes>,
    data: Bytes,
}

/// A name of an object: the object, if it is there, and the version that its placement group gave out last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) object: Option<Object>,
    version: u64,
}

impl Object {
    fn value(&self, key: &Bytes) -> &[u8] {
        self.omap.get(key).map_or(&[][..], |value| &value[..])
    }

    fn attr(&self, name: &str) -> &[u8] {
        self.attrs.get(name).map_or(&[][..], |value| &value[..])
    }

    fn fetch(&self, fetch: &Fetch) -> Fetched {
        match fetch {
            Fetch::Attrs => {
                let attrs = self.attrs.iter();
                let attrs = attrs.map(|(name, value)| (Bytes::from(name.to_string()), value.clone()));
                Fetched::Pairs(attrs.collect())
            }
            Fetch::Keys(keys) => {
                let found = keys.iter().filter_map(|key| Some((key.clone(), self.omap.get(key)?.clone())));
                Fetched::Pairs(found.collect())
            }
            Fetch::Data => Fetched::Data(self.data.clone()),
            Fetch::Page { prefix, after, max } => {
                let behind = self.omap.iter().filter(|(key, _)| *key > after && key.starts_with(prefix));
                let mut entries: Vec<_> = behind.map(|(key, value)| (key.clone(), value.clone())).collect();
                let more = entries.len() as u64 > *max;
                entries.truncate(*max as usize);
                Fetched::Page(Page { entries, more })
            }
        }
    }
}

impl Stored {
    pub(crate) fn read(&self, read: &Read) -> Option<ReadReply> {
        let object = self.object.as_ref()?;
        let parts = read.fetches.iter().map(|fetch| object.fetch(fetch)).collect();
        Some(ReadReply { version: self.version, parts })
    }

    /// Applies a write; returns the object's version after it.
    pub(crate) fn write(&mut self, write: &Write) -> Result<u64, Errno> {
        for guard in &write.guards {
            self.check(guard)?;
        }
        let mut object = self.object.take().unwrap_or_default();
        let mut removed = false;
        for step in &write.steps {
            assert!(!removed, "a removal is the last step");
            match step {
                Step::WriteFull(data) => object.data = data.clone(),
                Step::Truncate(0) => object.data = Bytes::new(),
                Step::SetAttr(name, value) => drop(object.attrs.insert(*name, value.clone())),
                Step::RemoveAttr(name) => {
                    assert!(object.attrs.remove(name).is_some(), "{name} is removed and is not there");
                }
                Step::OmapSet(entries) => object.omap.extend(entries.iter().cloned()),
                Step::OmapRemove(keys) => keys.iter().for_each(|key| drop(object.omap.remove(key))),
                Step::OmapRemoveRange { first, end } => {
                    object.omap.retain(|key, _| key < first || key >= end);
                }
                Step::Remove => removed = true,
                Step::Write { .. } | Step::Truncate(_) | Step::OmapClear | Step::Call { .. } => {
                    panic!("{step:?} is not modelled")
                }
            }
        }
        self.object = (!removed).then_some(object);
        self.version += 1;
        Ok(self.version)
    }

    fn check(&self, guard: &Guard) -> Result<(), Errno> {
        let Some(object) = &self.object else {
            return if *guard == Guard::Create { Ok(()) } else { Err(Errno::ENOENT) };
        };
        let (holds, errno) = match guard {
            Guard::Exists => (true, Errno::ENOENT),
            Guard::Create => (false, Errno::EEXIST),
            Guard::Version(version) => (self.version == *version, Errno::ERANGE),
            Guard::AttrEquals(name, value) => (object.attr(name) == &value[..], Errno::ECANCELED),
            Guard::AttrBelow(name, value) => (object.attr(name) < &value[..], Errno::ECANCELED),
            Guard::OmapEquals(key, value) => (object.value(key) == &value[..], Errno::ECANCELED),
            Guard::OmapPresent(key) => (!object.value(key).is_empty(), Errno::ECANCELED),
            Guard::OmapAbsent(key) => (object.value(key).is_empty(), Errno::ECANCELED),
        };
        if holds { Ok(()) } else { Err(errno) }
    }
}
