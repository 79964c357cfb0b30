//! The requests and answers of clients, per object, and the checks that are made at every reply.
//!
//! An object is a list of *tokens* (eight bytes each, every one written only once in a run), a *mark* (an attribute, set by
//! compare-and-swap and mirrored in an omap entry) and a *count* (an omap entry that an object class increments). So a write
//! applied twice, out of order, or not at all is visible in the result of a read.
//!
//! Targets of copies are separate objects ([`is_copy_target`]): a copy has its source's version, so versions of a target may decrease.
//!
//! There are two kinds of checks. At each reply ([`History::finish`]): versions never decrease, each belongs to one write and
//! to one value, and a resend gets the same answer as the first attempt. After the run: the whole history of each object is
//! linearizable ([`crate::linearize`]).

pub mod listing;
pub mod watching;

use crate::network::Node;
use crate::schedule::Nanos;
use listing::Listing;
use nacre_types::{ClientId, Epoch, ObjectId, PoolId};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt;
use std::sync::Arc;
use watching::WatchChecker;

/// A value that is written only once.
pub type Token = u64;

/// An object as a reader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The data, eight bytes each.
    pub tokens: Vec<Token>,
    /// The attribute that compare-and-swap changes; 0 if there is none.
    pub mark: Token,
    /// The omap entry that an object class increments; 0 if there is none.
    pub count: u64,
}

/// The source of a copy, as its client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The object.
    pub object: ObjectId,
    /// The requested version.
    pub version: u64,
    /// The value of that version.
    pub value: Value,
}

/// Whether the object is a target of copies.
pub fn is_copy_target(object: &ObjectId) -> bool {
    object.name().starts_with('c')
}

/// The object that represents a batch in the history.
pub fn batch_object(pool: PoolId, batch: u32) -> ObjectId {
    ObjectId::new(pool, "", "", &format!("m/{batch}"))
}

/// Whether an object of the history is a batch.
pub fn is_batch_object(object: &ObjectId) -> bool {
    object.name().starts_with("m/")
}

/// A client's request on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads data, mark, its mirror, and the count.
    Read,
    /// Replaces the data.
    WriteFull(Token),
    /// Appends to the data.
    Append(Token),
    /// Overwrites the token at a position, extending the data with zeros.
    WriteAt(u8, Token),
    /// Truncates the data to this number of tokens, or extends it.
    Truncate(u8),
    /// Removes the object.
    Remove,
    /// Removes the entries of a batch ([`crate::client::batches`]); succeeds if there are none.
    Clear,
    /// Creates the object, empty, if it does not exist; otherwise succeeds without a change.
    Ensure,
    /// Sets the mark if it has the expected value (0: there is none).
    Swap {
        /// The expected mark.
        expect: Token,
        /// The new mark.
        set: Token,
    },
    /// Creates the object with one token; refused if it exists.
    Create(Token),
    /// Appends to the data, and reports whether the mark has the expected value, which does not affect the append.
    AppendTelling {
        /// The expected mark.
        expect: Token,
        /// The appended token.
        token: Token,
    },
    /// Appends to the data if that begins with an expected token (0: with zeros, or empty).
    AppendAfter {
        /// The expected first token.
        first: Token,
        /// The appended token.
        token: Token,
    },
    /// Removes the mark, if there is one.
    Unmark,
    /// Increments the count by an object class.
    Count,
    /// Replaces the data if the object has the expected version.
    Replace {
        /// The version.
        version: u64,
        /// The new data.
        token: Token,
    },
    /// Replaces the object with a copy of another one.
    Copy(Arc<Source>),
}

impl Action {
    /// Whether it changes the object.
    pub fn is_write(&self) -> bool {
        *self != Action::Read
    }

    /// The token that it writes, if any.
    pub fn token(&self) -> Option<Token> {
        use Action::*;
        match self {
            WriteFull(token) | Append(token) | WriteAt(_, token) | Create(token) => Some(*token),
            Swap { set: token, .. }
            | AppendTelling { token, .. }
            | AppendAfter { token, .. }
            | Replace { token, .. } => Some(*token),
            Read | Truncate(_) | Remove | Clear | Ensure | Unmark | Count | Copy(_) => None,
        }
    }

    /// Whether it may create the object.
    pub fn creates(&self) -> bool {
        use Action::*;
        matches!(
            self,
            WriteFull(_)
                | Append(_)
                | WriteAt(..)
                | Ensure
                | Create(_)
                | AppendTelling { .. }
                | AppendAfter { .. }
                | Count
                | Copy(_)
        )
    }

    /// The state after the action and its outcome, if `state` is the state before. The version of an [`Action::Replace`] is
    /// assumed to be the expected one.
    pub fn apply(&self, state: &Option<Value>) -> (Option<Value>, Outcome) {
        let changed = |edit: &dyn Fn(&mut Value)| {
            let mut value = state.clone().unwrap_or_default();
            edit(&mut value);
            (Some(value), Outcome::Done)
        };
        let mark = state.as_ref().map_or(0, |value| value.mark);
        let first = state.as_ref().and_then(|value| value.tokens.first()).copied().unwrap_or(0);
        let kept = |outcome| (state.clone(), outcome);
        match self {
            Action::Read => kept(Outcome::Saw(state.clone())),
            Action::WriteFull(token) => changed(&|v| v.tokens = vec![*token]),
            Action::Append(token) => changed(&|v| v.tokens.push(*token)),
            Action::WriteAt(at, token) => changed(&|v| {
                let at = usize::from(*at);
                v.tokens.resize(v.tokens.len().max(at + 1), 0);
                v.tokens[at] = *token;
            }),
            // Does not create the object.
            Action::Truncate(_) if state.is_none() => kept(Outcome::Done),
            Action::Truncate(len) => changed(&|v| v.tokens.resize(usize::from(*len), 0)),
            Action::Remove if state.is_some() => (None, Outcome::Done),
            Action::Clear => (None, Outcome::Done),
            Action::Replace { .. } if state.is_none() => kept(Outcome::Refused),
            Action::Remove | Action::Swap { .. } | Action::Unmark if state.is_none() => kept(Outcome::Absent),
            Action::Ensure => changed(&|_| {}),
            Action::Swap { expect, set } if mark == *expect => changed(&|v| v.mark = *set),
            Action::Unmark if mark != 0 => changed(&|v| v.mark = 0),
            Action::Create(_) if state.is_some() => kept(Outcome::Exists),
            Action::Create(token) => changed(&|v| v.tokens = vec![*token]),
            Action::AppendTelling { expect, token } => {
                (changed(&|v| v.tokens.push(*token)).0, Outcome::Told(state.is_some() && mark == *expect))
            }
            Action::AppendAfter { first: expected, token } if first == *expected => {
                changed(&|v| v.tokens.push(*token))
            }
            Action::Count => changed(&|v| v.count += 1),
            Action::Replace { token, .. } => changed(&|v| v.tokens = vec![*token]),
            Action::Copy(source) => (Some(source.value.clone()), Outcome::Done),
            Action::Remove | Action::Swap { .. } | Action::Unmark | Action::AppendAfter { .. } => {
                kept(Outcome::Mismatch)
            }
        }
    }
}

/// The outcome that a client received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A read's answer; `None` for ENOENT.
    Saw(Option<Value>),
    /// Done.
    Done,
    /// Not done: the object is absent (ENOENT).
    Absent,
    /// Done, with the result of a comparison that did not affect it.
    Told(bool),
    /// Not done: the object exists (EEXIST).
    Exists,
    /// Not done: the comparison failed (ECANCELED, or the error for differing data).
    Mismatch,
    /// Not done and without effect, whatever the state was (ENOSPC, EIO of a read, a version other than expected).
    Refused,
    /// Unknown: the action may have taken effect at any time since the request, may still do so, or never.
    Unknown,
}

impl Outcome {
    /// Whether the action took effect.
    pub fn took_effect(&self) -> bool {
        matches!(self, Outcome::Done | Outcome::Told(_))
    }
}

/// The position of a map in the order of all maps: its generation and epoch.
pub type MapVersion = (u64, Epoch);

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The client.
    pub client: Node,
    /// Its session.
    pub session: ClientId,
    /// The client's map at the time of the request.
    pub asked_at: MapVersion,
    /// The map that put the session on the blocklist. An unanswered request of the session takes effect before any request
    /// that is made with that map, or never.
    pub fenced_at: Option<MapVersion>,
    /// The request's number.
    pub tid: u64,
    /// When it was first sent.
    pub call: Nanos,
    /// When the answer arrived; `None` while the outcome is unknown.
    pub reply: Option<Nanos>,
    /// The request.
    pub action: Action,
    /// The outcome.
    pub outcome: Outcome,
    /// The object's user version in the answer, if it is meaningful.
    pub version: Option<u64>,
    /// The highest version that had been answered for the object at the time of the request.
    floor: u64,
}

impl Entry {
    /// An entry for hand-made histories.
    pub fn new(
        client: u32,
        tid: u64,
        action: Action,
        span: (Nanos, Option<Nanos>),
        outcome: Outcome,
    ) -> Entry {
        let asker = Asker { client: Node::Client(client), session: ClientId(0), map: (0, Epoch(0)) };
        let entry = Entry::of(asker, tid, span.0, action);
        Entry { reply: span.1, outcome, ..entry }
    }

    /// An entry without an answer.
    fn of(asker: Asker, tid: u64, call: Nanos, action: Action) -> Entry {
        Entry {
            client: asker.client,
            session: asker.session,
            asked_at: asker.map,
            fenced_at: None,
            tid,
            call,
            reply: None,
            action,
            outcome: Outcome::Unknown,
            version: None,
            floor: 0,
        }
    }

    /// The same entry with a version.
    pub fn at_version(self, version: u64) -> Entry {
        Entry { version: Some(version), ..self }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |at: Nanos| at as f64 / 1e6;
        write!(f, "{:>12.3} ms .. ", ms(self.call))?;
        match self.reply {
            Some(at) => write!(f, "{:>12.3} ms", ms(at))?,
            None => write!(f, "      no answer")?,
        }
        write!(f, "  {}:{:<4} {:?} -> {:?}", self.client, self.tid, self.action, self.outcome)?;
        self.version.map_or(Ok(()), |version| write!(f, " v{version}"))
    }
}

/// A client with its session and map.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The client.
    pub client: Node,
    /// Its session.
    pub session: ClientId,
    /// Its map.
    pub map: MapVersion,
}

/// A broken guarantee to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuaranteeViolation {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// What happened.
    pub detail: String,
}

/// Identifies an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    object: ObjectId,
    index: usize,
}

#[derive(Clone, Debug, Default)]
struct ObjectHistory {
    entries: Vec<Entry>,
    /// The highest version in any answer.
    highest: u64,
    /// The write that made each version.
    writers: BTreeMap<u64, usize>,
    /// The value of each version.
    values: BTreeMap<u64, Value>,
}

/// All requests of clients and their answers.
#[derive(Clone, Debug, Default)]
pub struct History {
    objects: BTreeMap<ObjectId, ObjectHistory>,
    /// Pools whose data an operator destroyed; later requests on them are not recorded.
    given_up: BTreeSet<PoolId>,
    /// Watches and notifies.
    pub watching: WatchChecker,
    /// Sessions on the blocklist, with the first map that contains each.
    fenced: BTreeMap<ClientId, MapVersion>,
}

impl History {
    /// An operator deletes the pool. No answer is checked any more, even if a restored map contains the pool again.
    pub fn ignore_pool(&mut self, pool: PoolId) {
        self.given_up.insert(pool);
        self.watching.ignore_pool(pool);
    }

    /// Records a request.
    pub fn begin(
        &mut self,
        now: Nanos,
        asker: Asker,
        tid: u64,
        object: &ObjectId,
        action: Action,
    ) -> EntryId {
        if self.given_up.contains(&object.pool()) {
            return EntryId { object: object.clone(), index: usize::MAX };
        }
        let of = self.objects.entry(object.clone()).or_default();
        let floor = of.highest;
        of.entries.push(Entry { floor, ..Entry::of(asker, tid, now, action) });
        EntryId { object: object.clone(), index: of.entries.len() - 1 }
    }

    /// When a request was made.
    pub fn asked(&self, id: &EntryId) -> Nanos {
        self.objects.get(&id.object).and_then(|of| of.entries.get(id.index)).map_or(0, |entry| entry.call)
    }

    /// Records and checks an answer, with the object's user version if that is meaningful.
    pub fn finish(
        &mut self,
        now: Nanos,
        id: &EntryId,
        outcome: Outcome,
        version: Option<u64>,
    ) -> Result<(), GuaranteeViolation> {
        if self.given_up.contains(&id.object.pool()) {
            return Ok(());
        }
        let of = self.objects.get_mut(&id.object).expect("invariant: begun before");
        let entry = &mut of.entries[id.index];
        let version = version.filter(|_| !is_copy_target(&id.object) && !is_batch_object(&id.object));
        (entry.reply, entry.outcome, entry.version) = (Some(now), outcome, version);
        let Some(version) = version else { return Ok(()) };
        let entry = &of.entries[id.index];
        let broken = |rule, detail: String| {
            Err(GuaranteeViolation { rule, detail: format!("{}: {detail}: {entry}", id.object) })
        };
        if version < entry.floor {
            let rule = if entry.action.is_write() { "lost write" } else { "stale read" };
            return broken(rule, format!("version {} had been answered before it was asked", entry.floor));
        }
        if entry.outcome.took_effect() {
            if version == entry.floor {
                return broken("lost write", "its version had been answered before it was asked".into());
            }
            if let Some(other) = of.writers.insert(version, id.index).filter(|other| *other != id.index) {
                return broken("one version, two writes", format!("the other is {}", of.entries[other]));
            }
        }
        if let Outcome::Saw(Some(value)) = &entry.outcome {
            let known = of.values.entry(version).or_insert_with(|| value.clone());
            if known != value {
                return broken("one version, two values", format!("it also read as {known:?}"));
            }
        }
        of.highest = of.highest.max(version);
        Ok(())
    }

    /// Records that a page showed a batch; the page was requested and received in this span.
    pub fn record_batch_read(
        &mut self,
        asker: Asker,
        object: &ObjectId,
        (call, reply): (Nanos, Nanos),
        value: Option<Value>,
    ) {
        if self.given_up.contains(&object.pool()) {
            return;
        }
        let entry = Entry::of(asker, 0, call, Action::Read);
        let entry = Entry { reply: Some(reply), outcome: Outcome::Saw(value), ..entry };
        self.objects.entry(object.clone()).or_default().entries.push(entry);
    }

    /// Records that a map puts a session on the blocklist.
    pub fn fence(&mut self, session: ClientId, map: MapVersion) {
        if let btree_map::Entry::Vacant(vacant) = self.fenced.entry(session) {
            vacant.insert(map);
            self.watching.fenced(session);
        }
    }

    /// Forgets the blocklist, because a restored map may not contain it.
    pub fn forget_fences(&mut self) {
        self.fenced.clear();
    }

    /// Sets [`Entry::fenced_at`] of each request without an answer.
    pub fn note_fences(&mut self) {
        let History { objects, fenced, .. } = self;
        let entries = objects.values_mut().flat_map(|of| &mut of.entries).filter(|e| e.reply.is_none());
        entries.for_each(|entry| entry.fenced_at = fenced.get(&entry.session).copied());
    }

    /// Checks a listing of a pool that has ended.
    pub fn check_listing(&self, now: Nanos, listing: &Listing) -> Result<(), GuaranteeViolation> {
        if self.given_up.contains(&listing.pool) {
            return Ok(());
        }
        let is_listed = |object: &ObjectId| object.pool() == listing.pool && !is_batch_object(object);
        listing.check_listing(now, self.objects().filter(|(object, _)| is_listed(object)))
    }

    /// Whether there was any request on an object.
    pub fn knows(&self, object: &ObjectId) -> bool {
        self.objects.contains_key(object)
    }

    /// Each object's entries, in the order of the requests.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectId, &[Entry])> {
        self.objects.iter().map(|(object, of)| (object, of.entries.as_slice()))
    }

    /// The number of recorded requests.
    pub fn len(&self) -> usize {
        self.objects.values().map(|of| of.entries.len()).sum()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The number of answered requests.
    pub fn answered(&self) -> usize {
        self.objects.values().flat_map(|of| &of.entries).filter(|e| e.reply.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(client: u32) -> Asker {
        Asker { client: Node::Client(client), session: ClientId(u64::from(client)), map: (0, Epoch(0)) }
    }

    fn object() -> ObjectId {
        ObjectId::new(PoolId(1), "", "", "o")
    }

    fn value(tokens: &[Token]) -> Outcome {
        Outcome::Saw(Some(Value { tokens: tokens.to_vec(), ..Value::default() }))
    }

    /// Records requests with their answers, one after another.
    fn run(steps: &[(Action, Outcome, u64)]) -> Result<(), GuaranteeViolation> {
        let mut history = History::default();
        for (n, (action, outcome, version)) in steps.iter().enumerate() {
            let at = 10 * n as Nanos;
            let id = history.begin(at, asker(0), n as u64, &object(), action.clone());
            history.finish(at + 5, &id, outcome.clone(), Some(*version))?;
        }
        Ok(())
    }

    #[test]
    fn versions_that_rise_are_accepted() {
        let done = Outcome::Done;
        run(&[
            (Action::WriteFull(1), done.clone(), 3),
            (Action::Read, value(&[1]), 3),
            (Action::Append(2), done.clone(), 4),
            (Action::Read, value(&[1, 2]), 4),
            (Action::Remove, done, 9),
        ])
        .unwrap();
    }

    #[test]
    fn a_version_that_goes_back_is_refused() {
        let writes = [(Action::WriteFull(1), Outcome::Done, 3), (Action::Append(2), Outcome::Done, 4)];
        let stale = [&writes[..], &[(Action::Read, value(&[1]), 3)]].concat();
        assert_eq!(run(&stale).unwrap_err().rule, "stale read");
        let lost = [&writes[..], &[(Action::Append(3), Outcome::Done, 4)]].concat();
        assert_eq!(run(&lost).unwrap_err().rule, "lost write");
    }

    #[test]
    fn a_version_of_two_values_is_refused() {
        let reads = [(Action::Read, value(&[1]), 3), (Action::Read, value(&[2]), 3)];
        assert_eq!(run(&reads).unwrap_err().rule, "one version, two values");
        let mut history = History::default();
        let ids = [1, 2].map(|n| history.begin(0, asker(n), 1, &object(), Action::Append(n.into())));
        history.finish(5, &ids[0], Outcome::Done, Some(1)).unwrap();
        let broken = history.finish(6, &ids[1], Outcome::Done, Some(1)).unwrap_err();
        assert_eq!(broken.rule, "one version, two writes");
    }
}
