//! The state of a shard: the attribute that says whether changes may be prepared and finished in it.
//!
//! | state | prepare | finish |
//! |---|---|---|
//! | [`OPEN`], or [`VERSIONED`] in a bucket with versions | yes | yes |
//! | [`closed`] by an attempt | no | yes |
//! | [`frozen`] by an attempt that moves its records | no | no |
//!
//! The states of format 1 (`open`, `versioned`) differ, so that a gateway that does not know this format prepares nothing.

use crate::op::Guard;
use bytes::Bytes;

/// The attribute.
pub const STATE: &str = "rgw.state";
/// Changes may be prepared.
pub const OPEN: &str = "open 2";
/// Changes may be prepared by who knows that the bucket has versions.
pub const VERSIONED: &str = "versioned 2";
/// What the states of closed shards begin with; the attempt's tag follows.
const CLOSED: &str = "closed by ";
/// What the states of frozen shards begin with; sorts behind all others.
const FROZEN: &str = "~frozen by ";
/// All other states are less.
const LIMIT: &[u8] = b"~";

/// The state of a shard that the attempt `tag` closed.
pub fn closed(tag: &str) -> String {
    [CLOSED, tag].concat()
}

/// The state of a shard whose records the attempt `tag` moves.
pub fn frozen(tag: &str) -> String {
    [FROZEN, tag].concat()
}

/// The shard has exactly this state.
pub fn is(state: &str) -> Guard {
    Guard::AttrEquals(STATE, Bytes::copy_from_slice(state.as_bytes()))
}

/// The shard is not frozen: records may be finished or removed.
pub fn is_not_frozen() -> Guard {
    Guard::AttrBelow(STATE, Bytes::from_static(LIMIT))
}

/// Whether a shard in this state lets nothing be finished.
pub fn is_frozen(state: &[u8]) -> bool {
    state >= LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frozen_shards_refuse_to_finish() {
        let Guard::AttrBelow(STATE, limit) = is_not_frozen() else { panic!("another guard") };
        for state in [OPEN, VERSIONED, &closed("t"), "open", "versioned"] {
            assert!(state.as_bytes() < &limit[..] && !is_frozen(state.as_bytes()), "{state}");
        }
        assert!(frozen("t").as_bytes() >= &limit[..] && is_frozen(frozen("t").as_bytes()));
    }
}
