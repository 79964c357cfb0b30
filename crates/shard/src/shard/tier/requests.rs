//! Requests between the pools of a tier: reads from the base and operations that it executes for a cache, and queries about
//! clients' requests.
//!
//! Each names its sender ([`TierSender`]), so that the other pool refuses it if the sender is deposed.

use super::super::Shard;
use super::super::ops::{InflightOp, OpOutcome};
use super::DEPOSED;
use super::objects::{InternalChange, ObjectWork, TierRequest};
use super::role::TierRole;
use crate::copy::{AdmittedCopy, FetchedSource};
use nacre_pg::{Mutation, log};
use nacre_types::errno::Errno;
use nacre_types::ids::{Interval, PoolId, ReqId};
use nacre_types::msg::{OsdReply, OsdRequest};
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{Op, OpResult, OsdOp, copy_from_flag, request_flag};
use nacre_types::tier::{ProxiedClient, RequestRecord, TierSender};

impl Shard {
    /// The sender for requests of the PG in `slot`; `None` while the map does not show its interval.
    fn sender(&self, slot: u32, client: Option<ProxiedClient>) -> Option<Box<TierSender>> {
        let hosted = self.slots.get(slot as usize)?.as_ref()?;
        let shows_interval = hosted.machine.interval() == hosted.interval;
        let (pg, interval, epoch) = (hosted.pg, hosted.interval, self.epoch());
        shows_interval.then(|| Box::new(TierSender { pg, interval, epoch, client, user_version: 0 }))
    }

    /// Whether a request between the pools of a tier must be refused because its sender is deposed.
    pub(super) fn is_deposed(&self, sender: &TierSender, slot: u32) -> bool {
        let Some(map) = &self.map else { return false };
        let is_over = map.membership(sender.pg).is_none_or(|now| now.interval > sender.interval);
        is_over || self.tier_role(slot).is_none_or(|role| sender.epoch < role.overlay_epoch)
    }

    /// The PG's record of a client's request, for the other pool of its tier.
    pub(super) fn lookup_request(&self, slot: u32, reqid: ReqId, attempt: u32) -> OpOutcome {
        let Some(hosted) = self.slots.get(slot as usize).and_then(Option::as_ref) else {
            return OpOutcome { result: DEPOSED.negated(), ..OpOutcome::default() };
        };
        let forgets = self.shared.settings.breaks(Mutation::LoseRequestIds);
        let record = match hosted.machine.admit(reqid, attempt) {
            _ if forgets => RequestRecord::Unknown,
            log::DupCheck::Execute => RequestRecord::Unknown,
            log::DupCheck::Duplicate(dup) => RequestRecord::Executed(dup.result),
            log::DupCheck::Refused => RequestRecord::Forgotten,
        };
        OpOutcome {
            ops: vec![OpResult::output(nacre_types::encoding::encode(&record))],
            ..OpOutcome::default()
        }
    }

    /// Creates a request to the other pool of the tier, about the same object.
    pub(super) fn request_to_other(
        &self,
        slot: u32,
        other: PoolId,
        object: &ObjectId,
        ops: Vec<OsdOp>,
        client: Option<ProxiedClient>,
    ) -> Option<Box<OsdRequest>> {
        let sender = self.sender(slot, client)?;
        Some(Box::new(OsdRequest {
            reqid: Self::INTERNAL_REQID,
            oldest_tid: 0,
            attempt: 0,
            epoch: sender.epoch,
            pg: sender.pg,
            interval: sender.interval,
            object: object.with_pool(other),
            mtime_ns: 0,
            flags: request_flag::IGNORE_OVERLAY,
            snap: SNAP_HEAD,
            snap_context: None,
            ops,
            tier: Some(sender),
        }))
    }

    /// Fetches an object into the cache; `op` waits for it.
    pub(super) fn promote(
        &mut self,
        slot: u32,
        role: &TierRole,
        object: &ObjectId,
        op: Option<Box<InflightOp>>,
    ) {
        let get = Op::CopyFrom {
            source: object.with_pool(role.other),
            version: 0,
            flags: copy_from_flag::IGNORE_OVERLAY | copy_from_flag::IGNORE_CACHE,
            truncate: (0, 0),
        };
        let Some(request) = self.request_to_other(slot, role.other, object, vec![OsdOp::from(get)], None)
        else {
            return op.map_or((), |op| self.backoff_op(*op, self.epoch()));
        };
        let epoch = request.epoch;
        let ticket = self.tiers.add_request(TierRequest::Promotion {
            slot,
            object: object.clone(),
            interval: request.interval,
            epoch,
        });
        self.begin(slot, object, ObjectWork::Promote, op);
        let most_bytes = self.most_promoted(slot, role);
        self.shared.world.read_base(self.index, ticket, request, most_bytes);
    }

    /// The largest object that is promoted, in bytes: larger ones would displace everything else.
    fn most_promoted(&self, slot: u32, role: &TierRole) -> u64 {
        let most = self.shared.limits.load().max_object_size_bytes;
        let hosted = self.slots.get(slot as usize).and_then(Option::as_ref);
        let pg_bytes = hosted.and_then(|hosted| hosted.cache.as_ref()).map_or(0, |cache| cache.pg_bytes);
        let ratio = role.tiering().map_or(0, |tiering| tiering.full_ratio_micro);
        match pg_bytes {
            0 => most,
            share => most.min((u128::from(share) * u128::from(ratio) / 1_000_000) as u64),
        }
    }

    /// Handles the read of an object to be promoted, or its failure.
    pub(in super::super) fn on_promotion_read(&mut self, ticket: u64, fetched: FetchedSource) {
        let Some(TierRequest::Promotion { slot, object, interval, epoch }) = self.tiers.take_request(ticket)
        else {
            return;
        };
        if !self.is_in(slot, interval) || !self.tiers.is_promoting(&object) {
            return;
        }
        match fetched.copy {
            Ok(copied) if copied.head.is_absent && !self.has_copy(slot, &object) => {
                let version = copied.head.user_version;
                self.release(&object, |state| state.absent = Some(version));
            }
            Ok(copied) => match AdmittedCopy::new(Ok(copied), &self.shared.copies.bytes) {
                Some(copy) => {
                    self.shared.promotions.lock().charge_bytes(copy.payload_bytes());
                    self.change_tier_object(slot, &object, InternalChange::Promote { copy, epoch });
                }
                None => self.send_waiting_back(&object),
            },
            Err(DEPOSED | Errno::ESHUTDOWN | Errno::ETIMEDOUT | Errno::ERANGE) => {
                self.send_waiting_back(&object)
            }
            // The base itself returns the error, or the object does not fit the cache.
            Err(_) => self.release(&object, |state| state.must_proxy = true),
        }
    }

    /// Sends a client's operation to the base for execution.
    pub(super) fn proxy(
        &mut self,
        slot: u32,
        role: &TierRole,
        object: &ObjectId,
        mut op: Box<InflightOp>,
        promotes_then: bool,
    ) {
        // The base reads the source of a copy itself, and may be on this OSD: it needs the room.
        op.drop_copy();
        let Some(conn) = &op.conn else { return };
        let request = &op.request;
        let client = ProxiedClient {
            reqid: request.reqid,
            attempt: request.attempt,
            oldest_tid: request.oldest_tid,
            addr: conn.peer_addr(),
        };
        let asked = self.request_to_other(slot, role.other, object, request.ops.clone(), Some(client));
        let Some(mut asked) = asked else { return self.backoff_op(*op, self.epoch()) };
        if !self.may_hold(&op) {
            return self.send_op_back(*op);
        }
        asked.flags |= request.flags;
        asked.mtime_ns = request.mtime_ns;
        (asked.snap, asked.snap_context) = (request.snap, request.snap_context.clone());
        let interval = asked.interval;
        self.metrics.tier_proxied.inc();
        self.tiers.begin_proxy(object, slot, promotes_then);
        let ticket = self.tiers.add_request(TierRequest::Proxied { slot, interval, op });
        self.shared.world.request_other_pool(self.index, ticket, asked);
    }

    /// Queries whether the other pool executed a client's operation before.
    pub(super) fn query_other_pool(
        &mut self,
        slot: u32,
        role: &TierRole,
        object: ObjectId,
        op: Box<InflightOp>,
    ) {
        let query = Op::QueryRequest { reqid: op.request.reqid, attempt: op.request.attempt };
        let Some(asked) = self.request_to_other(slot, role.other, &object, vec![OsdOp::from(query)], None)
        else {
            return self.backoff_op(*op, self.epoch());
        };
        let interval = asked.interval;
        self.begin(slot, &object, ObjectWork::Query, None);
        let ticket = self.tiers.add_request(TierRequest::Query { slot, interval, op });
        self.shared.world.request_other_pool(self.index, ticket, asked);
    }

    /// Answers a completed notify once the base has confirmed that the newest map that it knows sends its clients here: the
    /// other pool may have watches that this pool does not have.
    pub(in super::super) fn confirm_notify(
        &mut self,
        role: &TierRole,
        op: Box<InflightOp>,
        outcome: OpOutcome,
    ) {
        let query = Op::QueryRequest { reqid: op.request.reqid, attempt: op.request.attempt };
        let object = op.request.object.clone();
        let asked = self.request_to_other(op.slot, role.other, &object, vec![OsdOp::from(query)], None);
        let Some(asked) = asked else { return self.backoff_op(*op, self.epoch()) };
        let ticket = self.tiers.add_request(TierRequest::Confirm { op, outcome });
        self.shared.world.request_other_pool(self.index, ticket, asked);
    }

    /// Handles the other pool's answer.
    pub(in super::super) fn on_tier_reply(&mut self, ticket: u64, reply: Result<OsdReply, Errno>) {
        match self.tiers.take_request(ticket) {
            Some(TierRequest::Proxied { slot, interval, op }) => self.on_proxied(slot, interval, op, reply),
            Some(TierRequest::Query { slot, interval, op }) => self.on_queried(slot, interval, op, reply),
            Some(TierRequest::Confirm { op, outcome }) => match reply {
                Ok(reply) if reply.result == DEPOSED.negated() => self.backoff_op(*op, self.epoch().next()),
                Ok(_) => self.answer_notifier(&op, outcome),
                Err(_) => self.send_op_back(*op),
            },
            Some(TierRequest::Flush { slot, interval, object, epoch }) => {
                self.on_flushed(slot, interval, &object, epoch, reply);
            }
            Some(TierRequest::Log { slot, interval, what }) => {
                self.on_dirty_log_reply(slot, interval, what, reply)
            }
            Some(TierRequest::Promotion { .. }) | None => {}
        }
    }

    fn on_proxied(
        &mut self,
        slot: u32,
        interval: Interval,
        op: Box<InflightOp>,
        reply: Result<OsdReply, Errno>,
    ) {
        let object = op.request.object.clone();
        let is_here = self.is_in(slot, interval);
        match reply {
            _ if !is_here => self.backoff_op(*op, self.epoch()),
            // The other pool knows a newer map.
            Ok(reply) if reply.result == DEPOSED.negated() => self.backoff_op(*op, self.epoch().next()),
            Ok(reply) => {
                let outcome =
                    OpOutcome { result: reply.result, user_version: reply.user_version, ops: reply.ops };
                self.tell(slot, op, outcome);
            }
            Err(_) => self.send_op_back(*op),
        }
        if is_here && let Some(promotes) = self.tiers.end_proxy(&object) {
            self.release(&object, |_| {});
            if promotes && let Some(role) = self.tier_role(slot) {
                self.promote(slot, &role, &object, None);
            }
        }
    }

    fn on_queried(
        &mut self,
        slot: u32,
        interval: Interval,
        mut op: Box<InflightOp>,
        reply: Result<OsdReply, Errno>,
    ) {
        let object = op.request.object.clone();
        if !self.is_in(slot, interval) {
            return self.backoff_op(*op, self.epoch());
        }
        let output = |reply: &OsdReply| reply.ops.first().map(|op| op.output.clone()).unwrap_or_default();
        let record = reply.map(|reply| match reply.result {
            0 => nacre_types::encoding::decode::<RequestRecord>(&output(&reply)).ok(),
            _ => None,
        });
        let mut waiting = self.tiers.end(&object);
        match record {
            Ok(Some(RequestRecord::Unknown)) => {
                op.tier.is_checked = true;
                waiting.push_front(op);
            }
            Ok(Some(RequestRecord::Executed(result))) => {
                let outcome = OpOutcome::decode_recorded(&op.request.reqid, &result);
                self.tell(slot, op, outcome);
            }
            Ok(Some(RequestRecord::Forgotten)) => {
                self.tell(slot, op, OpOutcome { result: Errno::ESTALE.negated(), ..OpOutcome::default() });
            }
            Ok(None) => self.backoff_op(*op, self.epoch().next()),
            Err(_) => self.send_op_back(*op),
        }
        self.resume(&object, waiting);
    }
}
