//! Striped objects: large ones that are stored as many objects of the pool, in libradosstriper's names and attributes.
//!
//! A striped object `NAME` is pieces `NAME.0000000000000000`, `….0000000000000001` and so on (hexadecimal). Attributes of
//! the first piece say how it is cut up and how long it is; `docs/format/striper.md` has them all. Nobody takes a lock.
//! What keeps clients apart are guards: every request names what it relies on, and the OSD refuses it where that is not so
//! any more. All of it is made of ordinary operations; there is no object class of our own.
//!
//! # The epoch
//!
//! An object has an epoch, a number that changes with every removal and truncation. Requests to the first piece hold in
//! one epoch only. A piece carries the epoch of the last client that began to write it, and refuses requests of earlier
//! ones: a removal that was held up can't take what was written after somebody else had carried it out. A random number tells an
//! object from others of its name: a piece of another one is refused, and removed where that one is gone for good.
//!
//! # What a write does
//!
//! In the steady state two requests, sent at once: the data to its piece, and to the first piece the size as a maximum
//! (*where the epoch is this and the size less than E, it becomes E*) or, where the size is that large already, just the
//! guard. Where the piece is the first one, both are one request. The write returns when both are durable: data and size.
//! Small writes in flight that follow one another share both; a large one that has the object to itself goes in parts,
//! all at once. A write may be seen in parts until it has returned.
//!
//! Before a piece is written, the number of pieces that may exist is *announced* in the first piece, ahead of need and in
//! steps that grow with the object, so that the steady state does not wait for it. Hence, whatever a crash leaves: every
//! piece has a number below the one announced, and the first piece exists, for it is made first and removed last.
//!
//! # What a crash leaves
//!
//! - In a write: some of its pieces, its size or not. What the size covers and was not written reads as zeros; a piece
//!   beyond the size is not seen unless the object grows over it, and goes with the object.
//! - In an append: a hole of its length. It first claims its range (*where the size is S, it becomes S + length*), which
//!   one of several appenders gets, and then writes it.
//! - In a removal or truncation: its first request ended the epoch and noted in the first piece what is to be done, the
//!   new size with it. From then on the object is gone or has that size. Whoever next removes, truncates or writes it
//!   removes the rest of the pieces first. The note goes last, with the epoch (a truncation), or with the first piece.
//! - No lock, for there are none.
//!
//! What is left to chance: a write of another client that is in flight while an object is removed may make a piece after
//! the removal passed it by. Its writer remembers each piece that it makes until a later request has found the epoch to hold,
//! and takes back those that it does not: with that write or the next. One that dies before leaves the piece, a stray: whoever writes to it
//! or cuts it finds that it is of another object, or of too early an epoch, and removes it first. A truncation
//! makes absent pieces that it cuts, so that they carry its epoch. Where another client has ended it and removed the object
//! meanwhile, the client takes these pieces back; one that dies before leaves them. Within one handle removals and
//! truncations fail with EBUSY while writes are in flight, and the other way round, as libradosstriper's do.
//!
//! # What a read does
//!
//! It reads the pieces and, at the same time, the first piece's attributes. An epoch that is not the expected one makes it
//! start again; what is absent reads as zeros up to the size, if the epoch holds still. Data is taken only from reads that were sent after a size
//! that covers it was known: what a write has returned is never seen as a hole.
//!
//! # What it must not know
//!
//! Which engine it stands on, sockets, threads, and clocks but for the [`Clock`] that it is given: all of it runs in the simulator as
//! it is.

/// Counts for tests that damage what is decoded.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

mod clock;
mod layout;
mod meta;
mod object;
mod parts;
mod pieces;
mod read;
mod remove;
#[cfg(test)]
mod tests;
mod write;

pub use clock::Clock;
pub use layout::{Layout, MIN_STRIPE_UNIT, PieceExtent};

use bytes::Bytes;
use meta::{Meta, is_hidden, of_first_piece, piece_name};
use nacre_engine::{Error, IoCtx, Lister, Pending, Result, WriteOp};
use nacre_types::ObjectId;
use nacre_types::errno::Errno;
use object::Object;
use parking_lot::Mutex;
use parts::Verdict;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// How often something is tried anew when the object changed under it, before EBUSY. Each time means that another client
/// got through.
const ATTEMPTS: usize = 1000;
/// Objects remembered by a handle, beside those in use.
const REMEMBERED: usize = 256;

/// A handle on a pool's striped objects. Cheap to clone.
#[derive(Clone)]
pub struct Striper {
    inner: Arc<Inner>,
}

struct Inner {
    pool: IoCtx,
    clock: Arc<dyn Clock>,
    layout: Mutex<Layout>,
    objects: Mutex<BTreeMap<String, Arc<Object>>>,
}

/// What a first piece says.
#[derive(Debug)]
struct Loaded {
    meta: Meta,
    mtime_ns: u64,
    attrs: BTreeMap<Bytes, Bytes>,
}

/// What there is to know of a striped object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripedStat {
    /// Size in bytes.
    pub size: u64,
    /// When it was last changed, nanoseconds since 1970.
    pub mtime_ns: u64,
    /// How it is cut up.
    pub layout: Layout,
}

impl Striper {
    /// A handle on the striped objects of a pool, in the context's namespace, with the default layout for new ones.
    pub fn new(pool: IoCtx, clock: Arc<dyn Clock>) -> Striper {
        let (layout, objects) = (Mutex::default(), Mutex::default());
        Striper { inner: Arc::new(Inner { pool, clock, layout, objects }) }
    }

    /// The pool.
    pub fn pool(&self) -> &IoCtx {
        &self.inner.pool
    }

    /// The layout of objects that are made from now on. Those that exist keep theirs.
    pub fn layout(&self) -> Layout {
        *self.inner.layout.lock()
    }

    /// Changes the layout of objects that are made from now on. One whose sizes do not fit fails then, with EINVAL.
    pub fn set_layout(&self, layout: Layout) {
        *self.inner.layout.lock() = layout;
    }

    /// Writes at `offset`, making the object where there is none. Done when data and size are durable on all in-sync
    /// replicas.
    pub fn write(&self, name: &str, offset: u64, data: impl Into<Bytes>) -> Pending<()> {
        self.start(self.inner.clone().write(name.to_owned(), offset, data.into()))
    }

    /// Replaces the data. The object is empty in between.
    pub fn write_full(&self, name: &str, data: impl Into<Bytes>) -> Pending<()> {
        self.start(self.inner.clone().write_full(name.to_owned(), data.into()))
    }

    /// Writes at the end, making the object where there is none. Appends of several clients never overlap.
    pub fn append(&self, name: &str, data: impl Into<Bytes>) -> Pending<()> {
        self.start(self.inner.clone().append(name.to_owned(), data.into()))
    }

    /// Reads at most `len` bytes from `offset`; short at the object's end. Holes read as zeros.
    pub fn read(&self, name: &str, offset: u64, len: u64) -> Pending<Bytes> {
        self.read_runs(name, offset, len).then(|runs| runs.map(read::joined))
    }

    /// As [`Striper::read`], in runs as they came, which follow one another.
    pub fn read_runs(&self, name: &str, offset: u64, len: u64) -> Pending<Vec<Bytes>> {
        self.start(self.inner.clone().read(name.to_owned(), offset, len))
    }

    /// Removes the object with all pieces; ENOENT where there is none, EBUSY where this handle is writing it.
    pub fn remove(&self, name: &str) -> Pending<()> {
        self.start(self.inner.clone().remove(name.to_owned()))
    }

    /// Sets the size in bytes; ENOENT where there is no object, EBUSY where this handle is writing it.
    pub fn truncate(&self, name: &str, size: u64) -> Pending<()> {
        self.start(self.inner.clone().truncate(name.to_owned(), size))
    }

    /// Size, time and layout; ENOENT where there is no object.
    pub fn stat(&self, name: &str) -> Pending<StripedStat> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        self.start(async move {
            let Loaded { meta, mtime_ns, .. } = inner.look(&name).await?;
            Ok(StripedStat { size: meta.size, mtime_ns, layout: meta.layout })
        })
    }

    /// An attribute's value, one of the striper's own too; ENODATA where it is absent.
    pub fn get_xattr(&self, name: &str, attr: &str) -> Pending<Bytes> {
        let (inner, name, attr) = (self.inner.clone(), name.to_owned(), attr.to_owned());
        self.start(async move {
            let mut loaded = inner.look(&name).await?;
            Ok(loaded.attrs.remove(attr.as_bytes()).ok_or(Errno::ENODATA)?)
        })
    }

    /// All attributes but the striper's own.
    pub fn get_xattrs(&self, name: &str) -> Pending<BTreeMap<Bytes, Bytes>> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        self.start(async move {
            let mut attrs = inner.look(&name).await?.attrs;
            attrs.retain(|attr, _| !is_hidden(attr));
            Ok(attrs)
        })
    }

    /// Sets an attribute; ENOENT where there is no object, EINVAL for the striper's own.
    pub fn set_xattr(&self, name: &str, attr: &str, value: impl Into<Bytes>) -> Pending<()> {
        let value = value.into();
        self.change_xattr(name, attr, move |op, attr| {
            op.set_xattr(attr, value.clone());
        })
    }

    /// Removes an attribute; ENOENT where there is no object, EINVAL for the striper's own.
    pub fn rm_xattr(&self, name: &str, attr: &str) -> Pending<()> {
        self.change_xattr(name, attr, |op, attr| {
            op.rm_xattr(attr);
        })
    }

    fn change_xattr(
        &self,
        name: &str,
        attr: &str,
        change: impl Fn(&mut WriteOp, &str) + Send + 'static,
    ) -> Pending<()> {
        if is_hidden(attr.as_bytes()) {
            let detail = format!("attribute '{attr}' is the striper's own");
            return Pending::ready(Err(Error::Invalid { errno: Errno::EINVAL, detail }));
        }
        let (inner, name, attr) = (self.inner.clone(), name.to_owned(), attr.to_owned());
        self.start(async move {
            for _ in 0..ATTEMPTS {
                let mut op = parts::in_epoch(inner.look(&name).await?.meta.epoch);
                change(&mut op, &attr);
                let answer = inner.pool.operate(&piece_name(&name, 0), op).await;
                if let Verdict::Done = parts::verdict(answer)? {
                    return Ok(());
                }
            }
            Err(Errno::EBUSY.into())
        })
    }

    /// Lists the striped objects of the context's namespace.
    pub fn list(&self) -> StripedLister {
        StripedLister { objects: self.inner.pool.list() }
    }

    /// Lists the striped objects of all namespaces of a pool.
    pub fn list_all(pool: &IoCtx) -> StripedLister {
        StripedLister { objects: pool.list_all() }
    }

    /// Calls `done` with an operation's outcome: on the engine's thread, where it must be short and never block, or at
    /// once where the outcome is known.
    pub fn when_done<T: Send + 'static>(
        &self,
        mut pending: Pending<T>,
        done: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        match Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => done(outcome),
            Poll::Pending => self.inner.pool.engine().spawn(Box::pin(async move { done(pending.await) })),
        }
    }

    /// Starts `work` on the calling thread and goes on with it on the engine's.
    fn start<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Pending<T> {
        let mut work: Pin<Box<dyn Future<Output = Result<T>> + Send>> = Box::pin(work);
        // Requests leave at once. Whoever goes on polls again, so that nothing that arrives in between is missed.
        if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Pending::ready(result);
        }
        let (completer, pending) = Pending::channel();
        self.inner.pool.engine().spawn(Box::pin(async move { completer.complete(work.await) }));
        pending
    }
}

impl std::fmt::Debug for Striper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Striper")
            .field("pool", &self.inner.pool.pool_name())
            .field("layout", &self.layout())
            .finish()
    }
}

/// A listing of striped objects under way.
pub struct StripedLister {
    objects: Lister,
}

impl StripedLister {
    /// The next one's name, `None` at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        Ok(self.next_object().await?.map(|(name, _)| name))
    }

    /// The next one's name and its first piece.
    pub async fn next_object(&mut self) -> Result<Option<(String, ObjectId)>> {
        while let Some(object) = self.objects.next().await? {
            if let Some(name) = of_first_piece(object.name()) {
                return Ok(Some((name.to_owned(), object)));
            }
        }
        Ok(None)
    }
}

impl Inner {
    /// The object's entry, whether it exists or not.
    fn object(&self, name: &str) -> Result<Arc<Object>> {
        // Names too long for their pieces fail here, before anything is sent.
        self.pool.object(&piece_name(name, 0))?;
        if name.is_empty() {
            return Err(Error::Invalid { errno: Errno::EINVAL, detail: "the object's name is empty".into() });
        }
        let mut objects = self.objects.lock();
        if let Some(object) = objects.get(name) {
            return Ok(object.clone());
        }
        if objects.len() >= REMEMBERED {
            // All that is not in use: what was known is asked for again.
            objects.retain(|_, object| Arc::strong_count(object) > 1);
        }
        let object = Arc::new(Object::new(name, self.clock.clone()));
        objects.insert(name.to_owned(), object.clone());
        Ok(object)
    }
}

/// EFBIG where a range ends beyond what a size can be.
fn check_range(offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64).map(i64::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => {
            let detail = format!("{len} bytes at {offset} exceed the largest size");
            Err(Error::Invalid { errno: Errno::EFBIG, detail })
        }
    }
}
