//! A connection's outgoing messages: those waiting to be written and, on lossless connections, those written but not acknowledged. Their
//! bytes are bounded in total.

use crate::wire::{ACK, CLOSE, FLAG_DATA_CRC, FrameHeader, KEEPALIVE, KEEPALIVE_ACK};
use crate::{Mutation, Rules};
use bytes::Bytes;
use nacre_types::crc32c::crc32c;
use nacre_types::payload::Payload;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Data shorter than this is copied next to the header instead of using a vector of its own.
const INLINE_DATA_BYTES: usize = 512;
/// Bounds of one write.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes that each connection may queue even when all connections together exceed their bound.
const FAIR_SHARE_BYTES: usize = 1 << 20;
/// Vectors per system call; Linux accepts up to 1024.
const MAX_SLICES: usize = 64;

/// A message ready to be written.
#[derive(Debug, Clone)]
pub struct OutFrame {
    /// Its header, without sequence number and acknowledgement.
    pub header: FrameHeader,
    /// The description.
    pub meta: Vec<u8>,
    /// The data.
    pub data: Vec<Payload>,
}

impl OutFrame {
    /// Its size on the wire.
    pub fn bytes(&self) -> usize {
        self.header.wire_bytes() as usize
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct SendQueue {
    waiting: VecDeque<OutFrame>,
    /// Written and not acknowledged; lossless only.
    unacked: VecDeque<OutFrame>,
    bytes: usize,
    /// The bytes of all queues of the messenger.
    total: Arc<AtomicUsize>,
    last_seq: u64,
    /// Everything up to this number was acknowledged.
    acked: u64,
    /// More than half of the limit is used.
    is_half_full: bool,
    /// The other side was asked for an acknowledgement, to make room.
    ack_asked: bool,
    ack_due: bool,
    keepalive_due: bool,
    keepalive_ack_due: bool,
    /// No more messages are accepted. Waiting messages are written, then Close.
    pub closing: bool,
    close_written: bool,
    /// The writer sleeps and must be woken.
    pub writer_idle: bool,
    rules: Rules,
}

impl SendQueue {
    /// An empty queue under `rules`.
    pub fn with_rules(rules: Rules) -> SendQueue {
        let mut queue = SendQueue::default();
        queue.rules = rules;
        queue
    }

    /// An empty queue whose bytes count in `total` too.
    pub fn with_total(total: Arc<AtomicUsize>) -> SendQueue {
        let mut queue = SendQueue::default();
        queue.total = total;
        queue
    }

    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Adds a message, or returns it if the queue would exceed `limit` bytes; an empty queue accepts any message. A queue that has reached
    /// its fair share also returns it if all queues together would exceed `total_limit`.
    pub fn push(&mut self, mut frame: OutFrame, limit: usize, total_limit: usize) -> Option<OutFrame> {
        let bytes = frame.bytes();
        if self.bytes > 0 && self.bytes + bytes > limit {
            return Some(frame);
        }
        if self.bytes >= FAIR_SHARE_BYTES && self.total.load(Ordering::Relaxed) + bytes > total_limit {
            return Some(frame);
        }
        self.last_seq += 1;
        frame.header.seq = self.last_seq;
        self.grow(bytes);
        self.is_half_full = self.bytes > limit / 2;
        self.waiting.push_back(frame);
        None
    }

    /// The number of the last message that was accepted.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Bytes waiting or unacknowledged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything has been written, including the Close.
    pub fn close_written(&self) -> bool {
        self.close_written
    }

    /// Requests that an acknowledgement be written.
    pub fn ask_ack(&mut self) {
        self.ack_due = true;
    }

    /// Requests that a keepalive, or the answer to one, be written.
    pub fn ask_keepalive(&mut self, answer: bool) {
        if answer {
            self.keepalive_ack_due = true;
        } else {
            self.keepalive_due = true;
        }
    }

    /// Handles an acknowledgement of everything up to `seq`. Returns whether that made room. Fails if `seq` was never sent.
    pub fn acknowledge(&mut self, seq: u64) -> Result<bool, &'static str> {
        if seq > self.last_seq {
            return Err("acknowledges what was never sent");
        }
        self.acked = self.acked.max(seq);
        let before = self.bytes;
        while self.unacked.front().is_some_and(|frame| frame.header.seq <= seq) {
            let freed = self.unacked.pop_front().map_or(0, |frame| frame.bytes());
            self.shrink(freed);
        }
        let made_room = self.bytes < before;
        if made_room {
            (self.is_half_full, self.ack_asked) = (false, false);
        }
        Ok(made_room)
    }

    /// Prepares for a new socket: everything after `peer_has`, the last message that the other side has, is written again.
    pub fn resume(&mut self, peer_has: u64) -> Result<(), &'static str> {
        while let Some(frame) = self.unacked.pop_back() {
            if self.rules.breaks(Mutation::ForgetUnacked) {
                self.shrink(frame.bytes());
                continue;
            }
            self.waiting.push_front(frame);
        }
        if peer_has > self.last_seq {
            return Err("has received what was never sent");
        }
        if peer_has < self.acked {
            return Err("has forgotten what it acknowledged");
        }
        while self.waiting.front().is_some_and(|frame| frame.header.seq <= peer_has) {
            let freed = self.waiting.pop_front().map_or(0, |frame| frame.bytes());
            self.shrink(freed);
        }
        self.acked = self.acked.max(peer_has);
        (self.ack_due, self.keepalive_due, self.keepalive_ack_due) = (false, false, false);
        self.ack_asked = false;
        self.close_written = false;
        Ok(())
    }

    /// Starts a new session: drops everything and restarts the numbering.
    pub fn reset(&mut self) {
        let (closing, writer_idle) = (self.closing, self.writer_idle);
        let (total, rules) = (Arc::clone(&self.total), self.rules);
        *self = SendQueue::with_total(total);
        self.rules = rules;
        (self.closing, self.writer_idle) = (closing, writer_idle);
    }

    /// Moves what is to be written next into `batch`, with an acknowledgement up to `ack`. Returns whether there is anything.
    pub fn take(&mut self, batch: &mut WriteBatch, lossless: bool, ack: u64) -> bool {
        batch.clear();
        while batch.frames < BATCH_FRAMES && batch.bytes < BATCH_BYTES {
            let Some(mut frame) = self.waiting.pop_front() else { break };
            frame.header.ack = ack;
            if lossless {
                batch.add(&frame.header, &frame.meta, frame.data.iter().map(|part| part.bytes().clone()));
                self.unacked.push_back(frame);
            } else {
                self.shrink(frame.bytes());
                batch.add(&frame.header, &frame.meta, frame.data.into_iter().map(Payload::into_bytes));
            }
        }
        if batch.frames > 0 {
            self.ack_due = false;
        }
        // Acknowledgements are delayed; the answer to a keepalive carries one.
        if lossless && self.is_half_full && !self.ack_asked {
            (self.ack_asked, self.keepalive_due) = (true, true);
        }
        let controls = [
            (&mut self.ack_due, ACK),
            (&mut self.keepalive_due, KEEPALIVE),
            (&mut self.keepalive_ack_due, KEEPALIVE_ACK),
        ];
        for (due, kind) in controls {
            if std::mem::take(due) {
                batch.add(&FrameHeader::control(kind, ack), &[], std::iter::empty());
            }
        }
        if self.closing && self.waiting.is_empty() && !self.close_written {
            batch.add(&FrameHeader::control(CLOSE, ack), &[], std::iter::empty());
            self.close_written = true;
        }
        !batch.parts.is_empty()
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

enum Part {
    /// A range of the batch's own bytes: headers, descriptions, short data.
    Inline { start: usize, end: usize },
    /// Data by reference.
    Data(Bytes),
}

/// The content of one or more vectored writes.
#[derive(Default)]
pub struct WriteBatch {
    scratch: Vec<u8>,
    parts: Vec<Part>,
    /// Number of messages, without control frames.
    pub frames: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// The first part that is not completely written, and the number of its bytes that are.
    part: usize,
    offset: usize,
}

impl WriteBatch {
    fn clear(&mut self) {
        self.scratch.clear();
        self.parts.clear();
        (self.frames, self.bytes, self.part, self.offset) = (0, 0, 0, 0);
    }

    fn inline(&mut self, bytes: &[u8]) {
        let start = self.scratch.len();
        self.scratch.extend_from_slice(bytes);
        let end = self.scratch.len();
        match self.parts.last_mut() {
            Some(Part::Inline { end: last, .. }) => *last = end,
            _ => self.parts.push(Part::Inline { start, end }),
        }
    }

    fn add(&mut self, header: &FrameHeader, meta: &[u8], data: impl Iterator<Item = Bytes>) {
        self.inline(&header.encode());
        if !meta.is_empty() {
            self.inline(meta);
        }
        for bytes in data {
            if bytes.len() < INLINE_DATA_BYTES {
                self.inline(&bytes);
            } else {
                self.parts.push(Part::Data(bytes));
            }
        }
        self.bytes += header.wire_bytes() as usize;
        if header.kind < crate::wire::FIRST_CONTROL_KIND {
            self.frames += 1;
        }
    }

    fn part_bytes(&self, part: &Part) -> (usize, usize) {
        match part {
            Part::Inline { start, end } => (*start, *end),
            Part::Data(bytes) => (0, bytes.len()),
        }
    }

    /// Puts the unwritten content into `slices`. Returns the number of slices filled, 0 if everything is written.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut filled = 0;
        for (at, part) in self.parts[self.part..].iter().enumerate().take(MAX_SLICES) {
            let bytes = match part {
                Part::Inline { start, end } => &self.scratch[*start..*end],
                Part::Data(bytes) => &bytes[..],
            };
            slices[at] = IoSlice::new(if at == 0 { &bytes[self.offset..] } else { bytes });
            filled = at + 1;
        }
        filled
    }

    /// Returns an array for [`WriteBatch::slices`].
    pub fn no_slices<'a>() -> [IoSlice<'a>; MAX_SLICES] {
        [IoSlice::new(&[]); MAX_SLICES]
    }

    /// Marks `written` more bytes as written.
    pub fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let (start, end) = self.part_bytes(&self.parts[self.part]);
            let left = end - start - self.offset;
            if written < left {
                self.offset += written;
                return;
            }
            written -= left;
            self.part += 1;
            self.offset = 0;
        }
    }

    /// Returns all bytes in order, in chunks of at most `limit`.
    pub fn chunks(&self, limit: usize) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(move |part| {
            let bytes = match part {
                Part::Inline { start, end } => &self.scratch[*start..*end],
                Part::Data(bytes) => &bytes[..],
            };
            bytes.chunks(limit)
        })
    }
}

/// Returns a message's header, complete except for its sequence number.
pub fn header_of(kind: u16, meta: &[u8], data: &[Payload], crc_data: bool) -> FrameHeader {
    let data_len: usize = data.iter().map(|part| part.len()).sum();
    let data_crc = if crc_data { data.iter().fold(0, |crc, part| part.extend_crc(crc)) } else { 0 };
    FrameHeader {
        flags: if crc_data { FLAG_DATA_CRC } else { 0 },
        kind,
        seq: 0,
        ack: 0,
        meta_len: meta.len() as u32,
        data_len: data_len as u32,
        meta_crc: crc32c(meta),
        data_crc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> OutFrame {
        let meta = vec![7; bytes];
        OutFrame { header: header_of(60_000, &meta, &[], true), meta, data: Vec::new() }
    }

    /// The (kind, sequence number) of each frame of the batch.
    fn frames(batch: &WriteBatch) -> Vec<(u16, u64)> {
        let bytes: Vec<u8> = batch.chunks(usize::MAX).flatten().copied().collect();
        let mut rest = &bytes[..];
        let mut found = Vec::new();
        while let Some((head, body)) = rest.split_first_chunk() {
            let header = FrameHeader::decode(head).unwrap();
            rest = &body[header.body_len() as usize..];
            found.push((header.kind, header.seq));
        }
        found
    }

    #[test]
    fn what_the_other_side_lacks_is_written_again() {
        let (mut queue, mut batch) = (SendQueue::default(), WriteBatch::default());
        for _ in 0..4 {
            assert!(queue.push(frame(10), 1 << 20, usize::MAX).is_none());
        }
        assert!(queue.take(&mut batch, true, 0));
        assert!(queue.acknowledge(1).unwrap());
        assert!(queue.push(frame(10), 1 << 20, usize::MAX).is_none());
        queue.resume(2).unwrap();
        assert!(queue.take(&mut batch, true, 0));
        assert_eq!(frames(&batch), [(60_000, 3), (60_000, 4), (60_000, 5)]);
        assert!(queue.resume(1).is_err() && queue.resume(6).is_err());
    }

    #[test]
    fn a_queue_that_is_half_full_asks_for_an_acknowledgement() {
        let (mut queue, mut batch) = (SendQueue::default(), WriteBatch::default());
        let limit = 3 * frame(100).bytes();
        assert!(queue.push(frame(100), limit, usize::MAX).is_none());
        assert!(queue.take(&mut batch, true, 0));
        assert_eq!(frames(&batch), [(60_000, 1)]);
        assert!(queue.push(frame(100), limit, usize::MAX).is_none());
        assert!(queue.take(&mut batch, true, 0));
        assert_eq!(frames(&batch), [(60_000, 2), (KEEPALIVE, 0)]);
        assert!(queue.push(frame(100), limit, usize::MAX).is_none());
        assert!(queue.take(&mut batch, true, 0));
        assert_eq!(frames(&batch), [(60_000, 3)], "it was asked already");
        assert!(queue.push(frame(100), limit, usize::MAX).is_some());
        assert!(queue.acknowledge(3).unwrap());
        assert!(queue.push(frame(100), limit, usize::MAX).is_none());
    }
}
