//! The object operations of `nacre_types` that descriptions of [`crate::op`] stand for, one to one, and their outputs.

use crate::error::{Error, Result, corrupt};
use crate::op::{Guard, ObjectOp, ObjectRead, ObjectReply, Step};
use nacre_types::encoding::{self, Versioned};
use nacre_types::op::{CmpOp, CmpValue, OmapValsReply, Op, OpResult, OsdOp, Pairs, op_flag};
use nacre_types::payload::Payload;

/// The operations of a compound write, in order.
pub fn write_ops(op: ObjectOp) -> Vec<OsdOp> {
    let mut ops = Vec::with_capacity(op.guards.len() + op.steps.len());
    let mut assertions = Vec::new();
    for guard in op.guards {
        match guard {
            Guard::Exists => ops.push(OsdOp::from(Op::AssertExists)),
            Guard::XattrEquals { name, value } => {
                let value = CmpValue::Bytes(value);
                ops.push(OsdOp::from(Op::CmpXattr { name: name.to_owned(), op: CmpOp::Eq, value }));
            }
            Guard::OmapEquals { key, value } => assertions.push((key, CmpOp::Eq, value)),
        }
    }
    if !assertions.is_empty() {
        ops.push(OsdOp::from(Op::OmapCmp { assertions }));
    }
    ops.extend(op.steps.into_iter().map(step_op));
    ops
}

fn step_op(step: Step) -> OsdOp {
    OsdOp::from(match step {
        Step::Create { exclusive } => {
            let flags = if exclusive { op_flag::EXCL } else { 0 };
            return OsdOp { op: Op::Create { exclusive }, flags };
        }
        Step::WriteFull(data) => Op::WriteFull { data: Payload::from(data) },
        Step::SetXattr { name, value } => Op::SetXattr { name: name.to_owned(), value },
        Step::OmapSet(entries) => Op::OmapSet { entries },
        Step::OmapRemove(keys) => Op::OmapRmKeys { keys },
        Step::OmapClear => Op::OmapClear,
        Step::Call { class, method, input } => {
            Op::Call { class: class.to_owned(), method: method.to_owned(), input }
        }
        Step::Remove => Op::Remove,
    })
}

/// The operations of a compound read, in order.
pub fn read_ops(read: &ObjectRead) -> Vec<OsdOp> {
    let mut ops = vec![OsdOp::from(Op::GetXattrs)];
    if !read.keys.is_empty() {
        ops.push(OsdOp::from(Op::OmapGetValsByKeys { keys: read.keys.clone() }));
    }
    if let Some(page) = &read.page {
        let (start_after, filter_prefix) = (page.after.clone(), page.prefix.clone());
        ops.push(OsdOp::from(Op::OmapGetVals { start_after, filter_prefix, max: page.max }));
    }
    if read.data {
        ops.push(OsdOp::from(Op::Read { offset: 0, len: 0 }));
    }
    ops
}

/// Interprets the outputs of [`read_ops`] of a read that succeeded.
pub fn read_reply(read: &ObjectRead, outputs: &[OpResult]) -> Result<ObjectReply> {
    let mut outputs = outputs.iter();
    let mut next = || outputs.next().ok_or_else(|| corrupt(&read.object, "reply", "a part is missing"));
    let mut reply = ObjectReply::default();
    for (name, value) in decode::<Pairs>(read, next()?)?.0 {
        let name = String::from_utf8(name.to_vec());
        let name = name.map_err(|_| corrupt(&read.object, "reply", "an attribute's name is not UTF-8"))?;
        reply.xattrs.insert(name, value);
    }
    if !read.keys.is_empty() {
        reply.values = decode::<Pairs>(read, next()?)?.0.into_iter().collect();
    }
    if read.page.is_some() {
        let page: OmapValsReply = decode(read, next()?)?;
        (reply.page, reply.more) = (page.entries, page.more);
    }
    if read.data {
        reply.data = next()?.output.clone();
    }
    Ok(reply)
}

fn decode<T: Versioned>(read: &ObjectRead, output: &OpResult) -> Result<T> {
    encoding::decode(&output.output)
        .map_err(|source| Error::Corrupt { object: read.object.to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{Kind, queue_object};
    use bytes::Bytes;

    #[test]
    fn guards_come_before_steps_and_omap_comparisons_are_one_operation() {
        let object = queue_object("", "t", 0);
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        let op = ObjectOp::on(&object)
            .if_omap(a.clone(), b.clone())
            .if_xattr("name", &a)
            .if_omap(b.clone(), Bytes::new())
            .omap_remove(vec![a.clone()])
            .then(Step::Remove);
        let ops: Vec<Op> = write_ops(op).into_iter().map(|op| op.op).collect();
        let value = CmpValue::Bytes(a.clone());
        let assertions = vec![(a.clone(), CmpOp::Eq, b.clone()), (b, CmpOp::Eq, Bytes::new())];
        let expected = [
            Op::AssertExists,
            Op::CmpXattr { name: "name".into(), op: CmpOp::Eq, value },
            Op::OmapCmp { assertions },
            Op::OmapRmKeys { keys: vec![a] },
            Op::Remove,
        ];
        assert_eq!(ops, expected);
        let created = write_ops(ObjectOp::create(&object));
        assert_eq!(created, [OsdOp { op: Op::Create { exclusive: true }, flags: op_flag::EXCL }]);
    }

    #[test]
    fn replies_are_taken_apart_by_what_was_asked() {
        let pair = |text: &'static str| (Bytes::from_static(text.as_bytes()), Bytes::from_static(b"value"));
        let page = OmapValsReply { entries: vec![pair("e1")], more: true };
        let outputs = [
            OpResult::output(encoding::encode(&Pairs(vec![pair("attribute")]))),
            OpResult::output(encoding::encode(&page)),
            OpResult::output(Bytes::from_static(b"data")),
        ];
        let object = queue_object("", "t", 0);
        let page = ObjectRead::page(&object, Bytes::new(), Kind::Batch.prefix(), 5);
        let read = ObjectRead { data: true, ..page };
        assert_eq!(read_ops(&read).len(), 3);
        let reply = read_reply(&read, &outputs).expect("sound");
        assert_eq!(reply.xattrs["attribute"], "value");
        assert_eq!((reply.page, reply.more), (vec![pair("e1")], true));
        assert_eq!(reply.data, "data");
        assert!(read_reply(&read, &outputs[..2]).is_err());
        let keys = ObjectRead::keys(&object, vec![Bytes::from_static(b"k")]);
        assert!(read_reply(&keys, &[outputs[0].clone(), outputs[2].clone()]).is_err());
    }
}
