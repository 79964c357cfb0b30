//! Commits of changes, one key's after the other.
//!
//! Commits of one key refuse each other if they are built on the same head. So a gateway makes them one at a time, and
//! remembers of each key what its last commit left: the next one builds on that without reading the head. A commit of another
//! gateway, or the tidying of the head, only costs a refusal and a read.

use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::execute;
use nacre_index::commit::{Base, Commit};
use nacre_index::prepare::View;
use nacre_index::record::Evidence;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// Keys whose last commits are remembered. Those that are being committed are never forgotten.
const REMEMBERED: usize = 4096;
/// Attempts at a commit that other gateways refuse, and what is waited between them, times their number.
const ATTEMPTS: u32 = 40;
const CAS_RETRY_DELAY: Duration = Duration::from_millis(1);
/// How often a commit waits for earlier changes of the key to be finished, and how long each time.
const CROWDED_ATTEMPTS: u32 = 40;
const CROWDED_DELAY: Duration = Duration::from_millis(50);

/// What the last commit of a key left; `None` where that is not known.
type LastCommit = Arc<tokio::sync::Mutex<Option<Base>>>;

/// The last commits of this gateway, by the heads' names.
#[derive(Debug, Default)]
pub(crate) struct LastCommits(Mutex<HashMap<String, LastCommit>>);

impl LastCommits {
    fn of(&self, name: &str) -> LastCommit {
        let mut all = self.0.lock();
        if let Some(last) = all.get(name) {
            return Arc::clone(last);
        }
        if all.len() >= REMEMBERED {
            all.retain(|_, last| Arc::strong_count(last) > 1);
        }
        let last = LastCommit::default();
        all.insert(name.to_owned(), Arc::clone(&last));
        last
    }

    /// Forgets what the last commit of a head left, unless another commit of it is in flight, which will see for itself.
    pub(crate) fn forget(&self, name: &str) {
        let last = self.0.lock().get(name).map(Arc::clone);
        if let Some(last) = last
            && let Ok(mut last) = last.try_lock()
        {
            *last = None;
        }
    }
}

/// The right to commit changes of a key in this gateway.
pub(super) struct CommitTurn {
    gateway: Arc<Gateway>,
    name: String,
    last: OwnedMutexGuard<Option<Base>>,
    attempts: u32,
    crowded: u32,
}

impl CommitTurn {
    /// Waits for the turn of a commit of the head `name`.
    pub(super) async fn wait(gateway: &Arc<Gateway>, name: &str) -> CommitTurn {
        let last = gateway.commits.of(name).lock_owned().await;
        CommitTurn { gateway: Arc::clone(gateway), name: name.to_owned(), last, attempts: 0, crowded: 0 }
    }

    /// What the commit before left, unless the index knows of later changes.
    pub(super) fn last_base(&mut self, view: &View) -> Option<Base> {
        let base = self.last.take()?;
        (base.seq() >= view.finished()).then_some(base)
    }

    /// The RADOS version that the commit before left, where there is one.
    pub(super) fn last_version(&self) -> Option<u64> {
        match &*self.last {
            Some(Base::Head(head)) => Some(head.version),
            _ => None,
        }
    }

    /// Executes a commit; `None` where the head is not what it was built on. Fails with [`Error::Contended`] after many
    /// attempts.
    pub(super) async fn execute(&mut self, commit: Commit) -> Result<Option<Evidence>> {
        *self.last = None;
        let written = execute::write(&self.gateway.pools.data, &self.name, commit.write.clone()).await;
        match written {
            Ok(version) => {
                let evidence = commit.evidence.clone();
                *self.last = Some(commit.after(version));
                Ok(Some(evidence))
            }
            Err(error) if execute::is_overtaken(&error) => {
                self.retry().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Counts an attempt that came to nothing because another gateway changed the head, and waits a little after the first.
    /// Fails with [`Error::Contended`] after many.
    pub(super) async fn retry(&mut self) -> Result<()> {
        self.attempts += 1;
        if self.attempts >= ATTEMPTS {
            return Err(Error::Contended(self.name.clone()));
        }
        tokio::time::sleep(CAS_RETRY_DELAY * (self.attempts - 1)).await;
        Ok(())
    }

    /// Waits because too many changes of the key are not finished. Fails after a while.
    pub(super) async fn wait_crowded(&mut self) -> Result<()> {
        self.crowded += 1;
        if self.crowded > CROWDED_ATTEMPTS {
            return Err(Error::Contended(self.name.clone()));
        }
        tokio::time::sleep(CROWDED_DELAY).await;
        Ok(())
    }
}

/// Whether a commit can't be built because too many changes of the key are not finished.
pub(super) fn is_crowded<T>(built: &nacre_index::Result<T>) -> bool {
    matches!(built, Err(nacre_index::Error::Crowded(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_keys_are_forgotten_and_busy_ones_are_not() {
        let commits = LastCommits::default();
        let busy = commits.of("busy");
        for key in 0..2 * REMEMBERED {
            drop(commits.of(&key.to_string()));
        }
        assert!(commits.0.lock().len() <= REMEMBERED);
        assert!(Arc::ptr_eq(&busy, &commits.of("busy")));
    }

    #[test]
    fn a_tidied_head_is_read_again() {
        let commits = LastCommits::default();
        *commits.of("k").try_lock().unwrap() = Some(Base::Absent);
        commits.forget("k");
        assert_eq!(*commits.of("k").try_lock().unwrap(), None);
    }
}
