//! The versions of an object. All of them are in the omap of its head. The newest one is also in the head's attributes and
//! data, so that a read of the current object need not know about versions (docs/format/rgw.md).

use super::head_state::CurrentObject;
use super::read_size::MIN_READ_BYTES;
use super::{DataLocation, Head, MAX_HEAD_BYTES, Manifest, ObjectReader, StoredObjects, head_name};
use crate::error::{Error, Result};
use crate::record;
use bytes::Bytes;
use nacre_client::{OpReply, ReadOp};
use nacre_index::record::{Stats, Tails};
use nacre_types::encoding::Versioned;
use nacre_types::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The id of a version that is made while the bucket makes no versions.
pub(crate) const NULL_VERSION: &str = "null";
/// Digits of a version's order in its id; the tag of its write follows.
const ORDER_DIGITS: usize = 16;
const TAG_DIGITS: usize = 32;
/// Attempts at a read that conflicts with changes, and by how much the delay between them grows each time.
pub(crate) const READ_ATTEMPTS: u32 = 40;
const READ_RETRY_DELAY: Duration = Duration::from_millis(1);
/// Versions in a page.
const PAGE: u64 = 1000;

/// What a head records about its versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VersionsAttr {
    /// The order of the version made last; the next version gets a higher one.
    pub(crate) last: u64,
    /// The order of the version `null`, if there is one.
    pub(crate) null: Option<u64>,
    /// The totals of all versions, without delete markers.
    pub(crate) held: Stats,
}

impl Versioned for VersionsAttr {
    const NAME: &'static str = "versions of an object";
}

/// A version, with the part of its data that is in the head.
pub(crate) struct StoredVersion {
    pub(crate) head: Head,
    pub(crate) data: Bytes,
}

/// The slot of a version in its head's omap. Newer versions sort first.
pub(crate) fn slot(order: u64, suffix: &str) -> String {
    format!("{:0ORDER_DIGITS$x}{suffix}", u64::MAX - order)
}

pub(crate) fn head_key(slot: &str) -> Bytes {
    format!("v{slot}").into()
}

pub(crate) fn data_key(slot: &str) -> Bytes {
    format!("d{slot}").into()
}

/// Fails with [`Error::InvalidVersionId`] if `id` can't be a version's id.
pub(crate) fn check_id(id: &str) -> Result<()> {
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if id == NULL_VERSION || (id.len() == ORDER_DIGITS + TAG_DIGITS && id.bytes().all(digits)) {
        Ok(())
    } else {
        Err(Error::InvalidVersionId)
    }
}

impl VersionsAttr {
    /// The slot of the version `id`. `None` if that is `null` and there is no such version; other ids are not checked.
    pub(crate) fn slot_of(&self, id: &str) -> Option<String> {
        if id == NULL_VERSION {
            self.null.map(|order| slot(order, NULL_VERSION))
        } else {
            Some(id.to_owned())
        }
    }
}

impl Head {
    /// What the version adds to the totals.
    pub(crate) fn counted(&self) -> Stats {
        if self.marker { Stats::default() } else { Stats { objects: 1, bytes: self.size } }
    }

    /// The id of this version.
    pub fn version_id(&self) -> &str {
        if self.version.is_empty() { NULL_VERSION } else { &self.version }
    }

    /// The tails that hold its data. `inline` is the data in the RADOS object of the head.
    pub(crate) fn tails(&self, name: &str, inline: &[u8]) -> Result<Vec<Tails>> {
        Ok(match &self.data {
            DataLocation::Inline => Vec::new(),
            DataLocation::Tails(tails) => vec![tails.clone()],
            DataLocation::Parts(_) => {
                let manifest = record::decode::<Manifest>(name, inline)?;
                manifest.parts.into_iter().map(|part| part.tails).collect()
            }
        })
    }

    /// Fails with [`Error::DeleteMarker`] if this is a delete marker. `named` tells whether the request named the version.
    pub(crate) fn check_not_delete_marker(&self, named: bool) -> Result<()> {
        if self.marker {
            let (version, mtime_ns) = (self.version_id().to_owned(), self.mtime_ns);
            return Err(Error::DeleteMarker { version, mtime_ns, named });
        }
        Ok(())
    }
}

/// Whether an operation failed because the head was changed since it was read.
pub(crate) fn is_head_changed(error: &nacre_client::Error) -> bool {
    matches!(error.errno(), Errno::ERANGE | Errno::EOVERFLOW | Errno::EEXIST) || error.is_not_found()
}

pub(crate) async fn wait_before_retry(attempt: u32) {
    tokio::time::sleep(READ_RETRY_DELAY * attempt).await;
}

/// Some versions of an object, newest first.
#[derive(Debug, Default)]
pub(crate) struct VersionPage {
    pub(crate) heads: Vec<Head>,
    /// Whether older versions follow.
    pub(crate) more: bool,
    /// The id of the object's newest version, which may be on an earlier page; empty if there is no object.
    pub(crate) newest: String,
}

/// The place of a version in its head's omap.
pub(crate) struct VersionSlot(pub(crate) String);

/// The result of looking up a version in a head.
pub(crate) enum VersionLookup {
    /// The head changed since it was read.
    Changed,
    /// There is no such version.
    Absent,
    Version(VersionSlot, Box<Head>),
}

/// The reply to a read that asserted a version; `None` if the head has another version by now.
pub(crate) fn unless_changed(reply: nacre_client::Result<OpReply>) -> Result<Option<OpReply>> {
    match reply.and_then(|reply| reply.success()) {
        Err(error) if is_head_changed(&error) => Ok(None),
        reply => Ok(Some(reply?)),
    }
}

impl StoredObjects {
    /// The data in a head with this RADOS version; `None` if the head has another version by now.
    pub(crate) async fn read_inline_data(
        &self,
        name: &str,
        head: &Head,
        version: u64,
    ) -> Result<Option<Bytes>> {
        let mut op = ReadOp::new();
        // A read of length 0 would read everything.
        op.assert_version(version).read(0, head.max_inline_bytes().max(1));
        let reply = unless_changed(self.data.operate_read(name, op).await)?;
        reply.map(|mut reply| Ok(reply.output(1)?)).transpose()
    }

    /// The version in a slot of a head with this RADOS version; `None` if there is none, or if the head has another version by
    /// now.
    pub(crate) async fn stored_version(
        &self,
        name: &str,
        version: u64,
        slot: &str,
    ) -> Result<Option<StoredVersion>> {
        let mut op = ReadOp::new();
        op.assert_version(version).omap_get_vals_by_keys(vec![head_key(slot), data_key(slot)]);
        let reply = unless_changed(self.data.operate_read(name, op).await)?;
        let Some(mut reply) = reply else { return Ok(None) };
        decode_version(name, slot, reply.pairs(1)?)
    }

    /// Looks up the version `id` of an object whose head was read.
    pub(crate) async fn lookup_version(
        &self,
        name: &str,
        current: &CurrentObject,
        id: &str,
    ) -> Result<VersionLookup> {
        let slot = current.versions.and_then(|versions| versions.slot_of(id));
        let Some(slot) = slot else { return Ok(VersionLookup::Absent) };
        let mut op = ReadOp::new();
        op.assert_version(current.version).omap_get_vals_by_keys(vec![head_key(&slot)]);
        let reply = unless_changed(self.data.operate_read(name, op).await)?;
        let Some(mut reply) = reply else { return Ok(VersionLookup::Changed) };
        Ok(match decode_version(name, &slot, reply.pairs(1)?)? {
            Some(StoredVersion { head, .. }) => VersionLookup::Version(VersionSlot(slot), Box::new(head)),
            None => VersionLookup::Absent,
        })
    }

    /// The version `id` of an object, and the part of its data that is in the head.
    pub(crate) async fn read_version(&self, bucket_id: &str, key: &str, id: &str) -> Result<(Head, Bytes)> {
        check_id(id)?;
        let name = head_name(bucket_id, key);
        for attempt in 0..READ_ATTEMPTS {
            let current = self.current(bucket_id, key).await?.ok_or(Error::NoSuchVersion)?;
            let Some(versions) = current.versions else {
                if id != NULL_VERSION {
                    return Err(Error::NoSuchVersion);
                }
                match self.read_inline_data(&name, &current.head, current.version).await? {
                    Some(data) => return Ok((current.head, data)),
                    None => {
                        wait_before_retry(attempt).await;
                        continue;
                    }
                }
            };
            let slot = versions.slot_of(id).ok_or(Error::NoSuchVersion)?;
            let wanted = vec![head_key(&slot), data_key(&slot)];
            let found = match self.data.omap_get_vals_by_keys(&name, wanted).await {
                Err(error) if error.is_not_found() => return Err(Error::NoSuchVersion),
                found => found?,
            };
            match decode_version(&name, &slot, found)? {
                Some(StoredVersion { head, data }) => return Ok((head, data)),
                // Another version became `null` meanwhile.
                None if id == NULL_VERSION => wait_before_retry(attempt).await,
                None => return Err(Error::NoSuchVersion),
            }
        }
        Err(Error::Contended(key.to_owned()))
    }

    /// Opens a version for reading; without an id, the newest one.
    pub async fn open_version(&self, bucket_id: &str, key: &str, id: Option<&str>) -> Result<ObjectReader> {
        self.open_range_of_version(bucket_id, key, id, None).await
    }

    /// Like [`StoredObjects::open_version`]. If `range` is given, the caller reads nothing else.
    pub async fn open_range_of_version(
        &self,
        bucket_id: &str,
        key: &str,
        id: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<ObjectReader> {
        let reader = match (id, range) {
            (None, None) => self.open_object(bucket_id, key).await?,
            (None, Some(range)) => self.open_range(bucket_id, key, range).await?,
            (Some(id), _) => {
                let (head, data) = self.read_version(bucket_id, key, id).await?;
                let pool = self.data_pool(&head).await?;
                ObjectReader::new(head_name(bucket_id, key), head, data, pool)?
            }
        };
        reader.head.check_not_delete_marker(id.is_some())?;
        Ok(reader)
    }

    /// Like [`StoredObjects::open_version`], for a caller that needs only the head.
    pub async fn open_head(&self, bucket_id: &str, key: &str, id: Option<&str>) -> Result<ObjectReader> {
        let head = match id {
            None => self.head(bucket_id, key).await?.ok_or(Error::NoSuchKey)?.0,
            Some(id) => self.read_version(bucket_id, key, id).await?.0,
        };
        head.check_not_delete_marker(id.is_some())?;
        Ok(ObjectReader::head_only(head, self.data.clone()))
    }

    /// The head of a version; without an id, that of the newest one.
    pub async fn head_of_version(&self, bucket_id: &str, key: &str, id: Option<&str>) -> Result<Head> {
        let head = match id {
            None => self.head(bucket_id, key).await?.ok_or(Error::NoSuchKey)?.0,
            Some(id) => self.read_version(bucket_id, key, id).await?.0,
        };
        head.check_not_delete_marker(id.is_some())?;
        Ok(head)
    }

    /// At most `max` versions of an object after the version `after`, newest first; `None` if the position of `after` is not
    /// known. An object that never had versions has one.
    pub(crate) async fn versions(
        &self,
        bucket_id: &str,
        key: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<Option<VersionPage>> {
        let name = head_name(bucket_id, key);
        let Some(current) = self.current(bucket_id, key).await? else {
            return Ok(Some(VersionPage::default()));
        };
        let mut page = VersionPage { newest: current.head.version_id().to_owned(), ..VersionPage::default() };
        let Some(versions) = current.versions else {
            page.heads.extend(after.is_none().then_some(current.head));
            return Ok(Some(page));
        };
        let mut behind = match after {
            None => Bytes::new(),
            Some(id) => match versions.slot_of(id) {
                Some(slot) => head_key(&slot),
                // The version `null` is gone.
                None => return Ok(None),
            },
        };
        loop {
            let room = (max - page.heads.len()) as u64;
            let (heads, more) = self.versions_after(&name, &mut behind, room.min(PAGE)).await?;
            page.heads.extend(heads);
            page.more = more;
            if !more || page.heads.len() >= max {
                break;
            }
        }
        // The head may have changed since it was read.
        if after.is_none() {
            page.newest = page.heads.first().map(|head| head.version_id().to_owned()).unwrap_or_default();
        }
        Ok(Some(page))
    }

    /// At most `max` versions of an object with versions, newest first, behind the omap key `behind`, which becomes that of
    /// the last one. Returns whether there are more.
    async fn versions_after(&self, name: &str, behind: &mut Bytes, max: u64) -> Result<(Vec<Head>, bool)> {
        let page = match self.data.omap_get_vals(name, behind.clone(), "v", max).await {
            Err(error) if error.is_not_found() => return Ok((Vec::new(), false)),
            page => page?,
        };
        let mut heads = Vec::with_capacity(page.entries.len());
        for (key, value) in &page.entries {
            heads.push(record::decode::<Head>(name, value)?);
            *behind = key.clone();
        }
        Ok((heads, page.more))
    }

    /// All tails of an object, in all its versions.
    pub(crate) async fn referenced_tails(&self, bucket_id: &str, key: &str) -> Result<Vec<Tails>> {
        let name = head_name(bucket_id, key);
        let mut asked = MIN_READ_BYTES;
        let (current, data) = loop {
            let mut op = ReadOp::new();
            op.get_xattrs().read(0, asked);
            let reply = self.data.operate_read(&name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                reply => reply?,
            };
            let attributes = reply.pairs(0)?;
            let Some(current) = CurrentObject::decode(&name, reply.version, &attributes)? else {
                return Ok(Vec::new());
            };
            let data = reply.output(1)?;
            // Of the data, only a manifest is needed.
            let is_cut = matches!(current.head.data, DataLocation::Parts(_)) && data.len() as u64 == asked;
            if !is_cut || asked == MAX_HEAD_BYTES {
                break (current, data);
            }
            asked = MAX_HEAD_BYTES;
        };
        // If the object has versions, the same tails may be listed again below.
        let mut all = current.head.tails(&name, &data)?;
        if current.versions.is_none() {
            return Ok(all);
        }
        let mut after = Bytes::new();
        loop {
            let page = match self.data.omap_get_vals(&name, after.clone(), "v", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(all),
                page => page?,
            };
            for (key, value) in &page.entries {
                let head = record::decode::<Head>(&name, value)?;
                let data = match head.data {
                    DataLocation::Parts(_) => {
                        let wanted = Bytes::from([b"d", &key[1..]].concat());
                        let found = self.data.omap_get_vals_by_keys(&name, vec![wanted.clone()]).await;
                        match found {
                            Err(error) if error.is_not_found() => continue,
                            found => found?.remove(&wanted),
                        }
                    }
                    _ => Some(Bytes::new()),
                };
                // The version was removed meanwhile; its removal discards its tails.
                let Some(data) = data else { continue };
                all.extend(head.tails(&name, &data)?);
            }
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => return Ok(all),
            }
        }
    }

    /// The version that the write with this tag made, with its manifest, if it exists.
    pub(crate) async fn version_by_tag(
        &self,
        bucket_id: &str,
        key: &str,
        tag: &str,
    ) -> Result<Option<ObjectReader>> {
        let name = head_name(bucket_id, key);
        let Some(current) = self.current(bucket_id, key).await? else { return Ok(None) };
        let mut found = Some(current.head).filter(|head| head.tag == tag);
        // By their places: the version `null` that ends a page may be removed before the next page is read.
        let (mut behind, mut more) = (Bytes::new(), current.versions.is_some());
        while found.is_none() && more {
            let heads;
            (heads, more) = self.versions_after(&name, &mut behind, PAGE).await?;
            found = heads.into_iter().find(|head| head.tag == tag);
        }
        let Some(head) = found else { return Ok(None) };
        match self.open_version(bucket_id, key, Some(head.version_id())).await {
            Ok(reader) if reader.head.tag == tag => Ok(Some(reader)),
            Ok(_) | Err(Error::NoSuchKey | Error::NoSuchVersion) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Decodes the version in a slot from entries of a head's omap.
pub(crate) fn decode_version(
    name: &str,
    slot: &str,
    mut found: BTreeMap<Bytes, Bytes>,
) -> Result<Option<StoredVersion>> {
    let Some(head) = found.remove(&head_key(slot)) else { return Ok(None) };
    let head = record::decode::<Head>(name, &head)?;
    Ok(Some(StoredVersion { head, data: found.remove(&data_key(slot)).unwrap_or_default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first() {
        let tag = "0123456789abcdef0123456789abcdef";
        assert!(slot(2, tag) < slot(1, NULL_VERSION));
        assert!(slot(u64::from(u32::MAX), NULL_VERSION) < slot(9, tag));
        check_id(&slot(7, tag)).unwrap();
        check_id(NULL_VERSION).unwrap();
        for wrong in ["", "NULL", "x", &slot(7, NULL_VERSION), &slot(7, tag).to_uppercase()] {
            assert!(check_id(wrong).is_err(), "{wrong}");
        }
    }
}
