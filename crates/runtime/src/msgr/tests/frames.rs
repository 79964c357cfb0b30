//! Damaged frames: see `nacre_fuzz`.

use nacre_session::body::FrameBody;
use nacre_session::wire::{FLAG_DATA_CRC, FrameHeader, HEADER_BYTES};

use nacre_fuzz::Target;
use nacre_types::crc32c::crc32c;
use std::path::Path;

fn frame(kind: u16, meta: &[u8], data: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        flags: FLAG_DATA_CRC,
        kind,
        seq: 7,
        ack: 6,
        meta_len: meta.len() as u32,
        data_len: data.len() as u32,
        meta_crc: crc32c(meta),
        data_crc: crc32c(data),
    };
    [&header.encode()[..], meta, data].concat()
}

/// Corrects the header's checksum, and the body's if the lengths in the header are correct.
fn reseal(frame: &mut [u8]) {
    let Some((header, body)) = frame.split_at_mut_checked(HEADER_BYTES) else { return };
    let length = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (meta_len, data_len) = (length(24) as usize, length(28) as usize);
    if let Some((meta, data)) = body.split_at_checked(meta_len)
        && data.len() == data_len
    {
        header[32..36].copy_from_slice(&crc32c(meta).to_le_bytes());
        header[36..40].copy_from_slice(&crc32c(data).to_le_bytes());
    }
    let crc = crc32c(&header[..40]);
    header[40..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn fuzz_frames() {
    let seeds = vec![
        frame(1, b"described", b"data"),
        frame(1, b"", b""),
        frame(2, b"alone", b""),
        // Data that is read into its own buffer.
        frame(3, b"large", &[7; 20 << 10]),
        FrameHeader::control(nacre_session::wire::KEEPALIVE, 4).encode().to_vec(),
    ];
    let target = Target {
        repair: reseal,
        ..Target::new("frame", Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")), seeds)
    };
    target.run(|input| {
        let (header, body) = input.split_first_chunk::<HEADER_BYTES>()?;
        let header = FrameHeader::decode(header).ok()?;
        // Announced data that does not arrive only causes an allocation, which the throttle bounds.
        if header.body_len() != body.len() as u64 {
            return None;
        }
        let mut read = FrameBody::new(&header);
        // In the pieces in which a socket may deliver it.
        let mut rest = body;
        for piece in [1, 3, 4096].into_iter().cycle() {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            assert_eq!(read.fill(now), now.len());
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        assert!(read.next_buffer().is_none(), "all of the body is taken");
        let (meta, data) = read.finish(&header).ok()?;
        assert_eq!((meta.len(), data.len()), (header.meta_len as usize, header.data_len as usize));
        Some([&header.encode()[..], &meta, &data].concat())
    });
}
