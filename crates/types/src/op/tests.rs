//! Encodings of replies, including those of older releases.

use super::*;
use crate::encoding;

#[test]
fn notify_replies_are_encoded_as_librados_reads_them() {
    let reply = NotifyReply {
        notify_id: 7,
        acks: vec![(4123, 1, Bytes::from_static(b"ok"))],
        missed: vec![(4124, 0x0102_0304_0506_0708)],
    };
    let encoded = reply.encode();
    let expected = [
        &1u32.to_le_bytes()[..],
        &4123u64.to_le_bytes(),
        &1u64.to_le_bytes(),
        &2u32.to_le_bytes(),
        b"ok",
        &1u32.to_le_bytes(),
        &4124u64.to_le_bytes(),
        &[8, 7, 6, 5, 4, 3, 2, 1],
    ];
    assert_eq!(encoded, expected.concat());
    assert_eq!(NotifyReply::decode(7, &encoded).unwrap(), reply);
    for cut in 0..encoded.len() {
        assert!(NotifyReply::decode(7, &encoded.slice(..cut)).is_err(), "{cut} bytes");
    }
}

#[test]
fn object_infos_of_earlier_versions_are_read() {
    let info = ObjectInfo { user_version: 9, flags: object_flag::DIRTY, ..ObjectInfo::default() };
    for (version, missing) in [(1, 4), (2, 1)] {
        let mut old = encoding::encode(&info);
        (old[0], old[1]) = (version, 1);
        old.truncate(old.len() - missing);
        let length = (old.len() - encoding::ENVELOPE_HEADER_BYTES) as u32;
        old[2..6].copy_from_slice(&length.to_le_bytes());
        assert_eq!(encoding::decode::<ObjectInfo>(&old).unwrap(), info);
        assert!(encoding::decode::<ObjectInfo>(&old[..old.len() - 1]).is_err());
    }
}

#[test]
fn cmpext_results_tell_the_first_difference() {
    for index in [0, 1, 4096, 100_000_000] {
        assert_eq!(cmpext_mismatch_index(cmpext_mismatch_result(index)), Some(index));
    }
    assert_eq!(
        (cmpext_mismatch_result(0), cmpext_mismatch_index(-4094), cmpext_mismatch_index(0)),
        (-4095, None, None)
    );
}

#[test]
fn pieces_of_copies_of_earlier_versions_are_read() {
    use crate::encoding::{ENVELOPE_HEADER_BYTES, decode, encode};
    let piece = CopyGetReply { size: 5, user_version: 7, ..CopyGetReply::default() };
    for (version, missing) in [(1, 4), (2, 2)] {
        let mut old = encode(&piece);
        old.truncate(old.len() - missing);
        let length = (old.len() - ENVELOPE_HEADER_BYTES) as u32;
        old[0] = version;
        old[2..ENVELOPE_HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        assert_eq!(decode::<CopyGetReply>(&old).unwrap(), piece);
    }
}
