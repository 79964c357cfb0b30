//! Log lines for the systemd journal, which reads them from stderr.

use std::fmt;
use std::io;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether stderr is connected to the journal: `JOURNAL_STREAM` contains the device and inode of the stream from systemd. If
/// stderr was redirected since, they differ.
pub(super) fn stderr_is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(io::stderr()).is_ok_and(|stat| is_stream(&stream, stat.st_dev, stat.st_ino))
}

fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream
        .split_once(':')
        .is_some_and(|(left, right)| left.parse() == Ok(device) && right.parse() == Ok(inode))
}

/// Formats events as described in sd-daemon(3): each line starts with its priority, `<3>` for errors to `<7>` for debugging. The
/// journal itself records time, level and process.
pub(super) struct JournalFormat(Format<Full, ()>);

impl JournalFormat {
    pub(super) fn new() -> JournalFormat {
        JournalFormat(
            Format::default().without_time().with_level(false).with_ansi(false).with_thread_names(true),
        )
    }
}

impl<S, N> FormatEvent<S, N> for JournalFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        let priority = priority(*event.metadata().level());
        // A line without a priority would be treated as informational.
        text.lines().try_for_each(|line| writeln!(writer, "<{priority}>{}", line.trim_start()))
    }
}

/// The syslog priority of a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Shared {
        type Writer = Shared;
        fn make_writer(&'a self) -> Shared {
            self.clone()
        }
    }

    #[test]
    fn every_line_has_its_priority_and_no_time() {
        let written = Shared::default();
        let layer =
            tracing_subscriber::fmt::layer().event_format(JournalFormat::new()).with_writer(written.clone());
        let log = || {
            tracing::error!(target: "t", osd = 3, "the store failed");
            tracing::warn!(target: "t", "one\ntwo");
            tracing::info!(target: "t", "three");
            tracing::debug!(target: "t", "four");
        };
        let subscriber = tracing_subscriber::registry().with(layer);
        let logger = std::thread::Builder::new().name("worker".into());
        let thread = logger.spawn(move || tracing::subscriber::with_default(subscriber, log)).unwrap();
        thread.join().unwrap();
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let wanted = "<3>worker t: the store failed osd=3\n<4>worker t: one\n<4>two\n<6>worker t: three\n\
                      <7>worker t: four\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn the_stream_is_the_one_that_systemd_named() {
        assert!(is_stream("9:12", 9, 12));
        for other in ["9:13", "8:12", "9", "", ":", "a:b"] {
            assert!(!is_stream(other, 9, 12), "{other}");
        }
    }
}
