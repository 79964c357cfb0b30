//! A small op interpreter: a client's request and an object's state to results and store steps.
//!
//! Only the operations that the simulated clients use ([`crate::client::ops`]); the real interpreter is the OSD's. What
//! counts here is that the request is atomic: one failing step leaves nothing.

use crate::disk::Object;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::op::{
    CmpValue, OI_ATTR, ObjectInfo, OmapValsReply, Op, OpResult, OsdOp, Pairs, op_flag, user_attr,
};
use nacre_types::txn::TxnOp;
use nacre_types::{ObjectId, encoding};
use std::collections::BTreeMap;

/// What a request does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Executed {
    /// 0 or a negated errno.
    pub result: i32,
    /// Per op; ends with the failing one.
    pub results: Vec<OpResult>,
    /// Store steps; none where the request fails or only reads.
    pub steps: Vec<TxnOp>,
    /// Whether the object exists afterwards.
    pub exists: bool,
    /// Bytes of data that it adds.
    pub grows: u64,
}

/// The object's info, as its attribute says; `None` where it is absent.
pub fn object_info(object: Option<&Object>) -> Option<ObjectInfo> {
    let bytes = object?.attrs.get(OI_ATTR)?;
    Some(encoding::decode(bytes).expect("invariant: only set_object_info writes this attribute"))
}

/// The step that stores an object's info.
pub fn set_object_info(oid: &ObjectId, info: &ObjectInfo) -> TxnOp {
    TxnOp::SetAttrs { oid: oid.clone(), attrs: vec![(OI_ATTR.to_owned(), encoding::encode(info).into())] }
}

/// Executes `ops` on an object.
pub fn execute(oid: &ObjectId, object: Option<&Object>, ops: &[OsdOp]) -> Executed {
    let mut state = object.cloned();
    let mut done = Executed { exists: object.is_some(), ..Executed::default() };
    for op in ops {
        let result = step(oid, &mut state, &op.op, &mut done);
        let result = result.map_or_else(OpResult::error, OpResult::output);
        let code = result.code;
        done.results.push(result);
        if code < 0 && op.flags & op_flag::FAILOK == 0 {
            return Executed {
                result: code,
                results: done.results,
                exists: object.is_some(),
                ..Executed::default()
            };
        }
    }
    done.exists = state.is_some();
    done
}

fn step(oid: &ObjectId, state: &mut Option<Object>, op: &Op, done: &mut Executed) -> Result<Bytes, Errno> {
    let oid = || oid.clone();
    match op {
        Op::Read { .. } => return Ok(state.as_ref().ok_or(Errno::ENOENT)?.data.clone().into()),
        Op::GetXattrs => {
            let object = state.as_ref().ok_or(Errno::ENOENT)?;
            let user = object.attrs.iter().filter_map(|(name, value)| Some((name.strip_prefix('_')?, value)));
            let pairs = user
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, value)| (Bytes::copy_from_slice(name.as_bytes()), value.clone()));
            return Ok(encoding::encode(&Pairs(pairs.collect())).into());
        }
        Op::OmapGetVals { .. } => {
            let object = state.as_ref().ok_or(Errno::ENOENT)?;
            let entries = object.omap.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            return Ok(encoding::encode(&OmapValsReply { entries, more: false }).into());
        }
        Op::AssertExists => {
            state.as_ref().ok_or(Errno::ENOENT)?;
        }
        Op::CmpXattr { name, value, .. } => {
            let object = state.as_ref().ok_or(Errno::ENOENT)?;
            let stored = object.attrs.get(&user_attr(name)).cloned().unwrap_or_default();
            if *value != CmpValue::Bytes(stored) {
                return Err(Errno::ECANCELED);
            }
        }
        Op::Create { exclusive: true } => {
            if state.is_some() {
                return Err(Errno::EEXIST);
            }
            *state = Some(Object::default());
            done.steps.push(TxnOp::Touch(oid()));
        }
        Op::Remove => {
            state.take().ok_or(Errno::ENOENT)?;
            done.steps.push(TxnOp::Remove(oid()));
        }
        Op::WriteFull { data } => {
            state.get_or_insert_default().data = data.to_vec();
            done.grows += data.len() as u64;
            done.steps.push(TxnOp::Truncate { oid: oid(), size: 0 });
            done.steps.push(TxnOp::Write { oid: oid(), offset: 0, data: data.clone() });
        }
        Op::Append { data } => {
            let object = state.get_or_insert_default();
            let offset = object.data.len() as u64;
            object.data.extend_from_slice(data);
            done.grows += data.len() as u64;
            done.steps.push(TxnOp::Write { oid: oid(), offset, data: data.clone() });
        }
        Op::Write { offset, data } => {
            let object = state.get_or_insert_default();
            let end = *offset as usize + data.len();
            if object.data.len() < end {
                done.grows += (end - object.data.len()) as u64;
                object.data.resize(end, 0);
            }
            object.data[*offset as usize..end].copy_from_slice(data);
            done.steps.push(TxnOp::Write { oid: oid(), offset: *offset, data: data.clone() });
        }
        Op::Truncate { size } => {
            let object = state.get_or_insert_default();
            done.grows += size.saturating_sub(object.data.len() as u64);
            object.data.resize(*size as usize, 0);
            done.steps.push(TxnOp::Truncate { oid: oid(), size: *size });
        }
        Op::SetXattr { name, value } => {
            let attr = (user_attr(name), value.clone());
            state.get_or_insert_default().attrs.insert(attr.0.clone(), attr.1.clone());
            done.steps.push(TxnOp::SetAttrs { oid: oid(), attrs: vec![attr] });
        }
        Op::OmapSet { entries } => {
            state.get_or_insert_default().omap.extend(entries.iter().cloned().collect::<BTreeMap<_, _>>());
            done.steps.push(TxnOp::OmapSet { oid: oid(), entries: entries.clone() });
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(Bytes::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ops;
    use crate::disk::Disk;
    use crate::history::Action;
    use crate::random::{Random, Stream};
    use nacre_types::txn::Transaction;
    use nacre_types::{PgId, PoolId};

    /// What the interpreter says must be what the model of [`Action::apply`] says, and its steps must do it.
    #[test]
    fn requests_do_to_a_disk_what_the_model_says() {
        let (pg, oid) = (PgId::new(PoolId(1), 0), ObjectId::new(PoolId(1), "", "", "o"));
        let mut disk = Disk::default();
        let mut create = Transaction::new(pg);
        create.push(TxnOp::CreateCollection);
        disk.apply(create).unwrap();
        let mut random = Random::new(5, Stream::Workload);
        let mut model = None;
        for token in 1..400 {
            let action = match random.range(0, 9) {
                0..2 => Action::Append(token),
                2 => Action::WriteFull(token),
                3 => Action::WriteAt(random.range(0, 5) as u8, token),
                4 => Action::Truncate(random.range(0, 5) as u8),
                5 => Action::Remove,
                6 => Action::Ensure,
                _ => Action::Swap { expect: random.range(0, 2) * token.saturating_sub(1), set: token },
            };
            let object = disk.object(pg, &oid).cloned();
            let done = execute(&oid, object.as_deref(), &ops(action));
            let (next, outcome) = action.apply(&model);
            let succeeds = outcome == crate::history::Outcome::Done;
            assert_eq!((done.result == 0, done.exists), (succeeds, next.is_some()), "{action:?}");
            model = next;
            let mut transaction = Transaction::new(pg);
            transaction.ops = done.steps;
            disk.apply(transaction).unwrap();
            let stored = disk.object(pg, &oid).map(|o| o.data.clone());
            let expected = model.as_ref().map(|v| v.tokens.iter().flat_map(|t| t.to_le_bytes()).collect());
            assert_eq!(stored, expected, "{action:?}");
        }
    }
}
