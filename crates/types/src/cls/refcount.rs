//! Class `refcount`: an object that exists as long as there are references to it (`cls_refcount_ops.h`).

use crate::ceph::{CephEncoding, Decoder, Encoder};
use crate::encoding::DecodeError;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Input of `get` and `put`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefOp {
    /// The tag of the reference.
    pub tag: Bytes,
    /// Whether an object without references counts as having one.
    pub implicit: bool,
}

/// Input of `set`, output of `read`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefList {
    /// The tags of the references.
    pub refs: Vec<Bytes>,
}

/// Input of `read`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOp {
    /// Whether an object without references counts as having one.
    pub implicit: bool,
}

/// The content of attribute `refcount` (`obj_refcount`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refcount {
    /// The tags of the references.
    pub refs: BTreeMap<Bytes, bool>,
    /// The tags of former references, which are not taken again.
    pub retired: BTreeSet<Bytes>,
}

impl CephEncoding for RefOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.bytes(&self.tag);
            out.u8(u8::from(self.implicit));
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(RefOp { tag: from.bytes()?, implicit: from.bool()? }))
    }
}

impl CephEncoding for RefList {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.count(self.refs.len());
            self.refs.iter().for_each(|tag| out.bytes(tag));
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(RefList { refs: from.list(Decoder::bytes)? }))
    }
}

impl CephEncoding for ReadOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| out.u8(u8::from(self.implicit)));
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(ReadOp { implicit: from.bool()? }))
    }
}

impl CephEncoding for Refcount {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(2, 1, |out| {
            out.count(self.refs.len());
            for (tag, held) in &self.refs {
                out.bytes(tag);
                out.u8(u8::from(*held));
            }
            out.count(self.retired.len());
            self.retired.iter().for_each(|tag| out.bytes(tag));
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(2, |version, from| {
            let refs = from.list(|from| Ok((from.bytes()?, from.bool()?)))?.into_iter().collect();
            let retired = if version >= 2 { from.list(Decoder::bytes)? } else { Vec::new() };
            Ok(Refcount { refs, retired: retired.into_iter().collect() })
        })
    }
}
