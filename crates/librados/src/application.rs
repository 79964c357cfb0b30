//! Applications of a pool and their metadata.

use crate::abi::{CStrPtr, Handle, OutBuf, OutPtr};
use crate::guard::{ApiResult, exports};
use crate::ioctx::{IOCTXS, IoCtxState};
use nacre_types::errno::Errno;
use nacre_types::pool::Pool;
use serde_json::{Value, json};
use std::ffi::c_int;
use std::sync::Arc;

fn pool(io: &IoCtxState) -> ApiResult<Arc<Pool>> {
    let id = io.ioctx.read().pool();
    Ok(io.client.osdmap()?.pools.get(&id).cloned().ok_or(Errno::ENOENT)?)
}

/// Runs a command on the pool and waits for the resulting map.
fn change(io: Handle, verb: &str, mut command: Value) -> ApiResult<c_int> {
    let io = IOCTXS.get(io)?;
    command["prefix"] = format!("osd pool application {verb}").into();
    command["pool"] = pool(&io)?.name.as_str().into();
    io.client.cluster()?.command(command.to_string(), Vec::new()).wait()?;
    io.client.newest_osdmap()?;
    Ok(0)
}

/// Fills a caller's buffer with texts, each with its zero. `len` is the buffer's length before the call and the required length
/// after it. ERANGE if that is more.
fn fill<'a>(
    buffer: OutBuf,
    len: OutPtr<usize>,
    texts: impl Iterator<Item = &'a String> + Clone,
) -> ApiResult<()> {
    let capacity = len.get().ok_or(Errno::EINVAL)?;
    let needed = texts.clone().map(|text| text.len() + 1).sum();
    len.set(needed);
    if needed > capacity {
        return Err(Errno::ERANGE.into());
    }
    buffer.fill_list(capacity, texts.map(String::as_str))?;
    Ok(())
}

exports! {
    /// Records that an application uses the pool. EPERM if another one does, unless forced.
    fn rados_application_enable(io: Handle, app_name: CStrPtr, force: c_int) -> c_int {
        change(io, "enable", json!({ "app": app_name.text()?, "yes_i_really_mean_it": force != 0 }))
    }

    /// The pool's applications.
    fn rados_application_list(io: Handle, values: OutBuf, values_len: OutPtr<usize>) -> c_int {
        fill(values, values_len, pool(&*IOCTXS.get(io)?)?.applications.keys())?;
        Ok(0)
    }

    /// A value of an application's metadata.
    fn rados_application_metadata_get(
        io: Handle,
        app_name: CStrPtr,
        key: CStrPtr,
        value: OutBuf,
        value_len: OutPtr<usize>,
    ) -> c_int {
        let pool = pool(&*IOCTXS.get(io)?)?;
        let found = pool.applications.get(app_name.text()?).and_then(|keys| keys.get(key.text().ok()?));
        fill(value, value_len, std::iter::once(found.ok_or(Errno::ENOENT)?))?;
        Ok(0)
    }

    /// Sets a value of an application's metadata.
    fn rados_application_metadata_set(io: Handle, app_name: CStrPtr, key: CStrPtr, value: CStrPtr) -> c_int {
        change(io, "set", json!({ "app": app_name.text()?, "key": key.text()?, "value": value.text()? }))
    }

    /// Removes a value of an application's metadata.
    fn rados_application_metadata_remove(io: Handle, app_name: CStrPtr, key: CStrPtr) -> c_int {
        change(io, "rm", json!({ "app": app_name.text()?, "key": key.text()? }))
    }

    /// All of an application's metadata.
    fn rados_application_metadata_list(
        io: Handle,
        app_name: CStrPtr,
        keys: OutBuf,
        key_len: OutPtr<usize>,
        values: OutBuf,
        vals_len: OutPtr<usize>,
    ) -> c_int {
        let pool = pool(&*IOCTXS.get(io)?)?;
        let found = pool.applications.get(app_name.text()?).ok_or(Errno::ENOENT)?;
        // Both lengths are stored even if one buffer is too small.
        let filled = fill(keys, key_len, found.keys());
        fill(values, vals_len, found.values())?;
        filled?;
        Ok(0)
    }
}
