//! Test support for this crate and for the daemon.

use crate::config_db::ConfigTarget;
use crate::keys;
use crate::logic::{MapState, Now};
use nacre_types::ids::{Epoch, Incarnation, OsdId};
use nacre_types::msg::OsdBoot;
use nacre_types::osdmap::MapVersion;
use std::collections::BTreeMap;
use uuid::Uuid;

pub fn at(mono_ms: u64) -> Now {
    Now { mono_ms, wall_ns: 1_700_000_000_000_000_000 + mono_ms * 1_000_000 }
}

pub fn boot_of(osd: u32, nonce: u64) -> OsdBoot {
    OsdBoot {
        osd: OsdId(osd),
        uuid: Uuid::from_u128(0x100 + u128::from(osd)),
        incarnation: Incarnation(Uuid::from_u128(0x200 + u128::from(osd))),
        boot_nonce: nonce,
        addr: format!("127.0.0.1:{}", 41_000 + osd).parse().unwrap(),
        // It has seen all epochs, of an unspecified history.
        epoch: Epoch(1 << 30),
        seen: MapVersion::default(),
        total_bytes: 1 << 40,
        metadata: [("hostname".to_owned(), format!("host{}", osd / 2))].into(),
        location: BTreeMap::new(),
        device_class: "ssd".into(),
    }
}

impl MapState {
    /// Sets an option without a command's checks.
    pub fn put_option(&mut self, who: &ConfigTarget, name: &str, value: &str) {
        self.config.set(who.clone(), name, value);
        self.keys.insert(keys::config(who, name), Some(value.into()));
    }
}
