//! What clients asked and were told, per object, and the checks that hold at every single reply.
//!
//! An object is a list of *tokens* (eight bytes each, every one written only once in a run), a *mark* (an attribute,
//! set by compare-and-swap and mirrored in an omap entry) and a *count* (an omap entry that an object class counts up). So a
//! write applied twice, out of order, or not at all shows in what a read returns.
//!
//! Targets of copies are objects of their own ([`is_copy`]): a copy has its source's version, so versions of a target may go back.
//!
//! Two kinds of check. At each reply ([`History::finish`]): versions never go back, each belongs to one write and to one
//! value, a resend is answered as the first attempt was. After the run: the whole history of each object is
//! linearizable ([`crate::linearize`]).

use crate::client::batches::is_part;
use crate::listing::Listing;
use crate::network::Node;
use crate::schedule::Nanos;
use crate::watching::Watching;
use nacre_types::{ClientId, Epoch, ObjectId, PoolId};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt;
use std::sync::Arc;

/// A value written once.
pub type Token = u64;

/// An object as a reader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The data, eight bytes each.
    pub tokens: Vec<Token>,
    /// The attribute that compare-and-swap works on; 0 where there is none.
    pub mark: Token,
    /// The omap entry that a class counts up; 0 where there is none.
    pub count: u64,
}

/// What a copy is made of, as its client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The object.
    pub object: ObjectId,
    /// The version asked for.
    pub version: u64,
    /// What that version read as.
    pub value: Value,
}

/// Whether the object is one that copies are made to.
pub fn is_copy(object: &ObjectId) -> bool {
    object.name().starts_with('c')
}

/// What a client asks of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads data, mark, its mirror, and the count.
    Read,
    /// Replaces the data.
    WriteFull(Token),
    /// Adds to the data.
    Append(Token),
    /// Overwrites the token at a position, extending the data with zeros.
    WriteAt(u8, Token),
    /// Cuts the data to so many tokens, or extends it.
    Truncate(u8),
    /// Removes the object.
    Remove,
    /// Removes the entries of a batch ([`crate::client::batches`]); succeeds where there are none.
    Clear,
    /// Makes the object, empty, where there is none; succeeds without a change where there is one.
    Ensure,
    /// Sets the mark where it is as expected (0: there is none).
    Swap {
        /// The mark expected.
        expect: Token,
        /// The new one.
        set: Token,
    },
    /// Makes the object with one token; refused where there is one.
    Create(Token),
    /// Adds to the data, and tells whether the mark was as expected, which does not matter for it.
    AppendTelling {
        /// The mark expected.
        expect: Token,
        /// What is added.
        token: Token,
    },
    /// Adds to the data where it begins with an expected token (0: with zeros, or nothing).
    AppendAfter {
        /// The first token expected.
        first: Token,
        /// What is added.
        token: Token,
    },
    /// Removes the mark, if there is one.
    Unmark,
    /// Counts up by one, by an object class.
    Count,
    /// Replaces the data of an expected version.
    Replace {
        /// The version.
        version: u64,
        /// The new data.
        token: Token,
    },
    /// Replaces the object by a copy of another one.
    Copy(Arc<Source>),
}

impl Action {
    /// Whether it changes the object.
    pub fn is_write(&self) -> bool {
        *self != Action::Read
    }

    /// The token that it writes, where it writes one.
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

    /// Whether it may leave an object where there was none.
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

    /// The state after the action and what it answers, where `state` is what it found. Of [`Action::Replace`] the version is
    /// taken to be the expected one.
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
            // It makes no object.
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

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A read's answer; `None` for ENOENT.
    Saw(Option<Value>),
    /// Done.
    Done,
    /// Not done: the object is absent (ENOENT).
    Absent,
    /// Done, and whether a comparison held that did not matter.
    Told(bool),
    /// Not done: the object exists (EEXIST).
    Exists,
    /// Not done: the comparison failed (ECANCELED, or where data differs).
    Mismatch,
    /// Not done and without effect, whatever the state was (ENOSPC, EIO of a read, another version than expected).
    Refused,
    /// Nothing: it may have happened at any time since, may still happen, or never.
    Unknown,
}

impl Outcome {
    /// Whether the action took effect.
    pub fn took_effect(&self) -> bool {
        matches!(self, Outcome::Done | Outcome::Told(_))
    }
}

/// A map's place in the order of all: its generation and epoch.
pub type Stamp = (u64, Epoch);

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Who asked.
    pub client: Node,
    /// Under which session.
    pub session: ClientId,
    /// The map that the client had when it asked.
    pub asked_at: Stamp,
    /// The map that put the session on the blocklist: what was asked by it and has no answer takes effect before anything that
    /// is asked with that map, or never.
    pub fenced_at: Option<Stamp>,
    /// The request's number.
    pub tid: u64,
    /// When it was asked first.
    pub call: Nanos,
    /// When the answer came; `None` while the outcome is unknown.
    pub reply: Option<Nanos>,
    /// What was asked.
    pub action: Action,
    /// What was answered.
    pub outcome: Outcome,
    /// The object's user version with the answer, where the answer carries a meaningful one.
    pub version: Option<u64>,
    /// The highest version that had been answered for the object when this was asked.
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

    /// One without an answer.
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

    /// The same with a version.
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

/// Who asks, and what it knows.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The client.
    pub client: Node,
    /// Its session.
    pub session: ClientId,
    /// Its map.
    pub map: Stamp,
}

/// A promise to clients that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which one, in a few words.
    pub rule: &'static str,
    /// What happened.
    pub detail: String,
}

/// Names an entry.
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
    /// Which write made a version.
    writers: BTreeMap<u64, usize>,
    /// What a version read as.
    values: BTreeMap<u64, Value>,
}

/// All that clients asked and were told.
#[derive(Clone, Debug, Default)]
pub struct History {
    objects: BTreeMap<ObjectId, ObjectHistory>,
    /// Pools whose data an operator destroyed: what is asked of them since is not recorded.
    given_up: BTreeSet<PoolId>,
    /// Watches and notifies.
    pub watching: Watching,
    /// Sessions on the blocklist, with the map that put them there.
    fenced: BTreeMap<ClientId, Stamp>,
}

impl History {
    /// An operator deletes the pool. No answer promises anything any more, even where a restored map has it again.
    pub fn give_up(&mut self, pool: PoolId) {
        self.given_up.insert(pool);
        self.watching.give_up(pool);
    }

    /// A client asks.
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

    /// When an entry was asked.
    pub fn asked(&self, id: &EntryId) -> Nanos {
        self.objects.get(&id.object).and_then(|of| of.entries.get(id.index)).map_or(0, |entry| entry.call)
    }

    /// The answer comes, with the object's user version where the answer carries one that means something.
    pub fn finish(
        &mut self,
        now: Nanos,
        id: &EntryId,
        outcome: Outcome,
        version: Option<u64>,
    ) -> Result<(), Broken> {
        if self.given_up.contains(&id.object.pool()) {
            return Ok(());
        }
        let of = self.objects.get_mut(&id.object).expect("invariant: begun before");
        let entry = &mut of.entries[id.index];
        let version = version.filter(|_| !is_copy(&id.object) && !is_part(&id.object));
        (entry.reply, entry.outcome, entry.version) = (Some(now), outcome, version);
        let Some(version) = version else { return Ok(()) };
        let entry = &of.entries[id.index];
        let broken =
            |rule, detail: String| Err(Broken { rule, detail: format!("{}: {detail}: {entry}", id.object) });
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

    /// A batch was seen in a page that was asked for and came in this span.
    pub fn saw(
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

    /// A map puts a session on the blocklist.
    pub fn fence(&mut self, session: ClientId, map: Stamp) {
        if let btree_map::Entry::Vacant(vacant) = self.fenced.entry(session) {
            vacant.insert(map);
            self.watching.fenced(session);
        }
    }

    /// A restored map may have forgotten who is on the blocklist.
    pub fn forget_fences(&mut self) {
        self.fenced.clear();
    }

    /// Tells each request without an answer when its session was put on the blocklist.
    pub fn note_fences(&mut self) {
        let History { objects, fenced, .. } = self;
        let entries = objects.values_mut().flat_map(|of| &mut of.entries).filter(|e| e.reply.is_none());
        entries.for_each(|entry| entry.fenced_at = fenced.get(&entry.session).copied());
    }

    /// A listing of a pool has ended.
    pub fn listed(&self, now: Nanos, listing: &Listing) -> Result<(), Broken> {
        if self.given_up.contains(&listing.pool) {
            return Ok(());
        }
        let is_listed = |object: &ObjectId| object.pool() == listing.pool && !is_part(object);
        listing.judge(now, self.objects().filter(|(object, _)| is_listed(object)))
    }

    /// Whether anything was asked of an object.
    pub fn knows(&self, object: &ObjectId) -> bool {
        self.objects.contains_key(object)
    }

    /// Each object's entries, in the order in which they were asked.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectId, &[Entry])> {
        self.objects.iter().map(|(object, of)| (object, of.entries.as_slice()))
    }

    /// Requests recorded.
    pub fn len(&self) -> usize {
        self.objects.values().map(|of| of.entries.len()).sum()
    }

    /// Whether nothing was asked.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Requests that were answered.
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

    /// Asks and answers at once, one after the other.
    fn run(steps: &[(Action, Outcome, u64)]) -> Result<(), Broken> {
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
