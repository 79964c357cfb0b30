//! The ports of `nacre serve`, and the errors if another program uses them.

use crate::cluster_dir::ClusterDir;
use anyhow::{Context, Result, bail};
use nacre_types::ids::EntityName;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

/// The port of a new cluster's map authority.
const MON_PORT: u16 = 3300;
/// The port of S3.
const S3_PORT: u16 = 8000;
/// Number of successive ports to try by default.
const TRIES: u16 = 100;

/// The address of a new cluster's map authority: `asked`, or the first free port on loopback.
pub(super) fn mon_addr(asked: Option<SocketAddr>) -> Result<SocketAddr> {
    match asked {
        Some(addr) => check(addr, "choose another address with --listen").map(|()| addr),
        None => first_free(MON_PORT, "choose one with --listen"),
    }
}

/// The default address of S3: the first free port on loopback.
pub(super) fn s3_addr() -> Result<SocketAddr> {
    first_free(S3_PORT, "choose one with --s3, or disable S3 with --s3 none")
}

/// Fails if S3 can't listen on `addr`.
pub(super) fn check_s3_port(addr: SocketAddr) -> Result<()> {
    check(addr, "choose another address with --s3, or disable S3 with --s3 none")
}

/// Fails if the cluster in `layout` is already running.
pub(super) fn check_not_running(layout: &ClusterDir, data: &Path) -> Result<()> {
    if layout.is_running()? {
        let conf = layout.conf();
        bail!("the cluster in {} is already running: see nacre -c {} status", data.display(), conf.display());
    }
    Ok(())
}

/// Fails if another program uses the port of the cluster's map authority.
pub(super) fn check_mon_port(layout: &ClusterDir) -> Result<()> {
    let config = layout.config(EntityName::mon())?;
    match config.snapshot().global.mon_host.resolve()?.first() {
        Some(addr) => check(*addr, "change the address of the map authority with --listen"),
        None => Ok(()),
    }
}

fn first_free(port: u16, advice: &str) -> Result<SocketAddr> {
    let addrs = (port..port + TRIES).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let free = addrs.into_iter().find(|addr| check(*addr, "").is_ok());
    free.with_context(|| {
        format!("no port from {port} to {} is free on 127.0.0.1: {advice}", port + TRIES - 1)
    })
}

/// Fails if this process can't listen on `addr`. The error contains `advice`.
fn check(addr: SocketAddr, advice: &str) -> Result<()> {
    match TcpListener::bind(addr) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("{addr} is in use by another program: {advice}")
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("no permission to listen on {addr}, ports below 1024 need root: {advice}")
        }
        Err(error) => Err(error).with_context(|| format!("can't listen on {addr}: {advice}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_named_with_what_to_do() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap();
        let error = mon_addr(Some(addr)).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{addr} is in use by another program: choose another address with --listen")
        );
        drop(taken);
        assert_eq!(mon_addr(Some(addr)).unwrap(), addr);
    }

    #[test]
    fn where_no_port_was_named_the_first_free_one_is_taken() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port().min(u16::MAX - TRIES);
        let found = first_free(port, "").unwrap();
        assert!(found.port() > port && found.port() < port + TRIES, "{found}");
    }
}
