//! Transactions that are queued in the store, and the handling of its completions.

use std::collections::VecDeque;

/// Bits of a completion's token that hold the machine's persist id; the PG's slot is above.
const PERSIST_BITS: u32 = 40;

/// The token of a transaction of the PG in `slot` with the machine's persist id `id`.
pub(super) fn txn_token(slot: u32, id: u64) -> u64 {
    debug_assert!(id < 1 << PERSIST_BITS);
    u64::from(slot) << PERSIST_BITS | id
}

/// The PG's slot in a token.
pub(super) fn token_slot(token: u64) -> u32 {
    (token >> PERSIST_BITS) as u32
}

/// The machine's persist id in a token.
fn id_of(token: u64) -> u64 {
    token & ((1 << PERSIST_BITS) - 1)
}

/// A transaction that the store has not completed, or that has uncompleted predecessors.
#[derive(Clone, Copy, Debug)]
struct Queued {
    token: u64,
    queued_ns: u64,
    /// Whether it is durable while an earlier one of the PG is not.
    overtakes: bool,
}

/// The transactions of a shard that are in the store, in the order in which they were queued.
#[derive(Debug, Default)]
pub(super) struct InflightTxns {
    queue: VecDeque<Queued>,
    /// The number of them that are durable.
    overtaking: usize,
}

/// The meaning of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TxnCompletion {
    /// When the transaction was queued; `None` if it was never in the store.
    pub(super) queued_ns: Option<u64>,
    /// The persist id of the PG up to which all transactions are durable; `None` if it has not changed.
    pub(super) up_to: Option<u64>,
}

impl InflightTxns {
    /// Adds a transaction that is queued in the store.
    pub(super) fn push(&mut self, token: u64, queued_ns: u64) {
        self.queue.push_back(Queued { token, queued_ns, overtakes: false });
    }

    /// Removes the last transaction, which the store refused.
    pub(super) fn cancel_last(&mut self) {
        self.queue.pop_back();
    }

    /// Whether the PG in `slot` has a transaction in the store.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.of(slot).is_some()
    }

    /// When the oldest one was queued.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.queue.front().map(|queued| queued.queued_ns)
    }

    fn of(&self, slot: u32) -> Option<usize> {
        self.queue.iter().position(|queued| token_slot(queued.token) == slot)
    }

    /// Records that a transaction is durable. For a machine, a durable persist id means that all earlier ones are durable too.
    /// So one that overtook an earlier one is reported together with that one. Stores complete the transactions of a collection
    /// in order, so none overtakes.
    pub(super) fn complete(&mut self, token: u64) -> TxnCompletion {
        let slot = token_slot(token);
        let never_queued = TxnCompletion { queued_ns: None, up_to: Some(id_of(token)) };
        let Some(at) = self.of(slot) else { return never_queued };
        if self.queue[at].token != token {
            let Some(queued) = self.queue.iter_mut().find(|queued| queued.token == token) else {
                return never_queued;
            };
            queued.overtakes = true;
            self.overtaking += 1;
            return TxnCompletion { queued_ns: Some(queued.queued_ns), up_to: None };
        }
        let queued_ns = self.queue.remove(at).map(|queued| queued.queued_ns);
        let mut up_to = id_of(token);
        while self.overtaking > 0
            && let Some(at) = self.of(slot)
            && self.queue[at].overtakes
        {
            up_to = id_of(self.queue[at].token);
            self.queue.remove(at);
            self.overtaking -= 1;
        }
        TxnCompletion { queued_ns, up_to: Some(up_to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_that_overtake_others_are_reported_with_them() {
        let mut inflight = InflightTxns::default();
        for (slot, id) in [(0, 71), (1, 5), (0, 72), (0, 73)] {
            inflight.push(txn_token(slot, id), id);
        }
        let mut complete = |slot, id| inflight.complete(txn_token(slot, id)).up_to;
        assert_eq!([complete(0, 73), complete(0, 72)], [None, None]);
        assert_eq!(complete(1, 5), Some(5), "another PG's does not wait");
        assert_eq!(complete(0, 71), Some(73));
        assert_eq!(complete(0, 74), Some(74), "one that the store never had");
        assert_eq!((inflight.oldest_ns(), inflight.overtaking), (None, 0));
    }
}
