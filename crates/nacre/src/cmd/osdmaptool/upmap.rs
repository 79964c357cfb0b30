//! `--upmap-cleanup` and `--upmap`: compute entries that balance the OSDs' numbers of PGs, as commands for `ceph`.

use super::args::UpmapArgs;
use super::{ExitError, ME, next_epoch};
use crate::cmd::crushtool::tester::format_g;
use nacre_types::osdmap::OsdMap;
use nacre_types::upmap::{BalanceParams, Cleanup, ItemChanges, Shuffle};
use nacre_types::{OsdId, PgId, PoolId};
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

/// Writes the commands for `--upmap-cleanup` and `--upmap`. Returns true if the map was changed and is to be saved.
pub(super) fn run(
    map: &mut OsdMap,
    args: &UpmapArgs,
    save: bool,
    out: &mut dyn Write,
) -> Result<bool, ExitError> {
    let mut file = match args.file.as_str() {
        "-" => None,
        name => {
            let opened = File::create(name).map_err(|error| {
                let why = match error.kind() {
                    io::ErrorKind::NotFound => "(2) No such file or directory".to_owned(),
                    _ => error.to_string(),
                };
                ExitError::failed(format!("error opening {name}: {why}"), 1)
            })?;
            writeln!(out, "writing upmap command output to: {name}")?;
            Some(opened)
        }
    };
    writeln!(out, "checking for upmap cleanups")?;
    let cleanup = map.upmap_cleanup();
    let mut modified = false;
    if cleanup != Cleanup::default() {
        let commands = commands(&cleanup.items, &cleanup.upmaps);
        sink(&mut file, out).write_all(commands.as_bytes())?;
        cleanup.upmaps.iter().for_each(|pg| drop(map.pg_upmap.remove(pg)));
        apply(map, &cleanup.items);
        next_epoch(map);
    }
    if args.balance {
        modified = balance(map, args, save, &mut file, out)?;
    }
    Ok(modified)
}

/// The destination of the commands.
fn sink<'a>(file: &'a mut Option<File>, out: &'a mut dyn Write) -> &'a mut dyn Write {
    match file {
        Some(file) => file,
        None => out,
    }
}

fn balance(
    map: &mut OsdMap,
    args: &UpmapArgs,
    save: bool,
    file: &mut Option<File>,
    out: &mut dyn Write,
) -> Result<bool, ExitError> {
    writeln!(out, "upmap, max-count {}, max deviation {}", args.max, args.deviation)?;
    let mut pools = Vec::new();
    for name in &args.pools {
        let Some((id, _)) = map.pool_by_name(name) else {
            return Err(ExitError::failed(format!(" pool {name} does not exist"), 1));
        };
        pools.push(id);
    }
    let limited: BTreeSet<PoolId> = pools.iter().copied().collect();
    if pools.is_empty() {
        pools = map.pools.keys().copied().collect();
    } else {
        let ids: Vec<String> = pools.iter().map(PoolId::to_string).collect();
        writeln!(out, " limiting to pools {} ([{}])", args.pools.join(","), ids.join(","))?;
    }
    if pools.is_empty() {
        writeln!(out, "No pools available")?;
        return Ok(false);
    }
    let (start, mut rounds, mut modified) = (Instant::now(), 0, false);
    let mut random = rand::rng();
    loop {
        let round = Instant::now();
        pools.shuffle(&mut random);
        let names = pools.iter().filter_map(|id| map.pools.get(id)).map(|pool| format!("{} ", pool.name));
        writeln!(out, "pools {}", names.collect::<String>())?;
        let mut items = ItemChanges::new();
        let mut done = 0;
        for pool in &pools {
            let one = BTreeSet::from([*pool]);
            let mut shuffle = |pgs: &mut [PgId]| pgs.shuffle(&mut random);
            let shuffle: Option<Shuffle<'_>> = if args.aggressive { Some(&mut shuffle) } else { None };
            let found = map.calc_pg_upmaps(BalanceParams {
                max_deviation: args.deviation,
                max_changes: args.max - done,
                pools: &one,
                shuffle,
                retries: args.retries,
            });
            let abort = match found.no_weight {
                true => Some("osd_weight_total == 0"),
                false => (args.max == 0).then_some("max <= 0"),
            };
            if let Some(why) = abort {
                out.flush()?;
                eprintln!("{ME}: calc_pg_upmaps abort due to {why}");
            }
            done += found.changes;
            items.extend(found.items);
            if done >= args.max {
                break;
            }
        }
        writeln!(out, "prepared {done}/{} changes", args.max)?;
        let seconds = |since: Instant| format_g(since.elapsed().as_secs_f64());
        if args.active {
            writeln!(out, "Time elapsed {} secs", seconds(round))?;
        }
        if done == 0 {
            writeln!(out, "Unable to find further optimization, or distribution is already perfect")?;
            if args.active {
                for (osd, pgs) in map.pg_count_by_osd(&limited) {
                    writeln!(out, "{osd} pgs {pgs}")?;
                }
                writeln!(out, "Total time elapsed {} secs, {rounds} rounds", seconds(start))?;
            }
            return Ok(modified);
        }
        sink(file, out).write_all(commands(&items, &BTreeSet::new()).as_bytes())?;
        if save || args.active {
            apply(map, &items);
            next_epoch(map);
            modified |= save;
        }
        rounds += 1;
        if !args.active {
            return Ok(modified);
        }
    }
}

fn apply(map: &mut OsdMap, items: &ItemChanges) {
    for (pg, items) in items {
        match items {
            Some(items) => drop(map.pg_upmap_items.insert(*pg, items.clone())),
            None => drop(map.pg_upmap_items.remove(pg)),
        }
    }
}

/// The commands, removals first.
fn commands(items: &ItemChanges, upmaps: &BTreeSet<PgId>) -> String {
    let mut text: String = upmaps.iter().map(|pg| format!("ceph osd rm-pg-upmap {pg}\n")).collect();
    for (pg, _) in items.iter().filter(|(_, items)| items.is_none()) {
        text.push_str(&format!("ceph osd rm-pg-upmap-items {pg}\n"));
    }
    let pair = |(from, to): &(OsdId, OsdId)| format!(" {} {}", from.0, to.0);
    for (pg, items) in items {
        if let Some(items) = items {
            let pairs: String = items.iter().map(pair).collect();
            text.push_str(&format!("ceph osd pg-upmap-items {pg}{pairs}\n"));
        }
    }
    text
}
