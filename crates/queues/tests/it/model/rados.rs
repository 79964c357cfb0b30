//! RADOS objects in memory, with compound operations that are applied whole or not at all.

use bytes::Bytes;
use nacre_queues::op::{Guard, ObjectKey, ObjectOp, ObjectRead, ObjectReply, Step};
use nacre_queues::record::{self, OWNER, Owner};
use nacre_types::ceph::CephEncoding;
use nacre_types::cls::lock::{BreakOp, LockOp, UnlockOp};
use std::collections::BTreeMap;

/// Why an operation was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    /// ENOENT
    Absent,
    /// EEXIST
    Exists,
    /// ECANCELED
    Canceled,
    /// EBUSY
    Busy,
    /// The endpoint refused or did not answer.
    Endpoint,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    pub(crate) xattrs: BTreeMap<String, Bytes>,
    pub(crate) omap: BTreeMap<Bytes, Bytes>,
    pub(crate) data: Bytes,
    /// The session that holds the lock.
    pub(crate) locked_by: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Rados {
    pub(crate) objects: BTreeMap<ObjectKey, Object>,
}

impl Rados {
    /// The session that owns the shard in this object.
    pub(crate) fn owner_of(&self, object: &ObjectKey) -> Option<u64> {
        let owner = self.objects.get(object)?.xattrs.get(OWNER)?;
        Some(record::decode::<Owner>(object, owner).expect("sound").client)
    }

    pub(crate) fn apply(&mut self, op: &ObjectOp, client: u64) -> Result<(), Fail> {
        let mut object = self.objects.get(&op.object).cloned();
        for guard in &op.write.guards {
            if *guard == Guard::Create && object.is_none() {
                object = Some(Object::default());
                continue;
            }
            let there = object.as_ref().ok_or(Fail::Absent)?;
            let (stored, value) = match guard {
                Guard::Exists => continue,
                Guard::Create => return Err(Fail::Exists),
                Guard::AttrEquals(name, value) => (there.xattrs.get(*name), value),
                other => panic!("{other:?} is not known here"),
            };
            if stored.map_or(&[][..], |stored| &stored[..]) != &value[..] {
                return Err(Fail::Canceled);
            }
        }
        for step in &op.write.steps {
            step_on(&mut object, step, client)?;
        }
        match object {
            Some(object) => drop(self.objects.insert(op.object.clone(), object)),
            None => drop(self.objects.remove(&op.object)),
        }
        Ok(())
    }

    pub(crate) fn read(&self, read: &ObjectRead) -> Result<ObjectReply, Fail> {
        let object = self.objects.get(&read.object).ok_or(Fail::Absent)?;
        let mut reply = ObjectReply { xattrs: object.xattrs.clone(), ..ObjectReply::default() };
        for key in &read.keys {
            reply.values.extend(object.omap.get(key).map(|value| (key.clone(), value.clone())));
        }
        if let Some(page) = &read.page {
            let wanted = |key: &Bytes| *key > page.after && key.starts_with(&page.prefix);
            let mut found = object.omap.iter().filter(|(key, _)| wanted(key));
            let taken = found.by_ref().take(page.max as usize);
            reply.page = taken.map(|(key, value)| (key.clone(), value.clone())).collect();
            reply.more = found.next().is_some();
        }
        if read.data {
            reply.data = object.data.clone();
        }
        Ok(reply)
    }
}

fn step_on(object: &mut Option<Object>, step: &Step, client: u64) -> Result<(), Fail> {
    if let Step::Remove = step {
        return object.take().map(drop).ok_or(Fail::Absent);
    }
    let object = object.get_or_insert_default();
    match step {
        Step::Remove => {}
        Step::WriteFull(data) => object.data = data.clone(),
        Step::SetAttr(name, value) => drop(object.xattrs.insert((*name).to_owned(), value.clone())),
        Step::OmapSet(entries) => object.omap.extend(entries.iter().cloned()),
        Step::OmapRemove(keys) => keys.iter().for_each(|key| drop(object.omap.remove(key))),
        Step::OmapClear => object.omap.clear(),
        Step::Call { class: "lock", method: "lock", input } => {
            LockOp::from_bytes(input).expect("the input of lock");
            match object.locked_by {
                Some(holder) if holder != client => return Err(Fail::Busy),
                _ => object.locked_by = Some(client),
            }
        }
        Step::Call { class: "lock", method: "unlock", input } => {
            UnlockOp::from_bytes(input).expect("the input of unlock");
            match object.locked_by {
                Some(holder) if holder == client => object.locked_by = None,
                _ => return Err(Fail::Absent),
            }
        }
        Step::Call { class: "lock", method: "break_lock", input } => {
            let input = BreakOp::from_bytes(input).expect("the input of break_lock");
            match object.locked_by {
                Some(holder) if holder as i64 == input.locker.number => object.locked_by = None,
                _ => return Err(Fail::Absent),
            }
        }
        other => panic!("{other:?} is not known here"),
    }
    Ok(())
}
