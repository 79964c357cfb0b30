//! Admission control: whether a new operation may produce events for a topic that refuses operations when its queue is
//! full.
//!
//! A gateway decides before it starts the operation, based on the queue's size in its last reading and on the events that
//! it admitted itself. It never decides later: an admitted event is always enqueued. A gateway has at most `allowance`
//! *outstanding* events: events that were admitted, and that are neither included in a reading of the queue's size nor
//! given up. An operation with more events than that is admitted only while none are outstanding; then the gateway has the
//! events of that operation instead. So with G gateways (including those that died with outstanding events), the limit is exceeded by at most (G -
//! 1) × allowance events.
//!
//! Proof: of the readings that any admission is based on, consider the one that started last, at time t. For its gateway,
//! the size that was read plus its own outstanding events stayed within the limit. The admissions of every other gateway
//! are based on readings that started before t. These readings released only events that had been enqueued before the
//! readings started, and those events are included in the size at t. All other events that such a gateway admitted are
//! outstanding at its last admission, so at most `allowance`.

/// A gateway's view of one topic's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    limit: u64,
    allowance: u64,
    /// Entries at the last reading; `None` before the first one.
    entries: Option<u64>,
    /// Admitted events that are not yet known to be enqueued or given up.
    pending: u64,
    /// Events enqueued since the current or last reading started. The reading may not include them.
    fresh: u64,
    /// Events enqueued before the current reading started.
    settled_by_reading: u64,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitDecision {
    /// The operation may start.
    Admitted,
    /// The queue is full; the operation fails with SlowDown.
    Full,
    /// The queue's size must be read before the decision.
    NeedsSize,
}

impl Admission {
    /// Creates the state for a topic with a limit of `limit` events. An `allowance` below 1 counts as 1.
    pub fn new(limit: u64, allowance: u64) -> Admission {
        let allowance = allowance.max(1);
        Admission { limit, allowance, entries: None, pending: 0, fresh: 0, settled_by_reading: 0 }
    }

    /// Changes the limit and the allowance. Events that were admitted before stay outstanding.
    pub fn set_limit(&mut self, limit: u64, allowance: u64) {
        (self.limit, self.allowance) = (limit, allowance.max(1));
    }

    /// The number of events that count against the allowance.
    pub fn outstanding(&self) -> u64 {
        self.pending + self.fresh + self.settled_by_reading
    }

    /// Whether an operation with `events` events may start. If it is admitted, its events count until
    /// [`Admission::commit`] or [`Admission::release`].
    pub fn admit(&mut self, events: u64) -> AdmitDecision {
        let Some(entries) = self.entries else { return AdmitDecision::NeedsSize };
        let before = self.outstanding();
        let outstanding = before + events;
        // An operation that exceeds the allowance alone would never be admitted otherwise.
        if outstanding > self.allowance && before > 0 {
            // A reading turns enqueued events into entries, but does not help against pending events.
            let is_helped = self.fresh + self.settled_by_reading > 0;
            return if is_helped { AdmitDecision::NeedsSize } else { AdmitDecision::Full };
        }
        if entries + outstanding > self.limit {
            return AdmitDecision::Full;
        }
        self.pending += events;
        AdmitDecision::Admitted
    }

    /// Corrects the number of admitted events of an operation from `from` to `to`. The allowance may be exceeded by the
    /// difference, which was unknown at the admission.
    pub fn adjust(&mut self, from: u64, to: u64) {
        self.pending = self.pending.saturating_sub(from) + to;
    }

    /// Admitted events were enqueued.
    pub fn commit(&mut self, events: u64) {
        let events = events.min(self.pending);
        self.pending -= events;
        self.fresh += events;
    }

    /// An operation failed, so its events do not exist.
    pub fn release(&mut self, events: u64) {
        self.pending -= events.min(self.pending);
    }

    /// A reading of all shards starts. Another one may start only after this one has ended or failed.
    pub fn begin_size_read(&mut self) {
        self.settled_by_reading += std::mem::take(&mut self.fresh);
    }

    /// The last reading has ended. `entries` is the sum over all shards.
    pub fn end_size_read(&mut self, entries: u64) {
        self.entries = Some(entries);
        self.settled_by_reading = 0;
    }

    /// Whether a reading of the queue's size would give new information: there is none, or events were enqueued since.
    pub fn needs_size_read(&self) -> bool {
        self.entries.is_none() || self.fresh + self.settled_by_reading > 0
    }

    /// Discards the last reading, which is too old.
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
                AdmitDecision::Admitted => admitted += 1,
                AdmitDecision::NeedsSize => {
                    admission.begin_size_read();
                    admission.end_size_read(queue);
                    continue;
                }
                AdmitDecision::Full => {}
            }
            if admitted > queue {
                queue += 1;
                admission.commit(1);
            }
            assert!(queue <= 10);
        }
        assert_eq!((queue, admitted), (10, 10));
        admission.begin_size_read();
        admission.end_size_read(3);
        assert_eq!(admission.admit(1), AdmitDecision::Admitted, "the queue was drained");
    }

    #[test]
    fn gateways_together_pass_the_limit_by_their_allowances_less_one() {
        const GATEWAYS: u64 = 4;
        const ALLOWANCE: u64 = 8;
        let mut gateways: Vec<_> = (0..GATEWAYS).map(|_| Admission::new(100, ALLOWANCE)).collect();
        let mut queue = 92;
        // All gateways read at the same moment, and admit all that they may before any event is enqueued.
        for gateway in &mut gateways {
            gateway.begin_size_read();
            gateway.end_size_read(queue);
            while gateway.admit(1) == AdmitDecision::Admitted {}
        }
        for gateway in &mut gateways {
            let outstanding = gateway.outstanding();
            gateway.commit(outstanding);
            queue += outstanding;
        }
        assert_eq!(queue, 100 + (GATEWAYS - 1) * ALLOWANCE);
        for gateway in &mut gateways {
            assert_eq!(gateway.admit(1), AdmitDecision::NeedsSize);
            gateway.begin_size_read();
            gateway.end_size_read(queue);
            assert_eq!(gateway.admit(1), AdmitDecision::Full);
        }
    }

    #[test]
    fn events_enqueued_while_the_size_is_read_still_count() {
        let mut admission = Admission::new(10, 10);
        admission.begin_size_read();
        admission.end_size_read(0);
        assert_eq!(admission.admit(10), AdmitDecision::Admitted);
        admission.begin_size_read();
        admission.commit(10);
        // The reading may have passed the shards before the events were enqueued.
        admission.end_size_read(0);
        assert_eq!(admission.outstanding(), 10);
        assert_ne!(admission.admit(1), AdmitDecision::Admitted);
    }

    #[test]
    fn events_count_what_they_turn_out_to_be() {
        let mut admission = Admission::new(10, 4);
        admission.begin_size_read();
        admission.end_size_read(0);
        assert_eq!(admission.admit(2), AdmitDecision::Admitted);
        admission.adjust(2, 3);
        assert_eq!(admission.outstanding(), 3);
        assert_eq!(admission.admit(2), AdmitDecision::Full);
        admission.commit(3);
        admission.begin_size_read();
        admission.end_size_read(3);
        assert_eq!(admission.outstanding(), 0);
    }

    #[test]
    fn failed_operations_give_their_room_back() {
        let mut admission = Admission::new(10, 2);
        admission.begin_size_read();
        admission.end_size_read(0);
        assert_eq!(admission.admit(2), AdmitDecision::Admitted);
        assert_eq!(admission.admit(1), AdmitDecision::Full);
        admission.release(2);
        assert_eq!(admission.admit(1), AdmitDecision::Admitted);
        admission.expire();
        assert_eq!(admission.admit(1), AdmitDecision::NeedsSize);
    }

    #[test]
    fn an_operation_above_the_allowance_is_admitted_alone() {
        let mut admission = Admission::new(10, 2);
        admission.begin_size_read();
        admission.end_size_read(3);
        assert_eq!(admission.admit(8), AdmitDecision::Full, "the limit holds");
        assert_eq!(admission.admit(7), AdmitDecision::Admitted);
        assert_eq!(admission.admit(1), AdmitDecision::Full);
        admission.release(7);
        assert_eq!(admission.admit(1), AdmitDecision::Admitted);
        assert_eq!(admission.admit(7), AdmitDecision::Full, "others are outstanding");
    }

    #[test]
    fn a_changed_limit_applies_and_keeps_what_was_admitted() {
        let mut admission = Admission::new(10, 10);
        admission.begin_size_read();
        admission.end_size_read(0);
        assert_eq!(admission.admit(8), AdmitDecision::Admitted);
        admission.set_limit(9, 9);
        assert_eq!((admission.outstanding(), admission.admit(2)), (8, AdmitDecision::Full));
        admission.set_limit(20, 20);
        assert_eq!(admission.admit(12), AdmitDecision::Admitted);
    }
}
