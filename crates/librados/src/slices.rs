//! Keys and values that C passes as arrays of pointers, with or without arrays of lengths.

use crate::abi::{Array, CText, InBuf};
use crate::guard::Outcome;
use bytes::Bytes;

/// Keys that are terminated by zeros.
pub(crate) fn keys(names: Array<CText>, num: usize) -> Outcome<Vec<Bytes>> {
    names.slice(num)?.iter().map(|key| key.bytes().map(Bytes::copy_from_slice)).collect()
}

/// Keys with their lengths.
pub(crate) fn keys_sized(names: Array<CText>, lens: Array<usize>, num: usize) -> Outcome<Vec<Bytes>> {
    let pairs = names.slice(num)?.iter().zip(lens.slice(num)?);
    pairs.map(|(key, len)| key.sized(*len).map(Bytes::copy_from_slice)).collect()
}

fn values(vals: Array<InBuf>, lens: Array<usize>, num: usize) -> Outcome<Vec<Bytes>> {
    vals.slice(num)?.iter().zip(lens.slice(num)?).map(|(value, len)| value.copy(*len)).collect()
}

/// Keys that are terminated by zeros, and values with their lengths.
pub(crate) fn entries(
    names: Array<CText>,
    vals: Array<InBuf>,
    lens: Array<usize>,
    num: usize,
) -> Outcome<Vec<(Bytes, Bytes)>> {
    Ok(keys(names, num)?.into_iter().zip(values(vals, lens, num)?).collect())
}

/// Keys and values, both with their lengths.
pub(crate) fn entries_sized(
    names: Array<CText>,
    vals: Array<InBuf>,
    key_lens: Array<usize>,
    val_lens: Array<usize>,
    num: usize,
) -> Outcome<Vec<(Bytes, Bytes)>> {
    Ok(keys_sized(names, key_lens, num)?.into_iter().zip(values(vals, val_lens, num)?).collect())
}
