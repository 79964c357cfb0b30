//! Execution of a client's request by the OSD's interpreter, and what its machine is told of it.

use super::{Hosted, Osd, Request};
use crate::interpreter::{self, Setting};
use bytes::Bytes;
use nacre_pg::Executed;
use nacre_types::msg::OsdReply;
use nacre_types::{Epoch, Eversion, PgId};

impl Osd {
    /// Executes a request; `None` where there is no such request.
    pub(super) fn execute(&mut self, pg: PgId, token: u64, version: Eversion) -> Option<Executed> {
        let process = self.process.as_mut()?;
        let epoch = process.epoch();
        let view = process.view.clone()?;
        let pool = view.map.pools.get(&pg.pool)?;
        let full = self.disk.lacks_room(64) || {
            let members = view.map.membership(pg).map(|m| m.acting()).unwrap_or_default();
            members.iter().any(|osd| view.map.osds.get(osd).is_some_and(|info| info.full))
        };
        let Hosted { machine, requests, .. } = process.pgs.get_mut(&pg)?;
        let in_hand = requests.get_mut(&token)?;
        let request = &in_hand.request;
        if machine.lacks(&request.object) {
            return Some(damaged(in_hand, epoch));
        }
        let setting = Setting {
            pool,
            limits: &self.settings.limits,
            full,
            at: version,
            wall_ns: 0,
            recent_requests: &|oid| machine.requests_of(oid, nacre_exec::MAX_COPIED_REQUESTS),
        };
        let executed = interpreter::execute(self.disk.seen(), &setting, request);
        if executed.damaged {
            return Some(damaged(in_hand, epoch));
        }
        let mut result = executed.result.to_le_bytes().to_vec();
        result.extend_from_slice(&executed.user_version.to_le_bytes());
        let result = Bytes::from(result);
        let (writes, may_change) = (nacre_exec::may_write(request), nacre_exec::may_change(request));
        in_hand.reply = Some(OsdReply {
            reqid: request.reqid,
            attempt: request.attempt,
            epoch,
            result: executed.result,
            user_version: executed.user_version,
            ops: executed.ops,
        });
        let Some(change) = executed.change else {
            return Some(match executed.result < 0 {
                true if writes => Executed::Failed { result },
                false if writes && may_change => Executed::Unchanged { result },
                _ => Executed::Read,
            });
        };
        in_hand.wrote = Some(version);
        Some(Executed::Write {
            txn: change.transaction,
            delete: !change.context.exists,
            prior: change.prior_version,
            user_version: change.context.info.user_version,
            mtime_ns: change.context.info.mtime_ns,
            result,
        })
    }
}

/// What is told of a request whose object can't be read: it may still be removed.
fn damaged(in_hand: &mut Request, epoch: Epoch) -> Executed {
    let request = &in_hand.request;
    if !nacre_exec::only_removes(request) {
        return Executed::Damaged { removal: None };
    }
    let (reqid, attempt) = (request.reqid, request.attempt);
    in_hand.reply = Some(OsdReply { reqid, attempt, epoch, result: 0, user_version: 0, ops: Vec::new() });
    Executed::Damaged { removal: Some(Bytes::from_static(&[0; 12])) }
}
