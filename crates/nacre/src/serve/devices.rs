//! Devices for the data of new OSDs: which may be used, and what is cleared from them.
//!
//! A device with a file system, a partition table, another system's volume or a store is refused, unless the caller allows the
//! loss of its data. A device in use (mounted, or part of a volume) is always refused.

use crate::cluster_dir::BlockDevice;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes at the start of a device that are examined and cleared. They contain every signature below.
const HEAD_BYTES: u64 = 2 << 20;
/// The same at the end: backups of partition tables, superblocks of RAID members.
const TAIL_BYTES: u64 = 1 << 20;
/// Minimum size of a device in bytes.
const MIN_BYTES: u64 = 64 << 20;

/// A signature: these bytes at this offset identify the contents. A negative offset counts from the end of the device.
struct Signature {
    name: &'static str,
    offset: i64,
    magic: &'static [u8],
}

const fn at(name: &'static str, offset: i64, magic: &'static [u8]) -> Signature {
    Signature { name, offset, magic }
}

/// Magic numbers of systems that store data, as in libblkid.
const SIGNATURES: &[Signature] = &[
    at("a BlueStore of Nacre", 0, b"nacre bluestore\n"),
    at("a BlueStore of Ceph", 0, b"bluestore block device"),
    at("an ext file system", 0x438, &[0x53, 0xef]),
    at("an XFS file system", 0, b"XFSB"),
    at("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    at("an F2FS file system", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    at("a NILFS file system", 0x406, &[0x34, 0x34]),
    at("a ReiserFS file system", 0x1_0034, b"ReIsEr"),
    at("a JFS file system", 0x8000, b"JFS1"),
    at("a GFS2 file system", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]),
    at("an OCFS2 file system", 0x400, b"OCFSV2"),
    at("an OCFS2 file system", 0x800, b"OCFSV2"),
    at("an OCFS2 file system", 0x1000, b"OCFSV2"),
    at("an EROFS file system", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    at("a SquashFS file system", 0, b"hsqs"),
    at("an NTFS file system", 3, b"NTFS    "),
    at("an exFAT file system", 3, b"EXFAT   "),
    at("a FAT file system", 54, b"FAT"),
    at("a FAT file system", 82, b"FAT32"),
    at("an ISO 9660 file system", 0x8001, b"CD001"),
    at("a UDF file system", 0x8001, b"BEA01"),
    at("a LUKS volume", 0, b"LUKS\xba\xbe"),
    at("a LUKS volume", 0x4000, b"SKUL\xba\xbe"),
    at("an LVM physical volume", 0, b"LABELONE"),
    at("an LVM physical volume", 512, b"LABELONE"),
    at("an LVM physical volume", 1024, b"LABELONE"),
    at("an LVM physical volume", 1536, b"LABELONE"),
    at("a bcache device", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    at("a bcachefs file system", 0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    at("a VDO volume", 0, b"dmvdo001"),
    at("a RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    at("a RAID member", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    at("a RAID member", -0x2000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    at("swap space", 4086, b"SWAPSPACE2"),
    at("swap space", 4086, b"SWAP-SPACE"),
    at("a GPT partition table", 512, b"EFI PART"),
    at("a GPT partition table", 4096, b"EFI PART"),
    at("the backup of a GPT partition table", -512, b"EFI PART"),
    at("the backup of a GPT partition table", -4096, b"EFI PART"),
    // Last, because boot sectors of file systems end with these bytes, too.
    at("a partition table", 510, &[0x55, 0xaa]),
];

/// ZFS uberblocks are in an array. Those in use have this magic number, in either byte order.
const ZFS_UBERBLOCKS: std::ops::Range<u64> = 128 << 10..256 << 10;
const ZFS_UBERBLOCK_BYTES: u64 = 1 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Examines the devices for a new cluster and, with `wipe`, clears their contents. Writes nothing if one of them is refused.
pub(super) fn prepare_devices(paths: &[PathBuf], wipe: bool) -> Result<Vec<BlockDevice>> {
    let mut opened: Vec<(File, BlockDevice)> = Vec::new();
    for path in paths {
        let (file, device) = open(path)?;
        let same = opened.iter().any(|(_, other)| other.path == device.path);
        ensure!(!same, "{} is given twice", path.display());
        if !wipe && let Some(found) = signature(&file, device.size_bytes)? {
            bail!("{} contains {found}: use --wipe-devs to overwrite it", path.display());
        }
        opened.push((file, device));
    }
    for (file, device) in opened.iter().filter(|_| wipe) {
        clear(file, device.size_bytes).with_context(|| format!("can't clear {}", device.path.display()))?;
    }
    Ok(opened.into_iter().map(|(_, device)| device).collect())
}

/// Opens a block device that is not in use, or a file.
fn open(path: &Path) -> Result<(File, BlockDevice)> {
    let shown = path.display();
    let path = path.canonicalize().with_context(|| format!("can't find the device {shown}"))?;
    let kind = path.metadata().with_context(|| format!("can't stat {shown}"))?.file_type();
    ensure!(kind.is_block_device() || kind.is_file(), "{shown} is neither a block device nor a file");
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if kind.is_block_device() {
        // The kernel refuses this while the device is mounted or part of a volume.
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let mut file = match options.open(&path) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            bail!("{shown} is in use: it is mounted, or part of a volume")
        }
        opened => opened.with_context(|| format!("can't open {shown}"))?,
    };
    // Seeking also returns the size of block devices.
    let size_bytes = file.seek(SeekFrom::End(0)).with_context(|| format!("can't get the size of {shown}"))?;
    ensure!(size_bytes >= MIN_BYTES, "{shown} has {size_bytes} bytes: a store needs at least {MIN_BYTES}");
    Ok((file, BlockDevice { path, size_bytes }))
}

/// A name for the contents of the device.
fn signature(file: &File, size: u64) -> Result<Option<&'static str>> {
    let mut head = vec![0; usize::try_from(HEAD_BYTES)?];
    let mut tail = vec![0; usize::try_from(TAIL_BYTES)?];
    file.read_exact_at(&mut head, 0).context("can't read the start of a device")?;
    file.read_exact_at(&mut tail, size - TAIL_BYTES).context("can't read the end of a device")?;
    Ok(signature_in(&head, &tail))
}

fn signature_in(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let bears = |signature: &&Signature| {
        let bytes = match usize::try_from(signature.offset) {
            Ok(offset) => head.get(offset..),
            Err(_) => tail.len().checked_add_signed(signature.offset as isize).map(|offset| &tail[offset..]),
        };
        bytes.is_some_and(|bytes| bytes.starts_with(signature.magic))
    };
    let found = SIGNATURES.iter().find(bears).map(|signature| signature.name);
    found.or_else(|| has_uberblock(head).then_some("a member of a ZFS pool"))
}

fn has_uberblock(head: &[u8]) -> bool {
    let (little, big) = (ZFS_MAGIC.to_le_bytes(), ZFS_MAGIC.to_be_bytes());
    let blocks = ZFS_UBERBLOCKS.step_by(ZFS_UBERBLOCK_BYTES as usize);
    let starts = blocks.filter_map(|offset| head.get(usize::try_from(offset).ok()?..));
    starts.into_iter().any(|bytes| bytes.starts_with(&little) || bytes.starts_with(&big))
}

/// Overwrites the areas with signatures.
fn clear(file: &File, size: u64) -> std::io::Result<()> {
    let zeros = vec![0; HEAD_BYTES as usize];
    file.write_all_at(&zeros, 0)?;
    file.write_all_at(&zeros[..TAIL_BYTES as usize], size - TAIL_BYTES)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file instead of a device.
    fn device(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        File::create(&path).unwrap().set_len(MIN_BYTES).unwrap();
        path
    }

    #[test]
    fn every_signature_is_found_and_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let path = device(folder.path(), "device");
        let paths = [path.clone()];
        assert_eq!(
            prepare_devices(&paths, false).unwrap(),
            [BlockDevice { path: path.clone(), size_bytes: MIN_BYTES }]
        );
        let zfs = at("a member of a ZFS pool", (128 << 10) + 5 * 1024, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]);
        for signature in SIGNATURES.iter().chain([&zfs]) {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let offset = match u64::try_from(signature.offset) {
                Ok(offset) => offset,
                Err(_) => MIN_BYTES - signature.offset.unsigned_abs(),
            };
            file.write_all_at(signature.magic, offset).unwrap();
            let error = prepare_devices(&paths, false).unwrap_err().to_string();
            let expected =
                format!("{} contains {}: use --wipe-devs to overwrite it", path.display(), signature.name);
            assert_eq!(error, expected);
            prepare_devices(&paths, true).unwrap();
            prepare_devices(&paths, false).unwrap();
        }
    }

    #[test]
    fn one_refused_device_leaves_all_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (good, bad) = (device(folder.path(), "good"), folder.path().join("bad"));
        let file = OpenOptions::new().write(true).open(&good).unwrap();
        file.write_all_at(b"XFSB", 0).unwrap();
        std::fs::write(&bad, "short").unwrap();
        let error = prepare_devices(&[good.clone(), bad], true).unwrap_err().to_string();
        assert!(error.contains("has 5 bytes"), "{error}");
        let error = prepare_devices(&[good.clone(), good.clone()], true).unwrap_err().to_string();
        assert!(error.contains("is given twice"), "{error}");
        let error = prepare_devices(&[good.clone(), folder.path().to_owned()], true).unwrap_err().to_string();
        assert!(error.contains("neither a block device nor a file"), "{error}");
        assert!(prepare_devices(&[good], false).unwrap_err().to_string().contains("an XFS file system"));
    }
}
