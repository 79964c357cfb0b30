//! `nacre backup`: streams in striped volumes, with a checksum per block and a digest per stream.
//!
//! A volume is a striped object with the unchanged bytes, and an object that describes them ([`catalog`],
//! docs/format/backup.md): one segment for each stored stream, consisting of blocks with a checksum each. All data that the
//! catalog lists is durable. An interrupted stream continues at the end of the catalog (`--resume`), after the repeated data was
//! compared with it.

mod args;
mod catalog;
mod read;
mod write;

use super::session;
use crate::progress::{Progress, Unit};
use anyhow::{Context as _, Result, bail};
use args::{Args, Command};
pub(super) use args::{is_json, size};
use catalog::{Catalog, CatalogCorrupt, StoredStream};
use nacre_client::{IoCtx, block_on};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

pub(super) const USAGE: &str = include_str!("backup/usage.txt");

/// Runs the program with the arguments after `nacre backup`.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nacre backup: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Vec<OsString>) -> Result<()> {
    let invocation = session::parse(args).map_err(anyhow::Error::msg)?;
    let Some(args) = Args::parse(&invocation.rest)? else {
        return print(USAGE);
    };
    let cluster = session::connect(&invocation)
        .map_err(|error| anyhow::anyhow!("couldn't connect to the cluster: {error}"))?;
    let pool = block_on(cluster.open_pool(&args.pool))
        .with_context(|| format!("can't open pool {}", args.pool))?
        .with_namespace(&args.namespace)
        .with_full_try();
    let outcome = carry_out(&pool, &args);
    cluster.shut_down();
    outcome
}

fn carry_out(pool: &IoCtx, args: &Args) -> Result<()> {
    let volume = args.volume.as_str();
    match args.command {
        Command::Create | Command::Append => write::store(pool, args),
        Command::Cat => read::cat(pool, args),
        Command::Verify => read::verify(pool, args),
        Command::List => list(pool, args.json),
        Command::Info => info(pool, volume, args.json),
        Command::Remove => {
            // A volume with a damaged catalog can be removed, too.
            if !Catalog::exists(pool, volume)? {
                bail!("there is no volume {volume} in pool {}", pool.pool_name());
            }
            match nacre_client::striper(pool.clone()).remove(volume).wait() {
                // An earlier removal was interrupted.
                Err(error) if error.is_not_found() => {}
                removed => removed.with_context(|| format!("can't remove {volume}"))?,
            }
            pool.remove(&catalog::object(volume)).wait().with_context(|| format!("can't remove {volume}"))
        }
    }
}

fn list(pool: &IoCtx, as_json: bool) -> Result<()> {
    let mut volumes = Vec::new();
    let mut objects = pool.list();
    while let Some(object) = block_on(objects.next()).context("can't list the pool")? {
        let Some(volume) = catalog::volume(object.name()) else { continue };
        match Catalog::find(pool, volume) {
            Ok(Some(found)) => volumes.push((volume.to_owned(), Some(found))),
            Ok(None) => {}
            // A damaged volume must not hide the others.
            Err(error) if error.is::<CatalogCorrupt>() => {
                eprintln!("nacre backup: {error:#}");
                volumes.push((volume.to_owned(), None));
            }
            Err(error) => return Err(error),
        }
    }
    volumes.sort_by(|a, b| a.0.cmp(&b.0));
    if as_json {
        let described = |(volume, found): &(String, Option<Catalog>)| match found {
            Some(found) => described(volume, found),
            None => json!({ "volume": volume, "state": "damaged" }),
        };
        let entries: Vec<_> = volumes.iter().map(described).collect();
        return print(&format!("{}\n", json!(entries)));
    }
    let width = volumes.iter().map(|(volume, _)| volume.len()).max().unwrap_or(0).max(6);
    let mut text =
        format!("{:<width$}  {:>16}  {:>8}  {:<10}  CREATED\n", "VOLUME", "BYTES", "SEGMENTS", "STATE");
    for (volume, found) in &volumes {
        let Some(found) = found else {
            text += &format!("{volume:<width$}  {:>16}  {:>8}  {:<10}\n", "", "", "damaged");
            continue;
        };
        let created = found.segments.first().map_or("", |segment| &segment.created);
        let (bytes, segments, state) = (found.bytes(), found.segments.len(), found.state());
        text += &format!("{volume:<width$}  {bytes:>16}  {segments:>8}  {state:<10}  {created}\n");
    }
    print(&text)
}

fn described(volume: &str, found: &Catalog) -> serde_json::Value {
    json!({
        "volume": volume, "bytes": found.bytes(), "blocks": found.blocks.len(), "state": found.state(),
        "segments": found.segments,
    })
}

fn info(pool: &IoCtx, volume: &str, as_json: bool) -> Result<()> {
    let found = Catalog::load(pool, volume)?;
    let layout = match nacre_client::striper(pool.clone()).stat(volume).wait() {
        Ok(stat) => Some(stat.layout),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error).with_context(|| format!("can't stat {volume}")),
    };
    let mut value = described(volume, &found);
    if let Some(layout) = layout {
        value["layout"] = json!({
            "stripe_unit": layout.stripe_unit(), "stripe_count": layout.stripe_count(),
            "object_size": layout.object_size(),
        });
    }
    if as_json {
        return print(&format!("{value}\n"));
    }
    let mut text = format!(
        "volume    {volume}\nstate     {}\nbytes     {}\nblocks    {}\n",
        found.state(),
        found.bytes(),
        found.blocks.len()
    );
    if let Some(layout) = layout {
        text += &format!(
            "layout    stripe_unit {}, stripe_count {}, object_size {}\n",
            layout.stripe_unit(),
            layout.stripe_count(),
            layout.object_size()
        );
    }
    for (n, segment) in found.segments.iter().enumerate() {
        let StoredStream { created, sha256, .. } = segment;
        let range = found.segment_byte_range(n);
        let digest = if segment.complete { format!("sha256 {sha256}") } else { "broken off".to_owned() };
        text += &format!(
            "segment {n:<3} {created}  {} bytes at {}  {digest}\n",
            range.end - range.start,
            range.start
        );
    }
    print(&text)
}

/// Writes to standard output. A closed pipe is not an error.
fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("can't write to standard output"),
    }
}

/// The progress of a transfer, and its figures at the end.
struct Transfer {
    progress: Progress,
    began: Instant,
    bytes: u64,
}

impl Transfer {
    fn new(volume: &str, total: Option<u64>) -> Transfer {
        Transfer { progress: Progress::start(volume, Unit::Bytes, total), began: Instant::now(), bytes: 0 }
    }

    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.progress.add(bytes);
    }

    /// Prints what was done, how much and how fast: as the last line on standard error, or as a document on standard output.
    fn end(self, args: &Args, digest: &str) -> Result<()> {
        drop(self.progress);
        let (volume, bytes, seconds) = (&args.volume, self.bytes, self.began.elapsed().as_secs_f64());
        // The output of `cat` is the volume itself.
        if args.json && args.command != Command::Cat {
            return print(&format!("{}\n", transferred(volume, bytes, seconds, digest)));
        }
        let rate = bytes as f64 / 1e6 / seconds.max(1e-9);
        eprintln!("{volume}: {bytes} bytes in {seconds:.1} s, {rate:.1} MB/s, {digest}");
        Ok(())
    }
}

/// The figures of a transfer, for scripts.
fn transferred(volume: &str, bytes: u64, seconds: f64, digest: &str) -> serde_json::Value {
    json!({ "volume": volume, "bytes": bytes, "seconds": seconds, "digest": digest })
}

/// Fails with a description of the damage and its place.
fn damaged(volume: &str, what: std::fmt::Arguments<'_>) -> Result<()> {
    bail!("{volume} is damaged: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_described_for_scripts() {
        let shown = transferred("home", 7, 0.5, "sha256 ab").to_string();
        assert_eq!(shown, r#"{"volume":"home","bytes":7,"seconds":0.5,"digest":"sha256 ab"}"#);
    }
}
