//! The state of a shard: the attribute that tells whether changes may be prepared and finished in it.
//!
//! | state | prepare | finish |
//! |---|---|---|
//! | [`OPEN`], or [`VERSIONED`] in a bucket with versions | yes | yes |
//! | [`closed`] by an attempt | no | yes |
//! | [`frozen`] by an attempt that moves its records | no | no |
//!
//! The states of format 1 (`open`, `versioned`) are different, so a gateway that does not know this format prepares
//! nothing.

use crate::op::Guard;
use bytes::Bytes;

/// The attribute.
pub const STATE: &str = "rgw.state";
/// Changes may be prepared.
pub const OPEN: &str = "open 2";
/// Changes may be prepared by gateways that know that the bucket has versions.
pub const VERSIONED: &str = "versioned 2";
/// The prefix of the states of closed shards; the attempt's tag follows.
const CLOSED: &str = "closed by ";
/// The prefix of the states of frozen shards; it sorts after all others.
const FROZEN: &str = "~frozen by ";
/// All states except the frozen ones are less.
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
pub fn guard_equals(state: &str) -> Guard {
    Guard::AttrEquals(STATE, Bytes::copy_from_slice(state.as_bytes()))
}

/// The shard is not frozen: records may be finished or removed.
pub fn guard_not_frozen() -> Guard {
    Guard::AttrBelow(STATE, Bytes::from_static(LIMIT))
}

/// Whether no change may be finished in a shard with this state.
pub fn is_frozen(state: &[u8]) -> bool {
    state >= LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frozen_shards_refuse_to_finish() {
        let Guard::AttrBelow(STATE, limit) = guard_not_frozen() else { panic!("another guard") };
        for state in [OPEN, VERSIONED, &closed("t"), "open", "versioned"] {
            assert!(state.as_bytes() < &limit[..] && !is_frozen(state.as_bytes()), "{state}");
        }
        assert!(frozen("t").as_bytes() >= &limit[..] && is_frozen(frozen("t").as_bytes()));
    }
}
