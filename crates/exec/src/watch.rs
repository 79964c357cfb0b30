//! The ops of watches: their part in the object's info (rule R9). The host manages the connections, by [`WatchNotifyEffect`]s.

use crate::effect::WatchNotifyEffect;
use crate::op_context::OpContext;
use nacre_types::ceph::SessionAddr;
use nacre_types::encoding::encode;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, OpResult, WatchInfo, WatchersReply};

/// Runs one op.
pub(super) fn run(object: &mut OpContext<'_>, op: &Op) -> Result<OpResult, Errno> {
    if !object.exists() {
        return Err(Errno::ENOENT);
    }
    let client = object.origin().client;
    let position = |object: &OpContext<'_>, cookie: u64| {
        object.info().watchers.iter().position(|watch| watch.client == client && watch.cookie == cookie)
    };
    match op {
        Op::Watch { cookie, timeout_s } => {
            let timeout_s = if *timeout_s == 0 { object.limits().watch_timeout_s } else { *timeout_s };
            if position(object, *cookie).is_none() {
                if !object.may_watch() {
                    return Err(Errno::ENOSPC);
                }
                let addr = SessionAddr::client(object.origin().ip, client).to_string();
                let watchers = object.watchers_mut();
                watchers.push(WatchInfo { client, cookie: *cookie, timeout_s, addr });
                watchers.sort_unstable_by_key(|watch| (watch.client, watch.cookie));
            }
            object.push_effect(WatchNotifyEffect::Connect { cookie: *cookie, timeout_s });
        }
        Op::WatchReconnect { cookie } => {
            let at = position(object, *cookie).ok_or(Errno::ENOTCONN)?;
            let timeout_s = object.info().watchers[at].timeout_s;
            object.push_effect(WatchNotifyEffect::Connect { cookie: *cookie, timeout_s });
        }
        Op::WatchPing { cookie } => {
            position(object, *cookie).ok_or(Errno::ENOTCONN)?;
            object.push_effect(WatchNotifyEffect::Ping { cookie: *cookie });
        }
        Op::Unwatch { cookie } => {
            if let Some(at) = position(object, *cookie) {
                object.watchers_mut().remove(at);
            }
            // Sent even if there is no such watch: the host must not know of a watch that is not in the object's info.
            object.push_effect(WatchNotifyEffect::Disconnect { cookie: *cookie });
        }
        Op::Notify { timeout_s, payload } => {
            let timeout_s = if *timeout_s == 0 { object.limits().notify_timeout_s } else { *timeout_s };
            object.push_effect(WatchNotifyEffect::Notify { timeout_s, payload: payload.clone() });
        }
        Op::NotifyAck { notify_id, cookie, payload } => {
            let (notify_id, cookie, payload) = (*notify_id, *cookie, payload.clone());
            object.push_effect(WatchNotifyEffect::Ack { notify_id, cookie, payload });
        }
        Op::ListWatchers => {
            let watchers = object.info().watchers.clone();
            return Ok(OpResult::output(encode(&WatchersReply { watchers })));
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(OpResult::default())
}
