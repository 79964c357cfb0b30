//! `--test-map-pgs…`: shows where the PGs of one or all pools are placed, and how evenly.

use super::args::MapPgsDetail;
use crate::cmd::crushtool::tester::format_g;
use nacre_crush::ITEM_NONE;
use nacre_types::osdmap::OsdMap;
use nacre_types::placement::{PgMapper, PgMapping};
use nacre_types::{OsdId, PgId, PoolId};
use rand::Rng;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

/// A set of OSDs as Ceph prints it: `[1,2,2147483647]`.
pub(super) fn format_osd_set(osds: &[i32]) -> String {
    let names: Vec<String> = osds.iter().map(i32::to_string).collect();
    format!("[{}]", names.join(","))
}

/// Prints how a PG's placement was computed.
pub(super) fn line(map: &OsdMap, pg: PgId, mapping: &PgMapping) -> String {
    let first = |osds: &[i32]| osds.iter().copied().find(|osd| *osd != ITEM_NONE).unwrap_or(-1);
    let up = (format_osd_set(&mapping.up), mapping.up_primary.unwrap_or(-1));
    let acting = match map.membership(pg) {
        Some(membership) => {
            let acting: Vec<i32> = membership.acting().iter().map(|osd| osd.0 as i32).collect();
            (format_osd_set(&acting), membership.primary.0 as i32)
        }
        None => up.clone(),
    };
    let raw = (format_osd_set(&mapping.raw), first(&mapping.raw));
    format!("{pg} raw ({}, p{}) up ({}, p{}) acting ({}, p{})", raw.0, raw.1, up.0, up.1, acting.0, acting.1)
}

#[derive(Clone, Copy, Default)]
struct Counts {
    all: u64,
    first: u64,
    primary: u64,
}

/// Maps all PGs of `only` or of all pools (with `pg_num` PGs, if given) and prints the results.
pub(super) fn test(
    map: &OsdMap,
    only: Option<PoolId>,
    pg_num: Option<u32>,
    level: MapPgsDetail,
    random: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut map = map.clone();
    if let Some(pg_num) = pg_num.filter(|pg_num| *pg_num > 0) {
        for (id, pool) in &mut map.pools {
            if only.is_none_or(|only| only == *id) {
                let pool = Arc::make_mut(pool);
                (pool.pg_num, pool.pgp_num) = (pg_num, pg_num);
            }
        }
    }
    let mut mapper = PgMapper::new(&map);
    let mut counts = vec![Counts::default(); map.max_osd as usize];
    let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
    for (id, pool) in map.pools.iter().filter(|(id, _)| only.is_none_or(|only| only == **id)) {
        writeln!(out, "pool {} pg_num {}", id.0, pool.pg_num)?;
        for seed in 0..pool.pg_num {
            let pg = PgId::new(*id, seed);
            let mapping = if random { anywhere(&map, pool.size) } else { mapper.map(pg) };
            match level {
                MapPgsDetail::All if random => {
                    writeln!(
                        out,
                        "{pg}\t{}\t{}",
                        format_osd_set(&mapping.up),
                        mapping.up_primary.unwrap_or(-1)
                    )?;
                }
                MapPgsDetail::Sums => {}
                MapPgsDetail::Each => {
                    writeln!(
                        out,
                        "{pg}\t{}\t{}",
                        format_osd_set(&mapping.up),
                        mapping.up_primary.unwrap_or(-1)
                    )?;
                }
                MapPgsDetail::All => writeln!(out, "{}", line(&map, pg, &mapping))?,
            }
            *sizes.entry(mapping.up.len()).or_default() += 1;
            let mut count = |osd: i32, add: fn(&mut Counts)| {
                if let Some(counts) = usize::try_from(osd).ok().and_then(|osd| counts.get_mut(osd)) {
                    add(counts);
                }
            };
            mapping.up.iter().for_each(|osd| count(*osd, |counts| counts.all += 1));
            mapping.up.first().into_iter().for_each(|osd| count(*osd, |counts| counts.first += 1));
            mapping.up_primary.into_iter().for_each(|osd| count(osd, |counts| counts.primary += 1));
        }
    }
    sums(&map, &counts, out)?;
    sizes.iter().try_for_each(|(size, pgs)| writeln!(out, "size {size}\t{pgs}"))
}

/// A placement of the PG on random OSDs, without any rule.
fn anywhere(map: &OsdMap, size: u32) -> PgMapping {
    let draw = |_| rand::rng().random_range(0..map.max_osd.max(1)) as i32;
    let up: Vec<i32> = (0..size).map(draw).collect();
    PgMapping { raw: up.clone(), up_primary: up.first().copied(), up }
}

/// `--test-crush`: maps all PGs repeatedly and compares. Ends only when its output fails.
pub(super) fn run_crush_test(map: &OsdMap, out: &mut dyn Write) -> io::Result<()> {
    let mut mapper = PgMapper::new(map);
    for pass in 1_u64.. {
        writeln!(out, "pass {pass}")?;
        for pg in map.pg_ids() {
            let first = mapper.map(pg).up;
            for attempt in 0..100 {
                writeln!(out, "{pg} attempt {attempt}")?;
                let again = mapper.map(pg).up;
                assert!(again == first, "{pg} had {} now {}", format_osd_set(&first), format_osd_set(&again));
            }
        }
        out.flush()?;
    }
    Ok(())
}

/// A line for each OSD that takes part, and the deviations between them.
fn sums(map: &OsdMap, counts: &[Counts], out: &mut dyn Write) -> io::Result<()> {
    let fixed = |weight: u32| format_g(f64::from(weight) / 65536.0);
    writeln!(out, "#osd\tcount\tfirst\tprimary\tc wt\twt")?;
    let mut taking_part = Vec::new();
    for (osd, counts) in counts.iter().enumerate() {
        let weight = map.osds.get(&OsdId(osd as u32)).map_or(0, |info| info.weight);
        let crush = map.crush.item_weight(osd as i32).unwrap_or(0);
        if weight == 0 || crush == 0 {
            continue;
        }
        let Counts { all, first, primary } = counts;
        writeln!(out, "osd.{osd}\t{all}\t{first}\t{primary}\t{}\t{}", fixed(crush), fixed(weight))?;
        taking_part.push((*all, osd));
    }
    let osds = taking_part.len() as u64;
    let total: u64 = taking_part.iter().map(|(count, _)| count).sum();
    writeln!(out, " in {osds}")?;
    if osds == 0 {
        // As C++ prints quotients with divisor 0.
        return writeln!(out, " avg 0 stddev -nan (-nanx) (expected -nan -nanx))");
    }
    // The average in Ceph's tool is an integer, and so are the deviations from it.
    let average = total / osds;
    let squares: u64 = taking_part.iter().map(|(count, _)| average.abs_diff(*count).pow(2)).sum();
    let deviation = (squares as f64 / osds as f64).sqrt();
    let expected = (total as f64 / osds as f64 * (1.0 - 1.0 / osds as f64)).sqrt();
    // As C++ prints quotients with divisor 0.
    let share = |figure: f64| match (average, figure) {
        (0, 0.0) => "-nan".to_owned(),
        (0, _) => "inf".to_owned(),
        _ => format_g(figure / average as f64),
    };
    writeln!(
        out,
        " avg {average} stddev {} ({}x) (expected {} {}x))",
        format_g(deviation),
        share(deviation),
        format_g(expected),
        share(expected)
    )?;
    let held = || taking_part.iter().filter(|(count, _)| *count > 0);
    if let Some((count, osd)) = held().min() {
        writeln!(out, " min osd.{osd} {count}")?;
    }
    // The first of several equal ones.
    if let Some((count, osd)) = held().max_by_key(|(count, osd)| (*count, std::cmp::Reverse(*osd))) {
        writeln!(out, " max osd.{osd} {count}")?;
    }
    Ok(())
}
