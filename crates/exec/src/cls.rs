//! Object classes: named methods that run inside the OSD, in the request's transaction.
//!
//! A class is a [`Class`] in [`CLASSES`], its only registration. Inputs, outputs and stored attributes are in Ceph's encodings
//! ([`nacre_types::cls`]), because unmodified programs send them. A method declares how it uses its object ([`access`]); one that does more
//! fails with EIO and changes nothing, as in Ceph.

mod hello;
mod lock;
mod numops;
mod refcount;
#[cfg(test)]
mod tests;
mod version;

use crate::{OpContext, Origin, xattr};
use bytes::Bytes;
use nacre_types::ceph::{CephEncoding, SessionAddr, SessionName, UTime};
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

/// How a method uses its object (`CLS_METHOD_*`), as bits.
pub mod access {
    /// The method reads the object.
    pub const READ: u8 = 0x1;
    /// The method changes the object.
    pub const WRITE: u8 = 0x2;
    /// A cache tier promotes the object before the method runs.
    pub const PROMOTE: u8 = 0x8;
}

/// A built-in object class.
trait Class: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its methods.
    fn methods(&self) -> &'static [Method];
}

/// Runs a method. Returns the request's result code, which may be negative, with an output; or only an error.
type Run = fn(&mut MethodContext<'_, '_>, &Bytes) -> Result<OpResult, Errno>;

/// A method of a class.
struct Method {
    name: &'static str,
    access: u8,
    run: Run,
}

/// All classes.
static CLASSES: &[&dyn Class] =
    &[&lock::Lock, &hello::Hello, &version::Version, &refcount::RefCount, &numops::NumOps];

fn find(class: &str, method: &str) -> Option<&'static Method> {
    let class = CLASSES.iter().find(|known| known.name() == class)?;
    class.methods().iter().find(|known| known.name == method)
}

/// Returns the declared [`access`] of a method, or `None` if there is no such class or method.
pub fn method_access(class: &str, method: &str) -> Option<u8> {
    find(class, method).map(|method| method.access)
}

/// Returns the names of all classes.
pub fn names() -> impl Iterator<Item = &'static str> {
    CLASSES.iter().map(|class| class.name())
}

/// Calls a method.
pub(crate) fn call(
    object: &mut OpContext<'_>,
    class: &str,
    method: &str,
    input: &Bytes,
) -> Result<OpResult, Errno> {
    let found = find(class, method).ok_or(Errno::EOPNOTSUPP)?;
    let mut context = MethodContext { object, reads: false, writes: false };
    let outcome = (found.run)(&mut context, input);
    let undeclared = context.reads && found.access & access::READ == 0
        || context.writes && found.access & access::WRITE == 0;
    if undeclared {
        tracing::error!(class, method, "the method does what it is not registered for");
        return Err(Errno::EIO);
    }
    outcome
}

/// The object as a method sees it, with the changes of earlier ops of the request.
struct MethodContext<'p, 'a> {
    object: &'p mut OpContext<'a>,
    reads: bool,
    writes: bool,
}

impl MethodContext<'_, '_> {
    /// Whether the object exists. This alone does not count as a read of the object.
    fn exists(&self) -> bool {
        self.object.exists()
    }

    /// Reads data at `offset`, less than `len` at the object's end.
    fn read(&mut self, offset: u64, len: u64) -> Result<Bytes, Errno> {
        self.reads = true;
        self.object.read(offset, len)
    }

    /// Returns an attribute, or `None` if it is absent. Fails with ENOENT if the object is absent.
    fn get_xattr(&mut self, name: &str) -> Result<Option<Bytes>, Errno> {
        self.reads = true;
        self.object.user_attr(name)
    }

    /// Returns all attributes in order. Fails with ENOENT if the object is absent.
    fn get_xattrs(&mut self) -> Result<Vec<(String, Bytes)>, Errno> {
        self.reads = true;
        self.object.user_attrs()
    }

    /// Returns an attribute with one of the class's structures. Fails with EIO if it does not decode.
    fn get_decoded<T: CephEncoding>(&mut self, name: &str) -> Result<Option<T>, Errno> {
        let Some(stored) = self.get_xattr(name)? else { return Ok(None) };
        let decoded = T::from_bytes(&stored).map_err(|error| {
            tracing::error!(attribute = name, %error, "what an object class stored is corrupt");
            Errno::EIO
        })?;
        Ok(Some(decoded))
    }

    /// Sets an attribute, and creates the object if needed.
    fn set_xattr(&mut self, name: &str, value: impl Into<Bytes>) -> Result<(), Errno> {
        self.writes = true;
        xattr::set(self.object, name, value.into())
    }

    /// Replaces the object's data.
    fn write_full(&mut self, data: Bytes) -> Result<(), Errno> {
        self.writes = true;
        if data.len() as u64 > self.object.limits().max_object_size_bytes {
            return Err(Errno::EFBIG);
        }
        self.object.create();
        self.object.write_full(data.into());
        Ok(())
    }

    /// Removes the object. Fails with ENOENT if it is absent.
    fn remove(&mut self) -> Result<(), Errno> {
        self.writes = true;
        if !self.object.exists() {
            return Err(Errno::ENOENT);
        }
        self.object.remove();
        Ok(())
    }

    /// Returns a value of the object's omap.
    fn omap_get(&mut self, key: &Bytes) -> Result<Option<Bytes>, Errno> {
        self.reads = true;
        let found = self.object.omap_values(std::slice::from_ref(key))?;
        Ok(found.into_iter().next().map(|(_, value)| value))
    }

    /// Sets a value of the object's omap, and creates the object if needed.
    fn omap_set(&mut self, key: Bytes, value: Bytes) {
        self.writes = true;
        self.object.create();
        self.object.omap_set(vec![(key, value)]);
    }

    /// The caller's session and address.
    fn origin(&self) -> (SessionName, SessionAddr) {
        let Origin { client, ip } = self.object.origin();
        (SessionName::client(client), SessionAddr::client(ip, client))
    }

    /// The caller, as Ceph prints it: `client.4123 127.0.0.1:0/4123`.
    fn origin_text(&self) -> String {
        let (name, addr) = self.origin();
        format!("{name} {addr}")
    }

    /// Returns a new unique identifier.
    fn fresh_uuid(&self) -> uuid::Uuid {
        self.object.fresh_uuid()
    }

    /// The time of day.
    fn now(&self) -> UTime {
        UTime::from_ns(self.object.wall_ns())
    }
}

/// Returns success without output.
fn done() -> Result<OpResult, Errno> {
    Ok(OpResult::default())
}

/// Decodes a method's input. Fails with EINVAL.
fn input<T: CephEncoding>(bytes: &[u8]) -> Result<T, Errno> {
    T::from_bytes(bytes).map_err(|_| Errno::EINVAL)
}
