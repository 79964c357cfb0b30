//! What travels between simulated machines.

use nacre_mon::logic;
use nacre_pg::PgEnvelope;
use nacre_pg::heartbeat::HbEnvelope;
use nacre_shard::inbox::UpMap;
use nacre_types::msg::{OsdBackoff, OsdReply, OsdRequest, PgCasReply};
use nacre_types::osdmap::OsdMap;
use nacre_types::placement::PgMapper;
use nacre_types::{OsdId, PgId};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A map with what everybody computes from it, computed once.
#[derive(Debug)]
pub struct MapView {
    /// The map.
    pub map: Arc<OsdMap>,
    /// CRUSH's up set of every PG, holes left out.
    pub up: BTreeMap<PgId, Vec<OsdId>>,
    /// The same as shards take it.
    pub up_sets: UpMap,
}

impl MapView {
    /// Maps every PG.
    pub fn new(map: OsdMap) -> MapView {
        let mut mapper = PgMapper::new(&map);
        let up: BTreeMap<PgId, Vec<OsdId>> = map.pg_ids().map(|pg| (pg, mapper.up(pg))).collect();
        let up_sets = Arc::new(up.clone().into_iter().collect());
        MapView { map: Arc::new(map), up, up_sets }
    }
}

/// A message.
#[derive(Clone, Debug)]
pub enum Packet {
    /// Client to OSD.
    Request(OsdRequest),
    /// OSD to client.
    Reply(OsdReply),
    /// OSD to client.
    Backoff(OsdBackoff),
    /// OSD to OSD, about a PG.
    Peer(Box<PgEnvelope>),
    /// OSD to OSD, about leases and life.
    Heartbeat(HbEnvelope),
    /// OSD to the map authority.
    ToMon(Box<logic::Event>),
    /// OSD or client to the map authority: send maps newer than this (generation, epoch), now and as they come.
    Subscribe(u64, u32),
    /// From the map authority.
    Map(Arc<MapView>),
    /// From the map authority.
    Cas(PgCasReply),
}

impl Packet {
    /// Folds what tells packets apart into a trace hash: cheap, since any difference soon shows in times and orders too.
    pub fn fold(&self, state: &mut impl Hasher) {
        std::mem::discriminant(self).hash(state);
        match self {
            Packet::Request(r) => (r.reqid, r.attempt, r.epoch, r.interval).hash(state),
            Packet::Reply(r) => (r.reqid, r.attempt, r.result, r.user_version).hash(state),
            Packet::Backoff(b) => (b.reqid, b.attempt, b.epoch).hash(state),
            Packet::Peer(envelope) => {
                envelope.pg.hash(state);
                std::mem::discriminant(&envelope.msg).hash(state);
            }
            Packet::Heartbeat(beat) => std::mem::discriminant(&beat.msg).hash(state),
            Packet::ToMon(event) => std::mem::discriminant(&**event).hash(state),
            Packet::Subscribe(generation, epoch) => (generation, epoch).hash(state),
            Packet::Map(view) => (view.map.generation, view.map.epoch).hash(state),
            Packet::Cas(reply) => (reply.pg, reply.accepted, reply.epoch).hash(state),
        }
    }
}
