//! Commits of changes. The changes of one key are committed one after the other.
//!
//! Two commits of a key that are built on the same head conflict: only one of them succeeds. So a gateway makes the commits of a
//! key one at a time, and caches what the last one left ([`crate::last_commits`]). A commit by another gateway, or tidying of
//! the head, only costs a refused commit and a read.

use super::ObjectWriter;
use super::index_op::IndexOp;
use crate::error::{Error, Result};
use crate::execute;
use crate::stored::HeadState;
use nacre_index::commit::{self, AssumedHead, Commit};
use nacre_index::prepare::KeyView;
use nacre_index::record::{ChangeEffect, CommitRecord};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// Attempts at a commit that conflicts with commits of other gateways, and by how much the delay between them grows each time.
const COMMIT_ATTEMPTS: u32 = 40;
const CAS_RETRY_DELAY: Duration = Duration::from_millis(1);
/// How often a commit waits for earlier changes of the key to be finished, and how long each time.
const BACKLOG_ATTEMPTS: u32 = 40;
const BACKLOG_DELAY: Duration = Duration::from_millis(50);

/// The right to commit changes of a key in this gateway.
pub(super) struct CommitGuard {
    writer: Arc<ObjectWriter>,
    name: String,
    last: OwnedMutexGuard<Option<AssumedHead>>,
    /// Evidence of the last attempt to remove the head, which leaves no evidence in it.
    removal: Option<CommitRecord>,
    attempts: u32,
    crowded: u32,
}

/// What a read of a head for a commit found.
pub(super) enum HeadRead {
    /// The change has already taken effect: an OSD executed an attempt, and did not recognize it when it was resent.
    Committed(Box<CommitRecord>),
    /// The state to build the commit on.
    State(Box<HeadState>),
}

impl CommitGuard {
    /// Waits for the right to commit a change of the head `name`.
    pub(super) async fn acquire(writer: &Arc<ObjectWriter>, name: &str) -> CommitGuard {
        let last = writer.commits.lock(name).await;
        CommitGuard {
            writer: Arc::clone(writer),
            name: name.to_owned(),
            last,
            removal: None,
            attempts: 0,
            crowded: 0,
        }
    }

    /// Takes what the previous commit left, unless the index knows of later changes.
    pub(super) fn take_assumed_head(&mut self, view: &KeyView) -> Option<AssumedHead> {
        let base = self.last.take()?;
        (base.seq() >= view.last_finished()).then_some(base)
    }

    /// Whether a head that was read with this RADOS version may still be current: another commit of this gateway may have changed
    /// it since.
    pub(super) fn is_current(&self, version: u64) -> bool {
        match &*self.last {
            Some(AssumedHead::Head(head)) => head.version <= version,
            _ => true,
        }
    }

    /// Reads the head, and looks for evidence of `op` in it.
    pub(super) async fn read_head(&self, op: &IndexOp) -> Result<HeadRead> {
        let state = self.writer.objects.head_state(&self.name).await?;
        let made = commit::find_commit(op.tag(), self.removal.as_ref(), state.protocol.as_ref());
        Ok(match made {
            Some(evidence) => HeadRead::Committed(Box::new(evidence)),
            None => HeadRead::State(Box::new(state)),
        })
    }

    /// Executes a commit of `op`. Returns `None` if the commit has to be built again: the head is not what it was built on, or
    /// too many changes of the key are not finished. Fails with [`Error::Contended`] after many attempts.
    pub(super) async fn commit(
        &mut self,
        op: &mut IndexOp,
        built: nacre_index::Result<Commit>,
    ) -> Result<Option<CommitRecord>> {
        if matches!(built, Err(nacre_index::Error::TooManyPending(_))) {
            self.wait_backlog().await?;
            op.refresh_view().await?;
            return Ok(None);
        }
        self.execute(op, built?).await
    }

    /// Like [`CommitGuard::commit`], for a commit that could be built.
    async fn execute(&mut self, op: &IndexOp, commit: Commit) -> Result<Option<CommitRecord>> {
        *self.last = None;
        let mut commit = commit;
        let write = std::mem::take(&mut commit.write);
        if commit.evidence.content == ChangeEffect::Removed {
            self.removal = Some(commit.evidence.clone());
        }
        let written = execute::write(&self.writer.connection.pools.data, &self.name, write).await;
        match written {
            Ok(version) => {
                let evidence = commit.evidence.clone();
                *self.last = Some(commit.resulting_head(version));
                Ok(Some(evidence))
            }
            Err(error) if execute::is_guard_mismatch(&error) => {
                self.back_off().await?;
                Ok(None)
            }
            Err(error) if error.is_outcome_unknown() => match self.read_head(op).await {
                Ok(HeadRead::Committed(evidence)) => Ok(Some(*evidence)),
                Ok(HeadRead::State(_)) | Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Counts an attempt that failed because another gateway changed the head. Waits before the next attempt, except after the
    /// first failure. Fails with [`Error::Contended`] after [`COMMIT_ATTEMPTS`] attempts.
    pub(super) async fn back_off(&mut self) -> Result<()> {
        self.attempts += 1;
        if self.attempts >= COMMIT_ATTEMPTS {
            return Err(Error::Contended(self.name.clone()));
        }
        if self.attempts > 1 {
            tokio::time::sleep(CAS_RETRY_DELAY * (self.attempts - 1)).await;
        }
        Ok(())
    }

    /// Waits because too many changes of the key are not finished. Fails with [`Error::Contended`] after [`BACKLOG_ATTEMPTS`]
    /// waits.
    async fn wait_backlog(&mut self) -> Result<()> {
        self.crowded += 1;
        if self.crowded > BACKLOG_ATTEMPTS {
            return Err(Error::Contended(self.name.clone()));
        }
        tokio::time::sleep(BACKLOG_DELAY).await;
        Ok(())
    }
}
