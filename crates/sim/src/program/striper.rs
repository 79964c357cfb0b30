//! Clients of striped objects: processes that concurrently write, append, truncate, read and remove a few of them.
//!
//! A process has one handle, like a real program, and a few tasks that use it. Operations and outcomes are recorded in the
//! [`history`], which checks each read. Data lies around the boundaries of stripe units, so that most operations concern several pieces.

mod history;
#[cfg(test)]
mod tests;

use super::{ProcessContext, Program};
use crate::gateway::executor::Scheduler;
use crate::history::GuaranteeViolation;
use crate::random::{Random, Stream};
use crate::scenario::Scenario;
use crate::schedule::{Nanos, SECOND};
use bytes::Bytes;
use history::{CELL, History, Kind, Number, Outcome};
use nacre_engine::engine::ObjectRequest;
use nacre_engine::{Error, IoCtx, Result};
use nacre_striper::{Clock, Layout, MIN_STRIPE_UNIT, Striper};
use nacre_task::{BoxedFuture, Env};
use nacre_types::errno::Errno;
use nacre_types::op::{CmpOp, CmpValue, Op};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The pool of the pieces.
const POOL: &str = "pool1";
const NAMESPACE: &str = "striped";
/// Stripe units of the largest object.
const UNITS: u64 = 5;
/// Bytes of a stripe unit.
const UNIT: u64 = MIN_STRIPE_UNIT as u64;
/// Cells before and after a boundary of units that operations concern.
const MARGIN: u64 = 4;
/// How long a process waits for its first map.
const LOOK: Duration = Duration::from_millis(50);
/// The length of reads of whole objects.
const WHOLE: u64 = 1 << 30;
/// The number of attempts of the last reads, which fail while a map is out of date.
const LAST_ATTEMPTS: u32 = 100;

/// State that processes share and that outlives them.
struct Shared {
    history: Mutex<History>,
    objects: u64,
    tasks: u64,
    think: Duration,
    op_timeout: Option<Nanos>,
}

/// A guard of the striper's requests that is omitted on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// An append does not compare the size before it takes its place.
    UnguardedAppends,
    /// Requests do not compare the object's epoch.
    UnguardedEpochs,
}

/// See the module's documentation.
pub struct StriperProgram {
    shared: Arc<Shared>,
    breach: Option<Breach>,
}

impl StriperProgram {
    /// The program of a scenario.
    pub fn new(scenario: &Scenario) -> StriperProgram {
        let mut random = Random::new(scenario.seed, Stream::Program);
        let shared = Shared {
            history: Mutex::default(),
            objects: random.range(1, 5),
            tasks: random.range(2, 5),
            think: Duration::from_millis(random.range(40, 400)),
            op_timeout: random.chance(300).then(|| random.range(SECOND, 8 * SECOND)),
        };
        StriperProgram { shared: Arc::new(shared), breach: None }
    }

    /// The same with a guard omitted.
    pub fn breaking(scenario: &Scenario, breach: Breach) -> StriperProgram {
        StriperProgram { breach: Some(breach), ..StriperProgram::new(scenario) }
    }
}

impl Program for StriperProgram {
    fn start(&mut self, start: ProcessContext) -> BoxedFuture {
        let shared = self.shared.clone();
        Box::pin(async move {
            let Some(pool) = open_pool(&start).await else { return };
            let striper = Striper::new(pool, Arc::new(TaskClock(start.env.clone())));
            let client = Client { shared: shared.clone(), striper, start: Arc::new(start) };
            let client = Arc::new(client);
            let tasks: Vec<_> =
                (0..shared.tasks).map(|_| client.start.env.spawn(client.clone().work())).collect();
            for task in tasks {
                // It only ends with its process.
                let _ = task.await;
            }
        })
    }

    fn change(&self, mut request: ObjectRequest) -> ObjectRequest {
        // Failed guards are identified by their part's number, so a guard that always holds replaces them.
        for part in &mut request.ops {
            let Op::CmpXattr { name, op, value } = &mut part.op else { continue };
            let is_left_out = match self.breach {
                Some(Breach::UnguardedAppends) => name == "striper.size" && *op == CmpOp::Eq,
                Some(Breach::UnguardedEpochs) => name == "striper.epoch" && *op == CmpOp::Eq,
                None => false,
            };
            if is_left_out {
                (*op, *value) = (CmpOp::Gte, CmpValue::U64(u64::MAX));
            }
        }
        request
    }

    fn op_timeout(&self) -> Option<Nanos> {
        // The last reads have no timeout.
        self.shared.op_timeout.filter(|_| !self.shared.history.lock().finishing)
    }

    fn ended(&mut self, place: usize) {
        self.shared.history.lock().process_died(place);
    }

    fn finish(&mut self) {
        self.shared.history.lock().finishing = true;
    }

    fn last_looks(&mut self, start: ProcessContext) -> BoxedFuture {
        let shared = self.shared.clone();
        Box::pin(async move {
            let Some(pool) = open_pool(&start).await else { return };
            let striper = Striper::new(pool, Arc::new(TaskClock(start.env.clone())));
            let client = Client { shared: shared.clone(), striper, start: Arc::new(start) };
            if let Err(error) = client.look_at_all().await {
                shared.history.lock().broken("a striped object can't be read at the end", error.to_string());
            }
        })
    }

    fn broken(&self) -> Option<GuaranteeViolation> {
        self.shared.history.lock().broken.clone()
    }

    fn describe(&self) -> String {
        self.shared.history.lock().describe()
    }
}

/// The clocks and random numbers of a process.
struct TaskClock(Env);

impl Clock for TaskClock {
    fn now(&self) -> Duration {
        self.0.now().since_origin()
    }

    fn wall_ns(&self) -> u64 {
        self.0.wall_ns()
    }

    fn random_u64(&self) -> Result<u64> {
        self.0.random_u64().map_err(|_| Errno::EIO.into())
    }
}

/// The pool, once the process has a map.
async fn open_pool(start: &ProcessContext) -> Option<IoCtx> {
    let engine = start.cluster.engine();
    while engine.pool_id(POOL).is_none() {
        start.env.sleep(LOOK).await;
    }
    let pool = engine.pool_id(POOL)?;
    Some(IoCtx::new(engine.clone(), pool, POOL).with_namespace(NAMESPACE))
}

/// A process.
struct Client {
    shared: Arc<Shared>,
    striper: Striper,
    start: Arc<ProcessContext>,
}

/// The outcome of an operation with this result.
fn outcome(kind: &Kind, result: &Result<()>) -> Option<Outcome> {
    let Err(error) = result else { return Some(Outcome::Done) };
    let cuts_only = matches!(kind, Kind::Remove | Kind::Truncate(_));
    match error.errno() {
        Errno::ENOENT | Errno::EBUSY if cuts_only => Some(Outcome::Nothing),
        Errno::EBUSY | Errno::EAGAIN | Errno::ENOSPC => Some(Outcome::Unknown),
        Errno::ECANCELED if matches!(kind, Kind::Append(_)) => Some(Outcome::Unknown),
        _ if is_over(error) => Some(Outcome::Unknown),
        _ => None,
    }
}

/// Whether an error means that the session is over.
fn is_over(error: &Error) -> bool {
    matches!(error, Error::Blocklisted | Error::TimedOut(_) | Error::ShutDown)
        || [Errno::ESTALE, Errno::EBLOCKLISTED].contains(&error.errno())
}

impl Client {
    fn scheduler(&self) -> &Scheduler {
        &self.start.scheduler
    }

    fn draw(&self, below: u64) -> u64 {
        self.start.env.random_u64().unwrap_or_default() % below.max(1)
    }

    /// Executes operations one after another.
    async fn work(self: Arc<Client>) {
        while !self.shared.history.lock().finishing {
            self.start.env.sleep(self.start.env.jitter(self.shared.think * 2)).await;
            let object = self.draw(self.shared.objects);
            if self.draw(3) == 0 {
                self.read(object).await;
            } else {
                self.change(object).await;
            }
        }
    }

    /// A position around a boundary of units, in cells.
    fn position(&self) -> u64 {
        let boundary = self.draw(UNITS) * UNIT / CELL;
        (boundary + self.draw(2 * MARGIN)).saturating_sub(MARGIN)
    }

    /// A length. Most are short; some exceed a unit.
    fn len(&self) -> u64 {
        if self.draw(16) == 0 { UNIT / CELL + self.draw(2 * MARGIN) } else { 1 + self.draw(2 * MARGIN) }
    }

    /// An operation. Objects with even numbers are appended to more often, others are overwritten.
    fn kind(&self, object: u64) -> Kind {
        let draw = self.draw(100);
        match (object % 2, draw) {
            (0, 0..55) | (_, 0..12) => Kind::Append(self.len()),
            (0, 55..70) | (_, 12..70) => Kind::Write(self.position(), self.len()),
            (_, 0..84) => Kind::Truncate(self.position()),
            (_, 84..90) => Kind::WriteFull(self.len()),
            _ => Kind::Remove,
        }
    }

    async fn change(&self, object: u64) {
        let kind = self.kind(object);
        if self.draw(8) == 0
            && let Ok(layout) =
                Layout::new(UNIT as u32, 1 + self.draw(3) as u32, (UNIT << self.draw(2)) as u32)
        {
            self.striper.set_layout(layout);
        }
        let number = self.shared.history.lock().begin(self.scheduler().now(), self.start.place, object, kind);
        let result = self.carry_out(object, kind, number).await;
        let mut history = self.shared.history.lock();
        match outcome(&kind, &result) {
            Some(outcome) => history.end(self.scheduler().now(), number, outcome),
            None => history.broken("an unexpected error of the striper", format!("{kind:?}: {result:?}")),
        }
    }

    async fn carry_out(&self, object: u64, kind: Kind, number: Number) -> Result<()> {
        let (striper, name) = (&self.striper, name(object));
        match kind {
            Kind::Write(at, len) => striper.write(&name, at * CELL, data(number, len)).await,
            Kind::WriteFull(len) => striper.write_full(&name, data(number, len)).await,
            Kind::Append(len) => striper.append(&name, data(number, len)).await,
            Kind::Truncate(len) => striper.truncate(&name, len * CELL).await,
            Kind::Remove => striper.remove(&name).await,
        }
    }

    async fn read(&self, object: u64) {
        let (from, len) = match self.draw(3) {
            0 => (0, WHOLE / CELL),
            _ => (self.position(), self.len()),
        };
        let _: Result<bool> = self.read_range(object, (from, len)).await;
    }

    /// Reads and checks; returns whether the object exists.
    async fn read_range(&self, object: u64, (from, len): (u64, u64)) -> Result<bool> {
        let begun = self.scheduler().now();
        let result = self.striper.read(&name(object), from * CELL, len * CELL).await;
        let now = self.scheduler().now();
        let mut history = self.shared.history.lock();
        match result {
            Ok(data) => history.read((begun, now), object, (from, len), Some(&data)),
            Err(error) if error.is_not_found() => {
                history.read((begun, now), object, (from, len), None);
                return Ok(false);
            }
            Err(error) if is_over(&error) || error.errno() == Errno::EBUSY => return Err(error),
            Err(error) => {
                history.broken("an unexpected error of the striper", format!("a read: {error:?}"));
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Reads and removes each object. If no process died and no operation failed, no piece is left.
    async fn look_at_all(&self) -> Result<()> {
        for object in 0..self.shared.objects {
            let mut exists = self.read_range(object, (0, WHOLE / CELL)).await;
            for _ in 0..LAST_ATTEMPTS {
                if exists.is_ok() {
                    break;
                }
                self.start.env.sleep(LOOK).await;
                exists = self.read_range(object, (0, WHOLE / CELL)).await;
            }
            let removed = self.striper.remove(&name(object)).await;
            match (exists?, removed) {
                // The remains of an incomplete removal are removed too, and no reader sees them.
                (_, Ok(())) => {}
                (false, Err(error)) if error.is_not_found() => {}
                (_, Err(error)) => return Err(error),
            }
        }
        let mut left = Vec::new();
        let mut pieces = self.striper.pool().list();
        while let Some(piece) = pieces.next().await? {
            left.push(piece.to_string());
        }
        self.shared.history.lock().check_leftover_pieces(&left);
        Ok(())
    }
}

fn name(object: u64) -> String {
    format!("striped{object}")
}

/// The data of an operation: each cell contains the operation's number and the cell's index in it.
fn data(number: Number, len: u64) -> Bytes {
    (0..len).flat_map(|index| number.cell(index).to_le_bytes()).collect::<Vec<u8>>().into()
}
