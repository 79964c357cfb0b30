//! The tasks of delivery in one gateway, which end together.

use crate::error::{Error, Result};
use nacre_task::Env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The tasks of delivery.
pub(crate) struct TaskGroup {
    env: Env,
    is_stopped: AtomicBool,
    /// Notified once, when delivery is stopped.
    stopping: Notify,
    /// The number of tasks that have not ended.
    count: AtomicUsize,
    /// Notified when the last task has ended.
    idle: Notify,
}

impl TaskGroup {
    pub(crate) fn new(env: Env) -> Arc<TaskGroup> {
        Arc::new(TaskGroup {
            env,
            is_stopped: AtomicBool::new(false),
            stopping: Notify::new(),
            count: AtomicUsize::new(0),
            idle: Notify::new(),
        })
    }

    /// Runs a task that [`TaskGroup::wait_until_ended`] waits for. It must end soon after [`TaskGroup::is_stopped`].
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.count.fetch_add(1, Ordering::AcqRel);
        let counted = CountedTask(Arc::clone(self));
        drop(self.env.spawn(async move {
            let _counted = counted;
            task.await;
        }));
    }

    /// Requests all tasks to end.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.stopping.notify_waiters();
    }

    /// Whether delivery is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Fails once delivery is stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Completes when delivery is stopped after this call.
    pub(crate) fn stopping(&self) -> Notified<'_> {
        self.stopping.notified()
    }

    /// Waits for `wait`; returns `false` if delivery is stopped.
    pub(crate) async fn sleep(&self, wait: Duration) -> bool {
        let stopped = self.stopping();
        if self.is_stopped() {
            return false;
        }
        let _ = self.env.timeout(wait, stopped).await;
        !self.is_stopped()
    }

    /// Waits until all tasks have ended, for at most `limit`. Returns whether they have.
    pub(crate) async fn wait_until_ended(&self, limit: Duration) -> bool {
        let ended = async {
            loop {
                let idle = self.idle.notified();
                if self.count.load(Ordering::Acquire) == 0 {
                    return;
                }
                idle.await;
            }
        };
        self.env.timeout(limit, ended).await.is_ok()
    }
}

/// Counts a task until it ends or is dropped.
struct CountedTask(Arc<TaskGroup>);

impl Drop for CountedTask {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::Settings;
    use crate::testing;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_stop_ends_sleeps_and_waits_for_tasks() {
        testing::run(Settings::default(), |core| async move {
            let has_ended = Arc::new(AtomicBool::new(false));
            let (task, ended) = (Arc::clone(&core), Arc::clone(&has_ended));
            core.tasks.spawn(async move {
                assert!(!task.tasks.sleep(LONG).await);
                task.env.sleep(Duration::from_secs(1)).await;
                ended.store(true, Ordering::Relaxed);
            });
            assert!(core.tasks.sleep(Duration::from_secs(1)).await);
            core.tasks.stop();
            assert!(core.tasks.check_running().is_err());
            assert!(!core.tasks.wait_until_ended(Duration::from_millis(500)).await);
            assert!(core.tasks.wait_until_ended(LONG).await);
            assert!(has_ended.load(Ordering::Relaxed));
        });
    }
}
