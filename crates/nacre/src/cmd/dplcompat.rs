//! `nacre-dplcompat`: the program that Bareos' `dplcompat` device runs for each part of a volume. Stores it in striped objects.
//!
//! The operation is in the arguments, options are in the environment under the names that `options` prints, data is read from
//! standard input and written to standard output. Part PART of volume VOL is the striped object `VOL/PART`. The object
//! `VOL.parts` lists a volume's parts with sizes and checksums (docs/format/backup.md). A part is listed once all of it is
//! durable.

mod device;

use super::rados::transfer::{io_text, read_piece};
use super::session;
use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use device::Device;
use nacre_client::{Cluster, IoCtx, Pending, Striper, WriteOp, block_on};
use nacre_types::crc32c::append;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

pub(super) const USAGE: &str = "\
usage: nacre-dplcompat OPERATION [VOLUME [PART]]

The program for Bareos' dplcompat device (Bareos 24 and later), which runs it. See docs/backup.md for the configuration.

  options                  print the names of the options, which are environment variables
  testconnection           check the connection to the cluster and the pool
  list VOLUME              list the volume's parts with their sizes
  stat VOLUME PART         print the size of a part
  upload VOLUME PART       store standard input as a part, and replace an existing one
  download VOLUME PART     write a part to standard output
  remove VOLUME PART       remove a part

The exit code is 0 only on success.
";

/// Bytes per request to the cluster, and requests in flight.
const BLOCK_BYTES: u64 = 4 << 20;
const DEPTH: usize = 8;
/// Parts per request.
const PAGE: u64 = 1000;
/// The list's entry of a part that is not completely stored.
const UNFINISHED: &[u8] = b"-";

/// Runs the program with the arguments after its name.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nacre-dplcompat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[OsString]) -> Result<()> {
    let words: Vec<&str> = args
        .iter()
        .map(|arg| arg.to_str().ok_or_else(|| anyhow!("{arg:?} is not UTF-8")))
        .collect::<Result<_>>()?;
    match words[..] {
        ["-h" | "--help"] => return print(USAGE.as_bytes()),
        // Bareos requests these before anything is configured.
        ["options"] => return print(format!("{}\n", device::OPTIONS.join("\n")).as_bytes()),
        ["testconnection"] | ["list", _] | ["stat" | "upload" | "download" | "remove", _, _] => {}
        _ => bail!("unknown operation\n{USAGE}"),
    }
    if words[1..].iter().any(|name| name.is_empty()) {
        bail!("the name of a volume or part is empty");
    }
    // Otherwise a part of one volume could have the name of another volume's part.
    if let Some(part) = words.get(2).filter(|part| part.contains('/')) {
        bail!("'{part}' is not a valid part name: it contains a '/'");
    }
    let device = Device::from_environment(|name| std::env::var(name).ok())?;
    let (cluster, store) = Store::open(&device)?;
    let outcome = match words[..] {
        ["list", volume] => store.list(volume),
        ["stat", volume, part] => {
            store.listed(volume, part).and_then(|part| print(format!("{}\n", part.bytes).as_bytes()))
        }
        ["upload", volume, part] => store.upload(volume, part, &mut std::io::stdin().lock()),
        ["download", volume, part] => store.download(volume, part),
        ["remove", volume, part] => store.remove(volume, part),
        _ => store.test(),
    };
    cluster.shut_down();
    outcome
}

fn print(data: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(data).and_then(|()| stdout.flush()).context("can't write to standard output")
}

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    bytes: u64,
    crc32c: u32,
}

impl Part {
    fn entry(self) -> Bytes {
        format!("{} {:08x}", self.bytes, self.crc32c).into()
    }

    /// `None` for a part that is not completely stored.
    fn parse(entry: &[u8]) -> Result<Option<Part>> {
        if entry == UNFINISHED {
            return Ok(None);
        }
        let text = std::str::from_utf8(entry).ok();
        let parsed = text.and_then(|text| text.split_once(' ')).and_then(|(bytes, crc)| {
            Some(Part { bytes: bytes.parse().ok()?, crc32c: u32::from_str_radix(crc, 16).ok()? })
        });
        parsed
            .map(Some)
            .ok_or_else(|| anyhow!("the list of parts is damaged: {:?}", String::from_utf8_lossy(entry)))
    }
}

fn list_of(volume: &str) -> String {
    format!("{volume}.parts")
}

fn object_of(volume: &str, part: &str) -> String {
    format!("{volume}/{part}")
}

struct Store {
    pool: IoCtx,
    striper: Striper,
}

impl Store {
    fn open(device: &Device) -> Result<(Cluster, Store)> {
        let invocation = session::parse(device.arguments()).map_err(anyhow::Error::msg)?;
        let cluster = session::connect(&invocation)
            .map_err(|error| anyhow!("couldn't connect to the cluster: {error}"))?;
        let pool = block_on(cluster.open_pool(&device.pool))
            .with_context(|| format!("can't open pool {}", device.pool))?
            .with_namespace(&device.namespace)
            .with_full_try();
        let striper = nacre_client::striper(pool.clone());
        striper.set_layout(device.layout);
        Ok((cluster, Store { pool, striper }))
    }

    /// Performs a real read, so the pool's PGs must answer.
    fn test(&self) -> Result<()> {
        match self.pool.stat(&list_of("")).wait() {
            Err(error) if error.is_not_found() => Ok(()),
            answer => answer.map(drop).with_context(|| format!("can't read pool {}", self.pool.pool_name())),
        }
    }

    fn list(&self, volume: &str) -> Result<()> {
        let (mut after, mut lines) = (Bytes::new(), Vec::new());
        loop {
            let page = match self.pool.omap_get_vals(&list_of(volume), after, "", PAGE).wait() {
                Err(error) if error.is_not_found() => break,
                page => page.with_context(|| format!("can't list {volume}"))?,
            };
            for (name, entry) in &page.entries {
                if let Some(part) = Part::parse(entry)? {
                    lines.extend_from_slice(name);
                    lines.extend_from_slice(format!(" {}\n", part.bytes).as_bytes());
                }
            }
            match page.entries.last() {
                Some((last, _)) if page.more => after = last.clone(),
                _ => break,
            }
        }
        print(&lines)
    }

    fn entry(&self, volume: &str, part: &str) -> Result<Option<Bytes>> {
        let key = Bytes::copy_from_slice(part.as_bytes());
        match self.pool.omap_get_vals_by_keys(&list_of(volume), vec![key.clone()]).wait() {
            Err(error) if error.is_not_found() => Ok(None),
            found => Ok(found.with_context(|| format!("can't look up {volume} {part}"))?.remove(&key)),
        }
    }

    fn listed(&self, volume: &str, part: &str) -> Result<Part> {
        let entry = self.entry(volume, part)?;
        let listed = entry.as_deref().map(Part::parse).transpose()?.flatten();
        listed.with_context(|| format!("there is no part {part} of volume {volume}"))
    }

    fn note(&self, volume: &str, part: &str, entry: Bytes) -> Result<()> {
        let key = Bytes::copy_from_slice(part.as_bytes());
        self.pool
            .omap_set(&list_of(volume), vec![(key, entry)])
            .wait()
            .with_context(|| format!("can't change the list of {volume}"))
    }

    fn upload(&self, volume: &str, part: &str, input: &mut dyn std::io::Read) -> Result<()> {
        let (object, mut input) = (object_of(volume, part), input);
        let storing = || format!("can't store {volume} {part}");
        self.note(volume, part, Bytes::from_static(UNFINISHED))?;
        self.striper.write_full(&object, Bytes::new()).wait().with_context(storing)?;
        let mut stored = Part { bytes: 0, crc32c: 0 };
        let mut in_flight: VecDeque<Pending<()>> = VecDeque::new();
        let mut last = false;
        while !last || !in_flight.is_empty() {
            if !last {
                let data = read_piece(&mut input, BLOCK_BYTES)
                    .map_err(|error| anyhow!("can't read standard input: {}", io_text(&error)))?;
                last = (data.len() as u64) < BLOCK_BYTES;
                let offset = stored.bytes;
                stored.crc32c = append(stored.crc32c, &data);
                stored.bytes += data.len() as u64;
                if !data.is_empty() {
                    in_flight.push_back(self.striper.write(&object, offset, data));
                }
            }
            if (last || in_flight.len() >= DEPTH)
                && let Some(pending) = in_flight.pop_front()
            {
                pending.wait().with_context(storing)?;
            }
        }
        self.note(volume, part, stored.entry())
    }

    fn download(&self, volume: &str, part: &str) -> Result<()> {
        let (listed, object) = (self.listed(volume, part)?, object_of(volume, part));
        let mut stdout = std::io::stdout().lock();
        let mut found = Part { bytes: 0, crc32c: 0 };
        let (mut next, mut in_flight) = (0, VecDeque::new());
        loop {
            while next < listed.bytes && in_flight.len() < DEPTH {
                let len = BLOCK_BYTES.min(listed.bytes - next);
                in_flight.push_back(self.striper.read_runs(&object, next, len));
                next += len;
            }
            let Some(pending) = in_flight.pop_front() else { break };
            for run in pending.wait().with_context(|| format!("can't read {volume} {part}"))? {
                found.crc32c = append(found.crc32c, &run);
                found.bytes += run.len() as u64;
                stdout.write_all(&run).context("can't write to standard output")?;
            }
        }
        stdout.flush().context("can't write to standard output")?;
        if found != listed {
            bail!("{volume} {part} is damaged: {found:?} was read, {listed:?} stored");
        }
        Ok(())
    }

    /// Removes the data first, so that an interrupted removal can be repeated.
    fn remove(&self, volume: &str, part: &str) -> Result<()> {
        let removing = || format!("can't remove {volume} {part}");
        if self.entry(volume, part)?.is_none() {
            bail!("there is no part {part} of volume {volume}");
        }
        match self.striper.remove(&object_of(volume, part)).wait() {
            Err(error) if error.is_not_found() => {}
            removed => removed.with_context(removing)?,
        }
        let list = list_of(volume);
        let key = Bytes::copy_from_slice(part.as_bytes());
        self.pool.omap_rm_keys(&list, vec![key]).wait().with_context(removing)?;
        let left = self.pool.omap_get_keys(&list, "", 1).wait().with_context(removing)?;
        if left.keys.is_empty() {
            self.remove_list(&list).with_context(removing)?;
        }
        Ok(())
    }

    /// Removes a list, unless it was changed after it was found empty.
    fn remove_list(&self, list: &str) -> Result<()> {
        let mut read = nacre_client::ReadOp::new();
        read.omap_get_keys("", 1);
        let mut seen = match self.pool.operate_read(list, read).wait()?.success() {
            Err(error) if error.is_not_found() => return Ok(()),
            seen => seen?,
        };
        if !seen.omap_keys(0)?.keys.is_empty() {
            return Ok(());
        }
        let mut op = WriteOp::new();
        op.assert_version(seen.version).remove();
        // A list that was changed is in use.
        let _ = self.pool.operate(list, op).wait()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_are_written() {
        let part = Part { bytes: 743_246, crc32c: 0x1f };
        assert_eq!(Part::parse(&part.entry()).unwrap(), Some(part));
        assert_eq!(Part::parse(UNFINISHED).unwrap(), None);
        assert!(Part::parse(b"12").is_err() && Part::parse(b"x 1").is_err());
    }

    #[test]
    fn fuzz_entries_of_parts() {
        let seeds = vec![Part { bytes: 743_246, crc32c: 0x1f }.entry().to_vec(), UNFINISHED.to_vec()];
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        nacre_fuzz::Target::new("dplcompat-part", corpus, seeds).run(|input| {
            let part = Part::parse(input).ok()?;
            Some(part.map_or_else(|| UNFINISHED.to_vec(), |part| part.entry().to_vec()))
        });
    }
}
