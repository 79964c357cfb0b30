//! `osd compact`: compacts the databases of OSDs while they run, several at a time.

use super::plan::Compact;
use super::{Failure, command_failed, every_osd, session};
use crate::progress::{Progress, Unit};
use nacre_client::engine::CommandTarget;
use nacre_runtime::config::Invocation;
use std::io::Write;
use std::sync::Mutex;

/// Asks every OSD that is meant, at most so many at a time, and prints each answer as it comes. Fails after all were
/// asked where one of them did.
pub(super) fn run(invocation: &Invocation, compact: &Compact) -> Result<(), Failure> {
    let cluster = session::connect(invocation)
        .map_err(|text| Failure::new(format!("Error connecting to the cluster: {text}"), 1))?;
    let targets = match &compact.osds {
        None => every_osd(cluster.osdmap().as_deref()),
        Some(osds) => osds.iter().map(|osd| (format!("{osd}: "), CommandTarget::Osd(*osd))).collect(),
    };
    let (count, threads) = (targets.len(), compact.parallel.min(targets.len()));
    let (queue, told) = (Mutex::new(targets.into_iter()), Mutex::new((0, None)));
    let progress = Progress::start("compacting", Unit::Items("OSDs"), Some(count as u64));
    let next = || queue.lock().ok()?.next();
    let work = || {
        while let Some((name, target)) = next() {
            let command = r#"{"prefix":"compact"}"#.to_owned();
            let outcome = cluster.engine().command(target, command, Vec::new().into()).wait();
            let Ok(mut told) = told.lock() else { return };
            told.0 += 1;
            let done = told.0;
            progress.set(done as u64);
            match outcome {
                Ok(reply) => {
                    let answer: serde_json::Value = serde_json::from_slice(&reply.output).unwrap_or_default();
                    let elapsed = answer["elapsed_time"].as_f64().unwrap_or_default();
                    // Whoever reads our output may have gone; the OSDs are still to be asked.
                    progress.aside(|| {
                        let _ =
                            writeln!(std::io::stdout(), "[{done}/{count}] {name}compacted in {elapsed:.1} s");
                    });
                }
                Err(error) => {
                    let Failure { text, code } = command_failed(&error);
                    progress.aside(|| eprintln!("[{done}/{count}] {name}{text}"));
                    told.1 = Some(code);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    drop(progress);
    cluster.shut_down();
    match told.into_inner() {
        Ok((_, None)) => Ok(()),
        Ok((_, Some(code))) => Err(Failure::new("Error: some OSDs did not compact", code)),
        Err(_) => Err(Failure::new("Error: a thread failed", 1)),
    }
}
