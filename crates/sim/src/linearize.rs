//! Checks whether an object's history is linearizable: whether some order of its requests, in which each lies between its
//! call and its answer, explains every answer.
//!
//! Uses Wing and Gong's search with Lowe's memo of configurations that failed, and three reductions that keep it almost
//! linear on real histories:
//!
//! - a request that changes nothing and whose answer fits the current state is placed at once (placing it later cannot help);
//! - acknowledged writes are placed in the order of the versions in their replies, and a version that a read returns must be
//!   that of the state that it sees;
//! - requests without an answer are tried only if those with one do not fit and the state has not passed the version of an
//!   answered request; at first only those that some read shows.
//!
//! A request that succeeds with or without a change ([`Action::Ensure`], [`Action::Truncate`]) has no version of its own in
//! its answer, and neither has a removal: they are tried at every possible place.

use crate::history::{Action, Entry, GuaranteeViolation, History, MapVersion, Outcome, Token, Value};
use crate::schedule::Nanos;
use nacre_types::Epoch;
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

/// The number of configurations of one object after which the search gives up.
pub const BUDGET: usize = 1_000_000;
/// The most requests without an answer in the search for one object.
const MAX_UNKNOWN: usize = 128;

/// Checks every object.
pub fn check_all(history: &History) -> Result<(), GuaranteeViolation> {
    history.objects().try_for_each(|(object, entries)| {
        check(entries)
            .map_err(|broken| GuaranteeViolation { detail: format!("{object}: {}", broken.detail), ..broken })
    })
}

/// Checks one object's entries.
pub fn check(entries: &[Entry]) -> Result<(), GuaranteeViolation> {
    no_token_twice(entries)?;
    // An unanswered request that no read shows is rarely needed, and each one doubles the search space.
    let seen = seen_tokens(entries);
    let is_seen = |entry: &Entry| entry.action.token().is_none_or(|token| seen.contains(&token));
    let mut search = Search::new(entries, is_seen)?;
    if search.explains(&Configuration::start(search.definite.len())) {
        return Ok(());
    }
    let mut search = Search::new(entries, |_| true)?;
    if search.explains(&Configuration::start(search.definite.len())) {
        return Ok(());
    }
    let rule = if search.budget == 0 { "history too long to decide" } else { "not linearizable" };
    let mut shown: Vec<&Entry> = entries.iter().collect();
    shown.sort_by_key(|e| e.call);
    let lines: Vec<String> = shown.iter().map(|e| format!("\n    {e}")).collect();
    Err(GuaranteeViolation { rule, detail: format!("no order explains{}", lines.concat()) })
}

/// All tokens and marks that reads show.
fn seen_tokens(entries: &[Entry]) -> BTreeSet<Token> {
    let values = entries.iter().filter_map(|entry| match &entry.outcome {
        Outcome::Saw(value) => value.as_ref(),
        _ => None,
    });
    values.flat_map(|value| value.tokens.iter().copied().chain([value.mark])).collect()
}

/// A token twice in one value is a write applied twice; reported separately, because that says more than a failed search.
fn no_token_twice(entries: &[Entry]) -> Result<(), GuaranteeViolation> {
    for entry in entries {
        let Outcome::Saw(Some(value)) = &entry.outcome else { continue };
        let mut seen = BTreeSet::new();
        if let Some(token) = value.tokens.iter().find(|t| **t != 0 && !seen.insert(**t)) {
            return Err(GuaranteeViolation {
                rule: "write applied twice",
                detail: format!("token {token:x}: {entry}"),
            });
        }
    }
    Ok(())
}

/// The knowledge of the current state's version.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Version {
    Exactly(u64),
    Above(u64),
}

#[derive(Clone)]
struct Configuration {
    state: Option<Value>,
    version: Version,
    /// All definite entries before this one are placed.
    first: usize,
    placed: Vec<bool>,
    /// Which unanswered requests have been placed: a bit each.
    unknown: u128,
    /// The newest map of all placed requests.
    seen: MapVersion,
}

impl Configuration {
    fn start(definite: usize) -> Configuration {
        Configuration {
            state: None,
            version: Version::Exactly(0),
            first: 0,
            placed: vec![false; definite],
            unknown: 0,
            seen: (0, Epoch(0)),
        }
    }

    fn place(&mut self, index: usize, entry: &Entry) {
        self.seen = self.seen.max(entry.asked_at);
        self.placed[index] = true;
        while self.placed.get(self.first) == Some(&true) {
            self.first += 1;
        }
    }
}

/// Whether an action can take effect on a state with this version.
fn fits(action: &Action, version: Version) -> bool {
    match (action, version) {
        (Action::Replace { version, .. }, Version::Exactly(known)) => *version == known,
        (Action::Replace { version, .. }, Version::Above(low)) => *version > low,
        _ => true,
    }
}

struct Search<'a> {
    /// Answered entries by call time.
    definite: Vec<&'a Entry>,
    unknown: Vec<&'a Entry>,
    failed: HashSet<u64, BuildHasherDefault<DefaultHasher>>,
    budget: usize,
}

impl<'a> Search<'a> {
    /// A search in which only the unanswered requests that `may` accepts can take effect.
    fn new(entries: &'a [Entry], may: impl Fn(&Entry) -> bool) -> Result<Search<'a>, GuaranteeViolation> {
        let mut definite: Vec<&Entry> =
            entries.iter().filter(|e| e.reply.is_some() && e.outcome != Outcome::Refused).collect();
        definite.sort_by_key(|e| e.call);
        let unknown: Vec<&Entry> =
            entries.iter().filter(|e| e.reply.is_none() && e.action.is_write() && may(e)).collect();
        if unknown.len() > MAX_UNKNOWN {
            let detail = format!("{} requests of unknown outcome", unknown.len());
            return Err(GuaranteeViolation { rule: "history too long to decide", detail });
        }
        Ok(Search { definite, unknown, failed: HashSet::default(), budget: BUDGET })
    }

    /// Identifies configurations with the same search. The newest map seen only counts by what it forbids.
    fn key(&self, at: &Configuration) -> u64 {
        let open = (0..self.unknown.len()).filter(|bit| self.may_happen(at, *bit));
        let open = open.fold(0_u128, |open, bit| open | 1 << bit);
        let mut hasher = DefaultHasher::new();
        (&at.state, at.version, at.first, &at.placed[at.first..], open).hash(&mut hasher);
        hasher.finish()
    }

    /// Whether some order explains all entries that are not placed yet. The recursion is as deep as the number of writes.
    fn explains(&mut self, from: &Configuration) -> bool {
        let mut at = from.clone();
        let horizon = self.take_what_changes_nothing(&mut at);
        if at.first == self.definite.len() {
            return true;
        }
        if self.is_too_late(&at) || self.budget == 0 || !self.failed.insert(self.key(&at)) {
            return false;
        }
        self.budget -= 1;

        let next_write = self.next_write(&at, horizon);
        if let Some((index, state, version)) = next_write {
            let mut next = at.clone();
            (next.state, next.version) = (state, version);
            next.place(index, self.definite[index]);
            if self.explains(&next) {
                return true;
            }
        }
        for index in self.fencing(&at, horizon) {
            let mut next = at.clone();
            next.place(index, self.definite[index]);
            if self.explains(&next) {
                return true;
            }
        }
        for (index, version) in self.telling_reads(&at, horizon) {
            let mut next = at.clone();
            next.version = Version::Exactly(version);
            next.place(index, self.definite[index]);
            if self.explains(&next) {
                return true;
            }
        }
        for index in self.anywhere(&at, horizon) {
            let (state, outcome) = self.definite[index].action.apply(&at.state);
            if outcome != self.definite[index].outcome {
                continue;
            }
            // Truncating an object is a change, whatever its length was.
            let cuts = matches!(self.definite[index].action, Action::Truncate(_)) && state.is_some();
            let mut next = at.clone();
            if cuts || state != at.state {
                let (Version::Exactly(low) | Version::Above(low)) = at.version;
                (next.state, next.version) = (state, Version::Above(low));
            }
            next.place(index, self.definite[index]);
            if self.explains(&next) {
                return true;
            }
        }
        for bit in 0..self.unknown.len() {
            let entry = self.unknown[bit];
            if !self.may_happen(&at, bit) || entry.call > horizon {
                continue;
            }
            let (state, outcome) = entry.action.apply(&at.state);
            if !outcome.took_effect() || !fits(&entry.action, at.version) {
                continue;
            }
            let (Version::Exactly(low) | Version::Above(low)) = at.version;
            let mut next = at.clone();
            (next.state, next.version) = (state, Version::Above(low));
            next.unknown |= 1 << bit;
            next.seen = next.seen.max(entry.asked_at);
            if self.explains(&next) {
                return true;
            }
        }
        false
    }

    /// Whether an entry that is not placed yet has a version that the state has passed: versions increase.
    fn is_too_late(&self, at: &Configuration) -> bool {
        (at.first..self.definite.len()).any(|index| {
            let entry = self.definite[index];
            let Some(version) = entry.version.filter(|_| !at.placed[index]) else { return false };
            match at.version {
                Version::Exactly(known) if entry.outcome.took_effect() => version <= known,
                Version::Exactly(known) => version < known,
                Version::Above(low) => version <= low,
            }
        })
    }

    /// Places every request that is possible now, changes nothing and fits the current state. Returns the latest call time
    /// that is possible now.
    fn take_what_changes_nothing(&self, at: &mut Configuration) -> Nanos {
        loop {
            let horizon = self.horizon(at);
            let may_rise = !self.anywhere(at, horizon).is_empty();
            let mut took = false;
            for index in at.first..self.definite.len() {
                let entry = self.definite[index];
                if entry.call > horizon {
                    break;
                }
                if at.placed[index] {
                    continue;
                }
                let (_, outcome) = entry.action.apply(&at.state);
                if entry.outcome.took_effect() || outcome != entry.outcome || self.fences(at, entry) {
                    continue;
                }
                if let (Outcome::Saw(Some(_)), Some(version)) = (&entry.outcome, entry.version) {
                    match at.version {
                        Version::Exactly(known) if known != version => continue,
                        // It belongs before or after a request that changes the version: see `telling_reads`.
                        Version::Above(_) if may_rise => continue,
                        Version::Above(low) if version <= low || self.comes_later(at, version) => continue,
                        _ => at.version = Version::Exactly(version),
                    }
                }
                at.place(index, entry);
                took = true;
            }
            if !took {
                return horizon;
            }
        }
    }

    /// Whether an acknowledged write with this version or a lower one, or a read with a lower one, is not placed yet:
    /// versions increase.
    fn comes_later(&self, at: &Configuration, version: u64) -> bool {
        (at.first..self.definite.len()).any(|index| {
            let entry = self.definite[index];
            let is_write = entry.outcome.took_effect();
            !at.placed[index] && entry.version.is_some_and(|v| v < version || is_write && v == version)
        })
    }

    /// The earliest answer of the entries that are not placed: no request with a later call can precede it.
    fn horizon(&self, at: &Configuration) -> Nanos {
        let mut horizon = Nanos::MAX;
        for index in at.first..self.definite.len() {
            if self.definite[index].call > horizon {
                break;
            }
            if !at.placed[index] {
                horizon = horizon.min(self.definite[index].reply.unwrap_or(Nanos::MAX));
            }
        }
        horizon
    }

    /// Reads that are possible now and determine the unknown version of the current state, with that version.
    fn telling_reads(&self, at: &Configuration, horizon: Nanos) -> Vec<(usize, u64)> {
        let Version::Above(low) = at.version else { return Vec::new() };
        let open = (at.first..self.definite.len()).filter(|index| !at.placed[*index]);
        let fits = |index: usize| {
            let entry = self.definite[index];
            let version = entry.version.filter(|version| *version > low && entry.call <= horizon)?;
            let is_seen = entry.outcome == Outcome::Saw(at.state.clone()) && at.state.is_some();
            (is_seen && !self.comes_later(at, version)).then_some((index, version))
        };
        open.filter_map(fits).collect()
    }

    /// Whether an unanswered request can still take effect: no request is placed that was made with a map in which its
    /// session is on the blocklist.
    fn may_happen(&self, at: &Configuration, bit: usize) -> bool {
        at.unknown & (1 << bit) == 0 && self.unknown[bit].fenced_at.is_none_or(|map| at.seen < map)
    }

    /// Whether an unanswered request that can take effect now could not do so after `entry`.
    fn fences(&self, at: &Configuration, entry: &Entry) -> bool {
        let is_fenced = |bit: usize| self.unknown[bit].fenced_at.is_some_and(|map| entry.asked_at >= map);
        (0..self.unknown.len()).any(|bit| is_fenced(bit) && self.may_happen(at, bit))
    }

    /// Requests that change nothing, are possible now and fit, and after which unanswered requests of a session on the
    /// blocklist can't take effect. (A read with a version is included only if the state's version is known.)
    fn fencing(&self, at: &Configuration, horizon: Nanos) -> Vec<usize> {
        let fits = |index: &usize| {
            let entry = self.definite[*index];
            let known = match (at.version, entry.version, &entry.outcome) {
                (Version::Exactly(known), Some(version), Outcome::Saw(Some(_))) => known == version,
                (Version::Above(_), Some(_), Outcome::Saw(Some(_))) => false,
                _ => true,
            };
            let is_free = !at.placed[*index] && entry.call <= horizon && !entry.outcome.took_effect();
            is_free && known && entry.action.apply(&at.state).1 == entry.outcome && self.fences(at, entry)
        };
        (at.first..self.definite.len()).filter(fits).collect()
    }

    /// Requests that are possible now and whose place no version determines.
    fn anywhere(&self, at: &Configuration, horizon: Nanos) -> Vec<usize> {
        let open = (at.first..self.definite.len()).filter(|index| {
            let entry = self.definite[*index];
            let is_free = entry.outcome.took_effect() && entry.version.is_none();
            !at.placed[*index] && is_free && entry.call <= horizon
        });
        open.collect()
    }

    /// The acknowledged write with the lowest version, if it is possible now and fits.
    fn next_write(&self, at: &Configuration, horizon: Nanos) -> Option<(usize, Option<Value>, Version)> {
        let open = (at.first..self.definite.len())
            .filter(|index| !at.placed[*index] && self.definite[*index].outcome.took_effect())
            .filter(|index| self.definite[*index].version.is_some());
        let index = open.min_by_key(|index| (self.definite[*index].version, self.definite[*index].call))?;
        let entry = self.definite[index];
        let (state, outcome) = entry.action.apply(&at.state);
        if entry.call > horizon || outcome != entry.outcome || !fits(&entry.action, at.version) {
            return None;
        }
        let (Version::Exactly(low) | Version::Above(low)) = at.version;
        let version = entry.version.filter(|version| *version > low)?;
        Some((index, state, Version::Exactly(version)))
    }
}

#[cfg(test)]
mod tests;
