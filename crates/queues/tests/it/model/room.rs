//! The room that gateways of the model work in: RADOS, outboxes, the topic's record, an endpoint, and a
//! scheduler that runs one action of one gateway at a time. It is deterministic: everything follows from the
//! seed.

use super::check::Check;
use super::rados::{Fail, Rados};
use nacre_queues::enqueue::OutboxEvent;
use nacre_queues::layout::QueueLayout;
use nacre_queues::name::SourceId;
use nacre_queues::op::{ObjectKey, ObjectOp, ObjectRead, ObjectReply};
use nacre_queues::record::{Event, EventId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A rule of the protocol that gateways break on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// The copy of a shard is made without its batches.
    DropAtReshard,
    /// Events are settled before the endpoint acknowledged them.
    TrimBeforeAck,
    /// Settling does not compare the owner.
    UnfencedTrim,
    /// Movers do not look at receipts.
    NoDedup,
    /// Movers read outboxes before the shard.
    StalePages,
    /// Generations are drained at the same time.
    IgnoreOlder,
    /// A generation is closed without removing the outbox records that it has.
    KeepReceiptsRecords,
    /// The next owner does not load parked events.
    ForgetParked,
}

/// What one gateway asks for.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Pause,
    /// A write, and the epoch under which its sender believes to own the object.
    Write(ObjectOp, Option<u64>),
    Read(ObjectRead),
    ReadOutbox(SourceId),
    RemoveOutbox(SourceId, Vec<EventId>),
    ReadTopic,
    WriteTopic {
        from: QueueLayout,
        to: QueueLayout,
    },
    /// Sends an event of the shard in this object.
    Push(Event, ObjectKey),
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Done,
    Failed(Fail),
    Reply(ObjectReply),
    Outbox(Vec<OutboxEvent>),
    Topic(QueueLayout),
}

/// Small, fast and good enough: SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// Everything that outlives gateways.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) rados: Rados,
    pub(crate) outboxes: BTreeMap<SourceId, Vec<OutboxEvent>>,
    pub(crate) layout: QueueLayout,
    pub(crate) random: Random,
    pub(crate) now_ns: u64,
    pub(crate) is_endpoint_alive: bool,
    /// Payloads that the endpoint refuses, whatever it is like.
    pub(crate) refused: Vec<Event>,
    pub(crate) mutation: Mutation,
    pub(crate) check: Check,
}

impl World {
    fn perform(&mut self, action: &Action, client: u64) -> Result<Answer, String> {
        Ok(match action {
            Action::Pause => Answer::Done,
            Action::Write(op, claim) => {
                let before = self.rados.objects.get(&op.object).cloned();
                match self.rados.apply(op, client) {
                    Ok(()) => {
                        self.check.written(op, *claim, before.as_ref(), &self.rados)?;
                        Answer::Done
                    }
                    Err(fail) => Answer::Failed(fail),
                }
            }
            Action::Read(read) => self.rados.read(read).map_or_else(Answer::Failed, Answer::Reply),
            Action::ReadOutbox(source) => {
                Answer::Outbox(self.outboxes.get(source).cloned().unwrap_or_default())
            }
            Action::RemoveOutbox(source, ids) => {
                if let Some(outbox) = self.outboxes.get_mut(source) {
                    outbox.retain(|record| !ids.contains(&record.id));
                }
                Answer::Done
            }
            Action::ReadTopic => Answer::Topic(self.layout.clone()),
            Action::WriteTopic { from, to } if *from == self.layout => {
                self.layout = to.clone();
                Answer::Done
            }
            Action::WriteTopic { .. } => Answer::Failed(Fail::Canceled),
            Action::Push(event, object) => {
                let is_refused = !event.replayed && self.refused.contains(event);
                if self.is_endpoint_alive && !is_refused {
                    self.check.delivered(event, self.rados.owner_of(object) == Some(client));
                    Answer::Done
                } else {
                    Answer::Failed(Fail::Endpoint)
                }
            }
        })
    }
}

type Running = Pin<Box<dyn Future<Output = ()>>>;
pub(crate) type Start = fn(Gateway) -> Running;

/// What a running gateway sees of the room.
#[derive(Clone)]
pub(crate) struct Gateway {
    world: Rc<RefCell<World>>,
    mailbox: Rc<RefCell<Mailbox>>,
    pub(crate) client: u64,
}

#[derive(Debug, Default)]
struct Mailbox {
    action: Option<Action>,
    answer: Option<Answer>,
}

struct Exchange {
    mailbox: Rc<RefCell<Mailbox>>,
    action: Option<Action>,
}

impl Future for Exchange {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        let action = self.action.take();
        let mut mailbox = self.mailbox.borrow_mut();
        if action.is_some() {
            mailbox.action = action;
            return Poll::Pending;
        }
        mailbox.answer.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Gateway {
    async fn ask(&self, action: Action) -> Answer {
        Exchange { mailbox: Rc::clone(&self.mailbox), action: Some(action) }.await
    }

    pub(crate) async fn pause(&self) {
        self.ask(Action::Pause).await;
    }

    async fn done(&self, action: Action) -> Result<(), Fail> {
        match self.ask(action).await {
            Answer::Done => Ok(()),
            Answer::Failed(fail) => Err(fail),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn write(&self, op: ObjectOp, claim: Option<u64>) -> Result<(), Fail> {
        self.done(Action::Write(op, claim)).await
    }

    pub(crate) async fn read(&self, read: ObjectRead) -> Result<ObjectReply, Fail> {
        match self.ask(Action::Read(read)).await {
            Answer::Reply(reply) => Ok(reply),
            Answer::Failed(fail) => Err(fail),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn outbox(&self, source: &SourceId) -> Vec<OutboxEvent> {
        match self.ask(Action::ReadOutbox(source.clone())).await {
            Answer::Outbox(events) => events,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn remove_outbox(&self, source: &SourceId, ids: Vec<EventId>) {
        self.ask(Action::RemoveOutbox(source.clone(), ids)).await;
    }

    pub(crate) async fn topic(&self) -> QueueLayout {
        match self.ask(Action::ReadTopic).await {
            Answer::Topic(layout) => layout,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn write_topic(&self, from: QueueLayout, to: QueueLayout) -> Result<(), Fail> {
        self.done(Action::WriteTopic { from, to }).await
    }

    pub(crate) async fn push(&self, event: Event, object: &ObjectKey) -> Result<(), Fail> {
        self.done(Action::Push(event, object.clone())).await
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.world.borrow_mut().random.below(bound)
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.world.borrow().now_ns
    }

    pub(crate) fn mutation(&self) -> Mutation {
        self.world.borrow().mutation
    }
}

struct Slot {
    start: Start,
    client: u64,
    running: Running,
    mailbox: Rc<RefCell<Mailbox>>,
}

/// The room with its gateways.
pub(crate) struct Room {
    pub(crate) world: Rc<RefCell<World>>,
    slots: Vec<Slot>,
    /// Actions of gateways that died, which may still arrive.
    floating: Vec<(Action, u64)>,
    next_client: u64,
}

impl Room {
    pub(crate) fn new(world: World, starts: &[Start]) -> Room {
        let world = Rc::new(RefCell::new(world));
        let mut room = Room { world, slots: Vec::new(), floating: Vec::new(), next_client: 100 };
        for start in starts {
            let slot = room.slot(*start);
            room.slots.push(slot);
        }
        room
    }

    fn slot(&mut self, start: Start) -> Slot {
        self.next_client += 1;
        let (client, mailbox) = (self.next_client, Rc::<RefCell<Mailbox>>::default());
        let gateway = Gateway { world: Rc::clone(&self.world), mailbox: Rc::clone(&mailbox), client };
        let mut slot = Slot { start, client, running: start(gateway), mailbox };
        slot.poll();
        slot
    }

    /// Performs the action that gateway `at` waits for, and runs it to its next one.
    pub(crate) fn step(&mut self, at: usize) -> Result<(), String> {
        let slot = &mut self.slots[at];
        let action = slot.mailbox.borrow_mut().action.take();
        let answer =
            self.world.borrow_mut().perform(&action.expect("a gateway always waits"), slot.client)?;
        slot.mailbox.borrow_mut().answer = Some(answer);
        slot.poll();
        Ok(())
    }

    pub(crate) fn gateways(&self) -> usize {
        self.slots.len()
    }

    /// Ends gateway `at` where it is, and starts another one in its place. What it last asked for may arrive
    /// later, or never. A push arrives at once or never: what reaches a consumer after the event was given up
    /// is out of order, and nothing in RADOS can prevent it.
    pub(crate) fn crash(&mut self, at: usize, arrives: bool) -> Result<(), String> {
        let (start, client) = (self.slots[at].start, self.slots[at].client);
        let action = self.slots[at].mailbox.borrow_mut().action.take();
        match action.filter(|_| arrives) {
            Some(push @ Action::Push(..)) => drop(self.world.borrow_mut().perform(&push, client)?),
            action => self.floating.extend(action.map(|action| (action, client))),
        }
        let slot = self.slot(start);
        self.slots[at] = slot;
        Ok(())
    }

    /// An action of a gateway that died arrives.
    pub(crate) fn arrive(&mut self, choice: u64) -> Result<(), String> {
        if self.floating.is_empty() {
            return Ok(());
        }
        let at = choice as usize % self.floating.len();
        let (action, client) = self.floating.swap_remove(at);
        self.world.borrow_mut().perform(&action, client).map(drop)
    }

    /// Leases end: of one object, or with `None` of all whose holders are dead.
    pub(crate) fn expire_leases(&mut self, choice: Option<u64>) {
        let alive: Vec<u64> = self.slots.iter().map(|slot| slot.client).collect();
        let mut world = self.world.borrow_mut();
        let count = world.rados.objects.len() as u64;
        for (at, object) in world.rados.objects.values_mut().enumerate() {
            let ends = match choice {
                Some(choice) => at as u64 == choice % count,
                None => object.locked_by.is_some_and(|holder| !alive.contains(&holder)),
            };
            if ends {
                object.locked_by = None;
            }
        }
    }
}

impl Slot {
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        assert!(self.running.as_mut().poll(&mut context).is_pending(), "gateways run for ever");
    }
}
