//! Class `lock`: advisory locks on objects (`cls_lock_ops.h`, `cls_lock_types.h`).

use crate::ceph::{CephEncoding, Decoder, Encoder, SessionAddr, SessionName, UTime};
use crate::encoding::DecodeError;
use crate::errno::Errno;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The kind of a lock (`ClsLockType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockKind {
    /// There is no lock.
    #[default]
    None,
    /// One holder.
    Exclusive,
    /// Any number of holders.
    Shared,
    /// One holder; the object is removed when the lock is released.
    ExclusiveEphemeral,
    /// A number that no release defines.
    Unknown(u8),
}

impl LockKind {
    /// Returns Ceph's number.
    pub fn number(self) -> u8 {
        match self {
            LockKind::None => 0,
            LockKind::Exclusive => 1,
            LockKind::Shared => 2,
            LockKind::ExclusiveEphemeral => 3,
            LockKind::Unknown(number) => number,
        }
    }

    /// Converts Ceph's number.
    pub fn from_number(number: u8) -> LockKind {
        match number {
            0 => LockKind::None,
            1 => LockKind::Exclusive,
            2 => LockKind::Shared,
            3 => LockKind::ExclusiveEphemeral,
            number => LockKind::Unknown(number),
        }
    }

    /// Whether it allows only one holder.
    pub fn is_exclusive(self) -> bool {
        matches!(self, LockKind::Exclusive | LockKind::ExclusiveEphemeral)
    }

    /// Whether a lock can be of this kind.
    pub fn is_valid(self) -> bool {
        self.is_exclusive() || self == LockKind::Shared
    }

    /// Ceph's name, as in `rados lock info`.
    pub fn name(self) -> &'static str {
        match self {
            LockKind::None => "none",
            LockKind::Exclusive => "exclusive",
            LockKind::Shared => "shared",
            LockKind::ExclusiveEphemeral => "exclusive-ephemeral",
            LockKind::Unknown(_) => "<unknown>",
        }
    }
}

/// A holder may take its lock again to renew its duration (`LOCK_FLAG_MAY_RENEW`).
pub const MAY_RENEW: u8 = 0x1;
/// Only a holder may take the lock (`LOCK_FLAG_MUST_RENEW`).
pub const MUST_RENEW: u8 = 0x2;

/// Input of `lock`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockOp {
    /// The lock.
    pub name: Bytes,
    /// Its kind.
    pub kind: LockKind,
    /// Distinguishes a client's holds.
    pub cookie: Bytes,
    /// All holders of a lock must use the same tag.
    pub tag: Bytes,
    /// A description for people.
    pub description: Bytes,
    /// Time after which the hold expires; 0 for never.
    pub duration: UTime,
    /// [`MAY_RENEW`], [`MUST_RENEW`].
    pub flags: u8,
}

/// Input of `unlock`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnlockOp {
    /// The lock.
    pub name: Bytes,
    /// The hold.
    pub cookie: Bytes,
}

/// Input of `break_lock`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BreakOp {
    /// The lock.
    pub name: Bytes,
    /// The holder.
    pub locker: SessionName,
    /// The hold.
    pub cookie: Bytes,
}

/// Input of `get_info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetInfoOp {
    /// The lock.
    pub name: Bytes,
}

/// Input of `assert_locked`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssertOp {
    /// The lock.
    pub name: Bytes,
    /// Its kind.
    pub kind: LockKind,
    /// The caller's hold.
    pub cookie: Bytes,
    /// The lock's tag.
    pub tag: Bytes,
}

/// Input of `set_cookie`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetCookieOp {
    /// The lock.
    pub name: Bytes,
    /// Its kind.
    pub kind: LockKind,
    /// The caller's hold.
    pub cookie: Bytes,
    /// The lock's tag.
    pub tag: Bytes,
    /// The hold's new cookie.
    pub new_cookie: Bytes,
}

/// A hold's key: the holder and its cookie.
pub type LockerId = (SessionName, Bytes);

/// A hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locker {
    /// When it expires; 0 for never.
    pub expiration: UTime,
    /// The holder's address.
    pub addr: SessionAddr,
    /// A description for people.
    pub description: Bytes,
}

/// A lock: the content of attribute `lock.NAME`, and the output of `get_info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockInfo {
    /// The holders.
    pub lockers: BTreeMap<LockerId, Locker>,
    /// Its kind.
    pub kind: LockKind,
    /// Its tag.
    pub tag: Bytes,
}

/// The prefix of attributes that contain locks.
pub const ATTRIBUTE_PREFIX: &str = "lock.";

/// Returns the attribute that contains a lock. Fails with EINVAL if the lock's name is not text.
pub fn attribute(name: &[u8]) -> Result<String, Errno> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
    Ok([ATTRIBUTE_PREFIX, name].concat())
}

impl LockOp {
    /// Fails with EINVAL unless the kind is valid, the lock has a name and the flags are consistent.
    pub fn validate(&self) -> Result<(), Errno> {
        let contradicts = self.flags & MAY_RENEW != 0 && self.flags & MUST_RENEW != 0;
        if !self.kind.is_valid() || self.name.is_empty() || contradicts { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// The rules of the class.
impl LockInfo {
    /// Removes expired holds.
    pub fn remove_expired(&mut self, now: UTime) {
        self.lockers.retain(|_, locker| locker.expiration.is_zero() || locker.expiration >= now);
    }

    /// Takes the lock for a session. Fails with EBUSY if others hold it or its tag differs, with EEXIST if this hold exists and
    /// may not be renewed, and with ENOENT if it must be renewed and does not exist.
    pub fn take(
        &mut self,
        op: LockOp,
        holder: SessionName,
        addr: SessionAddr,
        now: UTime,
    ) -> Result<(), Errno> {
        // Checked before the caller's own hold is removed, because then the tag would not be compared.
        if !self.lockers.is_empty() && self.tag != op.tag {
            return Err(Errno::EBUSY);
        }
        let (may_renew, must_renew) = (op.flags & MAY_RENEW != 0, op.flags & MUST_RENEW != 0);
        let id: LockerId = (holder, op.cookie);
        if self.lockers.contains_key(&id) {
            if !may_renew && !must_renew {
                return Err(Errno::EEXIST);
            }
            self.lockers.remove(&id);
        } else if must_renew {
            return Err(Errno::ENOENT);
        }
        if !self.lockers.is_empty() && (op.kind.is_exclusive() || self.kind != op.kind) {
            return Err(Errno::EBUSY);
        }
        let expiration = match op.duration.is_zero() {
            true => UTime::default(),
            false => UTime::from_ns(now.as_ns().saturating_add(op.duration.as_ns())),
        };
        (self.kind, self.tag) = (op.kind, op.tag);
        self.lockers.insert(id, Locker { expiration, addr, description: op.description });
        Ok(())
    }

    /// Removes a hold. Fails with ENOENT if there is none.
    pub fn release(&mut self, id: &LockerId) -> Result<(), Errno> {
        self.lockers.remove(id).map(drop).ok_or(Errno::ENOENT)
    }

    /// Fails with EBUSY unless the lock has this kind, tag and hold.
    pub fn check_held(&self, kind: LockKind, tag: &Bytes, id: &LockerId) -> Result<(), Errno> {
        let held = self.kind == kind && self.tag == *tag && self.lockers.contains_key(id);
        if held { Ok(()) } else { Err(Errno::EBUSY) }
    }

    /// Changes the cookie of a hold. Fails with EBUSY if its holder already has one with that cookie.
    pub fn set_cookie(&mut self, id: LockerId, cookie: Bytes) -> Result<(), Errno> {
        let renamed = (id.0, cookie);
        if self.lockers.contains_key(&renamed) {
            return Err(Errno::EBUSY);
        }
        if let Some(locker) = self.lockers.remove(&id) {
            self.lockers.insert(renamed, locker);
        }
        Ok(())
    }
}

/// Output of `list_locks`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListReply {
    /// The locks' names.
    pub locks: Vec<Bytes>,
}

fn kind(from: &mut Decoder<'_>) -> Result<LockKind, DecodeError> {
    Ok(LockKind::from_number(from.u8()?))
}

impl CephEncoding for LockOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.bytes(&self.name);
            out.u8(self.kind.number());
            out.bytes(&self.cookie);
            out.bytes(&self.tag);
            out.bytes(&self.description);
            self.duration.encode_to(out);
            out.u8(self.flags);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            Ok(LockOp {
                name: from.bytes()?,
                kind: kind(from)?,
                cookie: from.bytes()?,
                tag: from.bytes()?,
                description: from.bytes()?,
                duration: UTime::decode_from(from)?,
                flags: from.u8()?,
            })
        })
    }
}

impl CephEncoding for UnlockOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.bytes(&self.name);
            out.bytes(&self.cookie);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(UnlockOp { name: from.bytes()?, cookie: from.bytes()? }))
    }
}

impl CephEncoding for BreakOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.bytes(&self.name);
            self.locker.encode_to(out);
            out.bytes(&self.cookie);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            let name = from.bytes()?;
            let locker = SessionName::decode_from(from)?;
            Ok(BreakOp { name, locker, cookie: from.bytes()? })
        })
    }
}

impl CephEncoding for GetInfoOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| out.bytes(&self.name));
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(GetInfoOp { name: from.bytes()? }))
    }
}

impl CephEncoding for AssertOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.bytes(&self.name);
            out.u8(self.kind.number());
            out.bytes(&self.cookie);
            out.bytes(&self.tag);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            Ok(AssertOp { name: from.bytes()?, kind: kind(from)?, cookie: from.bytes()?, tag: from.bytes()? })
        })
    }
}

impl CephEncoding for SetCookieOp {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.bytes(&self.name);
            out.u8(self.kind.number());
            out.bytes(&self.cookie);
            out.bytes(&self.tag);
            out.bytes(&self.new_cookie);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            Ok(SetCookieOp {
                name: from.bytes()?,
                kind: kind(from)?,
                cookie: from.bytes()?,
                tag: from.bytes()?,
                new_cookie: from.bytes()?,
            })
        })
    }
}

fn decode_locker_id(from: &mut Decoder<'_>) -> Result<LockerId, DecodeError> {
    from.structure(1, |_, from| Ok((SessionName::decode_from(from)?, from.bytes()?)))
}

impl CephEncoding for Locker {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            self.expiration.encode_to(out);
            self.addr.encode_to(out);
            out.bytes(&self.description);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            Ok(Locker {
                expiration: UTime::decode_from(from)?,
                addr: SessionAddr::decode_from(from)?,
                description: from.bytes()?,
            })
        })
    }
}

impl CephEncoding for LockInfo {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.count(self.lockers.len());
            for ((name, cookie), locker) in &self.lockers {
                out.structure(1, 1, |out| {
                    name.encode_to(out);
                    out.bytes(cookie);
                });
                locker.encode_to(out);
            }
            out.u8(self.kind.number());
            out.bytes(&self.tag);
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| {
            let lockers = from.list(|from| Ok((decode_locker_id(from)?, Locker::decode_from(from)?)))?;
            Ok(LockInfo { lockers: lockers.into_iter().collect(), kind: kind(from)?, tag: from.bytes()? })
        })
    }
}

impl CephEncoding for ListReply {
    fn encode_to(&self, out: &mut Encoder) {
        out.structure(1, 1, |out| {
            out.count(self.locks.len());
            self.locks.iter().for_each(|name| out.bytes(name));
        });
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        from.structure(1, |_, from| Ok(ListReply { locks: from.list(Decoder::bytes)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClientId;

    #[test]
    fn everything_comes_back_as_it_was() {
        fn check<T: CephEncoding + PartialEq + std::fmt::Debug>(value: T) {
            let bytes = value.to_bytes();
            assert_eq!(T::from_bytes(&bytes).unwrap(), value);
            for cut in 0..bytes.len() {
                assert!(T::from_bytes(&bytes[..cut]).is_err(), "{value:?} cut at {cut}");
            }
        }
        let text = Bytes::from_static;
        let locker = SessionName::client(ClientId(5));
        check(LockOp {
            name: text(b"n"),
            kind: LockKind::Shared,
            cookie: text(b"c"),
            tag: text(b"t"),
            description: text(b"d"),
            duration: UTime { seconds: 1, nanoseconds: 2 },
            flags: MAY_RENEW,
        });
        check(UnlockOp { name: text(b"n"), cookie: text(b"c") });
        check(BreakOp { name: text(b"n"), locker, cookie: text(b"c") });
        check(GetInfoOp { name: text(b"n") });
        check(AssertOp { name: text(b"n"), kind: LockKind::Unknown(9), ..AssertOp::default() });
        check(SetCookieOp { new_cookie: text(b"new"), ..SetCookieOp::default() });
        check(ListReply { locks: vec![text(b"a"), text(b"b")] });
        let mut info =
            LockInfo { kind: LockKind::ExclusiveEphemeral, tag: text(b"t"), ..LockInfo::default() };
        info.lockers.insert((locker, text(b"c")), Locker::default());
        check(info);
    }

    #[test]
    fn an_exclusive_lock_has_one_holder_until_it_lapses() {
        let (first, second) = (SessionName::client(ClientId(1)), SessionName::client(ClientId(2)));
        let at = |seconds| UTime { seconds, nanoseconds: 0 };
        let op = |flags| LockOp {
            name: Bytes::from_static(b"n"),
            kind: LockKind::Exclusive,
            duration: at(10),
            flags,
            ..LockOp::default()
        };
        let mut info = LockInfo::default();
        let take = |info: &mut LockInfo, who, flags, now| {
            info.remove_expired(at(now));
            info.take(op(flags), who, SessionAddr::default(), at(now))
        };
        assert_eq!(take(&mut info, first, MUST_RENEW, 100), Err(Errno::ENOENT));
        assert_eq!(take(&mut info, first, 0, 100), Ok(()));
        assert_eq!(take(&mut info, first, 0, 101), Err(Errno::EEXIST));
        assert_eq!(take(&mut info, second, 0, 101), Err(Errno::EBUSY));
        assert_eq!(take(&mut info, first, MAY_RENEW, 105), Ok(()));
        assert_eq!(take(&mut info, second, 0, 115), Err(Errno::EBUSY));
        assert_eq!(take(&mut info, second, 0, 116), Ok(()));
        assert_eq!(info.release(&(first, Bytes::new())), Err(Errno::ENOENT));
        assert_eq!(info.release(&(second, Bytes::new())), Ok(()));
        assert!(op(MAY_RENEW | MUST_RENEW).validate().is_err() && op(0).validate().is_ok());
    }

    #[test]
    fn inputs_are_those_of_cls_lock() {
        let op = LockOp {
            name: Bytes::from_static(b"nm"),
            kind: LockKind::Exclusive,
            cookie: Bytes::from_static(b"ck"),
            flags: MUST_RENEW,
            ..LockOp::default()
        };
        let expected: Vec<u8> = [
            &[1, 1, 30, 0, 0, 0][..],
            &[2, 0, 0, 0, b'n', b'm', 1, 2, 0, 0, 0, b'c', b'k'],
            &[0; 4],
            &[0; 4],
            &[0; 8],
            &[2],
        ]
        .concat();
        assert_eq!(op.to_bytes(), expected);
    }
}
