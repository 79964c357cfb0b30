//! A Kafka broker by `scripts/kafka`.

use super::ports::free_ports;
use super::process::Process;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user that the broker knows, and the password.
pub(crate) const USER: (&str, &str) = ("alice", "alice-secret");

/// A broker that runs.
pub(crate) struct Kafka {
    process: Option<Process>,
    folder: tempfile::TempDir,
    port: u16,
}

impl Kafka {
    /// Starts a broker with an empty folder.
    pub(crate) fn start() -> Kafka {
        let folder = tempfile::Builder::new().prefix("nacre-kafka-").tempdir().unwrap();
        let mut kafka = Kafka { process: None, folder, port: free_ports(5) };
        kafka.restart();
        kafka
    }

    /// Starts the broker again, with its data.
    pub(crate) fn restart(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kafka");
        let log = self.folder.path().join("script.log");
        let mut command = Command::new(script);
        command.arg("run").arg(self.folder.path()).arg(self.port.to_string());
        let mut process = Process::start(&mut command, &log);
        process.wait_for(self.port, &log);
        self.process = Some(process);
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// The address without TLS and SASL.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address with TLS.
    pub(crate) fn tls_address(&self) -> String {
        format!("localhost:{}", self.port + 2)
    }

    /// The address with SASL.
    pub(crate) fn sasl_address(&self) -> String {
        format!("127.0.0.1:{}", self.port + 3)
    }

    /// The address with SASL and TLS.
    pub(crate) fn sasl_tls_address(&self) -> String {
        format!("localhost:{}", self.port + 4)
    }

    /// The certificate that the broker's is verified against.
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }
}
