//! Names of objects' files: `NAME_KEY_SNAP_HASH_NAMESPACE_POOL_NUMBER_ff`, escaped as in Ceph's long-file-name index
//! (docs/format/filestore.md).
//!
//! The number takes the place of Ceph's generation. Each incarnation of an object has its own number, so no name
//! is ever reused and a journal replay can't confuse two files.

use nacre_types::hash::ceph_str_hash_rjenkins;
use nacre_types::ids::PgId;
use nacre_types::object::{ObjectId, SNAP_DIR, SNAP_HEAD};
use std::fmt::Write;

/// The longest file name, in bytes (`NAME_MAX`).
const MAX_FILE_NAME_BYTES: usize = 255;
/// Length of the readable part of a long name, in bytes.
const LONG_PREFIX_BYTES: usize = 200;
/// The extended attribute that holds the full name of a file with a shortened name, as in Ceph.
pub(super) const LONG_NAME_XATTR: &str = "user.cephos.lfn3";

/// Appends `text` with separators and special characters escaped.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\s"),
            '_' => out.push_str("\\u"),
            '\0' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// The full escaped name of the file for an object's incarnation.
pub(super) fn full_name(oid: &ObjectId, number: u64) -> String {
    let mut out = String::with_capacity(oid.name().len() + 48);
    let mut name = oid.name();
    // A leading dot would hide the file, and `DIR_` would look like a hash directory.
    if name.starts_with('.') {
        out.push_str("\\.");
        name = &name[1..];
    } else if let Some(rest) = name.strip_prefix("DIR_") {
        out.push_str("\\d");
        name = rest;
    }
    escape(&mut out, name);
    out.push('_');
    escape(&mut out, oid.locator());
    let written = match oid.snap() {
        SNAP_HEAD => write!(out, "_head"),
        SNAP_DIR => write!(out, "_snapdir"),
        snap => write!(out, "_{snap:x}"),
    };
    written.expect("invariant: strings take what is written");
    write!(out, "_{:08X}_", oid.hash()).expect("invariant: strings take what is written");
    escape(&mut out, oid.namespace());
    write!(out, "_{:x}_{number:x}_ff", oid.pool().0).expect("invariant: strings take what is written");
    out
}

/// The file's name on disk, and whether it is shortened.
pub(super) fn file_name(oid: &ObjectId, number: u64) -> (String, bool) {
    let full = full_name(oid, number);
    if full.len() <= MAX_FILE_NAME_BYTES {
        return (full, false);
    }
    let cut = (0..=LONG_PREFIX_BYTES).rev().find(|at| full.is_char_boundary(*at)).unwrap_or(0);
    let of_name = ceph_str_hash_rjenkins(full.as_bytes());
    (format!("{}_{:08X}_{of_name:08x}_{number:x}_long", &full[..cut], oid.hash()), true)
}

/// The placement hash in a file name.
pub(super) fn hash_of(file_name: &str) -> Option<u32> {
    let mut parts = file_name.rsplit('_');
    let hash = match parts.next()? {
        "ff" => parts.nth(3)?,
        "long" => parts.nth(2)?,
        _ => return None,
    };
    u32::from_str_radix(hash, 16).ok()
}

/// The number in a file name.
pub(super) fn number_of(file_name: &str) -> Option<u64> {
    let mut parts = file_name.rsplit('_');
    match parts.next()? {
        "ff" | "long" => u64::from_str_radix(parts.next()?, 16).ok(),
        _ => None,
    }
}

/// The name of a collection's directory.
pub(super) fn collection(coll: PgId) -> String {
    format!("{coll}_head")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::ids::PoolId;

    fn named(name: &str) -> ObjectId {
        ObjectId::with_hash(PoolId(3), "", "", name, SNAP_HEAD, 0xa1b2_c3d4)
    }

    #[test]
    fn names_are_those_of_ceph_with_a_number() {
        assert_eq!(full_name(&named("plain"), 0x1f), "plain__head_A1B2C3D4__3_1f_ff");
        let odd = ObjectId::with_hash(PoolId(3), "n_s", "k/y", ".a_b/c\\d\0", 4, 1);
        assert_eq!(full_name(&odd, 2), "\\.a\\ub\\sc\\\\d\\n_k\\sy_4_00000001_n\\us_3_2_ff");
        assert_eq!(full_name(&named("DIR_A"), 1), "\\dA__head_A1B2C3D4__3_1_ff");
        assert_eq!(number_of("plain__head_A1B2C3D4__3_1f_ff"), Some(0x1f));
        assert_eq!(hash_of("plain__head_A1B2C3D4__3_1f_ff"), Some(0xa1b2_c3d4));
        assert_eq!((number_of("DIR_A"), number_of("notes.txt")), (None, None));
    }

    #[test]
    fn long_names_are_cut_at_a_character_and_keep_their_number() {
        let oid = named(&"ä".repeat(700));
        let (short, is_long) = file_name(&oid, 0xabc);
        assert!(is_long && short.len() <= MAX_FILE_NAME_BYTES && short.starts_with('ä'), "{short}");
        assert_eq!((number_of(&short), hash_of(&short)), (Some(0xabc), Some(0xa1b2_c3d4)));
        let (other, _) = file_name(&named(&format!("{}b", "ä".repeat(699))), 0xabc);
        assert_ne!(short, other);
        assert!(!file_name(&named(&"a".repeat(200)), 1).1);
    }
}
