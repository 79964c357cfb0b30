//! The placement function: maps a rule, an input and the devices' in/out weights to a list of items.
//!
//! Bit-exact with Ceph, including its defects: every hash input, every retry count and the order of checks determines where
//! data is stored. There are no allocations per draw, and with a reused [`Workspace`] none per call.
//!
//! It differs in two cases in which Ceph's result is undefined: a map with a cycle ends the descent instead of looping forever,
//! and an item that names a missing bucket counts as a bad item.

use crate::ln_table::{LOG_HIGH, LOG_LOW, RECIPROCAL};
use crate::model::{
    Bucket, BucketBody, ChooseArg, ChooseArgs, CrushMap, ITEM_NONE, StepOp, WEIGHT_ONE, bucket_slot,
};
use crate::rjenkins::{hash32_2, hash32_3, hash32_4};

/// `CRUSH_ITEM_UNDEF`: a position of an indep choice that is not filled yet.
const ITEM_UNDEF: i32 = 0x7fff_fffe;

/// Buffers that mapping reuses, and an optional histogram of tries.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    permutations: Vec<Permutation>,
    round: u64,
    taken: Vec<i32>,
    chosen: Vec<i32>,
    leaves: Vec<i32>,
    tries: Option<Vec<u32>>,
}

impl Workspace {
    /// Creates an empty workspace for any map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts to count how many descents need how many retries (`crushtool --show-choose-tries`). Retries from `limit` on are
    /// not counted.
    pub fn start_choose_profile(&mut self, limit: usize) {
        self.tries = Some(vec![0; limit]);
    }

    /// Ends the count. Entry `n` is the number of choices that needed `n` retries.
    pub fn take_choose_profile(&mut self) -> Vec<u32> {
        self.tries.take().unwrap_or_default()
    }

    fn count_tries(&mut self, retries: u32) {
        if let Some(slot) = self.tries.as_mut().and_then(|t| t.get_mut(retries as usize)) {
            *slot += 1;
        }
    }

    /// Returns the item at position `r` of the bucket's pseudo-random permutation for `x`, which is extended as needed.
    fn permuted(&mut self, bucket: &Bucket, x: u32, r: u32) -> i32 {
        let slot = !bucket.id as usize;
        if slot >= self.permutations.len() {
            self.permutations.resize(slot + 1, Permutation::default());
        }
        let p = &mut self.permutations[slot];
        let size = bucket.items.len() as u32;
        if p.round != self.round || p.order.len() != size as usize {
            p.round = self.round;
            p.order.clear();
            p.order.extend(0..size);
            p.fixed = 0;
        }
        let wanted = r % size;
        while p.fixed <= wanted {
            let at = p.fixed;
            if at + 1 < size {
                let swap = draw3(bucket, x, bucket.id as u32, at) % (size - at);
                p.order.swap((at + swap) as usize, at as usize);
            }
            p.fixed += 1;
        }
        bucket.items[p.order[wanted as usize] as usize]
    }
}

/// The computed part of a bucket's permutation for the current input.
#[derive(Clone, Debug, Default)]
struct Permutation {
    round: u64,
    fixed: u32,
    order: Vec<u32>,
}

impl CrushMap {
    /// Maps input `x` by `rule` to at most `result_max` items.
    ///
    /// `weights[i]` is the in/out reweight of device `i` (16.16: 0 is out, [`WEIGHT_ONE`] fully in); devices beyond its end
    /// are out. Holes of `indep` steps are [`ITEM_NONE`]. A rule that does not exist maps to nothing.
    pub fn do_rule(
        &self,
        rule: u32,
        x: u32,
        result_max: usize,
        weights: &[u32],
        choose_args: Option<&ChooseArgs>,
    ) -> Vec<i32> {
        let mut out = Vec::with_capacity(result_max);
        self.do_rule_with(&mut Workspace::new(), rule, x, result_max, weights, choose_args, &mut out);
        out
    }

    /// Like [`CrushMap::do_rule`], but writes to `out` (cleared first) and uses buffers from `work`: for mapping many inputs.
    #[allow(clippy::too_many_arguments)]
    pub fn do_rule_with(
        &self,
        work: &mut Workspace,
        rule: u32,
        x: u32,
        result_max: usize,
        weights: &[u32],
        choose_args: Option<&ChooseArgs>,
        out: &mut Vec<i32>,
    ) {
        out.clear();
        let Some(rule) = self.rule(rule) else { return };
        work.round += 1;
        let mut taken = std::mem::take(&mut work.taken);
        let mut chosen = std::mem::take(&mut work.chosen);
        let mut leaves = std::mem::take(&mut work.leaves);
        for buffer in [&mut taken, &mut chosen, &mut leaves] {
            buffer.clear();
            buffer.resize(result_max.max(1), ITEM_UNDEF);
        }
        let mut taken_len = 0;

        let t = &self.tunables;
        // The tunable counts retries; all code below counts tries.
        let mut choose_tries = t.choose_total_tries.wrapping_add(1);
        let mut leaf_tries = 0_u32;
        let mut draws = Draws {
            map: self,
            work,
            weights,
            args: choose_args,
            x,
            local_retries: t.choose_local_tries,
            local_fallback_retries: t.choose_local_fallback_tries,
            vary_r: u32::from(t.chooseleaf_vary_r),
            stable: t.chooseleaf_stable != 0,
        };

        for step in &rule.steps {
            match step.op {
                StepOp::Noop => {}
                StepOp::Take => {
                    if (0..self.max_devices).contains(&step.arg1) || self.bucket(step.arg1).is_some() {
                        taken[0] = step.arg1;
                        taken_len = 1;
                    }
                }
                StepOp::SetChooseTries if step.arg1 > 0 => choose_tries = step.arg1 as u32,
                StepOp::SetChooseleafTries if step.arg1 > 0 => leaf_tries = step.arg1 as u32,
                StepOp::SetChooseLocalTries if step.arg1 >= 0 => draws.local_retries = step.arg1 as u32,
                StepOp::SetChooseLocalFallbackTries if step.arg1 >= 0 => {
                    draws.local_fallback_retries = step.arg1 as u32;
                }
                StepOp::SetChooseleafVaryR if step.arg1 >= 0 => draws.vary_r = step.arg1 as u32,
                StepOp::SetChooseleafStable if step.arg1 >= 0 => draws.stable = step.arg1 != 0,
                StepOp::SetChooseTries
                | StepOp::SetChooseleafTries
                | StepOp::SetChooseLocalTries
                | StepOp::SetChooseLocalFallbackTries
                | StepOp::SetChooseleafVaryR
                | StepOp::SetChooseleafStable => {}
                StepOp::ChooseFirstn
                | StepOp::ChooseIndep
                | StepOp::ChooseleafFirstn
                | StepOp::ChooseleafIndep => {
                    if taken_len == 0 {
                        continue;
                    }
                    let firstn = matches!(step.op, StepOp::ChooseFirstn | StepOp::ChooseleafFirstn);
                    let to_leaf = matches!(step.op, StepOp::ChooseleafFirstn | StepOp::ChooseleafIndep);
                    let wanted = if step.arg1 > 0 {
                        i64::from(step.arg1)
                    } else {
                        i64::from(step.arg1) + result_max as i64
                    };
                    let mut filled = 0;
                    for &from in &taken[..taken_len] {
                        if wanted <= 0 {
                            break;
                        }
                        let Some(bucket) = self.bucket(from) else { continue };
                        let free = result_max - filled;
                        let choice = Choice { bucket, type_id: step.arg2, tries: choose_tries };
                        let leaves = to_leaf.then_some(&mut leaves[filled..result_max]);
                        let out = &mut chosen[filled..result_max];
                        filled += if firstn {
                            let inner_tries = match (leaf_tries, t.chooseleaf_descend_once) {
                                (0, 0) => choose_tries,
                                (0, _) => 1,
                                (tries, _) => tries,
                            };
                            let ask = FirstnAsk { replicas: wanted as u32, inner_tries, parent_r: 0, free };
                            draws.firstn(choice, ask, out, 0, leaves)
                        } else {
                            let count = free.min(wanted as usize);
                            let ask = IndepAsk {
                                start: 0,
                                count,
                                replicas: wanted as u32,
                                inner_tries: leaf_tries.max(1),
                                parent_r: 0,
                            };
                            draws.indep(choice, ask, out, leaves);
                            count
                        };
                    }
                    if to_leaf {
                        chosen[..filled].copy_from_slice(&leaves[..filled]);
                    }
                    std::mem::swap(&mut taken, &mut chosen);
                    taken_len = filled;
                }
                StepOp::Emit => {
                    let room = result_max - out.len();
                    out.extend_from_slice(&taken[..taken_len.min(room)]);
                    taken_len = 0;
                }
            }
        }
        (work.taken, work.chosen, work.leaves) = (taken, chosen, leaves);
    }
}

/// The common state of all draws of one `do_rule`.
struct Draws<'a> {
    map: &'a CrushMap,
    work: &'a mut Workspace,
    weights: &'a [u32],
    args: Option<&'a ChooseArgs>,
    x: u32,
    local_retries: u32,
    local_fallback_retries: u32,
    vary_r: u32,
    stable: bool,
}

/// The type of items to choose, and the bucket to choose them from.
#[derive(Clone, Copy)]
struct Choice<'a> {
    bucket: &'a Bucket,
    type_id: i32,
    tries: u32,
}

struct FirstnAsk {
    /// Replica numbers below this one are tried.
    replicas: u32,
    /// Tries of the inner descent to a leaf.
    inner_tries: u32,
    parent_r: u32,
    /// Number of further items that may be returned.
    free: usize,
}

struct IndepAsk {
    start: usize,
    count: usize,
    replicas: u32,
    inner_tries: u32,
    parent_r: u32,
}

/// The result of one draw.
enum DrawTarget<'a> {
    /// An item of the wanted type.
    Found(i32),
    /// A bucket of another type: the descent continues below it.
    Below(&'a Bucket),
    /// A device of the wrong type, or an id out of range: this replica can't be placed.
    Bad,
}

impl<'a> Draws<'a> {
    /// Fills `out[outpos..]` with distinct items; failures leave no gaps. Returns the new length.
    fn firstn(
        &mut self,
        choice: Choice<'a>,
        ask: FirstnAsk,
        out: &mut [i32],
        mut outpos: usize,
        mut leaves: Option<&mut [i32]>,
    ) -> usize {
        let mut free = ask.free;
        let mut replica = if self.stable { 0 } else { outpos as u32 };
        while replica < ask.replicas && free > 0 {
            if let Some((item, retries)) =
                self.firstn_one(choice, &ask, replica, free, out, outpos, &mut leaves)
            {
                out[outpos] = item;
                outpos += 1;
                free -= 1;
                self.work.count_tries(retries);
            }
            replica += 1;
        }
        outpos
    }

    /// Places one replica, and its leaf at `leaves[outpos]`. Returns it with the number of retries.
    #[allow(clippy::too_many_arguments)]
    fn firstn_one(
        &mut self,
        choice: Choice<'a>,
        ask: &FirstnAsk,
        replica: u32,
        free: usize,
        out: &[i32],
        outpos: usize,
        leaves: &mut Option<&mut [i32]>,
    ) -> Option<(i32, u32)> {
        let mut total_retries = 0_u32;
        loop {
            let mut within = choice.bucket;
            let mut local_retries = 0_u32;
            let mut depth = 0_usize;
            loop {
                let r = replica.wrapping_add(ask.parent_r).wrapping_add(total_retries);
                let size = within.items.len() as u32;
                let mut collides = false;
                if size > 0 {
                    let exhausted = self.local_fallback_retries > 0
                        && local_retries >= size >> 1
                        && local_retries > self.local_fallback_retries;
                    let item = if exhausted {
                        self.work.permuted(within, self.x, r)
                    } else {
                        self.draw(within, r, outpos)
                    };
                    match self.classify(item, choice.type_id) {
                        DrawTarget::Bad => return None,
                        DrawTarget::Below(bucket) => {
                            depth += 1;
                            if depth > self.map.buckets.len() {
                                return None;
                            }
                            within = bucket;
                            continue;
                        }
                        DrawTarget::Found(item) => {
                            collides = out[..outpos].contains(&item);
                            if !collides
                                && self.firstn_leaf(ask, item, r, free, outpos, leaves)
                                && !(choice.type_id == 0 && self.is_out(item))
                            {
                                return Some((item, total_retries));
                            }
                        }
                    }
                }
                total_retries = total_retries.wrapping_add(1);
                local_retries = local_retries.wrapping_add(1);
                let again_here = (collides && local_retries <= self.local_retries)
                    || (self.local_fallback_retries > 0
                        && local_retries <= size.wrapping_add(self.local_fallback_retries));
                if again_here {
                    continue;
                }
                if total_retries < choice.tries {
                    break;
                }
                return None;
            }
        }
    }

    /// For `chooseleaf`: finds a device below `item` and records it. Returns true at once if no leaf is wanted.
    fn firstn_leaf(
        &mut self,
        ask: &FirstnAsk,
        item: i32,
        r: u32,
        free: usize,
        outpos: usize,
        leaves: &mut Option<&mut [i32]>,
    ) -> bool {
        let Some(leaves) = leaves.as_deref_mut() else { return true };
        let Some(bucket) = self.map.bucket(item) else {
            leaves[outpos] = item;
            return true;
        };
        let inner = FirstnAsk {
            replicas: if self.stable { 1 } else { outpos as u32 + 1 },
            inner_tries: 0,
            parent_r: if self.vary_r > 0 { r >> ((self.vary_r - 1) & 31) } else { 0 },
            free,
        };
        let choice = Choice { bucket, type_id: 0, tries: ask.inner_tries };
        self.firstn(choice, inner, leaves, outpos, None) > outpos
    }

    /// Fills positions `start..start + count` of `out`, each independently of failures of the others. Positions that can't be
    /// filled become [`ITEM_NONE`].
    fn indep(&mut self, choice: Choice<'a>, ask: IndepAsk, out: &mut [i32], mut leaves: Option<&mut [i32]>) {
        let range = ask.start..ask.start + ask.count;
        out[range.clone()].fill(ITEM_UNDEF);
        if let Some(leaves) = leaves.as_deref_mut() {
            leaves[range.clone()].fill(ITEM_UNDEF);
        }
        let mut left = ask.count;
        let mut retries = 0_u32;
        while left > 0 && retries < choice.tries {
            for position in range.clone() {
                if out[position] == ITEM_UNDEF {
                    left -= usize::from(self.indep_one(choice, &ask, position, retries, out, &mut leaves));
                }
            }
            retries += 1;
        }
        let holes = |items: &mut [i32]| {
            for item in items.iter_mut().filter(|item| **item == ITEM_UNDEF) {
                *item = ITEM_NONE;
            }
        };
        holes(&mut out[range.clone()]);
        if let Some(leaves) = leaves {
            holes(&mut leaves[range]);
        }
        self.work.count_tries(retries);
    }

    /// Makes one try for one position. Returns true when it is final, with an item or without one.
    fn indep_one(
        &mut self,
        choice: Choice<'a>,
        ask: &IndepAsk,
        position: usize,
        retries: u32,
        out: &mut [i32],
        leaves: &mut Option<&mut [i32]>,
    ) -> bool {
        let mut within = choice.bucket;
        let mut depth = 0_usize;
        loop {
            let size = within.items.len() as u32;
            if size == 0 {
                return false;
            }
            // In a uniform bucket whose size is a multiple of the stride, every retry would choose the same items.
            let uniform = matches!(within.body, BucketBody::Uniform { .. });
            let stride = if uniform && size.is_multiple_of(ask.replicas) {
                ask.replicas.wrapping_add(1)
            } else {
                ask.replicas
            };
            let r = (position as u32).wrapping_add(ask.parent_r).wrapping_add(stride.wrapping_mul(retries));
            let item = self.draw(within, r, ask.start);
            match self.classify(item, choice.type_id) {
                DrawTarget::Below(bucket) if depth < self.map.buckets.len() => {
                    depth += 1;
                    within = bucket;
                }
                DrawTarget::Bad | DrawTarget::Below(_) => {
                    out[position] = ITEM_NONE;
                    if let Some(leaves) = leaves.as_deref_mut() {
                        leaves[position] = ITEM_NONE;
                    }
                    return true;
                }
                DrawTarget::Found(item) => {
                    if out[ask.start..ask.start + ask.count].contains(&item) {
                        return false;
                    }
                    if let Some(leaves) = leaves.as_deref_mut() {
                        match self.map.bucket(item) {
                            None => leaves[position] = item,
                            Some(bucket) => {
                                let inner_choice = Choice { bucket, type_id: 0, tries: ask.inner_tries };
                                let inner = IndepAsk {
                                    start: position,
                                    count: 1,
                                    replicas: ask.replicas,
                                    inner_tries: 0,
                                    parent_r: r,
                                };
                                self.indep(inner_choice, inner, leaves, None);
                                if leaves[position] == ITEM_NONE {
                                    return false;
                                }
                            }
                        }
                    }
                    if choice.type_id == 0 && self.is_out(item) {
                        return false;
                    }
                    out[position] = item;
                    return true;
                }
            }
        }
    }

    fn classify(&self, item: i32, wanted_type: i32) -> DrawTarget<'a> {
        if item >= 0 {
            return if item < self.map.max_devices && wanted_type == 0 {
                DrawTarget::Found(item)
            } else {
                DrawTarget::Bad
            };
        }
        match self.map.bucket(item) {
            None => DrawTarget::Bad,
            Some(bucket) if i32::from(bucket.type_id) == wanted_type => DrawTarget::Found(item),
            Some(bucket) => DrawTarget::Below(bucket),
        }
    }

    /// Whether the device is out for this input. The share of such inputs is 1 minus its reweight.
    #[inline]
    fn is_out(&self, device: i32) -> bool {
        match self.weights.get(device as usize) {
            None | Some(0) => true,
            Some(&weight) if weight >= WEIGHT_ONE => false,
            Some(&weight) => hash32_2(self.x, device as u32) & 0xffff >= weight,
        }
    }

    /// Draws one of a bucket's items with its algorithm. The bucket must not be empty.
    #[inline]
    fn draw(&mut self, bucket: &Bucket, r: u32, position: usize) -> i32 {
        match &bucket.body {
            BucketBody::Uniform { .. } => self.work.permuted(bucket, self.x, r),
            BucketBody::List { item_weights, sum_weights } => {
                draw_list(bucket, item_weights, sum_weights, self.x, r)
            }
            BucketBody::Tree { node_weights } => draw_tree(bucket, node_weights, self.x, r),
            BucketBody::Straw { straws, .. } => draw_straw(bucket, straws, self.x, r),
            BucketBody::Straw2 { item_weights } => {
                let arg = match self.args {
                    None => None,
                    Some(args) => bucket_slot(bucket.id).and_then(|slot| args.get(slot)),
                };
                draw_straw2(bucket, item_weights, arg, self.x, r, position)
            }
        }
    }
}

/// All hashes except `rjenkins1` (0) result in 0, as in Ceph.
#[inline(always)]
fn draw3(bucket: &Bucket, a: u32, b: u32, c: u32) -> u32 {
    if bucket.hash == 0 { hash32_3(a, b, c) } else { 0 }
}

#[inline(always)]
fn draw4(bucket: &Bucket, a: u32, b: u32, c: u32, d: u32) -> u32 {
    if bucket.hash == 0 { hash32_4(a, b, c, d) } else { 0 }
}

/// Tries items from the last one back: each is chosen with the probability of its share of the weights up to it.
fn draw_list(bucket: &Bucket, item_weights: &[u32], sum_weights: &[u32], x: u32, r: u32) -> i32 {
    for (at, &item) in bucket.items.iter().enumerate().rev() {
        let point = u64::from(draw4(bucket, x, item as u32, r, bucket.id as u32) & 0xffff);
        if (point * u64::from(sum_weights[at])) >> 16 < u64::from(item_weights[at]) {
            return item;
        }
    }
    bucket.items[0]
}

/// Descends from the root of the implicit binary tree to an odd node, which is a leaf. A leaf beyond the items (only with all
/// weights 0) is reported as no item.
fn draw_tree(bucket: &Bucket, node_weights: &[u32], x: u32, r: u32) -> i32 {
    let mut node = node_weights.len() >> 1;
    while node != 0 && node & 1 == 0 {
        let point =
            u64::from(draw4(bucket, x, node as u32, r, bucket.id as u32)) * u64::from(node_weights[node]);
        let half = 1 << (node.trailing_zeros() - 1);
        let left = node - half;
        node = if point >> 32 < u64::from(node_weights[left]) { left } else { node + half };
    }
    bucket.items.get(node >> 1).copied().unwrap_or(ITEM_NONE)
}

/// Chooses the longest straw: a 16-bit draw times the item's length.
fn draw_straw(bucket: &Bucket, straws: &[u32], x: u32, r: u32) -> i32 {
    let mut best = (0, bucket.items[0]);
    for (&item, &straw) in bucket.items.iter().zip(straws) {
        let draw = u64::from(draw3(bucket, x, item as u32, r) & 0xffff) * u64::from(straw);
        if draw > best.0 {
            best = (draw, item);
        }
    }
    best.1
}

/// Chooses the largest `ln(u) / weight`: exponential draws with the weights as rates. The division truncates.
#[inline]
fn draw_straw2(
    bucket: &Bucket,
    item_weights: &[u32],
    arg: Option<&ChooseArg>,
    x: u32,
    r: u32,
    position: usize,
) -> i32 {
    let (mut weights, mut ids) = (item_weights, bucket.items.as_slice());
    if let Some(arg) = arg {
        if let Some(set) = arg.weight_set.get(position).or(arg.weight_set.last()) {
            weights = set;
        }
        if !arg.ids.is_empty() {
            ids = &arg.ids;
        }
    }
    let mut best = (i64::MIN, bucket.items[0]);
    for ((&item, &id), &weight) in bucket.items.iter().zip(ids).zip(weights) {
        if weight == 0 {
            continue;
        }
        let u = draw3(bucket, x, id as u32, r) & 0xffff;
        // In Ceph the weight is a signed 32-bit number.
        let draw = (log2_fixed(u) - (1 << 48)) / i64::from(weight as i32);
        if draw > best.0 {
            best = (draw, item);
        }
    }
    best.1
}

/// `crush_ln`: about `2^44 * log2(u + 1)` for a 16-bit `u`, from the published tables.
#[inline(always)]
fn log2_fixed(u: u32) -> i64 {
    let mut x = u + 1;
    let mut exponent = 15;
    if x & 0x1_8000 == 0 {
        let shift = (x & 0x1_ffff).leading_zeros() - 16;
        x <<= shift;
        exponent -= shift;
    }
    let k = (x >> 8) as usize - 128;
    let low = ((u64::from(x) * RECIPROCAL[k]) >> 48) as usize & 0xff;
    ((u64::from(exponent) << 44) + ((LOG_HIGH[k] + LOG_LOW[low]) >> 4)) as i64
}
