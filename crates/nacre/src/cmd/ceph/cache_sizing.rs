//! `tier advise`: collects measured and predicted hits from the OSDs of a cache pool, and adds them up.

use super::{Failure, command_failed, every_osd, print, printed, session};
use crate::cmd::output::Format;
use nacre_client::engine::CommandTarget;
use nacre_common::config::Invocation;
use nacre_types::errno::Errno;
use nacre_types::ids::PoolId;
use nacre_types::osdmap::OsdMap;
use nacre_types::pool::Pool;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Queries all OSDs that are up, in parallel, and prints the merged result. Fails if one does not answer, because the others
/// know only a part of the pool.
pub(super) fn run(invocation: &Invocation, pool: &str, format: Format) -> Result<(), Failure> {
    let cluster = session::connect(invocation)
        .map_err(|text| Failure::new(format!("Error connecting to the cluster: {text}"), 1))?;
    let map = cluster.osdmap();
    let asked = find_cache_pool(map.as_deref(), pool).and_then(|_| {
        let command = json!({ "prefix": "dump_tier_advice", "pool": pool }).to_string();
        let ask =
            |target: CommandTarget| cluster.engine().command(target, command.clone(), Vec::new().into());
        let asked: Vec<_> =
            every_osd(map.as_deref()).into_iter().map(|(name, target)| (name, ask(target))).collect();
        let mut advice = Vec::new();
        for (name, answer) in asked {
            let reply = answer.wait().map_err(|error| {
                let Failure { text, code } = command_failed(&error);
                Failure::new(format!("{name}{text}"), code)
            })?;
            let parsed = serde_json::from_slice::<Value>(&reply.output);
            advice.push(parsed.map_err(|error| Failure::new(format!("{name}{error}"), 5))?);
        }
        Ok(advice)
    });
    cluster.shut_down();
    let advice = merge(pool, &asked?);
    match format {
        Format::Plain => print(described(&advice).as_bytes()),
        format => print(&printed("", format.render(&advice).as_bytes(), true, false)),
    }
}

/// A cache pool, by its name, and its base pool.
pub(super) fn find_cache_pool<'a>(
    map: Option<&'a OsdMap>,
    pool: &str,
) -> Result<(PoolId, &'a Pool, PoolId), Failure> {
    let known = map.and_then(|map| map.pools.iter().find(|(_, known)| known.name == pool));
    let Some((id, known)) = known else {
        return Err(Failure::command(Errno::ENOENT, &format!("unrecognized pool '{pool}'")));
    };
    match known.tiering.tier_of {
        Some(base) => Ok((*id, known, base)),
        None => Err(Failure::command(Errno::EINVAL, &format!("pool '{pool}' is not a cache tier"))),
    }
}

/// Numbers to add up over the OSDs.
const SUMS: [&str; 7] =
    ["pgs", "objects", "bytes", "target_bytes", "target_objects", "followed_objects", "followed_accesses"];

/// Merges the OSDs' advice for the pool. Ignores OSDs that are not primary of any of the pool's PGs.
fn merge(pool: &str, osds: &[Value]) -> Value {
    let serving: Vec<&Value> = osds.iter().filter(|osd| osd["pgs"].as_u64().unwrap_or(0) > 0).collect();
    let mut merged = Map::new();
    merged.insert("pool".into(), pool.into());
    for name in SUMS {
        let sum = serving.iter().filter_map(|osd| osd[name].as_u64()).fold(0, u64::saturating_add);
        merged.insert(name.into(), sum.into());
    }
    let seconds = serving.iter().filter_map(|osd| osd["seconds"].as_f64()).fold(0.0, f64::max);
    merged.insert("seconds".into(), seconds.into());
    for name in ["admission", "min_read_recency_for_promote"] {
        merged.insert(name.into(), serving.first().map_or(Value::Null, |osd| osd[name].clone()));
    }
    merged.insert("hit_rate".into(), hit_rate(serving.iter().map(|osd| &osd["measured"])));
    let (target_bytes, target_objects) = (&merged["target_bytes"], &merged["target_objects"]);
    let scaled = |target: &Value, scale: f64| match target.as_u64().unwrap_or(0) {
        0 => Value::Null,
        target => ((target as f64 * scale) as u64).into(),
    };
    let variants = serving.first().and_then(|osd| osd["predicted"].as_array());
    let predicted: Vec<Value> = variants
        .into_iter()
        .flatten()
        .map(|variant| {
            let names = ["scale", "admission", "min_read_recency_for_promote"];
            let is_same = |other: &&Value| names.iter().all(|name| other[*name] == variant[*name]);
            let same = serving.iter().filter_map(|osd| osd["predicted"].as_array()?.iter().find(is_same));
            let scale = variant["scale"].as_f64().unwrap_or(1.0);
            json!({
                "scale": scale,
                "target_bytes": scaled(target_bytes, scale),
                "target_objects": scaled(target_objects, scale),
                "admission": variant["admission"],
                "min_read_recency_for_promote": variant["min_read_recency_for_promote"],
                "hit_rate": hit_rate(same),
            })
        })
        .collect();
    merged.insert("predicted".into(), predicted.into());
    merged.into()
}

/// The hit rate over all OSDs, 0 to 1, or null if nothing was accessed.
fn hit_rate<'a>(parts: impl Iterator<Item = &'a Value>) -> Value {
    let (mut accesses, mut hits) = (0.0, 0.0);
    for part in parts {
        accesses += part["accesses_per_s"].as_f64().unwrap_or(0.0);
        hits += part["hits_per_s"].as_f64().unwrap_or(0.0);
    }
    if accesses > 0.0 { (hits / accesses).clamp(0.0, 1.0).into() } else { Value::Null }
}

fn bytes(value: &Value) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(bytes) = value.as_u64().filter(|bytes| *bytes > 0) else { return "-".to_owned() };
    let unit = (bytes.ilog2() / 10).min(5);
    format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * unit)) as f64, UNITS[unit as usize])
}

fn count(value: &Value) -> String {
    value.as_u64().filter(|count| *count > 0).map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |rate| format!("{:.1}%", rate * 100.0))
}

/// A column of the table: `recency 1` or `frequency`.
fn column(predicted: &Value) -> String {
    let admission = predicted["admission"].as_str().unwrap_or_default();
    match predicted["min_read_recency_for_promote"].as_u64() {
        Some(recency) => format!("{admission} {recency}"),
        None => admission.to_owned(),
    }
}

fn described(advice: &Value) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "pool '{}' holds {} in {} objects; target {}, {} objects",
        advice["pool"].as_str().unwrap_or_default(),
        bytes(&advice["bytes"]),
        advice["objects"],
        bytes(&advice["target_bytes"]),
        count(&advice["target_objects"]),
    );
    let predicted = advice["predicted"].as_array().cloned().unwrap_or_default();
    if advice["hit_rate"].is_null() || predicted.is_empty() {
        out.push_str("no accesses are recorded yet\n");
        return out;
    }
    let admission = column(advice);
    let present = match advice["admission"] == "frequency" {
        true => "frequency",
        false => &admission,
    };
    let _ = writeln!(
        out,
        "hit rate {} with {present}, measured over {:.0} s; {} accesses of {} objects were followed\n",
        percent(&advice["hit_rate"]),
        advice["seconds"].as_f64().unwrap_or(0.0),
        advice["followed_accesses"],
        advice["followed_objects"],
    );
    out.push_str(
        "Predicted hit rates by target and min_read_recency_for_promote or osd_tier_promote_admission\n",
    );
    let columns: Vec<String> =
        predicted.iter().take_while(|cell| cell["scale"] == predicted[0]["scale"]).map(column).collect();
    let _ = write!(out, "{:>6}  {:>10}  {:>10}", "SIZE", "BYTES", "OBJECTS");
    for name in &columns {
        let _ = write!(out, "  {:>10}", name.to_uppercase());
    }
    out.push('\n');
    for row in predicted.chunks(columns.len()) {
        let _ = write!(
            out,
            "{:>6}  {:>10}  {:>10}",
            format!("{}x", row[0]["scale"].as_f64().unwrap_or(0.0)),
            bytes(&row[0]["target_bytes"]),
            count(&row[0]["target_objects"]),
        );
        for cell in row {
            let _ = write!(out, "  {:>10}", percent(&cell["hit_rate"]));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn osd(accesses: f64, hits: f64) -> Value {
        let predicted = |scale: f64, hits: f64| {
            json!({ "scale": scale, "admission": "recency", "min_read_recency_for_promote": 0,
                "accesses_per_s": accesses, "hits_per_s": hits })
        };
        let frequency = |scale: f64| json!({ "scale": scale, "admission": "frequency", "accesses_per_s": accesses, "hits_per_s": accesses });
        json!({
            "pgs": 2, "objects": 10, "bytes": 40_960, "target_bytes": 1 << 20, "target_objects": 0,
            "followed_objects": 10, "followed_accesses": 50, "seconds": accesses,
            "admission": "recency", "min_read_recency_for_promote": 0,
            "measured": { "accesses_per_s": accesses, "hits_per_s": hits },
            "predicted": [predicted(1.0, hits), frequency(1.0), predicted(2.0, 2.0 * hits), frequency(2.0)],
        })
    }

    #[test]
    fn osds_count_by_their_accesses() {
        let idle = json!({ "pgs": 0, "admission": null, "measured": {}, "predicted": [] });
        let merged = merge("cache", &[idle.clone(), osd(100.0, 50.0), osd(300.0, 30.0)]);
        assert_eq!(merged["hit_rate"], 0.2);
        assert_eq!((&merged["objects"], &merged["target_bytes"]), (&json!(20), &json!(2 << 20)));
        let rates: Vec<f64> = merged["predicted"]
            .as_array()
            .unwrap()
            .iter()
            .map(|cell| cell["hit_rate"].as_f64().unwrap())
            .collect();
        assert_eq!(rates, [0.2, 1.0, 0.4, 1.0]);
        assert_eq!(merged["predicted"][2]["target_bytes"], 4 << 20);
        assert_eq!(merged["predicted"][2]["target_objects"], Value::Null);
        assert_eq!(merge("cache", &[idle])["hit_rate"], Value::Null);
    }

    #[test]
    fn advice_is_a_table() {
        let text = described(&merge("cache", &[osd(100.0, 25.0)]));
        let expected = "\
pool 'cache' holds 40.0 KiB in 10 objects; target 1.0 MiB, - objects
hit rate 25.0% with recency 0, measured over 100 s; 50 accesses of 10 objects were followed

Predicted hit rates by target and min_read_recency_for_promote or osd_tier_promote_admission
  SIZE       BYTES     OBJECTS   RECENCY 0   FREQUENCY
    1x     1.0 MiB           -       25.0%      100.0%
    2x     2.0 MiB           -       50.0%      100.0%
";
        assert_eq!(text, expected);
        let nothing = described(&merge("cache", &[]));
        assert!(nothing.ends_with("no accesses are recorded yet\n"), "{nothing}");
    }
}
