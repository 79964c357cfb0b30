//! Commands to the map authority and to OSDs.
//!
//! Commands to the monitors survive the loss of a session: they are sent again on the next one. Commands to an OSD are sent once. They fail
//! when the connection is lost, because only the caller can decide whether to repeat them, and when a map shows that the OSD's process has
//! ended.

use super::Shared;
use super::state::PendingCommand;
use bytes::Bytes;
use nacre_engine::engine::{CommandReply, CommandTarget};
use nacre_engine::{Error, Pending, Result};
use nacre_runtime::msgr::Conn;
use nacre_types::errno::Errno;
use nacre_types::msg::{DaemonCommand, MonCommand};
use nacre_types::{OsdId, PgId};
use std::sync::Arc;

pub(super) fn start(
    shared: &Arc<Shared>,
    target: CommandTarget,
    cmd: String,
    input: Bytes,
) -> Pending<CommandReply> {
    let (done, pending) = Pending::channel();
    let mut state = shared.state.lock();
    if *shared.stop.borrow() {
        return Pending::ready(Err(Error::ShutDown));
    }
    let tid = state.next_command();
    let message = MonCommand { tid, cmd, input };
    let to_daemon = target == CommandTarget::MonDaemon;
    let osd = match target {
        CommandTarget::Mon | CommandTarget::MonDaemon => None,
        CommandTarget::Osd(osd) => Some(Ok(osd)),
        CommandTarget::Pg(pg) => Some(primary(&state, pg)),
    };
    let Some(osd) = osd else {
        if let Some(conn) = &state.mon {
            // A closed connection is replaced, and the command is sent on the next one.
            if let Err(error) = send(conn, &message, to_daemon)
                && !matches!(error, nacre_common::Error::Closed)
            {
                return Pending::ready(Err(Error::Invalid {
                    errno: error.errno(),
                    detail: error.to_string(),
                }));
            }
        }
        let deadline_ms = shared.mon_op_timeout.map(|timeout| shared.now_ms() + timeout.as_millis() as u64);
        state.mon_commands.insert(tid, PendingCommand { message, to_daemon, done, deadline_ms });
        return pending;
    };
    let sent = osd.and_then(|osd| {
        let conn = osd_conn(&mut state, osd)?;
        send(&conn, &message, true)
            .map_err(|error| Error::Command { errno: error.errno(), status: format!("{osd}: {error}") })?;
        Ok(osd)
    });
    match sent {
        Ok(osd) => {
            let deadline_ms = shared.op_timeout.map(|timeout| shared.now_ms() + timeout.as_millis() as u64);
            let command = PendingCommand { message, to_daemon: true, done, deadline_ms };
            state.osd_commands.insert(tid, (osd, command));
            pending
        }
        Err(error) => Pending::ready(Err(error)),
    }
}

/// Sends a command of the cluster, or one to the daemon itself.
pub(super) fn send(conn: &Conn, message: &MonCommand, to_daemon: bool) -> nacre_common::Result<()> {
    if !to_daemon {
        return conn.send(message);
    }
    let MonCommand { tid, cmd, input } = message.clone();
    conn.send(&DaemonCommand { tid, cmd, input })
}

/// Sends those commands of `tids` that still wait for an answer to the monitor again, in order. When the connection's queue is full,
/// returns the rest, including the command that did not fit.
pub(super) fn send_again(state: &super::State, conn: &Conn, mut tids: Vec<u64>) -> Vec<u64> {
    for (at, tid) in tids.iter().enumerate() {
        let Some(command) = state.mon_commands.get(tid) else { continue };
        match send(conn, &command.message, command.to_daemon) {
            Ok(()) => {}
            Err(nacre_common::Error::Full) => return tids.split_off(at),
            Err(error) => tracing::warn!(%error, "command not sent again"),
        }
    }
    Vec::new()
}

/// Fails the commands that took longer than `rados_mon_op_timeout`, or `rados_osd_op_timeout` for those to OSDs.
pub(super) fn expire(shared: &Shared, now_ms: u64) {
    let mut expired = Vec::new();
    {
        let mut state = shared.state.lock();
        let due = |command: &PendingCommand| command.deadline_ms.is_some_and(|deadline| deadline <= now_ms);
        let mon: Vec<u64> = state.mon_commands.iter().filter(|(_, c)| due(c)).map(|(tid, _)| *tid).collect();
        let mon = mon.iter().filter_map(|tid| state.mon_commands.remove(tid));
        expired.extend(mon.map(|command| (command, "rados_mon_op_timeout")));
        let osds = state.osd_commands.extract_if(|_, (_, command)| due(command));
        expired.extend(osds.map(|(_, (_, command))| (command, "rados_osd_op_timeout")));
    }
    for (command, option) in expired {
        command.done.complete(Err(timeout_error("answer", option)));
    }
}

/// The error for something that did not arrive within the time set by `option`.
pub(super) fn timeout_error(what: &str, option: &str) -> Error {
    Error::TimedOut(format!("{}: no {what} within {option}", Errno::ETIMEDOUT.text()))
}

fn osd_conn(state: &mut super::State, osd: OsdId) -> Result<Conn> {
    let refuse = |errno, status| Err(Error::Command { errno, status });
    let Some(map) = state.objecter.map() else { return refuse(Errno::ENOTCONN, "no osdmap yet".into()) };
    if !map.osds.contains_key(&osd) {
        return refuse(Errno::ENOENT, format!("{osd} does not exist"));
    }
    match state.osd_conn(osd)? {
        Some(conn) => Ok(conn),
        None => refuse(Errno::ENXIO, format!("{osd} is not up")),
    }
}

fn primary(state: &super::State, pg: PgId) -> Result<OsdId> {
    let refuse = |errno, status| Err(Error::Command { errno, status });
    let Some(map) = state.objecter.map() else { return refuse(Errno::ENOTCONN, "no osdmap yet".into()) };
    if map.pools.get(&pg.pool).is_none_or(|pool| pg.seed >= pool.pg_num) {
        return refuse(Errno::ENOENT, format!("i don't have pgid {pg}"));
    }
    match map.membership(pg) {
        Some(membership) => Ok(membership.primary),
        None => refuse(Errno::EAGAIN, format!("pg {pg} has no primary yet")),
    }
}
