//! `nacre osdmaptool`: what people use of Ceph's `osdmaptool`, on maps that `ceph osd getmap -o FILE` writes.
//!
//! It tells where PGs and objects would be placed, also with another CRUSH map or with OSDs marked up, in or out (such
//! marks are not written back), and shows a map as `ceph osd dump` and `ceph osd tree` do, by the map authority's own
//! code. Sets shown as `up` and `acting` are what CRUSH and overrides give; `--test-map-pgs-dump-all` shows the in-sync
//! set as `acting` where the map has one, since that is what serves. When OSDs last came up or in is not in a map.
//!
//! Not offered: `--upmap…`, `--test-random`, `--test-crush`, `--adjust-crush-weight` and `--create-from-conf`. Maps in
//! Ceph's own format are refused.

mod args;
mod pgs;

pub(super) use args::USAGE;
use args::{Args, Dump};
use bytes::Bytes;
use nacre_mon::CommandRequest;
use nacre_mon::logic::{Databases, Effect, Event, MapState, Now, Origin, Tuning};
use nacre_runtime::auth::Key;
use nacre_types::caps::mon::MonCaps;
use nacre_types::crush::{CrushMap, Location};
use nacre_types::hash::pg_of_hash;
use nacre_types::msg::MonCommand;
use nacre_types::osdmap::{OsdInfo, OsdMap, WEIGHT_ONE};
use nacre_types::pool::Pool;
use nacre_types::{EntityName, Epoch, ObjectId, OsdId, PgId, PoolId};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// How the tool names itself in its messages.
const ME: &str = "osdmaptool";
/// The pool that `--with-default-pool` makes, and the one that is meant where none is named.
const DEFAULT_POOL: PoolId = PoolId(1);
/// The exit code of Ceph's -1.
const MINUS_ONE: u8 = 255;

/// Why the tool stops early.
enum Stop {
    /// A message for standard error, and the exit code.
    Failed(String, u8),
    /// Output could not be written.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Stop {
    fn failed(message: impl Into<String>, code: u8) -> Stop {
        Stop::Failed(message.into(), code)
    }
}

/// Runs the command with what follows the word `osdmaptool`.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = run(&words, &mut out).and_then(|()| Ok(out.flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed(message, code)) => {
            // What was printed before comes first; who does not read it does not matter here.
            let _ = out.flush();
            eprintln!("{message}");
            ExitCode::from(code)
        }
        // Whoever reads our output has gone: that is how `| head` works.
        Err(Stop::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Stop::Io(error)) => {
            eprintln!("{ME}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[OsString], out: &mut dyn Write) -> Result<(), Stop> {
    let args = Args::parse(words).map_err(|text| Stop::failed(text, 1))?;
    if args.help {
        out.write_all(USAGE.as_bytes())?;
        return Ok(());
    }
    let Some(file) = &args.file else {
        let text = format!("{ME}: -h or --help for usage\n{ME}: an osdmap file must be named");
        return Err(Stop::failed(text, 1));
    };
    eprintln!("{ME}: osdmap file '{file}'");
    let (mut modified, mut crush_version) = (false, 1);
    let mut map = match args.create_simple {
        Some(osds) => {
            if fs::exists(file)? && !args.clobber {
                return Err(Stop::failed(format!("{ME}: {file} exists, --clobber to overwrite"), MINUS_ONE));
            }
            modified = true;
            simple(osds, &args)?
        }
        None => {
            let (map, version) = read(file)?;
            crush_version = version;
            map
        }
    };
    mark(&mut map, &args, out)?;
    if let Some(path) = &args.import_crush {
        let bytes = fs::read(path).map_err(|error| opening(path, &error))?;
        let unreadable = |error| Stop::failed(format!("{ME}: unable to decode crush map {path}: {error}"), 1);
        map.crush = Arc::new(CrushMap::decode(&bytes).map_err(unreadable)?);
        map.epoch = map.epoch.next();
        crush_version += 1;
        writeln!(out, "{ME}: imported {} byte crush map from {path}", bytes.len())?;
        modified = true;
    }
    if let Some(path) = &args.export_crush {
        fs::write(path, map.crush.encode())
            .map_err(|error| Stop::failed(format!("{ME}: error writing crush map to {path}: {error}"), 1))?;
        writeln!(out, "{ME}: exported crush map to {path}")?;
    }
    show(&map, crush_version, &args, out)?;
    if modified {
        if args.create_simple.is_none() {
            map.epoch = map.epoch.next();
        }
        map.modified_ns = now().wall_ns;
        writeln!(out, "{ME}: writing epoch {} to {file}", map.epoch)?;
        // Marks are for what was shown only.
        let mut kept = map;
        if args.marks() {
            kept.osds = if args.create_simple.is_some() { Default::default() } else { read(file)?.0.osds };
        }
        fs::write(file, kept.to_file(crush_version))
            .map_err(|error| Stop::failed(format!("{ME}: error writing '{file}': {error}"), 1))?;
    } else if !args.acts() {
        return Err(Stop::failed(format!("{ME}: no action specified?"), 1));
    }
    Ok(())
}

fn opening(file: &str, error: &io::Error) -> Stop {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "(2) No such file or directory".to_owned(),
        _ => error.to_string(),
    };
    Stop::failed(format!("{ME}: couldn't open {file}: can't open {file}: {why}"), MINUS_ONE)
}

fn read(file: &str) -> Result<(OsdMap, u64), Stop> {
    let bytes = fs::read(file).map_err(|error| opening(file, &error))?;
    let damaged = |error| Stop::failed(format!("{ME}: error decoding osdmap '{file}': {error}"), MINUS_ONE);
    OsdMap::from_file(&bytes).map_err(damaged)
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { mono_ms: 0, wall_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
}

/// A generic map: OSDs of weight 1 on one host, and (if asked for) a pool of 2^`pg_bits` PGs per OSD.
fn simple(osds: u32, args: &Args) -> Result<OsdMap, Stop> {
    let broken = |error: nacre_types::crush::CrushError| Stop::failed(format!("{ME}: {error}"), 1);
    let mut crush = CrushMap::new_cluster("host").map_err(broken)?;
    let place = [("host", "localhost"), ("rack", "localrack"), ("root", "default")];
    let place: Location = place.into_iter().map(|(kind, name)| (kind.to_owned(), name.to_owned())).collect();
    for osd in 0..osds {
        crush.insert_item(osd as i32, WEIGHT_ONE, &format!("osd.{osd}"), &place).map_err(broken)?;
    }
    let mut map = OsdMap::new(Uuid::nil(), now().wall_ns, crush);
    map.max_osd = osds;
    if args.with_default_pool {
        let too_many =
            || Stop::failed(format!("{ME}: {osds} OSDs with 2^{} PGs each are too many", args.pg_bits), 1);
        let pgs = |bits: u32| {
            osds.checked_mul(1 << bits.min(31)).filter(|pgs| *pgs <= 1 << 20).ok_or_else(too_many)
        };
        let mut pool = Pool::replicated("rbd", 3, 2, 0, pgs(args.pg_bits)?, Epoch(0));
        pool.pgp_num = pgs(args.pgp_bits.min(args.pg_bits))?;
        pool.pg_autoscale_mode = "on".to_owned();
        pool.applications.insert("rbd".to_owned(), Default::default());
        map.pool_max = DEFAULT_POOL;
        map.pools.insert(DEFAULT_POOL, Arc::new(pool));
    }
    Ok(map)
}

/// Marks OSDs as the words say.
fn mark(map: &mut OsdMap, args: &Args, out: &mut dyn Write) -> Result<(), Stop> {
    if args.mark_up_in {
        writeln!(out, "marking all OSDs up and in")?;
        for osd in 0..map.max_osd {
            let info = map.osds.entry(OsdId(osd)).or_insert_with(OsdInfo::absent);
            (info.up, info.weight) = (true, WEIGHT_ONE);
        }
    }
    let mut each = |osds: &[u32], what: &str, change: fn(&mut OsdInfo)| -> Result<(), Stop> {
        for osd in osds {
            if *osd >= map.max_osd {
                return Err(Stop::failed(format!("{ME}: there is no osd.{osd}"), 1));
            }
            writeln!(out, "marking OSD@{osd} as {what}")?;
            change(map.osds.entry(OsdId(*osd)).or_insert_with(OsdInfo::absent));
        }
        Ok(())
    };
    each(&args.mark_out, "out", |info| info.weight = 0)?;
    each(&args.mark_up, "up", |info| info.up = true)?;
    each(&args.mark_in, "in", |info| info.weight = WEIGHT_ONE)
}

fn show(map: &OsdMap, crush_version: u64, args: &Args, out: &mut dyn Write) -> Result<(), Stop> {
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
        writeln!(out, " object '{name}' -> {pg} -> {}", pgs::set(&map.pg_to_up(pg).up))?;
    }
    if let Some(text) = &args.test_map_pg {
        let pg: PgId =
            text.parse().map_err(|_| Stop::failed(format!("{ME}: failed to parse pg '{text}"), 1))?;
        if !map.pools.contains_key(&pg.pool) {
            return Err(no_pool(pg.pool));
        }
        writeln!(out, " parsed '{text}' -> {pg}")?;
        writeln!(out, "{}", pgs::line(map, pg, &map.pg_to_up(pg)))?;
    }
    if let Some(level) = args.test_map_pgs {
        if let Some(pool) = args.pool
            && !map.pools.contains_key(&pool)
        {
            return Err(no_pool(pool));
        }
        pgs::test(map, args.pool, args.pg_num, level, out)?;
    }
    match args.dump {
        Some(Dump::Plain) => out.write_all(&command(map, crush_version, "osd dump", "plain")?)?,
        Some(Dump::Json) => out.write_all(&command(map, crush_version, "osd dump", "json")?)?,
        None => {}
    }
    if let Some(format) = args.tree {
        out.write_all(&command(map, crush_version, "osd tree", format)?)?;
    }
    if args.health {
        out.write_all(&command(map, crush_version, "health", "json-pretty")?)?;
    }
    Ok(())
}

fn no_pool(pool: PoolId) -> Stop {
    Stop::failed(format!("There is no pool {}", pool.0), 1)
}

/// What the map authority would print.
fn command(map: &OsdMap, crush_version: u64, prefix: &str, format: &str) -> Result<Vec<u8>, Stop> {
    let key = Key::generate().map_err(|error| Stop::failed(format!("{ME}: {error}"), 1))?;
    let cmd = json!({ "prefix": prefix, "format": format }).to_string();
    let request = CommandRequest {
        origin: Origin(0),
        entity: EntityName::client("admin"),
        peer: std::net::Ipv4Addr::LOCALHOST.into(),
        caps: Arc::new(MonCaps::all()),
        command: MonCommand { tid: 1, cmd, input: Bytes::new() },
        fresh_key: key,
    };
    let databases = Databases { crush_version, ..Databases::default() };
    let mut state = MapState::with_databases(map.clone(), Tuning::default(), now(), databases);
    let answers = state.handle(now(), Event::Command(Box::new(request)));
    match answers.into_iter().next() {
        Some(Effect::CommandReply { reply, .. }) if reply.code == 0 => Ok(reply.output.to_vec()),
        Some(Effect::CommandReply { reply, .. }) => Err(Stop::failed(format!("{ME}: {}", reply.status), 1)),
        _ => Err(Stop::failed(format!("{ME}: '{prefix}' gave no answer"), 1)),
    }
}
