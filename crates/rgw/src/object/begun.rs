//! Changes between their note in the index and the news of their fate.

use super::multipart;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{self, Finished, Outcome, Tails};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a change waits for a bucket that is being resharded, and how often it looks.
const RESHARD_PATIENCE: Duration = Duration::from_secs(20);
const RESHARD_LOOK: Duration = Duration::from_millis(50);

/// A change that was begun and whose fate is not known yet. Dropped before that, nothing came of it.
pub(crate) struct Begun {
    gateway: Arc<Gateway>,
    /// The bucket's name.
    bucket: String,
    shard: String,
    key: String,
    tag: String,
    /// What it may have written besides the head.
    tails: Option<Tails>,
    /// What nothing names any more when it is done.
    replaced: Vec<Tails>,
    /// The parts of the upload that it completes.
    parts: Vec<Tails>,
    /// The RADOS object of the upload that it completes.
    pub(super) upload: Option<String>,
    settled: bool,
}

impl Begun {
    /// Notes in the index that the change begins.
    pub(super) async fn begin(
        gateway: &Arc<Gateway>,
        bucket: &Bucket,
        key: &str,
        tag: &str,
        tails: Option<Tails>,
    ) -> Result<Begun> {
        Begun::begin_with(gateway, bucket, (key, tag), tails, &[]).await
    }

    /// As [`Begun::begin`], for an upload of these parts that becomes an object.
    pub(super) async fn begin_with(
        gateway: &Arc<Gateway>,
        bucket: &Bucket,
        (key, tag): (&str, &str),
        tails: Option<Tails>,
        parts: &[Tails],
    ) -> Result<Begun> {
        let deadline = Instant::now() + RESHARD_PATIENCE;
        let mut fresh: Option<Bucket> = None;
        loop {
            let current = fresh.as_ref().unwrap_or(bucket);
            match Begun::try_begin(gateway, current, (key, tag), tails.clone(), parts).await {
                // It may be being resharded.
                Err(Error::IndexBusy(_)) if Instant::now() < deadline => {}
                begun => return begun,
            }
            tokio::time::sleep(RESHARD_LOOK).await;
            let now = gateway.bucket(&bucket.name).await?;
            // Another one of that name, or what is begun would have to be made another way.
            if now.id != bucket.id || index::open_state(&now) != index::open_state(bucket) {
                return Err(Error::IndexBusy(bucket.name.clone()));
            }
            fresh = Some(now);
        }
    }

    async fn try_begin(
        gateway: &Arc<Gateway>,
        bucket: &Bucket,
        (key, tag): (&str, &str),
        tails: Option<Tails>,
        parts: &[Tails],
    ) -> Result<Begun> {
        let shard = index::shard_of(bucket, key);
        // From here on: whether the note was made may never be heard.
        let mut begun = Begun {
            gateway: Arc::clone(gateway),
            bucket: bucket.name.clone(),
            shard,
            key: key.to_owned(),
            tag: tag.to_owned(),
            tails: tails.clone(),
            replaced: Vec::new(),
            parts: parts.to_vec(),
            upload: None,
            settled: false,
        };
        match index::begin(gateway, bucket, (&begun.shard, key), tag, (tails, Vec::new(), parts.to_vec()))
            .await
        {
            // It was not made.
            Err(error @ Error::IndexBusy(_)) => {
                begun.settled = true;
                Err(error)
            }
            noted => noted.map(|()| begun),
        }
    }

    /// Notes in the index, too, what belongs to nothing any more once the change is made. Nothing of the change that named
    /// something else may be on its way.
    pub(super) async fn replaces(&mut self, bucket: &Bucket, replaced: Vec<Tails>) -> Result<()> {
        if self.replaced != replaced {
            let noted = (self.tails.clone(), replaced.clone(), self.parts.clone());
            self.replaced = replaced;
            index::begin(&self.gateway, bucket, (&self.shard, &self.key), &self.tag, noted).await?;
        }
        Ok(())
    }

    /// Has the change finished in the index.
    pub(super) async fn settle(mut self, outcome: Outcome) {
        self.settled = true;
        let (key, tag) = (self.key.clone(), self.tag.clone());
        let garbage = self.garbage(&outcome);
        let change = Finished { key, tag, outcome, garbage };
        self.gateway.finisher.add(&self.gateway, (&self.bucket, &self.shard), change).await;
    }

    /// As [`Begun::settle`] for a change that failed; one that may have taken effect stays pending.
    pub(super) async fn fail(mut self, error: &Error) {
        let mut unknown = error.is_unknown();
        if let Some(upload) = &self.upload
            && !unknown
        {
            // It may be completed again. First, lest it be taken for one that became an object.
            let released = multipart::release(&self.gateway.pools.data, upload, &self.tag).await;
            if let Err(error) = released {
                tracing::warn!(%error, upload, "rgw: an upload stays marked as being completed");
                unknown = true;
            }
        }
        if unknown {
            self.settled = true;
        } else {
            self.settle(Outcome::Nothing).await;
        }
    }

    /// What belongs to nothing after that outcome.
    fn garbage(&mut self, outcome: &Outcome) -> Vec<Tails> {
        match outcome {
            Outcome::Nothing => self.tails.take().into_iter().collect(),
            Outcome::Put(_) | Outcome::Removed(_) => std::mem::take(&mut self.replaced),
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let (gateway, shard) = (Arc::clone(&self.gateway), std::mem::take(&mut self.shard));
        let bucket = std::mem::take(&mut self.bucket);
        let outcome = Outcome::Nothing;
        let garbage = self.garbage(&outcome);
        let change = Finished {
            key: std::mem::take(&mut self.key),
            tag: std::mem::take(&mut self.tag),
            outcome,
            garbage,
        };
        // Without a runtime the process ends, and what is pending is seen through by others.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { gateway.finisher.add(&gateway, (&bucket, &shard), change).await });
        }
    }
}
