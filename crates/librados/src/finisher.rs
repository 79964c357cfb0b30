//! The thread that runs callers' callbacks, so that a callback may wait for other operations.

use crate::guard::{ApiResult, run_entry_point};
use nacre_common::sync::thread::{self, JoinHandle};
use nacre_common::sync::{Mutex, mpsc};
use nacre_types::errno::Errno;

/// `EDEADLK`: the calling thread would wait for itself.
const EDEADLK: Errno = Errno(35);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Running {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    stopped: bool,
}

/// A queue of callbacks with its thread, which starts with the first callback. The number of completions and watches of the
/// callers bounds the queue.
#[derive(Default)]
pub(crate) struct Finisher {
    running: Mutex<Running>,
}

impl Finisher {
    /// Runs `job` after those posted before. Runs it immediately after the stop, or if no thread can be started.
    pub(crate) fn queue(&self, job: Job) {
        let refused = {
            let mut running = self.running.lock();
            if running.jobs.is_none() && !running.stopped {
                running.start();
            }
            match &running.jobs {
                Some(jobs) => jobs.send(job).err().map(|refused| refused.0),
                None => Some(job),
            }
        };
        if let Some(job) = refused {
            job();
        }
    }

    fn is_own_thread(&self) -> bool {
        let own = thread::current().id();
        self.running.lock().thread.as_ref().is_some_and(|thread| thread.thread().id() == own)
    }

    /// Returns when everything posted before has run. In a callback returns immediately, because it would wait for itself.
    pub(crate) fn flush_unless_on_finisher(&self) {
        // The only possible failure is EDEADLK.
        let _ = self.flush();
    }

    /// Returns when everything posted before has run. Returns EDEADLK in a callback, which would wait for itself.
    pub(crate) fn flush(&self) -> ApiResult<()> {
        if self.is_own_thread() {
            return Err(EDEADLK.into());
        }
        let (reached, wait) = mpsc::channel::<()>();
        self.queue(Box::new(move || drop(reached)));
        // Nothing is sent: the other end is dropped when the job is reached.
        let _ = wait.recv();
        Ok(())
    }

    /// Runs what is queued and ends the thread. If called from a callback, the thread ends after it.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut running = self.running.lock();
            running.stopped = true;
            running.jobs = None;
            running.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread of callbacks panicked");
        }
    }
}

impl Running {
    fn start(&mut self) {
        let (jobs, queue) = mpsc::channel::<Job>();
        // A panic of one job does not affect the others.
        let run_one = |job: Job| {
            run_entry_point("callback", || {
                job();
                Ok(())
            });
        };
        let run = move || queue.into_iter().for_each(run_one);
        match thread::Builder::new().name("librados-cb".into()).spawn(run) {
            Ok(thread) => (self.jobs, self.thread) = (Some(jobs), Some(thread)),
            Err(error) => tracing::error!(%error, "no thread for callbacks can be started"),
        }
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn callbacks_run_in_order_and_all_of_them_before_the_end() {
        let (seen, finisher) = (Arc::new(Mutex::new(Vec::new())), Finisher::default());
        for number in 0..100 {
            let seen = seen.clone();
            finisher.queue(Box::new(move || seen.lock().push(number)));
        }
        finisher.flush().unwrap();
        assert_eq!(*seen.lock(), (0..100).collect::<Vec<_>>());
        finisher.stop();
        let late = seen.clone();
        finisher.queue(Box::new(move || late.lock().push(100)));
        assert_eq!(seen.lock().last(), Some(&100));
    }

    #[test]
    fn a_callback_that_panics_does_not_keep_the_others_from_running() {
        let (seen, finisher) = (Arc::new(Mutex::new(0)), Arc::new(Finisher::default()));
        finisher.queue(Box::new(|| panic!("on purpose")));
        let (counter, own) = (seen.clone(), finisher.clone());
        finisher.queue(Box::new(move || {
            own.flush_unless_on_finisher();
            *counter.lock() += 1;
        }));
        finisher.flush().unwrap();
        assert_eq!(*seen.lock(), 1);
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_callback_runs_once_whenever_the_finisher_stops() {
        shuttle::check_random(
            || {
                let (finisher, runs) = (Arc::new(Finisher::default()), Arc::new(AtomicUsize::new(0)));
                let poster = |(finisher, runs): (Arc<Finisher>, Arc<AtomicUsize>)| {
                    move || {
                        for _ in 0..2 {
                            let runs = runs.clone();
                            finisher.queue(Box::new(move || _ = runs.fetch_add(1, Ordering::Relaxed)));
                        }
                        finisher.flush().unwrap();
                    }
                };
                let stopped = finisher.clone();
                let threads = [
                    thread::spawn(poster((finisher.clone(), runs.clone()))),
                    thread::spawn(poster((finisher.clone(), runs.clone()))),
                    thread::spawn(move || stopped.stop()),
                ];
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert_eq!(runs.load(Ordering::Relaxed), 4);
            },
            20_000,
        );
    }
}
