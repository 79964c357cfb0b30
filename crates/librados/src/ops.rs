//! Compound operations as C callers build them: their parts, and the places for each part's result.

use crate::abi::OutPtr;
use crate::guard::{ApiError, ApiResult};
use bytes::Bytes;
use nacre_client::{OpReply, WriteOp};
use nacre_types::errno::Errno;
use nacre_types::op::{ChecksumKind, CmpOp, Op, request_flag};
use std::ffi::c_int;

/// Stores a part's output in the caller's place.
pub(crate) type OutputCallback = Box<dyn FnOnce(Bytes) -> ApiResult<()> + Send>;

/// The place for a part's result.
struct OutParam {
    part: usize,
    code: Option<OutPtr<c_int>>,
    deliver: Option<OutputCallback>,
}

/// The places for an operation's results.
#[derive(Default)]
pub(crate) struct OutParams(Vec<OutParam>);

/// An operation under construction, read or write.
#[derive(Default)]
pub(crate) struct CompoundOp {
    op: WriteOp,
    out_params: OutParams,
    build_error: Option<ApiError>,
}

impl CompoundOp {
    /// An operation with one part.
    pub(crate) fn of(op: Op) -> CompoundOp {
        let mut compound = CompoundOp::default();
        compound.push(op);
        compound
    }

    /// Adds a part.
    pub(crate) fn push(&mut self, op: Op) {
        self.op.push(op);
    }

    /// Adds a part whose code is stored in `code` and whose output is passed to `deliver`.
    pub(crate) fn push_with_output(&mut self, op: Op, code: OutPtr<c_int>, deliver: Option<OutputCallback>) {
        self.out_params.0.push(OutParam { part: self.op.len(), code: Some(code), deliver });
        self.op.push(op);
    }

    /// Sets flags of the part that was added last.
    pub(crate) fn set_op_flags(&mut self, flags: c_int) {
        self.op.op_flags(flags.cast_unsigned());
    }

    /// Sets the object's modification time, instead of the current time.
    pub(crate) fn set_mtime_ns(&mut self, mtime_ns: u64) {
        self.op.mtime_ns(mtime_ns);
    }

    /// Adds flags of the request.
    pub(crate) fn add_flags(&mut self, flags: u32) {
        self.op.flags(flags);
    }

    /// Makes the operation fail when it is executed. C has no way to report the error while the operation is built.
    pub(crate) fn set_error(&mut self, why: ApiError) {
        self.build_error.get_or_insert(why);
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.op.is_empty()
    }

    /// The operation, ready to be executed. Fails if a part was refused.
    pub(crate) fn into_parts(self) -> ApiResult<(WriteOp, OutParams)> {
        match self.build_error {
            Some(why) => Err(why),
            None => Ok((self.op, self.out_params)),
        }
    }
}

impl OutParams {
    /// Stores the parts' results. A part that was not executed gets the operation's error.
    pub(crate) fn store_results(self, reply: &mut OpReply) {
        for OutParam { part, code, deliver } in self.0 {
            let output = match reply.ops.get(part) {
                Some(result) if result.code < 0 => Err(result.code),
                _ if reply.result < 0 => Err(reply.result),
                Some(result) => Ok((result.code, result.output.clone())),
                None => Err(Errno::EIO.negated()),
            };
            let stored = output.and_then(|(code, output)| match deliver {
                Some(deliver) => deliver(output).map(|()| code).map_err(ApiError::code),
                None => Ok(code),
            });
            if let Some(place) = code {
                place.set(stored.unwrap_or_else(|code| code));
            }
        }
    }

    /// Like [`OutParams::store_results`], for an operation that got no reply.
    pub(crate) fn fail(self, why: ApiError) {
        self.store_results(&mut OpReply { result: why.code(), ..OpReply::default() });
    }
}

/// `LIBRADOS_OPERATION_*` flags and their values on the wire.
const REQUEST_FLAGS: &[(u32, u32)] = &[
    (1, request_flag::BALANCE_READS),
    (2, request_flag::LOCALIZE_READS),
    (4, request_flag::ORDER_READS_WRITES),
    // IGNORE_CACHE and IGNORE_OVERLAY: addresses the pool itself.
    (8, request_flag::IGNORE_OVERLAY),
    (32, request_flag::IGNORE_OVERLAY),
    (64, request_flag::FULL_TRY),
    (128, request_flag::FULL_FORCE),
    (256, request_flag::IGNORE_REDIRECT),
    (512, request_flag::ORDERSNAP),
    (1024, request_flag::RETURNVEC),
];

/// The request flags for `LIBRADOS_OPERATION_*` bits.
pub(crate) fn request_flags(operation: c_int) -> u32 {
    let operation = operation.cast_unsigned();
    REQUEST_FLAGS.iter().filter(|(bit, _)| operation & bit != 0).fold(0, |flags, (_, flag)| flags | flag)
}

/// `LIBRADOS_CMPXATTR_OP_*`.
pub(crate) fn cmp_op(operator: u8) -> ApiResult<CmpOp> {
    Ok(match operator {
        1 => CmpOp::Eq,
        2 => CmpOp::Ne,
        3 => CmpOp::Gt,
        4 => CmpOp::Gte,
        5 => CmpOp::Lt,
        6 => CmpOp::Lte,
        _ => return Err(Errno::EINVAL.into()),
    })
}

/// Fills `len` bytes with repetitions of `data` (`writesame`). EINVAL if `len` is not a multiple of the data's length.
pub(crate) fn writesame_op(offset: u64, data: Bytes, len: usize) -> ApiResult<Op> {
    if data.is_empty() || len == 0 || !len.is_multiple_of(data.len()) {
        return Err(Errno::EINVAL.into());
    }
    check_write_len(len)?;
    Ok(Op::WriteSame { offset, len: len as u64, data })
}

/// Checksums of type `rados_checksum_type_t`. EINVAL unless `init` has the length of that type.
pub(crate) fn checksum_op(kind: c_int, init: &[u8], offset: u64, len: usize, chunk: usize) -> ApiResult<Op> {
    let kind = match kind {
        0 => ChecksumKind::XxHash32,
        1 => ChecksumKind::XxHash64,
        2 => ChecksumKind::Crc32c,
        _ => return Err(Errno::EINVAL.into()),
    };
    let init = match (kind, init.len()) {
        (ChecksumKind::XxHash64, 8) => u64::from_le_bytes(init.try_into().map_err(|_| Errno::EINVAL)?),
        (ChecksumKind::XxHash32 | ChecksumKind::Crc32c, 4) => {
            u32::from_le_bytes(init.try_into().map_err(|_| Errno::EINVAL)?).into()
        }
        _ => return Err(Errno::EINVAL.into()),
    };
    let chunk = u32::try_from(chunk).map_err(|_| Errno::EINVAL)?;
    Ok(Op::Checksum { kind, init, offset, len: len as u64, chunk })
}

/// Checks a length against the maximum for one write, as in Ceph.
pub(crate) fn check_write_len(len: usize) -> ApiResult<()> {
    if len > (u32::MAX / 2) as usize { Err(Errno::E2BIG.into()) } else { Ok(()) }
}

/// Checks a length against the maximum for one read, as in Ceph.
pub(crate) fn check_read_len(len: usize) -> ApiResult<()> {
    if len > c_int::MAX as usize { Err(Errno::EDOM.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_flags_are_translated_bit_by_bit() {
        assert_eq!(request_flags(0), 0);
        assert_eq!(request_flags(64 | 1024), request_flag::FULL_TRY | request_flag::RETURNVEC);
        assert_eq!(request_flags(8 | 32 | 16), request_flag::IGNORE_OVERLAY);
    }

    #[test]
    fn writesame_repeats_whole_patterns() {
        let repeat = |len| writesame_op(3, Bytes::from_static(b"ab"), len);
        assert_eq!(repeat(6), Ok(Op::WriteSame { offset: 3, len: 6, data: Bytes::from_static(b"ab") }));
        assert_eq!(repeat(5), Err(Errno::EINVAL.into()));
        assert_eq!(repeat(0), Err(Errno::EINVAL.into()));
        assert_eq!(repeat(1 << 40), Err(Errno::E2BIG.into()));
        assert_eq!(writesame_op(0, Bytes::new(), 5), Err(Errno::EINVAL.into()));
    }

    #[test]
    fn checksums_begin_with_a_value_of_their_size() {
        let crc = checksum_op(2, &[1, 0, 0, 0], 5, 7, 0);
        let wanted = Op::Checksum { kind: ChecksumKind::Crc32c, init: 1, offset: 5, len: 7, chunk: 0 };
        assert_eq!(crc, Ok(wanted));
        for (kind, init) in [(2, &[0; 8][..]), (1, &[0; 4][..]), (3, &[0; 4][..])] {
            assert!(checksum_op(kind, init, 0, 0, 0).is_err());
        }
    }
}
