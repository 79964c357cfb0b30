//! `tier dirty`: lists objects that the base pool may lack, from the names that a cache with `cache_dirty_log` records there.

use super::{Failure, cache_sizing, command_failed, print, printed, session};
use crate::cmd::output::Format;
use bytes::Bytes;
use nacre_client::engine::ObjectRequest;
use nacre_client::{Cluster, Error};
use nacre_common::config::Invocation;
use nacre_types::encoding;
use nacre_types::errno::Errno;
use nacre_types::ids::PgId;
use nacre_types::object::{ObjectId, SNAP_HEAD};
use nacre_types::op::{OmapValsReply, Op, OsdOp, request_flag};
use nacre_types::pool::flag;
use nacre_types::tier::{dirty_log_object, dirty_object};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Names in one answer.
const PAGE: u64 = 1000;

/// Reads the logs of all PGs in the base pool. Works even if the cache's PGs are lost.
pub(super) fn run(invocation: &Invocation, pool: &str, format: Format) -> Result<(), Failure> {
    let cluster = session::connect(invocation)
        .map_err(|text| Failure::new(format!("Error connecting to the cluster: {text}"), 1))?;
    let found = find(&cluster, pool);
    cluster.shut_down();
    let found = found?;
    match format {
        Format::Plain => print(described(&found).as_bytes()),
        format => {
            let values: Vec<Value> = found.iter().map(|(pg, object)| as_json(*pg, object)).collect();
            print(&printed("", format.render(&values.into()).as_bytes(), true, false))
        }
    }
}

fn find(cluster: &Cluster, pool: &str) -> Result<Vec<(PgId, ObjectId)>, Failure> {
    let map = cluster.osdmap();
    let (id, cache, base) = cache_sizing::find_cache_pool(map.as_deref(), pool)?;
    if !cache.has_flag(flag::CACHE_DIRTY_LOG) {
        let text = format!("pool '{pool}' does not record dirty objects: cache_dirty_log is false");
        return Err(Failure::command(Errno::EINVAL, &text));
    }
    let mut found = Vec::new();
    for seed in 0..cache.pg_num {
        let pg = PgId::new(id, seed);
        let objects = names(cluster, &dirty_log_object(base, pg)).map_err(|error| command_failed(&error))?;
        found.extend(objects.into_iter().map(|object| (pg, object)));
    }
    Ok(found)
}

fn names(cluster: &Cluster, log: &ObjectId) -> nacre_client::Result<Vec<ObjectId>> {
    let (mut found, mut start_after) = (Vec::new(), Bytes::new());
    loop {
        let read = Op::OmapGetVals { start_after, filter_prefix: Bytes::new(), max: PAGE };
        let request = ObjectRequest {
            object: log.clone(),
            ops: vec![OsdOp::from(read)],
            flags: request_flag::IGNORE_OVERLAY,
            snap: SNAP_HEAD,
            snap_context: None,
            mtime_ns: None,
            tier: None,
        };
        let mut reply = match cluster.engine().operate(request).wait().and_then(|reply| reply.success()) {
            Ok(reply) => reply,
            // No object of this PG was ever dirty.
            Err(error) if error.errno() == Errno::ENOENT => return Ok(found),
            Err(error) => return Err(error),
        };
        let page: OmapValsReply = encoding::decode(&reply.output(0)?).map_err(Error::Corrupt)?;
        found.extend(page.entries.iter().filter_map(|(key, _)| dirty_object(key)));
        match page.entries.last() {
            Some((key, _)) if page.more => start_after = key.clone(),
            _ => return Ok(found),
        }
    }
}

fn as_json(pg: PgId, object: &ObjectId) -> Value {
    json!({
        "pgid": pg.to_string(),
        "namespace": object.namespace(),
        "locator": object.locator(),
        "name": object.name(),
    })
}

fn described(found: &[(PgId, ObjectId)]) -> String {
    let mut out = String::new();
    for (pg, object) in found {
        // Encoded as in JSON, because names may contain any character.
        let part = |text: &str| if text.is_empty() { String::new() } else { Value::from(text).to_string() };
        let (namespace, locator) = (part(object.namespace()), part(object.locator()));
        let _ = writeln!(out, "{pg}\t{namespace}\t{locator}\t{}", part(object.name()));
    }
    out
}
