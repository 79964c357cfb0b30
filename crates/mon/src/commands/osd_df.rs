//! `osd df`: the usage of each OSD.

use super::osd_show::{Node, node_cells, node_json, tree};
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context};
use crate::logic::MapState;
use crate::text::{Align, Table, bytes};
use nacre_crush::CrushMap;
use nacre_types::command::Call;
use nacre_types::ids::OsdId;
use nacre_types::osdmap::WEIGHT_ONE;
use nacre_types::stats::OsdStats;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The numbers of an OSD, or the sums of all OSDs below a bucket.
#[derive(Clone, Copy, Default)]
struct Numbers {
    total: u64,
    avail: u64,
    data: u64,
    omap: u64,
    meta: u64,
    pgs: u64,
}

impl Numbers {
    fn used(&self) -> u64 {
        self.total.saturating_sub(self.avail)
    }

    fn percent(&self) -> f64 {
        if self.total == 0 { 0.0 } else { 100.0 * self.used() as f64 / self.total as f64 }
    }

    fn add(&mut self, stats: &OsdStats, pgs: u64) {
        self.total += stats.total_bytes;
        self.avail += stats.available_bytes;
        self.data += stats.data_bytes;
        self.omap += stats.omap_bytes;
        self.meta += stats.meta_bytes;
        self.pgs += pgs;
    }
}

/// The selection to show: everything, the OSDs of a device class, or an item of the CRUSH map with everything below it.
struct Filter<'a> {
    class: Option<&'a str>,
    root: Option<i32>,
}

impl<'a> Filter<'a> {
    fn of(call: &'a Call<'_>, crush: &CrushMap) -> Result<Filter<'a>, CommandFailure> {
        let wanted = call.text("filter").unwrap_or("");
        match call.text("filter_by") {
            Some("class") if crush.class_id(wanted).is_some() => {
                Ok(Filter { class: Some(wanted), root: None })
            }
            Some("class") => {
                Err(CommandFailure::invalid(format!("specified class '{wanted}' does not exist")))
            }
            Some(_) => match crush.item_id(wanted) {
                Some(id) => Ok(Filter { class: None, root: Some(id) }),
                None => Err(CommandFailure::invalid(format!("specified name '{wanted}' does not exist"))),
            },
            None if wanted.is_empty() => Ok(Filter { class: None, root: None }),
            None => Err(CommandFailure::invalid("a filter goes with the word class or name before it")),
        }
    }

    fn shows(&self, crush: &CrushMap, id: i32) -> bool {
        self.root.is_none_or(|root| crush.subtree_contains(root, id))
            && (id < 0 || self.class.is_none_or(|class| crush.device_class(id) == Some(class)))
    }
}

impl MapState {
    pub(super) fn osd_df(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let crush = &self.committed.crush;
        let as_tree = call.text("output_method") == Some("tree");
        let filter = Filter::of(call, crush)?;
        let shown = |id: i32| filter.shows(crush, id);
        let counts = |osd: OsdId| self.is_in(osd) && shown(osd.0 as i32);
        let pgs = self.pgs_per_osd();
        let numbers = |id: i32| {
            let mut sum = Numbers::default();
            for device in crush.devices_below(id) {
                let osd = OsdId(device as u32);
                if let Some(stats) = self.stats.osds.get(&osd).filter(|_| counts(osd)) {
                    sum.add(stats, pgs.get(&osd).copied().unwrap_or(0));
                }
            }
            sum
        };
        let mut all = Numbers::default();
        for (osd, stats) in self.stats.osds.iter().filter(|(osd, _)| counts(**osd)) {
            all.add(stats, pgs.get(osd).copied().unwrap_or(0));
        }
        let average = all.percent();
        let variance = |n: &Numbers| if average > 0.0 { n.percent() / average } else { 0.0 };
        let nodes = tree(crush, false, &|_| true, true).into_iter();
        let nodes: Vec<Node> = nodes.filter(|node| (as_tree || node.id >= 0) && shown(node.id)).collect();
        let leaves: Vec<Numbers> =
            self.stats.osds.keys().map(|osd| numbers(osd.0 as i32)).filter(|n| n.total > 0).collect();
        let min_var = leaves.iter().map(variance).fold(f64::INFINITY, f64::min);
        let max_var = leaves.iter().map(variance).fold(0.0, f64::max);
        let min_var = if min_var.is_finite() { min_var } else { 0.0 };
        let dev = deviation(&leaves, average);
        let status = |id: i32| match u32::try_from(id).ok().and_then(|id| self.committed.osds.get(&OsdId(id)))
        {
            Some(info) if info.up => "up",
            Some(_) => "down",
            None => "",
        };
        let reweight = |id: i32| {
            u32::try_from(id)
                .ok()
                .and_then(|id| self.committed.osds.get(&OsdId(id)))
                .map(|info| f64::from(info.weight) / f64::from(WEIGHT_ONE))
        };
        if ctx.is_json() {
            let nodes: Vec<Value> = nodes
                .iter()
                .map(|node| {
                    let n = numbers(node.id);
                    let mut fields = node_json(crush, node);
                    fields.insert("reweight".into(), reweight(node.id).map_or((-1).into(), Value::from));
                    fields.insert("kb".into(), (n.total / 1024).into());
                    fields.insert("kb_used".into(), (n.used() / 1024).into());
                    fields.insert("kb_used_data".into(), (n.data / 1024).into());
                    fields.insert("kb_used_omap".into(), (n.omap / 1024).into());
                    fields.insert("kb_used_meta".into(), (n.meta / 1024).into());
                    fields.insert("kb_avail".into(), (n.avail / 1024).into());
                    fields.insert("utilization".into(), n.percent().into());
                    fields.insert("var".into(), variance(&n).into());
                    fields.insert("pgs".into(), n.pgs.into());
                    if node.id >= 0 {
                        fields.insert("status".into(), status(node.id).into());
                    }
                    Value::Object(fields)
                })
                .collect();
            return Ok(CommandAnswer::json(json!({
                "nodes": nodes,
                "stray": [],
                "summary": {
                    "total_kb": all.total / 1024,
                    "total_kb_used": all.used() / 1024,
                    "total_kb_used_data": all.data / 1024,
                    "total_kb_used_omap": all.omap / 1024,
                    "total_kb_used_meta": all.meta / 1024,
                    "total_kb_avail": all.avail / 1024,
                    "average_utilization": average,
                    "min_var": min_var,
                    "max_var": max_var,
                    "dev": dev,
                },
            })));
        }
        use Align::{Left, Right};
        let mut columns = vec![
            ("ID", Left, Right),
            ("CLASS", Right, Right),
            ("WEIGHT", Left, Right),
            ("REWEIGHT", Left, Right),
        ];
        for name in ["SIZE", "RAW USE", "DATA", "OMAP", "META", "AVAIL", "%USE", "VAR", "PGS"] {
            columns.push((name, Left, Right));
        }
        columns.push(("STATUS", Left, Right));
        if as_tree {
            columns.push(("TYPE NAME", Left, Left));
        }
        let mut table = Table::new(&columns);
        let sizes = |n: &Numbers| [n.total, n.used(), n.data, n.omap, n.meta, n.avail].map(bytes);
        for node in &nodes {
            let n = numbers(node.id);
            let cells = node_cells(crush, node);
            let mut row = cells[..3].to_vec();
            row.push(reweight(node.id).map_or_else(|| "-".into(), super::osd_show::weight_text));
            row.extend(sizes(&n));
            row.extend([format!("{:.2}", n.percent()), format!("{:.2}", variance(&n))]);
            row.push(if node.id >= 0 { n.pgs.to_string() } else { "-".into() });
            row.push(status(node.id).to_owned());
            if as_tree {
                row.push(cells[3].clone());
            }
            table.row(row);
        }
        let mut total = vec![String::new(), String::new(), String::new(), "TOTAL".into()];
        total.extend(sizes(&all));
        total.push(format!("{average:.2}"));
        total.resize(columns.len(), String::new());
        table.row(total);
        let text = table.render();
        Ok(CommandAnswer::text(format!("{text}MIN/MAX VAR: {min_var:.2}/{max_var:.2}  STDDEV: {dev:.2}\n")))
    }

    fn is_in(&self, osd: OsdId) -> bool {
        self.committed.osds.get(&osd).is_some_and(|info| info.is_in())
    }

    /// The number of PGs in whose acting set each OSD is.
    pub(crate) fn pgs_per_osd(&self) -> BTreeMap<OsdId, u64> {
        let mut counts = BTreeMap::new();
        for view in self.pg_views() {
            for osd in view.acting {
                *counts.entry(osd).or_default() += 1;
            }
        }
        counts
    }
}

fn deviation(leaves: &[Numbers], average: f64) -> f64 {
    let sum: f64 = leaves.iter().map(|n| (n.percent() - average).powi(2)).sum();
    if leaves.is_empty() { 0.0 } else { (sum / leaves.len() as f64).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Desk;
    use nacre_types::errno::Errno;
    use serde_json::{Value, json};

    #[test]
    fn a_filter_shows_one_class_or_what_is_below_one_item() {
        let mut desk = Desk::busy();
        desk.ok("osd crush rm-device-class", json!({ "ids": ["2"] }));
        desk.ok("osd crush set-device-class", json!({ "class": "ssd", "ids": ["2"] }));
        let filtered = |desk: &mut Desk, method: &str, by: &str, what: &str| {
            let args = json!({ "output_method": method, "filter_by": by, "filter": what });
            let answer = desk.json("osd df", args);
            let nodes = answer["nodes"].as_array().unwrap();
            let ids: Vec<i64> = nodes.iter().map(|node| node["id"].as_i64().unwrap()).collect();
            (ids, answer["summary"]["total_kb"].clone())
        };
        let kb = |osds: u64| Value::from(osds * (4 << 20));
        assert_eq!(filtered(&mut desk, "plain", "class", "hdd"), (vec![0, 1], kb(2)));
        assert_eq!(filtered(&mut desk, "plain", "class", "ssd"), (vec![2], kb(1)));
        assert_eq!(filtered(&mut desk, "plain", "name", "osd.1"), (vec![1], kb(1)));
        assert_eq!(filtered(&mut desk, "plain", "name", "default"), (vec![0, 1, 2], kb(3)));
        let (tree, total) = filtered(&mut desk, "tree", "class", "ssd");
        assert!(tree.len() > 1 && tree.iter().filter(|id| **id >= 0).eq([&2]), "{tree:?}");
        assert_eq!(total, kb(1));
        for by in ["class", "name"] {
            let text = format!("specified {by} 'x' does not exist");
            desk.fails("osd df", json!({ "filter_by": by, "filter": "x" }), Errno::EINVAL, &text);
        }
        let text = "a filter goes with the word class or name before it";
        desk.fails("osd df", json!({ "filter": "ssd" }), Errno::EINVAL, text);
    }
}
