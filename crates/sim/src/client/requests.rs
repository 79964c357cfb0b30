//! The requests of clients' actions, and the interpretation of their answers.

use crate::history::{Action, Outcome, Token, Value};
use crate::pattern;
use bytes::Bytes;
use nacre_types::ceph::Encoder;
use nacre_types::encoding;
use nacre_types::errno::Errno;
use nacre_types::msg::OsdReply;
use nacre_types::op::{
    CmpOp, CmpValue, OmapValsReply, Op, OpResult, OsdOp, Pairs, cmpext_mismatch_index, op_flag, request_flag,
};
use nacre_types::payload::Payload;

/// The attribute that holds an object's mark.
pub const MARK: &str = "mark";
/// The omap key that mirrors the mark.
pub const MARK_KEY: &[u8] = b"mark";
/// The omap key that an object class increments.
pub const COUNT_KEY: &[u8] = b"count";

/// Bytes of a token's data by default.
pub const TOKEN_BYTES: usize = size_of::<Token>();

/// The bytes of a token alone.
fn token_bytes(token: Token) -> Bytes {
    Bytes::copy_from_slice(&token.to_le_bytes())
}

/// The stored form of a mark: empty if there is none.
fn mark_bytes(mark: Token) -> Bytes {
    if mark == 0 { Bytes::new() } else { token_bytes(mark) }
}

fn compare_mark(op: CmpOp, mark: Token) -> Op {
    Op::CmpXattr { name: MARK.into(), op, value: CmpValue::Bytes(mark_bytes(mark)) }
}

/// An op that is allowed to fail.
fn fail_ok(op: Op) -> OsdOp {
    OsdOp { op, flags: op_flag::FAILOK }
}

/// The input of the class `numops`.
fn count_up() -> Bytes {
    let mut input = Encoder::default();
    input.bytes(COUNT_KEY);
    input.bytes(b"1");
    input.finish()
}

/// The ops of `action`, with `size` bytes of data for each token.
pub fn ops(action: &Action, size: usize) -> Vec<OsdOp> {
    let data = |token: Token| Payload::from(pattern::of_token(token, size));
    let append = |token: Token| Op::Append { data: data(token) };
    let write_full = |token: Token| Op::WriteFull { data: data(token) };
    let ops = match action {
        Action::Read => vec![
            Op::Read { offset: 0, len: 0 },
            Op::GetXattrs,
            Op::OmapGetVals { start_after: Bytes::new(), filter_prefix: Bytes::new(), max: 16 },
        ],
        Action::WriteFull(token) => vec![write_full(*token)],
        Action::Append(token) => vec![append(*token)],
        Action::WriteAt(at, token) => {
            vec![Op::Write { offset: size as u64 * u64::from(*at), data: data(*token) }]
        }
        Action::Truncate(len) => vec![Op::Truncate { size: size as u64 * u64::from(*len) }],
        Action::Remove => vec![Op::Remove],
        // Batches have their own requests.
        Action::Clear => Vec::new(),
        Action::Ensure => return vec![fail_ok(Op::Create { exclusive: true })],
        Action::Swap { expect, set } => vec![
            Op::AssertExists,
            compare_mark(CmpOp::Eq, *expect),
            Op::SetXattr { name: MARK.into(), value: mark_bytes(*set) },
            Op::OmapSet { entries: vec![(Bytes::from_static(MARK_KEY), mark_bytes(*set))] },
        ],
        Action::Create(token) => vec![Op::Create { exclusive: true }, write_full(*token)],
        Action::AppendTelling { expect, token } => {
            return vec![fail_ok(compare_mark(CmpOp::Eq, *expect)), append(*token).into()];
        }
        Action::AppendAfter { first, token } => {
            vec![Op::CmpExt { offset: 0, data: token_bytes(*first) }, append(*token)]
        }
        Action::Unmark => vec![
            Op::AssertExists,
            compare_mark(CmpOp::Ne, 0),
            Op::RmXattr { name: MARK.into() },
            Op::OmapRmKeys { keys: vec![Bytes::from_static(MARK_KEY)] },
        ],
        Action::Count => {
            vec![Op::Call { class: "numops".into(), method: "add".into(), input: count_up() }]
        }
        Action::Replace { version, token } => {
            vec![Op::AssertVersion { version: *version }, write_full(*token)]
        }
        Action::Copy(source) => vec![Op::CopyFrom {
            source: source.object.clone(),
            version: source.version,
            flags: 0,
            truncate: (0, 0),
        }],
    };
    ops.into_iter().map(OsdOp::from).collect()
}

/// The flags that the request of `action` needs.
pub fn flags(action: &Action) -> u32 {
    if matches!(action, Action::AppendTelling { .. }) { request_flag::RETURNVEC } else { 0 }
}

/// The meaning of an answer, and its version if that is meaningful. A token has `size` bytes of data.
pub fn outcome(action: &Action, reply: &OsdReply, size: usize) -> Result<(Outcome, Option<u64>), String> {
    let version = Some(reply.user_version);
    if reply.result >= 0 {
        return Ok(match action {
            Action::Read => (Outcome::Saw(Some(value(&reply.ops, size)?)), version),
            Action::AppendTelling { .. } => (Outcome::Told(told(&reply.ops)?), version),
            // The version of a removal is that before it; if the other actions changed nothing, the version is that of another write.
            Action::Ensure | Action::Truncate(_) | Action::Remove | Action::Clear => (Outcome::Done, None),
            _ => (Outcome::Done, version),
        });
    }
    if cmpext_mismatch_index(reply.result).is_some() && matches!(action, Action::AppendAfter { .. }) {
        return Ok((Outcome::Mismatch, None));
    }
    match Errno(-reply.result) {
        Errno::ENOENT if *action == Action::Read => Ok((Outcome::Saw(None), None)),
        // The source was removed or changed.
        Errno::ENOENT | Errno::ERANGE | Errno::EOVERFLOW if matches!(action, Action::Copy(_)) => {
            Ok((Outcome::Refused, None))
        }
        Errno::ENOENT if *action == Action::Clear => Ok((Outcome::Done, None)),
        Errno::ENOENT => Ok((Outcome::Absent, None)),
        // Large objects may reach the maximum size.
        Errno::EFBIG if size > TOKEN_BYTES => Ok((Outcome::Refused, None)),
        Errno::EEXIST if matches!(action, Action::Create(_)) => Ok((Outcome::Exists, None)),
        Errno::ECANCELED => Ok((Outcome::Mismatch, None)),
        Errno::ERANGE | Errno::EOVERFLOW if matches!(action, Action::Replace { .. }) => {
            Ok((Outcome::Refused, None))
        }
        // Other checks judge whether the OSD may refuse.
        Errno::ENOSPC | Errno::EIO => Ok((Outcome::Refused, None)),
        // The session has expired: whether an earlier attempt was executed is unknown.
        Errno::ESTALE | Errno::EBLOCKLISTED => Ok((Outcome::Unknown, None)),
        other => Err(format!("unexpected result {other:?} of {action:?}")),
    }
}

/// Whether the comparison of the first op succeeded.
fn told(results: &[OpResult]) -> Result<bool, String> {
    match results {
        [compared, _] if compared.code >= 0 => Ok(true),
        [compared, _] if [Errno::ECANCELED, Errno::ENOENT].map(Errno::negated).contains(&compared.code) => {
            Ok(false)
        }
        _ => Err(format!("results {results:?}")),
    }
}

/// The value that a read returned.
fn value(results: &[OpResult], size: usize) -> Result<Value, String> {
    let [data, attrs, omap] = results else { return Err(format!("{} results of a read", results.len())) };
    let token = |bytes: &[u8]| match bytes {
        [] => Ok(0),
        _ => {
            bytes.try_into().map(Token::from_le_bytes).map_err(|_| format!("a mark of {} bytes", bytes.len()))
        }
    };
    let pairs: Pairs = encoding::decode(&attrs.output).map_err(|e| e.to_string())?;
    let entries: OmapValsReply = encoding::decode(&omap.output).map_err(|e| e.to_string())?;
    let find = |list: &[(Bytes, Bytes)], name: &[u8]| {
        list.iter().find(|(key, _)| key == name).map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    };
    let mark = token(&find(&pairs.0, MARK.as_bytes()))?;
    if token(&find(&entries.entries, MARK_KEY))? != mark {
        return Err(format!("torn object: attribute {mark:x} and omap {:?} disagree", entries.entries));
    }
    let count = find(&entries.entries, COUNT_KEY);
    let number = if count.is_empty() {
        Some(0)
    } else {
        std::str::from_utf8(&count).ok().and_then(|n| n.parse().ok())
    };
    let count = number.ok_or_else(|| format!("a count of {count:?}"))?;
    let parts = data.output.chunks_exact(size);
    if !parts.remainder().is_empty() {
        return Err(format!("torn data of {} bytes", data.output.len()));
    }
    let torn = |index: usize| format!("torn data in part {index} of {}", data.output.len().div_ceil(size));
    let tokens = parts.enumerate().map(|(index, part)| pattern::token_of(part).ok_or_else(|| torn(index)));
    let tokens = tokens.collect::<Result<_, _>>()?;
    Ok(Value { tokens, mark, count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::interpreter::{self, ExecContext};
    use crate::random::{Random, Stream};
    use nacre_exec::{Limits, ObjectChange};
    use nacre_types::msg::OsdRequest;
    use nacre_types::object::SNAP_HEAD;
    use nacre_types::pool::Pool;
    use nacre_types::txn::{Transaction, TxnOp};
    use nacre_types::{ClientId, Epoch, Eversion, Interval, ObjectId, PgId, PoolId, ReqId};

    const PG: PgId = PgId { pool: PoolId(1), seed: 0 };

    /// Executes a request as an OSD does. Returns the answer and the change.
    fn execute(disk: &Disk, request: &OsdRequest, version: u64) -> (OsdReply, Option<ObjectChange>) {
        let pool = Pool::replicated("p", 3, 2, 0, 1, Epoch(1));
        let setting = ExecContext {
            pool: &pool,
            limits: &Limits::default(),
            full: false,
            at: Eversion::new(Interval(1), version),
            wall_ns: 0,
            recent_requests: &|_| Vec::new(),
        };
        let done = interpreter::execute(disk.visible(), &setting, request);
        let reply = OsdReply {
            reqid: request.reqid,
            attempt: request.attempt,
            epoch: request.epoch,
            result: done.result,
            user_version: done.user_version,
            ops: done.ops,
        };
        (reply, done.change)
    }

    #[test]
    fn requests_do_to_a_disk_what_the_model_says() {
        [TOKEN_BYTES, 150_008].into_iter().for_each(run);
    }

    fn run(size: usize) {
        let object = ObjectId::new(PoolId(1), "", "", "o");
        let mut disk = Disk::default();
        let mut create = Transaction::new(PG);
        create.push(TxnOp::CreateCollection);
        disk.apply(create).unwrap();
        let mut random = Random::new(5, Stream::Workload);
        let (mut model, mut seen_version) = (None, 1);
        for token in 1..400 {
            let last: Value = model.clone().unwrap_or_default();
            let first = last.tokens.first().copied().unwrap_or(0);
            let expect = if random.chance(700) { last.mark } else { token };
            let action = match random.range(0, 15) {
                9 => Action::Create(token),
                10 => Action::AppendTelling { expect, token },
                11 => Action::AppendAfter { first: random.range(0, 2) * first, token },
                12 => Action::Unmark,
                13 => Action::Count,
                14 => Action::Replace { version: seen_version, token },
                0..2 => Action::Append(token),
                2 => Action::WriteFull(token),
                3 => Action::WriteAt(random.range(0, 5) as u8, token),
                4 => Action::Truncate(random.range(0, 5) as u8),
                5 => Action::Remove,
                6 => Action::Ensure,
                _ => Action::Swap { expect, set: token },
            };
            let request = |action: &Action| OsdRequest {
                reqid: ReqId { client: ClientId(4), tid: token },
                oldest_tid: token,
                attempt: 0,
                epoch: Epoch(1),
                pg: PG,
                interval: Interval(1),
                object: object.clone(),
                mtime_ns: 0,
                flags: flags(action),
                snap: SNAP_HEAD,
                snap_context: None,
                ops: ops(action, size),
                tier: None,
            };
            let (reply, change) = execute(&disk, &request(&action), token);
            let (next, expected) = action.apply(&model);
            model = next;
            assert_eq!(outcome(&action, &reply, size).unwrap().0, expected, "{action:?}");
            if let Some(change) = change {
                assert_eq!(change.context.exists, model.is_some(), "{action:?}");
                disk.apply(change.transaction).unwrap();
            }
            let (reply, _) = execute(&disk, &request(&Action::Read), token);
            let (saw, version) = outcome(&Action::Read, &reply, size).unwrap();
            seen_version = version.unwrap_or(token);
            assert_eq!(saw, Outcome::Saw(model.clone()), "{action:?}");
        }
    }
}
