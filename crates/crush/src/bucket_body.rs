//! Construction of each bucket algorithm's per-item state from weights.

use crate::model::{BucketAlg, BucketBody};

/// The maximum number of items of a tree bucket: the number of nodes is one byte in the binary format.
pub const MAX_TREE_BUCKET_ITEMS: usize = 64;

/// Why a bucket can't have these items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The sum of weights does not fit 16.16.
    WeightOverflow,
    /// More than [`MAX_TREE_BUCKET_ITEMS`] in a tree.
    TreeTooBig,
    /// Different weights in a uniform bucket.
    NotUniform,
}

/// Returns the state for `weights` (16.16) and their sum.
pub(crate) fn build_body(
    alg: BucketAlg,
    weights: &[u32],
    straw_calc_version: u8,
) -> Result<(BucketBody, u32), BodyError> {
    let mut total = 0_u32;
    let mut sum_weights = Vec::with_capacity(weights.len());
    for &weight in weights {
        total = total.checked_add(weight).ok_or(BodyError::WeightOverflow)?;
        sum_weights.push(total);
    }
    let item_weights = weights.to_vec();
    let body = match alg {
        BucketAlg::Uniform => {
            let item_weight = weights.first().copied().unwrap_or(0);
            if weights.iter().any(|&w| w != item_weight) {
                return Err(BodyError::NotUniform);
            }
            BucketBody::Uniform { item_weight }
        }
        BucketAlg::List => BucketBody::List { item_weights, sum_weights },
        BucketAlg::Tree => BucketBody::Tree { node_weights: tree_nodes(weights)? },
        BucketAlg::Straw => {
            BucketBody::Straw { straws: straw_lengths(weights, straw_calc_version), item_weights }
        }
        BucketAlg::Straw2 => BucketBody::Straw2 { item_weights },
    };
    Ok((body, total))
}

/// Returns the node weights of the implicit tree: leaf `i` is node `2 i + 1`, a parent is in the middle of its two children.
fn tree_nodes(weights: &[u32]) -> Result<Vec<u32>, BodyError> {
    if weights.len() > MAX_TREE_BUCKET_ITEMS {
        return Err(BodyError::TreeTooBig);
    }
    if weights.is_empty() {
        return Ok(Vec::new());
    }
    let nodes = weights.len().next_power_of_two() * 2;
    let mut node_weights = vec![0_u32; nodes];
    for (at, &weight) in weights.iter().enumerate() {
        let mut node = 2 * at + 1;
        node_weights[node] = weight;
        while node != nodes / 2 {
            let height = node.trailing_zeros();
            // A node is its parent's right child if the bit above its lowest one is set.
            node = if node & (2 << height) != 0 { node - (1 << height) } else { node + (1 << height) };
            node_weights[node] += weight;
        }
    }
    Ok(node_weights)
}

/// Returns straw lengths (16.16) such that items have the longest draw approximately in proportion to their weights.
///
/// Version 0 is wrong for items of equal and of zero weight. It is kept because placements in maps created with it must not
/// change.
fn straw_lengths(weights: &[u32], version: u8) -> Vec<u32> {
    let size = weights.len();
    let mut by_weight: Vec<usize> = (0..size).collect();
    by_weight.sort_by_key(|&at| weights[at]);

    let mut straws = vec![0_u32; size];
    let mut left = size as i64;
    let mut straw = 1.0_f64;
    let mut below = 0.0_f64;
    let mut last = 0.0_f64;
    let mut at = 0;
    while at < size {
        let weight = weights[by_weight[at]];
        if weight == 0 {
            // The straws stay 0; only version 1 excludes these items.
            if version >= 1 {
                left -= 1;
            }
            at += 1;
            continue;
        }
        straws[by_weight[at]] = (straw * 65536.0) as u32;
        at += 1;
        let Some(&next) = by_weight.get(at) else { break };
        let next_weight = weights[next];
        if version == 0 && next_weight == weight {
            continue;
        }
        below += (f64::from(weight) - last) * left as f64;
        if version == 0 {
            left -= by_weight[at..].iter().take_while(|&&i| weights[i] == next_weight).count() as i64;
        } else {
            left -= 1;
        }
        // The product is 32-bit and unsigned in Ceph, including overflow.
        let above = f64::from((left as u32).wrapping_mul(next_weight.wrapping_sub(weight)));
        let share_below = below / (below + above);
        straw *= (1.0 / share_below).powf(1.0 / left as f64);
        last = f64::from(weight);
    }
    straws
}
