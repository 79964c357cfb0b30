//! `osd …` commands that change the map.

use super::{CommandAnswer, CommandFailure, CommandOutcome, Context, unhandled};
use crate::logic::{LogLevel, MapState};
use crate::text::{float, stamp};
use nacre_crush::CrushMap;
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, OsdId};
use nacre_types::osdmap::{BLOCKLIST_RANGE_PREFIX, OsdInfo, WEIGHT_ONE, flag};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use uuid::Uuid;

/// Default duration of `osd blocklist add`, in seconds.
const BLOCKLIST_S: f64 = 3600.0;

impl MapState {
    pub(super) fn osd_command(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        match call.prefix() {
            "osd out" => self.osd_out(&call.texts("ids"), ctx),
            "osd in" => self.osd_in(&call.texts("ids"), ctx),
            "osd down" => self.osd_down(&call.texts("ids"), ctx),
            "osd reweight" => self.osd_reweight(call, ctx),
            "osd primary-affinity" => self.osd_primary_affinity(call),
            "osd new" => self.osd_new(call, ctx),
            "osd rm" => self.osd_rm(&call.texts("ids")),
            "osd lost" => self.osd_lost(call),
            "osd force-create-pg" => self.force_create_pg(call, ctx),
            "osd purge" => self.osd_purge(call),
            "osd set" => self.osd_set(call.required_text("key"), true),
            "osd unset" => self.osd_set(call.required_text("key"), false),
            "osd pause" => self.osd_set("pause", true),
            "osd unpause" => self.osd_set("pause", false),
            "osd set-full-ratio" | "osd set-backfillfull-ratio" | "osd set-nearfull-ratio" => {
                self.osd_set_ratio(call, ctx)
            }
            "osd blocklist" | "osd blacklist" => self.osd_blocklist(call, ctx),
            "osd blocklist clear" | "osd blacklist clear" => {
                let all: Vec<String> = self.working.blocklist.keys().cloned().collect();
                self.working.blocklist.clear();
                self.changes.blocklist.extend(all);
                Ok(CommandAnswer::status(" removed all blocklist entries"))
            }
            "osd getmaxosd" | "osd stat" | "osd dump" | "osd tree" | "osd ls" | "osd getmap" | "osd find"
            | "osd metadata" | "osd map" | "osd blocklist ls" | "osd blacklist ls" | "osd perf" => {
                self.osd_show(call, ctx)
            }
            "osd ok-to-stop" | "osd safe-to-destroy" => self.osd_safety(call),
            "osd df" => self.osd_df(call, ctx),
            _ => unhandled(call),
        }
    }

    /// The OSDs that `words` name; `all` and `any` mean those that `matching` selects.
    fn osds_named(
        &self,
        words: &[&str],
        matching: impl Fn(&OsdInfo) -> bool,
    ) -> Result<Vec<OsdId>, CommandFailure> {
        let mut osds = Vec::new();
        for word in words {
            if matches!(*word, "all" | "any" | "*") {
                osds.extend(self.working.osds.iter().filter(|(_, info)| matching(info)).map(|(id, _)| *id));
                continue;
            }
            let osd = word.parse().map_err(|_| {
                CommandFailure::invalid(format!(
                    "Expected option value to be integer, got '{word}'invalid osd id-1"
                ))
            })?;
            osds.push(osd);
        }
        let mut seen = BTreeSet::new();
        osds.retain(|osd| seen.insert(*osd));
        Ok(osds)
    }

    fn osd_out(&mut self, words: &[&str], ctx: &Context) -> CommandOutcome {
        let mut status = String::new();
        for osd in self.osds_named(words, OsdInfo::is_in)? {
            let was_in = self.working.osds.get(&osd).is_some_and(OsdInfo::is_in);
            // After an operator's `out`, an OSD does not come in by itself, even if it was marked out automatically before.
            if !self.set_reweight(ctx.now, osd, 0) {
                status.push_str(&format!("{osd} does not exist. "));
            } else if was_in {
                status.push_str(&format!("marked out {osd}. "));
            } else {
                status.push_str(&format!("{osd} is already out. "));
            }
        }
        Ok(CommandAnswer::status(status))
    }

    fn osd_in(&mut self, words: &[&str], ctx: &Context) -> CommandOutcome {
        let mut status = String::new();
        for osd in self.osds_named(words, |info| !info.is_in())? {
            let Some(info) = self.working.osds.get(&osd) else {
                status.push_str(&format!("{osd} does not exist. "));
                continue;
            };
            if info.is_in() {
                status.push_str(&format!("{osd} is already in. "));
                continue;
            }
            let weight = info.weight_before_auto_out.unwrap_or(WEIGHT_ONE);
            self.set_reweight(ctx.now, osd, weight);
            status.push_str(&format!("marked in {osd}. "));
        }
        Ok(CommandAnswer::status(status))
    }

    fn osd_down(&mut self, words: &[&str], ctx: &Context) -> CommandOutcome {
        let mut status = String::new();
        for osd in self.osds_named(words, |info| info.up)? {
            match self.working.osds.get(&osd) {
                None => status.push_str(&format!("{osd} does not exist. ")),
                Some(info) if !info.up => status.push_str(&format!("{osd} is already down. ")),
                Some(_) => {
                    self.mark_down(ctx.now, osd);
                    self.log.append(
                        ctx.now,
                        "mon",
                        LogLevel::Info,
                        format!("{osd} marked down by {}", ctx.entity),
                    );
                    status.push_str(&format!("marked down {osd}. "));
                }
            }
        }
        Ok(CommandAnswer::status(status))
    }

    /// The OSD that a command names by `id`.
    pub(super) fn existing_osd(&self, call: &Call<'_>) -> Result<OsdId, CommandFailure> {
        self.existing_osd_of(call, "id")
    }

    /// The OSD that a command names by the parameter `name`.
    pub(super) fn existing_osd_of(&self, call: &Call<'_>, name: &str) -> Result<OsdId, CommandFailure> {
        let osd = call.osd(name).ok_or_else(|| CommandFailure::invalid("invalid osd id"))?;
        let exists = self.working.osds.contains_key(&osd);
        exists.then_some(osd).ok_or_else(|| CommandFailure::not_found(format!("{osd} does not exist")))
    }

    fn change_osd(&mut self, osd: OsdId, change: impl FnOnce(&mut OsdInfo)) {
        if let Some(info) = self.working.osds.get_mut(&osd) {
            let before = info.clone();
            change(info);
            if *info != before {
                self.changes.osds.insert(osd);
            }
        }
    }

    fn osd_reweight(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let osd = self.existing_osd(call)?;
        let weight = call.float("weight").unwrap_or(1.0);
        let scaled = (weight * f64::from(WEIGHT_ONE)) as u32;
        self.set_reweight(ctx.now, osd, scaled);
        Ok(CommandAnswer::status(format!("reweighted {osd} to {} ({scaled:x})", float(weight))))
    }

    fn osd_primary_affinity(&mut self, call: &Call<'_>) -> CommandOutcome {
        let osd = self.existing_osd(call)?;
        let affinity = call.float("weight").unwrap_or(1.0);
        let scaled = (affinity * f64::from(WEIGHT_ONE)) as u32;
        self.change_osd(osd, |info| info.primary_affinity = scaled);
        Ok(CommandAnswer::status(format!("set {osd} primary-affinity to {} ({scaled})", float(affinity))))
    }

    fn osd_new(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let uuid: Uuid =
            call.required_text("uuid").parse().map_err(|_| CommandFailure::invalid("invalid UUID"))?;
        let known = self.working.osds.iter().find(|(_, info)| info.uuid == uuid).map(|(id, _)| *id);
        let wanted = call.osd("id");
        let id = match (known, wanted) {
            (Some(known), Some(wanted)) if known != wanted => {
                return Err(CommandFailure::new(
                    Errno::EEXIST,
                    format!("uuid {uuid} already in use for different id {}", known.0),
                ));
            }
            (Some(known), _) => known,
            (None, Some(wanted)) if wanted.0 >= self.tuning.max_osd => {
                return Err(CommandFailure::new(Errno::ERANGE, format!("id {} is too high", wanted.0)));
            }
            (None, Some(wanted))
                if self.working.osds.get(&wanted).is_some_and(|info| !info.is_destroyed()) =>
            {
                return Err(CommandFailure::new(
                    Errno::EEXIST,
                    format!("id {} already in use and does not match uuid {uuid}", wanted.0),
                ));
            }
            (None, Some(wanted)) => wanted,
            (None, None) => {
                let free = (0..self.tuning.max_osd).find(|id| !self.working.osds.contains_key(&OsdId(*id)));
                OsdId(free.ok_or_else(|| CommandFailure::new(Errno::ENOSPC, "no osd id is free"))?)
            }
        };
        if known.is_none() {
            // A destroyed OSD keeps its weight for the replacement disk.
            self.working.osds.entry(id).or_insert_with(OsdInfo::never_up).uuid = uuid;
            self.changes.osds.insert(id);
            if self.working.max_osd <= id.0 {
                self.working.max_osd = id.0 + 1;
                self.changes.max_osd = true;
            }
        }
        Ok(CommandAnswer::either(ctx, || json!({ "osdid": id.0 }), || format!("{}\n", id.0)))
    }

    fn osd_rm(&mut self, words: &[&str]) -> CommandOutcome {
        let osds = self.osds_named(words, |_| true)?;
        if let Some(up) = osds.iter().find(|osd| self.working.is_up(**osd)) {
            return Err(CommandFailure::new(
                Errno::EBUSY,
                format!("{up} is still up; must be down before removal. "),
            ));
        }
        let mut removed = Vec::new();
        let mut status = String::new();
        for osd in osds {
            if self.working.osds.remove(&osd).is_none() {
                status.push_str(&format!("{osd} does not exist. "));
                continue;
            }
            self.forget_osd(osd);
            removed.push(osd.to_string());
        }
        if !removed.is_empty() {
            status.push_str(&format!("removed {}", removed.join(", ")));
        }
        Ok(CommandAnswer::status(status))
    }

    fn forget_osd(&mut self, osd: OsdId) {
        self.changes.osds.insert(osd);
        self.down_since.remove(&osd);
        self.last_beacon.remove(&osd);
        self.stats.osds.remove(&osd);
    }

    fn osd_lost(&mut self, call: &Call<'_>) -> CommandOutcome {
        if !call.flag("yes_i_really_mean_it") {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "are you SURE?  this might mean real, permanent data loss.  pass --yes-i-really-mean-it if you really do.",
            ));
        }
        if let Some(osd) = call.osd("id").filter(|osd| osd.0 < self.tuning.max_osd)
            && self.working.generation > 1
        {
            // OSDs may wait for one that joined in the history that a MapStore restore lost (R7).
            self.working.osds.entry(osd).or_insert_with(OsdInfo::never_up);
            if self.working.max_osd <= osd.0 {
                self.working.max_osd = osd.0 + 1;
                self.changes.max_osd = true;
            }
        }
        let osd = self.existing_osd(call)?;
        if self.working.is_up(osd) {
            return Err(CommandFailure::new(Errno::EBUSY, format!("{osd} is not down")));
        }
        let epoch = self.next_epoch();
        self.change_osd(osd, |info| info.lost_at = epoch);
        Ok(CommandAnswer::status(format!("marked osd lost in epoch {epoch}")))
    }

    fn osd_purge(&mut self, call: &Call<'_>) -> CommandOutcome {
        let Some(osd) = call.osd("id") else { return Err(CommandFailure::invalid("invalid osd id")) };
        if !call.flag("force") && !call.flag("yes_i_really_mean_it") {
            return Err(CommandFailure::new(
                Errno::EPERM,
                "Are you SURE?  Did you verify with 'ceph osd safe-to-destroy'?  This will PERMANENTLY DESTROY all data \
                 on that disk.  Pass --yes-i-really-mean-it if you really do.",
            ));
        }
        if self.working.is_up(osd) {
            return Err(CommandFailure::new(Errno::EBUSY, format!("{osd} is not `down`.")));
        }
        let name = osd.to_string();
        if self.working.crush.item_name(osd.0 as i32).is_some() {
            let mut crush = (*self.working.crush).clone();
            crush.remove_item(&name)?;
            self.set_crush(crush);
        }
        if self.working.osds.remove(&osd).is_some() {
            self.forget_osd(osd);
        }
        let entity = nacre_types::ids::EntityName::osd(osd);
        if self.auth.remove(&entity) {
            self.keys.insert(crate::keys::auth(&entity), None);
        }
        Ok(CommandAnswer::status(format!("purged {name}")))
    }

    /// Installs a new CRUSH map and increments its version.
    pub fn set_crush(&mut self, crush: CrushMap) {
        self.working.crush = Arc::new(crush);
        self.changes.crush = true;
        self.crush_version += 1;
        self.keys
            .insert(crate::keys::CRUSH_VERSION.to_vec(), Some(self.crush_version.to_be_bytes().to_vec()));
    }

    fn osd_set(&mut self, key: &str, on: bool) -> CommandOutcome {
        let (bits, name) = match key {
            "pause" => (flag::PAUSERD | flag::PAUSEWR, "pauserd,pausewr"),
            "full" => return Err(CommandFailure::invalid("unrecognized flag 'full'")),
            _ => {
                let found = flag::NAMES.iter().find(|(_, name)| *name == key);
                *found.ok_or_else(|| CommandFailure::invalid(format!("unrecognized flag '{key}'")))?
            }
        };
        if on {
            self.set_flags(bits);
        } else {
            self.clear_flags(bits);
        }
        Ok(CommandAnswer::status(format!("{name} is {}", if on { "set" } else { "unset" })))
    }

    fn osd_set_ratio(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let ratio = call.float("ratio").unwrap_or(0.0);
        let map = &mut self.working;
        match call.prefix() {
            "osd set-full-ratio" => map.full_ratio = ratio as f32,
            "osd set-backfillfull-ratio" => map.backfillfull_ratio = ratio as f32,
            _ => map.nearfull_ratio = ratio as f32,
        }
        self.changes.ratios = true;
        self.update_fullness(ctx.now);
        Ok(CommandAnswer::status(format!("{} {}", call.prefix(), float(ratio))))
    }

    fn osd_blocklist(&mut self, call: &Call<'_>, ctx: &Context) -> CommandOutcome {
        let addr = call.required_text("addr");
        let who = match call.text("range") {
            Some(_) => blocklisted_range(addr)?,
            None if can_be_blocklisted(addr) => addr.to_owned(),
            None => return Err(CommandFailure::invalid(format!("unable to parse address {addr}"))),
        };
        let operation = if call.prefix() == "osd blacklist" { "blacklistop" } else { "blocklistop" };
        if call.required_text(operation) == "rm" {
            if self.working.blocklist.remove(&who).is_none() {
                return Ok(CommandAnswer::status(format!("{who} isn't blocklisted")));
            }
            let text = format!("un-blocklisting {who}");
            self.changes.blocklist.insert(who);
            return Ok(CommandAnswer::status(text));
        }
        let seconds = call.float("expire").filter(|s| *s > 0.0).unwrap_or(BLOCKLIST_S);
        let until_ns = ctx.now.wall_ns.saturating_add((seconds * 1e9) as u64);
        let text = format!("blocklisting {who} until {} ({} sec)", stamp(until_ns), float(seconds));
        self.add_to_blocklist(ctx.now, who, until_ns);
        Ok(CommandAnswer::status(text))
    }

    /// Refuses epochs other than the durable map's: older maps are not kept in memory.
    pub(super) fn require_current_epoch(&self, call: &Call<'_>) -> Result<(), CommandFailure> {
        match call.int("epoch") {
            Some(epoch)
                if Epoch(u32::try_from(epoch).unwrap_or(u32::MAX)) != self.committed.epoch && epoch != 0 =>
            {
                Err(CommandFailure::not_found(format!("there is no map for epoch {epoch}")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether `who` can identify a client: by session (`client.4123`), or by address, with or without port and nonce.
fn can_be_blocklisted(who: &str) -> bool {
    if let Some(session) = who.strip_prefix("client.") {
        return session.len() <= 256 && !session.is_empty() && !session.chars().any(char::is_whitespace);
    }
    let (address, nonce) = who.split_once('/').unwrap_or((who, "0"));
    let is_address = address.parse::<IpAddr>().is_ok() || address.parse::<SocketAddr>().is_ok();
    is_address && !nonce.is_empty() && nonce.len() <= 20 && nonce.bytes().all(|byte| byte.is_ascii_digit())
}

/// The entry of the blocklist for a range of addresses (`10.1.0.0/16`), as Ceph writes it: `cidr:10.1.0.0:0/16`.
fn blocklisted_range(text: &str) -> Result<String, CommandFailure> {
    let no_range = || {
        CommandFailure::invalid(format!(
            "You specified a range command, but {text} does not parse as a CIDR range"
        ))
    };
    let (first, bits) = text.split_once('/').ok_or_else(no_range)?;
    let first: IpAddr = first.parse().map_err(|_| no_range())?;
    let first = first.to_canonical();
    // A range of all addresses is refused, as in Ceph.
    let bits = bits.parse::<u32>().ok().filter(|bits| *bits > 0).ok_or_else(no_range)?;
    let most = if first.is_ipv4() { 32 } else { 128 };
    if bits > most {
        return Err(CommandFailure::invalid("Too many bits in range for that protocol!"));
    }
    Ok(format!("{BLOCKLIST_RANGE_PREFIX}{}/{bits}", SocketAddr::new(first, 0)))
}
