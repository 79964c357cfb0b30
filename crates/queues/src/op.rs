//! Descriptions of compound operations on one RADOS object.
//!
//! The vocabulary is what the C interface of librados 16.2 can express: a write is guards and steps without
//! reads in it, and attributes and omap values are compared as bytes. An operation is applied whole or not at
//! all. This module depends on nothing else of the crate.

use bytes::Bytes;
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

/// A condition. All guards of an operation come before its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The object exists (`assert_exists`); otherwise the operation fails with ENOENT.
    Exists,
    /// The attribute has this value (`cmpxattr`, byte-wise, EQ); otherwise ECANCELED. An absent attribute
    /// counts as empty.
    XattrEquals {
        /// The attribute.
        name: &'static str,
        /// Its value; empty for absent.
        value: Bytes,
    },
    /// The omap entry has this value (`omap_cmp2`, EQ); otherwise ECANCELED. An absent entry counts as empty.
    OmapEquals {
        /// The key.
        key: Bytes,
        /// Its value; empty for absent.
        value: Bytes,
    },
}

/// A part of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates the object; with `exclusive` the operation fails with EEXIST where it exists.
    Create {
        /// Fail where it exists.
        exclusive: bool,
    },
    /// Replaces the data.
    WriteFull(Bytes),
    /// Sets an attribute.
    SetXattr {
        /// The attribute.
        name: &'static str,
        /// The value.
        value: Bytes,
    },
    /// Sets omap entries.
    OmapSet(Vec<(Bytes, Bytes)>),
    /// Removes omap entries; absent ones are ignored.
    OmapRemove(Vec<Bytes>),
    /// Removes all omap entries.
    OmapClear,
    /// Calls a method of an object class that writes and returns nothing (`rados_write_op_exec`).
    Call {
        /// The class.
        class: &'static str,
        /// The method.
        method: &'static str,
        /// Its input, encoded.
        input: Bytes,
    },
    /// Removes the object. The last step.
    Remove,
}

/// A compound write of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectOp {
    /// The object.
    pub object: ObjectKey,
    /// What must hold.
    pub guards: Vec<Guard>,
    /// What is done then, in this order.
    pub steps: Vec<Step>,
}

impl ObjectOp {
    /// An operation on an object that must exist.
    pub fn on(object: &ObjectKey) -> ObjectOp {
        ObjectOp { object: object.clone(), guards: vec![Guard::Exists], steps: Vec::new() }
    }

    /// An operation that creates an object that must not exist.
    pub fn create(object: &ObjectKey) -> ObjectOp {
        let steps = vec![Step::Create { exclusive: true }];
        ObjectOp { object: object.clone(), guards: Vec::new(), steps }
    }

    /// Adds a guard on an attribute.
    #[must_use]
    pub fn if_xattr(mut self, name: &'static str, value: &Bytes) -> ObjectOp {
        self.guards.push(Guard::XattrEquals { name, value: value.clone() });
        self
    }

    /// Adds a guard on an omap entry.
    #[must_use]
    pub fn if_omap(mut self, key: Bytes, value: Bytes) -> ObjectOp {
        self.guards.push(Guard::OmapEquals { key, value });
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn then(mut self, step: Step) -> ObjectOp {
        self.steps.push(step);
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn set_xattr(self, name: &'static str, value: &Bytes) -> ObjectOp {
        self.then(Step::SetXattr { name, value: value.clone() })
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

/// A page of omap entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The last key of the page before; empty for the first page.
    pub after: Bytes,
    /// What the keys begin with.
    pub prefix: Bytes,
    /// The most entries.
    pub max: u64,
}

/// A compound read of one object: all parts see the same state of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRead {
    /// The object.
    pub object: ObjectKey,
    /// Omap entries to read by key.
    pub keys: Vec<Bytes>,
    /// A page of the omap.
    pub page: Option<PageRequest>,
    /// Whether the data is read. The attributes always are.
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
}

/// What an [`ObjectRead`] of an object that exists returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectReply {
    /// All attributes.
    pub xattrs: BTreeMap<String, Bytes>,
    /// The entries that were asked for by key and exist.
    pub values: BTreeMap<Bytes, Bytes>,
    /// The page, in the order of the keys.
    pub page: Vec<(Bytes, Bytes)>,
    /// Whether there are entries behind the page.
    pub more: bool,
    /// The data.
    pub data: Bytes,
}
