//! Class `version`: a version of an object that the user controls (`cls_version_ops.h`).

use crate::ceph::{CephEncoding, Decoder, Encoder};
use crate::encoding::DecodeError;
use bytes::Bytes;

/// A version (`obj_version`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjVersion {
    /// The number, which increases.
    pub version: u64,
    /// Identifies the object: a new one gets another tag.
    pub tag: Bytes,
}

/// The condition on the stored version (`VersionCond`): `stored COND given`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// None; also for numbers that no release defines.
    None,
    /// Same version and tag.
    Eq,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Same tag.
    TagEq,
    /// Another tag.
    TagNe,
}

const CONDITIONS: [Condition; 8] = [
    Condition::None,
    Condition::Eq,
    Condition::Gt,
    Condition::Ge,
    Condition::Lt,
    Condition::Le,
    Condition::TagEq,
    Condition::TagNe,
];

impl Condition {
    /// Whether the condition is true.
    pub fn holds(self, stored: &ObjVersion, given: &ObjVersion) -> bool {
        match self {
            Condition::None => true,
            Condition::Eq => stored == given,
            Condition::Gt => stored.version > given.version,
            Condition::Ge => stored.version >= given.version,
            Condition::Lt => stored.version < given.version,
            Condition::Le => stored.version <= given.version,
            Condition::TagEq => stored.tag == given.tag,
            Condition::TagNe => stored.tag != given.tag,
        }
    }
}

/// Input of `set`, output of `read`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionOp {
    /// The version.
    pub version: ObjVersion,
}

/// Input of `inc`, `inc_conds` and `check_conds`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionsOp {
    /// Unused, as in Ceph.
    pub version: ObjVersion,
    /// Conditions that must all be true.
    pub conditions: Vec<(ObjVersion, Condition)>,
}

impl CephEncoding for ObjVersion {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.u64(self.version);
            out.bytes(&self.tag);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(ObjVersion { version: from.u64()?, tag: from.bytes()? }))
    }
}

impl CephEncoding for VersionOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| self.version.encode_to(out));
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(VersionOp { version: ObjVersion::decode_from(from)? }))
    }
}

impl CephEncoding for ConditionsOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            self.version.encode_to(out);
            out.count(self.conditions.len());
            for (version, condition) in &self.conditions {
                out.structure(1, 1, |out| {
                    version.encode_to(out);
                    let number = CONDITIONS.iter().position(|known| known == condition);
                    out.u32(number.map_or(0, |number| number as u32));
                });
            }
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            let version = ObjVersion::decode_from(from)?;
            let conditions = from.list(|from| {
                from.structure(1, |_, from| {
                    let version = ObjVersion::decode_from(from)?;
                    let number = from.u32()? as usize;
                    Ok((version, CONDITIONS.get(number).copied().unwrap_or(Condition::None)))
                })
            })?;
            Ok(ConditionsOp { version, conditions })
        })
    }
}
