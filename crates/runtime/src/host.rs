//! The facts that daemons report about their machine: `osd metadata`, `mon metadata`, with Ceph's names.

use nacre_common::config::Config;
use nacre_types::ceph::nacre_version;
use std::collections::BTreeMap;
use std::fs;

/// Facts about this machine and this release. Facts that can't be determined are omitted.
pub fn metadata(config: &Config) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut put = |name: &str, value: Option<String>| {
        facts.extend(value.filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value)));
    };
    put("ceph_version", Some(nacre_version()));
    put("ceph_version_short", Some(env!("CARGO_PKG_VERSION").to_owned()));
    put("ceph_release", Some("pacific".to_owned()));
    put("hostname", Some(config.host().to_owned()));
    put("arch", Some(std::env::consts::ARCH.to_owned()));
    put("os", Some("Linux".to_owned()));
    put("kernel_version", first_line("/proc/sys/kernel/osrelease"));
    put("kernel_description", first_line("/proc/sys/kernel/version"));
    put("cpu", field("/proc/cpuinfo", "model name", ':'));
    put("mem_total_kb", kilobytes("MemTotal"));
    put("mem_swap_kb", kilobytes("SwapTotal"));
    put("distro", release("ID"));
    put("distro_description", release("PRETTY_NAME"));
    put("distro_version", release("VERSION_ID"));
    put("exporter_addr", crate::exporter::listen_addr().map(|addr| addr.to_string()));
    facts
}

fn first_line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(|line| line.trim().to_owned())
}

fn field(path: &str, name: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let pairs = text.lines().filter_map(|line| line.split_once(separator));
    pairs.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn kilobytes(name: &str) -> Option<String> {
    Some(field("/proc/meminfo", name, ':')?.split(' ').next()?.to_owned())
}

fn release(name: &str) -> Option<String> {
    Some(field("/etc/os-release", name, '=')?.trim_matches('"').to_owned())
}
