//! Graceful stop: the first SIGINT or SIGTERM requests an orderly stop, the second exits at once.

use nacre_common::error::{Error, Result};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Notifies all waiting tasks that the program is to stop. Cloning shares the state.
#[derive(Debug, Clone)]
pub struct ShutdownSignal(Arc<watch::Sender<bool>>);

impl Default for ShutdownSignal {
    fn default() -> ShutdownSignal {
        ShutdownSignal(Arc::new(watch::Sender::new(false)))
    }
}

impl ShutdownSignal {
    /// A stop that only [`ShutdownSignal::request`] triggers.
    pub fn new() -> ShutdownSignal {
        ShutdownSignal::default()
    }

    /// Requests the stop.
    pub fn request(&self) {
        self.0.send_replace(true);
    }

    /// Whether the stop was requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when the stop was requested.
    pub async fn wait(&self) {
        // The sender is in `self`, so waiting can't fail.
        let _ = self.0.subscribe().wait_for(|stop| *stop).await;
    }
}

/// Handles SIGINT and SIGTERM from now on, on the current tokio runtime. `hangup` runs at each SIGHUP (to reopen log files). A
/// second SIGINT or SIGTERM exits with 128 + its number, without flushing.
pub fn install(hangup: impl Fn() + Send + 'static) -> Result<ShutdownSignal> {
    let listen =
        |kind| signal(kind).map_err(|e| Error::Io { what: "handle signals".into(), source: Arc::new(e) });
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    let stop = ShutdownSignal::new();
    let told = stop.clone();
    tokio::spawn(async move {
        loop {
            let (name, number) = tokio::select! {
                _ = interrupt.recv() => ("SIGINT", 2),
                _ = terminate.recv() => ("SIGTERM", 15),
                _ = hang_up.recv() => {
                    hangup();
                    continue;
                }
            };
            if told.is_requested() {
                tracing::warn!(signal = name, "second signal, ending at once");
                std::process::exit(128 + number);
            }
            tracing::info!(signal = name, "stopping; once more to end at once");
            told.request();
        }
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_requests_the_stop_and_hangup_does_not() {
        let (sender, mut hangups) = tokio::sync::mpsc::unbounded_channel();
        let stop = install(move || sender.send(()).unwrap()).unwrap();
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
        hangups.recv().await.unwrap();
        assert!(!stop.is_requested());
        rustix::process::kill_process(me, rustix::process::Signal::TERM).unwrap();
        stop.wait().await;
        assert!(stop.is_requested());
    }
}
