//! `osd compact`: compacts the databases of OSDs while they run, several at a time.

use super::command_line::Compact;
use super::{Failure, command_failed, every_osd, print, printed, session};
use crate::cmd::output::Format;
use crate::progress::{Progress, Unit};
use nacre_client::engine::CommandTarget;
use nacre_common::config::Invocation;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Mutex;

/// Sends the command to every selected OSD, with a limit on concurrency. Prints each answer as it arrives, or all of them as one
/// document. Fails at the end if one of them failed.
pub(super) fn run(invocation: &Invocation, compact: &Compact, format: Format) -> Result<(), Failure> {
    let cluster = session::connect(invocation)
        .map_err(|text| Failure::new(format!("Error connecting to the cluster: {text}"), 1))?;
    let targets = match &compact.osds {
        None => every_osd(cluster.osdmap().as_deref()),
        Some(osds) => osds.iter().map(|osd| (format!("{osd}: "), CommandTarget::Osd(*osd))).collect(),
    };
    let (count, threads) = (targets.len(), compact.parallel.min(targets.len()));
    let (queue, told) = (Mutex::new(targets.into_iter()), Mutex::new(Told::default()));
    let progress = Progress::start("compacting", Unit::Items("OSDs"), Some(count as u64));
    let next = || queue.lock().ok()?.next();
    let work = || {
        while let Some((name, target)) = next() {
            let command = r#"{"prefix":"compact"}"#.to_owned();
            let outcome = cluster.engine().command(target, command, Vec::new().into()).wait();
            let Ok(mut told) = told.lock() else { return };
            let done = told.answers.len() + 1;
            progress.set(done as u64);
            let osd = name.trim_end_matches(": ");
            match outcome {
                Ok(reply) => {
                    let answer: Value = serde_json::from_slice(&reply.output).unwrap_or_default();
                    let elapsed = answer["elapsed_time"].as_f64().unwrap_or_default();
                    told.answers.push(compacted(osd, Ok(elapsed)));
                    // An error of the output must not stop the commands to the other OSDs.
                    progress.suspend(|| {
                        let text = format!("[{done}/{count}] {name}compacted in {elapsed:.1} s");
                        let _ = writeln!(format.text_writer(), "{text}");
                    });
                }
                Err(error) => {
                    let Failure { text, code } = command_failed(&error);
                    told.answers.push(compacted(osd, Err(&text)));
                    progress.suspend(|| eprintln!("[{done}/{count}] {name}{text}"));
                    told.failure = Some(code);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    drop(progress);
    cluster.shut_down();
    let Ok(told) = told.into_inner() else { return Err(Failure::new("Error: a thread failed", 1)) };
    if format != Format::Plain {
        print(&printed("", format.render(&told.answers.into()).as_bytes(), true, false))?;
    }
    match told.failure {
        None => Ok(()),
        Some(code) => Err(Failure::new("Error: some OSDs did not compact", code)),
    }
}

/// The answers of OSDs so far, and the code of the last failure.
#[derive(Default)]
struct Told {
    answers: Vec<Value>,
    failure: Option<u8>,
}

/// An OSD's answer for scripts: the seconds it took, or why it did not compact.
fn compacted(osd: &str, outcome: Result<f64, &str>) -> Value {
    match outcome {
        Ok(seconds) => json!({ "osd": osd, "elapsed_time": seconds }),
        Err(error) => json!({ "osd": osd, "error": error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_described_for_scripts() {
        assert_eq!(compacted("osd.1", Ok(0.5)).to_string(), r#"{"osd":"osd.1","elapsed_time":0.5}"#);
        let failed = compacted("osd.2", Err("Error ENXIO: problem getting command descriptions"));
        assert_eq!(failed["error"], "Error ENXIO: problem getting command descriptions");
    }
}
