//! Reads volumes as streams.

use super::args::Args;
use super::catalog::Catalog;
use super::{Transfer, damaged};
use anyhow::{Context as _, Result, bail};
use nacre_client::IoCtx;
use nacre_types::crc32c::append;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::ops::Range;

/// `cat`.
pub(super) fn cat(pool: &IoCtx, args: &Args) -> Result<()> {
    let catalog = Catalog::load(pool, &args.volume)?;
    let segments = chosen(&catalog, args)?;
    let (mut output, target): (Box<dyn Write>, _) = match &args.file {
        None => (Box::new(std::io::stdout().lock()), "standard output"),
        Some(path) => {
            (Box::new(File::create(path).with_context(|| format!("can't create {path}"))?), path.as_str())
        }
    };
    let writing = || format!("can't write to {target}");
    copy(pool, args, &catalog, segments, &mut |run| output.write_all(run).with_context(writing))?;
    output.flush().with_context(writing)
}

/// `verify`.
pub(super) fn verify(pool: &IoCtx, args: &Args) -> Result<()> {
    let catalog = Catalog::load(pool, &args.volume)?;
    let segments = chosen(&catalog, args)?;
    let size = nacre_client::striper(pool.clone())
        .stat(&args.volume)
        .wait()
        .with_context(|| format!("can't stat {}", args.volume))?
        .size;
    if size != catalog.bytes() {
        return damaged(&args.volume, format_args!("{size} bytes are stored, {} listed", catalog.bytes()));
    }
    copy(pool, args, &catalog, segments, &mut |_| Ok(()))
}

/// The requested segments. An interrupted stream must not be returned as if it were complete.
fn chosen(catalog: &Catalog, args: &Args) -> Result<Range<usize>> {
    let count = catalog.segments.len();
    let segments = match args.segment {
        None => 0..count,
        Some(n) if n < count => n..n + 1,
        Some(n) => bail!("{} has no segment {n}", args.volume),
    };
    if catalog.unfinished_segment().is_some_and(|open| segments.contains(&open)) {
        bail!("the stream to {} was interrupted: finish it with --resume", args.volume);
    }
    Ok(segments)
}

/// Reads segments, checks every block before passing it on, and checks each segment's digest at its end.
fn copy(
    pool: &IoCtx,
    args: &Args,
    catalog: &Catalog,
    segments: Range<usize>,
    write: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let volume = args.volume.as_str();
    let striper = nacre_client::striper(pool.clone());
    let total = segments.clone().map(|n| catalog.segments[n].bytes).sum();
    let mut progress = Transfer::new(volume, Some(total));
    let mut digests = Vec::new();
    for n in segments {
        let mut digest = Sha256::new();
        let mut offset = catalog.segment_byte_range(n).start;
        let mut left = catalog.segment_blocks(n).iter();
        let mut in_flight = VecDeque::new();
        loop {
            while in_flight.len() < args.depth
                && let Some(block) = left.next()
            {
                in_flight.push_back((*block, offset, striper.read_runs(volume, offset, block.len.into())));
                offset += u64::from(block.len);
            }
            let Some((block, at, pending)) = in_flight.pop_front() else { break };
            let runs = pending.wait().with_context(|| format!("can't read {volume} at byte {at}"))?;
            let len: usize = runs.iter().map(|run| run.len()).sum();
            let crc = runs.iter().fold(0, |crc, run| append(crc, run));
            if (len, crc) != (block.len as usize, block.crc32c) {
                return damaged(volume, format_args!("the block of {} bytes at byte {at}", block.len));
            }
            for run in &runs {
                digest.update(run);
                write(run)?;
            }
            progress.add(block.len.into());
        }
        let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if digest != catalog.segments[n].sha256 {
            return damaged(
                volume,
                format_args!("segment {n} has digest {digest}, not {}", catalog.segments[n].sha256),
            );
        }
        digests.push(digest);
    }
    let digests = if digests.len() == 1 {
        format!("sha256 {}", digests[0])
    } else {
        format!("{} digests match", digests.len())
    };
    progress.end(args, &digests)
}
