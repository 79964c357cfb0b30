//! Admission: whether a new operation may produce events for a topic that refuses when its queue is full.
//!
//! A gateway decides before it starts the operation, from the queue's size as it read it last and from what
//! it admitted itself. It never decides later: an admitted event is always enqueued. A gateway has at most
//! `allowance` events *outstanding*, that is admitted and not yet seen in a queue's size or given up. So with
//! G gateways (those that died with events outstanding included) the limit is passed by at most (G - 1) ×
//! allowance events.
//!
//! Proof: of the readings that any admission is based on, consider the one that began last, at time t. For
//! its gateway the size read plus its own outstanding events stayed within the limit. Every other gateway's
//! admissions are based on readings that began before t. They released only events that had been enqueued
//! before those readings began: these are in the size read at t. What else such a gateway admitted is
//! outstanding at its last admission, hence at most `allowance`.

/// A gateway's view of one topic's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    limit: u64,
    allowance: u64,
    /// Entries at the last reading; `None` before the first one.
    entries: Option<u64>,
    /// Admitted; not yet known to be enqueued or given up.
    pending: u64,
    /// Enqueued since the reading that is under way, or the last one, started: not in its figure for
    /// certain.
    fresh: u64,
    /// Enqueued before the current reading started.
    settled_by_reading: u64,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The operation may begin.
    Admitted,
    /// The queue is full: SlowDown.
    Full,
    /// Read the queue's size first, then ask again.
    ReadFirst,
}

impl Admission {
    /// For a topic with a limit of `limit` events. `allowance` is at least 1.
    pub fn new(limit: u64, allowance: u64) -> Admission {
        let allowance = allowance.max(1);
        Admission { limit, allowance, entries: None, pending: 0, fresh: 0, settled_by_reading: 0 }
    }

    /// Events that count against the allowance.
    pub fn outstanding(&self) -> u64 {
        self.pending + self.fresh + self.settled_by_reading
    }

    /// Whether an operation with this many events may begin; it then counts until [`Admission::enqueued`] or
    /// [`Admission::given_up`].
    pub fn admit(&mut self, events: u64) -> Decision {
        let Some(entries) = self.entries else { return Decision::ReadFirst };
        let outstanding = self.outstanding() + events;
        if outstanding > self.allowance {
            // A reading turns events that were enqueued into entries. What is pending only time can settle.
            let is_helped = self.fresh + self.settled_by_reading > 0;
            return if is_helped { Decision::ReadFirst } else { Decision::Full };
        }
        if entries + outstanding > self.limit {
            return Decision::Full;
        }
        self.pending += events;
        Decision::Admitted
    }

    /// What was admitted as `from` turned out to be `to`. So the allowance may be passed, by as much as was not known when it
    /// was admitted.
    pub fn resized(&mut self, from: u64, to: u64) {
        self.pending = self.pending.saturating_sub(from) + to;
    }

    /// Admitted events are in the queue.
    pub fn enqueued(&mut self, events: u64) {
        let events = events.min(self.pending);
        self.pending -= events;
        self.fresh += events;
    }

    /// An operation failed, so that its events do not exist.
    pub fn given_up(&mut self, events: u64) {
        self.pending -= events.min(self.pending);
    }

    /// A reading of all shards begins. A second one may begin only after the first has ended or failed.
    pub fn reading_begins(&mut self) {
        self.settled_by_reading += std::mem::take(&mut self.fresh);
    }

    /// The reading that began last has ended: the sum of the shards' entries.
    pub fn reading_ended(&mut self, entries: u64) {
        self.entries = Some(entries);
        self.settled_by_reading = 0;
    }

    /// Whether a reading of the queue's size tells something new: there is none, or events were enqueued since.
    pub fn needs_reading(&self) -> bool {
        self.entries.is_none() || self.fresh + self.settled_by_reading > 0
    }

    /// Time has passed: the last reading is no longer used.
    pub fn expire(&mut self) {
        self.entries = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gateway_never_passes_the_limit() {
        let mut admission = Admission::new(10, 4);
        let mut queue = 0;
        let mut admitted = 0;
        for _ in 0..100 {
            match admission.admit(1) {
                Decision::Admitted => admitted += 1,
                Decision::ReadFirst => {
                    admission.reading_begins();
                    admission.reading_ended(queue);
                    continue;
                }
                Decision::Full => {}
            }
            if admitted > queue {
                queue += 1;
                admission.enqueued(1);
            }
            assert!(queue <= 10);
        }
        assert_eq!((queue, admitted), (10, 10));
        admission.reading_begins();
        admission.reading_ended(3);
        assert_eq!(admission.admit(1), Decision::Admitted, "the queue was drained");
    }

    #[test]
    fn gateways_together_pass_the_limit_by_their_allowances_less_one() {
        const GATEWAYS: u64 = 4;
        const ALLOWANCE: u64 = 8;
        let mut gateways: Vec<_> = (0..GATEWAYS).map(|_| Admission::new(100, ALLOWANCE)).collect();
        let mut queue = 92;
        // All read the same moment, and admit all that they may before anything is enqueued.
        for gateway in &mut gateways {
            gateway.reading_begins();
            gateway.reading_ended(queue);
            while gateway.admit(1) == Decision::Admitted {}
        }
        for gateway in &mut gateways {
            let outstanding = gateway.outstanding();
            gateway.enqueued(outstanding);
            queue += outstanding;
        }
        assert_eq!(queue, 100 + (GATEWAYS - 1) * ALLOWANCE);
        for gateway in &mut gateways {
            assert_eq!(gateway.admit(1), Decision::ReadFirst);
            gateway.reading_begins();
            gateway.reading_ended(queue);
            assert_eq!(gateway.admit(1), Decision::Full);
        }
    }

    #[test]
    fn events_enqueued_while_the_size_is_read_still_count() {
        let mut admission = Admission::new(10, 10);
        admission.reading_begins();
        admission.reading_ended(0);
        assert_eq!(admission.admit(10), Decision::Admitted);
        admission.reading_begins();
        admission.enqueued(10);
        // The reading may have passed the shards before.
        admission.reading_ended(0);
        assert_eq!(admission.outstanding(), 10);
        assert_ne!(admission.admit(1), Decision::Admitted);
    }

    #[test]
    fn events_count_what_they_turn_out_to_be() {
        let mut admission = Admission::new(10, 4);
        admission.reading_begins();
        admission.reading_ended(0);
        assert_eq!(admission.admit(2), Decision::Admitted);
        admission.resized(2, 3);
        assert_eq!(admission.outstanding(), 3);
        assert_eq!(admission.admit(2), Decision::Full);
        admission.enqueued(3);
        admission.reading_begins();
        admission.reading_ended(3);
        assert_eq!(admission.outstanding(), 0);
    }

    #[test]
    fn failed_operations_give_their_room_back() {
        let mut admission = Admission::new(10, 2);
        admission.reading_begins();
        admission.reading_ended(0);
        assert_eq!(admission.admit(2), Decision::Admitted);
        assert_eq!(admission.admit(1), Decision::Full);
        admission.given_up(2);
        assert_eq!(admission.admit(1), Decision::Admitted);
        admission.expire();
        assert_eq!(admission.admit(1), Decision::ReadFirst);
    }
}
