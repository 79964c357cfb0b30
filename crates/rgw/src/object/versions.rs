//! Versions of an object: all of them in the omap of its head, the newest in the head's attributes and data once more, so
//! that who reads the object as it is now need not know of versions (docs/format/rgw.md).
//!
//! Every change is one compare-and-swap of the head, and made again on what is there where somebody else was faster. What an
//! object without versions was becomes the version `null` with the first write that makes another.

use super::read_size::SMALLEST;
use super::{Begun, Condition, Data, ETAG, HEAD, HEAD_BYTES, Head, Manifest, Put, Reader, head_name};
use crate::bucket::{Bucket, Versioning};
use crate::error::{Error, Result};
use crate::gateway::Gateway;
use crate::index::{Entry, Outcome, Stats, Tails};
use crate::record;
use bytes::Bytes;
use nacre_client::{OpReply, ReadOp, WriteOp};
use nacre_types::encoding::{DecodeError, Versioned};
use nacre_types::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The attribute of a head that says which versions there are; absent where the object never had any.
const VERSIONS: &str = "rgw.versions";
/// The id of the version that is made where versions are not wanted.
pub(crate) const NULL: &str = "null";
/// Digits of a version's order in its id; the tag of its write follows.
const ORDER_DIGITS: usize = 16;
const TAG_DIGITS: usize = 32;
/// Attempts at a change that others change at the same time, and what is waited between them, times their number.
const ATTEMPTS: u32 = 40;
const AGAIN: Duration = Duration::from_millis(1);
/// Versions read at a time.
const PAGE: u64 = 1000;

/// What a head says of its versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Versions {
    /// The order of the version that was made last; the next one has a higher one.
    last: u64,
    /// That of the version `null`.
    null: Option<u64>,
    /// What all versions come to, without delete markers.
    held: Stats,
}

impl Versioned for Versions {
    const NAME: &'static str = "versions of an object";
}

/// A head as it is: the newest version, and which others there are.
pub(crate) struct Stand {
    pub(crate) head: Head,
    versions: Option<Versions>,
    /// The RADOS version.
    pub(crate) version: u64,
}

/// A version with what is in the head of its data.
struct Stored {
    head: Head,
    data: Bytes,
}

/// Where a version lies among those of its head: newer ones first.
fn slot(order: u64, suffix: &str) -> String {
    format!("{:0ORDER_DIGITS$x}{suffix}", u64::MAX - order)
}

fn head_key(slot: &str) -> Bytes {
    format!("v{slot}").into()
}

fn data_key(slot: &str) -> Bytes {
    format!("d{slot}").into()
}

/// Refuses what never was a version's id.
fn check_id(id: &str) -> Result<()> {
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if id == NULL || (id.len() == ORDER_DIGITS + TAG_DIGITS && id.bytes().all(digits)) {
        Ok(())
    } else {
        Err(Error::InvalidVersionId)
    }
}

impl Versions {
    /// Where the version of that id lies, if there is one.
    fn slot_of(&self, id: &str) -> Option<String> {
        if id == NULL { self.null.map(|order| slot(order, NULL)) } else { Some(id.to_owned()) }
    }
}

impl Head {
    /// What it adds to sums.
    fn counted(&self) -> Stats {
        if self.marker { Stats::default() } else { Stats { objects: 1, bytes: self.size } }
    }

    /// The id of the version that it is.
    pub(crate) fn version_id(&self) -> &str {
        if self.version.is_empty() { NULL } else { &self.version }
    }

    /// What has its data beside the RADOS object of the head; `inline` is what that has.
    fn tails(&self, name: &str, inline: &[u8]) -> Result<Vec<Tails>> {
        Ok(match &self.data {
            Data::Inline => Vec::new(),
            Data::Tails(tails) => vec![tails.clone()],
            Data::Parts(_) => {
                let manifest = record::decode::<Manifest>(name, inline)?;
                manifest.parts.into_iter().map(|part| part.tails).collect()
            }
        })
    }

    /// The answer to who reads it: a delete marker is not read.
    pub(crate) fn check_marker(&self, named: bool) -> Result<()> {
        if self.marker {
            let (version, mtime_ns) = (self.version_id().to_owned(), self.mtime_ns);
            return Err(Error::DeleteMarker { version, mtime_ns, named });
        }
        Ok(())
    }
}

impl Stand {
    fn of(name: &str, reply: &mut OpReply) -> Result<Stand> {
        let mut attributes = reply.pairs(0)?;
        let head = attributes.remove(HEAD.as_bytes()).ok_or_else(|| Error::Corrupt {
            name: name.to_owned(),
            source: DecodeError::Corrupt { what: "object head", detail: "there is none".into() },
        })?;
        let versions = attributes.remove(VERSIONS.as_bytes());
        let versions = versions.map(|bytes| record::decode(name, &bytes)).transpose()?;
        Ok(Stand { head: record::decode(name, &head)?, versions, version: reply.version })
    }

    /// The index entry that it stands for, but for tails.
    pub(super) fn entry(&self) -> Entry {
        let mut entry = self.head.entry(self.version, Vec::new());
        entry.held = self.versions.map(|versions| versions.held);
        entry
    }
}

/// Whether somebody else changed the head since it was read.
fn is_overtaken(error: &nacre_client::Error) -> bool {
    matches!(error.errno(), Errno::ERANGE | Errno::EOVERFLOW | Errno::EEXIST) || error.is_not_found()
}

async fn wait(attempt: u32) {
    tokio::time::sleep(AGAIN * attempt).await;
}

/// A change of a head's versions, as one operation.
struct Edit {
    op: WriteOp,
    set: Vec<(Bytes, Bytes)>,
    gone: Vec<Bytes>,
    versions: Versions,
}

impl Edit {
    fn add(&mut self, slot: &str, stored: &Stored) {
        self.set.push((head_key(slot), record::encode(&stored.head)));
        if !stored.data.is_empty() {
            self.set.push((data_key(slot), stored.data.clone()));
        }
        self.versions.held.add(stored.head.counted());
    }

    fn remove(&mut self, slot: &str, head: &Head) {
        self.gone.extend([head_key(slot), data_key(slot)]);
        self.versions.held.subtract(head.counted());
        if head.version == NULL {
            self.versions.null = None;
        }
    }

    /// Makes a version the current one.
    fn show(&mut self, stored: &Stored) {
        self.op
            .write_full(stored.data.clone())
            .set_xattr(HEAD, record::encode(&stored.head))
            .set_xattr(ETAG, stored.head.etag.clone());
    }

    fn done(mut self) -> (WriteOp, Stats) {
        self.op.set_xattr(VERSIONS, record::encode(&self.versions));
        if !self.gone.is_empty() {
            self.op.omap_rm_keys(self.gone);
        }
        if !self.set.is_empty() {
            self.op.omap_set(self.set);
        }
        (self.op, self.versions.held)
    }
}

/// Adds a version to an object of a bucket that has versions, or replaces the version `null`.
pub(super) async fn add(
    gateway: &Arc<Gateway>,
    put: Put,
    mut begun: Option<Begun>,
    data: Bytes,
) -> Result<Head> {
    let Put { bucket, key, mut head, condition } = put;
    let suspended = bucket.versioning == Versioning::Suspended;
    let name = head_name(&bucket, &key);
    for attempt in 0..ATTEMPTS {
        let begin = async {
            match begun.take() {
                Some(begun) => Ok(begun),
                None => Begun::begin(gateway, &bucket, &key, &head.tag, None).await,
            }
        };
        let (own, stand) = futures::join!(begin, gateway.stand(&bucket, &key));
        let mut own = own?;
        let edited = match stand {
            Ok(stand) => edit(gateway, &name, stand, &mut head, &data, (&condition, suspended)).await,
            Err(error) => Err(error),
        };
        let (edit, replaced) = match edited {
            Ok(Some(edited)) => edited,
            Ok(None) => {
                begun = Some(own);
                wait(attempt).await;
                continue;
            }
            Err(error) => {
                own.fail(&error).await;
                return Err(error);
            }
        };
        if let Err(error) = own.replaces(&bucket, replaced).await {
            own.fail(&error).await;
            return Err(error);
        }
        let (op, held) = edit.done();
        match gateway.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
            Ok(reply) => {
                let entry = Entry { held: Some(held), ..head.entry(reply.version, Vec::new()) };
                own.settle(Outcome::Put(entry)).await;
                return Ok(head);
            }
            Err(error) if is_overtaken(&error) => {
                begun = Some(own);
                wait(attempt).await;
            }
            Err(error) => {
                let error = Error::from(error);
                own.fail(&error).await;
                return Err(error);
            }
        }
    }
    let error = Error::Contended(key);
    if let Some(own) = begun {
        own.fail(&error).await;
    }
    Err(error)
}

/// The operation that makes `head` the newest version on what is there, and what it leaves unnamed; `None` where that changed
/// meanwhile. Fails where it would replace a locked version: who began while the bucket was suspended may come to this
/// point when that is long over.
async fn edit(
    gateway: &Gateway,
    name: &str,
    stand: Option<Stand>,
    head: &mut Head,
    data: &Bytes,
    (condition, null): (&Condition, bool),
) -> Result<Option<(Edit, Vec<Tails>)>> {
    let there = stand.as_ref().filter(|stand| !stand.head.marker);
    condition.check(there.map(|stand| &stand.head), there.map_or(0, |stand| stand.version))?;
    let mut op = WriteOp::new();
    match &stand {
        Some(stand) => op.assert_version(stand.version),
        None => op.create(true),
    };
    let (set, gone, versions) = (Vec::new(), Vec::new(), Versions::default());
    let mut edit = Edit { op, set, gone, versions };
    let mut replaced = Vec::new();
    match stand {
        None => {}
        Some(Stand { versions: Some(versions), version, .. }) => {
            edit.versions = versions;
            if null && let Some(order) = versions.null {
                let slot = slot(order, NULL);
                let Some(old) = gateway.stored(name, version, &slot).await? else { return Ok(None) };
                old.head.check_lock(false)?;
                replaced = old.head.tails(name, &old.data)?;
                edit.remove(&slot, &old.head);
            }
        }
        Some(Stand { head: old, versions: None, version }) => {
            let Some(data) = gateway.inline(name, &old, version).await? else { return Ok(None) };
            if null {
                old.check_lock(false)?;
                replaced = old.tails(name, &data)?;
            } else {
                let old = Head { version: NULL.to_owned(), ..old };
                edit.versions = Versions { last: 1, null: Some(1), held: Stats::default() };
                edit.add(&slot(1, NULL), &Stored { head: old, data });
            }
        }
    }
    edit.versions.last += 1;
    let order = edit.versions.last;
    let slot = slot(order, if null { NULL } else { &head.tag });
    if null {
        NULL.clone_into(&mut head.version);
        edit.versions.null = Some(order);
    } else {
        head.version.clone_from(&slot);
    }
    let stored = Stored { head: head.clone(), data: data.clone() };
    edit.add(&slot, &stored);
    edit.show(&stored);
    Ok(Some((edit, replaced)))
}

/// What a reply to a read that asserted a version says; `None` where the head is another one by now.
fn unless_overtaken(reply: nacre_client::Result<OpReply>) -> Result<Option<OpReply>> {
    match reply.and_then(|reply| reply.success()) {
        Err(error) if is_overtaken(&error) => Ok(None),
        reply => Ok(Some(reply?)),
    }
}

impl Gateway {
    /// A head with what it says of versions.
    pub(crate) async fn stand(&self, bucket: &Bucket, key: &str) -> Result<Option<Stand>> {
        let name = head_name(bucket, key);
        let mut op = ReadOp::new();
        op.get_xattrs();
        match self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success()) {
            Err(error) if error.is_not_found() => Ok(None),
            reply => Ok(Some(Stand::of(&name, &mut reply?)?)),
        }
    }

    /// The index entry that a key's head stands for now, with what the object has beside its head where it never had
    /// versions.
    pub(crate) async fn head_with_tails(&self, bucket: &Bucket, key: &str) -> Result<Option<Entry>> {
        let name = head_name(bucket, key);
        for attempt in 0..ATTEMPTS {
            let Some(stand) = self.stand(bucket, key).await? else { return Ok(None) };
            let entry = stand.entry();
            if entry.held.is_some() {
                return Ok(Some(entry));
            }
            let inline = match stand.head.data {
                Data::Parts(_) => self.inline(&name, &stand.head, stand.version).await?,
                Data::Inline | Data::Tails(_) => Some(Bytes::new()),
            };
            let Some(inline) = inline else {
                wait(attempt).await;
                continue;
            };
            return Ok(Some(Entry { tails: stand.head.tails(&name, &inline)?, ..entry }));
        }
        Err(Error::Contended(key.to_owned()))
    }

    /// What a head of that RADOS version has of its data; `None` where the head is another one by now.
    async fn inline(&self, name: &str, head: &Head, version: u64) -> Result<Option<Bytes>> {
        let mut op = ReadOp::new();
        // A read of no length would read everything.
        op.assert_version(version).read(0, head.inline_bytes().max(1));
        let reply = unless_overtaken(self.pools.data.operate_read(name, op).await)?;
        reply.map(|mut reply| Ok(reply.output(1)?)).transpose()
    }

    /// The version in a slot of a head of that RADOS version; `None` where the head is another one by now, too.
    async fn stored(&self, name: &str, version: u64, slot: &str) -> Result<Option<Stored>> {
        let mut op = ReadOp::new();
        op.assert_version(version).omap_get_vals_by_keys(vec![head_key(slot), data_key(slot)]);
        let reply = unless_overtaken(self.pools.data.operate_read(name, op).await)?;
        let Some(mut reply) = reply else { return Ok(None) };
        stored_of(name, slot, reply.pairs(1)?)
    }

    /// The version `id` of an object and its data, as far as the head has it.
    async fn version(&self, bucket: &Bucket, key: &str, id: &str) -> Result<(Head, Bytes)> {
        check_id(id)?;
        let name = head_name(bucket, key);
        for attempt in 0..ATTEMPTS {
            let stand = self.stand(bucket, key).await?.ok_or(Error::NoSuchVersion)?;
            let Some(versions) = stand.versions else {
                if id != NULL {
                    return Err(Error::NoSuchVersion);
                }
                match self.inline(&name, &stand.head, stand.version).await? {
                    Some(data) => return Ok((stand.head, data)),
                    None => {
                        wait(attempt).await;
                        continue;
                    }
                }
            };
            let slot = versions.slot_of(id).ok_or(Error::NoSuchVersion)?;
            let wanted = vec![head_key(&slot), data_key(&slot)];
            let found = match self.pools.data.omap_get_vals_by_keys(&name, wanted).await {
                Err(error) if error.is_not_found() => return Err(Error::NoSuchVersion),
                found => found?,
            };
            match stored_of(&name, &slot, found)? {
                Some(Stored { head, data }) => return Ok((head, data)),
                // Another one was given that id meanwhile.
                None if id == NULL => wait(attempt).await,
                None => return Err(Error::NoSuchVersion),
            }
        }
        Err(Error::Contended(key.to_owned()))
    }

    /// Opens a version for reading; without an id the newest one.
    pub(crate) async fn open_version(&self, bucket: &Bucket, key: &str, id: Option<&str>) -> Result<Reader> {
        self.open_range_of_version(bucket, key, id, None).await
    }

    /// As [`Gateway::open_version`], for who may read nothing but `range`.
    pub(crate) async fn open_range_of_version(
        &self,
        bucket: &Bucket,
        key: &str,
        id: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<Reader> {
        let reader = match (id, range) {
            (None, None) => self.open_object(bucket, key).await?,
            (None, Some(range)) => self.open_range(bucket, key, range).await?,
            (Some(id), _) => {
                let (head, data) = self.version(bucket, key, id).await?;
                Reader::new(head_name(bucket, key), head, data, self.pools.data.clone())?
            }
        };
        reader.head.check_marker(id.is_some())?;
        Ok(reader)
    }

    /// As [`Gateway::open_version`], for who asks for nothing but the head.
    pub(crate) async fn open_head(&self, bucket: &Bucket, key: &str, id: Option<&str>) -> Result<Reader> {
        let head = match id {
            None => self.head(bucket, key).await?.ok_or(Error::NoSuchKey)?.0,
            Some(id) => self.version(bucket, key, id).await?.0,
        };
        head.check_marker(id.is_some())?;
        Ok(Reader::bare(head, self.pools.data.clone()))
    }

    /// The head of a version; without an id that of the newest one.
    pub(crate) async fn head_of_version(&self, bucket: &Bucket, key: &str, id: Option<&str>) -> Result<Head> {
        let head = match id {
            None => self.stand(bucket, key).await?.ok_or(Error::NoSuchKey)?.head,
            Some(id) => self.version(bucket, key, id).await?.0,
        };
        head.check_marker(id.is_some())?;
        Ok(head)
    }

    /// Changes what a version says of itself, but neither its data nor what the index has of it; without an id the newest.
    /// `change` may refuse. Returns what the version is then.
    pub(crate) async fn modify_version(
        &self,
        bucket: &Bucket,
        key: &str,
        id: Option<&str>,
        mut change: impl FnMut(&mut Head) -> Result<()>,
    ) -> Result<Head> {
        let name = head_name(bucket, key);
        id.map_or(Ok(()), check_id)?;
        for attempt in 0..ATTEMPTS {
            let absent = if id.is_some() { Error::NoSuchVersion } else { Error::NoSuchKey };
            let Stand { head: newest, versions, version } = self.stand(bucket, key).await?.ok_or(absent)?;
            let shown = id.is_none_or(|id| id == newest.version_id());
            let mut op = WriteOp::new();
            op.assert_version(version);
            let head = match versions {
                None if !shown => return Err(Error::NoSuchVersion),
                None => {
                    let mut head = newest;
                    change(&mut head)?;
                    op.set_xattr(HEAD, record::encode(&head));
                    head
                }
                Some(versions) => {
                    let slot = versions.slot_of(id.unwrap_or(newest.version_id()));
                    let slot = slot.ok_or(Error::NoSuchVersion)?;
                    let mut head = if shown {
                        newest
                    } else {
                        let wanted = vec![head_key(&slot)];
                        let found = self.pools.data.omap_get_vals_by_keys(&name, wanted).await;
                        let found = match found {
                            Err(error) if error.is_not_found() => return Err(Error::NoSuchVersion),
                            found => stored_of(&name, &slot, found?)?,
                        };
                        found.ok_or(Error::NoSuchVersion)?.head
                    };
                    head.check_marker(id.is_some())?;
                    change(&mut head)?;
                    let encoded = record::encode(&head);
                    if shown {
                        op.set_xattr(HEAD, encoded.clone());
                    }
                    op.omap_set(vec![(head_key(&slot), encoded)]);
                    head
                }
            };
            match self.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
                Ok(_) => return Ok(head),
                Err(error) if is_overtaken(&error) => wait(attempt).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended(key.to_owned()))
    }

    /// Removes a version for good, if `may` lets it, which is told whether it is the newest; returns what it was, `None` where
    /// there was none.
    pub(crate) async fn remove_version(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        key: &str,
        id: &str,
        may: impl Fn(&Head, bool) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Option<Head>> {
        check_id(id)?;
        let (gateway, bucket, key, id) =
            (Arc::clone(self), Arc::clone(bucket), key.to_owned(), id.to_owned());
        // Whoever asked for it may go away in between.
        let removal = tokio::spawn(async move {
            let mut begun = None;
            for attempt in 0..ATTEMPTS {
                match gateway.try_remove_version(&bucket, &key, &id, &may, &mut begun).await {
                    Ok(None) => wait(attempt).await,
                    Ok(Some(removed)) => return Ok(removed),
                    Err(error) => {
                        if let Some(begun) = begun {
                            Begun::fail(begun, &error).await;
                        }
                        return Err(error);
                    }
                }
            }
            Err(Error::Contended(key))
        });
        removal.await.map_err(Error::task("the removal of a version"))?
    }

    /// An attempt; `None` where somebody else was faster.
    async fn try_remove_version(
        self: &Arc<Gateway>,
        bucket: &Arc<Bucket>,
        key: &str,
        id: &str,
        may: &(impl Fn(&Head, bool) -> Result<()> + Sync),
        begun: &mut Option<Begun>,
    ) -> Result<Option<Option<Head>>> {
        let name = head_name(bucket, key);
        let Some(stand) = self.stand(bucket, key).await? else { return Ok(Some(None)) };
        let slot = match &stand.versions {
            None if id == NULL => None,
            None => return Ok(Some(None)),
            Some(versions) => match versions.slot_of(id) {
                None => return Ok(Some(None)),
                slot => slot,
            },
        };
        let mut op = WriteOp::new();
        op.assert_version(stand.version);
        let (head, replaced, op, entry) = match (stand.versions, slot) {
            (Some(versions), Some(slot)) => {
                let mut read = ReadOp::new();
                read.assert_version(stand.version)
                    .omap_get_vals_by_keys(vec![head_key(&slot), data_key(&slot)])
                    .omap_get_vals("", "v", 2);
                let reply = unless_overtaken(self.pools.data.operate_read(&name, read).await)?;
                let Some(mut reply) = reply else { return Ok(None) };
                let (found, newest) = (reply.pairs(1)?, reply.omap_vals(2)?.entries);
                let Some(Stored { head, data }) = stored_of(&name, &slot, found)? else {
                    return Ok(Some(None));
                };
                let is_newest = newest.first().is_some_and(|(key, _)| *key == head_key(&slot));
                may(&head, is_newest)?;
                let replaced = head.tails(&name, &data)?;
                let mut edit = Edit { op, set: Vec::new(), gone: Vec::new(), versions };
                edit.remove(&slot, &head);
                let mut shown = stand.head;
                if let (true, Some((next, _))) = (is_newest, newest.get(1)) {
                    let next = String::from_utf8_lossy(&next[1..]).into_owned();
                    let Some(next) = self.stored(&name, stand.version, &next).await? else { return Ok(None) };
                    edit.show(&next);
                    shown = next.head;
                }
                let last = is_newest && newest.len() == 1;
                let (op, held) =
                    if last { (edit.op.remove().to_owned(), Stats::default()) } else { edit.done() };
                let entry = Entry { held: Some(held), ..shown.entry(0, Vec::new()) };
                (head, replaced, op, (!last).then_some(entry))
            }
            // What it has beside the head its entry says.
            _ => {
                may(&stand.head, true)?;
                op.remove();
                (stand.head, Vec::new(), op, None)
            }
        };
        let own = match begun {
            Some(own) => own,
            None => begun.insert(Begun::begin(self, bucket, key, &self.tag(), None).await?),
        };
        own.replaces(bucket, replaced).await?;
        match self.pools.data.operate(&name, op).await.and_then(|reply| reply.success()) {
            Ok(reply) => {
                let version = reply.version;
                let outcome = match entry {
                    Some(entry) => Outcome::Put(Entry { version, ..entry }),
                    None => Outcome::Removed(version),
                };
                if let Some(own) = begun.take() {
                    own.settle(outcome).await;
                }
                Ok(Some(Some(head)))
            }
            Err(error) if is_overtaken(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// At most `max` versions of an object behind the one of id `after`, newest first, and whether there are more. An
    /// object that never had versions has one.
    pub(crate) async fn versions(
        &self,
        bucket: &Bucket,
        key: &str,
        after: Option<&str>,
        max: usize,
    ) -> Result<(Vec<Head>, bool)> {
        let name = head_name(bucket, key);
        let Some(stand) = self.stand(bucket, key).await? else { return Ok((Vec::new(), false)) };
        let Some(versions) = stand.versions else {
            return Ok((if after.is_none() { vec![stand.head] } else { Vec::new() }, false));
        };
        let mut behind = match after {
            None => Bytes::new(),
            Some(id) => match versions.slot_of(id) {
                Some(slot) => head_key(&slot),
                // It is gone, and nobody knows where it was.
                None => return Ok((Vec::new(), false)),
            },
        };
        let mut heads = Vec::new();
        loop {
            let room = (max - heads.len()) as u64;
            let page = match self.pools.data.omap_get_vals(&name, behind.clone(), "v", room.min(PAGE)).await {
                Err(error) if error.is_not_found() => return Ok((heads, false)),
                page => page?,
            };
            for (key, value) in &page.entries {
                heads.push(record::decode::<Head>(&name, value)?);
                behind = key.clone();
            }
            if !page.more || heads.len() >= max {
                return Ok((heads, page.more));
            }
        }
    }

    /// All that an object has beside the RADOS object of its head, in all its versions.
    pub(crate) async fn named_tails(&self, bucket: &Bucket, key: &str) -> Result<Vec<Tails>> {
        let name = head_name(bucket, key);
        let mut asked = SMALLEST;
        let (stand, data) = loop {
            let mut op = ReadOp::new();
            op.get_xattrs().read(0, asked);
            let reply = self.pools.data.operate_read(&name, op).await.and_then(|reply| reply.success());
            let mut reply = match reply {
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                reply => reply?,
            };
            let (stand, data) = (Stand::of(&name, &mut reply)?, reply.output(1)?);
            // Nothing but a manifest is needed.
            let is_cut = matches!(stand.head.data, Data::Parts(_)) && data.len() as u64 == asked;
            if !is_cut || asked == HEAD_BYTES {
                break (stand, data);
            }
            asked = HEAD_BYTES;
        };
        // Of an object with versions this may be listed, too.
        let mut all = stand.head.tails(&name, &data)?;
        if stand.versions.is_none() {
            return Ok(all);
        }
        let mut after = Bytes::new();
        loop {
            let page = match self.pools.data.omap_get_vals(&name, after.clone(), "v", PAGE).await {
                Err(error) if error.is_not_found() => return Ok(all),
                page => page?,
            };
            for (key, value) in &page.entries {
                let head = record::decode::<Head>(&name, value)?;
                let data = match head.data {
                    Data::Parts(_) => {
                        let wanted = Bytes::from([b"d", &key[1..]].concat());
                        let found = self.pools.data.omap_get_vals_by_keys(&name, vec![wanted.clone()]).await;
                        match found {
                            Err(error) if error.is_not_found() => continue,
                            found => found?.remove(&wanted),
                        }
                    }
                    _ => Some(Bytes::new()),
                };
                // Removed meanwhile: its remover knows what belonged to it.
                let Some(data) = data else { continue };
                all.extend(head.tails(&name, &data)?);
            }
            match page.entries.last() {
                Some((key, _)) if page.more => after = key.clone(),
                _ => return Ok(all),
            }
        }
    }

    /// The version that the write of that tag made, with its manifest, if it is there.
    pub(crate) async fn made_by(&self, bucket: &Bucket, key: &str, tag: &str) -> Result<Option<Reader>> {
        let mut after: Option<String> = None;
        loop {
            let (heads, more) = self.versions(bucket, key, after.as_deref(), PAGE as usize).await?;
            if let Some(head) = heads.iter().find(|head| head.tag == tag) {
                return match self.open_version(bucket, key, Some(head.version_id())).await {
                    Ok(reader) if reader.head.tag == tag => Ok(Some(reader)),
                    Ok(_) | Err(Error::NoSuchKey | Error::NoSuchVersion) => Ok(None),
                    Err(error) => Err(error),
                };
            }
            match heads.last() {
                Some(last) if more => after = Some(last.version_id().to_owned()),
                _ => return Ok(None),
            }
        }
    }
}

/// A version out of what a head's omap has of it.
fn stored_of(name: &str, slot: &str, mut found: BTreeMap<Bytes, Bytes>) -> Result<Option<Stored>> {
    let Some(head) = found.remove(&head_key(slot)) else { return Ok(None) };
    let head = record::decode::<Head>(name, &head)?;
    Ok(Some(Stored { head, data: found.remove(&data_key(slot)).unwrap_or_default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first() {
        let tag = "0123456789abcdef0123456789abcdef";
        assert!(slot(2, tag) < slot(1, NULL));
        assert!(slot(u64::from(u32::MAX), NULL) < slot(9, tag));
        check_id(&slot(7, tag)).unwrap();
        check_id(NULL).unwrap();
        for wrong in ["", "NULL", "x", &slot(7, NULL), &slot(7, tag).to_uppercase()] {
            assert!(check_id(wrong).is_err(), "{wrong}");
        }
    }
}
