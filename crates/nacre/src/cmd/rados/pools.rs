//! Verbs on pools: their objects and usage.

use super::args::Format;
use super::{Context, RadosFailure, failed, formatting, out};
use crate::progress::{Progress, Unit};
use nacre_client::{ClusterStats, IoCtx, ListRange, Lister, PoolStats, block_on};
use nacre_types::ObjectId;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};

/// Slices of a pool that are listed concurrently.
const SLICES: u32 = 8;
/// Removals in flight at a time.
const REMOVALS: usize = 64;

pub(super) fn list_pools(context: &Context<'_>, _: &[&str]) -> Result<(), RadosFailure> {
    let pools = block_on(context.cluster.pools()).map_err(failed("error listing pools"))?;
    out(formatting::names(pools.iter().map(|(_, name)| name.as_bytes()), context.args.format))
}

pub(super) fn list_objects(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let pool = context.pool();
    let all = context.args.all;
    let mut lister = if all { pool.list_all() } else { pool.list() };
    let file: Box<dyn Write> = match operands.first() {
        None | Some(&"-") => Box::new(std::io::stdout().lock()),
        Some(path) => Box::new(
            std::fs::File::create(path)
                .map_err(|e| RadosFailure::new(format!("error opening {path}: {e}")))?,
        ),
    };
    let mut sink = BufWriter::new(file);
    let written = write_listing(&mut lister, context.args.format, all, pool.pool_name(), &mut sink)?;
    match written.and_then(|()| sink.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|e| RadosFailure::new(format!("error writing the listing: {e}"))),
    }
}

fn write_listing(
    lister: &mut Lister,
    format: Format,
    all: bool,
    pool: &str,
    sink: &mut impl Write,
) -> Result<std::io::Result<()>, RadosFailure> {
    let mut entries = Vec::new();
    while let Some(page) =
        block_on(lister.next_page()).map_err(failed(format_args!("error listing pool {pool}")))?
    {
        for object in page {
            if format == Format::Plain {
                if let Err(e) = sink.write_all(line(&object, all).as_bytes()) {
                    return Ok(Err(e));
                }
            } else {
                entries.push(entry(&object));
            }
        }
    }
    if format == Format::Plain {
        return Ok(Ok(()));
    }
    Ok(sink.write_all(formatting::json(&Value::Array(entries), format).as_bytes()))
}

/// Namespace (if all are listed), name and locator (if there is one), separated by tabs.
fn line(object: &ObjectId, all: bool) -> String {
    let mut line = String::with_capacity(64);
    if all {
        line.push_str(object.namespace());
        line.push('\t');
    }
    line.push_str(object.name());
    if !object.locator().is_empty() {
        line.push('\t');
        line.push_str(object.locator());
    }
    line.push('\n');
    line
}

fn entry(object: &ObjectId) -> Value {
    let mut entry = Map::new();
    entry.insert("namespace".into(), object.namespace().into());
    entry.insert("name".into(), object.name().into());
    if !object.locator().is_empty() {
        entry.insert("locator".into(), object.locator().into());
    }
    Value::Object(entry)
}

pub(super) fn df(context: &Context<'_>, _: &[&str]) -> Result<(), RadosFailure> {
    let fetched = block_on(async {
        let pools = context.cluster.pool_stats().await?;
        Ok((pools, context.cluster.stats().await?))
    });
    let (mut pools, totals) = fetched.map_err(failed("error fetching pool stats"))?;
    if let Some(pool) = &context.pool {
        pools.retain(|stats| stats.id == pool.pool().0);
    }
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    match context.args.format {
        Format::Plain => out(df_table(&pools, &totals)),
        format => out(formatting::json(&df_json(&pools, &totals), format)),
    }
}

fn df_table(pools: &[PoolStats], totals: &ClusterStats) -> String {
    const COLUMNS: [&str; 14] = [
        "POOL_NAME",
        "USED",
        "OBJECTS",
        "CLONES",
        "COPIES",
        "MISSING_ON_PRIMARY",
        "UNFOUND",
        "DEGRADED",
        "RD_OPS",
        "RD",
        "WR_OPS",
        "WR",
        "USED COMPR",
        "UNDER COMPR",
    ];
    let rows: Vec<Vec<String>> = std::iter::once(COLUMNS.map(str::to_owned).to_vec())
        .chain(pools.iter().map(|pool| {
            vec![
                pool.name.clone(),
                formatting::bytes(pool.used_bytes),
                pool.objects.to_string(),
                pool.clones.to_string(),
                pool.copies.to_string(),
                pool.missing_on_primary.to_string(),
                pool.unfound.to_string(),
                pool.degraded.to_string(),
                pool.reads.to_string(),
                formatting::bytes(pool.read_kib << 10),
                pool.writes.to_string(),
                formatting::bytes(pool.write_kib << 10),
                formatting::bytes(pool.compressed_used_bytes),
                formatting::bytes(pool.compressed_original_bytes),
            ]
        }))
        .collect();
    let widths: Vec<usize> =
        (0..COLUMNS.len()).map(|c| rows.iter().map(|row| row[c].len()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let first = format!("{:<width$}", row[0], width = widths[0]);
        let rest = row.iter().zip(&widths).skip(1).map(|(cell, width)| format!("{cell:>width$}"));
        let cells: Vec<String> = std::iter::once(first).chain(rest).collect();
        text.push_str(&cells.join("  "));
        text.push('\n');
    }
    text.push_str(&format!("\ntotal_objects    {}\n", totals.objects));
    text.push_str(&format!("total_used       {}\n", formatting::bytes(totals.used_bytes)));
    text.push_str(&format!("total_avail      {}\n", formatting::bytes(totals.available_bytes)));
    text.push_str(&format!("total_space      {}\n", formatting::bytes(totals.total_bytes)));
    text
}

fn df_json(pools: &[PoolStats], totals: &ClusterStats) -> Value {
    let pools: Vec<Value> = pools
        .iter()
        .map(|pool| {
            json!({
                "name": pool.name,
                "id": pool.id,
                "size_bytes": pool.used_bytes,
                "size_kb": pool.used_bytes.div_ceil(1024),
                "num_objects": pool.objects,
                "num_object_clones": pool.clones,
                "num_object_copies": pool.copies,
                "num_objects_missing_on_primary": pool.missing_on_primary,
                "num_objects_unfound": pool.unfound,
                "num_objects_degraded": pool.degraded,
                "read_ops": pool.reads,
                "read_bytes": pool.read_kib << 10,
                "write_ops": pool.writes,
                "write_bytes": pool.write_kib << 10,
                "compress_bytes_used": pool.compressed_used_bytes,
                "compress_under_bytes": pool.compressed_original_bytes,
            })
        })
        .collect();
    json!({
        "pools": pools,
        "total_objects": totals.objects,
        "total_used": totals.used_bytes >> 10,
        "total_avail": totals.available_bytes >> 10,
        "total_space": totals.total_bytes >> 10,
    })
}

pub(super) fn purge(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let name = operands[0];
    if !context.args.confirmed {
        return Err(RadosFailure::new(
            "WARNING:\n  This will PERMANENTLY DESTROY all objects from a pool with no way back.\n  \
             To confirm, follow pool with --yes-i-really-really-mean-it",
        ));
    }
    let pool = super::open_pool(context.cluster, name, context.args)?;
    let removed = remove_all(&pool, |_| true).map_err(failed(format_args!("error purging pool {name}")))?;
    match context.args.format {
        Format::Plain => out(format!("Removed {removed} objects\nsuccessfully purged pool {name}\n")),
        format => out(formatting::json(&json!({ "pool": name, "removed": removed }), format)),
    }
}

/// Removes the objects of all namespaces that `matches` accepts. Returns how many there were.
pub(super) fn remove_all(pool: &IoCtx, matches: impl Fn(&ObjectId) -> bool) -> nacre_client::Result<u64> {
    let mut removed = 0;
    let progress = Progress::start("removing", Unit::Items("objects"), None);
    for slice in 0..SLICES {
        let mut lister = pool.list_range(ListRange::slice(pool.pool(), slice, SLICES), None);
        while let Some(page) = block_on(lister.next_page())? {
            let chosen: Vec<_> = page.iter().filter(|object| matches(object)).collect();
            for group in chosen.chunks(REMOVALS) {
                let removals: Vec<_> = group
                    .iter()
                    .map(|object| {
                        let place = pool.with_namespace(object.namespace()).with_locator(object.locator());
                        place.remove(object.name())
                    })
                    .collect();
                for removal in removals {
                    match removal.wait() {
                        Ok(()) => {
                            removed += 1;
                            progress.add(1);
                        }
                        // Another client removed it first.
                        Err(e) if e.is_not_found() => {}
                        Err(e) => return Err(e),
                    }
                }
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::PoolId;

    #[test]
    fn listings_have_the_columns_of_rados() {
        let plain = ObjectId::new(PoolId(1), "", "", "foo");
        let placed = ObjectId::new(PoolId(1), "ns", "loc", "bar");
        assert_eq!((line(&plain, false), line(&plain, true)), ("foo\n".into(), "\tfoo\n".into()));
        assert_eq!(
            (line(&placed, false), line(&placed, true)),
            ("bar\tloc\n".into(), "ns\tbar\tloc\n".into())
        );
        assert_eq!(entry(&plain).to_string(), r#"{"namespace":"","name":"foo"}"#);
        assert_eq!(entry(&placed).to_string(), r#"{"namespace":"ns","name":"bar","locator":"loc"}"#);
    }

    #[test]
    fn df_has_the_layout_of_rados() {
        let pool = |name: &str| PoolStats { id: 1, name: name.into(), ..PoolStats::default() };
        let totals = ClusterStats {
            total_bytes: 4 << 30,
            used_bytes: 12 << 10,
            available_bytes: (4 << 30) - (13 << 10),
            objects: 0,
        };
        let expected = "\
POOL_NAME              USED  OBJECTS  CLONES  COPIES  MISSING_ON_PRIMARY  UNFOUND  DEGRADED  RD_OPS   RD  WR_OPS   WR  USED COMPR  UNDER COMPR
device_health_metrics   0 B        0       0       0                   0        0         0       0  0 B       0  0 B         0 B          0 B
p                       0 B        0       0       0                   0        0         0       0  0 B       0  0 B         0 B          0 B

total_objects    0
total_used       12 KiB
total_avail      4.0 GiB
total_space      4 GiB
";
        assert_eq!(df_table(&[pool("device_health_metrics"), pool("p")], &totals), expected);
        let json = df_json(&[pool("p")], &totals).to_string();
        assert!(
            json.starts_with(r#"{"pools":[{"name":"p","id":1,"size_bytes":0,"size_kb":0,"num_objects":0,"#)
        );
        assert!(
            json.ends_with(
                r#""total_objects":0,"total_used":12,"total_avail":4194291,"total_space":4194304}"#
            )
        );
    }
}
