//! Booting OSDs: their entry, their place in CRUSH, and whether they are in.

use super::{LogLevel, MapState, Now};
use nacre_crush::weight_from_f32;
use nacre_types::ids::{EntityName, Epoch, OsdId};
use nacre_types::msg::OsdBoot;
use nacre_types::osdmap::{OsdInfo, WEIGHT_ONE, flag};
use std::collections::BTreeMap;

/// The reason why a boot is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootRefusal {
    /// `noup` is set.
    #[error("noup is set")]
    NoUp,
    /// The id is out of range.
    #[error("id is not below {max} (mon_max_osd)")]
    BadId {
        /// `mon_max_osd`.
        max: u32,
    },
    /// Another disk runs with this id.
    #[error("another osd with this id is up, with another uuid")]
    Duplicate,
    /// A later process of the OSD has booted. Either this request was delayed, or its process must see that boot first.
    #[error("it has not seen the map of epoch {up_from}, in which the osd came up")]
    Outdated {
        /// The epoch in which the OSD came up.
        up_from: Epoch,
    },
    /// The OSD has seen a map that this store does not hold (R7).
    #[error("the map store was restored from an old copy")]
    StoreRolledBack,
}

impl MapState {
    pub(super) fn boot(&mut self, now: Now, boot: &OsdBoot) {
        let who = EntityName::osd(boot.osd);
        if let Err(refusal) = self.may_boot(now, boot) {
            let level = match refusal {
                BootRefusal::Outdated { .. } | BootRefusal::StoreRolledBack => LogLevel::Debug,
                _ => LogLevel::Warn,
            };
            let text = format!("{} boot refused: {refusal}", boot.osd);
            self.log.append(now, "mon", level, text);
            return;
        }
        self.rolled_back.remove(&who);
        self.last_beacon.insert(boot.osd, now.mono_ms);
        let known = self.working.osds.get(&boot.osd);
        if known.is_some_and(|info| info.up && info.boot_nonce == boot.boot_nonce) {
            // A resent boot of the process that is up.
            return;
        }
        let next = self.next_epoch();
        let mut info = known.cloned().unwrap_or_else(|| new_osd(boot));
        if info.up {
            // It restarted before the failure was detected.
            info.down_at = next;
        }
        if info.up_from > Epoch(0) {
            info.up_thru = if info.up { self.working.epoch } else { info.up_thru };
        }
        if info.uuid != boot.uuid && info.up_from > Epoch(0) {
            let text = format!("{} has a new disk: uuid {} instead of {}", boot.osd, boot.uuid, info.uuid);
            self.log.append(now, "mon", LogLevel::Warn, text);
        }
        self.mark_in_at_boot(now, boot.osd, &mut info);
        info.uuid = boot.uuid;
        info.up = true;
        info.addr = Some(boot.addr);
        info.incarnation = Some(boot.incarnation);
        info.boot_nonce = boot.boot_nonce;
        info.up_from = next;
        info.metadata = boot.metadata.clone();
        if self.working.osds.get(&boot.osd).map_or(0, |old| old.weight) != info.weight {
            self.last_in_change_ns = now.wall_ns;
        }
        self.last_up_change_ns = now.wall_ns;
        self.working.osds.insert(boot.osd, info);
        self.changes.osds.insert(boot.osd);
        if self.working.max_osd <= boot.osd.0 {
            self.working.max_osd = boot.osd.0 + 1;
            self.changes.max_osd = true;
        }
        self.down_since.remove(&boot.osd);
        self.failures.forget(boot.osd);
        if self.tuning.crush_update_on_start {
            self.place(now, boot);
        }
        self.log.append(now, "mon", LogLevel::Info, format!("{} {} boot", boot.osd, boot.addr));
    }

    fn may_boot(&mut self, now: Now, boot: &OsdBoot) -> Result<(), BootRefusal> {
        if boot.osd.0 >= self.tuning.max_osd {
            return Err(BootRefusal::BadId { max: self.tuning.max_osd });
        }
        if !self.check_history(now, &EntityName::osd(boot.osd), boot.seen) {
            return Err(BootRefusal::StoreRolledBack);
        }
        if self.working.has_flag(flag::NOUP) {
            return Err(BootRefusal::NoUp);
        }
        match self.working.osds.get(&boot.osd) {
            // A new process first sees the map in which its predecessor is up, and the predecessor has ended by then. Peers
            // rely on this order: their grants to a process are void once another process has booted (R4).
            Some(info) if info.boot_nonce != boot.boot_nonce && boot.epoch < info.up_from => {
                Err(BootRefusal::Outdated { up_from: info.up_from })
            }
            Some(info) if info.up && info.uuid != boot.uuid => Err(BootRefusal::Duplicate),
            _ => Ok(()),
        }
    }

    fn mark_in_at_boot(&mut self, now: Now, osd: OsdId, info: &mut OsdInfo) {
        if info.is_in() {
            return;
        }
        let is_new = info.up_from == Epoch(0);
        let wanted = self.tuning.auto_mark_in
            || (is_new && self.tuning.auto_mark_new_in)
            || (info.weight_before_auto_out.is_some() && self.tuning.auto_mark_auto_out_in);
        if !wanted || self.working.has_flag(flag::NOIN) {
            return;
        }
        info.weight = info.weight_before_auto_out.take().unwrap_or(WEIGHT_ONE);
        if !is_new {
            self.log.append(now, "mon", LogLevel::Info, format!("Marking {osd} in (it came back)"));
        }
    }

    /// Moves the OSD to its CRUSH location, unless it is there already, and sets its class if it has none.
    fn place(&mut self, now: Now, boot: &OsdBoot) {
        let mut location = boot.location.clone();
        if location.is_empty() {
            location = default_location(&boot.metadata);
        }
        let tib = match self.tuning.crush_initial_weight {
            weight if weight >= 0.0 => weight,
            _ => (boot.total_bytes as f64 / (1_u64 << 40) as f64).max(0.000_01),
        };
        let device = boot.osd.0 as i32;
        let name = boot.osd.to_string();
        let mut crush = (*self.working.crush).clone();
        let placed = weight_from_f32(tib as f32)
            .and_then(|weight| crush.create_or_move_item(device, weight, &name, &location));
        let classed = match &placed {
            Ok(_) if !boot.device_class.is_empty() && crush.device_class(device).is_none() => {
                crush.set_device_class(device, &boot.device_class)
            }
            _ => Ok(false),
        };
        match (placed, classed) {
            (Ok(moved), Ok(classed)) if moved || classed => {
                self.set_crush(crush);
            }
            (Ok(_), Ok(_)) => {}
            (Err(error), _) | (_, Err(error)) => {
                let text = format!("{name} keeps its place in the crush map: {error}");
                self.log.append(now, "mon", LogLevel::Warn, text);
            }
        }
    }
}

/// The default location of an OSD without a configured one: under its host's short name, under the root `default`.
fn default_location(metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let hostname = metadata.get("hostname").map_or("localhost", String::as_str);
    let host = hostname.split('.').next().unwrap_or(hostname);
    [("root", "default"), ("host", host)].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

fn new_osd(boot: &OsdBoot) -> OsdInfo {
    OsdInfo { uuid: boot.uuid, ..OsdInfo::never_up() }
}
