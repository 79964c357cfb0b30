//! Clients that remember all answers: these must stay true.

use super::host::Request;
use super::store::Contents;
use crate::api::ClientOp;
use bytes::Bytes;
use nacre_types::ids::{ClientId, Eversion, OsdId, PgId, ReqId};
use nacre_types::object::ObjectId;
use nacre_types::osdmap::OsdMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
struct Operation {
    object: ObjectId,
    request: Request,
    attempt: u32,
    token: u64,
    /// The known length of the object when the operation was issued: no older state may be seen.
    seen_len: usize,
    answer: Option<Bytes>,
    refused: bool,
    /// The versions with which it was ordered.
    versions: Vec<Eversion>,
    sent_interval: u64,
}

#[derive(Debug, Default)]
struct Client {
    operations: BTreeMap<u64, Operation>,
}

impl Client {
    fn oldest(&self) -> u64 {
        let next = self.operations.len() as u64 + 1;
        self.operations.iter().find(|(_, op)| op.answer.is_none()).map_or(next, |(tid, _)| *tid)
    }
}

pub struct Clients {
    pg: PgId,
    clients: Vec<Client>,
    queues: BTreeMap<OsdId, VecDeque<(ClientOp, Request)>>,
    tokens: BTreeMap<u64, (usize, u64)>,
    next_token: u64,
    next_mark: u32,
    /// The longest contents in any answer.
    known: BTreeMap<ObjectId, Vec<u8>>,
    known_len: BTreeMap<ObjectId, usize>,
    pub refusals: u32,
}

impl Clients {
    pub fn new(pg: PgId) -> Clients {
        Clients {
            pg,
            clients: Vec::new(),
            queues: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next_token: 1,
            next_mark: 1,
            known: BTreeMap::new(),
            known_len: BTreeMap::new(),
            refusals: 0,
        }
    }

    pub fn object(&self, name: &str) -> ObjectId {
        ObjectId::new(self.pg.pool, "", "", name)
    }

    pub fn mark(&mut self) -> u32 {
        self.next_mark += 1;
        self.next_mark
    }

    pub fn issue(
        &mut self,
        client: usize,
        name: &str,
        request: Request,
        map: &OsdMap,
        pg: PgId,
    ) -> (usize, u64) {
        while self.clients.len() <= client {
            self.clients.push(Client::default());
        }
        let object = self.object(name);
        let seen_len = self.known_len.get(&object).copied().unwrap_or(0);
        let tid = self.clients[client].operations.len() as u64 + 1;
        let operation = Operation {
            object,
            request,
            attempt: 0,
            token: 0,
            seen_len,
            answer: None,
            refused: false,
            versions: Vec::new(),
            sent_interval: 0,
        };
        self.clients[client].operations.insert(tid, operation);
        self.send(client, tid, map, pg);
        (client, tid)
    }

    fn send(&mut self, client: usize, tid: u64, map: &OsdMap, pg: PgId) {
        let Some(membership) = map.membership(pg) else { return };
        // A late copy has the values of the time when it was made.
        let oldest_tid = self.clients[client].oldest().min(tid);
        let operation = self.clients[client].operations.get_mut(&tid).unwrap();
        let token = self.next_token;
        self.next_token += 1;
        operation.token = token;
        operation.sent_interval = membership.interval.0;
        self.tokens.insert(token, (client, tid));
        let op = ClientOp {
            token,
            reqid: ReqId { client: ClientId(client as u64 + 1), tid },
            oldest_tid,
            attempt: operation.attempt,
            interval: membership.interval,
            object: operation.object.clone(),
            write: matches!(
                operation.request,
                Request::Append(_) | Request::Delete | Request::Ensure | Request::Fail
            ),
            listing: operation.request == Request::List,
            dup_check_by_host: false,
            requeued: false,
        };
        operation.attempt += 1;
        let queue = self.queues.entry(membership.primary).or_default();
        queue.push_back((op, operation.request.clone()));
    }

    /// Sends every unanswered request again, in order of tid.
    pub fn resend(&mut self, map: &OsdMap, pg: PgId) {
        for client in 0..self.clients.len() {
            let open = self.clients[client].operations.iter().filter(|(_, op)| op.answer.is_none());
            for tid in open.map(|(tid, _)| *tid).collect::<Vec<_>>() {
                self.send(client, tid, map, pg);
            }
        }
    }

    /// Sends another copy of a request, which may already be answered.
    pub fn send_again(&mut self, (client, tid): (usize, u64), map: &OsdMap, pg: PgId) {
        self.send(client, tid, map, pg);
    }

    pub fn has_for(&self, osd: OsdId) -> bool {
        self.queues.get(&osd).is_some_and(|q| !q.is_empty())
    }

    pub fn next_for(&mut self, osd: OsdId) -> (ClientOp, Request) {
        self.queues.get_mut(&osd).unwrap().pop_front().unwrap()
    }

    pub fn lost(&mut self, osd: OsdId) {
        self.queues.remove(&osd);
    }

    fn of(&mut self, token: u64) -> &mut Operation {
        let (client, tid) = self.tokens[&token];
        self.clients[client].operations.get_mut(&tid).unwrap()
    }

    pub fn ordered(&mut self, token: u64, version: Eversion) {
        self.of(token).versions.push(version);
    }

    pub fn dropped(&mut self, _token: u64) {}

    pub fn refused(&mut self, token: u64) {
        let operation = self.of(token);
        if operation.answer.is_some() {
            return;
        }
        (operation.refused, operation.answer) = (true, Some(Bytes::new()));
        self.refusals += 1;
    }

    pub fn reply(&mut self, token: u64, result: &Bytes) {
        let operation = self.of(token);
        if let Some(before) = &operation.answer {
            let read = matches!(operation.request, Request::Read);
            assert!(
                read || operation.refused || before == result,
                "two answers to {operation:?}: {result:?}"
            );
            return;
        }
        operation.answer = Some(result.clone());
        let operation = operation.clone();
        let object = operation.object.clone();
        match operation.request {
            Request::Read if !is_deletable(&object) => {
                assert!(result.len() >= operation.seen_len, "stale read: {operation:?} gave {result:?}");
                let known = self.known.entry(object.clone()).or_default();
                let shorter = known.len().min(result.len());
                assert_eq!(known[..shorter], result[..shorter], "{object} changed its history");
                if result.len() > known.len() {
                    *known = result.to_vec();
                }
                self.note_len(object, result.len());
            }
            Request::Append(mark) if !is_deletable(&object) => {
                let at = u64::from_le_bytes(result[..].try_into().unwrap()) as usize;
                assert!(at >= operation.seen_len, "{operation:?} was ordered before what it had seen: {at}");
                if let Some(known) = self.known.get(&object).filter(|k| k.len() >= at + 4) {
                    assert_eq!(known[at..at + 4], mark.to_le_bytes(), "{object} changed its history");
                }
                self.note_len(object, at + 4);
            }
            _ => {}
        }
    }

    fn note_len(&mut self, object: ObjectId, len: usize) {
        let known = self.known_len.entry(object).or_default();
        *known = len.max(*known);
    }

    /// The object of a request.
    pub fn object_of(&self, token: u64) -> ObjectId {
        let (client, tid) = self.tokens[&token];
        self.clients[client].operations[&tid].object.clone()
    }

    pub fn answer(&self, (client, tid): (usize, u64)) -> Option<Bytes> {
        self.clients[client].operations[&tid].answer.clone()
    }

    pub fn all_answered(&self) -> bool {
        self.open() == 0
    }

    pub fn open(&self) -> usize {
        self.clients.iter().flat_map(|c| c.operations.values()).filter(|op| op.answer.is_none()).count()
    }

    /// Checks that the final contents hold every acknowledged update once.
    pub fn check(&self, contents: &Contents, lost: &BTreeSet<ObjectId>) {
        let operations = || self.clients.iter().flat_map(|c| c.operations.values());
        for (object, known) in self.known.iter().filter(|(object, _)| !lost.contains(*object)) {
            let data = contents.objects.get(object).map_or(&[][..], |o| &o.data);
            assert!(data.starts_with(known), "{object} is {data:?}, but {known:?} was read");
        }
        for op in operations().filter(|op| op.answer.is_some() && !op.refused && !is_deletable(&op.object)) {
            let Request::Append(mark) = op.request else { continue };
            if lost.contains(&op.object) {
                continue;
            }
            let at = u64::from_le_bytes(op.answer.as_ref().unwrap()[..].try_into().unwrap()) as usize;
            let found = contents.objects.get(&op.object).and_then(|o| o.data.get(at..at + 4));
            assert_eq!(found, Some(&mark.to_le_bytes()[..]), "an acknowledged append is lost: {op:?}");
        }
        for (object, found) in &contents.objects {
            let mut marks: Vec<_> = found.data.chunks(4).collect();
            marks.sort_unstable();
            let count = marks.len();
            marks.dedup();
            assert_eq!(marks.len(), count, "{object} has an append twice");
            assert_eq!(found.omap.len(), count, "{object}: omap and data differ");
        }
        self.check_deletable(contents, lost);
    }

    /// Checks that each object is in the state that one of its last updates left.
    fn check_deletable(&self, contents: &Contents, lost: &BTreeSet<ObjectId>) {
        let operations = || self.clients.iter().flat_map(|c| c.operations.values());
        let objects = operations().filter(|op| is_deletable(&op.object) && !lost.contains(&op.object));
        let objects: BTreeSet<_> = objects.map(|op| op.object.clone()).collect();
        for object in objects {
            let of = || operations().filter(|op| op.object == object);
            // Every version with which it may have been ordered counts, because one of them took effect.
            let floor = of()
                .filter(|op| op.answer.as_ref().is_some_and(|a| a != "absent" && a != "there") && !op.refused)
                .filter_map(|op| op.versions.iter().min().copied())
                .max();
            let Some(floor) = floor else { continue };
            match contents.objects.get(&object) {
                Some(found) => assert!(found.version() >= floor, "{object} is older than {floor}"),
                None => {
                    let deletes = || of().filter(|op| op.request == Request::Delete);
                    let last = deletes().flat_map(|op| op.versions.iter()).max();
                    assert!(last.is_some_and(|v| *v >= floor), "{object} is gone; {floor} wrote it");
                }
            }
        }
    }

    pub fn describe(&self) -> String {
        let open = self.clients.iter().flat_map(|c| c.operations.values()).filter(|op| op.answer.is_none());
        open.map(|op| format!("open: {op:?}\n")).collect()
    }
}

fn is_deletable(object: &ObjectId) -> bool {
    object.name().starts_with('d')
}
