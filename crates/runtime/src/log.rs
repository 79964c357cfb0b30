//! Logging: the options `log_*` and `debug_*` decide which lines are written, and where.
//!
//! One subscriber serves all daemons of the process and follows option changes. `debug_X = N` becomes a level for the modules of
//! subsystem X: 0 warnings, 1 to 5 state changes (info), 6 to 15 operations (debug), above that everything (trace).

mod journal;

use arc_swap::ArcSwap;
use nacre_common::config::Config;
use nacre_common::error::{Error, Result};
use nacre_common::options::{DebugLevel, LogLevel, Options};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, reload};

/// The modules of each subsystem and its option.
type Subsystem = (&'static [&'static str], fn(&Options) -> DebugLevel);

const SUBSYSTEMS: &[Subsystem] = &[
    (&["nacre_common::auth"], |o| o.debug.debug_auth),
    (&["nacre_runtime::msgr"], |o| o.debug.debug_ms),
    (&["nacre_mon", "nacre_monitor"], |o| o.debug.debug_mon),
    (&["nacre_client::native::mon"], |o| o.debug.debug_monc),
    (&["nacre_osd", "nacre_shard", "nacre_exec", "nacre_pg"], |o| o.debug.debug_osd),
    (&["nacre_store::blue"], |o| o.debug.debug_bluestore),
    (&["nacre_store::blue::device"], |o| o.debug.debug_bdev),
    (&["nacre_store::blue::db"], |o| o.debug.debug_rocksdb),
    (&["nacre_objectstore::mem"], |o| o.debug.debug_memstore),
    (&["nacre_store::file"], |o| o.debug.debug_filestore),
    (&["nacre_crush"], |o| o.debug.debug_crush),
    (&["nacre_objecter"], |o| o.debug.debug_objecter),
    (&["nacre_client", "nacre_engine"], |o| o.debug.debug_rados),
];

const OPTION_NAMES: &[&str] = &[
    "log_level",
    "debug_auth",
    "debug_ms",
    "debug_mon",
    "debug_monc",
    "debug_osd",
    "debug_bluestore",
    "debug_bdev",
    "debug_rocksdb",
    "debug_memstore",
    "debug_filestore",
    "debug_crush",
    "debug_objecter",
    "debug_rados",
];

fn level_of(debug: DebugLevel) -> LevelFilter {
    match debug.log {
        0 => LevelFilter::WARN,
        1..=5 => LevelFilter::INFO,
        6..=15 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn filter(options: &Options) -> Targets {
    let default = match options.global.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let mut targets = Targets::new().with_default(default);
    for (modules, level) in SUBSYSTEMS {
        for module in *modules {
            targets = targets.with_target(*module, level_of(level(options)));
        }
    }
    // The S3 library logs every refused request as an error; requests are in metrics and the access log.
    if default < LevelFilter::DEBUG {
        targets = targets.with_target("s3s", LevelFilter::OFF);
    }
    targets
}

/// A log file that can be reopened while threads write to it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: ArcSwap<File>,
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
    opened.map_err(|e| Error::io("open log file", path, e))
}

impl LogFile {
    /// Opens `path` for appending. Creates its directory if that is missing.
    pub fn open(path: &Path) -> Result<LogFile> {
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
        }
        Ok(LogFile { path: path.to_owned(), file: ArcSwap::from_pointee(open(path)?) })
    }

    /// Opens the path again, after the file was moved away. If that fails, keeps the old file.
    pub fn reopen(&self) -> Result<()> {
        self.file.store(Arc::new(open(&self.path)?));
        Ok(())
    }
}

/// Writes one line to the file. The formatter passes whole lines, and appending writes are atomic.
#[derive(Debug)]
pub struct LineWriter(Arc<File>);

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (&*self.0).write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.0).flush()
    }
}

#[derive(Debug, Clone)]
struct LogFileHandle(Arc<LogFile>);

impl<'a> MakeWriter<'a> for LogFileHandle {
    type Writer = LineWriter;

    fn make_writer(&'a self) -> LineWriter {
        LineWriter(self.0.file.load_full())
    }
}

/// The running log.
#[derive(Debug, Clone)]
pub struct Log {
    file: Option<Arc<LogFile>>,
    journal: bool,
}

impl Log {
    /// Reopens the file. A failure is logged and the old file kept.
    fn reopen(&self) {
        if let Some(file) = &self.file
            && let Err(error) = file.reopen()
        {
            tracing::error!(%error, "can't reopen the log file");
        }
    }
}

/// The process's log, once started.
static RUNNING: OnceLock<Log> = OnceLock::new();
/// Number of calls of [`reopen`].
static REOPENED: AtomicU64 = AtomicU64::new(0);

/// Reopens the process's log file, and makes other log files be reopened (SIGHUP, `log reopen`).
pub fn reopen() {
    REOPENED.fetch_add(1, Ordering::Relaxed);
    if let Some(log) = RUNNING.get() {
        log.reopen();
    }
    tracing::info!("log files are reopened");
}

/// Number of calls of [`reopen`]. The owner of an open log file reopens it when this changes.
pub fn reopen_count() -> u64 {
    REOPENED.load(Ordering::Relaxed)
}

/// Whether the process logs to the systemd journal: it was started with the journal as its stderr, and `log_to_journald` is on.
pub fn logs_to_journal() -> bool {
    RUNNING.get().is_some_and(|log| log.journal)
}

/// Starts logging for the process by `config`'s options, and follows their changes. If stderr is the systemd journal, lines are
/// written only there, unless `log_to_journald` is off. In the foreground, lines are written to stderr whatever `log_to_stderr`
/// is. If a log file can't be opened, reports that and uses stderr instead. Fails if logging was started before.
pub fn start(config: &Config, foreground: bool) -> Result<Log> {
    let options = config.snapshot();
    let path = options.global.log_file.trim();
    let journal = options.global.log_to_journald && journal::stderr_is_journal();
    let wanted = !journal && options.global.log_to_file && !path.is_empty();
    let (file, problem) = match wanted.then(|| LogFile::open(Path::new(path))) {
        Some(Ok(file)) => (Some(Arc::new(file)), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let stderr = foreground || options.global.log_to_stderr || problem.is_some();
    let (filter, reload) = reload::Layer::new(filter(&options));
    let layer = || tracing_subscriber::fmt::layer().with_thread_names(true).with_ansi(false);
    let mut outputs = Vec::new();
    if let Some(file) = &file {
        outputs.push(layer().with_writer(LogFileHandle(file.clone())).boxed());
    }
    if journal {
        let layer = tracing_subscriber::fmt::layer().event_format(journal::JournalFormat::new());
        outputs.push(layer.with_writer(io::stderr).boxed());
    } else if stderr {
        outputs.push(layer().with_writer(io::stderr).boxed());
    }
    let subscriber = tracing_subscriber::registry().with(outputs).with(filter);
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|_| Error::Usage("logging has been started before".into()))?;
    if let Some(error) = problem {
        tracing::warn!(%error, "logging to stderr instead");
    }
    config.observe(OPTION_NAMES, move |options, _| {
        // Fails only if the subscriber does not exist any more.
        let _ = reload.reload(self::filter(options));
    });
    let log = Log { file, journal };
    // Logging was not started before, as checked above.
    let _ = RUNNING.set(log.clone());
    Ok(log)
}

/// The target of log lines that tell users why their command waits.
pub const NOTICE_TARGET: &str = "notice";

/// Prints lines to [`NOTICE_TARGET`] on stderr, for programs without a log. A started log prints them itself.
pub fn print_notices_to_stderr() {
    let lines = tracing_subscriber::fmt::layer().without_time().with_level(false).with_target(false);
    let lines = lines.with_ansi(false).with_writer(io::stderr);
    let filter = Targets::new().with_target(NOTICE_TARGET, LevelFilter::WARN);
    // Fails if the process has a log.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines).with(filter));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_common::config::ConfigBuilder;
    use nacre_types::ids::EntityName;
    use tracing::Level;

    #[test]
    fn modules_of_subsystems_exist() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for module in SUBSYSTEMS.iter().flat_map(|(modules, _)| *modules) {
            let mut parts = module.split("::");
            let folder = parts.next().unwrap().strip_prefix("nacre_").unwrap();
            let mut path = crates.join(folder).join("src");
            path.extend(parts);
            assert!(
                path.is_dir() || path.with_extension("rs").is_file(),
                "{module}: there is no {}",
                path.display()
            );
        }
    }

    #[test]
    fn debug_options_decide_for_their_modules() {
        let config = ConfigBuilder::new(EntityName::client("a"))
            .set("log_level", "warn")
            .set("debug_osd", "10")
            .set("debug_bluestore", "20/0")
            .build()
            .unwrap();
        let targets = filter(&config.get());
        assert!(targets.would_enable("nacre_shard::shard", &Level::DEBUG));
        assert!(!targets.would_enable("nacre_shard::shard", &Level::TRACE));
        assert!(targets.would_enable("nacre_store::bluestore::alloc", &Level::TRACE));
        assert!(!targets.would_enable("nacre_runtime::msgr::link", &Level::INFO));
        assert!(targets.would_enable("nacre_runtime::msgr::link", &Level::WARN));
        assert!(!targets.would_enable("elsewhere", &Level::INFO));
        assert!(targets.would_enable(NOTICE_TARGET, &Level::WARN));
    }

    #[test]
    fn every_debug_option_of_a_subsystem_is_followed() {
        for name in OPTION_NAMES {
            assert!(
                nacre_common::options::find(name).is_some_and(|spec| spec.can_update_at_runtime()),
                "{name}"
            );
        }
        assert_eq!(OPTION_NAMES.len(), SUBSYSTEMS.len() + 1);
    }

    #[test]
    fn a_moved_log_file_is_written_anew_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/x.log");
        let file = Arc::new(LogFile::open(&path).unwrap());
        let handle = LogFileHandle(file.clone());
        handle.make_writer().write_all(b"one\n").unwrap();
        let moved = dir.path().join("old.log");
        std::fs::rename(&path, &moved).unwrap();
        handle.make_writer().write_all(b"two\n").unwrap();
        file.reopen().unwrap();
        handle.make_writer().write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(moved).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "three\n");
    }
}
