//! An OSD whose store is being opened. It does not listen yet and is not up, but it reports long scans to the map authority and can be
//! stopped.

use crate::shared::Shared;
use crate::worker::RuntimeThread;
use nacre_common::auth::ConfiguredKey;
use nacre_common::config::Config;
use nacre_runtime::msgr::{Conn, ConnectTarget, Dispatcher, Frame, Messenger, Policy, ResetReason};
use nacre_runtime::signal::ShutdownSignal;
use nacre_store::{ScanProgress, StoreError, StoreEvents};
use nacre_types::msg::StatsReport;
use nacre_types::stats::OsdStats;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};

/// The health code while a scan lasts.
const SCAN_CODE: &str = "BLUESTORE_ALLOCATION_SCAN";

/// Receives the store's events, also before the OSD exists.
pub(crate) struct StartupReporter {
    config: Config,
    stop: ShutdownSignal,
    shared: OnceLock<Weak<Shared>>,
    session: Mutex<Option<Session>>,
}

impl StartupReporter {
    pub(crate) fn new(config: &Config, stop: ShutdownSignal) -> StartupReporter {
        StartupReporter { config: config.clone(), stop, shared: OnceLock::new(), session: Mutex::default() }
    }

    /// Sets the OSD that receives the store's failures from now on.
    pub(crate) fn attach(&self, shared: Weak<Shared>) {
        if self.shared.set(shared).is_err() {
            tracing::error!("the store's events were given twice");
        }
    }
}

impl StoreEvents for StartupReporter {
    fn fatal(&self, error: &StoreError) {
        match self.shared.get().and_then(Weak::upgrade) {
            Some(shared) => shared.store_failed("the store stopped", error),
            None => tracing::error!(%error, "the store stopped before the OSD started"),
        }
    }

    fn scanning(&self, progress: Option<&ScanProgress>) {
        let mut session = self.session.lock();
        let Some(progress) = progress else {
            *session = None;
            return;
        };
        if session.is_none() {
            match Session::new(&self.config) {
                Ok(new) => *session = Some(new),
                Err(error) => tracing::debug!(%error, "the monitors are not told of the scan"),
            }
        }
        if let Some(session) = &mut *session {
            session.tell(&self.config, told(progress));
        }
    }

    fn cancelled(&self) -> bool {
        self.stop.is_requested()
    }
}

/// The text of the health report about a scan.
fn told(progress: &ScanProgress) -> String {
    let ScanProgress { onodes, expected, elapsed } = progress;
    // Without statistics of its files the database can't estimate the number.
    let share = match expected > onodes {
        true => format!(" of about {expected} ({}%)", onodes * 100 / expected),
        false => String::new(),
    };
    let seconds = elapsed.as_secs();
    format!("a start that reads all objects for what is allocated: {onodes}{share} in {seconds} s")
}

/// A connection to the map authority that only sends reports.
struct Session {
    messenger: Messenger,
    key: Arc<ConfiguredKey>,
    conn: Option<Conn>,
    turn: usize,
    // Must be dropped last: its runtime drives the messenger.
    _worker: RuntimeThread,
}

impl Session {
    fn new(config: &Config) -> Result<Session, crate::OsdError> {
        let worker = RuntimeThread::start(format!("{}-start", config.entity()))?;
        let messenger = Messenger::builder(config)
            .nonce(uuid::Uuid::new_v4().as_u64_pair().0)
            .lane(worker.handle.clone(), Arc::new(NullDispatcher))
            .build()?;
        let key = Arc::new(ConfiguredKey::find(config)?);
        Ok(Session { messenger, key, conn: None, turn: 0, _worker: worker })
    }

    fn tell(&mut self, config: &Config, text: String) {
        if self.conn.as_ref().is_none_or(Conn::is_over) {
            let Ok(addrs) = config.get().global.mon_host.resolve() else { return };
            let Some(addr) = addrs.get(self.turn % addrs.len().max(1)) else { return };
            self.turn += 1;
            let credentials = Arc::clone(&self.key) as _;
            let target =
                ConnectTarget { addr: *addr, entity: None, policy: Policy::Lossy, lane: 0, credentials };
            self.conn = self.messenger.connect(target).ok();
        }
        let osd = OsdStats { health: vec![(SCAN_CODE.to_owned(), text)], ..OsdStats::default() };
        let report = StatsReport { osd, pgs: Vec::new(), starting: true };
        if let Some(conn) = &self.conn
            && let Err(error) = conn.send(&report)
        {
            tracing::debug!(%error, "the monitors are not told of the scan");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.messenger.abandon();
    }
}

/// A dispatcher that ignores messages, because reports have no replies.
struct NullDispatcher;

impl Dispatcher for NullDispatcher {
    fn on_message(&self, _conn: &Conn, _frame: Frame) {}

    fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn shares_are_told_where_the_whole_is_known() {
        let elapsed = Duration::from_millis(3700);
        let told = |onodes, expected| told(&ScanProgress { onodes, expected, elapsed });
        let known = "a start that reads all objects for what is allocated: 30 of about 120 (25%) in 3 s";
        assert_eq!(told(30, 120), known);
        assert_eq!(told(30, 30), "a start that reads all objects for what is allocated: 30 in 3 s");
    }
}
