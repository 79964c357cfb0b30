//! The receiving side of a connection: validates the order of frames and decides when to acknowledge them.

use crate::wire::{ACK, CLOSE, FIRST_CONTROL_KIND, FrameHeader, KEEPALIVE, KEEPALIVE_ACK};
use crate::{Mutation, Policy, Rules};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A separate acknowledgement is sent after this many messages or bytes if no outgoing message carried one.
const ACK_AFTER_MESSAGES: u64 = 32;
const ACK_AFTER_BYTES: u64 = 256 << 10;
/// Bytes that one byte of a description may occupy when it is decoded: an empty key is one byte there and a handle in memory. Throttles
/// count them, or a flood of such messages would take many times the allowed memory.
const DECODED_PER_META_BYTE: u64 = 32;

/// The rule that a frame violates. The socket is then dropped.
pub type ProtocolViolation = Cow<'static, str>;

/// What this side has received, over all sockets of a session. Only the session's task changes it; the parts of that task share it.
#[derive(Debug, Default)]
pub struct ReceiveState {
    last: AtomicU64,
    told: AtomicU64,
    heard: AtomicBool,
}

impl ReceiveState {
    /// The last message that was handled.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Records that everything up to `seq` was acknowledged to the other side.
    pub fn mark_acked(&self, seq: u64) {
        self.told.store(seq, Ordering::Relaxed);
    }

    /// Whether messages were received that are not acknowledged.
    pub fn is_ack_due(&self) -> bool {
        self.last() > self.told.load(Ordering::Relaxed)
    }

    /// Whether any frame was received: then the other side knows of the session.
    pub fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Restarts the numbering for a new session.
    pub fn reset(&self) {
        self.last.store(0, Ordering::Relaxed);
        self.told.store(0, Ordering::Relaxed);
    }
}

/// Maximum sizes of frames that are sent or accepted.
#[derive(Debug, Clone, Copy)]
pub struct FrameLimits {
    /// Of the description.
    pub meta_bytes: u64,
    /// Of the data.
    pub data_bytes: u64,
}

/// A description or data that exceeds [`FrameLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameTooLong {
    /// Its length.
    pub bytes: u64,
    /// The limit.
    pub limit: u64,
}

impl FrameLimits {
    /// Checks the lengths of a description and data against the limits.
    pub fn check(&self, meta_bytes: u64, data_bytes: u64) -> Result<(), FrameTooLong> {
        let parts = [(meta_bytes, self.meta_bytes), (data_bytes, self.data_bytes)];
        match parts.into_iter().find(|(bytes, limit)| bytes > limit) {
            Some((bytes, limit)) => Err(FrameTooLong { bytes, limit }),
            None => Ok(()),
        }
    }
}

/// Meaning of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameAction {
    /// No action.
    Nothing,
    /// The other side requests an answer to its keepalive.
    Keepalive,
    /// The other side has ended the session.
    Close,
    /// The next message: its body follows.
    Next,
    /// A message that was handled before: its body follows and is dropped.
    Duplicate,
}

/// Checks the frames of one socket.
#[derive(Debug)]
pub struct FrameValidator {
    lossless: bool,
    limits: FrameLimits,
    rules: Rules,
    seen_ack: u64,
    unacked_bytes: u64,
    heard: bool,
}

impl FrameValidator {
    /// Creates a validator for a new socket.
    pub fn new(policy: Policy, limits: FrameLimits, rules: Rules) -> FrameValidator {
        let lossless = policy == Policy::Lossless;
        FrameValidator { lossless, limits, rules, seen_ack: 0, unacked_bytes: 0, heard: false }
    }

    /// The header's acknowledgement, if it is new for [`crate::queue::SendQueue::acknowledge`].
    pub fn new_ack(&mut self, header: &FrameHeader) -> Option<u64> {
        if !self.lossless || header.ack <= self.seen_ack {
            return None;
        }
        self.seen_ack = header.ack;
        Some(header.ack)
    }

    /// Validates a header and returns its meaning.
    pub fn classify(
        &mut self,
        header: &FrameHeader,
        received: &ReceiveState,
    ) -> Result<FrameAction, ProtocolViolation> {
        if !self.heard {
            self.heard = true;
            received.heard.store(true, Ordering::Relaxed);
        }
        if header.kind >= FIRST_CONTROL_KIND {
            if header.body_len() > 0 || header.seq > 0 {
                return Err("control frame with a body".into());
            }
            return match header.kind {
                ACK | KEEPALIVE_ACK => Ok(FrameAction::Nothing),
                KEEPALIVE => Ok(FrameAction::Keepalive),
                CLOSE => Ok(FrameAction::Close),
                _ => Err("unknown control frame".into()),
            };
        }
        if self.limits.check(header.meta_len.into(), header.data_len.into()).is_err() {
            return Err("frame exceeds the size limits".into());
        }
        let last = received.last();
        if header.seq == last + 1 {
            if self.rules.breaks(Mutation::CountUnread) {
                received.last.store(header.seq, Ordering::Relaxed);
            }
            return Ok(FrameAction::Next);
        }
        if header.seq > last || !self.lossless {
            return Err(format!("message {} follows message {last}", header.seq).into());
        }
        // The peer was told the last received number after the previous socket was dropped, so a repeated message is valid only as a
        // resend.
        Ok(FrameAction::Duplicate)
    }

    /// Records that the next message is complete and is being handled.
    pub fn mark_handled(&mut self, header: &FrameHeader, received: &ReceiveState) {
        received.last.store(header.seq, Ordering::Relaxed);
    }

    /// Accounts for a handled message. Returns whether an acknowledgement is due that no message carries.
    pub fn count_handled(&mut self, header: &FrameHeader, received: &ReceiveState) -> bool {
        if !self.lossless {
            return false;
        }
        self.unacked_bytes += header.wire_bytes();
        let unacked = header.seq.saturating_sub(received.told.load(Ordering::Relaxed));
        let due = unacked >= ACK_AFTER_MESSAGES || self.unacked_bytes >= ACK_AFTER_BYTES;
        if due {
            self.unacked_bytes = 0;
        }
        due
    }
}

/// Bytes of memory that a message may take once it is decoded.
pub fn memory_bytes(header: &FrameHeader) -> u64 {
    header.wire_bytes() + u64::from(header.meta_len) * DECODED_PER_META_BYTE
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FrameLimits = FrameLimits { meta_bytes: 100, data_bytes: 1000 };

    fn header(seq: u64, data_len: u32) -> FrameHeader {
        FrameHeader { kind: 7, seq, data_len, ..FrameHeader::control(0, 0) }
    }

    #[test]
    fn what_is_too_long_is_found_before_it_is_sent() {
        assert_eq!(LIMITS.check(100, 1000), Ok(()));
        assert_eq!(LIMITS.check(101, 0), Err(FrameTooLong { bytes: 101, limit: 100 }));
        assert_eq!(LIMITS.check(0, 1001), Err(FrameTooLong { bytes: 1001, limit: 1000 }));
    }

    #[test]
    fn messages_follow_one_another_and_repeats_are_dropped() {
        let received = ReceiveState::default();
        let mut reader = FrameValidator::new(Policy::Lossless, LIMITS, Rules::default());
        for seq in 1..=3 {
            assert_eq!(reader.classify(&header(seq, 5), &received), Ok(FrameAction::Next));
            reader.mark_handled(&header(seq, 5), &received);
        }
        assert_eq!(reader.classify(&header(2, 5), &received), Ok(FrameAction::Duplicate));
        assert!(reader.classify(&header(5, 5), &received).is_err(), "a gap");
        assert!(reader.classify(&header(4, 1001), &received).is_err(), "too big");
        let mut lossy = FrameValidator::new(Policy::Lossy, LIMITS, Rules::default());
        assert_eq!(lossy.classify(&header(4, 5), &received), Ok(FrameAction::Next));
        assert!(lossy.classify(&header(2, 5), &received).is_err());
        assert_eq!(lossy.classify(&FrameHeader::control(CLOSE, 0), &received), Ok(FrameAction::Close));
        assert!(lossy.classify(&FrameHeader { seq: 1, ..FrameHeader::control(ACK, 0) }, &received).is_err());
    }

    #[test]
    fn acknowledgements_are_due_by_messages_and_by_bytes() {
        let received = ReceiveState::default();
        let mut reader = FrameValidator::new(Policy::Lossless, LIMITS, Rules::default());
        let mut due = |seq, bytes| {
            reader.mark_handled(&header(seq, bytes), &received);
            reader.count_handled(&header(seq, bytes), &received)
        };
        for seq in 1..ACK_AFTER_MESSAGES {
            assert!(!due(seq, 1));
        }
        assert!(due(ACK_AFTER_MESSAGES, 1));
        assert!(received.is_ack_due());
        received.mark_acked(ACK_AFTER_MESSAGES);
        assert!(!received.is_ack_due());
        assert!(due(ACK_AFTER_MESSAGES + 1, ACK_AFTER_BYTES as u32));
        assert!(!due(ACK_AFTER_MESSAGES + 2, 1));
    }
}
