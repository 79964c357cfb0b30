//! Sparse reads, comparisons, repeated writes and checksums.

use super::*;

fn checksum(kind: ChecksumKind, init: u64, range: (u64, u64), chunk: u32) -> Op {
    Op::Checksum { kind, init, offset: range.0, len: range.1, chunk }
}

fn cmpext(offset: u64, data: &str) -> Op {
    Op::CmpExt { offset, data: bytes(data) }
}

fn same(offset: u64, len: u64, data: &str) -> Op {
    Op::WriteSame { offset, len, data: bytes(data) }
}

#[test]
fn sparse_reads_leave_holes_out() {
    let mut b = Bench::new();
    b.ok("o", vec![write(0, "head"), write(100_000, "tail"), Op::Truncate { size: 200_000 }]);
    let mut sparse = |offset, len| {
        let output = b.ok("o", vec![Op::SparseRead { offset, len }]).ops[0].output.clone();
        decode::<SparseReadReply>(&output).unwrap()
    };
    let all = sparse(0, 200_000);
    let total: u64 = all.extents.iter().map(|(_, len)| len).sum();
    assert_eq!(all.data.len() as u64, total);
    assert!(total < 50_000, "holes are left out: {:?}", all.extents);
    let mut image = vec![0; 200_000];
    let mut at = 0;
    for (offset, len) in all.extents {
        image[offset as usize..(offset + len) as usize].copy_from_slice(&all.data[at..at + len as usize]);
        at += len as usize;
    }
    assert_eq!((&image[..4], &image[100_000..100_004]), (&b"head"[..], &b"tail"[..]));
    assert_eq!(sparse(1, 2), SparseReadReply { extents: vec![(1, 2)], data: bytes("ea") });
    assert_eq!(sparse(150_000, 100).extents, []);
    assert_eq!(sparse(500_000, 100).extents, []);
    assert_eq!(sparse(0, 0).extents, []);
    b.fails("absent", vec![Op::SparseRead { offset: 0, len: 1 }], Errno::ENOENT);
    let output = b.ok("o", vec![Op::MapExt { offset: 0, len: 0 }]).ops[0].output.clone();
    let map: ExtentsReply = decode(&output).unwrap();
    assert!(map.extents.iter().any(|(at, len)| (*at..at + len).contains(&100_000)), "{map:?}");
}

#[test]
fn extent_comparisons_tell_the_first_difference() {
    let mut b = Bench::new();
    b.ok("o", vec![full("0123456789")]);
    let mut result = |name: &str, offset, data: &str| b.run(name, vec![cmpext(offset, data)]).result;
    assert_eq!(result("o", 0, "0123"), 0);
    assert_eq!(result("o", 3, "3456"), 0);
    assert_eq!(result("o", 3, "34x6"), -4095 - 2);
    assert_eq!(result("o", 8, "89\0\0"), 0, "zeros follow the end");
    assert_eq!(result("o", 8, "89\0x"), -4095 - 3);
    assert_eq!(result("o", 50, "\0\0"), 0);
    assert_eq!(result("o", 50, "x"), -4095);
    assert_eq!(result("o", 0, ""), 0);
    assert_eq!(result("absent", 0, "\0"), Errno::ENOENT.negated());
    let failed = b.run("o", vec![cmpext(0, "01x"), full("new")]);
    assert_eq!((failed.result, failed.ops.len()), (-4095 - 2, 1));
    assert!(failed.change.is_none());
    b.ok("o", vec![cmpext(0, "012"), write(0, "new"), cmpext(0, "new3")]);
    assert_eq!(b.read("o"), "new3456789");
    b.ok("absent", vec![cmpext(0, "\0\0"), full("made")]);
    let failok = OsdOp { op: cmpext(0, "x"), flags: op_flag::FAILOK };
    let executed = b.execute(&oid("o"), vec![failok, full("anyway").into()], 0);
    assert_eq!(executed.result, 0);
    assert_eq!(b.read("o"), "anyway");
}

#[test]
fn repeated_writes_fill_their_range() {
    let mut b = Bench::new();
    b.ok("o", vec![same(2, 9, "abc")]);
    assert_eq!(b.read("o"), "\0\0abcabcabc");
    b.ok("o", vec![same(0, 0, "abc")]);
    b.ok("o", vec![same(3, 3, "xyz")]);
    assert_eq!(b.read("o"), "\0\0axyzbcabc");
    b.fails("o", vec![same(0, 8, "abc")], Errno::EINVAL);
    b.fails("o", vec![same(0, 8, "")], Errno::EINVAL);
    b.fails("o", vec![same(0, 2, "abc")], Errno::EINVAL);
    let max = b.limits.max_object_size_bytes;
    b.fails("o", vec![same(0, max + 1, "a")], Errno::EFBIG);
    let version = b.version;
    b.ok("none", vec![same(0, 0, "")]);
    assert_eq!(b.version, version, "a range of no length is nothing");
    let long = 3 * (1 << 20) + 7;
    let change = b.ok("long", vec![same(1, long, "z")]).change.unwrap();
    assert_eq!(change.written_bytes, long);
    let buffers: std::collections::BTreeSet<_> = change
        .transaction
        .ops
        .iter()
        .filter_map(|op| if let TxnOp::Write { data, .. } = op { Some(data.as_ptr()) } else { None })
        .collect();
    assert_eq!(buffers.len(), 1, "the pattern is in memory once");
    let read = b.read("long");
    assert!(read.len() as u64 == long + 1 && read[0] == 0 && read[1..].iter().all(|byte| *byte == b'z'));
}

#[test]
fn checksums_are_those_of_ceph() {
    let mut b = Bench::new();
    b.ok("o", vec![full("123456789abcdefghi")]);
    let mut sums = |op: Op| b.run("o", vec![op]).ops[0].output.to_vec();
    // The standard's check value is for inverted seed and result.
    let crc = sums(checksum(ChecksumKind::Crc32c, 0xffff_ffff, (0, 9), 0));
    assert_eq!(crc, [1u32.to_le_bytes(), (!0xe306_9283_u32).to_le_bytes()].concat());
    let whole = sums(checksum(ChecksumKind::Crc32c, 0xffff_ffff, (0, 0), 0));
    assert_eq!((whole.len(), whole[0]), (8, 1));
    let chunks = sums(checksum(ChecksumKind::Crc32c, 0xffff_ffff, (0, 18), 9));
    assert_eq!((chunks[0], &chunks[4..8]), (2, &crc[4..8]));
    // The object's end truncates the range; the truncated chunk is omitted.
    let cut = sums(checksum(ChecksumKind::XxHash32, 0, (9, 18), 6));
    assert_eq!((cut[0], cut.len()), (1, 8));
    let hash = sums(checksum(ChecksumKind::XxHash32, 0, (0, 9), 0));
    assert_eq!(hash[4..], 0x937b_ad67_u32.to_le_bytes());
    let hash = sums(checksum(ChecksumKind::XxHash64, 0, (0, 9), 0));
    assert_eq!(hash[4..], 0x8cb8_41db_40e6_ae83_u64.to_le_bytes());
    let seeded = sums(checksum(ChecksumKind::XxHash64, 7, (0, 9), 0));
    assert!(seeded[4..] != hash[4..]);
    assert_eq!(sums(checksum(ChecksumKind::Crc32c, 0, (100, 10), 0)), [0; 4]);
    assert_eq!(sums(checksum(ChecksumKind::Crc32c, 0, (5, 0), 0)), [0; 4]);
    b.fails("o", vec![checksum(ChecksumKind::Crc32c, 0, (0, 0), 4)], Errno::EINVAL);
    b.fails("o", vec![checksum(ChecksumKind::Crc32c, 0, (0, 10), 4)], Errno::EINVAL);
    b.fails("absent", vec![checksum(ChecksumKind::Crc32c, 0, (0, 0), 0)], Errno::ENOENT);
}

#[test]
fn allocation_hints_are_kept_in_the_object_info() {
    let mut b = Bench::new();
    b.ok("o", vec![Op::SetAllocHint { expected_object_size: 4096, expected_write_size: 512, flags: 5 }]);
    b.ok("o", vec![write(0, "x")]);
    let info = load_context(&b.store, PG, &oid("o")).unwrap().info;
    assert_eq!((info.expected_object_size, info.expected_write_size, info.alloc_hint_flags), (4096, 512, 5));
}
