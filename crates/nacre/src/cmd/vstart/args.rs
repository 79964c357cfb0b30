//! Parses a call of `vstart.sh`: its options and the environment.

use super::options::FLAGS;
use anyhow::{Context, Result, bail, ensure};
use nacre_common::options as cluster_options;
use nacre_types::support_level::SupportLevel;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The address and parameters of S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GatewayArgs {
    pub(super) port: u16,
    /// With TLS, using the certificate and key in `server.pem`.
    pub(super) tls: bool,
    /// Further words for `rgw_frontends`.
    pub(super) words: String,
}

/// A parsed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VstartArgs {
    /// Replace an existing cluster by a new one.
    pub(super) new: bool,
    /// Number of OSDs, if given.
    pub(super) osds: Option<u32>,
    pub(super) objectstore: &'static str,
    /// `NAME=VALUE`, only of options that exist.
    pub(super) options: Vec<String>,
    pub(super) devices: Vec<PathBuf>,
    pub(super) ip: IpAddr,
    /// The map authority's address, if a port is given.
    pub(super) listen: Option<SocketAddr>,
    pub(super) gateway: Option<GatewayArgs>,
    pub(super) foreground: bool,
}

/// The map authority's port on addresses other than loopback.
const MON_PORT: u16 = 3300;
/// The default number of OSDs of a new cluster.
pub(super) const DEFAULT_OSDS: u32 = 3;

impl VstartArgs {
    /// Parses the arguments. `variable` reads the environment.
    pub(super) fn parse(args: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<VstartArgs> {
        let count = |name: &str| -> Result<Option<u32>> {
            let found = variable(&format!("CEPH_NUM_{name}")).or_else(|| variable(name));
            let number = found.filter(|text| !text.is_empty()).map(|text| {
                text.parse().with_context(|| format!("{name}: '{text}' is not a number of daemons"))
            });
            number.transpose()
        };
        let gateways = count("RGW")?.unwrap_or(0);
        ensure!(count("MON")?.is_none_or(|mons| mons == 1), "a cluster has one map authority: MON=1");
        ensure!(count("MDS")?.unwrap_or(0) == 0, "there is no CephFS: MDS=0");
        ensure!(count("NFS")?.unwrap_or(0) == 0, "there is no NFS server: NFS=0");
        ensure!(gateways <= 1, "one gateway is started: RGW=1; `nacre gateway -n client.rgw.ID` runs more");
        let mut request = VstartArgs {
            new: false,
            osds: count("OSD")?,
            objectstore: "bluestore",
            options: Vec::new(),
            devices: Vec::new(),
            ip: Ipv4Addr::LOCALHOST.into(),
            listen: None,
            gateway: None,
            foreground: false,
        };
        ensure!(request.osds != Some(0), "a cluster has at least one OSD");
        let mut rgw_port = variable("CEPH_RGW_PORT").filter(|text| !text.is_empty());
        let mut words = String::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) if arg.starts_with("--") => (name, Some(value)),
                _ => (arg.as_str(), None),
            };
            let flag = FLAGS.iter().find(|flag| flag.names.contains(&name));
            let flag = flag.with_context(|| format!("unknown option {name}; --help lists them"))?;
            if let SupportLevel::Refused(why) = flag.support {
                bail!("{name} is refused: {why}");
            }
            let value = match flag.value {
                None => "",
                Some(value) => inline
                    .or_else(|| args.next().map(String::as_str))
                    .with_context(|| format!("{name} needs {value}"))?,
            };
            match name {
                "-n" | "--new" => request.new = true,
                "-k" => request.new = false,
                "-o" => request.options.extend(known_options(value)?),
                "-b" | "--bluestore" => request.objectstore = "bluestore",
                "-f" | "--filestore" => request.objectstore = "filestore",
                "--memstore" => request.objectstore = "memstore",
                "--bluestore-devs" => request.devices = value.split(',').map(PathBuf::from).collect(),
                "-l" | "--localhost" => request.ip = Ipv4Addr::LOCALHOST.into(),
                "-i" => request.ip = value.parse().with_context(|| format!("-i: '{value}' is not an IP"))?,
                "-m" => {
                    let addr = value.parse().with_context(|| format!("-m: '{value}' is not ADDRESS:PORT"))?;
                    request.listen = Some(addr);
                }
                "--rgw_port" => rgw_port = Some(value.to_owned()),
                "--rgw_frontend" => words = value.to_owned(),
                "--nodaemon" => request.foreground = true,
                // The others have no effect.
                _ => {}
            }
        }
        if request.listen.is_none() {
            let port = variable("CEPH_PORT").filter(|text| !text.is_empty());
            let port =
                port.map(|text| text.parse().with_context(|| format!("CEPH_PORT: '{text}' is not a port")));
            // On loopback the next free port is used.
            let port = port.transpose()?.or((!request.ip.is_loopback()).then_some(MON_PORT));
            request.listen = port.map(|port| SocketAddr::new(request.ip, port));
        }
        if gateways == 1 {
            let text = rgw_port.unwrap_or_else(|| "8000".to_owned());
            let (digits, tls) =
                text.strip_suffix('s').map_or((text.as_str(), false), |digits| (digits, true));
            let port = digits.parse().ok().filter(|port| *port > 0);
            let port = port.with_context(|| format!("the port of S3: '{text}' is not PORT or PORTs"))?;
            request.gateway = Some(GatewayArgs { port, tls, words });
        }
        Ok(request)
    }
}

/// The options in an argument of `-o`, one per line. Options that neither Nacre nor Ceph 16.2 has are skipped with a message,
/// because Ceph's programs ignore unknown options in ceph.conf.
fn known_options(text: &str) -> Result<Vec<String>> {
    let mut known = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) =
            line.split_once('=').with_context(|| format!("-o: '{line}' is not NAME=VALUE"))?;
        let (name, value) = (name.trim(), value.trim());
        if cluster_options::find(name).is_some() || cluster_options::ceph_only_option(name).is_some() {
            known.push(format!("{name}={value}"));
        } else {
            eprintln!("vstart.sh: {name} is not an option of this release: it has no effect");
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(environment: &[(&str, &str)], line: &str) -> Result<VstartArgs> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let variable = |name: &str| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        VstartArgs::parse(&args, variable)
    }

    #[test]
    fn a_call_is_read_as_cephs_script_reads_it() {
        let counts = [("MON", "1"), ("OSD", "2"), ("MDS", "0"), ("MGR", "0"), ("RGW", "1")];
        let line = "-n -X --nolockdep --bluestore --bluestore-devs /dev/b,/dev/a -o rgw_dynamic_resharding=false \
                    -o mon_pg_warn_max_per_osd=32768 -o bluestore_block_size=1500000000000";
        let request = parse(&counts, line).unwrap();
        assert!(request.new && !request.foreground);
        assert_eq!((request.osds, request.objectstore), (Some(2), "bluestore"));
        assert_eq!(request.devices, [PathBuf::from("/dev/b"), PathBuf::from("/dev/a")]);
        let options = ["rgw_dynamic_resharding=false", "bluestore_block_size=1500000000000"];
        assert_eq!(request.options, options);
        assert_eq!(request.gateway, Some(GatewayArgs { port: 8000, tls: false, words: String::new() }));
        assert_eq!((request.ip, request.listen), (Ipv4Addr::LOCALHOST.into(), None));
    }

    #[test]
    fn the_environment_names_ports() {
        let environment = [("CEPH_NUM_RGW", "1"), ("CEPH_RGW_PORT", "8443s"), ("CEPH_PORT", "40000")];
        let request = parse(&environment, "--memstore").unwrap();
        assert_eq!(request.gateway, Some(GatewayArgs { port: 8443, tls: true, words: String::new() }));
        assert_eq!(request.listen, Some("127.0.0.1:40000".parse().unwrap()));
        let request = parse(&environment, "--rgw_port=81 -m 127.0.0.1:3300").unwrap();
        assert_eq!(request.gateway.unwrap().port, 81);
        assert_eq!(request.listen, Some("127.0.0.1:3300".parse().unwrap()));
        assert_eq!(parse(&[("RGW", "")], "").unwrap().gateway, None);
    }

    #[test]
    fn what_can_not_be_done_is_refused_by_name() {
        for (environment, line, why) in [
            (("MON", "3"), "", "one map authority"),
            (("MDS", "1"), "", "no CephFS"),
            (("RGW", "2"), "", "one gateway"),
            (("OSD", "0"), "", "at least one OSD"),
            (("OSD", "two"), "", "OSD: 'two' is not a number of daemons"),
            (("RGW", "1"), "--rgw_port 0", "is not PORT or PORTs"),
            (("RGW", "0"), "--cephadm", "--cephadm is refused"),
            (("RGW", "0"), "--nonesuch", "unknown option --nonesuch"),
            (("RGW", "0"), "-o", "-o needs NAME=VALUE"),
            (("RGW", "0"), "-o osd", "'osd' is not NAME=VALUE"),
        ] {
            let error = parse(&[environment], line).unwrap_err().to_string();
            assert!(error.contains(why), "{environment:?} {line}: {error}");
        }
    }

    #[test]
    fn every_option_of_the_table_is_read() {
        for flag in FLAGS.iter().filter(|flag| !flag.support.is_refused()) {
            for name in flag.names.iter().filter(|name| !["-h", "--help"].contains(name)) {
                let line = match *name {
                    "-o" => "-o osd_pool_default_pg_num=8".to_owned(),
                    "-i" => "-i 127.0.0.1".to_owned(),
                    "-m" => "-m 127.0.0.1:1".to_owned(),
                    "--rgw_port" => "--rgw_port 80".to_owned(),
                    name if flag.value.is_some() => format!("{name} x"),
                    name => name.to_owned(),
                };
                assert!(parse(&[("RGW", "1")], &line).is_ok(), "{line}");
            }
        }
    }
}
