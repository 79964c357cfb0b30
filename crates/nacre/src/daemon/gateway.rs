//! `nacre gateway`, and the conversion of options to the configuration of an S3 gateway.

mod delivery;
mod threads;

pub(crate) use delivery::{delivery, passive_delivery};
pub(crate) use threads::GatewayRuntime;

use super::{Daemon, configure, run};
use anyhow::{Context, Result, bail, ensure};
use nacre_common::config::Config;
use nacre_s3::server::{Certificate, ConnectionLimits, Hosts, Listen, Server, ServerSettings};
use nacre_types::ids::EntityKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
Run an S3 gateway in the foreground until SIGINT or SIGTERM.

usage: nacre gateway [-c FILE] [-n NAME] [--option-name VALUE]...

  -c, --conf FILE    configuration file (else CEPH_CONF, /etc/nacre/ceph.conf, /var/lib/nacre/ceph.conf,
                     /etc/ceph/ceph.conf, ./ceph.conf, ./data/ceph.conf)
  -n, --name NAME    client name of the gateway [default: client.admin]
  --rgw_frontends 'endpoint=ADDR:PORT'
                     address to listen on [default: 127.0.0.1:8000]
  --rgw_frontends 'ssl_endpoint=ADDR:PORT ssl_certificate=FILE ssl_private_key=FILE'
                     address to listen on for TLS; SIGHUP reloads the files
";

/// Default interval between checks of the certificates for changes.
const RELOAD: Duration = Duration::from_secs(10);
/// How long a connection may be silent if `request_timeout_ms` is not given: radosgw's default.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(65_000);
/// Connections that may wait to be accepted if `max_connection_backlog` is not given.
const BACKLOG: u32 = 4096;
/// The largest backlog that is passed to the kernel.
const MAX_BACKLOG: u32 = i32::MAX as u32;
/// Maximum size of the head of a request in bytes if `max_header_size` is not given; also the largest value, as in radosgw.
const MAX_HEADER_SIZE: usize = 64 << 10;

/// `nacre gateway`.
pub(crate) fn gateway(args: &[String]) -> Result<()> {
    let Some((config, _)) = configure(EntityKind::Client, args, USAGE)? else { return Ok(()) };
    run(config, |config, _| async move {
        let frontends = config.snapshot().rgw.rgw_frontends.parse()?;
        let gateway = start_gateway(&config, &frontends).await?;
        if let Daemon::Gateway(server, ..) = &gateway {
            println!("gateway is ready: {}", server_urls(server).join(" "));
        }
        Ok(gateway)
    })
}

/// Starts an S3 gateway that listens on the endpoints in `frontends`.
pub(crate) async fn start_gateway(config: &Config, frontends: &Frontends) -> Result<Daemon> {
    let certificate = frontends.read_certificate()?;
    let cluster = nacre_client::native::connect(config).await.context("can't connect to the cluster")?;
    // After connecting, when the monitors' configuration applies, too.
    let threads = GatewayRuntime::start(config.get().rgw.rgw_thread_pool_size)?;
    let starting = async {
        let delivery = Some(delivery(config, &cluster));
        let rgw = nacre_rgw::Config { delivery, ..rgw_config(config)? };
        let gateway = nacre_rgw::Gateway::open(cluster.clone(), rgw)
            .await
            .context("the gateway can't use its pools")?;
        let ports = frontends.ports(certificate.as_ref());
        anyhow::Ok(Server::start(gateway, &ports, settings(config, frontends)?).await?)
    };
    let server = threads.enter(starting).await?;
    if let Some(certificate) = certificate {
        tokio::spawn(reload_at_hangup(Arc::downgrade(&certificate)));
    }
    Ok(Daemon::Gateway(server, cluster, threads))
}

/// The name of a gateway in metrics.
pub(super) fn metrics_name(server: &Server) -> String {
    server.addrs().first().map_or_else(|| "rgw".to_owned(), |(addr, _)| format!("rgw.{addr}"))
}

/// The URLs of a gateway.
pub(crate) fn server_urls(server: &Server) -> Vec<String> {
    let url = |(addr, tls): &(SocketAddr, bool)| format!("{}://{addr}", if *tls { "https" } else { "http" });
    server.addrs().iter().map(url).collect()
}

async fn reload_at_hangup(certificate: Weak<Certificate>) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => {
            tracing::error!(%error, "rgw: the certificate can't be read again at SIGHUP");
            return;
        }
    };
    while hangups.recv().await.is_some() {
        let Some(certificate) = certificate.upgrade() else { return };
        // Reloading reads files. A panic there was reported already.
        _ = tokio::task::spawn_blocking(move || certificate.reload()).await;
    }
}

/// The configuration of a gateway from the options.
pub(crate) fn rgw_config(config: &Config) -> Result<nacre_rgw::Config> {
    let options = config.snapshot();
    Ok(nacre_rgw::Config {
        index_shards: u32::try_from(options.rgw.rgw_override_bucket_index_max_shards)?,
        put_bytes: options.rgw.rgw_max_put_memory,
        gc_wait: options.rgw.rgw_gc_obj_min_wait,
        gc_period: options.rgw.rgw_gc_processor_period,
        pending_expiration: options.rgw.rgw_pending_bucket_index_op_expiration,
        lease: options.rgw.rgw_gateway_lease_duration,
        region: options.rgw.rgw_region.clone(),
        admin_entry: options.rgw.rgw_admin_entry.clone(),
        quota_ttls: nacre_rgw::QuotaTtls {
            bucket: options.rgw.rgw_bucket_quota_ttl,
            user: options.rgw.rgw_user_quota_bucket_sync_interval,
        },
        default_user_quota: default_quota(
            options.rgw.rgw_user_default_quota_max_size,
            options.rgw.rgw_user_default_quota_max_objects,
        ),
        default_bucket_quota: default_quota(
            options.rgw.rgw_bucket_default_quota_max_size,
            options.rgw.rgw_bucket_default_quota_max_objects,
        ),
        usage: options.rgw.rgw_enable_usage_log.then(|| nacre_rgw::UsageSettings {
            threshold: usize::try_from(options.rgw.rgw_usage_log_flush_threshold).unwrap_or(usize::MAX),
            period: options.rgw.rgw_usage_log_tick_interval,
        }),
        watch: true,
        encryption_key: encryption_key(&options.rgw.rgw_crypt_default_encryption_key)?,
        require_tls_for_keys: options.rgw.rgw_crypt_require_ssl,
        objects_per_shard: options.rgw.rgw_max_objs_per_shard,
        dynamic_resharding: options.rgw.rgw_dynamic_resharding,
        dynamic_shards: u32::try_from(options.rgw.rgw_max_dynamic_shards)?,
        reshard_lock: options.rgw.rgw_reshard_bucket_lock_duration,
        reshard_period: options.rgw.rgw_reshard_thread_interval,
        lifecycle: options.rgw.rgw_enable_lc_threads,
        lifecycle_time: options.rgw.rgw_lifecycle_work_time.clone(),
        lifecycle_debug: options.rgw.rgw_lc_debug_interval,
        delivery: None,
    })
}

/// The quota of new users from the options. Enforced if there is a limit.
fn default_quota(max_size: i64, max_objects: i64) -> nacre_rgw::Quota {
    let none = nacre_rgw::Quota::default();
    let (max_size, max_objects) = (max_size.max(-1), max_objects.max(-1));
    nacre_rgw::Quota {
        enabled: (max_size, max_objects) != (none.max_size, none.max_objects),
        max_size,
        max_objects,
    }
}

/// Parses the secret for SSE-S3 from an option.
fn encryption_key(text: &str) -> Result<Option<[u8; 32]>> {
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text.trim()).ok();
    let key = bytes.and_then(|bytes| bytes.try_into().ok());
    key.map(Some).context("rgw_crypt_default_encryption_key is not 32 bytes in base64")
}

/// The settings of the gateway's server, from the options.
fn settings(config: &Config, frontends: &Frontends) -> Result<ServerSettings> {
    let options = &config.snapshot().rgw;
    let path = options.rgw_ops_log_file_path.trim();
    Ok(ServerSettings {
        connections: ConnectionLimits {
            most: connections_of(options.rgw_max_connections),
            per_address: usize::try_from(options.rgw_max_connections_per_address).unwrap_or(usize::MAX),
            handshake: options.rgw_tls_handshake_timeout,
            head: options.rgw_header_timeout,
            idle: frontends.request_timeout.unwrap_or(REQUEST_TIMEOUT),
            stalled_after: options.rgw_stalled_request_time,
            min_rate: options.rgw_min_transfer_rate,
        },
        backlog: frontends.backlog.unwrap_or(BACKLOG),
        max_header_size: frontends.max_header_size.unwrap_or(MAX_HEADER_SIZE),
        nodelay: frontends.nodelay.unwrap_or(true),
        max_requests: options.rgw_max_concurrent_requests,
        max_rate: options.rgw_max_request_rate,
        complaint_time: options.rgw_op_complaint_time,
        exit_timeout: options.rgw_exit_timeout_secs,
        trust_forwarded: options.rgw_trust_forwarded_https,
        reload: frontends.reload.unwrap_or(RELOAD),
        hosts: Hosts::new(&options.rgw_dns_name, &options.rgw_dns_s3website_name)
            .context("rgw_dns_name, rgw_dns_s3website_name")?,
        access_log: (!path.is_empty()).then(|| path.into()),
    })
}

/// The number of connections for which the process has file descriptors, besides those for its other work.
fn connections_of(wanted: u64) -> usize {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = files.and_then(|files| usize::try_from(files / 4 * 3).ok()).unwrap_or(usize::MAX).max(1);
    if room < wanted {
        tracing::warn!(wanted, room, "rgw: the limit of open files bounds rgw_max_connections");
    }
    wanted.min(room)
}

/// The endpoints and settings in `rgw_frontends`, in radosgw's syntax.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frontends {
    /// Plain HTTP.
    pub(crate) plain: Vec<SocketAddr>,
    /// By TLS.
    pub(crate) tls: Vec<SocketAddr>,
    /// Its certificate.
    pub(crate) certificate: Option<PathBuf>,
    /// The key, if it is not in the certificate's file.
    pub(crate) key: Option<PathBuf>,
    /// Interval between checks of the files for changes, if given; 0 for never.
    pub(crate) reload: Option<Duration>,
    /// `request_timeout_ms`, if given.
    pub(crate) request_timeout: Option<Duration>,
    /// `max_connection_backlog`, if given.
    pub(crate) backlog: Option<u32>,
    /// `max_header_size`, if given.
    pub(crate) max_header_size: Option<usize>,
    /// `tcp_nodelay`, if given.
    pub(crate) nodelay: Option<bool>,
}

impl std::str::FromStr for Frontends {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Frontends> {
        let found = Frontends::parse_words(text)?;
        found.check().context("rgw_frontends")?;
        Ok(found)
    }
}

impl Frontends {
    /// Parses the words, which may or may not contain an endpoint.
    pub(crate) fn parse_words(text: &str) -> Result<Frontends> {
        let mut found = Frontends::default();
        for word in text.split_whitespace().filter(|word| *word != "beast") {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let what = |kind: &str| format!("rgw_frontends: {name}: '{value}' is not {kind}");
            let loopback = || -> Result<SocketAddr> {
                Ok(SocketAddr::from(([127, 0, 0, 1], value.parse().with_context(|| what("a port"))?)))
            };
            let address = || value.parse::<SocketAddr>().with_context(|| what("ADDRESS:PORT"));
            match name {
                "endpoint" => found.plain.push(address()?),
                "port" => found.plain.push(loopback()?),
                "ssl_endpoint" => found.tls.push(address()?),
                "ssl_port" => found.tls.push(loopback()?),
                "ssl_certificate" => found.certificate = Some(value.into()),
                "ssl_private_key" => found.key = Some(value.into()),
                "ssl_reload" => {
                    let seconds = value.parse().with_context(|| what("a number of seconds"))?;
                    found.reload = Some(Duration::from_secs(seconds));
                }
                "request_timeout_ms" => {
                    let ms = value.parse().ok().filter(|ms| *ms > 0);
                    let ms = ms.with_context(|| what("a number of milliseconds above 0"))?;
                    found.request_timeout = Some(Duration::from_millis(ms));
                }
                "max_connection_backlog" => {
                    let backlog =
                        value.parse().ok().filter(|backlog| *backlog > 0 && *backlog <= MAX_BACKLOG);
                    found.backlog = Some(backlog.with_context(|| what("a number from 1 to 2147483647"))?);
                }
                "max_header_size" => {
                    let size = value.parse().ok().filter(|size| (1024..=MAX_HEADER_SIZE).contains(size));
                    found.max_header_size = Some(size.with_context(|| what("a number from 1024 to 65536"))?);
                }
                "tcp_nodelay" => {
                    found.nodelay = Some(match value {
                        "0" => false,
                        "1" => true,
                        _ => bail!(what("0 or 1")),
                    });
                }
                _ => bail!(
                    "rgw_frontends: '{word}' is not known: endpoint, port, ssl_endpoint, ssl_port, ssl_certificate, \
                     ssl_private_key, ssl_reload, request_timeout_ms, max_connection_backlog, max_header_size and \
                     tcp_nodelay are"
                ),
            }
        }
        Ok(found)
    }

    /// Refuses inconsistent settings.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.plain.is_empty() || !self.tls.is_empty(), "no endpoint is given");
        ensure!(self.tls.is_empty() || self.certificate.is_some(), "TLS needs a certificate");
        ensure!(!self.tls.is_empty() || self.certificate.is_none(), "the certificate has no TLS endpoint");
        ensure!(self.key.is_none() || self.certificate.is_some(), "the key has no certificate");
        Ok(())
    }

    fn read_certificate(&self) -> Result<Option<Arc<Certificate>>> {
        let certificate = self.certificate.as_ref();
        Ok(certificate.map(|path| Certificate::read(path, self.key.as_deref())).transpose()?)
    }

    fn ports(&self, certificate: Option<&Arc<Certificate>>) -> Vec<Listen> {
        let plain = self.plain.iter().map(|addr| Listen { addr: *addr, certificate: None });
        let tls = self.tls.iter().map(|addr| Listen { addr: *addr, certificate: certificate.cloned() });
        plain.chain(tls).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontends_are_read_in_radosgws_words() {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = "beast endpoint=0.0.0.0:80 port=8080 ssl_port=443 ssl_endpoint=[::1]:444 \
                    ssl_certificate=/a.crt ssl_private_key=/a.key ssl_reload=60 request_timeout_ms=5000 \
                    max_connection_backlog=100 max_header_size=16384 tcp_nodelay=0";
        let found: Frontends = text.parse().unwrap();
        assert_eq!(found.plain, [SocketAddr::from(([0, 0, 0, 0], 80)), loopback(8080)]);
        assert_eq!(found.tls, [loopback(443), "[::1]:444".parse().unwrap()]);
        assert_eq!(found.certificate, Some("/a.crt".into()));
        assert_eq!(found.key, Some("/a.key".into()));
        assert_eq!(found.reload, Some(Duration::from_secs(60)));
        assert_eq!(found.request_timeout, Some(Duration::from_secs(5)));
        assert_eq!(
            (found.backlog, found.max_header_size, found.nodelay),
            (Some(100), Some(16384), Some(false))
        );
    }

    #[test]
    fn frontends_that_make_no_sense_are_refused() {
        for (text, why) in [
            ("beast", "no endpoint"),
            ("port=http", "is not a port"),
            ("endpoint=80", "is not ADDRESS:PORT"),
            ("ssl_port=443", "TLS needs a certificate"),
            ("port=80 ssl_certificate=/a", "no TLS endpoint"),
            ("port=80 ssl_private_key=/a", "no certificate"),
            ("port=80 request_timeout_ms=0", "milliseconds above 0"),
            ("port=80 max_connection_backlog=-1", "is not a number from 1"),
            ("port=80 max_header_size=100000", "is not a number from 1024"),
            ("port=80 tcp_nodelay=yes", "is not 0 or 1"),
            ("port=80 colour=green", "is not known"),
        ] {
            let error = format!("{:#}", text.parse::<Frontends>().unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
