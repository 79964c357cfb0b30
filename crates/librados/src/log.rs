//! The library's own log: warnings and errors for the program that it is loaded into.
//!
//! Lines are written to stderr unless `log_to_stderr` is off, and to `log_file` if that is set. The options of the first cluster
//! that connects apply to the whole process.

use nacre_common::Config;
use std::sync::Once;

/// Starts the log, once per process.
pub(crate) fn start(config: &Config) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let options = config.snapshot();
        if !options.global.log_file.is_empty() {
            // Fails if something else in the process has started this copy of the log, which then serves as well.
            let _ = nacre_runtime::log::start(config, false);
        } else if options.global.log_to_stderr {
            let lines = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(std::io::stderr)
                .with_max_level(tracing::Level::WARN)
                .finish();
            // As above.
            let _ = tracing::subscriber::set_global_default(lines);
        }
    });
}
