//! Descriptions of compound operations on one object, in terms that every librados of Ceph 16.2 and 18.2 supports.
//!
//! A [`Write`] consists of guards, then steps, applied completely or not at all. It reads nothing and returns only its result
//! and the object's version. Attributes are compared as bytes, omap values for equality or presence: Ceph's `omap_cmp` supports
//! no more. [`Write::ops`] and [`Read::ops`] translate one to one into the object operations of [`crate::op`].

use crate::encoding::{self, DecodeError};
use crate::errno::Errno;
use crate::op::{CmpOp, CmpValue, OmapValsReply, Op, OpResult, OsdOp, Pairs, op_flag};
use crate::payload::Payload;
use bytes::Bytes;
use std::collections::BTreeMap;

/// A condition of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The object exists, else ENOENT. Must precede every guard that compares.
    Exists,
    /// The object does not exist, else EEXIST; it is created.
    Create,
    /// The object has this RADOS version, else ERANGE or EOVERFLOW.
    Version(u64),
    /// The attribute has this value, else ECANCELED; an absent one counts as empty.
    AttrEquals(&'static str, Bytes),
    /// The attribute's value is less than this one as bytes, else ECANCELED.
    AttrBelow(&'static str, Bytes),
    /// The omap entry has this value, else ECANCELED.
    OmapEquals(Bytes, Bytes),
    /// The omap entry exists and is not empty, else ECANCELED.
    OmapPresent(Bytes),
    /// The omap entry is absent, else ECANCELED.
    OmapAbsent(Bytes),
}

/// A part of a write that changes the object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Replaces the data.
    WriteFull(Bytes),
    /// Writes at an offset in bytes.
    Write {
        /// The offset.
        offset: u64,
        /// The data.
        data: Bytes,
    },
    /// Sets the size in bytes.
    Truncate(u64),
    /// Sets an attribute.
    SetAttr(&'static str, Bytes),
    /// Removes an existing attribute.
    RemoveAttr(&'static str),
    /// Sets omap entries.
    OmapSet(Vec<(Bytes, Bytes)>),
    /// Removes omap entries; absent ones are ignored.
    OmapRemove(Vec<Bytes>),
    /// Removes the omap entries from `first` up to `end`, exclusive.
    OmapRemoveRange {
        /// The first removed key.
        first: Bytes,
        /// The first remaining key.
        end: Bytes,
    },
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
    /// Removes the object; the last step.
    Remove,
}

/// A compound write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Write {
    /// The conditions.
    pub guards: Vec<Guard>,
    /// The changes, in order.
    pub steps: Vec<Step>,
}

/// A part of a read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// All attributes.
    Attrs,
    /// Omap entries by key; absent ones are omitted.
    Keys(Vec<Bytes>),
    /// At most `max` omap entries after `after` whose keys start with `prefix`.
    Page {
        /// The prefix of their keys.
        prefix: Bytes,
        /// The last known key; empty at the start.
        after: Bytes,
        /// The maximum number of entries.
        max: u64,
    },
    /// All data.
    Data,
}

/// A compound read: all parts see the object at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Read {
    /// The parts.
    pub fetches: Vec<Fetch>,
}

/// A page of omap entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Page {
    /// In the order of their keys.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Whether there are more.
    pub more: bool,
}

/// The result of a part of a read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fetched {
    /// Attributes or entries by key.
    Pairs(BTreeMap<Bytes, Bytes>),
    /// A page.
    Page(Page),
    /// Data.
    Data(Bytes),
}

/// The result of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadReply {
    /// The object's version.
    pub version: u64,
    /// One for each part, in their order.
    pub parts: Vec<Fetched>,
}

/// Whether a write failed because the object was changed since it was read.
pub fn is_write_conflict(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::EEXIST | Errno::ECANCELED | Errno::ERANGE | Errno::EOVERFLOW)
}

impl Write {
    /// Returns the object operations, in order.
    pub fn ops(self) -> Vec<OsdOp> {
        let mut ops: Vec<OsdOp> = Vec::with_capacity(self.guards.len() + self.steps.len());
        let mut assertions: Vec<(Bytes, CmpOp, Bytes)> = Vec::new();
        for guard in self.guards {
            let op = match guard {
                Guard::Exists => Op::AssertExists,
                Guard::Create => {
                    ops.push(OsdOp { op: Op::Create { exclusive: true }, flags: op_flag::EXCL });
                    continue;
                }
                Guard::Version(version) => Op::AssertVersion { version },
                Guard::AttrEquals(name, value) => compare(name, CmpOp::Eq, value),
                // The given value is the left operand.
                Guard::AttrBelow(name, value) => compare(name, CmpOp::Gt, value),
                Guard::OmapEquals(key, value) => {
                    assertions.push((key, CmpOp::Eq, value));
                    continue;
                }
                // The stored value is the left operand.
                Guard::OmapPresent(key) => {
                    assertions.push((key, CmpOp::Gt, Bytes::new()));
                    continue;
                }
                Guard::OmapAbsent(key) => {
                    assertions.push((key, CmpOp::Eq, Bytes::new()));
                    continue;
                }
            };
            ops.push(OsdOp::from(op));
        }
        // One operation: Ceph stores the assertions as a map, so a key may occur only once.
        if !assertions.is_empty() {
            ops.push(OsdOp::from(Op::OmapCmp { assertions }));
        }
        ops.extend(self.steps.into_iter().map(|step| OsdOp::from(step.op())));
        ops
    }

    /// Whether the write changes nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

fn compare(name: &str, op: CmpOp, value: Bytes) -> Op {
    Op::CmpXattr { name: name.to_owned(), op, value: CmpValue::Bytes(value) }
}

impl Step {
    fn op(self) -> Op {
        match self {
            Step::WriteFull(data) => Op::WriteFull { data: Payload::from(data) },
            Step::Write { offset, data } => Op::Write { offset, data: Payload::from(data) },
            Step::Truncate(size) => Op::Truncate { size },
            Step::SetAttr(name, value) => Op::SetXattr { name: name.to_owned(), value },
            Step::RemoveAttr(name) => Op::RmXattr { name: name.to_owned() },
            Step::OmapSet(entries) => Op::OmapSet { entries },
            Step::OmapRemove(keys) => Op::OmapRmKeys { keys },
            Step::OmapRemoveRange { first, end } => Op::OmapRmRange { first, last: end },
            Step::OmapClear => Op::OmapClear,
            Step::Call { class, method, input } => {
                Op::Call { class: class.to_owned(), method: method.to_owned(), input }
            }
            Step::Remove => Op::Remove,
        }
    }
}

impl Read {
    /// Creates a read of these parts.
    pub fn of(fetches: Vec<Fetch>) -> Read {
        Read { fetches }
    }

    /// Returns the object operations, in order.
    pub fn ops(&self) -> Vec<OsdOp> {
        let op = |fetch: &Fetch| match fetch {
            Fetch::Attrs => Op::GetXattrs,
            Fetch::Keys(keys) => Op::OmapGetValsByKeys { keys: keys.clone() },
            Fetch::Page { prefix, after, max } => {
                Op::OmapGetVals { start_after: after.clone(), filter_prefix: prefix.clone(), max: *max }
            }
            Fetch::Data => Op::Read { offset: 0, len: 0 },
        };
        self.fetches.iter().map(|fetch| OsdOp::from(op(fetch))).collect()
    }

    /// Decodes the outputs of [`Read::ops`] and the version of their reply.
    pub fn decode_reply(&self, version: u64, outputs: &[OpResult]) -> Result<ReadReply, DecodeError> {
        let mut parts = Vec::with_capacity(self.fetches.len());
        for (at, fetch) in self.fetches.iter().enumerate() {
            let output = &outputs.get(at).ok_or_else(missing)?.output;
            parts.push(match fetch {
                Fetch::Attrs | Fetch::Keys(_) => {
                    let pairs: Pairs = encoding::decode(output)?;
                    Fetched::Pairs(pairs.0.into_iter().collect())
                }
                Fetch::Page { .. } => {
                    let page: OmapValsReply = encoding::decode(output)?;
                    Fetched::Page(Page { entries: page.entries, more: page.more })
                }
                Fetch::Data => Fetched::Data(output.clone()),
            });
        }
        Ok(ReadReply { version, parts })
    }
}

impl ReadReply {
    /// Returns part `at` as attributes or entries by key.
    pub fn pairs(&self, at: usize) -> Result<&BTreeMap<Bytes, Bytes>, DecodeError> {
        match self.parts.get(at) {
            Some(Fetched::Pairs(pairs)) => Ok(pairs),
            _ => Err(missing()),
        }
    }

    /// Returns part `at` as a page.
    pub fn page(&self, at: usize) -> Result<&Page, DecodeError> {
        match self.parts.get(at) {
            Some(Fetched::Page(page)) => Ok(page),
            _ => Err(missing()),
        }
    }
}

fn missing() -> DecodeError {
    DecodeError::Corrupt { what: "reply", detail: "a part is missing or of another kind".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn guards_become_comparisons_that_ceph_knows() {
        let write = Write {
            guards: vec![
                Guard::Exists,
                Guard::AttrBelow("a", bytes("~")),
                Guard::OmapEquals(bytes("x"), bytes("1")),
                Guard::OmapPresent(bytes("y")),
                Guard::OmapAbsent(bytes("z")),
            ],
            steps: vec![Step::OmapRemove(vec![bytes("y")])],
        };
        let ops: Vec<Op> = write.ops().into_iter().map(|op| op.op).collect();
        let below = CmpValue::Bytes(bytes("~"));
        assert_eq!(ops[0], Op::AssertExists);
        assert_eq!(ops[1], Op::CmpXattr { name: "a".into(), op: CmpOp::Gt, value: below });
        let assertions = vec![
            (bytes("x"), CmpOp::Eq, bytes("1")),
            (bytes("y"), CmpOp::Gt, Bytes::new()),
            (bytes("z"), CmpOp::Eq, Bytes::new()),
        ];
        assert_eq!(ops[2], Op::OmapCmp { assertions });
        assert_eq!(ops[3], Op::OmapRmKeys { keys: vec![bytes("y")] });
        assert_eq!(ops.len(), 4);
    }

    #[test]
    fn methods_are_called_in_their_place() {
        let call = Step::Call { class: "lock", method: "unlock", input: bytes("i") };
        let steps = vec![Step::OmapClear, call, Step::Remove];
        let ops: Vec<Op> = Write { guards: Vec::new(), steps }.ops().into_iter().map(|op| op.op).collect();
        let call = Op::Call { class: "lock".into(), method: "unlock".into(), input: bytes("i") };
        assert_eq!(ops, [Op::OmapClear, call, Op::Remove]);
    }

    #[test]
    fn a_creation_is_exclusive() {
        let write = Write { guards: vec![Guard::Create], steps: Vec::new() };
        assert_eq!(write.ops(), [OsdOp { op: Op::Create { exclusive: true }, flags: op_flag::EXCL }]);
    }

    #[test]
    fn replies_are_taken_apart_by_what_was_asked() {
        let page = Fetch::Page { prefix: bytes("P"), after: Bytes::new(), max: 3 };
        let read = Read::of(vec![Fetch::Attrs, page, Fetch::Data]);
        let pair = (bytes("k"), bytes("v"));
        let outputs = [
            OpResult::output(encoding::encode(&Pairs(vec![pair.clone()]))),
            OpResult::output(encoding::encode(&OmapValsReply { entries: vec![pair.clone()], more: true })),
            OpResult::output(bytes("data")),
        ];
        let reply = read.decode_reply(7, &outputs).unwrap();
        assert_eq!(reply.version, 7);
        assert_eq!(reply.pairs(0).unwrap(), &BTreeMap::from([pair.clone()]));
        assert_eq!(reply.page(1).unwrap(), &Page { entries: vec![pair], more: true });
        assert_eq!(reply.parts[2], Fetched::Data(bytes("data")));
        assert!(reply.page(0).is_err() && reply.pairs(2).is_err() && reply.page(3).is_err());
        assert!(read.decode_reply(7, &outputs[..2]).is_err());
        assert!(read.decode_reply(7, &[outputs[1].clone(), outputs[0].clone(), outputs[2].clone()]).is_err());
    }
}
