//! The OSD's metadata in an object's attributes.

use crate::encoding::Versioned;
use crate::ids::{Epoch, Eversion, ReqId};
use serde::{Deserialize, Serialize};

/// The attribute with a head object's [`ObjectInfo`] (`OI_ATTR`).
pub const OI_ATTR: &str = "_";

/// Returns the stored name of a user's attribute: with a leading underscore, as in Ceph.
pub fn user_attr(name: &str) -> String {
    ["_", name].concat()
}

/// Bits of [`ObjectInfo::flags`], numbered as in Ceph's `object_info_t`.
pub mod object_flag {
    /// Logically deleted in a cache tier.
    pub const WHITEOUT: u32 = 1 << 1;
    /// Changed since its last flush to the base tier.
    pub const DIRTY: u32 = 1 << 2;
    /// Has omap data.
    pub const OMAP: u32 = 1 << 3;
    /// Whole-object data digest is valid.
    pub const DATA_DIGEST: u32 = 1 << 4;
    /// Omap digest is valid.
    pub const OMAP_DIGEST: u32 = 1 << 5;
    /// Pinned in a cache tier.
    pub const CACHE_PIN: u32 = 1 << 6;
    /// A copy in a cache tier that is invalid because the base has changed; it must be promoted again. Not in Ceph.
    pub const OBSOLETE: u32 = 1 << 31;
}

/// The OSD's metadata of an object in addition to the store's (`object_info_t`), in attribute [`OI_ATTR`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// The last update.
    pub version: Eversion,
    /// The update before it.
    pub prior_version: Eversion,
    /// The version for users, which increases with changes of data, attributes and omap.
    pub user_version: u64,
    /// The request of the last update.
    pub last_reqid: ReqId,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: u64,
    /// Bits of [`object_flag`].
    pub flags: u32,
    /// Expected object size in bytes, from the allocation hint.
    pub expected_object_size: u64,
    /// Expected write size in bytes, from the allocation hint.
    pub expected_write_size: u64,
    /// Allocation hint flags.
    pub alloc_hint_flags: u32,
    /// crc32c of the data, seed -1, if DATA_DIGEST is set.
    pub data_digest: u32,
    /// crc32c of the omap, if OMAP_DIGEST is set.
    pub omap_digest: u32,
    /// Watches that persist with the object (rule R9), by client and cookie.
    pub watchers: Vec<WatchInfo>,
    /// The truncation sequence given for a copy.
    pub truncate_seq: u32,
    /// The truncation size given for a copy, in bytes.
    pub truncate_size: u64,
    /// Requests that changed the object of which this is a copy, with the resulting user version of each, newest first. Their
    /// resends are not executed here.
    pub copied_requests: Vec<(ReqId, u64)>,
    /// In a cache tier: the epoch of the map by which the base's state was read from which this object originates; 0 for
    /// objects that do not come from a base.
    pub tier_epoch: Epoch,
}

impl Versioned for ObjectInfo {
    const NAME: &'static str = "ObjectInfo";
    const VERSION: u8 = 3;

    fn decode_old(version: u8, body: &[u8]) -> Result<Self, crate::encoding::DecodeError> {
        // Version 1 ends before truncation and copied requests, version 2 before the tier's epoch. Each zero is one byte.
        let missing = if version == 1 { &[0; 4][..] } else { &[0] };
        crate::encoding::decode_body(Self::NAME, &[body, missing].concat())
    }
}

/// A watch registered on an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchInfo {
    /// The watching client.
    pub client: crate::ids::ClientId,
    /// The client's cookie.
    pub cookie: u64,
    /// The watch times out after this many seconds without a ping.
    pub timeout_s: u32,
    /// The client's address, for listings.
    pub addr: String,
}
