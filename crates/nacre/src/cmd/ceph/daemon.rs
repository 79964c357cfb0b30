//! `ceph daemon NAME|PATH COMMAND`: sends a command to a daemon of this machine through its admin socket.

use super::{Failure, exit_code, print};
use crate::cmd::ceph::command_line::AdminSocketRef;
use nacre_common::config::{Config, Invocation};
use nacre_runtime::admin::socket;
use nacre_types::errno::Errno;
use std::path::PathBuf;

/// Sends the command and prints the answer.
pub(super) fn ask(invocation: &Invocation, target: &AdminSocketRef, command: &str) -> Result<(), Failure> {
    let path = match target {
        AdminSocketRef::Path(path) => path.clone(),
        AdminSocketRef::OfDaemon(entity) => {
            let invocation = Invocation { entity: entity.clone(), ..invocation.clone() };
            let config = Config::load(&invocation).map_err(|error| Failure::new(error.to_string(), 22))?;
            PathBuf::from(&config.get().global.admin_socket)
        }
    };
    let output = socket::send_command(&path, command).map_err(|error| {
        let number = error.raw_os_error().map_or(Errno::EIO, Errno);
        Failure::new(
            format!("admin_socket: {}: [Errno {}] {}", path.display(), number.0, number.text()),
            exit_code(Errno::EINVAL),
        )
    })?;
    if let Some(failed) = output.strip_prefix(b"ERROR: ") {
        let text = String::from_utf8_lossy(failed);
        let number = text.trim_start_matches('(').split(')').next().and_then(|number| number.parse().ok());
        return Err(Failure::new(
            format!("ERROR: {}", text.trim_end()),
            exit_code(Errno(number.unwrap_or(22))),
        ));
    }
    print(&output)
}
