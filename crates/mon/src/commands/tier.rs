//! `osd tier …`: makes pools caches of others and undoes that, with Ceph's texts, checks and codes.
//!
//! In Ceph an operator can hide data and mix old data with new. Here commands that would do so fail with EBUSY, and their texts
//! say what to do first. Checks that Ceph does not make:
//! - An overlay is removed only when every PG of the cache has reported that nothing is dirty, in a mode in which nothing
//!   becomes dirty. Otherwise clients would read the base pool without the writes that only the cache has.
//! - Only `proxy` may precede a mode that does not serve dirty objects, with the same reports: in `readproxy`, objects can
//!   become dirty after the reports.
//! - Copies that may be older than the base pool are never served as current: the overlay stays in mode `readonly` until it is
//!   removed, and a cache becomes an overlay again only when it is empty.
//! - Modes that keep writes on MemStores require `--yes-i-really-mean-it`.

use super::{CommandAnswer, CommandFailure, CommandOutcome, unhandled};
use crate::logic::{MapState, Tuning, UnverifiedReason};
use crate::text::{count, plural};
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, OsdId, PoolId};
use nacre_types::pool::{CacheMode, Pool, PoolKind, Tiering, flag};

impl MapState {
    pub(super) fn tier_command(&mut self, call: &Call<'_>) -> CommandOutcome {
        let base = self.pool_named(call.required_text("pool"))?;
        match call.prefix() {
            "osd tier add" => self.tier_add(base, call),
            "osd tier rm" | "osd tier remove" => self.tier_remove(base, call),
            "osd tier cache-mode" => self.tier_cache_mode(base, call),
            "osd tier set-overlay" => self.tier_set_overlay(base, call),
            "osd tier rm-overlay" | "osd tier remove-overlay" => self.tier_remove_overlay(base),
            "osd tier add-cache" => self.tier_add_cache(base, call),
            _ => unhandled(call),
        }
    }

    fn tier_add(&mut self, base: PoolId, call: &Call<'_>) -> CommandOutcome {
        let tier = self.pool_named(call.required_text("tierpool"))?;
        if let Some(done) = self.may_become_tier(base, tier)? {
            return Ok(done);
        }
        if !call.flag("force_nonempty") {
            self.check_empty(tier, "; --force-nonempty to force")?;
        }
        self.check_kinds(base, tier)?;
        self.change_pool(base, |pool| pool.tiering.tiers.push(tier));
        self.change_pool(tier, |pool| become_tier(pool, base));
        Ok(CommandAnswer::status(format!(
            "pool '{}' is now (or already was) a tier of '{}'",
            self.name(tier),
            self.name(base)
        )))
    }

    fn tier_remove(&mut self, base: PoolId, call: &Call<'_>) -> CommandOutcome {
        let tier = self.pool_named(call.required_text("tierpool"))?;
        let (base_name, tier_name) = (self.name(base).to_owned(), self.name(tier).to_owned());
        let done = format!("pool '{tier_name}' is now (or already was) not a tier of '{base_name}'");
        let tiering = self.tiering(base);
        if !tiering.tiers.contains(&tier) {
            return Ok(CommandAnswer::status(done));
        }
        if tiering.read_tier == Some(tier) || tiering.write_tier == Some(tier) {
            let text = format!(
                "tier pool '{tier_name}' is the overlay for '{base_name}'; please remove-overlay first"
            );
            return Err(CommandFailure::new(Errno::EBUSY, text));
        }
        let next = self.next_epoch();
        let left = leave_tier(self.tiering(tier), &self.tuning);
        self.change_pool(base, |pool| {
            pool.tiering.tiers.retain(|id| *id != tier);
            pool.tiering.overlay_epoch = next;
        });
        self.change_pool(tier, |pool| {
            let mode_epoch = match pool.tiering.cache_mode {
                CacheMode::None => pool.tiering.mode_epoch,
                _ => next,
            };
            pool.tiering = Tiering { overlay_epoch: next, mode_epoch, ..left };
            pool.flags &= !(flag::CACHE_WRITE_THROUGH | flag::CACHE_DIRTY_LOG);
        });
        Ok(CommandAnswer::status(done))
    }

    fn tier_cache_mode(&mut self, tier: PoolId, call: &Call<'_>) -> CommandOutcome {
        let (name, mode) = (call.required_text("pool"), call.required_text("mode"));
        let Some(base) = self.tiering(tier).tier_of else {
            return Err(CommandFailure::invalid(format!("pool '{name}' is not a tier")));
        };
        let mode = CacheMode::parse(mode)
            .ok_or_else(|| CommandFailure::invalid(format!("'{mode}' is not a valid cache mode")))?;
        let sure = call.flag("yes_i_really_mean_it");
        match mode {
            CacheMode::Forward | CacheMode::Readforward => {
                let text = format!("'{}' is no longer a supported cache mode", mode.as_str());
                return Err(CommandFailure::new(Errno::EPERM, text));
            }
            CacheMode::Readonly if !sure => {
                let text = format!(
                    "'{}' is not a well-supported cache mode and may corrupt your data.  pass --yes-i-really-mean-it to \
                     force.",
                    mode.as_str()
                );
                return Err(CommandFailure::new(Errno::EPERM, text));
            }
            _ => {}
        }
        let mut done = format!("set cache-mode for pool '{name}' to {}", mode.as_str());
        if self.tiering(tier).cache_mode == mode {
            return Ok(CommandAnswer::status(done));
        }
        self.check_mode_change(base, tier, mode)?;
        if mode.allows_dirty() && !sure {
            self.check_volatile(tier, mode, "pass --yes-i-really-mean-it to accept that.")?;
        }
        let next = self.next_epoch();
        self.change_pool(tier, |pool| {
            pool.tiering.cache_mode = mode;
            pool.tiering.mode_epoch = next;
            pool.flags |= flag::INCOMPLETE_CLONES;
        });
        let of_base = self.tiering(base);
        let is_overlay = of_base.read_tier == Some(tier) || of_base.write_tier == Some(tier);
        if mode == CacheMode::None && is_overlay {
            done += " (WARNING: pool is still configured as read or write tier)";
        }
        Ok(CommandAnswer::status(done))
    }

    fn tier_set_overlay(&mut self, base: PoolId, call: &Call<'_>) -> CommandOutcome {
        let overlay = self.pool_named(call.required_text("overlaypool"))?;
        let (base_name, overlay_name) = (self.name(base).to_owned(), self.name(overlay).to_owned());
        let tiering = self.tiering(base);
        if !tiering.tiers.contains(&overlay) {
            let text = format!("tier pool '{overlay_name}' is not a tier of '{base_name}'");
            return Err(CommandFailure::invalid(text));
        }
        let mut done = format!("overlay for '{base_name}' is now (or already was) '{overlay_name}'");
        match tiering.read_tier {
            Some(current) if current == overlay => return Ok(CommandAnswer::status(done)),
            Some(current) => {
                let current = self.name(current);
                return Err(CommandFailure::invalid(format!(
                    "pool '{base_name}' has overlay '{current}'; please remove-overlay first"
                )));
            }
            None => {}
        }
        self.check_no_old_copies(base, overlay)?;
        self.put_overlay(base, overlay);
        if self.tiering(overlay).cache_mode == CacheMode::None {
            done += " (WARNING: overlay pool cache_mode is still NONE)";
        }
        Ok(CommandAnswer::status(done))
    }

    fn tier_remove_overlay(&mut self, base: PoolId) -> CommandOutcome {
        let base_name = self.name(base).to_owned();
        let done = format!("there is now (or already was) no overlay for '{base_name}'");
        let tiering = self.tiering(base);
        let overlays = [tiering.read_tier, tiering.write_tier];
        let Some(overlay) = overlays.into_iter().flatten().next() else {
            return Ok(CommandAnswer::status(done));
        };
        self.check_flushed(overlay, &format!("removing the overlay of '{base_name}' would hide them"))?;
        let next = self.next_epoch();
        self.change_pool(base, |pool| {
            (pool.tiering.read_tier, pool.tiering.write_tier) = (None, None);
            pool.tiering.overlay_epoch = next;
        });
        self.change_pool(overlay, |pool| pool.tiering.overlay_epoch = next);
        Ok(CommandAnswer::status(done))
    }

    fn tier_add_cache(&mut self, base: PoolId, call: &Call<'_>) -> CommandOutcome {
        let tier = self.pool_named(call.required_text("tierpool"))?;
        if let Some(done) = self.may_become_tier(base, tier)? {
            return Ok(done);
        }
        self.check_empty(tier, "")?;
        let defaults = self.tuning.tier_defaults.clone();
        let mode = defaults.cache_mode;
        self.check_kinds(base, tier)?;
        if let Some(current) = self.tiering(base).read_tier {
            // Ceph replaces the overlay, which hides the dirty objects in it.
            return Err(CommandFailure::invalid(format!(
                "pool '{}' has overlay '{}'; please remove-overlay first",
                self.name(base),
                self.name(current)
            )));
        }
        self.check_no_old_copies(base, tier)?;
        if mode.allows_dirty() {
            let how = "use osd tier add, osd tier cache-mode with --yes-i-really-mean-it and osd tier set-overlay to accept \
                       that.";
            self.check_volatile(tier, mode, how)?;
        }
        let size = call.int("size").and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        let next = self.next_epoch();
        self.change_pool(base, |pool| pool.tiering.tiers.push(tier));
        self.change_pool(tier, |pool| {
            become_tier(pool, base);
            let t = &mut pool.tiering;
            (t.cache_mode, t.mode_epoch) = (mode, next);
            t.hit_set = defaults.hit_set;
            t.hit_set_count = defaults.hit_set_count;
            t.hit_set_period_s = defaults.hit_set_period_s;
            t.min_read_recency_for_promote = defaults.min_read_recency_for_promote;
            t.min_write_recency_for_promote = defaults.min_write_recency_for_promote;
            t.hit_set_grade_decay_rate = defaults.hit_set_grade_decay_rate;
            t.hit_set_search_last_n = defaults.hit_set_search_last_n;
            t.target_max_bytes = size;
        });
        self.put_overlay(base, tier);
        Ok(CommandAnswer::status(format!(
            "pool '{}' is now (or already was) a cache tier of '{}'",
            self.name(tier),
            self.name(base)
        )))
    }

    fn put_overlay(&mut self, base: PoolId, overlay: PoolId) {
        let next = self.next_epoch();
        self.change_pool(base, |pool| {
            (pool.tiering.read_tier, pool.tiering.write_tier) = (Some(overlay), Some(overlay));
            pool.tiering.overlay_epoch = next;
        });
        self.change_pool(overlay, |pool| pool.tiering.overlay_epoch = next);
    }
}

/// Checks.
impl MapState {
    fn name(&self, pool: PoolId) -> &str {
        self.working.pools.get(&pool).map_or("?", |pool| pool.name.as_str())
    }

    fn tiering(&self, pool: PoolId) -> &Tiering {
        &self.working.pools[&pool].tiering
    }

    /// Whether `tier` may become a tier of `base` (`_check_become_tier`); returns the answer if it is one already.
    fn may_become_tier(&self, base: PoolId, tier: PoolId) -> Result<Option<CommandAnswer>, CommandFailure> {
        let (of_base, of_tier) = (self.tiering(base), self.tiering(tier));
        let (base_name, tier_name) = (self.name(base), self.name(tier));
        if of_base.tiers.contains(&tier) {
            let text = format!("pool '{tier_name}' is now (or already was) a tier of '{base_name}'");
            return Ok(Some(CommandAnswer::status(text)));
        }
        if let Some(over) = of_base.tier_of {
            return Err(CommandFailure::invalid(format!(
                "pool '{base_name}' is already a tier of '{}', multiple tiers are not yet supported.",
                self.name(over)
            )));
        }
        if !of_tier.tiers.is_empty() {
            let names = of_tier.tiers.iter().map(|id| format!("'{}',", self.name(*id)));
            return Err(CommandFailure::invalid(format!(
                "pool '{tier_name}' has following tier(s) already:{} multiple tiers are not yet supported.",
                names.collect::<String>()
            )));
        }
        if let Some(over) = of_tier.tier_of {
            let text = format!("tier pool '{tier_name}' is already a tier of '{}'", self.name(over));
            return Err(CommandFailure::invalid(text));
        }
        if base == tier {
            return Err(CommandFailure::invalid(format!("pool '{base_name}' can't be a tier of itself")));
        }
        Ok(None)
    }

    /// Refuses pools with objects, and pools whose objects are not known yet.
    fn check_empty(&self, tier: PoolId, hint: &str) -> Result<(), CommandFailure> {
        let name = self.name(tier);
        match self.all_pgs_report_zero(tier, Epoch(0), |stats| stats.sums.objects) {
            Err(UnverifiedReason::Objects { .. }) => {
                let text = format!("tier pool '{name}' is not empty{hint}");
                Err(CommandFailure::new(Errno::ENOTEMPTY, text))
            }
            // A pool whose creation this map authority executed was empty then; its PGs report within seconds.
            Err(UnverifiedReason::Unreported { pgs, first })
                if self.working.pools[&tier].created_ns < self.started_ns =>
            {
                Err(CommandFailure::new(
                    Errno::EBUSY,
                    format!(
                        "{pgs} {} of tier pool '{name}' ({first}{}) have not reported their objects yet; try again when they \
                         have{hint}",
                        plural(pgs, "pg"),
                        if pgs > 1 { ", …" } else { "" }
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Refuses kinds of pools that can't be tiers.
    fn check_kinds(&self, base: PoolId, tier: PoolId) -> Result<(), CommandFailure> {
        let (base, tier): (&Pool, &Pool) = (&self.working.pools[&base], &self.working.pools[&tier]);
        let unsupported = |text: String| Err(CommandFailure::new(Errno::ENOTSUP, text));
        if tier.kind == PoolKind::Erasure {
            return unsupported(format!("tier pool '{}' is an ec pool, which cannot be a tier", tier.name));
        }
        if tier.has_snapshots() {
            return Err(CommandFailure::new(
                Errno::ENOTEMPTY,
                format!(
                    "tier pool '{}' has snapshot state; it cannot be added as a tier without breaking the pool",
                    tier.name
                ),
            ));
        }
        if base.kind == PoolKind::Erasure {
            return unsupported(format!(
                "pool '{}' is an ec pool; this release puts cache tiers before replicated pools only",
                base.name
            ));
        }
        if base.has_snapshots() {
            return unsupported(format!(
                "pool '{}' has snapshot state; this release puts cache tiers before pools without snapshots only",
                base.name
            ));
        }
        Ok(())
    }

    /// Checks a mode change by Ceph's table, with checks that Ceph lacks.
    fn check_mode_change(&self, base: PoolId, tier: PoolId, to: CacheMode) -> Result<(), CommandFailure> {
        use CacheMode::{Forward, None, Proxy, Readforward, Readonly, Readproxy, Writeback};
        let from = self.tiering(tier).cache_mode;
        let name = self.name(tier);
        let busy = |text: String| Err(CommandFailure::new(Errno::EBUSY, text));
        match (from, to) {
            (None, _) | (Proxy | Readforward | Readproxy | Forward, Writeback | Proxy | Readproxy) => Ok(()),
            (Writeback, Proxy | Readproxy) => Ok(()),
            (Writeback, _) => Err(CommandFailure::invalid(format!(
                "unable to set cache-mode '{}' on a '{}' pool; only 'proxy','readproxy' allowed.",
                to.as_str(),
                from.as_str()
            ))),
            (Readproxy | Readforward, _) => match self.pool_sums(tier).dirty {
                0 => busy(format!(
                    "unable to set cache-mode '{}' on pool '{name}': in mode {} objects become dirty at any time; set mode \
                     proxy first",
                    to.as_str(),
                    from.as_str()
                )),
                _ => busy(dirty_text(name, to)),
            },
            (Proxy | Forward, _) => {
                match self.check_flushed(tier, &format!("mode {} would not serve them", to.as_str())) {
                    Err(_) if self.pool_sums(tier).dirty > 0 => busy(dirty_text(name, to)),
                    other => other,
                }
            }
            (Readonly, _) => {
                let of_base = self.tiering(base);
                if of_base.read_tier == Some(tier) || of_base.write_tier == Some(tier) {
                    return busy(format!(
                        "unable to set cache-mode '{}' on pool '{name}': the copies that mode readonly left in it may be older \
                         than the objects of '{}'; remove-overlay first",
                        to.as_str(),
                        self.name(base)
                    ));
                }
                Ok(())
            }
        }
    }

    /// Whether nothing in the cache has to be flushed, now or later. `harm` describes what would happen to dirty objects.
    fn check_flushed(&self, cache: PoolId, harm: &str) -> Result<(), CommandFailure> {
        let (name, tiering) = (self.name(cache), self.tiering(cache));
        let mode = tiering.cache_mode;
        let busy = |text: String| Err(CommandFailure::new(Errno::EBUSY, text));
        if mode.allows_dirty() {
            return busy(format!(
                "cache pool '{name}' is in mode {}, which leaves objects dirty: {harm}; set mode proxy and flush the pool \
                 first (rados -p {name} cache-flush-evict-all)",
                mode.as_str()
            ));
        }
        let since = tiering.mode_epoch.max(tiering.overlay_epoch);
        match self.all_pgs_report_zero(cache, since, |stats| stats.sums.dirty) {
            Ok(()) => Ok(()),
            Err(UnverifiedReason::Objects { objects, first }) => busy(format!(
                "cache pool '{name}' has {} dirty {} (pg {first} has some): {harm}; flush the pool first (rados -p {name} \
                 cache-flush-evict-all)",
                count(objects),
                plural(usize::try_from(objects).unwrap_or(usize::MAX), "object"),
            )),
            Err(UnverifiedReason::Unreported { pgs, first }) => busy(format!(
                "{pgs} {} of cache pool '{name}' (such as {first}) have not reported since epoch {since} whether objects are \
                 dirty; try again when they have",
                plural(pgs, "pg"),
            )),
        }
    }

    /// Refuses a cache that may have copies from before its overlay was removed: the base pool has changed since.
    fn check_no_old_copies(&self, base: PoolId, cache: PoolId) -> Result<(), CommandFailure> {
        let since = self.tiering(cache).overlay_epoch;
        if since == Epoch(0) {
            return Ok(());
        }
        let (name, base) = (self.name(cache), self.name(base));
        let busy = |text: String| Err(CommandFailure::new(Errno::EBUSY, text));
        match self.all_pgs_report_zero(cache, since, |stats| stats.sums.objects) {
            Ok(()) => Ok(()),
            Err(UnverifiedReason::Objects { objects, .. }) => busy(format!(
                "cache pool '{name}' has {} {} from before its overlay was removed, which may be older than those of '{base}'; \
                 evict them first (rados -p {name} cache-flush-evict-all)",
                count(objects),
                plural(usize::try_from(objects).unwrap_or(usize::MAX), "object"),
            )),
            Err(UnverifiedReason::Unreported { pgs, first }) => busy(format!(
                "{pgs} {} of cache pool '{name}' (such as {first}) have not reported since epoch {since}, when its overlay was \
                 removed, that they are empty; try again when they have",
                plural(pgs, "pg"),
            )),
        }
    }

    /// Refuses to keep writes on MemStores.
    fn check_volatile(&self, cache: PoolId, mode: CacheMode, how: &str) -> Result<(), CommandFailure> {
        let pool = &self.working.pools[&cache];
        let osds = self.memstore_osds(pool.crush_rule);
        if osds.is_empty() || pool.has_flag(flag::CACHE_WRITE_THROUGH) {
            return Ok(());
        }
        let base = pool.tiering.tier_of.map(|base| self.name(base));
        Err(CommandFailure::new(Errno::EPERM, memstore_refusal(&pool.name, base, mode, &osds, how)))
    }
}

/// The reason for refusing modes that keep writes on MemStores.
pub(super) fn memstore_refusal(
    cache: &str,
    base: Option<&str>,
    mode: CacheMode,
    osds: &[OsdId],
    how: &str,
) -> String {
    const SHOWN: usize = 4;
    let names: Vec<String> = osds.iter().take(SHOWN).map(OsdId::to_string).collect();
    let more = if osds.len() > SHOWN { ", …" } else { "" };
    let base = base.map(|base| format!(" to '{base}'")).unwrap_or_default();
    format!(
        "pool '{cache}' is kept in memory ({}{more}): in mode {} a power cut loses all writes that are not flushed{base} yet.  \
         {how}",
        names.join(", "),
        mode.as_str()
    )
}

fn dirty_text(name: &str, to: CacheMode) -> String {
    format!("unable to set cache-mode '{}' on pool '{name}': dirty objects found", to.as_str())
}

/// Makes a pool a tier. As in Ceph, it has no applications of its own from then on.
fn become_tier(pool: &mut Pool, base: PoolId) {
    pool.tiering.tier_of = Some(base);
    pool.applications.clear();
}

/// The parameters that a pool keeps when it stops being a tier (`clear_tier`). Ceph leaves ratios of 0, with which a cache that
/// is added again evicts everything; here they are reset to the defaults.
fn leave_tier(tiering: &Tiering, tuning: &Tuning) -> Tiering {
    Tiering {
        tiers: tiering.tiers.clone(),
        min_flush_age_s: tiering.min_flush_age_s,
        min_evict_age_s: tiering.min_evict_age_s,
        min_read_recency_for_promote: tiering.min_read_recency_for_promote,
        min_write_recency_for_promote: tiering.min_write_recency_for_promote,
        use_gmt_hitset: tiering.use_gmt_hitset,
        dirty_ratio_micro: tuning.pool_default_dirty_ratio_micro,
        dirty_high_ratio_micro: tuning.pool_default_dirty_high_ratio_micro,
        full_ratio_micro: tuning.pool_default_full_ratio_micro,
        ..Tiering::default()
    }
}
