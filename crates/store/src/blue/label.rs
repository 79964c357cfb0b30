//! The first blocks of the device: the label that identifies the store, and the watermark of rule B3
//! (byte tables in docs/format/bluestore.md).

use super::aligned::AlignedBuffer;
use super::device::Device;
use super::onode::BLOCK_BYTES;
use crate::error::{Result, StoreError};
use nacre_types::crc32c::crc32c;
use std::path::Path;
use std::time::SystemTime;
use uuid::Uuid;

/// The first block for data. The blocks before it hold the label and the watermark.
pub(super) const FIRST_DATA_BLOCK: u64 = 16;

const LABEL_MAGIC: &[u8; 16] = b"nacre bluestore\n";
const LABEL_VERSION: u32 = 1;
const WATERMARK_MAGIC: &[u8; 16] = b"nacre watermark\n";
/// The block with the copy of the label. The copy is written first and is used if a write of the label was torn.
const LABEL_COPY_BLOCK: u64 = 3;
/// Two slots, written in turn, so that a torn write leaves the other one intact.
const WATERMARK_BLOCKS: [u64; 2] = [1, 2];

/// The identity of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// Also stored in the database. A device and a database with different values are refused.
    pub(super) uuid: Uuid,
    /// Size of the part that the store uses, in bytes.
    pub(super) size: u64,
}

/// The contents of a label, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelInfo {
    /// The store's id, which is also in its database.
    pub uuid: Uuid,
    /// Size of the part that the store uses, in bytes.
    pub size_bytes: u64,
    /// The block size in bytes: the smallest unit of allocation and of checksums.
    pub block_bytes: u64,
    /// Creation time of the store in nanoseconds since 1970, taken from the file that marks it.
    pub created_ns: Option<u64>,
}

impl LabelInfo {
    /// Reads the label of the device in `directory`.
    pub(super) fn read(directory: &Path) -> Result<LabelInfo> {
        let path = directory.join("block");
        let label = Label::read(&Device::open(&path)?, &path.display().to_string())?;
        let made = std::fs::metadata(directory.join("type")).and_then(|kind| kind.modified()).ok();
        let made = made.and_then(|made| made.duration_since(SystemTime::UNIX_EPOCH).ok());
        Ok(LabelInfo {
            uuid: label.uuid,
            size_bytes: label.size,
            block_bytes: BLOCK_BYTES,
            created_ns: made.map(|made| made.as_nanos() as u64),
        })
    }
}

impl Label {
    /// Writes the label. The old or the new one can be read at any time: if block 0 is torn, it is written first, before the
    /// copy.
    pub(super) fn write(&self, device: &Device) -> Result<()> {
        let mut first = AlignedBuffer::zeroed(BLOCK_BYTES as usize);
        let is_torn = device.read(0, &mut first).is_ok()
            && matches!(Label::parse(&first, "the label"), Err(StoreError::Corrupt { .. }));
        let order = if is_torn { [0, LABEL_COPY_BLOCK] } else { [LABEL_COPY_BLOCK, 0] };
        for block in order {
            device.write(block * BLOCK_BYTES, &[self.block()])?;
            device.flush()?;
        }
        Ok(())
    }

    fn block(&self) -> bytes::Bytes {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES as usize);
        block[..16].copy_from_slice(LABEL_MAGIC);
        block[16..20].copy_from_slice(&LABEL_VERSION.to_le_bytes());
        block[20..24].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        block[24..40].copy_from_slice(self.uuid.as_bytes());
        block[40..48].copy_from_slice(&self.size.to_le_bytes());
        seal(&mut block);
        block.freeze()
    }

    /// Reads the label of the device at `path`. The error says what was found instead.
    pub(super) fn read(device: &Device, path: &str) -> Result<Label> {
        let wrong =
            |reason: &str| StoreError::WrongStore { path: path.to_owned(), reason: reason.to_owned() };
        if device.size()? < FIRST_DATA_BLOCK * BLOCK_BYTES {
            return Err(wrong("too small for a bluestore device"));
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES as usize);
        device.read(0, &mut block)?;
        let label = match Label::parse(&block, path) {
            Err(error @ StoreError::Corrupt { .. }) => {
                device.read(LABEL_COPY_BLOCK * BLOCK_BYTES, &mut block)?;
                Label::parse(&block, path).map_err(|_| error)?
            }
            label => label?,
        };
        if device.size()? < label.size {
            return Err(wrong("the device is smaller than the store on it"));
        }
        Ok(label)
    }

    /// Decodes a label block of the device at `path`.
    fn parse(block: &[u8], path: &str) -> Result<Label> {
        let wrong =
            |reason: &str| StoreError::WrongStore { path: path.to_owned(), reason: reason.to_owned() };
        if &block[..16] != LABEL_MAGIC {
            return Err(wrong("no bluestore label on the device"));
        }
        if !is_sealed(block) {
            return Err(StoreError::corrupt(format!("label of {path}"), "checksum mismatch"));
        }
        if u32_at(block, 16) != LABEL_VERSION || u64::from(u32_at(block, 20)) != BLOCK_BYTES {
            return Err(wrong("label of a format that this release does not read"));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&block[24..40]);
        Ok(Label { uuid: Uuid::from_bytes(uuid), size: u64_at(block, 40) })
    }
}

/// The database's sequence number up to which everything was synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watermark {
    /// Number of watermark writes: determines the newer slot and the next one.
    pub(super) generation: u64,
    /// The database's sequence number.
    pub(super) sequence: u64,
}

impl Watermark {
    /// The block to write, and its number. It is durable with the next flush. A delay is harmless, because the watermark then
    /// only states too low a number.
    pub(super) fn block(&self, uuid: Uuid) -> (u64, bytes::Bytes) {
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES as usize);
        block[..16].copy_from_slice(WATERMARK_MAGIC);
        block[16..32].copy_from_slice(uuid.as_bytes());
        block[32..40].copy_from_slice(&self.generation.to_le_bytes());
        block[40..48].copy_from_slice(&self.sequence.to_le_bytes());
        seal(&mut block);
        (WATERMARK_BLOCKS[(self.generation % 2) as usize], block.freeze())
    }

    /// The newest valid watermark of the store `uuid`, or the default if there is none.
    pub(super) fn read(device: &Device, uuid: Uuid) -> Result<Watermark> {
        let mut newest = Watermark::default();
        for block_number in WATERMARK_BLOCKS {
            let mut block = AlignedBuffer::zeroed(BLOCK_BYTES as usize);
            device.read(block_number * BLOCK_BYTES, &mut block)?;
            if let Some(found) = Watermark::parse(&block, uuid)
                && found.generation > newest.generation
            {
                newest = found;
            }
        }
        Ok(newest)
    }

    /// Decodes a watermark block, if it is intact and of the store `uuid`.
    fn parse(block: &[u8], uuid: Uuid) -> Option<Watermark> {
        let own = &block[..16] == WATERMARK_MAGIC && block[16..32] == *uuid.as_bytes() && is_sealed(block);
        own.then(|| Watermark { generation: u64_at(block, 32), sequence: u64_at(block, 40) })
    }
}

/// Writes the checksum of all preceding bytes into the last four bytes.
fn seal(block: &mut [u8]) {
    let at = block.len() - 4;
    let crc = crc32c(&block[..at]);
    block[at..].copy_from_slice(&crc.to_le_bytes());
}

fn is_sealed(block: &[u8]) -> bool {
    let at = block.len() - 4;
    crc32c(&block[..at]) == u32_at(block, at)
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from(u32_at(block, at)) | u64::from(u32_at(block, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_fuzz::Target;

    #[test]
    fn a_torn_label_is_read_from_its_copy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("block");
        super::super::device::create(&path, FIRST_DATA_BLOCK * BLOCK_BYTES).unwrap();
        let device = Device::open(&path).unwrap();
        let [old, new] = [4, 8].map(|blocks| Label { uuid: Uuid::from_u128(5), size: blocks * BLOCK_BYTES });
        let read = || Label::read(&device, "device");
        old.write(&device).unwrap();
        // The first sector is from the new label, the checksum from the old one.
        let torn = || {
            let mut torn = AlignedBuffer::zeroed(BLOCK_BYTES as usize);
            torn.copy_from_slice(&old.block());
            torn[..512].copy_from_slice(&new.block()[..512]);
            torn.freeze()
        };
        device.write(LABEL_COPY_BLOCK * BLOCK_BYTES, &[torn()]).unwrap();
        assert_eq!(read().unwrap(), old);
        device.write(LABEL_COPY_BLOCK * BLOCK_BYTES, &[new.block()]).unwrap();
        device.write(0, &[torn()]).unwrap();
        assert_eq!(read().unwrap(), new);
        // A device whose first block was cleared holds no store.
        device.write(0, &[AlignedBuffer::zeroed(BLOCK_BYTES as usize).freeze()]).unwrap();
        assert!(matches!(read(), Err(StoreError::WrongStore { .. })));
    }

    #[test]
    fn fuzz_labels() {
        let corpus = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
        let uuid = Uuid::from_u128(5);
        let whole = |input: &[u8]| input.len() == BLOCK_BYTES as usize;
        let reseal = |block: &mut [u8]| {
            if block.len() >= 4 {
                seal(block);
            }
        };
        let label = Label { uuid, size: 1 << 40 };
        let target = Target { repair: reseal, ..Target::new("label", corpus, vec![label.block().to_vec()]) };
        target.run(|input| {
            let label = whole(input).then(|| Label::parse(input, "fuzzed").ok())??;
            Some(label.block().to_vec())
        });
        let watermark = Watermark { generation: 7, sequence: 300 };
        let seeds = vec![watermark.block(uuid).1.to_vec()];
        let target = Target { repair: reseal, ..Target::new("watermark", corpus, seeds) };
        target.run(|input| {
            let watermark = whole(input).then(|| Watermark::parse(input, uuid))??;
            Some(watermark.block(uuid).1.to_vec())
        });
    }
}
