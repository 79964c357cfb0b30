//! A server's process with all that it starts.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a server gets to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that leads a group, which is killed with the value.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a command; its output goes to the file `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Process {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process(child)
    }

    /// Waits until something listens on `port` of loopback.
    pub(crate) fn wait_for(&mut self, port: u16, log: &Path) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = self.0.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the server did not start ({ended:?}): {}",
                std::fs::read_to_string(log).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal to the group.
    pub(crate) fn signal(&self, signal: &str) {
        let group = format!("-{}", self.0.id());
        let sent = Command::new("kill").args(["-s", signal, "--", &group]).status().unwrap();
        assert!(sent.success(), "kill -s {signal}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        _ = Command::new("kill").args(["-s", "KILL", "--", &group]).status();
        _ = self.0.wait();
    }
}

/// `count` ports of loopback in a row that are free now.
pub(crate) fn free_ports(count: u16) -> u16 {
    // Above the ports that Linux gives by itself: no other socket takes one before its server does.
    const FIRST: u32 = 61_000;
    const COUNT: u32 = 4_500;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Tests are processes of their own that run at the same time.
    let start = std::process::id().wrapping_mul(37);
    (0..COUNT)
        .map(|_| FIRST + start.wrapping_add(TAKEN.fetch_add(u32::from(count), Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok().filter(|port| *port < u16::MAX - count))
        .find(|port| (0..count).all(|at| TcpListener::bind(("127.0.0.1", port + at)).is_ok()))
        .expect("free ports")
}
