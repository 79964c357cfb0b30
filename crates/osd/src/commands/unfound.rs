//! `list_unfound` and `mark_unfound_lost`.

use super::{required_pg, unknown_pg};
use crate::shared::Shared;
use nacre_runtime::admin::{CommandAnswer, CommandFailure, CommandOutput, CommandResult};
use nacre_shard::inbox::ShardMessage;
use nacre_shard::shard::ShardCell;
use nacre_types::command::Call;
use nacre_types::errno::Errno;
use nacre_types::ids::{Eversion, PgId};
use nacre_types::object::ObjectId;
use serde_json::{Value, json};

/// Maximum number of objects in an answer, as Ceph's `osd_command_max_records`.
const MAX_OBJECTS: usize = 256;

/// The unfound objects of a PG.
fn unfound(cells: &[ShardCell], pg: PgId) -> Result<Vec<(ObjectId, Eversion)>, CommandFailure> {
    if !cells.iter().any(|cell| cell.with(|shard| shard.query(pg)).is_some()) {
        return Err(unknown_pg(pg));
    }
    let found = cells.iter().find_map(|cell| cell.inspect(|shard| shard.unfound(pg)));
    found.ok_or_else(|| CommandFailure(Errno::EAGAIN, format!("pg {pg} is not active here")))
}

/// Lists the unfound objects after `offset`, which is the `oid` of an object from the page before.
pub(super) fn list(cells: &[ShardCell], call: &Call<'_>) -> CommandResult {
    let pg = required_pg(call)?;
    let after = call.text("offset").filter(|offset| !offset.is_empty()).map(|offset| position(pg, offset));
    let after = after.transpose()?;
    let mut unfound = unfound(cells, pg)?;
    let count = unfound.len();
    unfound.retain(|(object, _)| after.as_ref().is_none_or(|after| object > after));
    let more = unfound.len() > MAX_OBJECTS;
    unfound.truncate(MAX_OBJECTS);
    Ok(json!({
        "num_missing": count,
        "num_unfound": count,
        "objects": unfound.iter().map(described).collect::<Vec<_>>(),
        "more": more,
    })
    .into())
}

fn described((object, needed): &(ObjectId, Eversion)) -> Value {
    json!({
        "oid": {
            "oid": object.name(),
            "key": object.locator(),
            "snapid": -2,
            "hash": object.hash(),
            "max": 0,
            "pool": object.pool().0,
            "namespace": object.namespace(),
        },
        "need": needed.to_string(),
        "have": Eversion::default().to_string(),
        "flags": "none",
        "locations": [],
    })
}

fn position(pg: PgId, offset: &str) -> Result<ObjectId, CommandFailure> {
    let wrong = || CommandFailure(Errno::EINVAL, format!("offset '{offset}' is no object of a listing"));
    let oid: Value = serde_json::from_str(offset).map_err(|_| wrong())?;
    let text = |name: &str| oid[name].as_str().unwrap_or_default();
    let name = oid["oid"].as_str().ok_or_else(wrong)?;
    if text("namespace").len().max(text("key").len()) > usize::from(u16::MAX) {
        return Err(wrong());
    }
    Ok(ObjectId::new(pg.pool, text("namespace"), text("key"), name))
}

/// Requests the removal of the PG's unfound objects. If a new interval interrupts the removal, the remaining objects stay listed.
pub(super) fn mark_lost(shared: &Shared, cells: &[ShardCell], call: &Call<'_>) -> CommandResult {
    let pg = required_pg(call)?;
    if call.required_text("mulcmd") != "delete" {
        return Err(CommandFailure(
            Errno::EINVAL,
            "mode must be 'delete': there are no prior versions".into(),
        ));
    }
    let status = match unfound(cells, pg)?.len() {
        0 => "pg has no unfound objects".to_owned(),
        count => {
            shared.inboxes[shared.shard_of(pg)].post(ShardMessage::RemoveUnfound(pg));
            format!("pg has {count} objects unfound and apparently lost marking")
        }
    };
    Ok(CommandAnswer { status, output: CommandOutput::Text(String::new()) })
}
