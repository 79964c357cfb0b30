//! The session by which an OSD reads the sources of copies and sends requests to the other pool of a cache tier.

use super::requests::TOKEN_BYTES;
use super::{Client, ClientOutput, Outside, Token, millis, submission};
use crate::history::History;
use crate::schedule::Nanos;
use nacre_engine::Error;
use nacre_objecter::{Answer, Submission};
use nacre_shard::copy::CopyReader;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdRequest;
use nacre_types::op::{Op, OsdOp, copy_from_flag, request_flag};

/// The largest object that is copied, in bytes, and the data of one piece: small, so that copies have several pieces.
const LIMITS: (u64, u64) = (1 << 20, 16);
/// The same with production's values.
const REAL_LIMITS: (u64, u64) = (128 << 20, 8 << 20);

impl Client {
    /// Reads the source of a copy-from op for the request with this number.
    pub fn read_source(
        &mut self,
        now: Nanos,
        history: &mut History,
        (number, request): (u64, &OsdRequest),
        out: &mut Vec<ClientOutput>,
    ) {
        let Some(op) = request.ops.iter().map(|op| &op.op).find(|op| matches!(op, Op::CopyFrom { .. }))
        else {
            return;
        };
        let (max_bytes, piece_bytes) = if self.token_bytes > TOKEN_BYTES { REAL_LIMITS } else { LIMITS };
        let Some(reader) = CopyReader::new(op, max_bytes, piece_bytes) else { return };
        self.reading.insert(number, (reader, request.tier.clone()));
        self.next_piece(now, number, out);
        self.step(now, history, out, |_, _| {});
    }

    fn next_piece(&mut self, now: Nanos, number: u64, out: &mut Vec<ClientOutput>) {
        let Some((reader, tier)) = self.reading.get(&number) else { return };
        let is_tier = reader.flags & copy_from_flag::IGNORE_CACHE != 0;
        let flags = if is_tier { request_flag::IGNORE_OVERLAY | request_flag::IGNORE_CACHE } else { 0 };
        let tier = tier.clone().filter(|_| is_tier);
        match reader.source().cloned() {
            Ok(source) => {
                let ops = reader.request().into_iter().map(OsdOp::from).collect();
                let submission = Submission { tier, ..submission(now, source, ops, flags, None) };
                let Client { done, connections, .. } = self;
                let mut outside = Outside { now, done, connections };
                self.objecter.submit(submission, Token::Piece(number), millis(now), &mut outside);
            }
            Err(errno) => {
                self.reading.remove(&number);
                out.push(ClientOutput::Copied(number, Box::new(Err(errno))));
            }
        }
    }

    /// Sends a request of its OSD to another pool.
    pub fn send_to_other_pool(
        &mut self,
        now: Nanos,
        history: &mut History,
        (number, request): (u64, OsdRequest),
        out: &mut Vec<ClientOutput>,
    ) {
        let OsdRequest { object, ops, flags, snap, snap_context, mtime_ns, tier, .. } = request;
        let submission =
            Submission { object, ops, flags, snap, snap_context, mtime_ns, deadline_ms: None, tier };
        self.step(now, history, out, |objecter, sink| {
            objecter.submit(submission, Token::Other(number), millis(now), sink);
        });
    }

    pub(super) fn on_piece(
        &mut self,
        now: Nanos,
        number: u64,
        result: Result<Answer, Error>,
        out: &mut Vec<ClientOutput>,
    ) {
        let piece = match result {
            Ok(mut answer) if answer.reply.result >= 0 => {
                answer.reply.ops.pop().map(|last| last.output).ok_or(Errno::EIO)
            }
            Ok(answer) => Err(Errno(-answer.reply.result)),
            Err(error) => Err(error.errno()),
        };
        match self.reading.get_mut(&number).map(|(reader, _)| reader.on_piece(piece)) {
            Some(Some(copied)) => {
                self.reading.remove(&number);
                out.push(ClientOutput::Copied(number, Box::new(copied)));
            }
            Some(None) => self.next_piece(now, number, out),
            None => {}
        }
    }
}
