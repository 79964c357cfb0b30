//! Watches and notifies: `rados_watch*`, `rados_notify*` and what goes with them.
//!
//! Callers' callbacks run on the cluster's [`crate::finisher`], one after the other, so that they may wait for other
//! operations, as they may in Ceph. A watch hears nothing any more once it is given back and
//! `rados_watch_flush` has returned. Numbers of watches are the client's cookies.

use crate::abi::{
    CArg, CText, Given, GivenArray, Handle, InBuf, Lent, NotifyAck, NotifyTimeout, Out, WatchCallback,
    WatchCallback2, WatchErrorCallback, length,
};
use crate::client::{CLIENTS, Client};
use crate::completion::{COMPLETIONS, Completion};
use crate::guard::{Failure, Outcome, exports};
use crate::ioctx::{POOLS, PoolIo};
use bytes::Bytes;
use nacre_client::{Error, IoCtx, Notification, NotifyOutcome, WatchHandler};
use nacre_types::errno::Errno;
use nacre_types::op::NotifyReply;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The most notifications of one watch that wait for its callback. What exceeds them is not answered, as if the watcher
/// were gone: notifiers time out on it.
const MOST_QUEUED: usize = 10_000;

/// Whom a watch tells.
#[derive(Clone)]
enum Callbacks {
    /// `rados_watch`: told that something happened; the library answers by itself.
    Old { notified: WatchCallback, io: IoCtx, oid: String },
    /// `rados_watch2` and later.
    New { notified: WatchCallback2, lost: Option<WatchErrorCallback> },
}

struct Watcher {
    /// The client holds its watches' handlers for as long as its session lasts.
    client: Weak<Client>,
    callbacks: Callbacks,
    arg: CArg,
    queued: Arc<AtomicUsize>,
}

impl Watcher {
    fn create(io: &PoolIo, callbacks: Callbacks, arg: CArg) -> Arc<dyn WatchHandler> {
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
        client.finisher.post(Box::new(move || {
            let Notification { cookie, notify_id, notifier, payload } = notification;
            match callbacks {
                Callbacks::Old { notified, io, oid } => {
                    notified(0, 0, arg);
                    io.notify_ack(&oid, notify_id, cookie, Bytes::new());
                }
                Callbacks::New { notified, .. } => {
                    notified(arg, notify_id, cookie, notifier, Lent::data(&payload), payload.len());
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
        client.finisher.post(Box::new(move || lost(arg, cookie, error.errno().negated())));
    }
}

fn seconds(timeout: u32) -> Option<Duration> {
    (timeout > 0).then(|| Duration::from_secs(timeout.into()))
}

/// A time in milliseconds as whole seconds, no less; 0 for the configured one.
fn whole_seconds(timeout_ms: u64) -> Option<Duration> {
    (timeout_ms > 0).then(|| Duration::from_secs(timeout_ms.div_ceil(1000)))
}

/// A notify's or an answer's data, which may be absent.
fn payload(buf: InBuf, len: c_int) -> Outcome<Bytes> {
    buf.copy(usize::try_from(len).map_err(|_| Errno::EINVAL)?)
}

fn place(io: &PoolIo) -> IoCtx {
    io.place.read().clone()
}

fn watch(
    io: Handle,
    o: CText,
    cookie: Out<u64>,
    timeout: u32,
    arg: CArg,
    callbacks: impl FnOnce(IoCtx, &str) -> Outcome<Callbacks>,
) -> Outcome<c_int> {
    let (io, cookie, oid) = (POOLS.get(io)?, cookie.required()?, o.text()?);
    let place = place(&io);
    let watcher = Watcher::create(&io, callbacks(place.clone(), oid)?, arg);
    let (number, outcome) = place.watch(oid, seconds(timeout), watcher);
    // A callback may come, and look there, before the outcome does.
    cookie.set(number);
    outcome.wait()?;
    Ok(0)
}

fn new_callbacks(notified: Option<WatchCallback2>, lost: Option<WatchErrorCallback>) -> Outcome<Callbacks> {
    Ok(Callbacks::New { notified: notified.ok_or(Errno::EINVAL)?, lost })
}

/// What an asynchronous watch ends with: its number and its outcome, of which either may be there first.
#[derive(Default)]
struct Watching {
    number: Option<u64>,
    outcome: Option<nacre_client::Result<()>>,
}

fn aio_watch(
    io: Handle,
    o: CText,
    completion: Handle,
    handle: Out<u64>,
    callbacks: Callbacks,
    timeout: u32,
    arg: CArg,
) -> Outcome<c_int> {
    let (io, completion, handle) = (POOLS.get(io)?, COMPLETIONS.get(completion)?, handle.required()?);
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

/// Ends the completion once both are known.
fn end_watching(watching: &mut Watching, client: &Client, completion: &Arc<Completion>, handle: Out<u64>) {
    let (Some(number), Some(_)) = (watching.number, &watching.outcome) else { return };
    let outcome = watching.outcome.take();
    completion.finish(client, || {
        handle.set(number);
        (code(outcome.unwrap_or(Ok(()))), 0)
    });
}

fn code(outcome: nacre_client::Result<()>) -> c_int {
    outcome.map_or_else(|error| Failure::from(error).code(), |()| 0)
}

/// Stores what watchers answered, where it is wanted; a notify that waited in vain for some of them has that too.
fn told(
    outcome: nacre_client::Result<NotifyOutcome>,
    reply_buffer: Out<Given>,
    reply_buffer_len: Out<usize>,
) -> Outcome<c_int> {
    let NotifyOutcome { timed_out, reply } = outcome?;
    let reply = reply.encode();
    if let Ok(place) = reply_buffer.required() {
        place.set(Given::data(&reply)?);
    }
    reply_buffer_len.set(reply.len());
    Ok(if timed_out { Errno::ETIMEDOUT.negated() } else { 0 })
}

exports! {
    /// Watches an object. The callback learns only that there was a notify, which is answered by the library.
    fn rados_watch(
        io: Handle,
        o: CText,
        _ver: u64,
        cookie: Out<u64>,
        watchcb: Option<WatchCallback>,
        arg: CArg,
    ) -> c_int {
        watch(io, o, cookie, 0, arg, |io, oid| {
            let notified = watchcb.ok_or(Errno::EINVAL)?;
            Ok(Callbacks::Old { notified, io, oid: oid.to_owned() })
        })
    }

    /// Watches an object. Each notify is to be answered with `rados_notify_ack`.
    fn rados_watch2(
        io: Handle,
        o: CText,
        cookie: Out<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        arg: CArg,
    ) -> c_int {
        watch(io, o, cookie, 0, arg, |_, _| new_callbacks(watchcb, watcherrcb))
    }

    /// As `rados_watch2`, with the seconds without a sign of life after which the watch lapses; 0 for the cluster's.
    fn rados_watch3(
        io: Handle,
        o: CText,
        cookie: Out<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        timeout: u32,
        arg: CArg,
    ) -> c_int {
        watch(io, o, cookie, timeout, arg, |_, _| new_callbacks(watchcb, watcherrcb))
    }

    /// As `rados_watch2`; the completion tells the outcome.
    fn rados_aio_watch(
        io: Handle,
        o: CText,
        completion: Handle,
        handle: Out<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        arg: CArg,
    ) -> c_int {
        aio_watch(io, o, completion, handle, new_callbacks(watchcb, watcherrcb)?, 0, arg)
    }

    /// As `rados_watch3`; the completion tells the outcome.
    fn rados_aio_watch2(
        io: Handle,
        o: CText,
        completion: Handle,
        handle: Out<u64>,
        watchcb: Option<WatchCallback2>,
        watcherrcb: Option<WatchErrorCallback>,
        timeout: u32,
        arg: CArg,
    ) -> c_int {
        aio_watch(io, o, completion, handle, new_callbacks(watchcb, watcherrcb)?, timeout, arg)
    }

    /// Milliseconds since the watch was last known to stand, and one; its error where it is lost, ENOTCONN where there
    /// is none.
    fn rados_watch_check(io: Handle, cookie: u64) -> c_int {
        let age = place(&*POOLS.get(io)?).watch_check(cookie)?;
        Ok(length(usize::try_from(age.as_millis()).unwrap_or(usize::MAX).saturating_add(1)))
    }

    /// Gives a watch back; the object's name is not looked at.
    fn rados_unwatch(io: Handle, _o: CText, cookie: u64) -> c_int {
        place(&*POOLS.get(io)?).unwatch(cookie).wait()?;
        Ok(0)
    }

    /// Gives a watch back, a lost one too.
    fn rados_unwatch2(io: Handle, cookie: u64) -> c_int {
        place(&*POOLS.get(io)?).unwatch(cookie).wait()?;
        Ok(0)
    }

    /// As `rados_unwatch2`; the completion tells the outcome.
    fn rados_aio_unwatch(io: Handle, cookie: u64, completion: Handle) -> c_int {
        let (io, completion) = (POOLS.get(io)?, COMPLETIONS.get(completion)?);
        completion.begin()?;
        let owner = io.clone();
        place(&io).aio_unwatch(cookie, Box::new(move |outcome| {
            completion.finish(&owner.client, || (code(outcome), 0));
        }));
        Ok(0)
    }

    /// Tells an object's watchers and waits for their answers; ETIMEDOUT where some did not answer.
    fn rados_notify(io: Handle, o: CText, _ver: u64, buf: InBuf, buf_len: c_int) -> c_int {
        let (io, payload) = (POOLS.get(io)?, payload(buf, buf_len)?);
        let NotifyOutcome { timed_out, .. } = place(&io).notify(o.text()?, payload, None).wait()?;
        Ok(if timed_out { Errno::ETIMEDOUT.negated() } else { 0 })
    }

    /// As `rados_notify`, giving the answers (see `rados_decode_notify_response`), those that came before a timeout too.
    fn rados_notify2(
        io: Handle,
        o: CText,
        buf: InBuf,
        buf_len: c_int,
        timeout_ms: u64,
        reply_buffer: Out<Given>,
        reply_buffer_len: Out<usize>,
    ) -> c_int {
        let (io, payload) = (POOLS.get(io)?, payload(buf, buf_len)?);
        reply_buffer.set(Given::NULL);
        reply_buffer_len.set(0);
        let outcome = place(&io).notify(o.text()?, payload, whole_seconds(timeout_ms)).wait();
        told(outcome, reply_buffer, reply_buffer_len)
    }

    /// As `rados_notify2`; the completion tells the outcome.
    fn rados_aio_notify(
        io: Handle,
        o: CText,
        completion: Handle,
        buf: InBuf,
        buf_len: c_int,
        timeout_ms: u64,
        reply_buffer: Out<Given>,
        reply_buffer_len: Out<usize>,
    ) -> c_int {
        let (io, completion) = (POOLS.get(io)?, COMPLETIONS.get(completion)?);
        let (oid, payload) = (o.text()?, payload(buf, buf_len)?);
        completion.begin()?;
        reply_buffer.set(Given::NULL);
        reply_buffer_len.set(0);
        let owner = io.clone();
        place(&io).aio_notify(oid, payload, whole_seconds(timeout_ms), move |outcome| {
            completion.finish(&owner.client, || {
                (told(outcome, reply_buffer, reply_buffer_len).unwrap_or_else(Failure::code), 0)
            });
        });
        Ok(0)
    }

    /// Answers a notify that a callback was told of.
    fn rados_notify_ack(io: Handle, o: CText, notify_id: u64, cookie: u64, buf: InBuf, buf_len: c_int) -> c_int {
        let (io, answer) = (POOLS.get(io)?, if buf.is_null() { Bytes::new() } else { payload(buf, buf_len)? });
        place(&io).notify_ack(o.text()?, notify_id, cookie, answer);
        Ok(0)
    }

    /// Reads the answers that `rados_notify2` or `rados_aio_notify` gave.
    fn rados_decode_notify_response(
        reply_buffer: InBuf,
        reply_buffer_len: usize,
        acks: Out<GivenArray<NotifyAck>>,
        nr_acks: Out<usize>,
        timeouts: Out<GivenArray<NotifyTimeout>>,
        nr_timeouts: Out<usize>,
    ) -> c_int {
        if reply_buffer_len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let (acks, timeouts) = (acks.required()?, timeouts.required()?);
        let (nr_acks, nr_timeouts) = (nr_acks.required()?, nr_timeouts.required()?);
        let reply = NotifyReply::decode(0, &reply_buffer.copy(reply_buffer_len)?).map_err(|_| Errno::EINVAL)?;
        let answered: Outcome<Vec<NotifyAck>> = reply
            .acks
            .iter()
            .map(|(notifier_id, cookie, answer)| {
                let (payload, payload_len) = (Given::data(answer)?, answer.len() as u64);
                Ok(NotifyAck { notifier_id: *notifier_id, cookie: *cookie, payload, payload_len })
            })
            .collect();
        let answered = answered?;
        let missed = reply.missed.iter();
        let missed: Vec<NotifyTimeout> = missed
            .map(|(notifier_id, cookie)| NotifyTimeout { notifier_id: *notifier_id, cookie: *cookie })
            .collect();
        acks.set(GivenArray::of(&answered)?);
        nr_acks.set(answered.len());
        timeouts.set(GivenArray::of(&missed)?);
        nr_timeouts.set(missed.len());
        Ok(0)
    }

    /// Gives back what `rados_decode_notify_response` gave.
    fn rados_free_notify_response(
        acks: GivenArray<NotifyAck>,
        nr_acks: usize,
        timeouts: GivenArray<NotifyTimeout>,
    ) {
        acks.load(nr_acks)?.into_iter().for_each(|ack| ack.payload.free());
        acks.free();
        timeouts.free();
        Ok(())
    }

    /// Returns once the callbacks of everything that was heard before have returned. EDEADLK in a callback, which would
    /// wait for itself.
    fn rados_watch_flush(cluster: Handle) -> c_int {
        let client = CLIENTS.get(cluster)?;
        client.cluster()?.watch_flush().wait()?;
        client.finisher.flush()?;
        Ok(0)
    }

    /// As `rados_watch_flush`, completing instead of waiting.
    fn rados_aio_watch_flush(cluster: Handle, completion: Handle) -> c_int {
        let (client, completion) = (CLIENTS.get(cluster)?, COMPLETIONS.get(completion)?);
        let cluster = client.cluster()?;
        completion.begin()?;
        let owner = client.clone();
        client.finisher.post(Box::new(move || {
            // What the session's thread is about to post comes before what is posted after it.
            let heard = cluster.watch_flush().wait();
            let last = owner.clone();
            owner.finisher.post(Box::new(move || {
                completion.finish(&last, || (code(heard), 0));
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
