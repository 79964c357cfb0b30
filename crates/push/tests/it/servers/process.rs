//! A server's process with all that it starts.

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server gets to start.
const PATIENCE: Duration = Duration::from_secs(120);

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        // Not a panic: a test that fails ends its servers this way too.
        if Instant::now() > deadline {
            return eprintln!("never: {what}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

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

    /// Stops all processes of the group, and waits until none of their threads runs.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        wait_until("the group is stopped", || {
            self.threads().iter().all(|state| matches!(state, 'T' | 'Z' | 'X'))
        });
    }

    /// The states of all threads in the group, as `/proc/PID/task/TID/stat` has them.
    fn threads(&self) -> Vec<char> {
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        // Behind the name, which may hold anything: state, parent, group. What has ended meanwhile has no file.
        let stat = |path: &Path| -> Option<(char, u32)> {
            let text = std::fs::read_to_string(path.join("stat")).ok()?;
            let mut fields = text.rsplit_once(')')?.1.split_whitespace();
            Some((fields.next()?.chars().next()?, fields.nth(1)?.parse().ok()?))
        };
        let of_group = entries(Path::new("/proc"))
            .map(|entry| entry.path())
            .filter(|path| stat(path).is_some_and(|(_, group)| group == self.0.id()));
        let threads = of_group.flat_map(|path| entries(&path.join("task")));
        threads.filter_map(|thread| stat(&thread.path())).map(|(state, _)| state).collect()
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
        // The others end by themselves, soon; until then they may answer.
        wait_until("the group has ended", || self.threads().iter().all(|state| matches!(state, 'Z' | 'X')));
        _ = self.0.wait();
    }
}
