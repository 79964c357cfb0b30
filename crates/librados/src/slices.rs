//! Keys and values that C passes as arrays of pointers, with or without arrays of lengths.

use crate::abi::{CStrPtr, InArray, InBuf};
use crate::guard::ApiResult;
use bytes::Bytes;

/// Keys that are terminated by zeros.
pub(crate) fn keys(names: InArray<CStrPtr>, num: usize) -> ApiResult<Vec<Bytes>> {
    names.slice(num)?.iter().map(|key| key.bytes().map(Bytes::copy_from_slice)).collect()
}

/// Keys with their lengths.
pub(crate) fn keys_with_lens(
    names: InArray<CStrPtr>,
    lens: InArray<usize>,
    num: usize,
) -> ApiResult<Vec<Bytes>> {
    let pairs = names.slice(num)?.iter().zip(lens.slice(num)?);
    pairs.map(|(key, len)| key.sized(*len).map(Bytes::copy_from_slice)).collect()
}

fn values(vals: InArray<InBuf>, lens: InArray<usize>, num: usize) -> ApiResult<Vec<Bytes>> {
    vals.slice(num)?.iter().zip(lens.slice(num)?).map(|(value, len)| value.copy(*len)).collect()
}

/// Keys that are terminated by zeros, and values with their lengths.
pub(crate) fn entries(
    names: InArray<CStrPtr>,
    vals: InArray<InBuf>,
    lens: InArray<usize>,
    num: usize,
) -> ApiResult<Vec<(Bytes, Bytes)>> {
    Ok(keys(names, num)?.into_iter().zip(values(vals, lens, num)?).collect())
}

/// Keys and values, both with their lengths.
pub(crate) fn entries_with_lens(
    names: InArray<CStrPtr>,
    vals: InArray<InBuf>,
    key_lens: InArray<usize>,
    val_lens: InArray<usize>,
    num: usize,
) -> ApiResult<Vec<(Bytes, Bytes)>> {
    Ok(keys_with_lens(names, key_lens, num)?.into_iter().zip(values(vals, val_lens, num)?).collect())
}
