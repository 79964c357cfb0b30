//! Watches and notifies: `rados_watch*`, `rados_notify*` and related functions.
//!
//! Callers' callbacks run on the cluster's [`crate::finisher`], one after the other, so that they may wait for other operations,
//! as in Ceph. A watch is not called any more once it is removed and `rados_watch_flush` has returned. Numbers of watches are
//! the client's cookies.

use crate::abi::{
    BorrowedPtr, CStrPtr, CallbackArg, Handle, InBuf, MallocArray, MallocBuf, NotifyAck, NotifyTimeout,
    OutPtr, WatchCallback, WatchCallback2, WatchErrorCallback, c_len,
};
use crate::client::{CLIENTS, Client};
use crate::completion::{COMPLETIONS, Completion};
use crate::guard::{ApiError, ApiResult, exports};
use crate::ioctx::{IOCTXS, IoCtxState};
use bytes::Bytes;
use nacre_client::{Error, IoCtx, Notification, NotifyOutcome, WatchHandler};
use nacre_types::errno::Errno;
use nacre_types::op::NotifyReply;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum number of notifications of one watch that wait for its callback. Further ones are not answered, as if the watcher had
/// failed: their notifiers run into the timeout.
const MOST_QUEUED: usize = 10_000;

/// The callbacks of a watch.
#[derive(Clone)]
enum Callbacks {
    /// `rados_watch`: called without the payload. The library sends the answer.
    Old { notified: WatchCallback, io: IoCtx, oid: String },
    /// `rados_watch2` and later.
    New { notified: WatchCallback2, lost: Option<WatchErrorCallback> },
}

struct Watcher {
    /// Weak, because the client holds the handlers of its watches as long as its session exists.
    client: Weak<Client>,
    callbacks: Callbacks,
    arg: CallbackArg,
    queued: Arc<AtomicUsize>,
}

impl Watcher {
    fn create(io: &IoCtxState, callbacks: Callbacks, arg: CallbackArg) -> Arc<dyn WatchHandler> {
        let client = Arc::downgrade(&io.client);
        Arc::new(Watcher { client, callbacks, arg, queued: Arc::default() })
    }
}

impl WatchHandler for Watcher {
    fn notified(&self, notification: Notification) {
        let Some(client) = self.client.upgrade() else { return };
        if self.queued.fetch_add(1, Ordering::Relaxed) >= MOST_QUEUED {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(
                cookie = notification.cookie,
                "a watch's callback is too slow: notification dropped"
            );
            return;
        }
        let (callbacks, arg, queued) = (self.callbacks.clone(), self.arg, self.queued.clone());
        client.finisher.queue(Box::new(move || {
            let Notification { cookie, notify_id, notifier, payload } = notification;
            match callbacks {
                Callbacks::Old { notified, io, oid } => {
                    notified(0, 0, arg);
                    io.notify_ack(&oid, notify_id, cookie, Bytes::new());
                }
                Callbacks::New { notified, .. } => {
                    notified(arg, notify_id, cookie, notifier, BorrowedPtr::data(&payload), payload.len());
                }
            }
            queued.fetch_sub(1, Ordering::Relaxed);
        }));
    }

    fn lost(&self, cookie: u64, error: Error) {
        let (Some(client), Callbacks::New { lost: Some(lost), .. }) =
            (self.client.upgrade(), &self.callbacks)
        else {
            return;
        };
        let (lost, arg) = (*lost, self.arg);
        client.finisher.queue(Box::new(move || lost(arg, cookie, error.errno().negated())));
    }
}

fn seconds(timeout: u32) -> Option<Duration> {
    (timeout > 0).then(|| Duration::from_secs(timeout.into()))
}

/// A time in milliseconds, rounded up to whole seconds. 0 means the configured time.
fn whole_seconds(timeout_ms: u64) -> Option<Duration> {
    (timeout_ms > 0).then(|| Duration::from_secs(timeout_ms.div_ceil(1000)))
}

/// The payload of a notify or an answer, which may be absent.
fn payload(buf: InBuf, len: c_int) -> ApiResult<Bytes> {
    buf.copy(usize::try_from(len).map_err(|_| Errno::EINVAL)?)
}

fn place(io: &IoCtxState) -> IoCtx {
    io.ioctx.read().clone()
}

fn watch(
    io: Handle,
    o: CStrPtr,
    cookie: OutPtr<u64>,
    timeout: u32,
    arg: CallbackArg,
    callbacks: impl FnOnce(IoCtx, &str) -> ApiResult<Callbacks>,
) -> ApiResult<c_int> {
    let (io, cookie, oid) = (IOCTXS.get(io)?, cookie.required()?, o.text()?);
    let place = place(&io);
    let watcher = Watcher::create(&io, callbacks(place.clone(), oid)?, arg);
    let (number, outcome) = place.watch(oid, seconds(timeout), watcher);
    // A callback may run, and look there, before the outcome is known.
    cookie.set(number);
    outcome.wait()?;
    Ok(0)
}

fn new_callbacks(notified: Option<WatchCallback2>, lost: Option<WatchErrorCallback>) -> ApiResult<Callbacks> {
    Ok(Callbacks::New { notified: notified.ok_or(Errno::EINVAL)?, lost })
}

/// The results of an asynchronous watch: its number and its outcome, which may arrive in either order.
#[derive(Default)]
struct Watching {
    number: Option<u64>,
    outcome: Option<nacre_client::Result<()>>,
}

fn aio_watch(
    io: Handle,
    o: CStrPtr,
    completion: Handle,
    handle: OutPtr<u64>,
    callbacks: Callbacks,
    timeout: u32,
    arg: CallbackArg,
) -> ApiResult<c_int> {
    let (io, completion, handle) = (IOCTXS.get(io)?, COMPLETIONS.get(completion)?, handle.required()?);
    let oid = o.text()?;
    let watcher = Watcher::create(&io, callbacks, arg);
    completion.begin()?;
    let watching = Arc::new(Mutex::new(Watching::default()));
    let (shared, owner, waited) = (watching.clone(), io.clone(), completion.clone());
    let done = Box::new(move |outcome| {
        let mut watching = shared.lock();
        watching.outcome = Some(outcome);
        end_watching(&mut watching, &owner.client, &waited, handle);
    });
    let number = place(&io).aio_watch(oid, seconds(timeout), watcher, done);
    let mut watching = watching.lock();
    watching.number = Some(number);
    end_watching(&mut watching, &io.client, &completion, handle);
    Ok(0)
}

/// Completes the completion once both are known.
fn end_watching(watching: &mut Watching, client: &Client, completion: &Arc<Completion>, handle: OutPtr<u64>) {
    let (Some(number), Some(_)) = (watching.number, &watching.outcome) else { return };
    let outcome = watching.outcome.take();
    completion.finish(&client.finisher, || {
        handle.set(number);
        (code(outcome.unwrap_or(Ok(()))), 0)
    });
}

fn code(outcome: nacre_client::Result<()>) -> c_int {
    outcome.map_or_else(|error| ApiError::from(error).code(), |()| 0)
}

/// Stores the watchers' answers, if the caller wants them. A notify that timed out has answers, too.
fn told(
    outcome: nacre_client::Result<NotifyOutcome>,
    reply_buffer: OutPtr<MallocBuf>,
    reply_buffer_len: OutPtr<usize>,
) -> ApiResult<c_int> {
    let NotifyOutcome { timed_out, reply } = outcome?;
    let reply = reply.encode();
    if let Ok(place) = reply_buffer.required() {
        place.set(MallocBuf::data(&reply)?);
    }
    reply_buffer_len.set(reply.len());
    Ok(if timed_out { Errno::ETIMEDOUT.negated() } else { 0 })
}

exports! {
    /// Watches an object. The callback only learns that there was a notify. The library answers it.
    fn rados_watch(
        io: Handle,
        o: CStrPtr,
        _ver: u64,
        cookie: OutPtr<u64>,
        watchcb: Option<WatchCallback>,
        arg: CallbackArg,
    ) -> c_int {
        watch(io, o, cookie, 0, arg, |io, oid| {
            let notified = watchcb.ok_or(Errno::EINVAL)?;
            Ok(Callbacks::Old { notified, io, oid: oid.to_owned() })
        })
    }

    /// Watches an object. The caller answers each notify with `rados_notify_ack`.
    fn rados_watch2(
        io: Handle,
        o: CStrPtr,
        cookie: OutPtr<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        arg: CallbackArg,
    ) -> c_int {
        watch(io, o, cookie, 0, arg, |_, _| new_callbacks(watchcb, watcherrcb))
    }

    /// Like `rados_watch2`, with the seconds without contact after which it expires, 0 for the cluster's default.
    fn rados_watch3(
        io: Handle,
        o: CStrPtr,
        cookie: OutPtr<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        timeout: u32,
        arg: CallbackArg,
    ) -> c_int {
        watch(io, o, cookie, timeout, arg, |_, _| new_callbacks(watchcb, watcherrcb))
    }

    /// Like `rados_watch2`, with a completion for the outcome.
    fn rados_aio_watch(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        handle: OutPtr<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        arg: CallbackArg,
    ) -> c_int {
        aio_watch(io, o, completion, handle, new_callbacks(watchcb, watcherrcb)?, 0, arg)
    }

    /// Like `rados_watch3`, with a completion for the outcome.
    fn rados_aio_watch2(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        handle: OutPtr<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        timeout: u32,
        arg: CallbackArg,
    ) -> c_int {
        aio_watch(io, o, completion, handle, new_callbacks(watchcb, watcherrcb)?, timeout, arg)
    }

    /// Milliseconds since the watch was last confirmed, plus one. The watch's error if it is lost, ENOTCONN if it does not
    /// exist.
    fn rados_watch_check(io: Handle, cookie: u64) -> c_int {
        let age = place(&*IOCTXS.get(io)?).watch_check(cookie)?;
        Ok(c_len(usize::try_from(age.as_millis()).unwrap_or(usize::MAX).saturating_add(1)))
    }

    /// Removes a watch. Ignores the object's name.
    fn rados_unwatch(io: Handle, _o: CStrPtr, cookie: u64) -> c_int {
        place(&*IOCTXS.get(io)?).unwatch(cookie).wait()?;
        Ok(0)
    }

    /// Removes a watch, even if it is lost.
    fn rados_unwatch2(io: Handle, cookie: u64) -> c_int {
        place(&*IOCTXS.get(io)?).unwatch(cookie).wait()?;
        Ok(0)
    }

    /// Like `rados_unwatch2`, with a completion for the outcome.
    fn rados_aio_unwatch(io: Handle, cookie: u64, completion: Handle) -> c_int {
        let (io, completion) = (IOCTXS.get(io)?, COMPLETIONS.get(completion)?);
        completion.begin()?;
        let owner = io.clone();
        place(&io).aio_unwatch(cookie, Box::new(move |outcome| {
            completion.finish(&owner.client.finisher, || (code(outcome), 0));
        }));
        Ok(0)
    }

    /// Notifies an object's watchers and waits for their answers. ETIMEDOUT if some did not answer.
    fn rados_notify(io: Handle, o: CStrPtr, _ver: u64, buf: InBuf, buf_len: c_int) -> c_int {
        let (io, payload) = (IOCTXS.get(io)?, payload(buf, buf_len)?);
        let NotifyOutcome { timed_out, .. } = place(&io).notify(o.text()?, payload, None).wait()?;
        Ok(if timed_out { Errno::ETIMEDOUT.negated() } else { 0 })
    }

    /// Like `rados_notify`, but returns the answers (see `rados_decode_notify_response`), including those before a timeout.
    fn rados_notify2(
        io: Handle,
        o: CStrPtr,
        buf: InBuf,
        buf_len: c_int,
        timeout_ms: u64,
        reply_buffer: OutPtr<MallocBuf>,
        reply_buffer_len: OutPtr<usize>,
    ) -> c_int {
        let (io, payload) = (IOCTXS.get(io)?, payload(buf, buf_len)?);
        reply_buffer.set(MallocBuf::NULL);
        reply_buffer_len.set(0);
        let outcome = place(&io).notify(o.text()?, payload, whole_seconds(timeout_ms)).wait();
        told(outcome, reply_buffer, reply_buffer_len)
    }

    /// Like `rados_notify2`, with a completion for the outcome.
    fn rados_aio_notify(
        io: Handle,
        o: CStrPtr,
        completion: Handle,
        buf: InBuf,
        buf_len: c_int,
        timeout_ms: u64,
        reply_buffer: OutPtr<MallocBuf>,
        reply_buffer_len: OutPtr<usize>,
    ) -> c_int {
        let (io, completion) = (IOCTXS.get(io)?, COMPLETIONS.get(completion)?);
        let (oid, payload) = (o.text()?, payload(buf, buf_len)?);
        completion.begin()?;
        reply_buffer.set(MallocBuf::NULL);
        reply_buffer_len.set(0);
        let owner = io.clone();
        place(&io).aio_notify(oid, payload, whole_seconds(timeout_ms), move |outcome| {
            completion.finish(&owner.client.finisher, || {
                (told(outcome, reply_buffer, reply_buffer_len).unwrap_or_else(ApiError::code), 0)
            });
        });
        Ok(0)
    }

    /// Answers a notify that was passed to a callback.
    fn rados_notify_ack(io: Handle, o: CStrPtr, notify_id: u64, cookie: u64, buf: InBuf, buf_len: c_int) -> c_int {
        let (io, answer) = (IOCTXS.get(io)?, if buf.is_null() { Bytes::new() } else { payload(buf, buf_len)? });
        place(&io).notify_ack(o.text()?, notify_id, cookie, answer);
        Ok(0)
    }

    /// Decodes the answers that `rados_notify2` or `rados_aio_notify` returned.
    fn rados_decode_notify_response(
        reply_buffer: InBuf,
        reply_buffer_len: usize,
        acks: OutPtr<MallocArray<NotifyAck>>,
        nr_acks: OutPtr<usize>,
        timeouts: OutPtr<MallocArray<NotifyTimeout>>,
        nr_timeouts: OutPtr<usize>,
    ) -> c_int {
        if reply_buffer_len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let (acks, timeouts) = (acks.required()?, timeouts.required()?);
        let (nr_acks, nr_timeouts) = (nr_acks.required()?, nr_timeouts.required()?);
        let reply = NotifyReply::decode(0, &reply_buffer.copy(reply_buffer_len)?).map_err(|_| Errno::EINVAL)?;
        let answered: ApiResult<Vec<NotifyAck>> = reply
            .acks
            .iter()
            .map(|(notifier_id, cookie, answer)| {
                let (payload, payload_len) = (MallocBuf::data(answer)?, answer.len() as u64);
                Ok(NotifyAck { notifier_id: *notifier_id, cookie: *cookie, payload, payload_len })
            })
            .collect();
        let answered = answered?;
        let missed = reply.missed.iter();
        let missed: Vec<NotifyTimeout> = missed
            .map(|(notifier_id, cookie)| NotifyTimeout { notifier_id: *notifier_id, cookie: *cookie })
            .collect();
        acks.set(MallocArray::of(&answered)?);
        nr_acks.set(answered.len());
        timeouts.set(MallocArray::of(&missed)?);
        nr_timeouts.set(missed.len());
        Ok(0)
    }

    /// Frees the result of `rados_decode_notify_response`.
    fn rados_free_notify_response(
        acks: MallocArray<NotifyAck>,
        nr_acks: usize,
        timeouts: MallocArray<NotifyTimeout>,
    ) {
        acks.load(nr_acks)?.into_iter().for_each(|ack| ack.payload.free());
        acks.free();
        timeouts.free();
        Ok(())
    }

    /// Returns when the callbacks for everything received before have returned. EDEADLK in a callback, which would wait for
    /// itself.
    fn rados_watch_flush(cluster: Handle) -> c_int {
        let client = CLIENTS.get(cluster)?;
        client.cluster()?.watch_flush().wait()?;
        client.finisher.flush()?;
        Ok(0)
    }

    /// Like `rados_watch_flush`, but completes a completion instead of waiting.
    fn rados_aio_watch_flush(cluster: Handle, completion: Handle) -> c_int {
        let (client, completion) = (CLIENTS.get(cluster)?, COMPLETIONS.get(completion)?);
        let cluster = client.cluster()?;
        completion.begin()?;
        let owner = client.clone();
        client.finisher.queue(Box::new(move || {
            // The session's thread must post its pending callbacks before this posts.
            let heard = cluster.watch_flush().wait();
            let last = owner.clone();
            owner.finisher.queue(Box::new(move || {
                completion.finish(&last.finisher, || (code(heard), 0));
            }));
        }));
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_whole_seconds_and_no_shorter() {
        assert_eq!(whole_seconds(0), None);
        assert_eq!(whole_seconds(1), Some(Duration::from_secs(1)));
        assert_eq!(whole_seconds(1001), Some(Duration::from_secs(2)));
        assert_eq!((seconds(0), seconds(7)), (None, Some(Duration::from_secs(7))));
    }
}
