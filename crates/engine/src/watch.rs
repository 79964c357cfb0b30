//! Watches and notifies: receiving notifications about an object, and sending them.
//!
//! A watch persists with its object and survives failover (rule R9): the engine reconnects it when the object's primary changes
//! or its connection is lost, and keeps it alive with pings.

use crate::completion::Pending;
use crate::engine::{ObjectRequest, OnDone, WatchHandler};
use crate::error::{Error, Result};
use crate::ioctx::IoCtx;
use crate::ops::OpReply;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::op::{NotifyReply, Op, OsdOp};
use std::sync::Arc;
use std::time::Duration;

/// The outcome of a notify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyOutcome {
    /// Whether a watcher did not answer in time. librados then returns ETIMEDOUT with the reply.
    pub timed_out: bool,
    /// The watchers' answers, and the watchers without an answer.
    pub reply: NotifyReply,
}

/// Watches and notifies.
impl IoCtx {
    /// Watches an object, which must exist. Without a ping for `timeout` (in whole seconds; `None` for the OSD's
    /// `osd_client_watch_timeout`) the watch times out; the engine sends the pings. Returns the watch's cookie at once, with a
    /// handle on the outcome.
    pub fn watch(
        &self,
        name: &str,
        timeout: Option<Duration>,
        handler: Arc<dyn WatchHandler>,
    ) -> (u64, Pending<()>) {
        let (completer, pending) = Pending::channel();
        let done = Box::new(move |result| completer.complete(result));
        (self.aio_watch(name, timeout, handler, done), pending)
    }

    /// Like [`IoCtx::watch`], but calls `done` with the outcome.
    pub fn aio_watch(
        &self,
        name: &str,
        timeout: Option<Duration>,
        handler: Arc<dyn WatchHandler>,
        done: OnDone,
    ) -> u64 {
        let object = match self.object(name) {
            Ok(object) => object,
            Err(error) => {
                done(Err(error));
                return 0;
            }
        };
        let seconds = timeout.map_or(0, |timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        self.engine().watch(object, self.request_flags(), seconds, handler, done)
    }

    /// Ends a watch, also a lost one. Fails with ENOTCONN if there is none with that cookie.
    pub fn unwatch(&self, cookie: u64) -> Pending<()> {
        let (completer, pending) = Pending::channel();
        self.aio_unwatch(cookie, Box::new(move |result| completer.complete(result)));
        pending
    }

    /// Like [`IoCtx::unwatch`], but calls `done` with the outcome.
    pub fn aio_unwatch(&self, cookie: u64, done: OnDone) {
        self.engine().unwatch(cookie, done);
    }

    /// Time since the watch was last known to be registered. Fails with the watch's error if it is lost, and with ENOTCONN if
    /// there is none.
    pub fn watch_check(&self, cookie: u64) -> Result<Duration> {
        self.engine().watch_check(cookie)
    }

    /// Notifies an object's watchers and waits for their answers, for at most `timeout` (in whole seconds; `None` for
    /// `client_notify_timeout`).
    pub fn notify(
        &self,
        name: &str,
        payload: impl Into<Bytes>,
        timeout: Option<Duration>,
    ) -> Pending<NotifyOutcome> {
        let (completer, pending) = Pending::channel();
        self.aio_notify(name, payload, timeout, move |result| completer.complete(result));
        pending
    }

    /// Like [`IoCtx::notify`], but calls `done` with the outcome on the engine's thread.
    pub fn aio_notify(
        &self,
        name: &str,
        payload: impl Into<Bytes>,
        timeout: Option<Duration>,
        done: impl FnOnce(Result<NotifyOutcome>) + Send + 'static,
    ) {
        let configured = || self.engine().option("client_notify_timeout").and_then(|text| text.parse().ok());
        let seconds = timeout.map(|timeout| timeout.as_secs()).or_else(configured);
        let timeout_s = seconds.map_or(0, |seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
        match self.watch_request(name, Op::Notify { timeout_s, payload: payload.into() }) {
            Ok(request) => self.engine().submit(request, Box::new(|reply| done(reply.and_then(outcome)))),
            Err(error) => done(Err(error)),
        }
    }

    /// Acknowledges a notification. Nothing is returned, so a late answer is not reported.
    pub fn notify_ack(&self, name: &str, notify_id: u64, cookie: u64, answer: impl Into<Bytes>) {
        let payload = answer.into();
        let report = move |error: Error| {
            tracing::warn!(notify_id, cookie, %error, "a notification could not be answered");
        };
        match self.watch_request(name, Op::NotifyAck { notify_id, cookie, payload }) {
            Ok(request) => self.engine().submit(
                request,
                Box::new(move |reply| {
                    if let Err(error) = reply.and_then(OpReply::success) {
                        report(error);
                    }
                }),
            ),
            Err(error) => report(error),
        }
    }

    fn watch_request(&self, name: &str, op: Op) -> Result<ObjectRequest> {
        self.request(name, vec![OsdOp::from(op)], 0, None)
    }
}

/// Decodes the outcome of a notify. It is also present after a timeout.
fn outcome(reply: OpReply) -> Result<NotifyOutcome> {
    let timed_out = reply.result == Errno::ETIMEDOUT.negated();
    let output = match reply.ops.first() {
        Some(part) if timed_out && !part.output.is_empty() => part.output.clone(),
        _ => reply.success()?.output(0)?,
    };
    let Some((id, _)) = output.split_first_chunk() else {
        let detail = "a notify's outcome is cut short".to_owned();
        return Err(nacre_types::encoding::DecodeError::Corrupt { what: "NotifyReply", detail }.into());
    };
    let reply = NotifyReply::decode(u64::from_le_bytes(*id), &output.slice(8..))?;
    Ok(NotifyOutcome { timed_out, reply })
}
