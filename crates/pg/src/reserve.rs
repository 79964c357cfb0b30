//! Reservations: how many PGs of an OSD may recover or backfill at once (`osd_max_backfills`), and in which order.
//!
//! An OSD has two [`Reserver`]s: a local one for the PGs that it is primary of, and a remote one for PGs that other
//! primaries fill here. Each is pure and deterministic. Slots go to the highest priority first, and within one priority
//! in order of arrival, so that no request starves among equals. A holder is never preempted: it keeps its slot until
//! it releases it.
//!
//! Memory is bounded by the number of keys: each key waits or holds at most once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotGrant {
    /// A slot is held.
    Granted,
    /// A later call returns the key when it gets a slot.
    Waiting,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    priority: u8,
    arrival: u64,
}

/// Slots for the holders of keys (a PG; for a remote reserver, a PG and its primary).
#[derive(Clone, Debug)]
pub struct Reserver<K> {
    slots: usize,
    next_arrival: u64,
    held: BTreeSet<K>,
    waiting: BTreeMap<K, Waiting>,
    queue: BTreeMap<(Reverse<u8>, u64), K>,
}

impl<K: Ord + Clone> Reserver<K> {
    /// Creates a reserver with `slots` slots, all free.
    pub fn new(slots: usize) -> Reserver<K> {
        Reserver {
            slots,
            next_arrival: 0,
            held: BTreeSet::new(),
            waiting: BTreeMap::new(),
            queue: BTreeMap::new(),
        }
    }

    /// Requests a slot; higher priorities are served first. A repeated request only changes the priority of a waiting
    /// key, which keeps its arrival.
    pub fn request(&mut self, key: K, priority: u8) -> SlotGrant {
        if self.held.contains(&key) {
            return SlotGrant::Granted;
        }
        let arrival = match self.unqueue(&key) {
            Some(before) => before.arrival,
            None => {
                self.next_arrival += 1;
                self.next_arrival
            }
        };
        self.waiting.insert(key.clone(), Waiting { priority, arrival });
        self.queue.insert((Reverse(priority), arrival), key.clone());
        // Slots are free only while no key waits, so this grants the key itself or nothing.
        if self.grant_next().is_some() { SlotGrant::Granted } else { SlotGrant::Waiting }
    }

    /// Releases the slot or withdraws the request. Returns the keys that are granted a slot now.
    pub fn release(&mut self, key: &K) -> Vec<K> {
        self.held.remove(key);
        self.unqueue(key);
        self.grant_all()
    }

    /// Like [`Reserver::release`] for every key that matches `gone`: those of a lost peer or a removed pool.
    pub fn release_matching(&mut self, gone: impl Fn(&K) -> bool) -> Vec<K> {
        self.held.retain(|key| !gone(key));
        self.waiting.retain(|key, _| !gone(key));
        self.queue.retain(|_, key| !gone(key));
        self.grant_all()
    }

    /// Changes the number of slots. Returns the keys that are granted a slot now. Holders keep theirs.
    pub fn set_slots(&mut self, slots: usize) -> Vec<K> {
        self.slots = slots;
        self.grant_all()
    }

    /// Whether `key` holds a slot.
    pub fn holds(&self, key: &K) -> bool {
        self.held.contains(key)
    }

    /// Whether `key` waits for a slot.
    pub fn waits(&self, key: &K) -> bool {
        self.waiting.contains_key(key)
    }

    /// The keys that hold a slot, in key order.
    pub fn holders(&self) -> impl Iterator<Item = &K> {
        self.held.iter()
    }

    /// The keys that wait, the next one first.
    pub fn queued(&self) -> impl Iterator<Item = &K> {
        self.queue.values()
    }

    fn unqueue(&mut self, key: &K) -> Option<Waiting> {
        let waiting = self.waiting.remove(key)?;
        self.queue.remove(&(Reverse(waiting.priority), waiting.arrival));
        Some(waiting)
    }

    fn grant_next(&mut self) -> Option<K> {
        if self.held.len() >= self.slots {
            return None;
        }
        let (_, key) = self.queue.pop_first()?;
        self.waiting.remove(&key);
        self.held.insert(key.clone());
        Some(key)
    }

    fn grant_all(&mut self) -> Vec<K> {
        std::iter::from_fn(|| self.grant_next()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::SlotGrant::{Granted, Waiting};
    use super::*;

    #[test]
    fn slots_go_by_priority_then_arrival() {
        let mut reserver = Reserver::new(1);
        assert_eq!(reserver.request("a", 1), Granted);
        assert_eq!(reserver.request("a", 9), Granted, "asked twice");
        for (key, priority) in [("b", 1), ("c", 5), ("d", 5), ("e", 1)] {
            assert_eq!(reserver.request(key, priority), Waiting);
        }
        assert_eq!(reserver.queued().copied().collect::<Vec<_>>(), ["c", "d", "b", "e"]);
        let mut order = vec!["a"];
        while let [next] = reserver.release(&order[order.len() - 1])[..] {
            order.push(next);
        }
        assert_eq!(order, ["a", "c", "d", "b", "e"]);
        assert_eq!(reserver.holders().count(), 0);
    }

    #[test]
    fn a_new_priority_keeps_the_arrival() {
        let mut reserver = Reserver::new(0);
        for key in 1..=3 {
            assert_eq!(reserver.request(key, 1), Waiting);
        }
        reserver.request(1, 7);
        reserver.request(3, 7);
        reserver.request(2, 7);
        assert_eq!(reserver.queued().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(reserver.set_slots(2), [1, 2]);
        assert!(reserver.set_slots(1).is_empty(), "nobody loses a slot");
        assert!(reserver.release(&1).is_empty(), "still as many as there are slots");
        assert_eq!(reserver.release(&2), [3]);
    }

    #[test]
    fn cancelled_and_lost_requests_make_room() {
        let mut reserver = Reserver::new(2);
        for key in [(1, 'x'), (2, 'x'), (3, 'y'), (4, 'x'), (5, 'y')] {
            reserver.request(key, 1);
        }
        assert!(reserver.release(&(3, 'y')).is_empty(), "it only waited");
        assert!(!reserver.waits(&(3, 'y')));
        assert_eq!(reserver.release_matching(|key| key.1 == 'x'), [(5, 'y')]);
        assert!(reserver.holds(&(5, 'y')) && !reserver.waits(&(4, 'x')));
    }

    #[test]
    fn equals_do_not_starve_each_other() {
        let mut reserver = Reserver::new(1);
        reserver.request(0u32, 1);
        reserver.request(1, 1);
        // Each round adds a request, and the former holder requests again: key 1 still gets its turn at once.
        assert_eq!(reserver.request(2, 1), Waiting);
        assert_eq!(reserver.release(&0), [1]);
        let mut turns = [0u32; 4];
        let mut holder = 1;
        for round in 0..40 {
            reserver.request(round % 4, 1);
            let granted = reserver.release(&holder);
            reserver.request(holder, 1);
            holder = granted.first().copied().unwrap_or(holder);
            turns[holder as usize] += 1;
        }
        assert!(turns.iter().all(|n| *n >= 8), "{turns:?}");
    }
}
