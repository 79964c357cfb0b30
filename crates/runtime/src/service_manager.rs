//! Notifications to the service manager that started the daemon: systemd's `sd_notify` protocol.
//!
//! Messages are datagrams to the socket in `NOTIFY_SOCKET`. Without that variable nothing is sent. If a message can't be sent,
//! the daemon logs that at debug level and continues.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the daemon serves. `systemctl status` shows `status`.
pub fn ready(status: &str) {
    notify(&format!("READY=1\nSTATUS={}", one_line(status)));
}

/// Reports that the daemon is stopping.
pub fn stopping() {
    notify("STOPPING=1");
}

fn one_line(status: &str) -> String {
    status.replace('\n', " ")
}

fn notify(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, message) {
        tracing::debug!(?socket, %error, "can't notify the service manager");
    }
}

/// Sends one message. A name that starts with `@` is in the abstract namespace.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn messages_reach_sockets_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");
        let name = format!("nacre-notify-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
        assert!(send(folder.path().join("nobody").as_os_str(), "READY=1").is_err());
    }

    #[test]
    fn a_status_can_not_carry_other_assignments() {
        assert_eq!(one_line("3 OSDs\nMAINPID=1"), "3 OSDs MAINPID=1");
    }
}
