//! How uploads end: their marks, and the removal of their records.

use super::{MARK, Part, PartIntent, Uploads, upload_name};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::record;
use crate::stored::{Head, ObjectReader};
use bytes::Bytes;
use nacre_client::{ReadOp, WriteOp};
use nacre_index::finish::UploadResolution;
use nacre_index::key;
use nacre_index::record::{Pending, Tails};
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;

/// Parts read at a time.
const PAGE: u64 = 1000;

impl Uploads {
    /// Marks the upload whose object is `name` as being completed by the write `tag`. Fails if its object no longer has that
    /// RADOS version, because a part was listed or another completion began.
    pub(crate) async fn mark(&self, name: &str, version: u64, tag: &str) -> nacre_client::Result<()> {
        let mut op = WriteOp::new();
        op.assert_version(version)
            .omap_set(vec![(Bytes::from_static(MARK), Bytes::from(tag.to_owned().into_bytes()))]);
        self.data().operate(name, op).await.and_then(|reply| reply.success()).map(drop)
    }

    /// Marks the upload whose object is `name` as being aborted. Fails with `ECANCELED` unless its mark is `mark`, where `None`
    /// means that it has none.
    pub(crate) async fn mark_aborted(&self, name: &str, mark: Option<String>) -> nacre_client::Result<()> {
        let end = Bytes::from(self.connection.new_tag().into_bytes());
        let mut op = WriteOp::new();
        op.assert_exists()
            .omap_cmp(vec![(Bytes::from_static(MARK), CmpOp::Eq, mark.unwrap_or_default().into())])
            .omap_set(vec![(Bytes::from_static(MARK), end)]);
        self.data().operate(name, op).await.and_then(|reply| reply.success()).map(drop)
    }

    /// Removes the mark `tag` from an upload, if the upload carries it.
    pub(crate) async fn unmark(&self, name: &str, tag: &str) -> Result<()> {
        let mark = Bytes::from_static(MARK);
        let mut op = WriteOp::new();
        op.assert_exists()
            .omap_cmp(vec![(mark.clone(), CmpOp::Eq, Bytes::from(tag.to_owned().into_bytes()))])
            .omap_rm_keys(vec![mark]);
        match self.data().operate(name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.is_not_found() || error.errno() == Errno::ECANCELED => Ok(()),
            released => Ok(released.map(drop)?),
        }
    }

    /// If the object with this tag exists, clears up the upload with the mark `tag`, except for the object's parts, and returns
    /// the object's head. Such a mark is never removed.
    pub(crate) async fn purge_completed(
        &self,
        bucket: &Bucket,
        key: &str,
        id: &str,
        tag: &str,
    ) -> Result<Option<Head>> {
        let Some(ObjectReader { head, manifest, .. }) =
            self.objects.version_by_tag(&bucket.id, key, tag).await?
        else {
            return Ok(None);
        };
        let kept: Vec<&Tails> = manifest.parts.iter().map(|part| &part.tails).collect();
        self.purge(bucket, (key, id), &kept).await?;
        Ok(Some(head))
    }

    /// Settles an upload whose completion is being finished for another gateway, while the completion is pending in `shard`. If
    /// the completion took effect, clears up the upload except for the object's parts; otherwise, the upload may be completed
    /// again.
    pub(crate) async fn resolve(&self, bucket: &Bucket, shard: &str, end: &UploadResolution) -> Result<()> {
        let UploadResolution { key, upload, tag, completed } = end;
        let name = upload_name(bucket, key, upload);
        let marked = self.marked(&name).await?;
        if marked.is_none_or(|(_, mark, _)| mark.as_deref() != Some(tag)) {
            return Ok(());
        }
        if !completed {
            return self.unmark(&name, tag).await;
        }
        let noted = key::pending(key, tag);
        let found = self.shards.pool().omap_get_vals_by_keys(shard, vec![noted.clone()]).await?;
        // If the record is gone, another gateway has settled the upload.
        let Some(pending) = found.get(&noted) else { return Ok(()) };
        let pending = record::decode::<Pending>(shard, pending)?;
        self.purge(bucket, (key, upload), &pending.parts.iter().collect::<Vec<_>>()).await
    }

    /// Settles the uploads of a key whose completion was the change `tag`, which has format 1 and was made by a gateway that has
    /// ended. Clears them up if the object with that tag exists; otherwise they may be completed again.
    pub(crate) async fn resolve_v1(&self, bucket: &Bucket, key: &str, tag: &str) -> Result<()> {
        for id in self.ids_of(bucket, key).await? {
            let name = upload_name(bucket, key, &id);
            let marked = self.marked(&name).await?;
            if marked.is_none_or(|(_, mark, _)| mark.as_deref() != Some(tag)) {
                continue;
            }
            if self.purge_completed(bucket, key, &id, tag).await?.is_none() {
                self.unmark(&name, tag).await?;
            }
        }
        Ok(())
    }

    /// Removes an upload whose mark is final, because it was completed or aborted, and discards its tails except for `kept`.
    pub(crate) async fn purge(
        &self,
        bucket: &Bucket,
        (key, id): (&str, &str),
        kept: &[&Tails],
    ) -> Result<()> {
        let name = upload_name(bucket, key, id);
        let mut after = Bytes::new();
        loop {
            let mut op = ReadOp::new();
            op.omap_get_vals(after.clone(), "", PAGE);
            let reply = self.data().operate_read(&name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) if error.is_not_found() => break,
                reply => reply?,
            };
            let page = reply.omap_vals(0)?;
            let mut garbage = Vec::new();
            for (key, value) in &page.entries {
                let tails = match key.first() {
                    Some(b'p') => record::decode::<Part>(&name, value)?.tails,
                    Some(b'i') => record::decode::<PartIntent>(&name, value)?.tails,
                    _ => continue,
                };
                if !kept.contains(&&tails) {
                    garbage.push(tails);
                }
            }
            self.garbage.queue(&garbage).await?;
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => break,
            }
        }
        self.remove_entry(bucket, key, id).await?;
        record::remove(self.data(), &name).await?;
        self.quotas.release_upload(&bucket.id, id);
        Ok(())
    }
}
