//! Completions, which callers of asynchronous functions wait for, poll, or are called back by.
//!
//! A completion serves one operation. Results are stored in the caller's memory under its lock and before it is complete. So a
//! caller who sees it complete also sees the results, and a cancelled operation writes nothing any more. Callbacks run on the
//! cluster's [`crate::finisher`] without any lock. A released completion exists until its operation has ended.

use crate::abi::{Callback, CallbackArg, Handle, OutPtr};
use crate::finisher::Finisher;
use crate::guard::{ApiResult, exports};
use crate::handles::HandleTable;
use nacre_common::sync::{Condvar, Mutex};
use nacre_types::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;

/// All completions that are not released, or whose operation is not complete.
pub(crate) static COMPLETIONS: HandleTable<Completion> = HandleTable::new();

/// The state of a completion.
pub(crate) struct Completion {
    handle: Handle,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    callbacks: [Callback; 2],
    arg: CallbackArg,
    begun: bool,
    /// The operation's result and the object's version.
    result: Option<(c_int, u64)>,
    /// Whether the callbacks have run.
    called: bool,
    released: bool,
}

impl Completion {
    fn create(arg: CallbackArg, callbacks: [Callback; 2]) -> Handle {
        let state = State { callbacks, arg, begun: false, result: None, called: false, released: false };
        COMPLETIONS.insert_with(|handle| Completion {
            handle,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// A completion without callbacks.
    #[cfg(test)]
    pub(crate) fn without_callbacks() -> Handle {
        Completion::create(CallbackArg::NULL, [None, None])
    }

    /// Assigns the completion to an operation. EINVAL if it already was.
    pub(crate) fn begin(&self) -> ApiResult<()> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.begun, true) || state.released {
            return Err(Errno::EINVAL.into());
        }
        Ok(())
    }

    /// Ends the operation. `store` stores its results in the caller's memory and returns its code and the object's version. It
    /// is not called if the operation was cancelled. Returns whether it was called.
    pub(crate) fn finish(
        self: &Arc<Self>,
        finisher: &Finisher,
        store: impl FnOnce() -> (c_int, u64),
    ) -> bool {
        let (callbacks, arg, over) = {
            let mut state = self.state.lock();
            if state.result.is_some() {
                return false;
            }
            state.result = Some(store());
            let callbacks = std::mem::take(&mut state.callbacks);
            // Without callbacks the operation ends together with its completion: a caller who saw that and releases the handle
            // must not find the operation alive.
            state.called = callbacks.iter().all(Option::is_none);
            (callbacks, state.arg, state.called.then_some(state.released))
        };
        self.changed.notify_all();
        if let Some(released) = over {
            if released {
                // It may have been removed already.
                let _ = COMPLETIONS.remove(self.handle);
            }
            return true;
        }
        let completion = self.clone();
        finisher.queue(Box::new(move || {
            for callback in callbacks.into_iter().flatten() {
                callback(completion.handle, arg);
            }
            completion.called();
        }));
        true
    }

    fn called(&self) {
        let released = {
            let mut state = self.state.lock();
            state.called = true;
            state.released
        };
        self.changed.notify_all();
        if released {
            // It may have been removed already.
            let _ = COMPLETIONS.remove(self.handle);
        }
    }

    fn release(&self) {
        let ended = {
            let mut state = self.state.lock();
            state.released = true;
            !state.begun || state.called
        };
        if ended {
            // As above.
            let _ = COMPLETIONS.remove(self.handle);
        }
    }

    /// Ends the operation early, with ECANCELED. ENOENT if nothing is in flight.
    pub(crate) fn cancel(self: &Arc<Self>, finisher: &Finisher) -> ApiResult<()> {
        let begun = self.state.lock().begun;
        if begun && self.finish(finisher, || (Errno::ECANCELED.negated(), 0)) {
            Ok(())
        } else {
            Err(Errno::ENOENT.into())
        }
    }

    fn wait(&self, reached: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        while !reached(&state) {
            self.changed.wait(&mut state);
        }
    }

    fn is(&self, reached: impl Fn(&State) -> bool) -> c_int {
        c_int::from(reached(&self.state.lock()))
    }
}

impl State {
    fn complete(&self) -> bool {
        self.result.is_some()
    }
}

fn get(completion: Handle) -> ApiResult<Arc<Completion>> {
    COMPLETIONS.get(completion)
}

exports! {
    /// Creates a completion. Both callbacks are called once the operation is durable on all replicas.
    fn rados_aio_create_completion(
        cb_arg: CallbackArg,
        cb_complete: Callback,
        cb_safe: Callback,
        pc: OutPtr<Handle>,
    ) -> c_int {
        pc.required()?.set(Completion::create(cb_arg, [cb_complete, cb_safe]));
        Ok(0)
    }

    /// Creates a completion.
    fn rados_aio_create_completion2(cb_arg: CallbackArg, cb_complete: Callback, pc: OutPtr<Handle>) -> c_int {
        pc.required()?.set(Completion::create(cb_arg, [cb_complete, None]));
        Ok(0)
    }

    /// Waits until the operation is complete.
    fn rados_aio_wait_for_complete(c: Handle) -> c_int {
        get(c)?.wait(State::complete);
        Ok(0)
    }

    /// The same, because a complete operation is durable.
    fn rados_aio_wait_for_safe(c: Handle) -> c_int {
        get(c)?.wait(State::complete);
        Ok(0)
    }

    /// Waits until the operation is complete and its callbacks have returned.
    fn rados_aio_wait_for_complete_and_cb(c: Handle) -> c_int {
        get(c)?.wait(|state| state.called);
        Ok(0)
    }

    /// The same.
    fn rados_aio_wait_for_safe_and_cb(c: Handle) -> c_int {
        get(c)?.wait(|state| state.called);
        Ok(0)
    }

    /// Whether the operation is complete.
    fn rados_aio_is_complete(c: Handle) -> c_int {
        Ok(get(c)?.is(State::complete))
    }

    /// The same.
    fn rados_aio_is_safe(c: Handle) -> c_int {
        Ok(get(c)?.is(State::complete))
    }

    /// Whether the operation is complete and its callbacks have returned.
    fn rados_aio_is_complete_and_cb(c: Handle) -> c_int {
        Ok(get(c)?.is(|state| state.called))
    }

    /// The same.
    fn rados_aio_is_safe_and_cb(c: Handle) -> c_int {
        Ok(get(c)?.is(|state| state.called))
    }

    /// The operation's result, or 0 while there is none.
    fn rados_aio_get_return_value(c: Handle) -> c_int {
        Ok(get(c)?.state.lock().result.map_or(0, |(code, _)| code))
    }

    /// The user version of the object after the operation.
    fn rados_aio_get_version(c: Handle) -> u64 {
        Ok(get(c)?.state.lock().result.map_or(0, |(_, version)| version))
    }

    /// Releases the completion. Its operation continues.
    fn rados_aio_release(c: Handle) {
        get(c)?.release();
        Ok(())
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use nacre_common::sync::thread;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Shuttle runs one schedule after the other.
    static CALLS: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn count(_: Handle, _: CallbackArg) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }

    /// An operation ends while it is cancelled, and the caller waits for the callback and releases the completion.
    #[test]
    fn an_operation_ends_once_and_its_handle_with_it() {
        shuttle::check_random(
            || {
                CALLS.store(0, Ordering::Relaxed);
                let finisher = Arc::new(Finisher::default());
                let handle = Completion::create(CallbackArg::NULL, [Some(count), None]);
                get(handle).unwrap().begin().unwrap();
                let (ended, cancelled) = (finisher.clone(), finisher.clone());
                let threads = [
                    thread::spawn(move || {
                        get(handle).is_ok_and(|completion| completion.finish(&ended, || (0, 7)))
                    }),
                    thread::spawn(move || {
                        get(handle).is_ok_and(|completion| completion.cancel(&cancelled).is_ok())
                    }),
                    thread::spawn(move || {
                        let completion = get(handle).unwrap();
                        completion.wait(|state| state.called);
                        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
                        completion.release();
                        false
                    }),
                ];
                let ends = threads.into_iter().map(|thread| thread.join().unwrap());
                assert_eq!(ends.filter(|ended| *ended).count(), 1);
                finisher.stop();
                assert_eq!(CALLS.load(Ordering::Relaxed), 1);
                assert!(get(handle).is_err(), "the handle exists after its operation and its release");
            },
            20_000,
        );
    }
}
