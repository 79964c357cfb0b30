//! The OSDMap: the common state of the cluster, published by the map authority in epochs.
//!
//! In addition to the contents of Ceph's OSDMap, it contains every PG's membership ([`PgMembership`]): interval, primary and
//! in-sync set, which change only by compare-and-swap at the map authority.

mod file;
mod min_client;

use crate::caps::network::Network;
use crate::encoding::{self, DecodeError, Versioned};
use crate::ids::{EntityName, Epoch, Incarnation, Interval, OsdId, PgId, PoolId};
use crate::pool::Pool;
use nacre_crush::CrushMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;
use uuid::Uuid;

/// 1.0 in the 16.16 fixed point of reweights and affinities.
pub const WEIGHT_ONE: u32 = 0x1_0000;

/// The prefix of blocklist entries for ranges of addresses: `cidr:10.1.0.0:0/16`, as in Ceph.
pub const BLOCKLIST_RANGE_PREFIX: &str = "cidr:";

/// Bits of [`OsdMap::flags`] (`osd set`), numbered as in Ceph.
pub mod flag {
    /// Space is running out.
    pub const NEARFULL: u32 = 1 << 0;
    /// No space for writes.
    pub const FULL: u32 = 1 << 1;
    /// Clients pause reads.
    pub const PAUSERD: u32 = 1 << 2;
    /// Clients pause writes.
    pub const PAUSEWR: u32 = 1 << 3;
    /// OSDs may not come up.
    pub const NOUP: u32 = 1 << 5;
    /// OSDs are not marked down.
    pub const NODOWN: u32 = 1 << 6;
    /// OSDs are not marked out.
    pub const NOOUT: u32 = 1 << 7;
    /// Booting OSDs are not marked in.
    pub const NOIN: u32 = 1 << 8;
    /// No backfill.
    pub const NOBACKFILL: u32 = 1 << 9;
    /// No recovery.
    pub const NORECOVER: u32 = 1 << 10;
    /// No scrub.
    pub const NOSCRUB: u32 = 1 << 11;
    /// No deep scrub.
    pub const NODEEP_SCRUB: u32 = 1 << 12;
    /// Cache tier agents are idle.
    pub const NOTIERAGENT: u32 = 1 << 13;
    /// No backfill that only moves data.
    pub const NOREBALANCE: u32 = 1 << 14;
    /// Objects order by reversed hash bits.
    pub const SORTBITWISE: u32 = 1 << 15;
    /// Deletes are recovered.
    pub const RECOVERY_DELETES: u32 = 1 << 18;
    /// Snapshots are purged by epoch.
    pub const PURGED_SNAPDIRS: u32 = 1 << 19;
    /// No snapshot trimming.
    pub const NOSNAPTRIM: u32 = 1 << 20;
    /// The pg counts are hard limits.
    pub const PGLOG_HARDLIMIT: u32 = 1 << 21;

    /// Flag names in the order in which `osd dump` prints them.
    pub const NAMES: &[(u32, &str)] = &[
        (NEARFULL, "nearfull"),
        (FULL, "full"),
        (PAUSERD, "pauserd"),
        (PAUSEWR, "pausewr"),
        (NOUP, "noup"),
        (NODOWN, "nodown"),
        (NOOUT, "noout"),
        (NOIN, "noin"),
        (NOBACKFILL, "nobackfill"),
        (NORECOVER, "norecover"),
        (NOSCRUB, "noscrub"),
        (NODEEP_SCRUB, "nodeep-scrub"),
        (NOTIERAGENT, "notieragent"),
        (NOREBALANCE, "norebalance"),
        (SORTBITWISE, "sortbitwise"),
        (RECOVERY_DELETES, "recovery_deletes"),
        (PURGED_SNAPDIRS, "purged_snapdirs"),
        (NOSNAPTRIM, "nosnaptrim"),
        (PGLOG_HARDLIMIT, "pglog_hardlimit"),
    ];
}

/// One member of a PG's in-sync set (rule R2): an OSD with the store contents with which it joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The OSD.
    pub osd: OsdId,
    /// Its store's incarnation. A wiped OSD has another one and is not this member.
    pub incarnation: Incarnation,
}

/// A PG's membership, changed only by compare-and-swap on `interval`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PgMembership {
    /// Each change raises it by one.
    pub interval: Interval,
    /// The OSD that orders the PG's operations; always one of `in_sync`.
    pub primary: OsdId,
    /// The members that have every acknowledged write, including the primary, in the order in which they would take over.
    pub in_sync: Vec<Member>,
}

impl PgMembership {
    /// Whether `member` has every acknowledged write.
    pub fn is_in_sync(&self, member: Member) -> bool {
        self.in_sync.contains(&member)
    }

    /// The in-sync OSDs' ids, primary first: the acting set.
    pub fn acting(&self) -> Vec<OsdId> {
        let others = self.in_sync.iter().map(|m| m.osd).filter(|o| *o != self.primary);
        std::iter::once(self.primary).chain(others).collect()
    }
}

/// The state of one OSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdInfo {
    /// Identity of the OSD's disk, as passed to `osd new`.
    pub uuid: Uuid,
    /// Whether the map authority considers it alive.
    pub up: bool,
    /// Reweight, 16.16: 0 is out, [`WEIGHT_ONE`] fully in.
    pub weight: u32,
    /// The weight before it was marked out automatically, restored when it comes back.
    pub weight_before_auto_out: Option<u32>,
    /// Primary affinity, 16.16.
    pub primary_affinity: u32,
    /// The address for clients and peers.
    pub addr: Option<SocketAddr>,
    /// The incarnation of its store at the last boot.
    pub incarnation: Option<Incarnation>,
    /// Identifies the running process; each boot has a new one.
    pub boot_nonce: u64,
    /// Epoch of the last boot.
    pub up_from: Epoch,
    /// Last epoch in which an earlier boot was up.
    pub up_thru: Epoch,
    /// Epoch in which it was last marked down.
    pub down_at: Epoch,
    /// Epoch in which the operator declared its data lost.
    pub lost_at: Epoch,
    /// Whether its store is too full for writes (rule R8, `OSD_FULL`).
    pub full: bool,
    /// `osd metadata`: hostname, objectstore, version and so on.
    pub metadata: BTreeMap<String, String>,
}

impl OsdInfo {
    /// Whether its disk is permanently lost (`osd destroy`), so that the id can be used for another one.
    pub fn is_destroyed(&self) -> bool {
        self.uuid.is_nil() && !self.up && self.up_from > Epoch(0)
    }

    /// Returns an OSD of which only the id is known: down and out, never up.
    pub fn never_up() -> OsdInfo {
        OsdInfo {
            uuid: Uuid::nil(),
            up: false,
            weight: 0,
            weight_before_auto_out: None,
            primary_affinity: WEIGHT_ONE,
            addr: None,
            incarnation: None,
            boot_nonce: 0,
            up_from: Epoch(0),
            up_thru: Epoch(0),
            down_at: Epoch(0),
            lost_at: Epoch(0),
            full: false,
            metadata: BTreeMap::new(),
        }
    }

    /// Whether it takes part in placement.
    pub fn is_in(&self) -> bool {
        self.weight > 0
    }
}

/// Identifies a history of maps: a hash over all incrementals up to an epoch. Two maps of one epoch and generation with
/// different hashes come from a map store that was restored from an old copy, and then continued, without a new generation.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HistoryHash([u8; 16]);

impl HistoryHash {
    /// The history of a map that no incremental has changed, or of a release that kept no history.
    pub const NONE: HistoryHash = HistoryHash([0; 16]);

    /// The first bytes of the SHA-256 sum of an incremental that names the history before it.
    fn of(incremental: &[u8]) -> HistoryHash {
        let sum = Sha256::digest(incremental);
        HistoryHash(*sum.first_chunk().expect("invariant: the sum has 32 bytes"))
    }

    /// Whether both are known and differ.
    pub fn contradicts(self, other: HistoryHash) -> bool {
        self != other && self != HistoryHash::NONE && other != HistoryHash::NONE
    }
}

impl fmt::Display for HistoryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HistoryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What identifies a map in the history of its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapVersion {
    /// The MapStore generation; 0 for no map.
    pub generation: u64,
    /// The epoch.
    pub epoch: Epoch,
    /// The history that leads to it.
    pub history: HistoryHash,
}

/// One epoch of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdMap {
    /// The cluster's id.
    pub fsid: Uuid,
    /// This map's version.
    pub epoch: Epoch,
    /// Identity of the MapStore's history: restoring an old copy starts a new generation (rule R7).
    pub generation: u64,
    /// The generation's first epoch.
    pub generation_from: Epoch,
    /// Creation of the cluster, nanoseconds since 1970.
    pub created_ns: u64,
    /// Time of this epoch, nanoseconds since 1970.
    pub modified_ns: u64,
    /// Bits of [`flag`].
    pub flags: u32,
    /// The highest pool id ever assigned (rule R2: never reused).
    pub pool_max: PoolId,
    /// The pools.
    pub pools: BTreeMap<PoolId, Arc<Pool>>,
    /// The OSDs that exist.
    pub osds: BTreeMap<OsdId, OsdInfo>,
    /// One more than the highest OSD id ever in use.
    pub max_osd: u32,
    /// The hierarchy and rules.
    pub crush: Arc<CrushMap>,
    /// Membership per PG, by pool and seed; `None` before the PG is created.
    pub pgs: BTreeMap<PoolId, Arc<Vec<Option<PgMembership>>>>,
    /// `pg-upmap` overrides.
    pub pg_upmap: BTreeMap<PgId, Vec<OsdId>>,
    /// `pg-upmap-items` overrides: (from, to) pairs.
    pub pg_upmap_items: BTreeMap<PgId, Vec<(OsdId, OsdId)>>,
    /// Clients that may not do I/O, by address or `client.ID`. An entry is effective while it is present. Its value is its
    /// expiry in nanoseconds since 1970, by which only the map authority removes it.
    pub blocklist: BTreeMap<String, u64>,
    /// `full_ratio`.
    pub full_ratio: f32,
    /// `backfillfull_ratio`.
    pub backfillfull_ratio: f32,
    /// `nearfull_ratio`.
    pub nearfull_ratio: f32,
    /// The history that leads to this map.
    pub history: HistoryHash,
}

impl Versioned for OsdMap {
    const NAME: &'static str = "OsdMap";
    const VERSION: u8 = 2;

    /// Version 1 had no history.
    fn decode_old(_version: u8, body: &[u8]) -> Result<Self, DecodeError> {
        encoding::decode_body(Self::NAME, &[body, &HistoryHash::NONE.0].concat())
    }
}

/// One PG's new membership inside an [`Incremental`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PgChange {
    /// The PG.
    pub pg: PgId,
    /// Its membership from this epoch on.
    pub membership: PgMembership,
}

/// The change from epoch `epoch - 1` to `epoch`. Fields that are `None` or empty change nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Incremental {
    /// The cluster's id.
    pub fsid: Uuid,
    /// The resulting epoch.
    pub epoch: Epoch,
    /// Time of this epoch, nanoseconds since 1970.
    pub modified_ns: u64,
    /// A new MapStore generation.
    pub generation: Option<u64>,
    /// The new flags, complete.
    pub flags: Option<u32>,
    /// A higher pool id in use.
    pub pool_max: Option<PoolId>,
    /// Pools created or changed, complete.
    pub pools: BTreeMap<PoolId, Arc<Pool>>,
    /// Pools removed.
    pub removed_pools: Vec<PoolId>,
    /// OSDs created or changed, complete.
    pub osds: BTreeMap<OsdId, OsdInfo>,
    /// OSDs removed.
    pub removed_osds: Vec<OsdId>,
    /// A new `max_osd`.
    pub max_osd: Option<u32>,
    /// A new CRUSH map.
    pub crush: Option<Arc<CrushMap>>,
    /// New memberships.
    pub pgs: Vec<PgChange>,
    /// Upmaps set (`Some`) or removed.
    pub pg_upmap: BTreeMap<PgId, Option<Vec<OsdId>>>,
    /// Upmap items set (`Some`) or removed.
    pub pg_upmap_items: BTreeMap<PgId, Option<Vec<(OsdId, OsdId)>>>,
    /// Blocklist entries set (`Some`, expiry) or removed.
    pub blocklist: BTreeMap<String, Option<u64>>,
    /// New full, backfillfull and nearfull ratios.
    pub ratios: Option<(f32, f32, f32)>,
    /// The history of the map that it changes.
    pub previous_history: HistoryHash,
    /// The history of the resulting map.
    pub history: HistoryHash,
}

impl Versioned for Incremental {
    const NAME: &'static str = "OsdMap::Incremental";
    const VERSION: u8 = 2;

    /// Version 1 had no histories.
    fn decode_old(_version: u8, body: &[u8]) -> Result<Self, DecodeError> {
        let none = HistoryHash::NONE.0;
        encoding::decode_body(Self::NAME, &[body, &none, &none].concat())
    }
}

impl Incremental {
    /// Whether it changes anything.
    pub fn is_empty(&self) -> bool {
        let nothing = Incremental {
            fsid: self.fsid,
            epoch: self.epoch,
            modified_ns: self.modified_ns,
            previous_history: self.previous_history,
            history: self.history,
            ..Incremental::default()
        };
        *self == nothing
    }

    /// Sets the histories: this incremental continues `previous`.
    pub fn continue_history(&mut self, previous: HistoryHash) {
        (self.previous_history, self.history) = (previous, HistoryHash::NONE);
        self.history = HistoryHash::of(&encoding::encode(self));
    }
}

impl OsdMap {
    /// Creates the empty map of a new cluster, at epoch 1.
    pub fn new(fsid: Uuid, created_ns: u64, crush: CrushMap) -> OsdMap {
        OsdMap {
            fsid,
            epoch: Epoch(1),
            generation: 1,
            generation_from: Epoch(1),
            created_ns,
            modified_ns: created_ns,
            flags: flag::SORTBITWISE | flag::RECOVERY_DELETES | flag::PURGED_SNAPDIRS | flag::PGLOG_HARDLIMIT,
            pool_max: PoolId(0),
            pools: BTreeMap::new(),
            osds: BTreeMap::new(),
            max_osd: 0,
            crush: Arc::new(crush),
            pgs: BTreeMap::new(),
            pg_upmap: BTreeMap::new(),
            pg_upmap_items: BTreeMap::new(),
            blocklist: BTreeMap::new(),
            full_ratio: 0.95,
            backfillfull_ratio: 0.90,
            nearfull_ratio: 0.85,
            history: HistoryHash::NONE,
        }
    }

    /// Returns the next epoch's map. Fails for an incremental of another cluster, of an epoch other than the next, or of
    /// another history.
    pub fn apply(&self, inc: &Incremental) -> Result<OsdMap, DecodeError> {
        let refuse = |detail: String| DecodeError::Corrupt { what: Incremental::NAME, detail };
        if inc.fsid != self.fsid {
            return Err(refuse(format!("belongs to cluster {}, this is {}", inc.fsid, self.fsid)));
        }
        if inc.epoch != self.epoch.next() {
            return Err(refuse(format!("makes epoch {}, but the map is at {}", inc.epoch, self.epoch)));
        }
        if inc.previous_history != self.history {
            return Err(refuse(format!(
                "continues history {}, but the map of epoch {} has history {}",
                inc.previous_history, self.epoch, self.history
            )));
        }
        let mut map = self.clone();
        map.epoch = inc.epoch;
        map.history = inc.history;
        map.modified_ns = inc.modified_ns;
        if let Some(generation) = inc.generation.filter(|g| *g != map.generation) {
            (map.generation, map.generation_from) = (generation, inc.epoch);
        }
        map.flags = inc.flags.unwrap_or(map.flags);
        map.pool_max = inc.pool_max.unwrap_or(map.pool_max);
        map.max_osd = inc.max_osd.unwrap_or(map.max_osd);
        if let Some(crush) = &inc.crush {
            map.crush = crush.clone();
        }
        if let Some((full, backfillfull, nearfull)) = inc.ratios {
            (map.full_ratio, map.backfillfull_ratio, map.nearfull_ratio) = (full, backfillfull, nearfull);
        }
        for id in &inc.removed_pools {
            map.pools.remove(id);
            map.pgs.remove(id);
            map.pg_upmap.retain(|pg, _| pg.pool != *id);
            map.pg_upmap_items.retain(|pg, _| pg.pool != *id);
        }
        for (id, pool) in &inc.pools {
            let pgs = Arc::make_mut(map.pgs.entry(*id).or_default());
            pgs.resize(pool.pg_num as usize, None);
            map.pools.insert(*id, pool.clone());
        }
        map.osds.extend(inc.osds.iter().map(|(id, info)| (*id, info.clone())));
        map.osds.retain(|id, _| !inc.removed_osds.contains(id));
        for change in &inc.pgs {
            let slot = map
                .pgs
                .get_mut(&change.pg.pool)
                .and_then(|pgs| Arc::make_mut(pgs).get_mut(change.pg.seed as usize))
                .ok_or_else(|| refuse(format!("names pg {}, which does not exist", change.pg)))?;
            *slot = Some(change.membership.clone());
        }
        merge(&mut map.pg_upmap, &inc.pg_upmap);
        merge(&mut map.pg_upmap_items, &inc.pg_upmap_items);
        merge(&mut map.blocklist, &inc.blocklist);
        Ok(map)
    }

    /// What identifies this map.
    pub fn version(&self) -> MapVersion {
        MapVersion { generation: self.generation, epoch: self.epoch, history: self.history }
    }

    /// Returns the pool `name`.
    pub fn pool_by_name(&self, name: &str) -> Option<(PoolId, &Arc<Pool>)> {
        self.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, pool)| (*id, pool))
    }

    /// Returns a PG's membership, or `None` if the PG does not exist or is not created yet.
    pub fn membership(&self, pg: PgId) -> Option<&PgMembership> {
        self.pgs.get(&pg.pool)?.get(pg.seed as usize)?.as_ref()
    }

    /// All PGs within their pools' `pg_num`, created or not.
    pub fn pg_ids(&self) -> impl Iterator<Item = PgId> + '_ {
        self.pools.iter().flat_map(|(id, pool)| (0..pool.pg_num).map(|seed| PgId::new(*id, seed)))
    }

    /// Whether the OSD exists and is up.
    pub fn is_up(&self, osd: OsdId) -> bool {
        self.osds.get(&osd).is_some_and(|info| info.up)
    }

    /// Whether the OSD is up with exactly this store incarnation.
    pub fn is_member_up(&self, member: Member) -> bool {
        self.osds.get(&member.osd).is_some_and(|info| info.up && info.incarnation == Some(member.incarnation))
    }

    /// The OSD's address while it is up.
    pub fn addr(&self, osd: OsdId) -> Option<SocketAddr> {
        self.osds.get(&osd).filter(|info| info.up).and_then(|info| info.addr)
    }

    /// The OSD as a member of in-sync sets, while it is up.
    pub fn up_member(&self, osd: OsdId) -> Option<Member> {
        let info = self.osds.get(&osd).filter(|info| info.up)?;
        info.incarnation.map(|incarnation| Member { osd, incarnation })
    }

    /// Whether all bits of `flag` are set.
    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags & flag == flag
    }

    /// Whether `client` may not do I/O. This is independent of clocks: a wrong clock must not admit a fenced client.
    pub fn is_blocklisted(&self, client: &str) -> bool {
        self.blocklist.contains_key(client)
    }

    /// Whether a blocklisted range of addresses contains `addr`.
    pub fn is_range_blocklisted(&self, addr: IpAddr) -> bool {
        let from =
            self.blocklist.range::<str, _>((Bound::Included(BLOCKLIST_RANGE_PREFIX), Bound::Unbounded));
        let mut ranges = from.map_while(|(who, _)| who.strip_prefix(BLOCKLIST_RANGE_PREFIX));
        ranges.any(|range| network_of(range).is_some_and(|net| net.contains(addr)))
    }

    /// The OSD with this entity's name, if it exists.
    pub fn osd_of(&self, entity: &EntityName) -> Option<OsdId> {
        entity.osd_id().filter(|id| self.osds.contains_key(id))
    }

    /// The membership's interval; 0 if the PG is not created yet.
    pub fn interval(&self, pg: PgId) -> Interval {
        self.membership(pg).map_or(Interval(0), |m| m.interval)
    }
}

/// Parses the network in `10.1.0.0:0/16`.
fn network_of(range: &str) -> Option<Network> {
    let (first, bits) = range.rsplit_once('/')?;
    let first: SocketAddr = first.parse().ok()?;
    Some(Network::parse(&format!("{}/{bits}", first.ip())))
}

fn merge<K: Ord + Clone, V: Clone>(into: &mut BTreeMap<K, V>, changes: &BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => into.insert(key.clone(), value.clone()),
            None => into.remove(key),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_blocklist_shut_out_their_addresses_while_they_are_in_the_map() {
        let crush = CrushMap::new_cluster("osd").unwrap();
        let mut map = OsdMap::new(Uuid::from_u128(1), 0, crush);
        map.blocklist = [
            ("10.1.2.3:0/7".to_owned(), 100),
            ("cidr:10.1.0.0:0/16".to_owned(), 100),
            ("cidr:[fd00::]:0/8".to_owned(), 0),
            ("client.4".to_owned(), 0),
        ]
        .into();
        for (addr, expected) in [
            ("10.1.255.1", true),
            ("::ffff:10.1.255.1", true),
            ("10.2.0.1", false),
            ("fd12::1", true),
            ("fe12::1", false),
        ] {
            assert_eq!(map.is_range_blocklisted(addr.parse().unwrap()), expected, "{addr}");
        }
        assert!(map.is_blocklisted("client.4") && map.is_blocklisted("10.1.2.3:0/7"));
        assert!(!map.is_blocklisted("client.5"));
    }
}
