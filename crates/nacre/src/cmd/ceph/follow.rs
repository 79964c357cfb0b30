//! `ceph -w`: prints the cluster's status, then the lines of its log as they arrive, until the program is ended.

use super::{Failure, command_failed, print};
use crate::cmd::output::Format;
use crate::cmd::session;
use nacre_client::engine::{CommandTarget, LogSubscription};
use nacre_common::config::Invocation;
use nacre_types::msg::LogLine;
use nacre_types::time::stamp;
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc;

/// Maximum number of lines that wait to be printed. If the terminal is stopped, further lines are lost.
const WAITING: usize = 4096;

/// Runs until standard output is closed. In JSON the status and each entry of the log are separate documents of one line,
/// because the output has no end.
pub(super) fn run(
    invocation: &Invocation,
    level: String,
    channel: String,
    format: Format,
) -> Result<(), Failure> {
    let cluster = session::connect(invocation)
        .map_err(|text| Failure::new(format!("Error connecting to the cluster: {text}"), 1))?;
    let (told, lines) = mpsc::sync_channel::<String>(WAITING);
    let follower = Arc::new(move |line: &LogLine| {
        // Full: the terminal is stopped. Closed: the program is ending.
        let _ = told.try_send(match format {
            Format::Plain => text_of(line),
            Format::Json | Format::JsonPretty => document_of(line),
        });
    });
    cluster.engine().follow_log(Some(LogSubscription { level, channel, after: None, follower }));
    let status = match format {
        Format::Plain => r#"{"prefix":"status"}"#,
        Format::Json | Format::JsonPretty => r#"{"prefix":"status","format":"json"}"#,
    };
    let status = cluster.engine().command(CommandTarget::Mon, status.into(), Default::default());
    let status = status.wait().map_err(|error| command_failed(&error))?;
    // JSON documents are not separated by empty lines.
    print(match format {
        Format::Plain => &status.output,
        Format::Json | Format::JsonPretty => status.output.trim_ascii_end(),
    })?;
    print(b"\n")?;
    while let Ok(line) = lines.recv() {
        let mut stdout = std::io::stdout().lock();
        // A closed output is the normal end.
        if stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

/// `2026-11-22T03:08:47.250837+0000 mon.a [WRN] text`, as Ceph's program prints it.
fn text_of(line: &LogLine) -> String {
    let level = match line.level.as_str() {
        "debug" => "DBG",
        "sec" => "SEC",
        "warn" => "WRN",
        "error" => "ERR",
        _ => "INF",
    };
    format!("{} {} [{level}] {}\n", stamp(line.stamp_ns), line.name, line.text)
}

/// An entry of the log for scripts, as one line.
fn document_of(line: &LogLine) -> String {
    let LogLine { name, level, text, .. } = line;
    let shown = json!({ "stamp": stamp(line.stamp_ns), "name": name, "level": level, "message": text });
    format!("{shown}\n")
}
