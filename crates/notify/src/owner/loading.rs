//! Loading: the records beside a shard's log, and as much of the log as the window has room for.

use super::{LONGEST_POLL, Ownership, nanos};
use crate::core::Core;
use crate::endpoints::TopicEndpoint;
use crate::error::{Error, Result};
use crate::metrics::add;
use crate::rados::WriteOutcome;
use bytes::Bytes;
use nacre_queues::name::QueueRecordKind;
use nacre_queues::op::{ObjectRead, ObjectReply};
use nacre_queues::record::Event;
use nacre_queues::retry::BreakerState;
use nacre_queues::settle;
use nacre_queues::shard::{self, Shard};
use nacre_queues::spill;
use nacre_queues::window::WindowTime;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most batches in a page of the log.
const BATCHES: u64 = 16;
/// The most events of a segment that are loaded at a time if memory is short.
const LOW_MEMORY_EVENTS: u64 = 256;
/// If memory is short, a shard with more loaded bytes of events than this waits.
const LOW_MEMORY_BYTES: u64 = 64 << 10;
/// The most batches that are read to be spilled.
const SPILLED_BATCHES: u64 = 96;
/// The most entries in a page of the records beside the log.
const SIDE_PAGE_ENTRIES: u64 = 256;

/// A spill segment in memory, so that it is read only once although the window takes it in parts.
pub(super) struct LoadedSegment {
    first: u64,
    end: u64,
    events: Vec<(u64, Event)>,
    bytes: u64,
}

impl Ownership<'_> {
    fn changed(&self) -> Error {
        Error::Changed(self.shard.object.to_string())
    }

    /// Reads a page of the shard. Fails if this gateway is no longer the owner.
    pub(super) async fn read_as_owner(&self, read: &ObjectRead) -> Result<ObjectReply> {
        let reply = self.core.rados.read(read).await?;
        reply.filter(|reply| self.shard.has_same_owner(reply)).ok_or_else(|| self.changed())
    }

    /// Loads the manifests of segments, and the parked events.
    pub(super) async fn load_side_records(&mut self) -> Result<()> {
        let mut after = Bytes::new();
        loop {
            let read =
                settle::read_records(&self.shard.object, QueueRecordKind::Segment, after, SIDE_PAGE_ENTRIES);
            let reply = self.read_as_owner(&read).await?;
            self.log.add_segments(&self.shard, &reply.page)?;
            let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { break };
            after = last.clone();
        }
        let mut after = Bytes::new();
        while self.shard.parked() > 0 {
            let read =
                settle::read_records(&self.shard.object, QueueRecordKind::Parked, after, SIDE_PAGE_ENTRIES);
            let reply = self.read_as_owner(&read).await?;
            let (wall_ns, now) = (self.core.env.wall_ns(), self.core.window_time());
            for (sequence, parked) in shard::parse_parked(&self.shard.object, &reply.page)? {
                self.window.load_parked(sequence, parked, wall_ns, now);
            }
            let Some((last, _)) = reply.page.last().filter(|_| reply.more) else { break };
            after = last.clone();
        }
        self.update_loaded_gauge();
        Ok(())
    }

    pub(super) fn update_loaded_gauge(&mut self) {
        let segment = self.segment.as_ref().map_or(0, |segment| segment.bytes);
        self.loaded.set(self.window.size_bytes() + segment);
    }

    /// Loads a part of the log if the window has room and there may be more events. Returns whether it loaded any.
    pub(super) async fn load(&mut self, now: WindowTime) -> Result<bool> {
        let Some((from, end)) = self.window.load_range() else { return Ok(false) };
        let is_known = from < self.shard.tail.value.next;
        if !is_known && now.mono_ns < self.poll_at_ns {
            return Ok(false);
        }
        let is_over =
            self.core.metrics.loaded_bytes.load(Ordering::Relaxed) > self.core.settings.memory_bytes;
        if is_over && self.window.size_bytes() > LOW_MEMORY_BYTES {
            return Ok(false);
        }
        // One event is enough for an endpoint that may be down.
        let is_alive = |endpoint: &Arc<TopicEndpoint>| endpoint.breaker() == BreakerState::Closed;
        let is_little = is_over || !self.endpoint.as_ref().is_some_and(is_alive);
        let loaded_to = if let Some(end) = self.load_segment(from, is_little).await? {
            end
        } else {
            let wanted = end.saturating_sub(from) / self.batch_events.max(1) + 2;
            let batches = if is_little { 1 } else { wanted.min(BATCHES) };
            let read = settle::read_batches(&self.shard.object, self.log.batch_cursor(from), batches);
            let reply = self.read_as_owner(&read).await?;
            self.adopt(Shard::from_reply(&self.shard.object, &[], &reply)?)?;
            let loaded = self.log.add_batches(&self.shard, &reply.page)?;
            self.batch_events = loaded.end.saturating_sub(from) / (reply.page.len() as u64).max(1);
            self.window.load(loaded.events, loaded.end, self.core.window_time())
        };
        // Uses the current time: events created during the read must not appear older than they are.
        let now = self.core.window_time();
        self.update_loaded_gauge();
        if loaded_to > from {
            // Events that waited too long for an endpoint must not be sent when it works again.
            let expired = self.window.expire(now);
            self.note_outcomes(expired, now);
            self.poll = self.core.settings.poll;
            if self.is_all_loaded() {
                // Tasks of this gateway that enqueue more events report it; events of other gateways are polled for.
                self.poll_at_ns = now.mono_ns + nanos(self.poll);
            }
            return Ok(true);
        }
        self.poll_at_ns = now.mono_ns + nanos(self.poll);
        self.poll = (self.poll * 2).min(LONGEST_POLL);
        Ok(false)
    }

    /// Loads events of a spill segment if the next events are in one. Returns the end of the loaded part. With `is_little`,
    /// it loads a few events and does not keep the others in memory.
    async fn load_segment(&mut self, from: u64, is_little: bool) -> Result<Option<u64>> {
        let core: &Core = self.core;
        let mut reading = None;
        let is_loaded =
            self.segment.as_ref().is_some_and(|segment| (segment.first..segment.end).contains(&from));
        if !is_loaded {
            self.segment = None;
            let Some((first, object)) = self.log.segment_from(&self.shard, from) else { return Ok(None) };
            reading = self.owners.limits.segment_reads.acquire().await.ok();
            let reply = self.core.rados.read(&ObjectRead::data(&object)).await?;
            let reply = reply.ok_or_else(|| self.changed())?;
            let loaded = self.log.decode_segment(&self.shard, first, &reply.data)?;
            let bytes = loaded.events.iter().map(|(_, event)| event.size_bytes()).sum();
            self.segment = Some(LoadedSegment { first, end: loaded.end, events: loaded.events, bytes });
        }
        let Some(segment) = &mut self.segment else { return Ok(None) };
        let room = self.window.load_range().map_or(from, |(_, end)| end);
        let room = if is_little { room.min(from + LOW_MEMORY_EVENTS) } else { room };
        let skipped = segment.events.partition_point(|(sequence, _)| *sequence < from);
        let taken = segment.events[skipped..].partition_point(|(sequence, _)| *sequence < room);
        let part: Vec<_> = segment.events.drain(..skipped + taken).skip(skipped).collect();
        segment.bytes = segment.events.iter().map(|(_, event)| event.size_bytes()).sum();
        let end = self.window.load(part, segment.end.min(room), core.window_time());
        if end >= segment.end || (is_little && reading.is_some()) {
            self.segment = None;
        }
        Ok(Some(end))
    }

    /// Adopts a newer reading of the shard. Fails if the shard has another owner.
    pub(super) fn adopt(&mut self, fresh: Shard) -> Result<()> {
        if fresh.owner != self.shard.owner || fresh.id != self.shard.id {
            return Err(self.changed());
        }
        if fresh.head != self.shard.head {
            self.window.skip_dropped(&fresh.head.value);
        }
        self.shard = fresh;
        Ok(())
    }

    /// Reads the shard again.
    pub(super) async fn refresh(&mut self) -> Result<()> {
        let reply = self.read_as_owner(&ObjectRead::attributes(&self.shard.object)).await?;
        self.adopt(Shard::from_reply(&self.shard.object, &[], &reply)?)
    }

    /// Moves the first batches into a segment. Returns whether there were any.
    pub(super) async fn spill(&mut self) -> Result<bool> {
        let core: &Core = self.core;
        let Ok(_permit) = self.owners.limits.spills.acquire().await else { return Ok(false) };
        let read = settle::read_batches(&self.shard.object, None, SPILLED_BATCHES);
        let reply = self.read_as_owner(&read).await?;
        self.adopt(Shard::from_reply(&self.shard.object, &[], &reply)?)?;
        let segment_bytes = core.settings.spill.segment_bytes;
        let Some(plan) = spill::plan(&self.shard, &self.log, &reply.page, segment_bytes)? else {
            self.waker.must_spill.store(false, Ordering::Release);
            return Ok(false);
        };
        core.rados.write_or_fail(plan.write).await?;
        let sent = core.mono_ns();
        let commit = self.shard.with_renewal(plan.commit, self.lease_ns());
        match core.rados.write(commit).await? {
            WriteOutcome::Done => {
                (self.shard, self.log) = (plan.after, plan.log);
                self.renewed(sent);
                add(&core.metrics.spilled, 1);
            }
            WriteOutcome::Changed => self.refresh().await?,
            _ => return Err(self.changed()),
        }
        if self.shard.resident_bytes() <= segment_bytes {
            self.waker.must_spill.store(false, Ordering::Release);
        }
        Ok(true)
    }
}
