//! Object classes: named methods that run inside the OSD, in the request's transaction.

use crate::exec::pending::Pending;
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::op::{Op, OpResult};

/// What a method does with its object and input: the request's result code and the output.
type Run = fn(&mut Pending<'_>, &[u8]) -> Result<(i32, Bytes), Errno>;

struct Method {
    class: &'static str,
    name: &'static str,
    writes: bool,
    run: Run,
}

/// The built-in classes, with their methods.
const METHODS: &[Method] = &[
    Method { class: "hello", name: "say_hello", writes: false, run: say_hello },
    Method { class: "hello", name: "record_hello", writes: true, run: record_hello },
    Method { class: "hello", name: "replay", writes: false, run: replay },
];

fn find(class: &str, method: &str) -> Option<&'static Method> {
    METHODS.iter().find(|m| m.class == class && m.name == method)
}

/// Whether a method may change its object.
pub fn classes_may_write(class: &str, method: &str) -> bool {
    find(class, method).is_some_and(|m| m.writes)
}

/// Whether `op` calls a class or method that does not exist: EOPNOTSUPP for the whole request.
pub fn unknown_class(op: &Op) -> bool {
    matches!(op, Op::Call { class, method, .. } if find(class, method).is_none())
}

/// Calls a method.
pub(super) fn call(
    object: &mut Pending<'_>,
    class: &str,
    method: &str,
    input: &[u8],
) -> Result<OpResult, Errno> {
    let method = find(class, method).ok_or(Errno::EOPNOTSUPP)?;
    let (code, output) = (method.run)(object, input)?;
    Ok(OpResult { code, output })
}

/// The longest name that `hello` greets.
const MAX_NAME_BYTES: usize = 100;

fn greeting(name: &[u8]) -> Bytes {
    let name = if name.is_empty() { b"world" } else { name };
    Bytes::from([b"Hello, ", name, b"!"].concat())
}

fn say_hello(_object: &mut Pending<'_>, input: &[u8]) -> Result<(i32, Bytes), Errno> {
    if input.len() > MAX_NAME_BYTES {
        return Err(Errno::EINVAL);
    }
    Ok((0, greeting(input)))
}

fn record_hello(object: &mut Pending<'_>, input: &[u8]) -> Result<(i32, Bytes), Errno> {
    if object.exists() {
        return Err(Errno::EEXIST);
    }
    object.create();
    object.write_full(greeting(input));
    Ok((0, Bytes::new()))
}

fn replay(object: &mut Pending<'_>, _input: &[u8]) -> Result<(i32, Bytes), Errno> {
    Ok((0, object.read(0, 1100)?))
}
