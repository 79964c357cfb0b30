//! Creates maps: `--createsimple` and `--create-from-conf`.

use super::{DEFAULT_POOL, ExitError, ME, now};
use nacre_common::config::{ConfFile, Config, Invocation};
use nacre_crush::{CrushError, CrushMap, Location};
use nacre_types::Epoch;
use nacre_types::osdmap::{OsdMap, WEIGHT_ONE};
use nacre_types::pool::Pool;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Maximum number of PGs of the default pool.
const MAX_PGS: u32 = 1 << 20;
/// Maximum OSD id of a section in ceph.conf.
const MAX_OSD: u32 = 9_999;

/// The parameters of the default pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct DefaultPool {
    /// 2^`pg_bits` PGs for each OSD.
    pub(super) pg_bits: u32,
    /// The same for placement.
    pub(super) pgp_bits: u32,
}

fn broken(error: CrushError) -> ExitError {
    ExitError::failed(format!("{ME}: {error}"), 1)
}

/// A generic map: OSDs with weight 1 on one host.
pub(super) fn simple(
    osds: u32,
    pool: Option<DefaultPool>,
    invocation: &Invocation,
) -> Result<OsdMap, ExitError> {
    let config = config(invocation)?;
    let mut crush = new_crush(&config)?;
    let place = location(&[("host", "localhost"), ("rack", "localrack"), ("root", "default")]);
    for osd in 0..osds {
        crush.insert_item(osd as i32, WEIGHT_ONE, &format!("osd.{osd}"), &place).map_err(broken)?;
    }
    map(osds, crush, pool, &config)
}

/// A map of the OSDs with sections in ceph.conf, at the places given by `host`, `rack`, `row`, `room` and `datacenter`.
pub(super) fn from_conf(pool: Option<DefaultPool>, invocation: &Invocation) -> Result<OsdMap, ExitError> {
    let config = config(invocation)?;
    let unreadable = |error| ExitError::failed(format!("{ME}: {error}"), 1);
    let file = match config.conf_path() {
        Some(path) => ConfFile::read(path).map_err(unreadable)?,
        None => ConfFile::default(),
    };
    let mut crush = new_crush(&config)?;
    let sections: BTreeMap<&str, u32> = file
        .section_names()
        .filter_map(|section| Some((section, section.strip_prefix("osd.")?.parse::<u32>().ok()?)))
        .collect();
    let mut max_osd = 1;
    for (section, osd) in sections {
        if osd > MAX_OSD {
            return Err(ExitError::failed(format!("{ME}: [{section}] is beyond osd.{MAX_OSD}"), 1));
        }
        max_osd = max_osd.max(osd + 1);
        let set =
            |name: &str| file.lookup(&[section, "osd", "global"], name).filter(|value| !value.is_empty());
        let mut place = location(&[
            ("host", set("host").unwrap_or("unknownhost")),
            ("rack", set("rack").unwrap_or("unknownrack")),
            ("root", "default"),
        ]);
        for kind in ["row", "room", "datacenter"] {
            place.extend(set(kind).map(|name| (kind.to_owned(), name.to_owned())));
        }
        crush.insert_item(osd as i32, WEIGHT_ONE, &format!("osd.{osd}"), &place).map_err(broken)?;
    }
    map(max_osd, crush, pool, &config)
}

fn location(place: &[(&str, &str)]) -> Location {
    place.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
}

fn config(invocation: &Invocation) -> Result<Config, ExitError> {
    Config::load(invocation).map_err(|error| ExitError::failed(format!("{ME}: {error}"), 1))
}

fn new_crush(config: &Config) -> Result<CrushMap, ExitError> {
    let types = CrushMap::new_cluster("osd").map_err(broken)?;
    let kind = config.get().mon.osd_crush_chooseleaf_type;
    let domain = i32::try_from(kind).ok().and_then(|kind| types.type_name(kind));
    let domain = domain.ok_or_else(|| {
        ExitError::failed(format!("{ME}: osd_crush_chooseleaf_type {kind} is not a bucket type"), 1)
    })?;
    CrushMap::new_cluster(domain).map_err(broken)
}

/// A map that was never in a cluster: without flags, ratios and OSDs that exist.
fn map(
    max_osd: u32,
    crush: CrushMap,
    pool: Option<DefaultPool>,
    config: &Config,
) -> Result<OsdMap, ExitError> {
    let mut map = OsdMap::new(Uuid::nil(), now().wall_ns, crush);
    // Writing the map raises it to epoch 1.
    map.epoch = Epoch(0);
    map.flags = 0;
    (map.full_ratio, map.backfillfull_ratio, map.nearfull_ratio) = (0.0, 0.0, 0.0);
    map.max_osd = max_osd;
    let Some(wanted) = pool else { return Ok(map) };
    let too_many = || {
        let bits = wanted.pg_bits;
        ExitError::failed(format!("{ME}: {max_osd} OSDs with 2^{bits} PGs each are too many"), 1)
    };
    let pgs =
        |bits: u32| max_osd.checked_mul(1 << bits.min(31)).filter(|pgs| *pgs <= MAX_PGS).ok_or_else(too_many);
    let options = config.get();
    let size = u32::try_from(options.mon.osd_pool_default_size).unwrap_or(u32::MAX);
    let min_size = match u32::try_from(options.mon.osd_pool_default_min_size).unwrap_or(u32::MAX) {
        0 => size - size / 2,
        least => least.min(size),
    };
    let mut pool = Pool::replicated("rbd", size, min_size, 0, pgs(wanted.pg_bits)?, Epoch(0));
    pool.pgp_num = pgs(wanted.pgp_bits.min(wanted.pg_bits))?;
    pool.pg_autoscale_mode = "on".to_owned();
    pool.tiering.dirty_ratio_micro = 0;
    pool.tiering.dirty_high_ratio_micro = 0;
    pool.tiering.full_ratio_micro = 0;
    pool.applications.insert("rbd".to_owned(), Default::default());
    map.pool_max = DEFAULT_POOL;
    map.pools.insert(DEFAULT_POOL, Arc::new(pool));
    Ok(map)
}
