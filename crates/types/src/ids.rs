//! Newtypes for ids, versions and names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
        impl FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> { s.parse().map($name) }
        }
    };
}

number! {
    /// Version of the OSDMap; each published change raises it by one. 0 means none yet.
    Epoch(u32)
}
number! {
    /// A pool's id. Positive, never reused.
    PoolId(i64)
}
number! {
    /// Version of a PG's membership; each compare-and-swap of (primary, in-sync set) raises it by one. 0 means not created yet.
    /// Each MapStore generation has its own intervals, above those of all earlier ones (rule R7).
    Interval(u64)
}
number! {
    /// A client session's id, unique in the life of the cluster. The map authority assigns it at authentication.
    ClientId(u64)
}

impl Epoch {
    /// The next epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl Interval {
    /// Bits that count the changes within one generation.
    const COUNTER_BITS: u32 = 32;

    /// Of these, the bits that count the changes since the PG was last created.
    const LIFE_BITS: u32 = 20;

    /// The next interval of the same generation.
    pub fn next(self) -> Interval {
        let next = Interval(self.0 + 1);
        // Even this many changes must not result in a creation.
        if next.is_creation() && self.counter() != 0 { Interval(next.0 + 1) } else { next }
    }

    fn counter(self) -> u64 {
        self.0 & ((1 << Interval::COUNTER_BITS) - 1)
    }

    /// The interval in which a PG whose copies are lost is created again, empty; no update is ordered in it (rule R2). `None`
    /// after too many creations in this generation.
    pub fn recreation(self) -> Option<Interval> {
        let life = (self.counter() >> Interval::LIFE_BITS) + 1;
        let counter = (life << Interval::LIFE_BITS) + 1;
        (counter >> Interval::COUNTER_BITS == 0).then(|| Interval(self.0 - self.counter() + counter))
    }

    /// A value below every interval of a MapStore generation, and not below any of an earlier one.
    fn base(generation: u64) -> u64 {
        generation.saturating_sub(1).min(u64::from(u32::MAX)) << Interval::COUNTER_BITS
    }

    /// The interval in which a PG is created in this generation; no update is ordered in it (rule R2).
    pub fn creation(generation: u64) -> Interval {
        Interval(Interval::base(generation) + 1)
    }

    /// The first interval in this generation of an older PG (rule R7).
    pub fn after_restore(generation: u64) -> Interval {
        Interval(Interval::base(generation) + 2)
    }

    /// Whether a PG is created in this interval.
    pub fn is_creation(self) -> bool {
        self.counter() & ((1 << Interval::LIFE_BITS) - 1) == 1
    }

    /// Whether it belongs to this generation or a later one.
    pub fn is_since(self, generation: u64) -> bool {
        self.0 > Interval::base(generation)
    }
}

/// An OSD's id: the N of `osd.N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OsdId(pub u32);

impl fmt::Display for OsdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "osd.{}", self.0)
    }
}

impl FromStr for OsdId {
    type Err = std::num::ParseIntError;

    /// Parses `osd.3` and `3`.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.strip_prefix("osd.").unwrap_or(s).parse().map(OsdId)
    }
}

/// Identity of a store's contents. A store that loses them (a new disk, a crashed MemStore) gets a new one (rule R2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub Uuid);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A placement group, written `pool.seed` with the seed in hex: `2.1f`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PgId {
    /// The pool.
    pub pool: PoolId,
    /// The number of the PG, below `pg_num`.
    pub seed: u32,
}

impl PgId {
    /// The PG `seed` of `pool`.
    pub fn new(pool: PoolId, seed: u32) -> PgId {
        PgId { pool, seed }
    }
}

impl fmt::Display for PgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.pool, self.seed)
    }
}

/// The error for a text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {expected}")]
pub struct ParseIdError {
    text: String,
    expected: &'static str,
}

impl ParseIdError {
    fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

impl FromStr for PgId {
    type Err = ParseIdError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || ParseIdError::new(s, "a placement group id such as 2.1f");
        let (pool, seed) = s.split_once('.').ok_or_else(bad)?;
        let pool = pool.parse::<i64>().map_err(|_| bad())?;
        let seed = u32::from_str_radix(seed, 16).map_err(|_| bad())?;
        Ok(PgId::new(PoolId(pool), seed))
    }
}

/// Position of an update in a PG's history: the interval in which it was ordered, then a counter that never restarts within the
/// PG. Printed as Ceph's `epoch'version`. The default, `0'0`, precedes every update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Eversion {
    /// The interval in which the primary ordered the update.
    pub interval: Interval,
    /// The PG's update counter.
    pub version: u64,
}

impl Eversion {
    /// Creates the version of update `version`, ordered in `interval`.
    pub fn new(interval: Interval, version: u64) -> Eversion {
        Eversion { interval, version }
    }
}

impl fmt::Display for Eversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}'{}", self.interval, self.version)
    }
}

/// Identifies a client's request across resends (rule R6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReqId {
    /// The session.
    pub client: ClientId,
    /// The request's number within the session, which increases.
    pub tid: u64,
}

impl fmt::Display for ReqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client.{}:{}", self.client, self.tid)
    }
}

/// A user or daemon that authenticates, `type.id`: `client.admin`, `osd.0`, `mon.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntityName {
    /// The kind of entity.
    pub kind: EntityKind,
    /// The part after the dot.
    pub id: String,
}

/// The kinds of entity in Ceph's `type.id` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntityKind {
    /// The map authority.
    Mon,
    /// An object storage daemon.
    Osd,
    /// A manager. Nacre runs none; the name is kept for keyrings.
    Mgr,
    /// A metadata server. Nacre runs none; the name is kept for keyrings.
    Mds,
    /// A client: any other entity.
    Client,
}

impl EntityKind {
    /// Ceph's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            EntityKind::Mon => "mon",
            EntityKind::Osd => "osd",
            EntityKind::Mgr => "mgr",
            EntityKind::Mds => "mds",
            EntityKind::Client => "client",
        }
    }
}

impl FromStr for EntityKind {
    type Err = ParseIdError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Ok(match s {
            "mon" => EntityKind::Mon,
            "osd" => EntityKind::Osd,
            "mgr" => EntityKind::Mgr,
            "mds" => EntityKind::Mds,
            "client" => EntityKind::Client,
            _ => return Err(ParseIdError::new(s, "an entity type (mon, osd, mgr, mds or client)")),
        })
    }
}

impl EntityName {
    /// `kind.id`.
    pub fn new(kind: EntityKind, id: impl Into<String>) -> EntityName {
        EntityName { kind, id: id.into() }
    }

    /// `client.ID`.
    pub fn client(id: impl Into<String>) -> EntityName {
        Self::new(EntityKind::Client, id)
    }

    /// `osd.N`.
    pub fn osd(id: OsdId) -> EntityName {
        Self::new(EntityKind::Osd, id.0.to_string())
    }

    /// `mon.`, the name whose key every monitor shares.
    pub fn mon() -> EntityName {
        Self::new(EntityKind::Mon, "")
    }

    /// The OSD's id if this names an OSD.
    pub fn osd_id(&self) -> Option<OsdId> {
        (self.kind == EntityKind::Osd).then(|| self.id.parse().ok().map(OsdId)).flatten()
    }
}

impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind.as_str(), self.id)
    }
}

impl FromStr for EntityName {
    type Err = ParseIdError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (kind, id) =
            s.split_once('.').ok_or_else(|| ParseIdError::new(s, "an entity name such as client.admin"))?;
        Ok(EntityName::new(kind.parse()?, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_generations_share_an_interval() {
        assert_eq!((Interval::creation(0), Interval::creation(1)), (Interval(1), Interval(1)));
        assert_eq!(Interval::creation(1).next(), Interval::after_restore(1));
        for generation in [2, 3, 1_800_000_000, u64::from(u32::MAX)] {
            let (first, second) = (Interval::creation(generation), Interval::after_restore(generation));
            assert!(first.is_creation() && !second.is_creation() && second == first.next());
            assert!(first.is_since(generation) && first.is_since(generation - 1));
            assert!(!first.is_since(generation + 1) || generation == u64::from(u32::MAX));
            assert!(!Interval(first.0 - 1).is_since(generation));
        }
        assert!(!Interval(0).is_since(1) && Interval(1).is_since(1));
    }

    #[test]
    fn a_pg_comes_into_being_again_above_all_its_intervals() {
        for generation in [1, 2, 1_800_000_000] {
            let first = Interval::creation(generation);
            let mut now = first.next();
            for _ in 0..4095 {
                let again = now.recreation().unwrap();
                assert!(again > now && again.is_creation() && again.is_since(generation));
                assert!(generation > 2 || !again.is_since(generation + 1));
                now = again.next();
                assert!(now.0 == again.0 + 1 && !now.is_creation());
            }
            assert_eq!(now.recreation(), None);
        }
        // A million changes of the membership do not result in a creation.
        let last = Interval(1 << 20);
        assert!(!last.is_creation() && !last.next().is_creation() && last.next() > last);
        assert_eq!(Interval(0).next(), Interval::creation(1));
    }

    #[test]
    fn ids_print_and_parse_in_cephs_spelling() {
        let pg: PgId = "2.1f".parse().unwrap();
        assert_eq!((pg, pg.to_string().as_str()), (PgId::new(PoolId(2), 31), "2.1f"));
        assert!("2".parse::<PgId>().is_err() && "x.1".parse::<PgId>().is_err());
        assert_eq!("osd.7".parse::<OsdId>().unwrap().to_string(), "osd.7");
        let mon: EntityName = "mon.".parse().unwrap();
        assert_eq!(mon, EntityName::mon());
        assert_eq!("osd.3".parse::<EntityName>().unwrap().osd_id(), Some(OsdId(3)));
        assert!("admin".parse::<EntityName>().unwrap_err().to_string().contains("client.admin"));
    }
}
