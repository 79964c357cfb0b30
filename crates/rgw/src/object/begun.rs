//! Changes between their note in the index and the news of their fate.

use super::multipart;
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{self, Finished, Outcome, RESHARD_LOOK, RESHARD_PATIENCE, Tails};
use std::sync::Arc;
use std::time::Instant;

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
    /// The bucket and the id of the upload that it completes, as soon as that may carry its mark.
    pub(super) upload: Option<(Arc<Bucket>, String)>,
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
        // While the change is pending, so that who sees it through would do it.
        if let (Some((bucket, id)), Outcome::Put(_)) = (&self.upload, &outcome) {
            let kept: Vec<&Tails> = self.parts.iter().collect();
            if let Err(error) =
                self.gateway.clear_upload(bucket, (&self.key, id), &kept, Some(&self.tag)).await
            {
                tracing::warn!(%error, id, "rgw: an upload that became an object stays until it is ended");
            }
        }
        self.finish(outcome).await;
    }

    /// As [`Begun::settle`] for a change that failed; one that may have taken effect stays pending.
    pub(super) async fn fail(mut self, error: &Error) {
        self.settled = true;
        if !error.is_unknown() {
            self.undo().await;
        }
    }

    /// Nothing came of the change.
    async fn undo(self) {
        if let Some((bucket, id)) = &self.upload {
            // It may be completed again. First, lest it be taken for one that became an object.
            let name = multipart::upload_name(bucket, &self.key, id);
            if let Err(error) = multipart::release(&self.gateway.pools.data, &name, &self.tag).await {
                tracing::warn!(%error, id, "rgw: an upload stays marked as being completed");
                return;
            }
        }
        self.finish(Outcome::Nothing).await;
    }

    async fn finish(mut self, outcome: Outcome) {
        let (key, tag) = (self.key.clone(), self.tag.clone());
        // What belongs to nothing any more.
        let garbage = match &outcome {
            Outcome::Nothing => self.tails.take().into_iter().collect(),
            Outcome::Put(_) | Outcome::Removed(_) => std::mem::take(&mut self.replaced),
        };
        let change = Finished { key, tag, outcome, garbage };
        self.gateway.finisher.add(&self.gateway, (&self.bucket, &self.shard), change).await;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let begun = Begun {
            gateway: Arc::clone(&self.gateway),
            bucket: std::mem::take(&mut self.bucket),
            shard: std::mem::take(&mut self.shard),
            key: std::mem::take(&mut self.key),
            tag: std::mem::take(&mut self.tag),
            tails: self.tails.take(),
            replaced: std::mem::take(&mut self.replaced),
            parts: std::mem::take(&mut self.parts),
            upload: self.upload.take(),
            settled: true,
        };
        // Without a runtime the process ends, and what is pending is seen through by others.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(begun.undo());
        }
    }
}
