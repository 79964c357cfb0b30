//! One object during a request: the store's state, overlaid by the steps so far.
//!
//! The transaction under construction is the overlay: reads replay it over the store's contents, so there is no second copy, and a request
//! that only writes has no overhead.

use crate::context::ObjectContext;
use crate::{CopiedObject, ExecEnv, Limits, Origin, WatchNotifyEffect};
use bytes::{Bytes, BytesMut};
use nacre_objectstore::{ReadStore, StoreError};
use nacre_types::errno::Errno;
use nacre_types::ids::{Epoch, ReqId};
use nacre_types::object::ObjectId;
use nacre_types::op::{OI_ATTR, ObjectInfo, WatchInfo, object_flag, user_attr};
use nacre_types::payload::Payload;
use nacre_types::txn::TxnOp;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use uuid::Uuid;

/// Entries, and bytes of entries, read from the store at a time during an omap scan.
const OMAP_SCAN_ENTRIES: usize = 1025;
const OMAP_SCAN_BYTES: usize = 4 << 20;

/// See the module's documentation.
pub(crate) struct OpContext<'a> {
    env: &'a ExecEnv<'a>,
    oid: &'a ObjectId,
    now: ObjectContext,
    /// Whether the store's object is visible below the steps.
    based: bool,
    steps: Vec<TxnOp>,
    /// The object's info changed without a step.
    info_changed: bool,
    effects: Vec<WatchNotifyEffect>,
    /// Whether a part of the object could not be read.
    damaged: Cell<bool>,
    /// The user version of the copy that replaced the object.
    copied_version: Option<u64>,
    /// The epoch of the map by which the promoted copy was read.
    promoted_at: Option<Epoch>,
    for_tier: bool,
    watchers_changed: bool,
}

impl<'a> OpContext<'a> {
    pub(crate) fn new(
        env: &'a ExecEnv<'a>,
        oid: &'a ObjectId,
        context: &ObjectContext,
        ops: usize,
    ) -> OpContext<'a> {
        // The caller adds the log entry and the PG's info. Room for them saves a reallocation.
        let steps = Vec::with_capacity(ops + 4);
        OpContext {
            env,
            oid,
            now: context.clone(),
            based: context.exists,
            steps,
            info_changed: false,
            effects: Vec::new(),
            damaged: Cell::new(false),
            copied_version: None,
            promoted_at: None,
            for_tier: false,
            watchers_changed: false,
        }
    }

    /// The request comes from the other pool of a tier.
    pub(crate) fn set_from_tier_pool(&mut self) {
        self.for_tier = true;
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.get()
    }

    pub(crate) fn limits(&self) -> &'a Limits {
        self.env.limits
    }

    /// The requesting client.
    pub(crate) fn origin(&self) -> Origin {
        self.env.origin
    }

    /// Whether the client may watch one more object.
    pub(crate) fn may_watch(&self) -> bool {
        let (own, all) = (self.env.watches)(self.env.origin.client);
        let limits = self.env.limits;
        let on_object = self.now.info.watchers.len();
        on_object < limits.max_object_watches && own < limits.max_client_watches && all < limits.max_watches
    }

    /// The time of day, nanoseconds since 1970.
    pub(crate) fn wall_ns(&self) -> u64 {
        (self.env.wall_ns)()
    }

    /// Returns a new unique identifier.
    pub(crate) fn fresh_uuid(&self) -> Uuid {
        (self.env.fresh_uuid)()
    }

    /// Whether the object exists for users; a whiteout does not.
    pub(crate) fn exists(&self) -> bool {
        self.now.exists_for_users()
    }

    pub(crate) fn size(&self) -> u64 {
        self.now.size
    }

    pub(crate) fn info(&self) -> &ObjectInfo {
        &self.now.info
    }

    /// Whether there is anything to commit. Creating and removing an object in one request leaves nothing.
    pub(crate) fn changed(&self) -> bool {
        !self.steps.is_empty() || self.info_changed
    }

    /// The copy that was read for the request's copy-from op.
    pub(crate) fn source_copy(&self) -> Option<Result<&'a CopiedObject, Errno>> {
        self.env.copied
    }

    /// The user version of the copy that replaced the object, if one did.
    pub(crate) fn copied_version(&self) -> Option<u64> {
        self.copied_version
    }

    /// Whether the request changed the watches of an object in a cache, so that they must be flushed to the base pool.
    pub(crate) fn has_watches_to_flush(&self) -> bool {
        self.watchers_changed && self.env.whiteouts
    }

    /// See [`crate::tier::TierChange::Promote`].
    pub(crate) fn promoted_epoch(&self) -> Option<Epoch> {
        self.promoted_at
    }

    /// The highest user version that an absent object may have had.
    pub(crate) fn absent_user_version(&self) -> u64 {
        self.env.last_user_version.max(self.now.info.user_version)
    }

    /// The clients' requests that recently changed the object, newest first.
    pub(crate) fn recent_requests(&self) -> Vec<(ReqId, u64)> {
        (self.env.recent_requests)(self.oid)
    }

    /// Whether the change is invisible to users: only watches changed.
    pub(crate) fn changes_only_watches(&self) -> bool {
        self.steps.is_empty()
    }

    /// Takes the further actions for a successful request.
    pub(crate) fn take_effects(&mut self) -> Vec<WatchNotifyEffect> {
        std::mem::take(&mut self.effects)
    }

    pub(crate) fn push_effect(&mut self, effect: WatchNotifyEffect) {
        self.effects.push(effect);
    }

    /// The watches in the object's info, for changing them.
    pub(crate) fn watchers_mut(&mut self) -> &mut Vec<WatchInfo> {
        self.info_changed = true;
        self.watchers_changed = true;
        &mut self.now.info.watchers
    }

    /// The object's info, for changes without a step.
    pub(crate) fn info_mut(&mut self) -> &mut ObjectInfo {
        self.info_changed = true;
        &mut self.now.info
    }

    /// Whether the request comes from the other pool of a tier.
    pub(crate) fn is_from_tier_pool(&self) -> bool {
        self.for_tier
    }

    /// See [`ExecEnv::takes_watches`].
    pub(crate) fn flush_copies_watches(&self) -> bool {
        self.env.takes_watches
    }

    /// Whether the pool is a cache tier.
    pub(crate) fn is_cache_pool(&self) -> bool {
        self.env.whiteouts
    }

    /// Whether a step needs space. Removals do not.
    pub(crate) fn needs_space(&self) -> bool {
        let grows = self.now.exists && !self.based;
        grows
            || self.steps.iter().any(|step| {
                matches!(
                    step,
                    TxnOp::Write { .. }
                        | TxnOp::Zero { .. }
                        | TxnOp::SetAttrs { .. }
                        | TxnOp::OmapSet { .. }
                        | TxnOp::OmapSetHeader { .. }
                )
            })
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        let data = |step: &TxnOp| if let TxnOp::Write { data, .. } = step { data.len() as u64 } else { 0 };
        self.steps.iter().map(data).sum()
    }

    /// Returns the steps and the object's resulting state.
    pub(crate) fn into_parts(self) -> (Vec<TxnOp>, ObjectContext) {
        (self.steps, self.now)
    }
}

/// Changes.
impl OpContext<'_> {
    /// Creates the object if it does not exist (`maybe_create_new_object`).
    pub(crate) fn create(&mut self) {
        if !self.now.exists {
            self.now = ObjectContext { exists: true, size: 0, info: ObjectInfo::default() };
            self.steps.push(TxnOp::Touch(self.oid.clone()));
        } else if self.now.info.flags & object_flag::WHITEOUT != 0 {
            self.now.info.flags &= !object_flag::WHITEOUT;
        }
        // The digests were of the earlier contents.
        self.now.info.flags &= !(object_flag::DATA_DIGEST | object_flag::OMAP_DIGEST);
        if self.steps.is_empty() {
            self.steps.push(TxnOp::Touch(self.oid.clone()));
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: Payload) {
        self.now.size = self.now.size.max(offset + data.len() as u64);
        self.replace_touch();
        self.steps.push(TxnOp::Write { oid: self.oid.clone(), offset, data });
    }

    pub(crate) fn write_full(&mut self, data: Payload) {
        let size = data.len() as u64;
        self.replace_touch();
        if size < self.now.size || self.steps.is_empty() && data.is_empty() {
            self.steps.push(TxnOp::Truncate { oid: self.oid.clone(), size });
        }
        self.now.size = size;
        if !data.is_empty() {
            self.steps.push(TxnOp::Write { oid: self.oid.clone(), offset: 0, data });
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        self.now.size = size;
        self.now.info.flags &= !object_flag::DATA_DIGEST;
        self.replace_touch();
        self.steps.push(TxnOp::Truncate { oid: self.oid.clone(), size });
    }

    /// Zeroes a range that ends before the object's end.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        self.now.info.flags &= !object_flag::DATA_DIGEST;
        self.steps.push(TxnOp::Zero { oid: self.oid.clone(), offset, len });
    }

    pub(crate) fn remove(&mut self) {
        // The removal supersedes the request's earlier changes of the object.
        self.steps.clear();
        self.info_changed = false;
        self.copied_version = None;
        if !self.now.info.watchers.is_empty() {
            self.effects.push(WatchNotifyEffect::DisconnectAll);
        }
        // The user version continues from that of the removed object.
        let mut info = ObjectInfo { user_version: self.now.info.user_version, ..ObjectInfo::default() };
        let leaves_whiteout =
            self.env.whiteouts && self.based && self.oid.namespace() != crate::INTERNAL_NAMESPACE;
        if leaves_whiteout {
            info.flags = object_flag::WHITEOUT;
            self.steps.push(TxnOp::Truncate { oid: self.oid.clone(), size: 0 });
            self.steps.push(TxnOp::RmAttrs(self.oid.clone()));
            self.steps.push(TxnOp::OmapClear(self.oid.clone()));
        } else if self.based {
            self.steps.push(TxnOp::Remove(self.oid.clone()));
        }
        self.now = ObjectContext { exists: leaves_whiteout, size: 0, info };
    }

    /// Removes the object without leaving a whiteout.
    pub(crate) fn evict(&mut self) {
        self.steps.push(TxnOp::Remove(self.oid.clone()));
        let info = ObjectInfo { user_version: self.now.info.user_version, ..ObjectInfo::default() };
        self.now = ObjectContext { exists: false, size: 0, info };
    }

    /// Replaces the object by the base's, as of the map of `epoch`, including its watches.
    pub(crate) fn promote(&mut self, copied: &CopiedObject, attrs: Vec<(String, Bytes)>, epoch: Epoch) {
        self.replace(copied, attrs, copied.head.truncate);
        self.promoted_at = Some(epoch);
        self.now.info.mtime_ns = copied.head.mtime_ns;
        self.now.info.watchers.clone_from(&copied.head.watchers);
    }

    /// Replaces everything except the object's watches by a copy.
    pub(crate) fn replace(
        &mut self,
        copied: &CopiedObject,
        attrs: Vec<(String, Bytes)>,
        truncate: (u32, u64),
    ) {
        let had_omap = self.now.info.flags & object_flag::OMAP != 0;
        self.create();
        self.replace_touch();
        self.steps.push(TxnOp::Truncate { oid: self.oid.clone(), size: 0 });
        self.steps.push(TxnOp::RmAttrs(self.oid.clone()));
        if had_omap {
            self.steps.push(TxnOp::OmapClear(self.oid.clone()));
        }
        let mut offset = 0;
        for data in &copied.data {
            self.steps.push(TxnOp::Write { oid: self.oid.clone(), offset, data: data.clone().into() });
            offset += data.len() as u64;
        }
        if offset != copied.head.size {
            self.steps.push(TxnOp::Truncate { oid: self.oid.clone(), size: copied.head.size });
        }
        if !copied.head.omap_header.is_empty() {
            let header = copied.head.omap_header.clone();
            self.steps.push(TxnOp::OmapSetHeader { oid: self.oid.clone(), header });
        }
        if !copied.omap.is_empty() {
            self.steps.push(TxnOp::OmapSet { oid: self.oid.clone(), entries: copied.omap.clone() });
        }
        let attrs: Vec<_> = attrs.into_iter().map(|(name, value)| (user_attr(&name), value)).collect();
        if !attrs.is_empty() {
            self.steps.push(TxnOp::SetAttrs { oid: self.oid.clone(), attrs });
        }
        const DESCRIBING: u32 = object_flag::OMAP | object_flag::DATA_DIGEST | object_flag::OMAP_DIGEST;
        self.now.size = copied.head.size;
        let info = &mut self.now.info;
        info.flags = info.flags & !DESCRIBING | copied.head.flags & DESCRIBING;
        (info.data_digest, info.omap_digest) = (copied.head.data_digest, copied.head.omap_digest);
        (info.truncate_seq, info.truncate_size) = truncate;
        info.copied_requests = copied.head.reqids.clone();
        self.copied_version = Some(copied.head.user_version);
    }

    /// Replaces an invalid copy by a whiteout: the base had no object under the map of `epoch`.
    pub(crate) fn promote_whiteout(&mut self, user_version: u64, epoch: Epoch) {
        self.remove();
        self.copied_version = Some(user_version.max(self.now.info.user_version));
        self.promoted_at = Some(epoch);
    }

    pub(crate) fn set_user_attr(&mut self, name: &str, value: Bytes) {
        self.replace_touch();
        let attr = (user_attr(name), value);
        match self.steps.last_mut() {
            Some(TxnOp::SetAttrs { attrs, .. }) => attrs.push(attr),
            _ => self.steps.push(TxnOp::SetAttrs { oid: self.oid.clone(), attrs: vec![attr] }),
        }
    }

    pub(crate) fn rm_user_attr(&mut self, name: &str) {
        self.steps.push(TxnOp::RmAttr { oid: self.oid.clone(), name: user_attr(name) });
    }

    pub(crate) fn set_alloc_hint(&mut self, expected_object_size: u64, expected_write_size: u64, flags: u32) {
        self.now.info.expected_object_size = expected_object_size;
        self.now.info.expected_write_size = expected_write_size;
        self.now.info.alloc_hint_flags = flags;
        self.replace_touch();
        self.steps.push(TxnOp::AllocHint {
            oid: self.oid.clone(),
            expected_object_size,
            expected_write_size,
            flags,
        });
    }

    pub(crate) fn omap_set(&mut self, entries: Vec<(Bytes, Bytes)>) {
        self.mark_omap();
        self.steps.push(TxnOp::OmapSet { oid: self.oid.clone(), entries });
    }

    pub(crate) fn omap_set_header(&mut self, header: Bytes) {
        self.mark_omap();
        self.steps.push(TxnOp::OmapSetHeader { oid: self.oid.clone(), header });
    }

    pub(crate) fn omap_rm(&mut self, keys: Vec<Bytes>) {
        self.now.info.flags &= !object_flag::OMAP_DIGEST;
        self.steps.push(TxnOp::OmapRm { oid: self.oid.clone(), keys });
    }

    pub(crate) fn omap_rm_range(&mut self, first: Bytes, last: Bytes) {
        self.now.info.flags &= !object_flag::OMAP_DIGEST;
        self.steps.push(TxnOp::OmapRmRange { oid: self.oid.clone(), first, last });
    }

    pub(crate) fn omap_clear(&mut self) {
        if self.now.info.flags & object_flag::OMAP != 0 {
            self.now.info.flags &= !(object_flag::OMAP | object_flag::OMAP_DIGEST);
            self.steps.push(TxnOp::OmapClear(self.oid.clone()));
        }
    }

    fn mark_omap(&mut self) {
        self.replace_touch();
        self.now.info.flags |= object_flag::OMAP;
        self.now.info.flags &= !object_flag::OMAP_DIGEST;
    }

    /// Removes a `Touch` right before a step that creates the object anyway.
    fn replace_touch(&mut self) {
        if matches!(self.steps.last(), Some(TxnOp::Touch(_))) {
            self.steps.pop();
        }
    }
}

/// Reads.
impl OpContext<'_> {
    /// Reads data at `offset`, less than `len` at the object's end; `len` 0 reads to the end.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Result<Bytes, Errno> {
        let len = if len == 0 { self.now.size } else { len };
        let len = len.min(self.now.size.saturating_sub(offset));
        if len == 0 {
            return Ok(Bytes::new());
        }
        if self.steps.is_empty() {
            let data = self.store().read(self.env.pg, self.oid, offset, len).map_err(|e| self.failed(&e))?;
            if data.len() as u64 != len {
                tracing::error!(object = %self.oid, offset, len, got = data.len(), "store read is short");
                self.damaged.set(true);
                return Err(Errno::EIO);
            }
            return Ok(data);
        }
        self.read_overlaid(offset, len)
    }

    /// Returns the parts of a range that contain data, in order and merged. A part that an earlier op of the request changed counts as
    /// data.
    pub(crate) fn extents(&self, offset: u64, len: u64) -> Result<Vec<(u64, u64)>, Errno> {
        let len = len.min(self.now.size.saturating_sub(offset));
        if len == 0 {
            return Ok(Vec::new());
        }
        if !self.steps.is_empty() {
            return Ok(vec![(offset, len)]);
        }
        let stored = self.store().extents(self.env.pg, self.oid, offset, len).map_err(|e| self.failed(&e))?;
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(stored.len());
        for (at, len) in stored {
            match joined.last_mut() {
                Some((start, so_far)) if *start + *so_far == at => *so_far += len,
                _ => joined.push((at, len)),
            }
        }
        Ok(joined)
    }

    fn read_overlaid(&self, offset: u64, len: u64) -> Result<Bytes, Errno> {
        let mut image = BytesMut::zeroed(usize::try_from(len).map_err(|_| Errno::EFBIG)?);
        if self.based {
            let base = match self.store().read(self.env.pg, self.oid, offset, len) {
                Ok(data) => data,
                Err(StoreError::NotFound(_)) => Bytes::new(),
                Err(error) => return Err(self.failed(&error)),
            };
            image[..base.len()].copy_from_slice(&base);
        }
        // Maps a byte range of the object to its part of the image.
        let part = |start: u64, end: u64| {
            let start = start.clamp(offset, offset + len);
            let end = end.clamp(start, offset + len);
            ((start - offset) as usize, (end - offset) as usize)
        };
        for step in &self.steps {
            match step {
                TxnOp::Remove(_) => image.fill(0),
                TxnOp::Truncate { size, .. } => {
                    let (start, end) = part(*size, u64::MAX);
                    image[start..end].fill(0);
                }
                TxnOp::Zero { offset: at, len: zeros, .. } => {
                    let (start, end) = part(*at, at + zeros);
                    image[start..end].fill(0);
                }
                TxnOp::Write { offset: at, data, .. } => {
                    let (start, end) = part(*at, at + data.len() as u64);
                    if start < end {
                        let from = (offset + start as u64 - at) as usize;
                        image[start..end].copy_from_slice(&data[from..from + (end - start)]);
                    }
                }
                _ => {}
            }
        }
        Ok(image.freeze())
    }

    /// Returns a user's attribute. Fails with ENOENT if the object is absent.
    pub(crate) fn user_attr(&self, name: &str) -> Result<Option<Bytes>, Errno> {
        if !self.exists() {
            return Err(Errno::ENOENT);
        }
        let stored = user_attr(name);
        for step in self.steps.iter().rev() {
            match step {
                TxnOp::SetAttrs { attrs, .. } => {
                    if let Some((_, value)) = attrs.iter().rev().find(|(n, _)| *n == stored) {
                        return Ok(Some(value.clone()));
                    }
                }
                TxnOp::RmAttr { name, .. } if *name == stored => return Ok(None),
                TxnOp::Remove(_) | TxnOp::RmAttrs(_) => return Ok(None),
                _ => {}
            }
        }
        if !self.based {
            return Ok(None);
        }
        self.store().get_attr(self.env.pg, self.oid, &stored).map_err(|e| self.failed(&e))
    }

    /// Returns all of the user's attributes, in order of name.
    pub(crate) fn user_attrs(&self) -> Result<Vec<(String, Bytes)>, Errno> {
        if !self.exists() {
            return Err(Errno::ENOENT);
        }
        let mut attrs = BTreeMap::new();
        if self.based {
            attrs.extend(self.store().get_attrs(self.env.pg, self.oid).map_err(|e| self.failed(&e))?);
        }
        for step in &self.steps {
            match step {
                TxnOp::SetAttrs { attrs: set, .. } => attrs.extend(set.iter().cloned()),
                TxnOp::RmAttr { name, .. } => {
                    attrs.remove(name);
                }
                TxnOp::Remove(_) | TxnOp::RmAttrs(_) => attrs.clear(),
                _ => {}
            }
        }
        let users = attrs.into_iter().filter(|(name, _)| name != OI_ATTR);
        Ok(users.filter_map(|(name, value)| Some((name.strip_prefix('_')?.to_owned(), value))).collect())
    }

    /// Returns the omap header; empty if there is none.
    pub(crate) fn omap_header(&self) -> Result<Bytes, Errno> {
        for step in self.steps.iter().rev() {
            match step {
                TxnOp::OmapSetHeader { header, .. } => return Ok(header.clone()),
                TxnOp::OmapClear(_) | TxnOp::Remove(_) => return Ok(Bytes::new()),
                _ => {}
            }
        }
        if !self.omap_based() {
            return Ok(Bytes::new());
        }
        self.store().omap_get_header(self.env.pg, self.oid).map_err(|e| self.failed(&e))
    }

    /// Returns those of `keys` that exist, with their values, in the order of `keys`.
    pub(crate) fn omap_values(&self, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        let overlay = OmapOverlay::of(&self.steps);
        let base = if self.omap_based() && !overlay.cleared {
            self.store().omap_get(self.env.pg, self.oid, keys).map_err(|e| self.failed(&e))?
        } else {
            Vec::new()
        };
        if overlay.is_empty() {
            return Ok(base);
        }
        let below: BTreeMap<Bytes, Bytes> = base.into_iter().collect();
        let value = |key: &Bytes| match overlay.get(key) {
            Some(pending) => pending,
            None => below.get(key).cloned(),
        };
        Ok(keys.iter().filter_map(|key| Some((key.clone(), value(key)?))).collect())
    }

    /// Calls `visit` with the entries after `start_after` that start with `prefix`, in order, until it returns false.
    pub(crate) fn omap_scan(
        &self,
        start_after: &Bytes,
        prefix: &Bytes,
        visit: &mut dyn FnMut(Bytes, Bytes) -> bool,
    ) -> Result<(), Errno> {
        let overlay = OmapOverlay::of(&self.steps);
        let first = if prefix > start_after {
            Bound::Included(prefix.clone())
        } else {
            Bound::Excluded(start_after.clone())
        };
        let mut pending = overlay
            .set
            .range::<Bytes, _>((first, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .peekable();
        let mut position = start_after.clone();
        let mut base_left = self.omap_based() && !overlay.cleared;
        while base_left {
            let page = self
                .store()
                .omap_iterate(
                    self.env.pg,
                    self.oid,
                    Some(&position),
                    prefix,
                    OMAP_SCAN_ENTRIES,
                    OMAP_SCAN_BYTES,
                )
                .map_err(|e| self.failed(&e))?;
            base_left = page.more;
            match page.entries.last() {
                Some((last, _)) => position = last.clone(),
                None => base_left = false,
            }
            for (key, value) in page.entries {
                while let Some((pending_key, pending_value)) = pending.next_if(|(k, _)| **k < key) {
                    let go_on = pending_value.as_ref().is_none_or(|v| visit(pending_key.clone(), v.clone()));
                    if !go_on {
                        return Ok(());
                    }
                }
                // The loop above visits a pending entry with this key before the next key.
                if overlay.get(&key).is_none() && !visit(key, value) {
                    return Ok(());
                }
            }
        }
        for (key, value) in pending {
            if let Some(value) = value
                && !visit(key.clone(), value.clone())
            {
                break;
            }
        }
        Ok(())
    }

    fn omap_based(&self) -> bool {
        self.based && !self.steps.iter().any(|step| matches!(step, TxnOp::Remove(_)))
    }

    fn store(&self) -> &dyn ReadStore {
        self.env.store
    }

    fn failed(&self, error: &StoreError) -> Errno {
        tracing::error!(object = %self.oid, %error, "reading the store failed");
        self.damaged.set(self.damaged.get() || error.is_damage());
        error.errno()
    }
}

/// The effect of a request's steps on omap.
#[derive(Default)]
struct OmapOverlay {
    /// All of the store's omap is removed.
    cleared: bool,
    /// Entries set (`Some`) or removed.
    set: BTreeMap<Bytes, Option<Bytes>>,
    /// Removed ranges of the store's omap: start included, end excluded.
    removed: Vec<(Bytes, Bytes)>,
}

impl OmapOverlay {
    fn of(steps: &[TxnOp]) -> OmapOverlay {
        let mut overlay = OmapOverlay::default();
        for step in steps {
            match step {
                TxnOp::OmapSet { entries, .. } => {
                    overlay.set.extend(entries.iter().map(|(k, v)| (k.clone(), Some(v.clone()))));
                }
                TxnOp::OmapRm { keys, .. } => overlay.set.extend(keys.iter().map(|k| (k.clone(), None))),
                TxnOp::OmapRmRange { first, last, .. } => {
                    overlay.set.retain(|key, _| key < first || key >= last);
                    overlay.removed.push((first.clone(), last.clone()));
                }
                TxnOp::OmapClear(_) | TxnOp::Remove(_) => {
                    overlay = OmapOverlay { cleared: true, ..OmapOverlay::default() };
                }
                _ => {}
            }
        }
        overlay
    }

    fn is_empty(&self) -> bool {
        !self.cleared && self.set.is_empty() && self.removed.is_empty()
    }

    /// The steps' effect on `key`: none (`None`), removed (`Some(None)`) or its value.
    fn get(&self, key: &Bytes) -> Option<Option<Bytes>> {
        if let Some(value) = self.set.get(key) {
            return Some(value.clone());
        }
        let removed = self.removed.iter().any(|(first, last)| first <= key && key < last);
        (self.cleared || removed).then_some(None)
    }
}
