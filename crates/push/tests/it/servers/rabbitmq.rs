//! RabbitMQ, an instance of its own beside the system's.

use super::certificates;
use super::ports::free_ports;
use super::process::Process;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Debian's script would change to the system's user and folders; this one is behind it.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// A broker that runs, with the user `guest`.
pub(crate) struct RabbitMq {
    server: Option<Process>,
    /// Erlang's name service, on a port of its own.
    _names: Process,
    folder: tempfile::TempDir,
    port: u16,
}

impl RabbitMq {
    /// Starts a broker with an empty folder.
    pub(crate) fn start() -> RabbitMq {
        let folder = tempfile::Builder::new().prefix("nacre-rabbitmq-").tempdir().unwrap();
        certificates::make(folder.path());
        let port = free_ports(4);
        let path = |name: &str| folder.path().join(name).display().to_string();
        let conf = [
            format!("listeners.tcp.1 = 127.0.0.1:{port}"),
            format!("listeners.ssl.1 = 127.0.0.1:{}", port + 1),
            format!("ssl_options.cacertfile = {}", path("ca.crt")),
            format!("ssl_options.certfile = {}", path("server.crt")),
            format!("ssl_options.keyfile = {}", path("server.key")),
            "ssl_options.verify = verify_none".to_owned(),
            "disk_free_limit.absolute = 1MB".to_owned(),
        ];
        fs::write(path("rabbitmq.conf"), conf.join("\n") + "\n").unwrap();
        fs::write(path("plugins"), "[].\n").unwrap();
        let names_port = (port + 3).to_string();
        let mut epmd = Command::new("epmd");
        epmd.args(["-address", "127.0.0.1", "-port", &names_port]);
        let log = folder.path().join("epmd.log");
        let mut names = Process::start(&mut epmd, &log);
        names.wait_for(port + 3, &log);
        let mut rabbitmq = RabbitMq { server: None, _names: names, folder, port };
        rabbitmq.restart();
        rabbitmq
    }

    /// Starts the broker again, with its data.
    pub(crate) fn restart(&mut self) {
        let path = |name: &str| self.folder.path().join(name);
        let mut command = Command::new(SERVER);
        command
            .env("HOME", self.folder.path())
            .env("ERL_EPMD_PORT", (self.port + 3).to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("nacre{}@localhost", self.port))
            .env("RABBITMQ_DIST_PORT", (self.port + 2).to_string())
            .env("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", path("rabbitmq-env.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins"))
            .env("RABBITMQ_MNESIA_BASE", path("mnesia"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_PID_FILE", path("pid"));
        let log = path("server.log");
        let mut server = Process::start(&mut command, &log);
        server.wait_for(self.port, &log);
        server.wait_for(self.port + 1, &log);
        self.server = Some(server);
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.server = None;
    }

    /// Stops all its processes; whoever is connected gets no answer.
    pub(crate) fn pause(&self) {
        self.server.as_ref().expect("a broker that runs").pause();
    }

    /// Lets a paused broker go on.
    pub(crate) fn resume(&self) {
        self.server.as_ref().expect("a broker that runs").signal("CONT");
    }

    /// The URI without TLS.
    pub(crate) fn uri(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }

    /// The URI with TLS.
    pub(crate) fn tls_uri(&self) -> String {
        format!("amqps://localhost:{}", self.port + 1)
    }

    /// The certificate that the broker's is verified against.
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }
}
