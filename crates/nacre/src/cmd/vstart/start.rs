//! Starts the cluster for a call of `vstart.sh`, and creates the files that calls of Ceph's tools expect.

use super::args::{DEFAULT_OSDS, GatewayArgs, VstartArgs};
use crate::cluster_dir::ClusterDir;
use anyhow::{Context, Result, bail, ensure};
use nacre_common::auth::Keyring;
use nacre_common::options::{self, OptionService};
use nacre_types::ids::EntityName;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Names in `bin`.
const NAMES: [&str; 7] =
    ["ceph", "rados", "radosgw-admin", "crushtool", "osdmaptool", "ceph-kvstore-tool", "ceph-bluestore-tool"];
/// Maximum time for the cluster to become ready.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time between checks that the process still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Contains the process id.
const PID_FILE: &str = "vstart.pid";
/// The certificate and the key for S3 with TLS.
const CERTIFICATE: &str = "server.pem";

/// Starts the cluster in the working folder. Returns when it is ready.
pub(super) fn start(request: &VstartArgs) -> Result<ExitCode> {
    let folder = std::env::current_dir().context("can't find the working folder")?;
    let layout = ClusterDir::open(&folder)?;
    let program = std::env::current_exe().context("can't find this program")?;
    if layout.exists() {
        ensure!(!layout.is_running()?, "the cluster in {} runs: stop it first", folder.display());
    }
    check_links(&folder, &program)?;
    if let Some(gateway) = request.gateway.as_ref().filter(|gateway| gateway.tls) {
        check_certificate(gateway, &folder)?;
    }
    let conf = layout.conf();
    let is_new = request.new || !layout.exists();
    if request.new && layout.exists() {
        fs::remove_file(&conf).with_context(|| format!("can't remove {}", conf.display()))?;
    }
    let mut serve = Command::new(&program);
    serve.arg("serve").arg("--data").arg(&folder).args(arguments(request, &layout, &folder));
    link(&folder, &program)?;
    if request.foreground {
        return Err(serve.exec()).context("can't run nacre serve");
    }
    let log = folder.join("log");
    fs::create_dir_all(&log).with_context(|| format!("can't create {}", log.display()))?;
    let (pid, state) = in_background(&mut serve, &log.join("serve.out"))?;
    let pid_file = folder.join(PID_FILE);
    fs::write(&pid_file, format!("{pid}\n"))
        .with_context(|| format!("can't write {}", pid_file.display()))?;
    ensure!(
        request.gateway.is_none() || state.contains(", S3 on "),
        "the cluster runs without S3: {} says why",
        log.join("serve.out").display()
    );
    if is_new {
        set_with_monitors(
            &program,
            &conf,
            request.options.iter().filter(|option| is_for_running_gateways(option)),
        )?;
    }
    let keyring = write_keyring(&layout, request, &folder)?;
    let admin = layout.keyring(&EntityName::client("admin"));
    give_to_caller(&[&conf, &keyring, &admin]);
    println!("cluster is ready: {state}");
    println!("  conf      {}", conf.display());
    println!("  keyring   {}", keyring.display());
    println!("  log       {}", log.join("serve.out").display());
    if request.gateway.is_some() {
        println!("  S3 keys   bin/radosgw-admin -c ceph.conf user info --uid admin");
    }
    println!("  stop      kill $(cat {PID_FILE})");
    Ok(ExitCode::SUCCESS)
}

/// The arguments of `nacre serve`. Most of them apply only to a new cluster.
fn arguments(request: &VstartArgs, layout: &ClusterDir, folder: &Path) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
    if !layout.exists() {
        let osds = request.osds.unwrap_or(DEFAULT_OSDS);
        add("--osds", osds.to_string());
        add("--objectstore", request.objectstore.to_owned());
        let at_start = request.options.iter().filter(|option| !is_for_running_gateways(option));
        at_start.for_each(|option| add("-o", option.clone()));
        let devices: Vec<String> =
            request.devices.iter().take(osds as usize).map(|path| path.display().to_string()).collect();
        if !devices.is_empty() {
            add("--bluestore-devs", devices.join(","));
        }
    }
    if let Some(listen) = request.listen {
        add("--listen", listen.to_string());
    }
    match &request.gateway {
        None => add("--s3", "none".to_owned()),
        Some(gateway) => {
            add("--s3-name", client_of(gateway).to_string());
            add("--rgw_frontends", frontends(gateway, request, folder));
        }
    }
    if request.new && !request.devices.is_empty() {
        args.push("--wipe-devs".to_owned());
    }
    args
}

/// Whether an option `NAME=VALUE` applies only to gateways, also while they run. Such options are stored by the monitors: a
/// value in ceph.conf would take precedence over later `ceph config set`.
fn is_for_running_gateways(option: &str) -> bool {
    let spec = option.split_once('=').and_then(|(name, _)| options::find(name));
    spec.is_some_and(|spec| spec.services == [OptionService::Rgw] && !spec.flags.startup)
}

/// Stores options of a new cluster in the monitors' configuration database.
fn set_with_monitors<'a>(program: &Path, conf: &Path, given: impl Iterator<Item = &'a String>) -> Result<()> {
    for (name, value) in given.filter_map(|option| option.split_once('=')) {
        let mut set = Command::new(program);
        set.arg("ceph").arg("-c").arg(conf).args(["config", "set", "global", name, value]);
        let done = set.output().context("can't run nacre ceph")?;
        ensure!(
            done.status.success(),
            "option {name} can't be set: {}",
            String::from_utf8_lossy(&done.stderr).trim_end()
        );
    }
    Ok(())
}

/// The gateway's client. Ceph's script names it by its port.
fn client_of(gateway: &GatewayArgs) -> EntityName {
    EntityName::client(format!("rgw.{}", gateway.port))
}

fn frontends(gateway: &GatewayArgs, request: &VstartArgs, folder: &Path) -> String {
    let addr = SocketAddr::new(request.ip, gateway.port);
    let words = gateway.words.as_str();
    // Endpoints from the caller replace the default ones.
    if ["endpoint=", "port="].iter().any(|word| words.contains(word)) {
        return words.to_owned();
    }
    let ours = match gateway.tls {
        false => format!("endpoint={addr}"),
        true => {
            let certificate = folder.join(CERTIFICATE);
            format!("ssl_endpoint={addr} ssl_certificate={}", certificate.display())
        }
    };
    format!("{ours} {words}").trim_end().to_owned()
}

fn check_certificate(gateway: &GatewayArgs, folder: &Path) -> Result<()> {
    ensure!(
        gateway.words.contains("ssl_certificate=") || folder.join(CERTIFICATE).exists(),
        "S3 by TLS needs {CERTIFICATE} in this folder: openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj \
         /CN=localhost -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout {CERTIFICATE} -out certificate.pem; \
         cat certificate.pem >>{CERTIFICATE}"
    );
    Ok(())
}

/// Whether a file is this program, under any name.
fn is_ours(path: &Path, program: &Path) -> bool {
    let target = fs::read_link(path).unwrap_or_default();
    target.file_name() == program.file_name() || path.canonicalize().is_ok_and(|path| path == program)
}

/// Refuses to replace other programs in `bin`: the folder may be one where Ceph was built.
fn check_links(folder: &Path, program: &Path) -> Result<()> {
    for path in NAMES.iter().map(|name| folder.join("bin").join(name)) {
        if path.symlink_metadata().is_ok() && !is_ours(&path, program) {
            bail!("{} is another program: run vstart.sh in another folder", path.display());
        }
    }
    Ok(())
}

fn link(folder: &Path, program: &Path) -> Result<()> {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("can't create {}", bin.display()))?;
    for path in NAMES.iter().map(|name| bin.join(name)) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("can't replace {}", path.display()));
            }
            _ => symlink(program, &path).with_context(|| format!("can't create {}", path.display()))?,
        }
    }
    Ok(())
}

/// Runs the command in its own process group, with its output in `log`, until it reports that it is ready. Returns its process
/// id and its output.
fn in_background(command: &mut Command, log: &Path) -> Result<(u32, String)> {
    // The log contains the first S3 user's keys.
    let mut output = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(log)
        .with_context(|| format!("can't open {}", log.display()))?;
    let from = output.seek(SeekFrom::End(0))?;
    let name = format!("nacre-vstart-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
    socket.set_read_timeout(Some(CHECK_INTERVAL))?;
    let mut child = command
        .env("NOTIFY_SOCKET", format!("@{name}"))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0)
        .spawn()
        .context("can't run nacre serve")?;
    let ready = until_ready(&socket, &mut child);
    match ready {
        Ok(state) => Ok((child.id(), state)),
        Err(error) => {
            // A process that does not become ready is useless for the caller.
            let _ = child.kill();
            let _ = child.wait();
            bail!("{error:#}\n{}", said(&mut output, from))
        }
    }
}

/// The output of the process since `from`.
fn said(output: &mut File, from: u64) -> String {
    let mut text = Vec::new();
    let read = output.seek(SeekFrom::Start(from)).and_then(|_| output.read_to_end(&mut text));
    match read {
        Ok(_) => String::from_utf8_lossy(&text).trim_end().to_owned(),
        Err(error) => format!("its output can't be read: {error}"),
    }
}

fn until_ready(socket: &UnixDatagram, child: &mut Child) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut message = [0; 4096];
    while Instant::now() < deadline {
        match socket.recv(&mut message) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&message[..length]).into_owned();
                if let Some(state) = text.strip_prefix("READY=1\nSTATUS=") {
                    return Ok(state.to_owned());
                }
            }
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("can't read the output of nacre serve"),
        }
        if let Some(status) = child.try_wait()? {
            bail!("nacre serve ended before the cluster was ready: {status}");
        }
    }
    bail!("the cluster was not ready within {} s", PATIENCE.as_secs())
}

/// Writes the keys of the administrator and of the gateway to one file, as Ceph's script does.
fn write_keyring(layout: &ClusterDir, request: &VstartArgs, folder: &Path) -> Result<PathBuf> {
    let mut keyring = Keyring::new();
    let gateway = request.gateway.as_ref().map(client_of);
    for client in std::iter::once(EntityName::client("admin")).chain(gateway) {
        let own = Keyring::read(&layout.keyring(&client))?;
        own.iter().for_each(|(name, entry)| {
            keyring.insert(name.clone(), entry.key.clone(), entry.caps.clone());
        });
    }
    let path = folder.join("keyring");
    keyring.write(&path)?;
    Ok(path)
}

/// Under sudo, makes the calling user the owner of files, because that user runs the later commands.
fn give_to_caller(paths: &[&PathBuf]) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(user), Some(group)) = (number("SUDO_UID"), number("SUDO_GID")) else { return };
    for path in paths {
        if let Err(error) = std::os::unix::fs::chown(path, Some(user), Some(group)) {
            eprintln!("vstart.sh: can't change the owner of {}: {error}", path.display());
        }
    }
}
