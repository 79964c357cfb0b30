//! `nacre osdmaptool`: Ceph's `osdmaptool`, on maps that `ceph osd getmap -o FILE` writes. Maps in Ceph's own format are
//! refused.
//!
//! It prints where PGs and objects would be placed, optionally with another CRUSH map, other weights or OSDs marked up, in or
//! out (such marks are written only with another change). It balances PGs by upmap entries, and shows a map as `ceph osd dump`
//! and `ceph osd tree` do, with the map authority's own code. Sets shown as `up` and `acting` are the result of CRUSH and
//! overrides. `--test-map-pgs-dump-all` shows the in-sync set as `acting` if the map has one, because that set serves. A map
//! does not contain when OSDs last came up or in. [`options::OPTIONS`] has the options and how they differ from Ceph's.

mod args;
mod create;
mod options;
mod pgs;
mod show;
mod upmap;

pub(super) use options::{OPTIONS, usage};

use args::{Args, MapSource, UsageError};
use create::DefaultPool;
use nacre_crush::CrushMap;
use nacre_mon::logic::Now;
use nacre_types::hash::pg_of_hash;
use nacre_types::osdmap::{OsdInfo, OsdMap, WEIGHT_ONE};
use nacre_types::{ObjectId, OsdId, PgId, PoolId};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The tool's name in its messages.
const ME: &str = "osdmaptool";
/// The pool that `--with-default-pool` creates, and the default of other options.
const DEFAULT_POOL: PoolId = PoolId(1);
/// The exit code for Ceph's -1.
const MINUS_ONE: u8 = 255;

/// Why the tool stops.
enum ExitError {
    /// A message for standard error, and the exit code.
    Failed(String, u8),
    /// A message for standard error; the usage follows on standard output.
    Misused(String),
    /// Output could not be written.
    Io(io::Error),
}

impl From<io::Error> for ExitError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl ExitError {
    fn failed(message: impl Into<String>, code: u8) -> ExitError {
        ExitError::Failed(message.into(), code)
    }
}

/// Runs the command with the words after `osdmaptool`.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = run(&words, &mut out).and_then(|()| Ok(out.flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExitError::Failed(message, code)) => {
            // Earlier output is written first. An error of it does not matter here.
            let _ = out.flush();
            eprintln!("{message}");
            ExitCode::from(code)
        }
        Err(ExitError::Misused(message)) => {
            let _ = out.flush();
            eprintln!("{message}");
            let _ = out.write_all(usage().as_bytes()).and_then(|()| out.flush());
            ExitCode::FAILURE
        }
        // The reader has closed the pipe, as `| head` does.
        Err(ExitError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(ExitError::Io(error)) => {
            eprintln!("{ME}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[OsString], out: &mut dyn Write) -> Result<(), ExitError> {
    let args = Args::parse(words).map_err(|misuse| match misuse {
        UsageError::MessageOnly(text) => ExitError::failed(text, 1),
        UsageError::WithUsage(text) => ExitError::Misused(text),
    })?;
    if args.help {
        out.write_all(usage().as_bytes())?;
        return Ok(());
    }
    let Some(file) = &args.file else {
        return Err(ExitError::Misused(format!(
            "{ME}: -h or --help for usage\n{ME}: an osdmap file must be named"
        )));
    };
    if let (Some(first), Some(last)) = args.range {
        return read_range(file, first, last, out);
    }
    eprintln!("{ME}: osdmap file '{file}'");
    let (mut map, mut crush_version) = match args.create {
        None => read(file)?,
        Some(create) => {
            if fs::exists(file)? && !args.clobber {
                return Err(ExitError::failed(
                    format!("{ME}: {file} exists, --clobber to overwrite"),
                    MINUS_ONE,
                ));
            }
            let pool = DefaultPool { pg_bits: args.pg_bits, pgp_bits: args.pgp_bits };
            let pool = args.with_default_pool.then_some(pool);
            let map = match create {
                MapSource::Simple(osds) => create::simple(osds, pool, &args.invocation)?,
                MapSource::Conf => create::from_conf(pool, &args.invocation)?,
            };
            (map, 1)
        }
    };
    let mut modified = args.create.is_some();
    mark(&mut map, &args, out)?;
    modified |= adjust(&mut map, &args, out)?;
    if args.clear_temp {
        writeln!(out, "clearing pg/primary temp")?;
    }
    if args.clean_temps {
        writeln!(out, "cleaning pg temps")?;
    }
    if args.needs_upmap() {
        modified |= upmap::run(&mut map, &args.upmap, args.save, out)?;
    }
    if let Some(path) = &args.import_crush {
        import_crush(&mut map, path, out)?;
        // Ceph counts only the CRUSH maps of clusters of luminous and later.
        crush_version += u64::from(!map.fsid.is_nil());
        modified = true;
    }
    if let Some(path) = &args.export_crush {
        fs::write(path, map.crush.encode()).map_err(|error| {
            ExitError::failed(format!("{ME}: error writing crush map to {path}: {error}"), 1)
        })?;
        writeln!(out, "{ME}: exported crush map to {path}")?;
    }
    test(&map, &args, out)?;
    if !modified && !args.has_action() {
        return Err(ExitError::Misused(format!("{ME}: no action specified?")));
    }
    if modified {
        map.epoch = map.epoch.next();
    }
    show::run(&map, crush_version, &args, out)?;
    if modified {
        writeln!(out, "{ME}: writing epoch {} to {file}", map.epoch)?;
        fs::write(file, map.to_file(crush_version))
            .map_err(|error| ExitError::failed(format!("{ME}: error writing '{file}': {error}"), 1))?;
    }
    Ok(())
}

/// Reads the maps `FOLDER/FIRST` to `FOLDER/LAST`.
fn read_range(folder: &str, first: i64, last: i64, out: &mut dyn Write) -> Result<(), ExitError> {
    for number in first..=last {
        let file = format!("{folder}/{number}");
        let bytes = fs::read(&file)
            .map_err(|error| ExitError::failed(format!("unable to read {file}: {}", os_error(&error)), 1))?;
        writeln!(out, "{file} got {} bytes", bytes.len())?;
        decode(&file, &bytes)?;
    }
    Ok(())
}

/// Raises the epoch for a change. Ceph's tool does not set a time for it.
fn next_epoch(map: &mut OsdMap) {
    map.epoch = map.epoch.next();
    map.modified_ns = 0;
}

/// Changes CRUSH weights of devices. Returns true if the map is to be written.
fn adjust(map: &mut OsdMap, args: &Args, out: &mut dyn Write) -> Result<bool, ExitError> {
    if args.adjust_crush_weight.is_empty() {
        return Ok(false);
    }
    let mut crush = CrushMap::clone(&map.crush);
    for (osd, weight, shown) in &args.adjust_crush_weight {
        let name = crush.item_name(*osd as i32).map(str::to_owned);
        let missing = || ExitError::failed(format!("{ME}: osd.{osd} is not in the crush map"), 1);
        crush
            .adjust_item_weight(&name.ok_or_else(missing)?, *weight)
            .map_err(|error| ExitError::failed(format!("{ME}: osd.{osd}: {error}"), 1))?;
        let shown = crate::cmd::crushtool::tester::format_g(f64::from(*shown));
        writeln!(out, "Adjusted osd.{osd} CRUSH weight to {shown}")?;
        if args.save {
            next_epoch(map);
        }
    }
    map.crush = Arc::new(crush);
    Ok(args.save)
}

fn import_crush(map: &mut OsdMap, path: &str, out: &mut dyn Write) -> Result<(), ExitError> {
    let bytes = fs::read(path).map_err(|error| {
        let why = format!("can't open {path}: {}", os_error(&error));
        ExitError::failed(format!("{ME}: error reading crush map from {path}: {why}"), 1)
    })?;
    let unreadable =
        |error| ExitError::failed(format!("{ME}: unable to decode crush map {path}: {error}"), 1);
    let crush = CrushMap::decode(&bytes).map_err(unreadable)?;
    let devices = crush.max_devices();
    if i64::from(devices) > i64::from(map.max_osd) {
        let text = format!("{ME}: crushmap max_devices {devices} > osdmap max_osd {}", map.max_osd);
        return Err(ExitError::failed(text, 1));
    }
    map.crush = Arc::new(crush);
    next_epoch(map);
    writeln!(out, "{ME}: imported {} byte crush map from {path}", bytes.len())?;
    Ok(())
}

fn os_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "(2) No such file or directory".to_owned(),
        io::ErrorKind::NotADirectory => "(20) Not a directory".to_owned(),
        _ => error.to_string(),
    }
}

fn opening(file: &str, error: &io::Error) -> ExitError {
    let why = os_error(error);
    ExitError::failed(format!("{ME}: couldn't open {file}: can't open {file}: {why}"), MINUS_ONE)
}

fn read(file: &str) -> Result<(OsdMap, u64), ExitError> {
    let bytes = fs::read(file).map_err(|error| opening(file, &error))?;
    decode(file, &bytes)
}

fn decode(file: &str, bytes: &[u8]) -> Result<(OsdMap, u64), ExitError> {
    let damaged =
        |error| ExitError::failed(format!("{ME}: error decoding osdmap '{file}': {error}"), MINUS_ONE);
    OsdMap::from_file(bytes).map_err(damaged)
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { mono_ms: 0, wall_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
}

/// Marks OSDs as requested. Marking an OSD in creates it if the map does not have it.
fn mark(map: &mut OsdMap, args: &Args, out: &mut dyn Write) -> Result<(), ExitError> {
    if args.mark_up_in {
        writeln!(out, "marking all OSDs up and in")?;
        for osd in 0..map.max_osd {
            let info = map.osds.entry(OsdId(osd)).or_insert_with(OsdInfo::never_up);
            (info.up, info.weight) = (true, WEIGHT_ONE);
            let has_no_weight = map.crush.item_weight(osd as i32) == Some(0);
            if let Some(name) = map.crush.item_name(osd as i32).filter(|_| has_no_weight).map(str::to_owned) {
                let weighed = Arc::make_mut(&mut map.crush).adjust_item_weight(&name, WEIGHT_ONE);
                weighed.map_err(|error| ExitError::failed(format!("{ME}: osd.{osd}: {error}"), 1))?;
            }
        }
    }
    let mut marking = |osd: u32, what: &str| -> Result<(), ExitError> {
        if osd >= map.max_osd {
            return Err(ExitError::failed(format!("{ME}: there is no osd.{osd}"), 1));
        }
        Ok(writeln!(out, "marking OSD@{osd} as {what}")?)
    };
    if let Some(osd) = args.mark_out {
        marking(osd, "out")?;
        // Ceph's tool also marks it up.
        if let Some(info) = map.osds.get_mut(&OsdId(osd)) {
            (info.up, info.weight) = (true, 0);
        }
    }
    if let Some(osd) = args.mark_up {
        marking(osd, "up")?;
        if let Some(info) = map.osds.get_mut(&OsdId(osd)) {
            info.up = true;
        }
    }
    if let Some(osd) = args.mark_in {
        marking(osd, "in")?;
        let info = map.osds.entry(OsdId(osd)).or_insert_with(OsdInfo::never_up);
        info.weight = WEIGHT_ONE;
        info.up |= [args.mark_out, args.mark_up].contains(&Some(osd));
    }
    Ok(())
}

/// Maps the given objects and PGs.
fn test(map: &OsdMap, args: &Args, out: &mut dyn Write) -> Result<(), ExitError> {
    if let Some(name) = &args.test_map_object {
        let pool = match args.pool {
            Some(pool) => pool,
            None => {
                writeln!(out, "{ME}: assuming pool {} (use --pool to override)", DEFAULT_POOL.0)?;
                DEFAULT_POOL
            }
        };
        let placed = map.pools.get(&pool).ok_or_else(|| no_pool(pool))?;
        let hash = ObjectId::new(pool, "", "", name).hash();
        let pg = PgId::new(pool, pg_of_hash(hash, placed.pg_num));
        writeln!(out, " object '{name}' -> {pg} -> {}", pgs::format_osd_set(&map.pg_to_up(pg).up))?;
    }
    if let Some(text) = &args.test_map_pg {
        let pg: PgId =
            text.parse().map_err(|_| ExitError::Misused(format!("{ME}: failed to parse pg '{text}")))?;
        writeln!(out, " parsed '{text}' -> {pg}")?;
        writeln!(out, "{}", pgs::line(map, pg, &map.pg_to_up(pg)))?;
    }
    if let Some(level) = args.test_map_pgs {
        if let Some(pool) = args.pool
            && !map.pools.contains_key(&pool)
        {
            return Err(no_pool(pool));
        }
        pgs::test(map, args.pool, args.pg_num, level, args.test_random, out)?;
    }
    if args.test_crush {
        pgs::run_crush_test(map, out)?;
    }
    Ok(())
}

fn no_pool(pool: PoolId) -> ExitError {
    ExitError::failed(format!("There is no pool {}", pool.0), 1)
}
