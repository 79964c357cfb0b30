//! `--build`: builds a map in layers, each with buckets of equal size over the layer below.

use super::ExitError;
use nacre_crush::{BucketAlg, CrushError, CrushMap, MAX_DEVICES, RuleType, WEIGHT_ONE};
use std::io::Write;

struct Layer<'a> {
    name: &'a str,
    alg: BucketAlg,
    /// Items per bucket, or 0 for one bucket with all of them.
    size: usize,
}

pub(super) fn build(num_osds: i64, words: &[String], err: &mut dyn Write) -> Result<CrushMap, ExitError> {
    let mut layers = Vec::new();
    let (triples, incomplete) = words.as_chunks::<3>();
    if !incomplete.is_empty() {
        return Err(ExitError::failed(format!(
            "remaining args: [{}]\nlayers must be specified with 3-tuples of (name, buckettype, size)",
            incomplete.join(",")
        )));
    }
    for [name, alg_name, size] in triples {
        let Some(alg) = BucketAlg::from_name(alg_name) else {
            return Err(ExitError::failed(format!("unknown bucket type '{alg_name}'")));
        };
        let digits: String = size.chars().take_while(char::is_ascii_digit).collect();
        layers.push(Layer { name, alg, size: digits.parse().unwrap_or(0) });
    }
    if layers.is_empty() {
        return Err(ExitError::failed("must specify at least one layer"));
    }
    if num_osds <= 0 || num_osds > i64::from(MAX_DEVICES) {
        return Err(ExitError::failed("must specify --num_osds"));
    }
    fill(num_osds as i32, &layers, err)
}

fn fill(num_osds: i32, layers: &[Layer<'_>], err: &mut dyn Write) -> Result<CrushMap, ExitError> {
    let edit = |error: CrushError| ExitError::failed(error.to_string());
    let mut map = CrushMap::empty();
    map.set_type_name(0, "osd").map_err(edit)?;
    let mut lower: Vec<(i32, u32)> = Vec::new();
    for osd in 0..num_osds {
        map.set_item_name(osd, &format!("osd.{osd}")).map_err(edit)?;
        lower.push((osd, WEIGHT_ONE));
    }
    let mut first_name = String::new();
    for (index, layer) in layers.iter().enumerate() {
        let type_id = index as i32 + 1;
        map.set_type_name(type_id, layer.name).map_err(edit)?;
        let per_bucket = if layer.size == 0 { lower.len() } else { layer.size };
        let mut upper = Vec::new();
        for (number, items) in lower.chunks(per_bucket).enumerate() {
            let name =
                if layer.size == 0 { layer.name.to_owned() } else { format!("{}{number}", layer.name) };
            let mut items = items.to_vec();
            if layer.alg == BucketAlg::Uniform {
                // The last bucket of a layer may be smaller. A uniform bucket counts it like the first.
                let weight = items[0].1;
                items.iter_mut().for_each(|item| item.1 = weight);
            }
            let id = map.add_bucket(None, layer.alg, 0, type_id as u16, &items, &name).map_err(edit)?;
            upper.push((id, map.bucket(id).map_or(0, |bucket| bucket.weight)));
            if number == 0 {
                first_name = name;
            }
        }
        lower = upper;
    }
    if lower.len() > 1 {
        let roots = lower.len();
        writeln!(
            err,
            "The crush rulesets will use the root {first_name}\nand ignore the others.\n\
             There are {roots} roots, they can be\ngrouped into a single root by appending something like:\n  \
             root straw 0\n"
        )?;
    }
    let failure_domain = layers[0].name;
    map.add_simple_rule("replicated_rule", &first_name, failure_domain, None, true, RuleType::Replicated)
        .map_err(edit)?;
    Ok(map)
}
