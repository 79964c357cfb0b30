//! The configuration of a Bareos device: Nacre's own options and those of the `rados` devices of Bareos 16 to 21.

use crate::cmd::backup::size;
use anyhow::{Result, anyhow, bail};
use nacre_client::Layout;
use std::ffi::OsString;

/// Names of the options in the environment. `device_options` is a whole string of options of Bareos' `rados` device.
pub(super) const OPTIONS: &[&str] = &[
    "conffile",
    "poolname",
    "namespace",
    "clientid",
    "clustername",
    "username",
    "keyring",
    "stripe_unit",
    "stripe_count",
    "object_size",
    "device_options",
];

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) conf: Option<String>,
    pub(super) pool: String,
    pub(super) namespace: String,
    pub(super) cluster: Option<String>,
    pub(super) keyring: Option<String>,
    /// `client.bareos`.
    pub(super) user: Option<String>,
    pub(super) layout: Layout,
}

#[derive(Default)]
struct DeviceOptions {
    device: Option<Device>,
    stripe_unit: Option<u64>,
    stripe_count: Option<u64>,
    object_size: Option<u64>,
}

impl Device {
    fn new() -> Device {
        Device {
            conf: None,
            pool: "backup".to_owned(),
            namespace: String::new(),
            cluster: None,
            keyring: None,
            user: None,
            layout: Layout::default(),
        }
    }

    /// A device from its options in the environment. Missing options have Bareos' defaults.
    pub(super) fn from_environment(option: impl Fn(&str) -> Option<String>) -> Result<Device> {
        let mut given = DeviceOptions::default();
        if let Some(text) = option("device_options").filter(|text| !text.is_empty()) {
            given.take_string(&text)?;
        }
        for name in OPTIONS.iter().filter(|name| **name != "device_options") {
            if let Some(value) = option(name).filter(|value| !value.is_empty()) {
                given.take(name, Some(&value))?;
            }
        }
        given.finish()
    }

    /// A device from the `Device Options` of Bareos' `rados` device:
    /// `conffile=/etc/ceph/ceph.conf,poolname=backup,striped,stripe_unit=4194304,stripe_count=2,object_size=33554432`.
    #[cfg(test)]
    fn from_device_options(text: &str) -> Result<Device> {
        let mut given = DeviceOptions::default();
        given.take_string(text)?;
        given.finish()
    }

    /// The equivalent command line of a client.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let options =
            [("-c", &self.conf), ("--cluster", &self.cluster), ("-k", &self.keyring), ("-n", &self.user)];
        let pairs = options.iter().filter_map(|(flag, value)| Some([*flag, value.as_deref()?]));
        pairs.flatten().map(OsString::from).collect()
    }
}

impl DeviceOptions {
    /// Parses options separated by commas. Spaces are part of them.
    fn take_string(&mut self, text: &str) -> Result<()> {
        for option in text.split(',') {
            match option.split_once('=') {
                Some((name, value)) => self.take(name, Some(value))?,
                None => self.take(option, None)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let device = self.device.get_or_insert_with(Device::new);
        // Parts are always striped, as with this option.
        if name == "striped" && value.is_none() {
            return Ok(());
        }
        let value = value.ok_or_else(|| anyhow!("option '{name}' has no value or is unknown"))?;
        let number =
            || size(value).ok_or_else(|| anyhow!("option {name}: '{value}' is not a number of bytes"));
        match name {
            "conffile" => device.conf = Some(value.to_owned()),
            "poolname" => value.clone_into(&mut device.pool),
            "namespace" => value.clone_into(&mut device.namespace),
            "clustername" => device.cluster = Some(value.to_owned()),
            "keyring" => device.keyring = Some(value.to_owned()),
            "clientid" => device.user = Some(format!("client.{value}")),
            // In Bareos this option may be the whole name.
            "username" if value.contains('.') => device.user = Some(value.to_owned()),
            "username" => device.user = Some(format!("client.{value}")),
            "stripe_unit" => self.stripe_unit = Some(number()?),
            "stripe_count" => self.stripe_count = Some(number()?),
            "object_size" => self.object_size = Some(number()?),
            other => bail!("unknown option '{other}'"),
        }
        Ok(())
    }

    fn finish(self) -> Result<Device> {
        let mut device = self.device.unwrap_or_else(Device::new);
        let default = Layout::default();
        let part = |value: Option<u64>, default: u64| {
            let value = value.unwrap_or(default);
            u32::try_from(value).map_err(|_| anyhow!("{value} is too large for a layout"))
        };
        let unit = part(self.stripe_unit, default.stripe_unit())?;
        let object = part(self.object_size, default.object_size().max(unit.into()))?;
        device.layout = Layout::new(unit, part(self.stripe_count, 1)?, object)?;
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_bareos_rados_device_mean_the_same_device() {
        let text = "conffile=/etc/ceph/ceph.conf,poolname=backup,striped,stripe_unit=4194304,stripe_count=2,object_size=33554432";
        let device = Device::from_device_options(text).unwrap();
        let wanted = Device {
            conf: Some("/etc/ceph/ceph.conf".into()),
            layout: Layout::new(4 << 20, 2, 32 << 20).unwrap(),
            ..Device::new()
        };
        assert_eq!(device, wanted);
        fn of(options: &[(&str, &str)]) -> Result<Device> {
            Device::from_environment(|name| {
                options.iter().find(|option| option.0 == name).map(|option| option.1.to_owned())
            })
        }
        assert_eq!(of(&[("device_options", text)]).unwrap(), wanted);
        let own = of(&[
            ("conffile", "/etc/ceph/ceph.conf"),
            ("poolname", "backup"),
            ("stripe_unit", "4m"),
            ("stripe_count", "2"),
            ("object_size", "32M"),
        ]);
        assert_eq!(own.unwrap(), wanted);
        let arguments = of(&[("clientid", "bareos"), ("keyring", "/k"), ("device_options", text)]).unwrap();
        assert_eq!(arguments.arguments(), ["-c", "/etc/ceph/ceph.conf", "-k", "/k", "-n", "client.bareos"]);
        // The older form, the only one that the unpatched device accepts.
        let older = "conffile=/etc/ceph/ceph.conf,poolname=backup,striped,stripe_unit=4194304,stripe_count=1";
        assert_eq!(Device::from_device_options(older).unwrap().layout, Layout::default());
    }

    /// The options from which the same device is parsed.
    fn written(device: &Device) -> Vec<u8> {
        let layout = device.layout;
        let mut text = format!(
            "poolname={},namespace={},stripe_unit={},stripe_count={},object_size={}",
            device.pool,
            device.namespace,
            layout.stripe_unit(),
            layout.stripe_count(),
            layout.object_size()
        );
        let given = [
            ("conffile", &device.conf),
            ("clustername", &device.cluster),
            ("keyring", &device.keyring),
            ("username", &device.user),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                text += &format!(",{name}={value}");
            }
        }
        text.into_bytes()
    }

    #[test]
    fn fuzz_device_options() {
        let texts = [
            "conffile=/etc/ceph/ceph.conf,poolname=backup,striped,stripe_unit=4194304,stripe_count=2,object_size=33554432",
            "clientid=bareos,keyring=/k,namespace=n,clustername=c,object_size=8M",
            "username=client.x",
        ];
        let seeds = texts.map(|text| written(&Device::from_device_options(text).unwrap())).to_vec();
        let corpus = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let words = [",striped,", "stripe_unit=", "99999999999999999999", "=", ",", "4G", "64k"];
        let target = nacre_fuzz::Target {
            dictionary: &words,
            ..nacre_fuzz::Target::new("device-options", corpus, seeds)
        };
        target.run(|input| {
            let device = Device::from_device_options(std::str::from_utf8(input).ok()?).ok()?;
            // On a client's command line, each flag has a value.
            assert!(device.arguments().len().is_multiple_of(2));
            Some(written(&device))
        });
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for text in [
            "poolname=backup, striped",
            "poolname",
            "pool=backup",
            "stripe_unit=1",
            "stripe_unit=8M,object_size=12M",
            "stripe_count=0",
            "object_size=8G",
        ] {
            assert!(Device::from_device_options(text).is_err(), "{text}");
        }
        assert_eq!(Device::from_environment(|_| None).unwrap(), Device::new());
    }
}
