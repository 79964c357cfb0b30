//! A Debian system with systemd in its own folder, created by debootstrap and booted in namespaces.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Maximum time for the system to boot.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);

/// A running system. Dropping it stops the system and removes its folder.
pub(super) struct Machine {
    folder: PathBuf,
    boot: Child,
    /// The process id of its process 1 on the host.
    init: String,
}

impl Machine {
    /// Creates a minimal system of this host's Debian release with `packages` in `folder`, and boots it.
    pub(super) fn boot(folder: &Path, packages: &[&str]) -> Machine {
        let root = folder.join("root");
        let made = as_root("debootstrap")
            .arg("--variant=minbase")
            .arg(format!("--include={}", packages.join(",")))
            .arg(release())
            .arg(&root)
            .output()
            .unwrap();
        let end = String::from_utf8_lossy(&made.stdout).into_owned();
        assert!(made.status.success(), "debootstrap: {}", &end[end.len().saturating_sub(2000)..]);
        // There is no console.
        let no_console = root.join("etc/systemd/system/console-getty.service");
        assert!(as_root("ln").args(["-s", "/dev/null"]).arg(no_console).status().unwrap().success());

        let pid_file = folder.join("init.pid");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/packages/boot");
        let log = fs::File::create(folder.join("boot.log")).unwrap();
        let boot = as_root("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(script)
            .args([&root, &pid_file])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut machine = Machine { folder: folder.to_owned(), boot, init: String::new() };
        let deadline = Instant::now() + BOOT_PATIENCE;
        loop {
            machine.init = fs::read_to_string(&pid_file).unwrap_or_default().trim().to_owned();
            if !machine.init.is_empty() {
                let state = machine.run("systemctl is-system-running");
                let state = String::from_utf8_lossy(&state.stdout).into_owned();
                if ["running", "degraded"].contains(&state.trim()) {
                    break;
                }
            }
            let log = || fs::read_to_string(folder.join("boot.log")).unwrap_or_default();
            assert!(machine.boot.try_wait().unwrap().is_none(), "the system ended: {}", log());
            assert!(Instant::now() < deadline, "the system did not boot: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        machine
    }

    /// Runs a shell script in the system, as root in `/root`, up to its first failure.
    pub(super) fn run(&self, script: &str) -> Output {
        as_root("nsenter")
            .args(["--target", &self.init, "--all", "--root", "--wd"])
            .args(["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
            .args(["HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec"])
            .arg(format!("cd\n{script}"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a script that must succeed. Returns its standard output.
    pub(super) fn ok(&self, script: &str) -> String {
        let out = self.run(script);
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{script}\n{}\n{stdout}{stderr}{}", out.status, self.journal());
        stdout.into_owned()
    }

    /// Runs a program of the host on the system's network.
    pub(super) fn command_from_outside(&self, program: &str) -> Command {
        let mut command = as_root("nsenter");
        command.args(["--target", &self.init, "--net", program]);
        command
    }

    /// Copies a file of the host to `/root`.
    pub(super) fn copy_in(&self, file: &Path) {
        let copied = as_root("cp").arg(file).arg(self.folder.join("root/root")).status().unwrap();
        assert!(copied.success());
    }

    /// Repeats a script until `wanted` accepts its output, for at most 30 seconds. Returns the last output.
    pub(super) fn wait_for(&self, script: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let output = self.ok(script);
            if wanted(&output) || Instant::now() > deadline {
                return output;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The last lines of the journal, for messages of failed tests.
    pub(super) fn journal(&self) -> String {
        let lines = self.run("journalctl --no-pager --lines 30");
        String::from_utf8_lossy(&lines.stdout).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !self.init.is_empty() {
            let _ = as_root("kill").args(["-KILL", &self.init]).status();
        }
        let _ = self.boot.wait();
        let _ = as_root("rm").arg("-rf").arg(self.folder.join("root")).status();
    }
}

/// The name of the Debian release that this host runs.
fn release() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.expect("a Debian release").trim_matches('"').to_owned()
}

/// A command that runs as root.
fn as_root(program: &str) -> Command {
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}
