//! `nacre ceph WORDS…`, and the same words directly: the `ceph` program's commands, output and exit codes.
//!
//! The shared table of signatures converts words to a command's JSON. The target daemon executes it.

mod cache_sizing;
mod command_line;
mod compact;
mod daemon;
mod dirty;
mod follow;

use super::output::Format;
use super::session;
use command_line::{Action, Destination, ParseError, ParsedCommand};
use nacre_client::engine::CommandTarget;
use nacre_client::{Cluster, CommandReply, Error};
use nacre_types::errno::Errno;
use nacre_types::osdmap::OsdMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) use command_line::CLIENT_SIDE_COMMANDS;

/// What `--help` prints.
pub(super) fn help() -> String {
    command_line::help_for(&[])
}

/// The end of the program, with its text for standard error.
struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    fn new(text: impl Into<String>, code: u8) -> Failure {
        Failure { text: text.into(), code }
    }

    /// A failed command, as the `ceph` program reports it.
    fn command(errno: Errno, text: &str) -> Failure {
        Failure::new(format!("Error {}: {text}", errno.name()), exit_code(errno))
    }
}

fn exit_code(errno: Errno) -> u8 {
    u8::try_from(errno.0).unwrap_or(1).max(1)
}

/// Runs the program with the arguments after `nacre` or `nacre ceph`.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { text, code }) => {
            eprintln!("{text}");
            ExitCode::from(code)
        }
    }
}

fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let mut invocation = session::parse(args).map_err(|text| Failure::new(text, exit_code(Errno::EINVAL)))?;
    let plan = ParsedCommand::parse(&invocation.rest).map_err(refused)?;
    let (action, format, input, output, connect_timeout) =
        (plan.action, plan.format, plan.input, plan.output, plan.connect_timeout);
    let (destination, command) = match action {
        Action::Help(text) => return print(text.as_bytes()),
        Action::Daemon { socket, command } => return daemon::ask(&invocation, &socket, &command),
        Action::Compact(compact) => {
            let format = format.as_deref().and_then(Format::from_name).unwrap_or_default();
            return compact::run(&invocation, &compact, format);
        }
        Action::Advise(pool) => {
            let format = format.as_deref().and_then(Format::from_name).unwrap_or_default();
            return cache_sizing::run(&invocation, &pool, format);
        }
        Action::Dirty(pool) => {
            let format = format.as_deref().and_then(Format::from_name).unwrap_or_default();
            return dirty::run(&invocation, &pool, format);
        }
        Action::Watch { level, channel } => {
            let format = format.as_deref().and_then(Format::from_name).unwrap_or_default();
            return follow::run(&invocation, level, channel, format);
        }
        Action::Command { destination, command } => (destination, command),
    };
    let input = input.map(|path| read_input(&path)).transpose()?.unwrap_or_default();
    if let Some(seconds) = connect_timeout {
        invocation.options.push(("client_mount_timeout".to_owned(), seconds.to_string()));
    }
    let cluster = session::connect(&invocation)
        .map_err(|text| Failure::new(format!("Error connecting to the cluster: {text}"), 1))?;
    let result = carry_out(&cluster, &destination, &command, input, format.is_some(), output.as_deref());
    cluster.shut_down();
    result
}

fn refused(problem: ParseError) -> Failure {
    match problem {
        ParseError::Usage(text) => Failure::new(text, exit_code(Errno::EINVAL)),
        ParseError::Command(text) => {
            Failure::new(format!("{text}\nError EINVAL: invalid command"), exit_code(Errno::EINVAL))
        }
        ParseError::Refused(text) => {
            Failure::new(format!("Error EOPNOTSUPP: {text}"), exit_code(Errno::EOPNOTSUPP))
        }
    }
}

fn carry_out(
    cluster: &Cluster,
    destination: &Destination,
    command: &str,
    input: Vec<u8>,
    formatted: bool,
    output: Option<&Path>,
) -> Result<(), Failure> {
    let targets = match destination {
        Destination::Mon => vec![(String::new(), CommandTarget::Mon)],
        Destination::MonDaemon => vec![(String::new(), CommandTarget::MonDaemon)],
        Destination::Osd(osd) => vec![(String::new(), CommandTarget::Osd(*osd))],
        Destination::Pg(pg) => vec![(String::new(), CommandTarget::Pg(*pg))],
        Destination::AllOsds => every_osd(cluster.osdmap().as_deref()),
    };
    let mut worst = None;
    for (prefix, target) in targets {
        match cluster.engine().command(target, command.to_owned(), input.clone().into()).wait() {
            Ok(reply) => deliver(&prefix, &reply, formatted, output)?,
            Err(error) => {
                let Failure { text, code } = command_failed(&error);
                worst = Some(Failure::new(format!("{prefix}{text}"), code));
                if !prefix.is_empty() {
                    eprintln!("{prefix}{text}");
                }
            }
        }
    }
    match worst {
        // Errors of several targets were printed when they occurred.
        Some(failure) if *destination == Destination::AllOsds => {
            Err(Failure::new("Error: some OSDs did not carry out the command", failure.code))
        }
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

fn every_osd(map: Option<&OsdMap>) -> Vec<(String, CommandTarget)> {
    let osds = map.into_iter().flat_map(|map| &map.osds);
    let up = osds.filter(|(_, info)| info.up);
    up.map(|(osd, _)| (format!("{osd}: "), CommandTarget::Osd(*osd))).collect()
}

fn command_failed(error: &Error) -> Failure {
    match error {
        Error::Command { errno, status } => Failure::command(*errno, status),
        other => Failure::command(other.errno(), &other.to_string()),
    }
}

/// Prints a reply: its text on standard error, its data to the file or on standard output.
fn deliver(
    prefix: &str,
    reply: &CommandReply,
    formatted: bool,
    output: Option<&Path>,
) -> Result<(), Failure> {
    if !reply.status.is_empty() {
        eprintln!("{prefix}{}", reply.status);
    }
    match output.filter(|path| *path != Path::new("-")) {
        Some(path) => std::fs::write(path, &reply.output)
            .map_err(|e| Failure::new(format!("Can't open output file {}: {e}", path.display()), 1)),
        None => print(&printed(prefix, &reply.output, formatted, output.is_some())),
    }
}

/// Adds an empty line before JSON, as the `ceph` program does and scripts that skip the first line expect, and a newline after
/// text. Raw data (`-o -`) is unchanged.
fn printed(prefix: &str, output: &[u8], formatted: bool, raw: bool) -> Vec<u8> {
    if raw || output.is_empty() {
        return output.to_vec();
    }
    let is_text = std::str::from_utf8(output).is_ok_and(|text| !text.contains('\0'));
    if !is_text {
        return output.to_vec();
    }
    let mut out = Vec::with_capacity(output.len() + 2);
    if formatted {
        out.push(b'\n');
    }
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(output);
    if out.last() != Some(&b'\n') {
        out.push(b'\n');
    }
    out
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|e| Failure::new(format!("error writing to stdout: {e}"), 1)),
    }
}

fn read_input(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut data).map(drop)
    } else {
        std::fs::read(path).map(|bytes| data = bytes)
    };
    read.map_err(|e| Failure::new(format!("Can't open input file {}: {e}", path.display()), 1))?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_comes_after_an_empty_line_and_data_as_it_is() {
        assert_eq!(printed("", b"{}", true, false), b"\n{}\n");
        assert_eq!(printed("osd.1: ", b"text\n", false, false), b"osd.1: text\n");
        assert_eq!(printed("", b"\0\xff", false, false), b"\0\xff");
        assert_eq!(printed("", b"abc", true, true), b"abc");
        assert_eq!(printed("", b"", true, false), b"");
    }

    #[test]
    fn failures_exit_with_their_number() {
        let error = Error::Command { errno: Errno::ENOENT, status: "unrecognized pool 'x'".into() };
        let Failure { text, code } = command_failed(&error);
        assert_eq!((text.as_str(), code), ("Error ENOENT: unrecognized pool 'x'", 2));
    }
}
