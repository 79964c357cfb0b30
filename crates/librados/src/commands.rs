//! Commands to the map authority and to daemons, in Ceph's JSON form.
//!
//! The map authority also executes the commands of Ceph's manager.

use crate::abi::{CStrPtr, Handle, InArray, InBuf, MallocBuf, OutPtr};
use crate::client::{CLIENTS, Client};
use crate::guard::{ApiResult, exports};
use nacre_client::engine::CommandTarget;
use nacre_client::{CommandReply, Error};
use nacre_types::command::is_mon_command;
use nacre_types::errno::Errno;
use nacre_types::{OsdId, PgId};
use std::ffi::c_int;

/// Places for a command's results: data and text, each with its length.
#[derive(Clone, Copy)]
struct Results {
    output: OutPtr<MallocBuf>,
    output_len: OutPtr<usize>,
    status: OutPtr<MallocBuf>,
    status_len: OutPtr<usize>,
}

impl Results {
    /// The places, set to empty: callers read them even if the call fails.
    fn empty(
        output: OutPtr<MallocBuf>,
        output_len: OutPtr<usize>,
        status: OutPtr<MallocBuf>,
        status_len: OutPtr<usize>,
    ) -> ApiResult<Results> {
        let results = Results { output, output_len, status, status_len };
        results.store(&[], "")?;
        Ok(results)
    }

    fn store(self, output: &[u8], status: &str) -> ApiResult<()> {
        // Output that the caller does not want is not allocated, because it would never be freed.
        if let Ok(place) = self.output.required() {
            place.set(MallocBuf::data(output)?);
        }
        self.output_len.set(output.len());
        if let Ok(place) = self.status.required() {
            place.set(MallocBuf::data(status.as_bytes())?);
        }
        self.status_len.set(status.len());
        Ok(())
    }
}

/// The command's JSON. Callers may pass it in parts.
fn json(cmd: InArray<CStrPtr>, cmdlen: usize) -> ApiResult<String> {
    let parts: ApiResult<Vec<&str>> = cmd.slice(cmdlen)?.iter().map(CStrPtr::text).collect();
    Ok(parts?.concat())
}

/// The target of a command. The map authority also acts as the manager.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Target(CommandTarget),
    Manager,
    /// The manager as a daemon (`tell mgr.x`).
    ManagerDaemon,
}

fn run(
    cluster: Handle,
    asked: Asked,
    cmd: InArray<CStrPtr>,
    cmdlen: usize,
    input: (InBuf, usize),
    results: Results,
) -> ApiResult<c_int> {
    let client = CLIENTS.get(cluster)?;
    let target = match asked {
        Asked::Target(target) => target,
        Asked::Manager | Asked::ManagerDaemon => CommandTarget::Mon,
    };
    let command = json(cmd, cmdlen)?;
    let input = input.0.copy(input.1)?;
    match client.cluster()?.engine().command(target, command.clone(), input).wait() {
        Ok(CommandReply { status, output }) => {
            let ends = asked == Asked::ManagerDaemon && wants_json(&command);
            let output = if ends { output.trim_ascii_end() } else { &output[..] };
            results.store(output, &status)?;
            Ok(0)
        }
        Err(Error::Command { errno, status }) => {
            let manager = matches!(asked, Asked::Manager | Asked::ManagerDaemon);
            let of_manager = manager.then(|| unknown_to_manager(&command, errno)).flatten();
            results.store(&[], &of_manager.unwrap_or(status))?;
            Ok(errno.negated())
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a command asks for JSON, which Ceph's daemons answer without an end of line.
fn wants_json(command: &str) -> bool {
    let fields: serde_json::Value = serde_json::from_str(command).unwrap_or_default();
    fields["format"] == "json"
}

/// The text with which Ceph's manager rejects an unknown command, if the map authority does not know it either.
fn unknown_to_manager(command: &str, errno: Errno) -> Option<String> {
    let fields: serde_json::Value = serde_json::from_str(command).ok()?;
    let prefix = fields["prefix"].as_str().unwrap_or_default();
    let unknown = errno == Errno::EINVAL && !is_mon_command(prefix);
    unknown.then(|| format!("No handler found for '{prefix}'"))
}

/// Returns ENOENT unless the map authority has this name or rank. An empty name matches any.
fn check_mon(client: &Client, name: &str) -> ApiResult<()> {
    if name.is_empty() {
        return Ok(());
    }
    let dump = serde_json::json!({ "prefix": "mon dump" });
    let dump = nacre_client::block_on(client.cluster()?.command_json(dump))?;
    let mons = dump["mons"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rank = name.parse::<u64>().ok();
    let known =
        mons.iter().any(|mon| mon["name"] == name || (rank.is_some() && mon["rank"].as_u64() == rank));
    if known { Ok(()) } else { Err(Errno::ENOENT.into()) }
}

exports! {
    /// Runs a command of the map authority.
    fn rados_mon_command(
        cluster: Handle,
        cmd: InArray<CStrPtr>,
        cmdlen: usize,
        inbuf: InBuf,
        inbuflen: usize,
        outbuf: OutPtr<MallocBuf>,
        outbuflen: OutPtr<usize>,
        outs: OutPtr<MallocBuf>,
        outslen: OutPtr<usize>,
    ) -> c_int {
        let results = Results::empty(outbuf, outbuflen, outs, outslen)?;
        run(cluster, Asked::Target(CommandTarget::Mon), cmd, cmdlen, (inbuf, inbuflen), results)
    }

    /// Runs a command of the map authority with this name.
    fn rados_mon_command_target(
        cluster: Handle,
        name: CStrPtr,
        cmd: InArray<CStrPtr>,
        cmdlen: usize,
        inbuf: InBuf,
        inbuflen: usize,
        outbuf: OutPtr<MallocBuf>,
        outbuflen: OutPtr<usize>,
        outs: OutPtr<MallocBuf>,
        outslen: OutPtr<usize>,
    ) -> c_int {
        let results = Results::empty(outbuf, outbuflen, outs, outslen)?;
        let name = name.text_or_empty()?;
        check_mon(&*CLIENTS.get(cluster)?, name)?;
        // A named one is addressed as a daemon (`tell mon.a`), as in Ceph's library.
        let target = if name.is_empty() { CommandTarget::Mon } else { CommandTarget::MonDaemon };
        run(cluster, Asked::Target(target), cmd, cmdlen, (inbuf, inbuflen), results)
    }

    /// Runs a command of the manager.
    fn rados_mgr_command(
        cluster: Handle,
        cmd: InArray<CStrPtr>,
        cmdlen: usize,
        inbuf: InBuf,
        inbuflen: usize,
        outbuf: OutPtr<MallocBuf>,
        outbuflen: OutPtr<usize>,
        outs: OutPtr<MallocBuf>,
        outslen: OutPtr<usize>,
    ) -> c_int {
        let results = Results::empty(outbuf, outbuflen, outs, outslen)?;
        run(cluster, Asked::Manager, cmd, cmdlen, (inbuf, inbuflen), results)
    }

    /// Runs a command of the manager with this name. There is only one.
    fn rados_mgr_command_target(
        cluster: Handle,
        _name: CStrPtr,
        cmd: InArray<CStrPtr>,
        cmdlen: usize,
        inbuf: InBuf,
        inbuflen: usize,
        outbuf: OutPtr<MallocBuf>,
        outbuflen: OutPtr<usize>,
        outs: OutPtr<MallocBuf>,
        outslen: OutPtr<usize>,
    ) -> c_int {
        let results = Results::empty(outbuf, outbuflen, outs, outslen)?;
        run(cluster, Asked::ManagerDaemon, cmd, cmdlen, (inbuf, inbuflen), results)
    }

    /// Runs a command of an OSD.
    fn rados_osd_command(
        cluster: Handle,
        osdid: c_int,
        cmd: InArray<CStrPtr>,
        cmdlen: usize,
        inbuf: InBuf,
        inbuflen: usize,
        outbuf: OutPtr<MallocBuf>,
        outbuflen: OutPtr<usize>,
        outs: OutPtr<MallocBuf>,
        outslen: OutPtr<usize>,
    ) -> c_int {
        let results = Results::empty(outbuf, outbuflen, outs, outslen)?;
        let osd = OsdId(u32::try_from(osdid).map_err(|_| Errno::EINVAL)?);
        run(cluster, Asked::Target(CommandTarget::Osd(osd)), cmd, cmdlen, (inbuf, inbuflen), results)
    }

    /// Runs a command of a PG's primary.
    fn rados_pg_command(
        cluster: Handle,
        pgstr: CStrPtr,
        cmd: InArray<CStrPtr>,
        cmdlen: usize,
        inbuf: InBuf,
        inbuflen: usize,
        outbuf: OutPtr<MallocBuf>,
        outbuflen: OutPtr<usize>,
        outs: OutPtr<MallocBuf>,
        outslen: OutPtr<usize>,
    ) -> c_int {
        let results = Results::empty(outbuf, outbuflen, outs, outslen)?;
        let pg: PgId = pgstr.text()?.parse().map_err(|_| Errno::EINVAL)?;
        run(cluster, Asked::Target(CommandTarget::Pg(pg)), cmd, cmdlen, (inbuf, inbuflen), results)
    }

    /// Requests the status of the map authority, without a session. The answer is JSON.
    fn rados_ping_monitor(cluster: Handle, mon_id: CStrPtr, outstr: OutPtr<MallocBuf>, outstrlen: OutPtr<usize>) -> c_int {
        let client = CLIENTS.get(cluster)?;
        let name = mon_id.text()?.to_owned();
        if name.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        let (asked, own) = match client.cluster() {
            Ok(_) => (client, None),
            Err(_) => {
                let own = Client::create(client.settings());
                (CLIENTS.get(own)?, Some(own))
            }
        };
        let answer = ping(&asked, &name, own.is_some());
        if let Some(own) = own {
            CLIENTS.remove(own)?.shut_down();
        }
        let answer = answer?;
        if let Ok(place) = outstr.required() {
            place.set(MallocBuf::nul_terminated(answer.as_bytes())?);
        }
        outstrlen.set(answer.len());
        Ok(0)
    }

    /// Frees memory that other functions returned.
    fn rados_buffer_free(buf: MallocBuf) {
        buf.free();
        Ok(())
    }
}

fn ping(client: &Client, name: &str, connect: bool) -> ApiResult<String> {
    if connect {
        client.connect()?;
    }
    check_mon(client, name)?;
    let cluster = client.cluster()?;
    let json = |prefix: &str| serde_json::json!({ "prefix": prefix });
    let health = nacre_client::block_on(cluster.command_json(json("health")))?;
    let status = nacre_client::block_on(cluster.command_json(json("quorum_status")))?;
    Ok(serde_json::json!({ "health": health, "mon_status": status }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_unknown_to_the_manager_get_its_words() {
        let of = |command: &str| unknown_to_manager(command, Errno::EINVAL);
        assert_eq!(of(r#"{"prefix":"nonesuch"}"#).unwrap(), "No handler found for 'nonesuch'");
        assert_eq!(of("{}").unwrap(), "No handler found for ''");
        assert_eq!(of(r#"{"prefix":"osd tree","states":"x"}"#), None, "a wrong argument is another matter");
        assert_eq!(unknown_to_manager(r#"{"prefix":"iostat"}"#, Errno::EOPNOTSUPP), None);
    }
}
