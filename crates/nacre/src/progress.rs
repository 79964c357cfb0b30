//! Progress of long commands on standard error: a bar on a terminal, otherwise a line every ten seconds. Short commands show
//! none.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A bar appears after this time.
const BAR_AFTER: Duration = Duration::from_millis(400);
/// Interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Interval between redraws of a bar without progress.
const TICK: Duration = Duration::from_millis(200);

/// The unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes.
    Bytes,
    /// Items with this name, in the plural.
    Items(&'static str),
    /// None: only the time is shown.
    Time,
}

/// The progress of one command. Dropping it removes the bar.
pub(crate) struct Progress {
    inner: Arc<Inner>,
    /// Dropped to end the printer.
    over: Option<mpsc::Sender<()>>,
    printer: Option<JoinHandle<()>>,
}

struct Inner {
    what: String,
    unit: Unit,
    total: Option<u64>,
    done: AtomicU64,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Shows `what`, with `total` units if that is known.
    pub(crate) fn start(what: impl Into<String>, unit: Unit, total: Option<u64>) -> Progress {
        let what = what.into();
        let bar = std::io::stderr().is_terminal().then(|| bar(&what, unit, total));
        let (done, began) = (AtomicU64::new(0), Instant::now());
        let inner = Arc::new(Inner { what, unit, total, done, began, bar });
        let (over, ended) = mpsc::channel();
        let shown = Arc::clone(&inner);
        let printer = std::thread::Builder::new().name("progress".into()).spawn(move || shown.show(&ended));
        // Without a thread there is no progress output, and the command continues.
        Progress { inner, over: Some(over), printer: printer.ok() }
    }

    /// Adds finished units.
    pub(crate) fn add(&self, count: u64) {
        self.set(self.inner.done.fetch_add(count, Ordering::Relaxed) + count);
    }

    /// Sets the total number of finished units.
    pub(crate) fn set(&self, done: u64) {
        self.inner.done.store(done, Ordering::Relaxed);
        if let Some(bar) = &self.inner.bar {
            bar.set_position(done);
        }
    }

    /// Prints while the bar is hidden.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        match &self.inner.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(printer) = self.printer.take() {
            // The thread only prints, so a panic in it does not affect the command.
            let _ = printer.join();
        }
    }
}

impl Inner {
    /// Shows the progress until `ended` has no sender.
    fn show(&self, ended: &mpsc::Receiver<()>) {
        let is_over = |wait| ended.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout);
        match &self.bar {
            Some(bar) => {
                if is_over(BAR_AFTER) {
                    return;
                }
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(TICK);
                // Only waits for the end of the work.
                let _ = ended.recv();
                bar.finish_and_clear();
            }
            None => {
                while !is_over(LINE_EVERY) {
                    eprintln!("{}", self.line());
                }
            }
        }
    }

    /// `put-tree: 12 of 40 files (30 %)`.
    fn line(&self) -> String {
        let done = self.done.load(Ordering::Relaxed);
        let amount = |n: u64| match self.unit {
            Unit::Bytes => HumanBytes(n).to_string(),
            _ => n.to_string(),
        };
        let name = match self.unit {
            Unit::Items(name) => format!(" {name}"),
            _ => String::new(),
        };
        let what = &self.what;
        match (self.unit, self.total) {
            (Unit::Time, _) => format!("{what}: {} s", self.began.elapsed().as_secs()),
            (_, None | Some(0)) => format!("{what}: {}{name}", amount(done)),
            (_, Some(total)) => {
                format!("{what}: {} of {}{name} ({} %)", amount(done), amount(total), done * 100 / total)
            }
        }
    }
}

fn bar(what: &str, unit: Unit, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
    let style = ProgressStyle::with_template(template(unit, total.is_some()));
    bar.set_style(style.expect("invariant: the template is well formed"));
    bar.set_message(what.to_owned());
    bar
}

fn template(unit: Unit, bounded: bool) -> &'static str {
    match (unit, bounded) {
        (Unit::Time, _) => "{spinner} {msg} {elapsed}",
        (Unit::Bytes, true) => {
            "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
        }
        (Unit::Bytes, false) => "{spinner} {msg} {binary_bytes} {binary_bytes_per_sec} {elapsed}",
        (Unit::Items(_), true) => "{msg} {wide_bar} {pos}/{len} {eta}",
        (Unit::Items(_), false) => "{spinner} {msg} {pos} {elapsed}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_it_is() {
        let line = |unit, total, done| {
            let progress = Progress::start("copy", unit, total);
            progress.add(done);
            progress.inner.line()
        };
        assert_eq!(line(Unit::Items("files"), Some(40), 12), "copy: 12 of 40 files (30 %)");
        assert_eq!(line(Unit::Items("objects"), None, 7), "copy: 7 objects");
        assert_eq!(line(Unit::Bytes, Some(4 << 20), 1 << 20), "copy: 1.00 MiB of 4.00 MiB (25 %)");
        assert_eq!(line(Unit::Time, None, 0), "copy: 0 s");
    }

    #[test]
    fn every_bar_has_a_template_that_is_valid() {
        for unit in [Unit::Bytes, Unit::Items("files"), Unit::Time] {
            for total in [Some(1), None] {
                bar("copy", unit, total).inc(1);
            }
        }
    }
}
