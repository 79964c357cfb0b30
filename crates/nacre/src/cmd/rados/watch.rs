//! `rados watch`, `notify` and `listwatchers`.

use super::args::Format;
use super::{Context, RadosFailure, failed, formatting, out};
use crate::cmd::hexdump::hexdump;
use nacre_client::{Error, IoCtx, Notification, NotifyOutcome, WatchHandler};
use nacre_types::ceph::Encoder;
use nacre_types::errno::Errno;
use nacre_types::op::{NotifyReply, WatchInfo};
use serde_json::json;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

/// How long Ceph's program waits for watchers.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn list_watchers(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error listing watchers {}", context.name(operands[0]));
    let watchers = context.pool().list_watchers(operands[0]).wait().map_err(failed(doing))?;
    out(listing(&watchers, context.args.format))
}

fn listing(watchers: &[WatchInfo], format: Format) -> String {
    let line = |watch: &WatchInfo| {
        format!("watcher={} client.{} cookie={}\n", watch.addr, watch.client, watch.cookie)
    };
    let entry = |watch: &WatchInfo| {
        json!({
            "addr": watch.addr,
            "client": format!("client.{}", watch.client),
            "cookie": watch.cookie,
            "timeout": watch.timeout_s,
        })
    };
    match format {
        Format::Plain => watchers.iter().map(line).collect(),
        format => formatting::json(&watchers.iter().map(entry).collect(), format),
    }
}

/// Prints notifications and answers them with the same payload.
struct Printer {
    io: IoCtx,
    object: String,
    format: Format,
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
        self.print(&match self.format {
            Format::Plain => {
                let dump = hexdump(&payload);
                format!("NOTIFY cookie {cookie} notify_id {notify_id} from {notifier}\n{dump}")
            }
            // One line each, because the output has no end.
            _ => {
                let (payload, length) = (formatting::text(&payload), payload.len());
                let shown = json!({
                    "cookie": cookie,
                    "notify_id": notify_id,
                    "notifier": notifier,
                    "payload": payload,
                    "length": length,
                });
                format!("{shown}\n")
            }
        });
        self.io.notify_ack(&self.object, notify_id, cookie, payload);
    }

    fn lost(&self, cookie: u64, error: Error) {
        self.print(&match self.format {
            Format::Plain => format!("ERROR cookie {cookie} err {}\n", error.errno()),
            _ => format!("{}\n", json!({ "cookie": cookie, "error": error.errno().to_string() })),
        });
    }
}

fn calling(what: &'static str) -> impl FnOnce(Error) -> RadosFailure {
    move |error| {
        let errno = error.errno();
        RadosFailure::new(format!("error calling {what}: {}\nerror {}: {errno}", errno.negated(), errno.0))
    }
}

pub(super) fn watch(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let io = context.pool();
    let format = context.args.format;
    let handler = Printer { io: io.clone(), object: operands[0].to_owned(), format };
    let (cookie, watching) = io.watch(operands[0], None, Arc::new(handler));
    watching.wait().map_err(calling("watch"))?;
    if format == Format::Plain {
        out("press enter to exit...\n")?;
    }
    // The end of the input also ends the watch.
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    io.unwatch(cookie).wait().map_err(calling("unwatch"))?;
    context.cluster.watch_flush().wait().map_err(calling("watch_flush"))
}

pub(super) fn notify(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let mut message = Encoder::default();
    message.bytes(operands[1].as_bytes());
    let payload = message.finish();
    let told = context.pool().notify(operands[0], payload, Some(NOTIFY_TIMEOUT)).wait();
    let NotifyOutcome { timed_out, reply } = told.map_err(calling("notify"))?;
    if timed_out {
        eprintln!("error calling notify: {}", Errno::ETIMEDOUT.negated());
    }
    out(answers(&reply, context.args.format))?;
    if timed_out {
        let errno = Errno::ETIMEDOUT;
        return Err(RadosFailure::new(format!("error {}: {errno}", errno.0)));
    }
    Ok(())
}

/// The watchers that answered a notify with their answers, and those that did not answer.
fn answers(reply: &NotifyReply, format: Format) -> String {
    if format != Format::Plain {
        let acks = reply.acks.iter().map(|(client, cookie, answer)| {
            json!({
                "client": format!("client.{client}"),
                "cookie": cookie,
                "reply": formatting::text(answer),
                "length": answer.len(),
            })
        });
        let missed = reply.missed.iter().map(|(client, cookie)| {
            json!({
                "client": format!("client.{client}"),
                "cookie": cookie,
            })
        });
        let shown = json!({ "acks": acks.collect::<Vec<_>>(), "timeouts": missed.collect::<Vec<_>>() });
        return formatting::json(&shown, format);
    }
    let mut text = String::new();
    for (client, cookie, answer) in &reply.acks {
        text += &format!("reply client.{client} cookie {cookie} : {} bytes\n", answer.len());
        if !answer.is_empty() {
            text += &hexdump(answer);
        }
    }
    for (client, cookie) in &reply.missed {
        text += &format!("timeout client.{client} cookie {cookie}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use nacre_types::ClientId;

    #[test]
    fn watchers_are_lines_or_documents() {
        let addr = "127.0.0.1:0/7".to_owned();
        let watchers = [WatchInfo { client: ClientId(4), cookie: 5, timeout_s: 30, addr }];
        let line = listing(&watchers, Format::Plain);
        assert_eq!(line, "watcher=127.0.0.1:0/7 client.4 cookie=5\n");
        let document = listing(&watchers, Format::Json);
        let expected = r#"[{"addr":"127.0.0.1:0/7","client":"client.4","cookie":5,"timeout":30}]"#;
        assert_eq!(document, expected);
    }

    #[test]
    fn answers_to_a_notify_are_text_or_a_document() {
        let reply = NotifyReply { notify_id: 1, acks: vec![(4, 5, Bytes::new())], missed: vec![(6, 7)] };
        let text = answers(&reply, Format::Plain);
        assert_eq!(text, "reply client.4 cookie 5 : 0 bytes\ntimeout client.6 cookie 7\n");
        let document: serde_json::Value = serde_json::from_str(&answers(&reply, Format::Json)).unwrap();
        let ack = &document["acks"][0];
        assert_eq!((&ack["client"], &ack["length"]), (&json!("client.4"), &json!(0)));
        assert_eq!(document["timeouts"], json!([{ "client": "client.6", "cookie": 7 }]));
    }
}
