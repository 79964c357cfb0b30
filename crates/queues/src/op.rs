//! Compound operations on the objects of queues: an object, and an operation of [`nacre_types::compound`].

use crate::error::{Result, corrupt};
use bytes::Bytes;
use nacre_types::compound::{Fetch, Fetched, Read, ReadReply};
pub use nacre_types::compound::{Guard, Step, Write};
use std::collections::BTreeMap;

/// A RADOS object in the pool for logs (`default.rgw.log`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: &'static str,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A compound write of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectOp {
    /// The object.
    pub object: ObjectKey,
    /// Its guards and its steps.
    pub write: Write,
}

impl ObjectOp {
    /// Starts an operation on an existing object.
    pub fn on(object: &ObjectKey) -> ObjectOp {
        ObjectOp::with(object, Guard::Exists)
    }

    /// Starts an operation that creates an object, which must not exist.
    pub fn create(object: &ObjectKey) -> ObjectOp {
        ObjectOp::with(object, Guard::Create)
    }

    fn with(object: &ObjectKey, guard: Guard) -> ObjectOp {
        let write = Write { guards: vec![guard], steps: Vec::new() };
        ObjectOp { object: object.clone(), write }
    }

    /// Adds a guard on an attribute.
    #[must_use]
    pub fn if_xattr(mut self, name: &'static str, value: &Bytes) -> ObjectOp {
        self.write.guards.push(Guard::AttrEquals(name, value.clone()));
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn then(mut self, step: Step) -> ObjectOp {
        self.write.steps.push(step);
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn set_xattr(self, name: &'static str, value: &Bytes) -> ObjectOp {
        self.then(Step::SetAttr(name, value.clone()))
    }

    /// Sets omap entries, if there are any.
    #[must_use]
    pub fn omap_set(self, entries: Vec<(Bytes, Bytes)>) -> ObjectOp {
        if entries.is_empty() { self } else { self.then(Step::OmapSet(entries)) }
    }

    /// Removes omap entries, if there are any.
    #[must_use]
    pub fn omap_remove(self, keys: Vec<Bytes>) -> ObjectOp {
        if keys.is_empty() { self } else { self.then(Step::OmapRemove(keys)) }
    }
}

/// The range of a page of omap entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The last key of the previous page; empty for the first page.
    pub after: Bytes,
    /// The prefix of the keys.
    pub prefix: Bytes,
    /// The most entries.
    pub max: u64,
}

/// A compound read of one object: all its parts see the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRead {
    /// The object.
    pub object: ObjectKey,
    /// Omap entries to be read by key.
    pub keys: Vec<Bytes>,
    /// A page of the omap to be read.
    pub page: Option<PageRequest>,
    /// Whether the data is read. The attributes are always read.
    pub data: bool,
}

impl ObjectRead {
    /// Reads the attributes only.
    pub fn attributes(object: &ObjectKey) -> ObjectRead {
        ObjectRead { object: object.clone(), keys: Vec::new(), page: None, data: false }
    }

    /// Reads the attributes and these omap entries.
    pub fn keys(object: &ObjectKey, keys: Vec<Bytes>) -> ObjectRead {
        ObjectRead { keys, ..ObjectRead::attributes(object) }
    }

    /// Reads the attributes and a page of the omap.
    pub fn page(object: &ObjectKey, after: Bytes, prefix: impl Into<Bytes>, max: u64) -> ObjectRead {
        let page = Some(PageRequest { after, prefix: prefix.into(), max });
        ObjectRead { page, ..ObjectRead::attributes(object) }
    }

    /// Reads the attributes and the data.
    pub fn data(object: &ObjectKey) -> ObjectRead {
        ObjectRead { data: true, ..ObjectRead::attributes(object) }
    }

    /// The read without the object.
    pub fn read(&self) -> Read {
        let keys = Some(&self.keys).filter(|keys| !keys.is_empty()).map(|keys| Fetch::Keys(keys.clone()));
        let page =
            self.page.clone().map(|PageRequest { after, prefix, max }| Fetch::Page { prefix, after, max });
        let data = self.data.then_some(Fetch::Data);
        Read::of([Some(Fetch::Attrs), keys, page, data].into_iter().flatten().collect())
    }

    /// Interprets the reply to [`ObjectRead::read`].
    pub fn parse_reply(&self, reply: ReadReply) -> Result<ObjectReply> {
        let mut taken = ObjectReply::default();
        let mut has_attributes = false;
        for part in reply.parts {
            match part {
                Fetched::Pairs(attributes) if !has_attributes => {
                    has_attributes = true;
                    for (name, value) in attributes {
                        taken.xattrs.insert(self.name(&name)?, value);
                    }
                }
                Fetched::Pairs(values) => taken.values = values,
                Fetched::Page(page) => (taken.page, taken.more) = (page.entries, page.more),
                Fetched::Data(data) => taken.data = data,
            }
        }
        Ok(taken)
    }

    fn name(&self, bytes: &[u8]) -> Result<String> {
        let name = String::from_utf8(bytes.to_vec());
        name.map_err(|_| corrupt(&self.object, "reply", "an attribute's name is not UTF-8"))
    }
}

/// The reply to an [`ObjectRead`] of an existing object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReply {
    /// All attributes.
    pub xattrs: BTreeMap<String, Bytes>,
    /// The requested omap entries that exist.
    pub values: BTreeMap<Bytes, Bytes>,
    /// The page, in the order of the keys.
    pub page: Vec<(Bytes, Bytes)>,
    /// Whether there are entries after the page.
    pub more: bool,
    /// The data.
    pub data: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{QueueRecordKind, queue_object};
    use nacre_types::compound::Page;

    #[test]
    fn replies_are_taken_apart_by_what_was_asked() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let pairs = |name| Fetched::Pairs(BTreeMap::from([(bytes(name), bytes("value"))]));
        let object = queue_object("", "t", 0);
        let page = ObjectRead::page(&object, Bytes::new(), QueueRecordKind::Batch.prefix(), 5);
        let read = ObjectRead { data: true, ..page };
        let fetches = read.read().fetches;
        assert!(
            matches!(fetches[..], [Fetch::Attrs, Fetch::Page { max: 5, .. }, Fetch::Data]),
            "{fetches:?}"
        );
        let entries = vec![(bytes("e1"), bytes("value"))];
        let page = Fetched::Page(Page { entries: entries.clone(), more: true });
        let parts = vec![pairs("attribute"), page, Fetched::Data(bytes("data"))];
        let reply = read.parse_reply(ReadReply { version: 1, parts }).expect("sound");
        assert_eq!((reply.xattrs["attribute"].as_ref(), reply.data.as_ref()), (&b"value"[..], &b"data"[..]));
        assert_eq!((reply.page, reply.more), (entries, true));
        let keys = ObjectRead::keys(&object, vec![bytes("k")]);
        assert_eq!(keys.read().fetches, [Fetch::Attrs, Fetch::Keys(vec![bytes("k")])]);
        let parts = vec![pairs("attribute"), pairs("k")];
        let reply = keys.parse_reply(ReadReply { version: 1, parts }).expect("sound");
        assert_eq!((reply.xattrs.len(), reply.values.len()), (1, 1));
    }

    #[test]
    fn an_object_is_created_only_where_there_is_none() {
        let op = ObjectOp::create(&queue_object("", "t", 0)).set_xattr("a", &Bytes::from_static(b"v"));
        assert_eq!(op.write.guards, [Guard::Create]);
        assert_eq!(op.write.steps, [Step::SetAttr("a", Bytes::from_static(b"v"))]);
    }
}
