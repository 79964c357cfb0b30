//! Striped objects: large objects stored as many objects of the pool, with libradosstriper's names and attributes.
//!
//! A striped object `NAME` consists of the pieces `NAME.0000000000000000`, `….0000000000000001` and so on (hexadecimal).
//! Attributes of the first piece describe its layout and size; `docs/format/striper.md` lists them all. No locks are taken.
//! Concurrent clients are kept apart by guards: every request names the state that it relies on, and the OSD refuses the
//! request if that state has changed. All requests are ordinary operations; there is no object class for striping.
//!
//! # The epoch
//!
//! An object has an epoch, a number that changes with every removal and with every truncation that shrinks the object.
//! Requests to the first piece are valid in one epoch only. Every other piece carries the epoch of the last client that took
//! it, and refuses requests of earlier epochs: a delayed removal can't remove data that was written after another client had
//! completed the removal. A random number distinguishes an object from other objects with the same name. A piece of another
//! object is refused; it is removed if that object no longer exists.
//!
//! # What a write does
//!
//! In the steady state a write is two requests, sent together: the data to its piece, and to the first piece either the size as a
//! maximum (*if the epoch is this and the size less than E, set it to E*) or, if the size is known to be large enough, only the
//! guard. If the piece is the first one, both are one request. The write returns when both data and size are durable.
//! Small sequential writes in flight share both requests. A large write that has the object to itself is sent in parts, all at
//! once. Until a write has returned, readers may see parts of it.
//!
//! Before a piece is written, the number of pieces that may exist is *announced* in the first piece, ahead of need and in
//! steps that grow with the object, so that the steady state does not wait for it. The first piece is created first and removed
//! last. So after any crash the first piece exists, and every piece has a number below the announced one.
//!
//! # What a crash leaves
//!
//! - In a write: the pieces and the size may each have been written or not. A range below the size that was not written reads
//!   as zeros. A piece beyond the size is not visible unless the object grows over it, and is removed with the object.
//! - In an append: a hole of its length. An append first claims its range (*if the size is S, set it to S + length*), which
//!   only one of several concurrent appends can do, and then writes it.
//! - In a removal or truncation: its first request ended the epoch and recorded the operation in the first piece, with the
//!   new size of a truncation. From then on the object is removed or has that size. The next client that removes, truncates
//!   or writes it first completes the work on the other pieces. The record is removed last: together with a new epoch
//!   (truncation) or with the first piece (removal).
//! - No lock is left, because none is taken.
//!
//! A race remains: a write of another client that is in flight while an object is removed may create a piece after the
//! removal has passed it. The writer remembers each piece that it creates until a later request has confirmed the epoch. It
//! takes back (removes) pieces whose epoch has passed, with that write or the next one. If it dies before that, the piece
//! remains as a stray. The next client that writes or cuts this piece finds that it belongs to another object or has too
//! early an epoch, and removes it first. A truncation creates the absent pieces that it cuts, so that they carry its epoch.
//! If another client has completed the truncation and removed the object meanwhile, the client takes these pieces back; if it
//! dies before that, they remain. A read takes such pieces for absent ones. Within one handle, removals and truncations fail
//! with EBUSY while writes are in flight, and vice versa, as in libradosstriper.
//!
//! # What a read does
//!
//! A read reads the pieces and, at the same time, the first piece's attributes. If the epoch is not the expected one, it
//! starts again. Absent data reads as zeros up to the size, if the epoch still holds after the read. Data is only used from
//! reads that were sent after a size that covers it was known, so the data of a completed write is never read as a hole.
//!
//! # What it must not know
//!
//! The engine that it runs on, sockets, threads, and any clock other than the given [`Clock`]. The same code runs in the
//! simulator.

/// Counts allocations for the tests that damage encoded data.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nacre_fuzz::CountingAllocator = nacre_fuzz::CountingAllocator;

mod clock;
mod guarded_ops;
mod lane;
mod layout;
mod meta;
mod object;
mod pieces;
mod read;
mod remove;
#[cfg(test)]
mod tests;
mod write;

pub use clock::Clock;
pub use layout::{Layout, MIN_STRIPE_UNIT, PieceExtent};

use bytes::Bytes;
use guarded_ops::GuardOutcome;
use meta::{Meta, is_hidden, piece_name, striped_name};
use nacre_engine::{Error, IoCtx, Lister, Pending, Result, WriteOp};
use nacre_types::ObjectId;
use nacre_types::errno::Errno;
use object::Object;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Attempts before EBUSY if the object changes during each attempt. Each failed attempt means that another client succeeded.
const MAX_ATTEMPTS: usize = 1000;
/// Number of objects that a handle remembers besides those in use.
const MAX_CACHED_OBJECTS: usize = 256;

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

/// The contents of a first piece's attributes.
#[derive(Debug)]
struct LoadedMeta {
    meta: Meta,
    mtime_ns: u64,
    attrs: BTreeMap<Bytes, Bytes>,
}

/// Properties of a striped object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripedStat {
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub mtime_ns: u64,
    /// The layout.
    pub layout: Layout,
}

impl Striper {
    /// Creates a handle on the striped objects of a pool, in the context's namespace, with the default layout for new objects.
    pub fn new(pool: IoCtx, clock: Arc<dyn Clock>) -> Striper {
        let (layout, objects) = (Mutex::default(), Mutex::default());
        Striper { inner: Arc::new(Inner { pool, clock, layout, objects }) }
    }

    /// The pool.
    pub fn pool(&self) -> &IoCtx {
        &self.inner.pool
    }

    /// The layout of new objects. Existing objects keep their layout.
    pub fn layout(&self) -> Layout {
        *self.inner.layout.lock()
    }

    /// Sets the layout of new objects. If its sizes do not fit together, creating an object fails with EINVAL.
    pub fn set_layout(&self, layout: Layout) {
        *self.inner.layout.lock() = layout;
    }

    /// Writes at `offset`; creates the object if it does not exist. Completes when data and size are durable on all in-sync
    /// replicas.
    pub fn write(&self, name: &str, offset: u64, data: impl Into<Bytes>) -> Pending<()> {
        self.start(self.inner.clone().write(name.to_owned(), offset, data.into()))
    }

    /// Replaces the data. The object is empty between truncation and write.
    pub fn write_full(&self, name: &str, data: impl Into<Bytes>) -> Pending<()> {
        self.start(self.inner.clone().write_full(name.to_owned(), data.into()))
    }

    /// Writes at the end; creates the object if it does not exist. Appends of several clients never overlap.
    pub fn append(&self, name: &str, data: impl Into<Bytes>) -> Pending<()> {
        self.start(self.inner.clone().append(name.to_owned(), data.into()))
    }

    /// Reads at most `len` bytes from `offset`. The result is short at the object's end. Holes read as zeros.
    pub fn read(&self, name: &str, offset: u64, len: u64) -> Pending<Bytes> {
        self.read_runs(name, offset, len).then(|runs| runs.map(read::join_buffers))
    }

    /// Like [`Striper::read`], but returns the consecutive buffers as received.
    pub fn read_runs(&self, name: &str, offset: u64, len: u64) -> Pending<Vec<Bytes>> {
        self.start(self.inner.clone().read(name.to_owned(), offset, len))
    }

    /// Removes the object with all its pieces. Fails with ENOENT if it does not exist, and with EBUSY while this handle
    /// writes it.
    pub fn remove(&self, name: &str) -> Pending<()> {
        self.start(self.inner.clone().remove(name.to_owned()))
    }

    /// Sets the size in bytes. Fails with ENOENT if the object does not exist, and with EBUSY while this handle writes it.
    pub fn truncate(&self, name: &str, size: u64) -> Pending<()> {
        self.start(self.inner.clone().truncate(name.to_owned(), size))
    }

    /// Size, time and layout. Fails with ENOENT if the object does not exist.
    pub fn stat(&self, name: &str) -> Pending<StripedStat> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        self.start(async move {
            let LoadedMeta { meta, mtime_ns, .. } = inner.load_existing(&name).await?;
            Ok(StripedStat { size: meta.size, mtime_ns, layout: meta.layout })
        })
    }

    /// The value of an attribute, including the striper's own. Fails with ENODATA if the attribute does not exist.
    pub fn get_xattr(&self, name: &str, attr: &str) -> Pending<Bytes> {
        let (inner, name, attr) = (self.inner.clone(), name.to_owned(), attr.to_owned());
        self.start(async move {
            let mut loaded = inner.load_existing(&name).await?;
            Ok(loaded.attrs.remove(attr.as_bytes()).ok_or(Errno::ENODATA)?)
        })
    }

    /// All attributes except the striper's own.
    pub fn get_xattrs(&self, name: &str) -> Pending<BTreeMap<Bytes, Bytes>> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        self.start(async move {
            let mut attrs = inner.load_existing(&name).await?.attrs;
            attrs.retain(|attr, _| !is_hidden(attr));
            Ok(attrs)
        })
    }

    /// Sets an attribute. Fails with ENOENT if the object does not exist, and with EINVAL for the striper's own attributes.
    pub fn set_xattr(&self, name: &str, attr: &str, value: impl Into<Bytes>) -> Pending<()> {
        let value = value.into();
        self.change_xattr(name, attr, move |op, attr| {
            op.set_xattr(attr, value.clone());
        })
    }

    /// Removes an attribute. Fails with ENOENT if the object does not exist, and with EINVAL for the striper's own attributes.
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
            for _ in 0..MAX_ATTEMPTS {
                let mut op = guarded_ops::in_epoch(inner.load_existing(&name).await?.meta.epoch);
                change(&mut op, &attr);
                let answer = inner.pool.operate(&piece_name(&name, 0), op).await;
                if let GuardOutcome::Done = guarded_ops::verdict(answer)? {
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

    /// Calls `done` with an operation's outcome: on the engine's thread, where it must be short and never block, or immediately
    /// if the outcome is known.
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

    /// Starts `work` on the calling thread and continues it on the engine's.
    fn start<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Pending<T> {
        let mut work: Pin<Box<dyn Future<Output = Result<T>> + Send>> = Box::pin(work);
        // The first poll sends the requests immediately. The spawned task polls again, so no reply in between is missed.
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

/// A listing of striped objects in progress.
pub struct StripedLister {
    objects: Lister,
}

impl StripedLister {
    /// The name of the next object, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<String>> {
        Ok(self.next_object().await?.map(|(name, _)| name))
    }

    /// The name of the next object and its first piece, or `None` at the end.
    pub async fn next_object(&mut self) -> Result<Option<(String, ObjectId)>> {
        while let Some(object) = self.objects.next().await? {
            if let Some(name) = striped_name(object.name()) {
                return Ok(Some((name.to_owned(), object)));
            }
        }
        Ok(None)
    }
}

impl Inner {
    /// The entry of an object, whether the object exists or not.
    fn object(&self, name: &str) -> Result<Arc<Object>> {
        // Fails for names that are too long for their pieces before any request is sent.
        self.pool.object(&piece_name(name, 0))?;
        if name.is_empty() {
            return Err(Error::Invalid { errno: Errno::EINVAL, detail: "the object's name is empty".into() });
        }
        let mut objects = self.objects.lock();
        if let Some(object) = objects.get(name) {
            return Ok(object.clone());
        }
        if objects.len() >= MAX_CACHED_OBJECTS {
            // Drops every entry that is not in use. Its state is loaded again when it is needed.
            objects.retain(|_, object| Arc::strong_count(object) > 1);
        }
        let object = Arc::new(Object::new(name, self.clock.clone()));
        objects.insert(name.to_owned(), object.clone());
        Ok(object)
    }
}

/// Fails with EFBIG if a range ends beyond the largest possible size.
fn check_range(offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64).map(i64::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => {
            let detail = format!("{len} bytes at {offset} exceed the largest size");
            Err(Error::Invalid { errno: Errno::EFBIG, detail })
        }
    }
}
