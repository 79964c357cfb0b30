//! The load: slots that each keep one operation in flight, and the figures that they collect.

use super::{BackendError, BenchBackend};
use crate::cmd::latency::LatencyHistogram;
use bytes::{Bytes, BytesMut};
use nacre_types::errno::Errno;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cmd) enum BenchKind {
    Write,
    Sequential,
    Random,
}

/// The parameters of the load.
pub(in crate::cmd) struct BenchPlan {
    pub(in crate::cmd) kind: BenchKind,
    pub(in crate::cmd) prefix: String,
    pub(in crate::cmd) op_size: u64,
    pub(in crate::cmd) ops_per_object: u64,
    pub(in crate::cmd) object_size: u64,
    /// Number of objects for a read benchmark.
    pub(in crate::cmd) objects: u32,
    /// Maximum number of objects that a write benchmark creates, or 0 for no limit.
    pub(in crate::cmd) max_objects: u64,
    /// Operations in flight on each of the ways to the store.
    pub(in crate::cmd) concurrent: u32,
    pub(in crate::cmd) verify: bool,
    pub(in crate::cmd) hints: bool,
    /// Seed of the objects' contents and of the order of random reads. Without one, contents are the letter z.
    pub(in crate::cmd) seed: Option<u64>,
}

/// Figures at one point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) in_flight: u64,
    pub(super) started: u64,
    pub(super) finished: u64,
    /// Latency of the last finished operation, in seconds.
    pub(super) last_latency: f64,
    pub(super) mean_latency: f64,
}

/// Figures of a slice.
#[derive(Debug, Default)]
pub(super) struct IntervalStats {
    pub(super) finished: u64,
    pub(super) latency: RunningStats,
    pub(super) times: LatencyHistogram,
}

/// Figures of the measurement, which starts after the warm-up.
#[derive(Debug)]
pub(super) struct BenchResult {
    pub(super) finished: u64,
    /// Number of operations in the warm-up.
    pub(super) warmed_up: u64,
    pub(super) bytes: u64,
    pub(super) last_completion: Instant,
    pub(super) latency: RunningStats,
    pub(super) times: LatencyHistogram,
    pub(super) failure: Option<(String, Errno)>,
}

/// Mean, deviation and extremes of the added values (Welford's method).
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningStats {
    pub(super) count: u64,
    pub(super) mean: f64,
    squares: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Default for RunningStats {
    fn default() -> RunningStats {
        RunningStats { count: 0, mean: 0.0, squares: 0.0, min: f64::MAX, max: 0.0 }
    }
}

impl RunningStats {
    pub(super) fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (value - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// The standard deviation of the sample, or 0 for less than two values.
    pub(super) fn deviation(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }
}

struct LoadCounters {
    end: Instant,
    started: u64,
    finished: u64,
    /// Of those, the number before the measurement started.
    warmed_up: u64,
    bytes: u64,
    last_latency: f64,
    last_completion: Instant,
    latency: RunningStats,
    times: LatencyHistogram,
    slice: IntervalStats,
    random: u64,
    failure: Option<(String, Errno)>,
    stopped: bool,
}

struct Inner {
    plan: BenchPlan,
    filling: Bytes,
    figures: Mutex<LoadCounters>,
    idle: Condvar,
}

/// A load that is running.
pub(super) struct Load(Arc<Inner>);

/// The place of one operation in the run.
#[derive(Clone, Copy)]
struct Step {
    /// Its number among the writes, which determines object, offset and contents.
    number: u64,
    started_at: Instant,
}

pub(super) fn object_name(prefix: &str, object: u64) -> String {
    format!("{prefix}_object{object}")
}

/// The text at the start of the data of write `number`.
fn stamp(number: u64) -> String {
    format!("I'm the {number:16}th op!")
}

fn fill(buffer: &mut [u8], number: u64) {
    let stamp = stamp(number);
    let len = stamp.len().min(buffer.len());
    buffer[..len].copy_from_slice(&stamp.as_bytes()[..len]);
}

/// The contents of objects after their stamp, repeated up to the operation's size. With a seed, one piece of random bytes.
fn filling(seed: Option<u64>, op_size: u64) -> Bytes {
    let Some(seed) = seed else { return Bytes::from_static(&[b'z'; 4096]) };
    let len = usize::try_from(op_size).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    let mut state = random_state(seed);
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random(&mut state).to_le_bytes()[..word.len()]);
    }
    bytes.into()
}

/// An initial state of [`random`], which must not be 0.
fn random_state(seed: u64) -> u64 {
    (seed ^ 0x9e37_79b9_7f4a_7c15).max(1)
}

/// xorshift64*
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Whether `data` is the data of write `number`.
fn matches(data: &[u8], number: u64, op_size: u64, filling: &[u8]) -> bool {
    let stamp = stamp(number);
    let len = stamp.len().min(data.len());
    let first = data.len().min(filling.len());
    data.len() as u64 == op_size
        && data[..len] == stamp.as_bytes()[..len]
        && data[len..first.max(len)] == filling[len.min(first)..first]
        && data[first..].chunks(filling.len()).all(|part| *part == filling[..part.len()])
}

impl Load {
    /// Starts as many operations as the plan keeps in flight, on each of `ways`.
    pub(super) fn start<S: BenchBackend>(ways: &[S], plan: BenchPlan, end: Instant) -> Load {
        let concurrent = plan.concurrent;
        let figures = LoadCounters {
            end,
            started: 0,
            finished: 0,
            warmed_up: 0,
            bytes: 0,
            last_latency: 0.0,
            last_completion: Instant::now(),
            latency: RunningStats::default(),
            times: LatencyHistogram::default(),
            slice: IntervalStats::default(),
            // All runs with the same seed read in the same random order.
            random: random_state(plan.seed.unwrap_or(0)),
            failure: None,
            stopped: false,
        };
        let filling = filling(plan.seed, plan.op_size);
        let inner = Arc::new(Inner { plan, filling, figures: Mutex::new(figures), idle: Condvar::new() });
        for slot in 0..ways.len() * concurrent as usize {
            inner.clone().next(ways[slot % ways.len()].clone(), Bytes::new());
        }
        Load(inner)
    }

    pub(super) fn sample(&self) -> Sample {
        let figures = self.0.lock();
        Sample {
            in_flight: figures.started - figures.finished,
            started: figures.started,
            finished: figures.finished,
            last_latency: figures.last_latency,
            mean_latency: figures.latency.mean,
        }
    }

    /// The figures since the last call.
    pub(super) fn take_slice(&self) -> IntervalStats {
        std::mem::take(&mut self.0.lock().slice)
    }

    /// Ends the warm-up. Operations that finish from now on are measured, until `end`.
    pub(super) fn start_measuring(&self, end: Instant) {
        let mut figures = self.0.lock();
        figures.end = end;
        figures.warmed_up = figures.finished;
        (figures.bytes, figures.latency, figures.times) =
            (0, RunningStats::default(), LatencyHistogram::default());
        figures.slice = IntervalStats::default();
    }

    /// Waits for `until` or for the end of the work. Returns whether the work ended first.
    pub(super) fn wait_idle_until(&self, until: Instant) -> bool {
        let mut figures = self.0.lock();
        loop {
            if figures.stopped && figures.started == figures.finished {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            let waited = self.0.idle.wait_timeout(figures, left);
            figures = waited.expect("invariant: no holder of the lock panics").0;
        }
    }

    /// Stops starting operations and waits for those in flight.
    pub(super) fn finish(self) -> BenchResult {
        self.0.lock().stopped = true;
        let far = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
        self.wait_idle_until(far);
        let mut figures = self.0.lock();
        BenchResult {
            finished: figures.finished - figures.warmed_up,
            warmed_up: figures.warmed_up,
            bytes: figures.bytes,
            last_completion: figures.last_completion,
            latency: figures.latency,
            times: std::mem::take(&mut figures.times),
            failure: figures.failure.take(),
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, LoadCounters> {
        self.figures.lock().expect("invariant: no holder of the lock panics")
    }

    /// The place of the next operation, unless the run is over.
    fn take_step(&self) -> Option<Step> {
        let started_at = Instant::now();
        let mut figures = self.lock();
        let plan = &self.plan;
        let total = u64::from(plan.objects) * plan.ops_per_object;
        let over = figures.stopped
            || started_at >= figures.end
            || match plan.kind {
                BenchKind::Write => {
                    plan.max_objects > 0 && figures.started >= plan.max_objects * plan.ops_per_object
                }
                BenchKind::Sequential => figures.started >= total,
                BenchKind::Random => total == 0,
            };
        if over {
            figures.stopped = true;
            self.idle.notify_all();
            return None;
        }
        let number = match plan.kind {
            BenchKind::Write | BenchKind::Sequential => figures.started,
            BenchKind::Random => random(&mut figures.random) % total,
        };
        figures.started += 1;
        Some(Step { number, started_at })
    }

    /// Starts an operation on `way`. Reuses the buffer of the slot's last write.
    fn next<S: BenchBackend>(self: Arc<Self>, way: S, buffer: Bytes) {
        let Some(step) = self.take_step() else { return };
        let plan = &self.plan;
        let name = object_name(&plan.prefix, step.number / plan.ops_per_object);
        let offset = step.number % plan.ops_per_object * plan.op_size;
        let (inner, next) = (self.clone(), way.clone());
        if plan.kind == BenchKind::Write {
            let data = stamped(buffer, step.number, plan.op_size, &self.filling);
            let kept = data.clone();
            way.write(plan, &name, offset, data, Box::new(move |done| inner.written(step, next, kept, done)));
        } else {
            way.read(&name, offset, plan.op_size, Box::new(move |done| inner.read(step, next, done)));
        }
    }

    fn written<S: BenchBackend>(
        self: Arc<Self>,
        step: Step,
        way: S,
        data: Bytes,
        done: Result<(), BackendError>,
    ) {
        match done {
            Ok(()) => {
                self.account(step, self.plan.op_size);
                self.next(way, data);
            }
            Err(BackendError { text, errno }) => {
                self.fail(step, format!("write {} failed: {text}", step.number), errno);
            }
        }
    }

    fn read<S: BenchBackend>(self: Arc<Self>, step: Step, way: S, done: Result<Bytes, BackendError>) {
        let plan = &self.plan;
        match done {
            Ok(data) if plan.verify && !matches(&data, step.number, plan.op_size, &self.filling) => {
                let name = object_name(&plan.prefix, step.number / plan.ops_per_object);
                let text = format!("{name} is not correct! ({} bytes of write {})", data.len(), step.number);
                self.fail(step, text, Errno::EIO);
            }
            Ok(data) => {
                self.account(step, data.len() as u64);
                self.next(way, Bytes::new());
            }
            Err(BackendError { text, errno }) => {
                self.fail(step, format!("read {} failed: {text}", step.number), errno);
            }
        }
    }

    fn account(&self, step: Step, bytes: u64) {
        let now = Instant::now();
        let latency = now.duration_since(step.started_at).as_secs_f64();
        let mut figures = self.lock();
        figures.finished += 1;
        figures.bytes += bytes;
        figures.last_latency = latency;
        figures.last_completion = now;
        figures.latency.add(latency);
        figures.times.add(now.duration_since(step.started_at));
        figures.slice.finished += 1;
        figures.slice.latency.add(latency);
        figures.slice.times.add(now.duration_since(step.started_at));
    }

    fn fail(&self, step: Step, text: String, errno: Errno) {
        let mut figures = self.lock();
        // A failed operation is not counted.
        figures.started -= 1;
        figures.last_completion = figures.last_completion.max(step.started_at);
        figures.failure.get_or_insert((text, errno));
        figures.stopped = true;
        self.idle.notify_all();
    }
}

/// The data of write `number`, in `buffer` unless another operation still uses it.
fn stamped(buffer: Bytes, number: u64, op_size: u64, filling: &[u8]) -> Bytes {
    let size = usize::try_from(op_size).unwrap_or(usize::MAX);
    let mut buffer = match buffer.try_into_mut() {
        Ok(buffer) if buffer.len() == size => buffer,
        _ => {
            let mut buffer = BytesMut::zeroed(size);
            buffer.chunks_mut(filling.len()).for_each(|part| part.copy_from_slice(&filling[..part.len()]));
            buffer
        }
    };
    fill(&mut buffer, number);
    buffer.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_says_which_write_it_is_of() {
        for seed in [None, Some(7)] {
            for op_size in [1, 10, 27, 4096, 5000, 12_345] {
                let filling = filling(seed, op_size);
                let data = stamped(Bytes::new(), 17, op_size, &filling);
                assert!(matches(&data, 17, op_size, &filling), "{seed:?} {op_size}");
                assert!(!matches(&data[1..], 17, op_size, &filling));
                let again = stamped(data, 18, op_size, &filling);
                assert!(matches(&again, 18, op_size, &filling), "{seed:?} {op_size}");
                assert!(op_size < 27 || !matches(&again, 17, op_size, &filling));
                for at in (0..again.len()).step_by(997) {
                    let mut damaged = again.to_vec();
                    damaged[at] ^= 1;
                    assert!(!matches(&damaged, 18, op_size, &filling), "{seed:?} {op_size} {at}");
                }
            }
        }
        assert!(filling(Some(7), 4096) != filling(Some(8), 4096));
    }

    #[test]
    fn spread_is_that_of_the_textbook() {
        let mut spread = RunningStats::default();
        assert_eq!((spread.mean, spread.deviation()), (0.0, 0.0));
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|v| spread.add(v));
        assert!((spread.mean - 5.0).abs() < 1e-12);
        assert!((spread.deviation() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((spread.min, spread.max), (2.0, 9.0));
    }
}
