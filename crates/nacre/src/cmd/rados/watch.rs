//! `rados watch`, `notify` and `listwatchers`.

use super::{Context, Failure, failed, out};
use crate::cmd::hexdump::hexdump;
use nacre_client::{Error, IoCtx, Notification, NotifyOutcome, WatchHandler};
use nacre_types::ceph::Encoder;
use nacre_types::errno::Errno;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

/// How long the real program waits for watchers.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn list_watchers(context: &Context<'_>, operands: &[&str]) -> Result<(), Failure> {
    let doing = format!("error listing watchers {}", context.name(operands[0]));
    let watchers = context.pool().list_watchers(operands[0]).wait().map_err(failed(doing))?;
    watchers.iter().try_for_each(|watch| {
        out(format!("watcher={} client.{} cookie={}\n", watch.addr, watch.client, watch.cookie))
    })
}

/// Prints what it hears and answers with the same.
struct Printer {
    io: IoCtx,
    object: String,
}

impl Printer {
    /// A closed pipe or full disk must not end the session's thread.
    fn print(&self, text: &str) {
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    }
}

impl WatchHandler for Printer {
    fn notified(&self, notification: Notification) {
        let Notification { cookie, notify_id, notifier, payload } = notification;
        let dump = hexdump(&payload);
        self.print(&format!("NOTIFY cookie {cookie} notify_id {notify_id} from {notifier}\n{dump}"));
        self.io.notify_ack(&self.object, notify_id, cookie, payload);
    }

    fn lost(&self, cookie: u64, error: Error) {
        self.print(&format!("ERROR cookie {cookie} err {}\n", error.errno()));
    }
}

fn calling(what: &'static str) -> impl FnOnce(Error) -> Failure {
    move |error| {
        let errno = error.errno();
        Failure::new(format!("error calling {what}: {}\nerror {}: {errno}", errno.negated(), errno.0))
    }
}

pub(super) fn watch(context: &Context<'_>, operands: &[&str]) -> Result<(), Failure> {
    let io = context.pool();
    let handler = Printer { io: io.clone(), object: operands[0].to_owned() };
    let (cookie, watching) = io.watch(operands[0], None, Arc::new(handler));
    watching.wait().map_err(calling("watch"))?;
    out("press enter to exit...\n")?;
    // The end of the input ends the watch too.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    io.unwatch(cookie).wait().map_err(calling("unwatch"))?;
    context.cluster.watch_flush().wait().map_err(calling("watch_flush"))
}

pub(super) fn notify(context: &Context<'_>, operands: &[&str]) -> Result<(), Failure> {
    let mut message = Encoder::default();
    message.bytes(operands[1].as_bytes());
    let payload = message.finish();
    let told = context.pool().notify(operands[0], payload, Some(NOTIFY_TIMEOUT)).wait();
    let NotifyOutcome { timed_out, reply } = told.map_err(calling("notify"))?;
    if timed_out {
        eprintln!("error calling notify: {}", Errno::ETIMEDOUT.negated());
    }
    for (client, cookie, answer) in &reply.acks {
        out(format!("reply client.{client} cookie {cookie} : {} bytes\n", answer.len()))?;
        if !answer.is_empty() {
            out(hexdump(answer))?;
        }
    }
    for (client, cookie) in &reply.missed {
        out(format!("timeout client.{client} cookie {cookie}\n"))?;
    }
    if timed_out {
        let errno = Errno::ETIMEDOUT;
        return Err(Failure::new(format!("error {}: {errno}", errno.0)));
    }
    Ok(())
}
