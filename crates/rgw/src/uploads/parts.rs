//! The parts of uploads, and the intents of parts that are being written.

use super::{MARK, Part, PartIntent, Uploads, intent_key, part_key, upload_name};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use nacre_client::WriteOp;
use nacre_index::record::Tails;
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;

/// Parts read at a time.
const PAGE: u64 = 1000;
/// Attempts at a change that conflicts with concurrent changes.
const CHANGE_ATTEMPTS: usize = 16;

/// The error of an operation on an upload that may not exist.
fn absent(error: nacre_client::Error) -> Error {
    if error.is_not_found() { Error::NoSuchUpload } else { error.into() }
}

impl Uploads {
    /// Records the tails of a part that the write `tag` is about to write, in the upload whose object is `name`.
    pub(crate) async fn prepare_part(&self, name: &str, tag: &str, tails: &Tails) -> Result<()> {
        let mut op = WriteOp::new();
        let intent = PartIntent { tails: tails.clone() };
        // The write fails if the upload is marked, so a gateway that clears up a marked upload sees all intents.
        op.assert_exists()
            .omap_cmp(vec![(Bytes::from_static(MARK), CmpOp::Eq, Bytes::new())])
            .omap_set(vec![(intent_key(tag), record::encode(&intent))]);
        match self.data().operate(name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.errno() == Errno::ECANCELED => Err(Error::NoSuchUpload),
            noted => noted.map(drop).map_err(absent),
        }
    }

    /// Lists a part whose data is written, in place of an earlier part with its number.
    pub(crate) async fn list_part(&self, name: &str, number: u32, tag: &str, part: &Part) -> Result<()> {
        let mark = Bytes::from_static(MARK);
        for _ in 0..CHANGE_ATTEMPTS {
            let wanted = vec![part_key(number), mark.clone()];
            let mut found = self.data().omap_get_vals_by_keys(name, wanted).await.map_err(absent)?;
            if found.contains_key(&mark) {
                return Err(Error::NoSuchUpload);
            }
            let old = found.remove(&part_key(number)).unwrap_or_default();
            let replaced = (!old.is_empty())
                .then(|| record::decode::<Part>(name, &old))
                .transpose()?
                .map(|old| old.tails);
            let mut set = vec![(part_key(number), record::encode(part))];
            // Until the replaced part is recorded as garbage, an intent names its tails.
            let left =
                replaced.as_ref().map(|tails| intent_key(tails.name.rsplit('_').next().unwrap_or_default()));
            if let (Some(key), Some(tails)) = (&left, &replaced) {
                set.push((key.clone(), record::encode(&PartIntent { tails: tails.clone() })));
            }
            let mut op = WriteOp::new();
            op.assert_exists()
                .omap_cmp(vec![(part_key(number), CmpOp::Eq, old), (mark.clone(), CmpOp::Eq, Bytes::new())])
                .omap_set(set)
                .omap_rm_keys(vec![intent_key(tag)]);
            match self.data().operate(name, op).await.and_then(|reply| reply.success()) {
                Ok(_) => {}
                Err(error) if error.errno() == Errno::ECANCELED => continue,
                Err(error) => return Err(absent(error)),
            }
            if let (Some(key), Some(tails)) = (left, replaced) {
                self.garbage.queue(&[tails]).await?;
                match self.data().omap_rm_keys(name, vec![key]).await {
                    // The upload was ended meanwhile, and all of its tails were discarded.
                    Err(error) if error.is_not_found() => {}
                    removed => removed?,
                }
            }
            return Ok(());
        }
        Err(Error::Contended(format!("part {number}")))
    }

    /// At most `max` parts of an upload with numbers above `after`, and whether there are more.
    pub async fn parts(
        &self,
        bucket: &Bucket,
        key: &str,
        id: &str,
        after: u32,
        max: u64,
    ) -> Result<(Vec<(u32, Part)>, bool)> {
        let name = upload_name(bucket, key, id);
        let page = self.data().omap_get_vals(&name, part_key(after), "p", max.min(PAGE)).await;
        let page = match page {
            Err(error) if error.is_not_found() => return Err(Error::NoSuchUpload),
            page => page?,
        };
        let mut parts = Vec::with_capacity(page.entries.len());
        for (key, value) in &page.entries {
            let number = std::str::from_utf8(&key[1..]).ok().and_then(|digits| digits.parse().ok());
            parts.push((number.unwrap_or(0), record::decode::<Part>(&name, value)?));
        }
        Ok((parts, page.more))
    }

    /// All parts of an upload.
    pub(crate) async fn all_parts(&self, bucket: &Bucket, key: &str, id: &str) -> Result<Vec<(u32, Part)>> {
        let mut all: Vec<(u32, Part)> = Vec::new();
        loop {
            let after = all.last().map_or(0, |(number, _)| *number);
            let (parts, more) = self.parts(bucket, key, id, after, PAGE).await?;
            all.extend(parts);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The tails of an upload: those of its parts and of its intents; `None` if there is no upload.
    pub(crate) async fn tails(&self, bucket: &Bucket, key: &str, id: &str) -> Result<Option<Vec<Tails>>> {
        let name = upload_name(bucket, key, id);
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            let page = match self.data().omap_get_vals(&name, after.clone(), "", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(None),
                page => page?,
            };
            for (key, value) in &page.entries {
                match key.first() {
                    Some(b'p') => all.push(record::decode::<Part>(&name, value)?.tails),
                    Some(b'i') => all.push(record::decode::<PartIntent>(&name, value)?.tails),
                    _ => {}
                }
            }
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => return Ok(Some(all)),
            }
        }
    }
}
