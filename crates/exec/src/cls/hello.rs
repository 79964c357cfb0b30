//! Class `hello`: Ceph's example class.

use super::access::{PROMOTE, READ, WRITE};
use super::{Class, Method, MethodContext, done};
use bytes::Bytes;
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

pub(super) struct Hello;

impl Class for Hello {
    fn name(&self) -> &'static str {
        "hello"
    }

    fn methods(&self) -> &'static [Method] {
        const METHODS: &[Method] = &[
            Method { name: "say_hello", access: READ, run: say_hello },
            Method { name: "record_hello", access: WRITE | PROMOTE, run: record_hello },
            Method { name: "write_return_data", access: WRITE, run: write_return_data },
            // The method's name in clients before Octopus.
            Method { name: "writes_dont_return_data", access: WRITE, run: write_return_data },
            Method { name: "write_too_much_return_data", access: WRITE, run: write_too_much_return_data },
            Method { name: "replay", access: READ, run: replay },
            Method { name: "turn_it_to_11", access: READ | WRITE | PROMOTE, run: turn_it_to_11 },
            Method { name: "bad_reader", access: WRITE, run: bad_reader },
            Method { name: "bad_writer", access: READ, run: bad_writer },
        ];
        METHODS
    }
}

/// The maximum length of a name.
const MAX_NAME_BYTES: usize = 100;
/// Maximum number of bytes read of a recorded greeting.
const MAX_GREETING_BYTES: u64 = 1100;
/// The code that writing methods return.
const ANSWER: i32 = 42;

fn greeting(name: &[u8]) -> Result<Bytes, Errno> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Errno::EINVAL);
    }
    let name = if name.is_empty() { b"world" } else { name };
    Ok([b"Hello, ", name, b"!"].concat().into())
}

fn say_hello(_object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    Ok(OpResult::output(greeting(input)?))
}

fn record_hello(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    let greeting = greeting(input)?;
    if object.exists() {
        return Err(Errno::EEXIST);
    }
    object.write_full(greeting)?;
    let origin = object.origin_text();
    object.set_xattr("said_by", origin)?;
    done()
}

fn write_return_data(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    object.set_xattr("foo", "bar")?;
    if !input.is_empty() {
        // A failure may have an output.
        let output = Bytes::from_static(b"too much input data!");
        return Ok(OpResult { code: Errno::EINVAL.negated(), output });
    }
    Ok(OpResult { code: ANSWER, output: Bytes::from_static(b"you might see this") })
}

fn write_too_much_return_data(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    object.set_xattr("foo", "bar")?;
    if !input.is_empty() {
        let output = Bytes::from_static(b"too much input data!");
        return Ok(OpResult { code: Errno::EINVAL.negated(), output });
    }
    Ok(OpResult {
        code: ANSWER,
        output: "you should not see this, it is too long to see\n".repeat(10).into(),
    })
}

fn replay(object: &mut MethodContext<'_, '_>, _input: &Bytes) -> Result<OpResult, Errno> {
    Ok(OpResult::output(object.read(0, MAX_GREETING_BYTES)?))
}

fn turn_it_to_11(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    if !input.is_empty() {
        return Err(Errno::EINVAL);
    }
    let loud = object.read(0, MAX_GREETING_BYTES)?.to_ascii_uppercase();
    object.write_full(loud.into())?;
    let origin = object.origin_text();
    object.set_xattr("amplified_by", origin)?;
    done()
}

fn bad_reader(object: &mut MethodContext<'_, '_>, _input: &Bytes) -> Result<OpResult, Errno> {
    Ok(OpResult::output(object.read(0, 100)?))
}

fn bad_writer(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    object.write_full(input.clone())?;
    done()
}
