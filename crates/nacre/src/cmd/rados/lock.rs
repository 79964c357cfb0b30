//! `rados lock`: advisory locks. Output is JSON, as in Ceph's program.

use super::{Context, RadosFailure, formatting, out, reason};
use bytes::Bytes;
use nacre_client::Error;
use nacre_types::ceph::UTime;
use nacre_types::cls::lock::{LockKind, LockOp};
use serde_json::{Value, json};

pub(super) fn lock(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    match operands {
        ["list", object] => list(context, object),
        ["get", object, name] => get(context, object, name),
        ["info", object, name] => info(context, object, name),
        ["break", object, name, holder] => break_lock(context, object, name, holder),
        _ => Err(RadosFailure::usage()),
    }
}

/// The verb's own message, then the last line that the program prints.
fn failed(doing: &'static str) -> impl FnOnce(Error) -> RadosFailure {
    move |error| {
        let errno = error.errno();
        RadosFailure::new(format!("ERROR: {doing}: {}\nerror {}: {errno}", reason(&error), errno.0))
    }
}

fn show(context: &Context<'_>, value: &Value) -> Result<(), RadosFailure> {
    out(formatting::json(value, context.args.format))
}

fn list(context: &Context<'_>, object: &str) -> Result<(), RadosFailure> {
    let locks = context.pool().list_locks(object).wait().map_err(failed("rados_list_locks()"))?;
    let locks: Vec<Value> = locks.iter().map(|name| json!({ "name": text(name) })).collect();
    show(context, &json!({ "objname": object, "locks": locks }))
}

fn get(context: &Context<'_>, object: &str, name: &str) -> Result<(), RadosFailure> {
    let args = context.args;
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let op = LockOp {
        name: bytes(name),
        kind: if args.lock_shared { LockKind::Shared } else { LockKind::Exclusive },
        cookie: bytes(&args.lock_cookie),
        // An exclusive lock has no tag.
        tag: if args.lock_shared { bytes(&args.lock_tag) } else { Bytes::new() },
        description: bytes(&args.lock_description),
        duration: UTime { seconds: args.lock_duration, nanoseconds: 0 },
        flags: 0,
    };
    context.pool().lock(object, &op).wait().map_err(failed("failed locking"))
}

fn info(context: &Context<'_>, object: &str, name: &str) -> Result<(), RadosFailure> {
    let info = context.pool().lock_info(object, name).wait().map_err(failed("rados_lock_get_lock_info()"))?;
    let lockers: Vec<Value> = info
        .lockers
        .iter()
        .map(|((locker, cookie), held)| {
            json!({
                "name": locker.to_string(),
                "cookie": text(cookie),
                "description": text(&held.description),
                "expiration": expiration(held.expiration),
                "addr": held.addr.to_string(),
            })
        })
        .collect();
    let shown = json!({
        "name": name, "type": info.kind.name(), "tag": text(&info.tag), "lockers": lockers,
    });
    show(context, &shown)
}

fn break_lock(context: &Context<'_>, object: &str, name: &str, holder: &str) -> Result<(), RadosFailure> {
    let broken = context.pool().break_lock(object, name, holder, &context.args.lock_cookie).wait();
    broken.map_err(|error| match error {
        Error::Invalid { errno, .. } => RadosFailure::new(format!(
            "ERROR: failed to parse locker name ({holder})\nerror {}: {errno}",
            errno.0
        )),
        error => failed("failed breaking lock")(error),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As Ceph prints times: those of the first years after 1970 are durations.
fn expiration(at: UTime) -> String {
    const TEN_YEARS_S: u32 = 60 * 60 * 24 * 365 * 10;
    if at.seconds < TEN_YEARS_S {
        return format!("{}.{:06}", at.seconds, at.nanoseconds / 1000);
    }
    formatting::time(at.as_ns())
}
