//! `osd …` commands that show the map: dump, stat, tree, find, metadata, map.

use super::cluster::operator_flags;
use super::pool_show::{pool_json, pool_line};
use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::MapState;
use crate::pgview::PgSums;
use crate::text::{Align, Table, age, bracketed_list, float, stamp};
use nacre_crush::{CrushMap, DEFAULT_CHOOSE_ARGS};
use nacre_types::command::Call;
use nacre_types::hash::object_hash;
use nacre_types::ids::{OsdId, PgId, PoolId};
use nacre_types::osdmap::{BLOCKLIST_RANGE_PREFIX, OsdInfo, OsdMap, WEIGHT_ONE, flag};
use nacre_types::placement::PgMapper;
use serde_json::{Map, Value, json};

/// Ceph's text for the address of an OSD without one.
const NO_ADDRESS: &str = "(unrecognized address family 0)/0";

impl MapState {
    pub(super) fn osd_show(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let map = &self.committed;
        match call.prefix() {
            "osd stat" => Ok(self.osd_stat(ctx)),
            "osd dump" => {
                self.require_current_epoch(call)?;
                Ok(CommandAnswer::either(ctx, || self.osd_dump_json(), || self.osd_dump_text()))
            }
            "osd tree" => {
                self.require_current_epoch(call)?;
                self.osd_tree(&call.texts("states"), ctx)
            }
            "osd ls" => {
                self.require_current_epoch(call)?;
                let ids: Vec<u32> = map.osds.keys().map(|id| id.0).collect();
                Ok(CommandAnswer::either(
                    ctx,
                    || json!(ids),
                    || ids.iter().map(|id| format!("{id}\n")).collect(),
                ))
            }
            "osd getmap" => {
                self.require_current_epoch(call)?;
                Ok(CommandAnswer::bytes(map.to_file(self.crush_version))
                    .with_status(format!("got osdmap epoch {}", map.epoch)))
            }
            "osd getmaxosd" => Ok(CommandAnswer::either(
                ctx,
                || json!({ "epoch": map.epoch.0, "max_osd": map.max_osd }),
                || format!("max_osd = {} in epoch {}\n", map.max_osd, map.epoch),
            )),
            "osd find" => self.osd_find(call),
            "osd metadata" => self.osd_metadata(call),
            "osd map" => self.osd_map(call, ctx),
            "osd perf" => Ok(self.osd_perf(ctx)),
            "osd blocklist ls" | "osd blacklist ls" => {
                let entries = &map.blocklist;
                let answer = CommandAnswer::either(
                    ctx,
                    || {
                        let field = |who: &str| if is_range(who) { "range" } else { "addr" };
                        entries
                            .iter()
                            .map(|(who, until)| json!({ (field(who)): who, "until": stamp(*until) }))
                            .collect()
                    },
                    || entries.iter().map(|(who, until)| format!("{who} {}\n", stamp(*until))).collect(),
                );
                Ok(answer.with_status(format!("listed {} entries", entries.len())))
            }
            _ => unhandled(call),
        }
    }

    /// `3 osds: 3 up (since 2m), 3 in (since 2m); epoch: e20` without the epoch, as status prints it.
    pub(super) fn osd_summary(&self, ctx: &Context, sums: &PgSums) -> String {
        let map = &self.committed;
        let up = map.osds.values().filter(|info| info.up).count();
        let in_osds = map.osds.values().filter(|info| info.is_in()).count();
        let since = |ns: u64| age(ctx.now.wall_ns.saturating_sub(ns) / 1_000_000_000);
        let mut text = format!("{} osds: {up} up", map.osds.len());
        if !map.osds.is_empty() {
            text = format!(
                "{text} (since {}), {in_osds} in (since {})",
                since(self.last_up_change_ns),
                since(self.last_in_change_ns)
            );
        } else {
            text.push_str(", 0 in");
        }
        if sums.remapped > 0 {
            text.push_str(&format!("; {} remapped pgs", sums.remapped));
        }
        text
    }

    pub(super) fn osd_stat_json(&self, sums: &PgSums) -> Value {
        let map = &self.committed;
        json!({
            "epoch": map.epoch.0,
            "num_osds": map.osds.len(),
            "num_up_osds": map.osds.values().filter(|info| info.up).count(),
            "osd_up_since": self.last_up_change_ns / 1_000_000_000,
            "num_in_osds": map.osds.values().filter(|info| info.is_in()).count(),
            "osd_in_since": self.last_in_change_ns / 1_000_000_000,
            "num_remapped_pgs": sums.remapped,
        })
    }

    fn osd_stat(&self, ctx: &Context) -> CommandAnswer {
        let sums = self.pg_sums(&self.pg_views());
        CommandAnswer::either(
            ctx,
            || self.osd_stat_json(&sums),
            || {
                let summary = self.osd_summary(ctx, &PgSums::default());
                let mut text = format!("{summary}; epoch: e{}", self.committed.epoch);
                if sums.remapped > 0 {
                    text.push_str(&format!("; {} remapped pgs", sums.remapped));
                }
                text.push('\n');
                let flags = operator_flags(self.committed.flags);
                if !flags.is_empty() {
                    text.push_str(&format!("flags {flags}\n"));
                }
                text
            },
        )
    }

    fn osd_dump_text(&self) -> String {
        let map = &self.committed;
        let (require_client, require_osd) = match is_clusters(map) {
            true => ("require_min_compat_client luminous\n", "require_osd_release pacific\n"),
            false => ("", ""),
        };
        let min_client = map.min_compat_client();
        let mut out = format!(
            "epoch {}\nfsid {}\ncreated {}\nmodified {}\nflags {}\ncrush_version {}\nfull_ratio {}\n\
             backfillfull_ratio {}\nnearfull_ratio {}\n{require_client}min_compat_client {min_client}\n\
             {require_osd}stretch_mode_enabled false\n\n",
            map.epoch,
            map.fsid,
            stamp(map.created_ns),
            stamp(map.modified_ns),
            flag_names(map.flags).join(","),
            self.crush_version,
            float(f64::from(map.full_ratio)),
            float(f64::from(map.backfillfull_ratio)),
            float(f64::from(map.nearfull_ratio)),
        );
        for (id, pool) in &map.pools {
            out.push_str(&pool_line(*id, pool));
        }
        out.push_str(&format!("\nmax_osd {}\n", map.max_osd));
        map.osds.iter().for_each(|(id, info)| out.push_str(&osd_line(*id, info)));
        out.push('\n');
        for (pg, osds) in &map.pg_upmap {
            out.push_str(&format!("pg_upmap {pg} {}\n", bracketed_list(osds.iter().map(|o| o.0))));
        }
        for (pg, pairs) in &map.pg_upmap_items {
            out.push_str(&format!(
                "pg_upmap_items {pg} {}\n",
                bracketed_list(pairs.iter().map(|(a, b)| format!("{},{}", a.0, b.0)))
            ));
        }
        for (who, until) in &map.blocklist {
            let kind = if is_range(who) { "range blocklist" } else { "blocklist" };
            out.push_str(&format!("{kind} {who} expires {}\n", stamp(*until)));
        }
        out
    }

    fn osd_dump_json(&self) -> Value {
        let map = &self.committed;
        let mut flags_set = flag_names(map.flags);
        flags_set.sort_unstable();
        let shut_out = |ranges: bool| -> Map<String, Value> {
            let entries = map.blocklist.iter().filter(|(who, _)| is_range(who) == ranges);
            entries.map(|(who, until)| (who.clone(), stamp(*until).into())).collect()
        };
        json!({
            "epoch": map.epoch.0,
            "fsid": map.fsid.to_string(),
            "created": stamp(map.created_ns),
            "modified": stamp(map.modified_ns),
            "last_up_change": stamp(self.last_up_change_ns),
            "last_in_change": stamp(self.last_in_change_ns),
            "flags": flag_names(map.flags).join(","),
            "flags_num": map.flags,
            "flags_set": flags_set,
            "crush_version": self.crush_version,
            "full_ratio": number(map.full_ratio.into()),
            "backfillfull_ratio": number(map.backfillfull_ratio.into()),
            "nearfull_ratio": number(map.nearfull_ratio.into()),
            "cluster_snapshot": "",
            "pool_max": map.pool_max.0,
            "max_osd": map.max_osd,
            "require_min_compat_client": if is_clusters(map) { "luminous" } else { "unknown" },
            "min_compat_client": map.min_compat_client(),
            "require_osd_release": if is_clusters(map) { "pacific" } else { "unknown" },
            "pools": map.pools.iter().map(|(id, pool)| pool_json(*id, pool, "pool")).collect::<Vec<_>>(),
            "osds": map.osds.iter().map(|(id, info)| osd_json(*id, info)).collect::<Vec<_>>(),
            "osd_xinfo": map.osds.iter().map(|(id, info)| xinfo_json(*id, info)).collect::<Vec<_>>(),
            "pg_upmap": map.pg_upmap.iter().map(|(pg, osds)| json!({
                "pgid": pg.to_string(), "osds": osds.iter().map(|o| o.0).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "pg_upmap_items": map.pg_upmap_items.iter().map(|(pg, pairs)| json!({
                "pgid": pg.to_string(),
                "mappings": pairs.iter().map(|(a, b)| json!({ "from": a.0, "to": b.0 })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "pg_temp": [],
            "primary_temp": [],
            "blocklist": shut_out(false),
            "range_blocklist": shut_out(true),
            "erasure_code_profiles": {},
            "removed_snaps_queue": [],
            "new_removed_snaps": [],
            "new_purged_snaps": [],
            "crush_node_flags": {},
            "device_class_flags": {},
            "stretch_mode": {
                "stretch_mode_enabled": false, "stretch_bucket_count": 0, "degraded_stretch_mode": 0,
                "recovering_stretch_mode": 0, "stretch_mode_bucket": 0,
            },
        })
    }

    fn osd_tree(&self, states: &[&str], ctx: &Context) -> CommandOutcome {
        for (a, b) in [("up", "down"), ("in", "out")] {
            if states.contains(&a) && states.contains(&b) {
                return Err(CommandFailure::invalid(format!("cannot specify both '{a}' and '{b}'")));
            }
        }
        let map = &self.committed;
        let shown = |osd: i32| {
            let info = u32::try_from(osd).ok().and_then(|id| map.osds.get(&OsdId(id)));
            states.iter().all(|state| match *state {
                "up" => info.is_some_and(|i| i.up),
                "down" => info.is_some_and(|i| !i.up),
                "in" => info.is_some_and(OsdInfo::is_in),
                "out" => info.is_some_and(|i| !i.is_in()),
                _ => false,
            })
        };
        let nodes = tree(&map.crush, false, &shown, states.is_empty());
        let stray: Vec<(OsdId, &OsdInfo)> = map
            .osds
            .iter()
            .filter(|(id, _)| !map.crush.is_linked(id.0 as i32) && shown(id.0 as i32))
            .map(|(id, info)| (*id, info))
            .collect();
        let state_of = |id: i32| u32::try_from(id).ok().and_then(|id| map.osds.get(&OsdId(id)));
        if ctx.is_json() {
            let with_state = |node: &Node| {
                let mut fields = node_json(&map.crush, node);
                if let Some(weights) = fields.get_mut("pool_weights") {
                    *weights = pool_weights(map, node);
                }
                if node.id >= 0 {
                    let absent = state_of(node.id).is_none();
                    fields.extend(state_fields(state_of(node.id).unwrap_or(&OsdInfo::never_up())));
                    if absent {
                        fields.insert("exists".into(), 0.into());
                    }
                }
                Value::Object(fields)
            };
            let strays = stray.iter().map(|(id, info)| {
                let mut fields = Map::new();
                fields.insert("id".into(), id.0.into());
                fields.insert("name".into(), id.to_string().into());
                fields.insert("type".into(), "osd".into());
                fields.insert("type_id".into(), 0.into());
                fields.insert("crush_weight".into(), 0.into());
                fields.insert("depth".into(), 0.into());
                fields.extend(state_fields(info));
                Value::Object(fields)
            });
            let nodes: Vec<Value> = nodes.iter().map(with_state).collect();
            return Ok(CommandAnswer::json(json!({ "nodes": nodes, "stray": strays.collect::<Vec<_>>() })));
        }
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("ID", Left, Right),
            ("CLASS", Right, Right),
            ("WEIGHT", Left, Right),
            ("TYPE NAME", Left, Left),
            ("STATUS", Left, Right),
            ("REWEIGHT", Left, Right),
            ("PRI-AFF", Left, Right),
        ]);
        let cells = |info: Option<&OsdInfo>, id: i32| match info {
            Some(info) => [
                status_text(info).to_owned(),
                weight_text(f64::from(info.weight) / f64::from(WEIGHT_ONE)),
                weight_text(f64::from(info.primary_affinity) / f64::from(WEIGHT_ONE)),
            ],
            None if id >= 0 => ["DNE".into(), "0".into(), String::new()],
            None => Default::default(),
        };
        for node in &nodes {
            let mut row = node_cells(&map.crush, node);
            row.extend(cells(state_of(node.id), node.id));
            table.row(row);
        }
        for (id, info) in stray {
            let mut row = vec![id.0.to_string(), String::new(), "0".into(), id.to_string()];
            row.extend(cells(Some(info), id.0 as i32));
            table.row(row);
        }
        Ok(CommandAnswer::text(table.render()))
    }

    fn osd_find(&self, call: &Call<'_>) -> CommandOutcome {
        let osd = self.existing_osd(call)?;
        let info = &self.committed.osds.get(&osd).cloned().unwrap_or_else(OsdInfo::never_up);
        let host = info.metadata.get("hostname").cloned().unwrap_or_default();
        Ok(CommandAnswer::json(json!({
            "osd": osd.0,
            "addrs": addrvec(info),
            "osd_fsid": info.uuid.to_string(),
            "host": host,
            "crush_location": self.committed.crush.full_location(osd.0 as i32),
        })))
    }

    fn osd_metadata(&self, call: &Call<'_>) -> CommandOutcome {
        let one = |osd: OsdId, info: &OsdInfo| {
            let mut fields = Map::new();
            fields.insert("id".into(), osd.0.into());
            fields.extend(info.metadata.iter().map(|(k, v)| (k.clone(), v.as_str().into())));
            Value::Object(fields)
        };
        if call.osd("id").is_some() {
            let osd = self.existing_osd(call)?;
            return Ok(CommandAnswer::json(
                self.committed.osds.get(&osd).map_or(json!({}), |info| one(osd, info)),
            ));
        }
        Ok(CommandAnswer::json(self.committed.osds.iter().map(|(id, info)| one(*id, info)).collect()))
    }

    fn osd_map(&self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let (name, object) = (call.required_text("pool"), call.required_text("object"));
        let map = &self.committed;
        let (id, pool) = map
            .pool_by_name(name)
            .ok_or_else(|| CommandFailure::not_found(format!("pool {name} does not exist")))?;
        let namespace = call.text("nspace").unwrap_or("");
        let raw = PgId::new(id, object_hash(namespace.as_bytes(), object.as_bytes()));
        let pg = pool.pg_of_hash(id, raw.seed);
        let up = PgMapper::new(map).up(pg);
        let acting = map.membership(pg).map_or_else(|| up.clone(), |m| m.acting());
        let primary = |osds: &[OsdId]| osds.first().map_or(-1, |osd| i64::from(osd.0));
        let ids = |osds: &[OsdId]| osds.iter().map(|osd| osd.0).collect::<Vec<_>>();
        let shown = if namespace.is_empty() { object.to_owned() } else { format!("{namespace}/{object}") };
        Ok(CommandAnswer::either(
            ctx,
            || {
                json!({
                    "epoch": map.epoch.0, "pool": name, "pool_id": id.0, "objname": shown, "raw_pgid": raw.to_string(),
                    "pgid": pg.to_string(), "up": ids(&up), "up_primary": primary(&up), "acting": ids(&acting),
                    "acting_primary": primary(&acting),
                })
            },
            || {
                format!(
                    "osdmap e{} pool '{name}' ({id}) object '{shown}' -> pg {raw} ({pg}) -> up ({}, p{}) acting ({}, p{})\n",
                    map.epoch,
                    bracketed_list(ids(&up)),
                    primary(&up),
                    bracketed_list(ids(&acting)),
                    primary(&acting)
                )
            },
        ))
    }

    fn osd_perf(&self, ctx: &Context) -> CommandAnswer {
        let stats = self.stats.osds.iter().rev();
        if ctx.is_json() {
            let infos: Vec<Value> = stats
                .map(|(osd, s)| {
                    json!({ "id": osd.0, "perf_stats": {
                        "commit_latency_ms": s.commit_latency_ms,
                        "apply_latency_ms": s.apply_latency_ms,
                        "commit_latency_ns": u64::from(s.commit_latency_ms) * 1_000_000,
                        "apply_latency_ns": u64::from(s.apply_latency_ms) * 1_000_000,
                    }})
                })
                .collect();
            return CommandAnswer::json(json!({ "pg_ready": true, "osdstats": { "osd_perf_infos": infos } }));
        }
        use Align::{Left, Right};
        let mut table = Table::new(&[
            ("osd", Left, Right),
            ("commit_latency(ms)", Left, Right),
            ("apply_latency(ms)", Left, Right),
        ]);
        for (osd, s) in stats {
            table.row(vec![
                osd.0.to_string(),
                s.commit_latency_ms.to_string(),
                s.apply_latency_ms.to_string(),
            ]);
        }
        CommandAnswer::text(table.render())
    }
}

/// A line of a tree.
pub(super) struct Node {
    pub(super) id: i32,
    pub(super) depth: usize,
    /// In 16.16 fixed point.
    pub(super) weight: u32,
    /// The bucket that it is listed under.
    parent: Option<i32>,
    children: Vec<i32>,
}

/// The hierarchy depth first, roots by id, children by class and name. Unless `all`, only items that contain a device which
/// `shown` accepts.
pub(super) fn tree(crush: &CrushMap, shadows: bool, shown: &dyn Fn(i32) -> bool, all: bool) -> Vec<Node> {
    let mut nodes = Vec::new();
    for root in crush.roots(shadows) {
        let weight = crush.bucket(root).map_or(0, |b| b.weight);
        walk(crush, (root, None), weight, 0, shown, all, &mut nodes);
    }
    nodes
}

fn walk(
    crush: &CrushMap,
    (id, parent): (i32, Option<i32>),
    weight: u32,
    depth: usize,
    shown: &dyn Fn(i32) -> bool,
    all: bool,
    nodes: &mut Vec<Node>,
) {
    if !all && !crush.devices_below(id).into_iter().any(shown) {
        return;
    }
    let mut items: Vec<(i32, u32)> = crush.bucket(id).map_or_else(Vec::new, |b| b.weighted_items().collect());
    items.sort_by_key(|(item, _)| match *item {
        osd if osd >= 0 => format!("{}_osd.{osd:08}", crush.device_class(osd).unwrap_or("")),
        bucket => format!("_{}", crush.item_name(bucket).unwrap_or("")),
    });
    let children = items.iter().rev().map(|(item, _)| *item).collect();
    nodes.push(Node { id, depth, weight, parent, children });
    for (item, weight) in items {
        walk(crush, (item, Some(id)), weight, depth + 1, shown, all, nodes);
    }
}

/// ID, class, weight and indented name.
pub(super) fn node_cells(crush: &CrushMap, node: &Node) -> Vec<String> {
    let name = crush.item_name(node.id).unwrap_or("?");
    let indent = "    ".repeat(node.depth);
    let label = match crush.bucket(node.id) {
        Some(bucket) => {
            format!("{indent}{} {name}", crush.type_name(i32::from(bucket.type_id)).unwrap_or("?"))
        }
        None => format!("{indent}{name}"),
    };
    let class = match node.id {
        id if id >= 0 => crush.device_class(id).unwrap_or("").to_owned(),
        _ => name.split_once('~').map_or_else(String::new, |(_, class)| class.to_owned()),
    };
    let weight = weight_text(f64::from(node.weight) / f64::from(WEIGHT_ONE));
    vec![node.id.to_string(), class, weight, label]
}

pub(super) fn node_json(crush: &CrushMap, node: &Node) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    put("id", node.id.into());
    if node.id >= 0
        && let Some(class) = crush.device_class(node.id)
    {
        put("device_class", class.into());
    }
    let type_id = crush.item_type(node.id).unwrap_or(0);
    put("name", crush.item_name(node.id).unwrap_or("?").into());
    put("type", crush.type_name(type_id).unwrap_or("?").into());
    put("type_id", type_id.into());
    if node.id >= 0 {
        put("crush_weight", ratio(node.weight));
        put("depth", node.depth.into());
    }
    if node.depth > 0 {
        put("pool_weights", json!({}));
    }
    if node.id < 0 {
        put("children", json!(node.children));
    }
    fields
}

/// `weightf_t`: `0` for zero, otherwise five decimals.
pub(super) fn weight_text(weight: f64) -> String {
    if weight < 0.000_001 { "0".into() } else { format!("{weight:.5}") }
}

/// Whether an entry of the blocklist is a range of addresses.
fn is_range(who: &str) -> bool {
    who.starts_with(BLOCKLIST_RANGE_PREFIX)
}

/// Whether the map belongs to a cluster; maps made by `osdmaptool` have no fsid.
fn is_clusters(map: &OsdMap) -> bool {
    !map.fsid.is_nil()
}

/// A node's weights in the weight sets: by pool, or `(compat)` for the set of all pools.
fn pool_weights(map: &OsdMap, node: &Node) -> Value {
    let bucket = node.parent.and_then(|parent| map.crush.bucket(parent));
    let Some((bucket, at)) = bucket.and_then(|bucket| Some((bucket, bucket.position(node.id)?))) else {
        return json!({});
    };
    let mut weights = Map::new();
    for (id, args) in map.crush.choose_args() {
        let Some(arg) = args.get(!bucket.id as usize).filter(|arg| !arg.weight_set.is_empty()) else {
            continue;
        };
        let name = match map.pools.get(&PoolId(id)) {
            _ if id == DEFAULT_CHOOSE_ARGS => "(compat)".to_owned(),
            Some(pool) => pool.name.clone(),
            None => id.to_string(),
        };
        let positions = arg.weight_set.iter().filter_map(|set| set.get(at)).map(|weight| ratio(*weight));
        weights.insert(name, positions.collect());
    }
    Value::Object(weights)
}

fn state_fields(info: &OsdInfo) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("exists".into(), 1.into());
    fields.insert("status".into(), status_text(info).into());
    fields.insert("reweight".into(), ratio(info.weight));
    fields.insert("primary_affinity".into(), ratio(info.primary_affinity));
    fields
}

/// `up`, `down` or `destroyed`.
fn status_text(info: &OsdInfo) -> &'static str {
    match info {
        info if info.up => "up",
        info if info.is_destroyed() => "destroyed",
        _ => "down",
    }
}

/// A 16.16 fixed-point number as JSON.
fn ratio(fixed: u32) -> Value {
    number(f64::from(fixed) / f64::from(WEIGHT_ONE))
}

/// A number as in Ceph's JSON: whole numbers without a decimal point.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < f64::from(u32::MAX) {
        (value as i64).into()
    } else {
        value.into()
    }
}

pub(super) fn flag_names(flags: u32) -> Vec<&'static str> {
    flag::NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect()
}

fn address(info: &OsdInfo) -> String {
    match info.addr {
        Some(addr) => format!("[v2:{addr}/{}]", info.boot_nonce),
        None => String::new(),
    }
}

fn addrvec(info: &OsdInfo) -> Value {
    let entries: Vec<Value> = info
        .addr
        .iter()
        .map(|a| json!({ "type": "v2", "addr": a.to_string(), "nonce": info.boot_nonce }))
        .collect();
    json!({ "addrvec": entries })
}

pub(super) fn osd_line(id: OsdId, info: &OsdInfo) -> String {
    let affinity = match info.primary_affinity {
        WEIGHT_ONE => String::new(),
        other => format!(" primary_affinity {}", float(f64::from(other) / f64::from(WEIGHT_ONE))),
    };
    let lost = if info.lost_at.0 > 0 { format!(" lost_at {}", info.lost_at) } else { String::new() };
    format!(
        "{id} {} {} weight {}{affinity} up_from {} up_thru {} down_at {}{lost} last_clean_interval [0,0) {addr} {addr} exists{}{}\n",
        if info.up { "up  " } else { "down" },
        if info.is_in() { "in " } else { "out" },
        float(f64::from(info.weight) / f64::from(WEIGHT_ONE)),
        info.up_from,
        info.up_thru,
        info.down_at,
        match info {
            info if info.up => ",up",
            info if info.is_destroyed() => ",destroyed",
            _ => "",
        },
        if info.uuid.is_nil() { String::new() } else { format!(" {}", info.uuid) },
        addr = address(info),
    )
}

pub(super) fn osd_json(id: OsdId, info: &OsdInfo) -> Value {
    let addr = info.addr.map_or_else(|| NO_ADDRESS.to_owned(), |a| format!("{a}/{}", info.boot_nonce));
    let mut state = vec![];
    state.extend(info.is_destroyed().then_some("destroyed"));
    state.push("exists");
    state.extend(info.up.then_some("up"));
    state.extend(info.full.then_some("full"));
    json!({
        "osd": id.0,
        "uuid": info.uuid.to_string(),
        "up": u8::from(info.up),
        "in": u8::from(info.is_in()),
        "weight": ratio(info.weight),
        "primary_affinity": ratio(info.primary_affinity),
        "last_clean_begin": 0,
        "last_clean_end": 0,
        "up_from": info.up_from.0,
        "up_thru": info.up_thru.0,
        "down_at": info.down_at.0,
        "lost_at": info.lost_at.0,
        "public_addrs": addrvec(info),
        "cluster_addrs": addrvec(info),
        "heartbeat_back_addrs": addrvec(info),
        "heartbeat_front_addrs": addrvec(info),
        "public_addr": addr,
        "cluster_addr": addr,
        "heartbeat_back_addr": addr,
        "heartbeat_front_addr": addr,
        "state": state,
    })
}

fn xinfo_json(id: OsdId, info: &OsdInfo) -> Value {
    json!({
        "osd": id.0,
        "down_stamp": "0.000000",
        "laggy_probability": 0,
        "laggy_interval": 0,
        "features": 0,
        "old_weight": ratio(info.weight_before_auto_out.unwrap_or(0)),
        "last_purged_snaps_scrub": "0.000000",
        "dead_epoch": 0,
    })
}
