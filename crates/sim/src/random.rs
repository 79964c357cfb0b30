//! Randomness from one seed, split into independent streams.
//!
//! Each concern (network, disks, workload, every kind of fault, …) draws from its own ChaCha stream, so that removing one
//! kind of fault does not change the draws of all others. This makes minimising a failing seed possible.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The user of a stream. The number is that of the ChaCha stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The scenario itself: sizes, counts, kinds of faults.
    Scenario,
    /// Delays, losses and reorderings.
    Network,
    /// Where sockets between OSDs break, and how their bytes are cut.
    Sockets,
    /// Flush times, and which changes survive a crash.
    Disk,
    /// Clients' operations and pauses.
    Workload,
    /// Clocks' offsets and drifts.
    Clock,
    /// The map authority's delays.
    Monitor,
    /// One kind of fault.
    Fault(u8),
    /// The order of tasks and the lateness of timers.
    Tasks,
    /// The draws of a process itself.
    Process(u32),
    /// When clients watch and notify, and what.
    Attendance,
    /// The seed's profile, and its changes.
    Profile,
    /// Which of the kinds of faults added later occur.
    LaterFaults,
    /// Full queues and deadlines of a client, its watches and notifies.
    Client(u32),
    /// When clients list pools, read and remove copies, and which.
    Chores,
    /// When processes that are clients end, are paused or blocklisted.
    Processes,
    /// The actions of processes that are clients.
    Program,
    /// The cache tier.
    Cache,
}

/// A deterministic source for one [`Stream`].
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream `stream` of `seed`.
    pub fn new(seed: u64, stream: Stream) -> Random {
        let number = match stream {
            Stream::Scenario => 0,
            Stream::Network => 1,
            Stream::Disk => 2,
            Stream::Workload => 3,
            Stream::Clock => 4,
            Stream::Monitor => 5,
            Stream::Fault(kind) => 64 + u64::from(kind),
            Stream::Tasks => 6,
            Stream::Attendance => 7,
            Stream::Chores => 8,
            Stream::Sockets => 9,
            Stream::Profile => 10,
            Stream::LaterFaults => 11,
            Stream::Processes => 30,
            Stream::Program => 31,
            Stream::Cache => 32,
            Stream::Process(number) => 1024 + u64::from(number),
            Stream::Client(number) => (1 << 40) + u64::from(number),
        };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(number);
        Random(rng)
    }

    /// Uniform in `low..high`; `low` if the range is empty.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        if low >= high { low } else { self.0.random_range(low..high) }
    }

    /// An index of a list of `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        self.range(0, len as u64) as usize
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.0.random_range(0..1000) < per_mille
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.random()
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }

    /// An exponentially distributed wait with this mean, limited to ten times the mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let unit: f64 = self.0.random::<f64>().max(1e-9);
        ((-unit.ln()).min(10.0) * mean as f64) as u64
    }

    /// One element of `list`, `None` if it is empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        list.get(self.index(list.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_independent() {
        let draw = |stream| {
            let mut random = Random::new(7, stream);
            (0..8).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(Stream::Network), draw(Stream::Network));
        assert_ne!(draw(Stream::Network), draw(Stream::Disk));
        assert_ne!(draw(Stream::Fault(0)), draw(Stream::Fault(1)));
    }
}
