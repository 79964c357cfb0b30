//! The session of an OSD by which it reads the sources of copies.

use super::requests::TOKEN_BYTES;
use super::{Client, ClientOut, Token};
use crate::history::History;
use crate::schedule::Nanos;
use nacre_engine::Error;
use nacre_objecter::Answer;
use nacre_shard::copy::CopyReader;
use nacre_types::errno::Errno;
use nacre_types::op::Op;

/// The largest object that is copied, in bytes, and the data of one piece: little, so that copies have several.
const LIMITS: (u64, u64) = (1 << 20, 16);
/// The same as production has it.
const REAL_LIMITS: (u64, u64) = (128 << 20, 8 << 20);

impl Client {
    /// Reads the source of a copy-from op, for the request of this number.
    pub fn read_source(
        &mut self,
        now: Nanos,
        history: &mut History,
        (number, op): (u64, &Op),
        out: &mut Vec<ClientOut>,
    ) {
        let (max_bytes, piece_bytes) = if self.token_bytes > TOKEN_BYTES { REAL_LIMITS } else { LIMITS };
        let Some(reader) = CopyReader::new(op, max_bytes, piece_bytes) else { return };
        self.reading.insert(number, reader);
        self.next_piece(now, number, out);
        self.step(now, history, out, |_, _| {});
    }

    fn next_piece(&mut self, now: Nanos, number: u64, out: &mut Vec<ClientOut>) {
        let Some(reader) = self.reading.get(&number) else { return };
        match reader.source().cloned() {
            Ok(source) => self.submit(now, (source, reader.request()), Token::Piece(number)),
            Err(errno) => {
                self.reading.remove(&number);
                out.push(ClientOut::Copied(number, Box::new(Err(errno))));
            }
        }
    }

    pub(super) fn on_piece(
        &mut self,
        now: Nanos,
        number: u64,
        result: Result<Answer, Error>,
        out: &mut Vec<ClientOut>,
    ) {
        let piece = match result {
            Ok(mut answer) if answer.reply.result >= 0 => {
                answer.reply.ops.pop().map(|last| last.output).ok_or(Errno::EIO)
            }
            Ok(answer) => Err(Errno(-answer.reply.result)),
            Err(error) => Err(error.errno()),
        };
        match self.reading.get_mut(&number).map(|reader| reader.on_piece(piece)) {
            Some(Some(copied)) => {
                self.reading.remove(&number);
                out.push(ClientOut::Copied(number, Box::new(copied)));
            }
            Some(None) => self.next_piece(now, number, out),
            None => {}
        }
    }
}
