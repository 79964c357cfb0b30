//! The actions of clients, and those made on their behalf.

use super::ending::RunPhase;
use super::{World, WorldEvent};
use crate::client::requests::TOKEN_BYTES;
use crate::history::Action;
use crate::osd::Osd;
use crate::packet::MapView;
use crate::scenario::HUGE_POOL;
use crate::schedule::{MILLI, Nanos, SECOND};
use nacre_engine::Error;
use nacre_exec::CopiedObject;
use nacre_objecter::Answer;
use nacre_pg::log::DupLimits;
use nacre_shard::copy::FetchedSource;
use nacre_shard::inbox::ShardMessage;
use nacre_shard::session::IncomingRequest;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::osdmap::OsdMap;
use nacre_types::{ClientId, ObjectId, PoolId};

/// How long the map may show an OSD as full whose disk has free space again: statistics arrive every few seconds, and only
/// while a map authority runs.
const FULL_MAY_LAST: Nanos = 30 * SECOND;

/// The pool of the object with batches.
pub(super) const BATCHES_POOL: PoolId = HUGE_POOL;
/// The number of requests in a thousand that are for the huge pool if sizes are real. Other pools may be created beside it.
const HUGE_SHARE: u32 = 800;
/// The number of requests in a thousand that are for batches, if there are any.
const BATCHES_SHARE: u32 = 800;
/// If there are more objects than this, they are listed in long pages.
const MANY: u32 = 1_000;

/// Requests of all clients while the cluster heals, if they continue.
const HEALING_REQUESTS: u32 = 150;

/// The pools that clients use: all except caches of others.
fn clients_pools(map: &OsdMap) -> Vec<PoolId> {
    let named = map.pools.iter().filter(|(_, pool)| pool.tiering.tier_of.is_none());
    named.map(|(id, _)| *id).collect()
}

/// The user of an object that is read.
pub(super) enum Fetching {
    /// A request that copies it.
    Request(Box<IncomingRequest>),
    /// A cache tier, by its number for the request.
    Promotion(u64),
}

impl World {
    pub(super) fn random_request(&mut self, number: u32) {
        let most = match self.ending {
            RunPhase::Trouble => self.scenario.requests,
            RunPhase::Healing if self.busy => self.scenario.requests + HEALING_REQUESTS,
            _ => return,
        };
        if self.asked >= most && !self.busy {
            return;
        }
        let wait = self.workload.exponential(self.scenario.think);
        self.schedule.after(wait, WorldEvent::Ask(number));
        if self.asked >= most {
            return;
        }
        if self.nemesis.is_silent(number)
            || self.clients[number as usize].outstanding() >= self.scenario.outstanding
        {
            return;
        }
        let Some(map) = self.clients[number as usize].map().cloned() else { return };
        if self.has_batches(&map) && self.workload.chance(BATCHES_SHARE) {
            return self.ask_batch(number);
        }
        let pools = clients_pools(&map);
        let is_huge = self.scenario.real_bounds && self.workload.chance(HUGE_SHARE);
        let pool = match is_huge && pools.contains(&HUGE_POOL) {
            true => Some(HUGE_POOL),
            false => self.workload.pick(&pools).copied(),
        };
        let Some(pool) = pool else { return };
        let is_large = self.scenario.token_bytes > TOKEN_BYTES;
        let object = self.object(pool, self.workload.clone().range(0, u64::from(self.scenario.objects)));
        self.workload.bits();
        let client = &mut self.clients[number as usize];
        let token = client.next_token();
        let (version, seen) = client.last_seen(&object);
        let first = seen.tokens.first().copied().unwrap_or(0);
        let action = match self.workload.range(0, 100) {
            0..34 => Action::Read,
            // Positions at which objects reach the maximum size.
            35..45 if is_large => Action::WriteAt(self.workload.range(4, 10) as u8, token),
            34..45 => Action::WriteFull(token),
            45..59 => Action::Append(token),
            59..65 => Action::WriteAt(self.workload.range(0, 6) as u8, token),
            65..69 => Action::Truncate(self.workload.range(0, 5) as u8),
            69..75 => Action::Remove,
            75..78 => Action::Ensure,
            78..85 => Action::Swap { expect: seen.mark, set: token },
            85..87 => Action::Create(token),
            87..90 => Action::AppendTelling { expect: seen.mark, token },
            90..92 => Action::AppendAfter { first, token },
            92 => Action::Unmark,
            93..96 => Action::Count,
            _ if version > 0 => Action::Replace { version, token },
            _ => Action::Read,
        };
        self.asked += 1;
        let now = self.schedule.now();
        self.with_client(number, |client, history, out| {
            client.ask(now, history, (object, action), false, out);
        });
    }

    /// Whether there is an object with batches of omap entries, or can be one.
    pub(super) fn has_batches(&self, map: &OsdMap) -> bool {
        self.scenario.batches > 0 && map.pools.contains_key(&BATCHES_POOL)
    }

    /// A client writes the next batch, writes or removes one again, or lists them all.
    fn ask_batch(&mut self, number: u32) {
        self.asked += 1;
        let (now, all) = (self.schedule.now(), self.scenario.batches);
        let draw = self.workload.range(0, 100);
        let known = self.workload.range(0, u64::from(self.batches.max(1))) as u32;
        let token = self.clients[number as usize].next_token();
        let (batch, action) = match draw {
            0..92 if self.batches < all => {
                self.batches += 1;
                (self.batches - 1, Action::WriteFull(token))
            }
            0..95 if self.batches < all || draw < 60 => (known, Action::WriteFull(token)),
            95..97 => (known, Action::Clear),
            _ => {
                return self.with_client(number, |client, history, out| {
                    client.list_batches(now, history, (BATCHES_POOL, all), false, out);
                });
            }
        };
        self.with_client(number, |client, history, out| {
            client.write_batch(now, history, (BATCHES_POOL, batch), action, out);
        });
    }

    /// A client watches or notifies. Other requests do not change these objects.
    pub(super) fn random_watch_op(&mut self, number: u32) {
        if self.ending != RunPhase::Trouble {
            return;
        }
        let now = self.schedule.now();
        let wait = self.attendance.exponential(700 * MILLI);
        self.schedule.after(wait, WorldEvent::Attend(number));
        let Some(map) = self.clients[number as usize].map().cloned() else { return };
        let pools = clients_pools(&map);
        let Some(pool) = self.attendance.pick(&pools).copied() else { return };
        if self.nemesis.is_silent(number) {
            return;
        }
        let object = ObjectId::new(pool, "", "", &format!("w{}", self.attendance.range(0, 2)));
        self.with_client(number, |client, history, out| client.random_watch_op(now, history, object, out));
    }

    fn object(&self, pool: PoolId, number: u64) -> ObjectId {
        ObjectId::new(pool, "", "", &format!("o{number}"))
    }

    /// A client lists a pool, or reads or removes a copy.
    pub(super) fn do_chore(&mut self, number: u32) {
        if self.ending != RunPhase::Trouble {
            return;
        }
        let now = self.schedule.now();
        let wait = self.chores.exponential(SECOND);
        self.schedule.after(wait, WorldEvent::Chore(number));
        let client = &self.clients[number as usize];
        let Some(map) = client.map().cloned() else { return };
        let pools = clients_pools(&map);
        let Some(pool) = self.chores.pick(&pools).copied() else { return };
        let draws = [0; 3].map(|_| self.chores.range(0, 1 << 16));
        if self.nemesis.is_silent(number) {
            return;
        }
        let is_cached = map.pools.get(&pool).is_some_and(|pool| !pool.tiering.tiers.is_empty());
        if draws[0] % 3 == 0 && !is_cached {
            // Many objects are listed in pages of maximum length.
            let page = if self.scenario.objects > MANY { u64::MAX } else { 1 + draws[1] % 4 };
            return self
                .with_client(number, |client, history, out| client.list(now, history, pool, page, out));
        }
        let action = if draws[1] % 4 == 0 { Action::Remove } else { Action::Read };
        let object = ObjectId::new(pool, "", "", &format!("c{}", draws[2] % 2));
        self.with_client(number, |client, history, out| {
            client.ask(now, history, (object, action), false, out);
        });
    }

    /// An OSD requests the source of a copy.
    pub(super) fn read_copy_source(&mut self, osd: u32, shard: usize, arrival: Box<IncomingRequest>) {
        self.last_copy += 1;
        let (now, number) = (self.schedule.now(), self.last_copy);
        let request = arrival.request.clone();
        self.copying.insert(number, (osd, self.osds[osd as usize].life, shard, Fetching::Request(arrival)));
        self.with_client(self.scenario.clients + osd, |client, history, out| {
            client.read_source(now, history, (number, &request), out);
        });
    }

    /// The source of a copy was read, or could not be. Its OSD's process may have ended since the request.
    pub(super) fn on_copy_source_read(&mut self, number: u64, copied: Result<CopiedObject, Errno>) {
        let Some((osd, life, shard, fetching)) = self.copying.remove(&number) else { return };
        let now = self.schedule.now();
        if self.osds[osd as usize].life != life {
            return;
        }
        let fetched = FetchedSource { copy: copied.map(Box::new), share: None };
        let message = match fetching {
            Fetching::Request(arrival) => ShardMessage::Fetched { arrival, fetched },
            Fetching::Promotion(ticket) => ShardMessage::PromotionRead { ticket, fetched },
        };
        self.with_osd(osd, |osd, out| osd.on_message(now, shard, message, out));
    }

    /// An OSD sends a request to another pool.
    pub(super) fn send_to_other_pool(
        &mut self,
        osd: u32,
        (shard, ticket): (usize, u64),
        request: OsdRequest,
        reads: bool,
    ) {
        self.last_copy += 1;
        let (now, number, life) = (self.schedule.now(), self.last_copy, self.osds[osd as usize].life);
        let client = self.scenario.clients + osd;
        if reads {
            self.copying.insert(number, (osd, life, shard, Fetching::Promotion(ticket)));
            self.with_client(client, |client, history, out| {
                client.read_source(now, history, (number, &request), out);
            });
        } else {
            self.asking.insert(number, (osd, life, shard, ticket));
            self.with_client(client, |client, history, out| {
                client.send_to_other_pool(now, history, (number, request), out);
            });
        }
    }

    /// Another pool answered.
    pub(super) fn on_other_pool_reply(&mut self, number: u64, result: Result<Answer, Error>) {
        let Some((osd, life, shard, ticket)) = self.asking.remove(&number) else { return };
        if self.osds[osd as usize].life == life {
            let reply = result.map(|answer| answer.reply).map_err(|error| error.errno());
            let now = self.schedule.now();
            self.with_osd(osd, |osd, out| {
                osd.on_message(now, shard, ShardMessage::TierReply { ticket, reply }, out);
            });
        }
    }

    /// A map is published: a session on its blocklist can do nothing any more once others have the map.
    pub(super) fn note_blocklist(&mut self, view: &MapView) {
        let map = &view.map;
        if map.generation != self.generation {
            self.generation = map.generation;
            self.history.forget_fences();
        }
        let sessions = map.blocklist.keys().filter_map(|who| who.strip_prefix("client.")?.parse().ok());
        for session in sessions {
            self.history.fence(ClientId(session), (map.generation, map.epoch));
        }
    }

    /// Checks an ESTALE answer: sessions end only after silence, unless there are more dup records than a PG keeps. A request
    /// less than `session_expiry` ago means that there was no silence.
    pub(super) fn judge_stale(&mut self, client: u32, asked: Nanos) {
        if self.scenario.dups != DupLimits::default() {
            return;
        }
        let silence = self.schedule.now() - asked;
        let drift = self.scenario.session_expiry / 1_000_000 * self.scenario.drift_ppm;
        if silence + drift < self.scenario.session_expiry {
            self.fail(
                "a session ends although its client is heard",
                format!("client.{client}: {silence} ns"),
            );
        }
    }

    /// Checks an ENOSPC answer: a disk must have been full shortly before the request was sent, or since.
    pub(super) fn judge_no_space(&mut self, object: &ObjectId, asked: Nanos) {
        let is_full = |osd: &Osd| osd.disk().capacity().is_some();
        let since = self.nemesis.last_full().map_or(Nanos::MAX, |at| asked.saturating_sub(at));
        if since > FULL_MAY_LAST && !self.osds.iter().any(is_full) {
            self.fail("there is no space although no disk is full", object.to_string());
        }
    }
}
