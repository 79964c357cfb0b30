//! Stores streams in volumes.

use super::Transfer;
use super::args::{Args, Command};
use super::catalog::{self, Block, Catalog, ENTRY_BYTES, StoredStream};
use crate::cmd::rados::transfer::{io_text, read_piece};
use anyhow::{Context as _, Result, anyhow, bail};
use bytes::{Bytes, BytesMut};
use nacre_client::{IoCtx, OpReply, Pending, Striper};
use nacre_types::crc32c::crc32c;
use nacre_types::errno::Errno;
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;

/// Blocks per update of the catalog: the maximum that an interrupted stream loses, besides the data in flight.
const BLOCKS_PER_ENTRY_WRITE: usize = 16;

/// `create` and `append`.
pub(super) fn store(pool: &IoCtx, args: &Args) -> Result<()> {
    let volume = args.volume.as_str();
    let (mut input, total) = open(args.file.as_deref())?;
    let striper = nacre_client::striper(pool.clone());
    striper.set_layout(args.layout);
    let (catalog, n) = prepare(pool, &striper, args)?;
    let mut stream = Stream {
        pool,
        striper,
        volume,
        depth: args.depth,
        n,
        segment: catalog.segments[n].clone(),
        offset: catalog.segment_byte_range(n).start,
        block: catalog.segments[n].first_block,
        digest: Sha256::new(),
        bytes: 0,
        in_flight: VecDeque::new(),
        done: BytesMut::new(),
        listed: catalog.blocks.len() as u64,
        listing: None,
    };
    let mut progress = Transfer::new(volume, total);
    let ended = stream.compare(&mut input, catalog.segment_blocks(n), &mut progress)?;
    if !ended {
        stream.write(&mut input, &mut progress)?;
    }
    let digest = stream.finish()?;
    progress.end(args, &format!("sha256 {digest}"))
}

fn open(file: Option<&str>) -> Result<(Box<dyn Read>, Option<u64>)> {
    let Some(path) = file else { return Ok((Box::new(std::io::stdin().lock()), None)) };
    let file = File::open(path).with_context(|| format!("can't open {path}"))?;
    let meta = file.metadata().with_context(|| format!("can't stat {path}"))?;
    if meta.is_dir() {
        bail!("{path} is a directory: pipe it through tar");
    }
    Ok((Box::new(file), meta.is_file().then_some(meta.len())))
}

/// The catalog and the number of the segment for the stream.
fn prepare(pool: &IoCtx, striper: &Striper, args: &Args) -> Result<(Catalog, usize)> {
    let volume = args.volume.as_str();
    let found = Catalog::find(pool, volume)?;
    let mut segment = StoredStream {
        first_block: 0,
        block_size: args.block_size,
        created: crate::cmd::rados::formatting::time(crate::cmd::rados::formatting::now_ns()),
        complete: false,
        bytes: 0,
        sha256: String::new(),
    };
    match (args.command, found) {
        (Command::Create, Some(catalog)) if !args.force => match catalog.unfinished_segment() {
            Some(0) if args.resume => Ok((catalog, 0)),
            Some(0) => {
                bail!("volume {volume} is broken off: continue it with --resume, or replace it with --force")
            }
            _ => bail!("volume {volume} already exists: append to it, or replace it with --force"),
        },
        (Command::Create, found) => {
            if found.is_some() {
                pool.remove(&catalog::object(volume))
                    .wait()
                    .with_context(|| format!("can't replace {volume}"))?;
            }
            match striper.stat(volume).wait() {
                Err(error) if error.is_not_found() => {}
                Ok(_) if args.force => {
                    striper.remove(volume).wait().with_context(|| format!("can't replace {volume}"))?
                }
                Ok(_) => bail!("a striped object {volume} without a catalog exists: replace it with --force"),
                Err(error) => return Err(error).with_context(|| format!("can't stat {volume}")),
            }
            catalog::create(pool, volume, &segment).with_context(|| format!("can't create {volume}"))?;
            Ok((Catalog { segments: vec![segment], blocks: Vec::new() }, 0))
        }
        (_, None) => bail!("there is no volume {volume} in pool {}", pool.pool_name()),
        (_, Some(mut catalog)) => match catalog.unfinished_segment() {
            Some(n) if args.resume && n > 0 => Ok((catalog, n)),
            Some(0) => bail!("the first stream to {volume} was interrupted: finish it with create --resume"),
            Some(_) => bail!("a stream to {volume} was interrupted: continue it with --resume"),
            None => {
                let n = catalog.segments.len();
                segment.first_block = catalog.blocks.len() as u64;
                catalog::append_segment(pool, volume, n, &segment)
                    .with_context(|| format!("can't append to {volume} (is another append running?)"))?;
                catalog.segments.push(segment);
                Ok((catalog, n))
            }
        },
    }
}

struct Stream<'a> {
    pool: &'a IoCtx,
    striper: Striper,
    volume: &'a str,
    depth: usize,
    n: usize,
    segment: StoredStream,
    /// Offset of the next block in bytes, and its number.
    offset: u64,
    block: u64,
    digest: Sha256,
    bytes: u64,
    in_flight: VecDeque<(Block, Pending<()>)>,
    /// Entries of blocks that are durable but not in the catalog yet.
    done: BytesMut,
    listed: u64,
    listing: Option<Pending<OpReply>>,
}

impl Stream<'_> {
    fn read(&self, input: &mut dyn Read) -> Result<Bytes> {
        let mut input = input;
        read_piece(&mut input, self.segment.block_size.into())
            .map_err(|error| anyhow!("can't read the input: {}", io_text(&error)))
    }

    fn take(&mut self, data: &Bytes) -> Block {
        self.digest.update(data);
        self.bytes += data.len() as u64;
        self.offset += data.len() as u64;
        self.block += 1;
        Block { len: data.len() as u32, crc32c: crc32c(data) }
    }

    /// Compares the start of the stream with the stored blocks. Returns whether the stream ended there.
    fn compare(&mut self, input: &mut dyn Read, stored: &[Block], progress: &mut Transfer) -> Result<bool> {
        for known in stored {
            let at = self.bytes;
            let data = self.read(input)?;
            if self.take(&data) != *known {
                bail!(
                    "the input differs from the interrupted stream at bytes {at} to {}; nothing was changed",
                    at + u64::from(known.len)
                );
            }
            progress.add(data.len() as u64);
        }
        // A short block is the last one of a stream.
        Ok(stored.last().is_some_and(|last| last.len < self.segment.block_size))
    }

    fn write(&mut self, input: &mut dyn Read, progress: &mut Transfer) -> Result<()> {
        loop {
            let data = self.read(input)?;
            let (len, offset) = (data.len(), self.offset);
            if len > 0 {
                let block = self.take(&data);
                self.in_flight.push_back((block, self.striper.write(self.volume, offset, data)));
                progress.add(len as u64);
            }
            let last = len < self.segment.block_size as usize;
            self.settle(if last { 0 } else { self.depth - 1 })?;
            if last {
                return Ok(());
            }
        }
    }

    /// Waits until at most `keep` blocks are in flight, and adds the durable ones to the catalog.
    fn settle(&mut self, keep: usize) -> Result<()> {
        while self.in_flight.len() > keep
            && let Some((block, pending)) = self.in_flight.pop_front()
        {
            pending.wait().map_err(|error| match error.errno() {
                Errno::ENOSPC | Errno::EDQUOT => {
                    anyhow!("no space is left for {}: free some and continue with --resume", self.volume)
                }
                _ => anyhow::Error::new(error).context(format!("can't write {}", self.volume)),
            })?;
            block.encode(&mut self.done);
        }
        if self.done.len() >= BLOCKS_PER_ENTRY_WRITE * ENTRY_BYTES {
            self.listed()?;
            let entries = self.done.split().freeze();
            let count = (entries.len() / ENTRY_BYTES) as u64;
            let op = catalog::entries(self.listed, entries, None)?;
            self.listing = Some(self.pool.operate(&catalog::object(self.volume), op));
            self.listed += count;
        }
        Ok(())
    }

    /// Waits for the update of the catalog.
    fn listed(&mut self) -> Result<()> {
        if let Some(listing) = self.listing.take() {
            listing
                .wait()
                .and_then(OpReply::success)
                .with_context(|| format!("can't write the catalog of {}", self.volume))?;
        }
        Ok(())
    }

    /// Finishes the segment. Returns its digest.
    fn finish(mut self) -> Result<String> {
        self.listed()?;
        let digest: String =
            self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        // An earlier attempt may have written more than this stream contains.
        match self.striper.stat(self.volume).wait() {
            Ok(stat) if stat.size > self.offset => self.striper.truncate(self.volume, self.offset).wait()?,
            Ok(_) => {}
            // Nothing was stored, but the volume must exist.
            Err(error) if error.is_not_found() => self.striper.write(self.volume, 0, Bytes::new()).wait()?,
            Err(error) => return Err(error).with_context(|| format!("can't stat {}", self.volume)),
        }
        self.segment.complete = true;
        self.segment.bytes = self.bytes;
        self.segment.sha256.clone_from(&digest);
        let op = catalog::entries(self.listed, self.done.split().freeze(), Some((self.n, &self.segment)))?;
        self.listing = Some(self.pool.operate(&catalog::object(self.volume), op));
        self.listed()?;
        Ok(digest)
    }
}
