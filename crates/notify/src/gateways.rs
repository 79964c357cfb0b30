//! The gateways that are known to run or to have ended. This determines which gateway delivers which queue shards; safety does
//! not depend on it.

use crate::queue_shard::ShardKey;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The most ended sessions that are remembered.
const MAX_ENDED: usize = 1024;

/// The known gateways, by their RADOS sessions.
pub(crate) struct Gateways {
    own: u64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Sessions of running gateways, in ascending order; empty if they are unknown.
    running: Vec<u64>,
    /// Sessions that have ended.
    ended: BTreeSet<u64>,
}

impl Gateways {
    /// `own` is the session of this gateway.
    pub(crate) fn new(own: u64) -> Gateways {
        Gateways { own, known: Mutex::default() }
    }

    /// Sets the sessions of running gateways, from the last read.
    pub(crate) fn set_running(&self, mut running: Vec<u64>) {
        running.sort_unstable();
        running.dedup();
        self.known.lock().running = running;
    }

    /// Records that a gateway has ended.
    pub(crate) fn mark_ended(&self, session: u64) {
        let mut known = self.known.lock();
        known.running.retain(|running| *running != session);
        known.ended.insert(session);
        while known.ended.len() > MAX_ENDED {
            known.ended.pop_first();
        }
    }

    /// Whether a gateway is known to have ended.
    pub(crate) fn is_ended(&self, session: u64) -> bool {
        self.known.lock().ended.contains(&session)
    }

    /// Whether a gateway may be running.
    pub(crate) fn may_be_running(&self, session: u64) -> bool {
        let known = self.known.lock();
        known.running.is_empty() || known.running.contains(&session)
    }

    /// Whether this gateway is the preferred gateway of a shard. Rendezvous hashing selects a preferred gateway for each
    /// shard, so few shards move when gateways start or end.
    pub(crate) fn is_preferred(&self, key: &ShardKey) -> bool {
        let known = self.known.lock();
        if !known.running.contains(&self.own) {
            return true;
        }
        let weight = |session: u64| {
            let text = format!("{}.{}.{}.{session}", key.topic, key.generation, key.shard);
            (nacre_types::hash::ceph_str_hash_rjenkins(text.as_bytes()), session)
        };
        known.running.iter().map(|session| weight(*session)).max().is_none_or(|(_, best)| best == self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_topics::topic::TopicId;

    fn shards() -> impl Iterator<Item = ShardKey> {
        (0..64).map(|shard| ShardKey { topic: TopicId::from_random([7; 16]), generation: 1, shard })
    }

    #[test]
    fn each_shard_has_one_preferred_gateway() {
        let gateways = [3, 1, 2].map(Gateways::new);
        for key in shards() {
            assert!(gateways.iter().all(|gateway| gateway.is_preferred(&key)), "the others are unknown");
        }
        gateways.iter().for_each(|gateway| gateway.set_running(vec![2, 3, 1, 3]));
        let preferred = |gateway: &Gateways| shards().filter(|key| gateway.is_preferred(key)).count();
        let counts = gateways.each_ref().map(preferred);
        assert_eq!(counts.iter().sum::<usize>(), shards().count());
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn only_the_shards_of_an_ended_gateway_move() {
        let (one, two) = (Gateways::new(1), Gateways::new(2));
        [&one, &two].into_iter().for_each(|gateway| gateway.set_running(vec![1, 2, 3]));
        let before: Vec<bool> = shards().map(|key| one.is_preferred(&key)).collect();
        [&one, &two].into_iter().for_each(|gateway| gateway.mark_ended(3));
        assert!(one.is_ended(3) && !one.may_be_running(3) && one.may_be_running(2));
        for (key, was_preferred) in shards().zip(before) {
            assert!(!was_preferred || one.is_preferred(&key));
            assert_ne!(one.is_preferred(&key), two.is_preferred(&key));
        }
    }

    #[test]
    fn the_number_of_remembered_sessions_is_bounded() {
        let gateways = Gateways::new(1);
        (0..=MAX_ENDED as u64).for_each(|session| gateways.mark_ended(session));
        assert!(!gateways.is_ended(0) && gateways.is_ended(1) && gateways.is_ended(MAX_ENDED as u64));
    }
}
