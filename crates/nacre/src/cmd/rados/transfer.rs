//! Transfers between objects and files, in pieces of the op size with several in flight.

use super::{Context, RadosFailure, failed, reason};
use crate::progress::{Progress, Unit};
use bytes::Bytes;
use nacre_client::{IoCtx, Pending, ReadOp};
use nacre_types::errno::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};

/// Bytes in flight; at least one piece.
const WINDOW_BYTES: u64 = 32 << 20;
/// The system's error as Ceph prints it.
pub(in crate::cmd) fn io_text(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno(number).to_string(),
        None => error.to_string(),
    }
}

/// Pieces in flight for the op size.
pub(super) fn window(op_size: u64) -> usize {
    usize::try_from(WINDOW_BYTES / op_size.max(1)).unwrap_or(1).clamp(1, 64)
}

/// Reads a buffer of `size` bytes. It is shorter only at the end of the input.
pub(in crate::cmd) fn read_piece(input: &mut impl Read, size: u64) -> std::io::Result<Bytes> {
    let mut piece = Vec::with_capacity(usize::try_from(size).unwrap_or(0).min(16 << 20));
    input.take(size).read_to_end(&mut piece)?;
    Ok(piece.into())
}

pub(super) fn put(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (object, path) = (operands[0], operands[1]);
    let name = context.name(object);
    let reading =
        |e: std::io::Error| RadosFailure::new(format!("error reading input file {path}: {}", io_text(&e)));
    let mut known = None;
    let mut input: Box<dyn Read> = if path == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let file = File::open(path).map_err(reading)?;
        let meta = file.metadata().map_err(reading)?;
        if meta.is_dir() {
            let hint = "use put-tree for directories";
            return Err(RadosFailure::new(format!(
                "error reading input file {path}: {} ({hint})",
                Errno::EISDIR
            )));
        }
        known = meta.is_file().then_some(meta.len());
        Box::new(file)
    };
    check_size(context, &name, known.unwrap_or(0))?;
    let progress = Progress::start(format!("put {object}"), Unit::Bytes, known);
    let written = write_pieces(context, object, &mut input, &mut |bytes| progress.add(bytes));
    drop(progress);
    written
}

/// Refuses sizes that the OSDs would refuse, before a byte is sent.
fn check_size(context: &Context<'_>, name: &str, len: u64) -> Result<(), RadosFailure> {
    let (limit, end) = (context.max_object_size(), context.args.offset.saturating_add(len));
    if end <= limit {
        return Ok(());
    }
    let errno = Errno::EFBIG;
    Err(RadosFailure::new(format!(
        "error putting {name}: {errno} ({end} bytes; osd_max_object_size is {limit})"
    )))
}

fn write_pieces(
    context: &Context<'_>,
    object: &str,
    input: &mut dyn Read,
    advance: &mut dyn FnMut(u64),
) -> Result<(), RadosFailure> {
    let (pool, op_size) = (context.pool(), context.op_size());
    let name = context.name(object);
    let mut offset = context.args.offset;
    let mut in_flight = VecDeque::new();
    let mut first = true;
    loop {
        let mut source = &mut *input;
        let piece = read_piece(&mut source, op_size)
            .map_err(|e| RadosFailure::new(format!("error reading the input for {name}: {}", io_text(&e))))?;
        let len = piece.len() as u64;
        let last = len < op_size;
        if len > 0 || (first && offset == 0) {
            // The first piece at offset 0 replaces the previous contents; requests on one object stay in order.
            let pending = match first && offset == 0 {
                true => pool.write_full(object, piece),
                false => pool.write(object, offset, piece),
            };
            in_flight.push_back((len, pending));
        }
        (first, offset) = (false, offset + len);
        let keep = if last { 0 } else { window(op_size) - 1 };
        while in_flight.len() > keep {
            let (len, pending): (u64, Pending<()>) =
                in_flight.pop_front().expect("invariant: there are more than `keep`");
            pending.wait().map_err(failed(format_args!("error putting {name}")))?;
            advance(len);
        }
        if last {
            return Ok(());
        }
        check_size(context, &name, offset - context.args.offset)?;
    }
}

pub(super) fn append(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (object, path) = (operands[0], operands[1]);
    let mut input: Box<dyn Read> =
        if path == "-" {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(File::open(path).map_err(|e| {
                RadosFailure::new(format!("error reading input file {path}: {}", io_text(&e)))
            })?)
        };
    let op_size = context.op_size();
    loop {
        let piece = read_piece(&mut input, op_size)
            .map_err(|e| RadosFailure::new(format!("error reading input file {path}: {}", io_text(&e))))?;
        let last = (piece.len() as u64) < op_size;
        if !piece.is_empty() {
            let doing = format!("error appending {}", context.name(object));
            context.pool().append(object, piece).wait().map_err(failed(doing))?;
        }
        if last {
            return Ok(());
        }
    }
}

pub(super) fn get(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (object, path) = (operands[0], operands[1]);
    let name = context.name(object);
    let first = read_size_and_first_piece(context.pool(), object, context.args.offset, context.op_size());
    let (size, piece) = first.map_err(failed(format_args!("error getting {name}")))?;
    let writing =
        |e: std::io::Error| RadosFailure::new(format!("error writing to file {path}: {}", io_text(&e)));
    let mut output: Box<dyn Write> = match path {
        "-" => Box::new(std::io::stdout().lock()),
        path => Box::new(File::create(path).map_err(writing)?),
    };
    let progress = Progress::start(format!("get {object}"), Unit::Bytes, Some(size));
    let fetched = fetch(context, object, size, piece, &mut |data| output.write_all(data), &mut |bytes| {
        progress.add(bytes)
    });
    drop(progress);
    match fetched {
        Err(FetchError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe && path == "-" => Ok(()),
        Err(FetchError::Output(e)) => Err(writing(e)),
        Err(FetchError::Object(e)) => Err(RadosFailure::new(format!("error getting {name}: {}", reason(&e)))),
        Ok(()) => output.flush().map_err(writing),
    }
}

/// An object's size and its first piece from `offset`, in one request.
pub(super) fn read_size_and_first_piece(
    pool: &IoCtx,
    object: &str,
    offset: u64,
    op_size: u64,
) -> nacre_client::Result<(u64, Bytes)> {
    let mut op = ReadOp::new();
    op.stat().read(offset, op_size);
    let mut reply = pool.operate_read(object, op).wait()?.success()?;
    Ok((reply.stat(0)?.size, reply.output(1)?))
}

/// Why a fetch ended early.
pub(super) enum FetchError {
    Output(std::io::Error),
    Object(nacre_client::Error),
}

/// Passes an object's pieces to `write` in order, starting with the first one, which was already read.
pub(super) fn fetch(
    context: &Context<'_>,
    object: &str,
    size: u64,
    first: Bytes,
    write: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    advance: &mut dyn FnMut(u64),
) -> Result<(), FetchError> {
    let (pool, op_size) = (context.pool(), context.op_size());
    let mut next = context.args.offset + first.len() as u64;
    let mut in_flight = VecDeque::new();
    write(&first).map_err(FetchError::Output)?;
    advance(first.len() as u64);
    loop {
        while next < size && in_flight.len() < window(op_size) {
            in_flight.push_back(pool.read(object, next, op_size.min(size - next)));
            next += op_size.min(size - next);
        }
        let Some(pending) = in_flight.pop_front() else { return Ok(()) };
        let data = pending.wait().map_err(FetchError::Object)?;
        write(&data).map_err(FetchError::Output)?;
        advance(data.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_short_only_at_the_end() {
        let mut input = &b"abcdefgh"[..];
        assert_eq!(read_piece(&mut input, 5).unwrap(), "abcde");
        assert_eq!(read_piece(&mut input, 5).unwrap(), "fgh");
        assert!(read_piece(&mut input, 5).unwrap().is_empty());
    }

    #[test]
    fn the_window_is_bounded_in_bytes_and_pieces() {
        assert_eq!(window(4 << 20), 8);
        assert_eq!(window(1 << 30), 1);
        assert_eq!(window(1), 64);
    }
}
