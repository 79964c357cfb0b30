//! Progress of long commands on standard error: a bar where that is a terminal, a line every ten seconds elsewhere.
//! Work that is over at once shows none.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A bar appears after this time.
const BAR_AFTER: Duration = Duration::from_millis(400);
/// Time between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Time between two drawings of a bar to which nothing was added.
const TICK: Duration = Duration::from_millis(200);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes.
    Bytes,
    /// Things of this name, in the plural.
    Items(&'static str),
    /// Nothing: only the time is shown.
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
    /// Shows `what`, of `total` units where that is known.
    pub(crate) fn start(what: impl Into<String>, unit: Unit, total: Option<u64>) -> Progress {
        let what = what.into();
        let bar = std::io::stderr().is_terminal().then(|| bar(&what, unit, total));
        let (done, began) = (AtomicU64::new(0), Instant::now());
        let inner = Arc::new(Inner { what, unit, total, done, began, bar });
        let (over, ended) = mpsc::channel();
        let shown = Arc::clone(&inner);
        let printer = std::thread::Builder::new().name("progress".into()).spawn(move || shown.show(&ended));
        // Without a thread there is no progress, and the work goes on.
        Progress { inner, over: Some(over), printer: printer.ok() }
    }

    /// So many more are done.
    pub(crate) fn add(&self, count: u64) {
        self.set(self.inner.done.fetch_add(count, Ordering::Relaxed) + count);
    }

    /// So many are done in all.
    pub(crate) fn set(&self, done: u64) {
        self.inner.done.store(done, Ordering::Relaxed);
        if let Some(bar) = &self.inner.bar {
            bar.set_position(done);
        }
    }

    /// Prints while the bar is out of the way.
    pub(crate) fn aside(&self, print: impl FnOnce()) {
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
            // It only prints: a panic in it does not concern the command.
            let _ = printer.join();
        }
    }
}

impl Inner {
    /// Shows how far it is until `ended` has no sender.
    fn show(&self, ended: &mpsc::Receiver<()>) {
        let is_over = |wait| ended.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout);
        match &self.bar {
            Some(bar) => {
                if is_over(BAR_AFTER) {
                    return;
                }
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.enable_steady_tick(TICK);
                // The end of the work is all that is waited for.
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
