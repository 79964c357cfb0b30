//! Ceph's binary crush map, as written by `CrushWrapper::encode` of release 16.2 with all features (`docs/format/crushmap.md`).
//!
//! The decoder is total: it never panics, allocates at most in proportion to its input, and refuses maps that are not safe to
//! use (cycles, items without a bucket, inconsistent sizes).

use crate::model::{
    Bucket, BucketAlg, BucketBody, ChooseArg, ChooseArgs, CrushMap, MAX_BUCKETS, MAX_DEVICES, Rule, RuleType,
    Step, StepOp, TunablesProfile, bucket_id_of,
};
use std::collections::BTreeMap;

/// `CRUSH_MAGIC`, the first word of every binary map.
pub const MAGIC: u32 = 0x0001_0000;

/// Maximum nesting depth of buckets in Nacre. Ceph has no bound; real maps have about ten types.
const MAX_DEPTH: usize = 128;

/// Why bytes are not a usable crush map. Never retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrushDecodeError {
    /// The first word is not [`MAGIC`].
    #[error("bad magic number: not a binary crush map")]
    BadMagic,
    /// The input ends within the named part.
    #[error("crush map cut short in its {0}")]
    CutShort(&'static str),
    /// An invalid value, with its description and place.
    #[error("corrupt crush map: {0}")]
    Corrupt(String),
}

impl From<CrushMap> for Vec<u8> {
    fn from(map: CrushMap) -> Self {
        map.encode()
    }
}

impl TryFrom<Vec<u8>> for CrushMap {
    type Error = CrushDecodeError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        Self::decode(&bytes)
    }
}

fn corrupt<T>(what: impl Into<String>) -> Result<T, CrushDecodeError> {
    Err(CrushDecodeError::Corrupt(what.into()))
}

impl CrushMap {
    /// Encodes the binary form, which Ceph's tools and daemons read.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer { out: Vec::with_capacity(1024) };
        w.u32(MAGIC);
        w.u32(self.buckets.len() as u32);
        w.u32(self.rules.len() as u32);
        w.i32(self.max_devices);
        for slot in &self.buckets {
            match slot {
                None => w.u32(0),
                Some(bucket) => w.bucket(bucket),
            }
        }
        for slot in &self.rules {
            w.u32(u32::from(slot.is_some()));
            let Some(rule) = slot else { continue };
            w.u32(rule.steps.len() as u32);
            w.out.extend_from_slice(&[rule.ruleset, rule.kind.number(), rule.min_size, rule.max_size]);
            for step in &rule.steps {
                w.u32(step.op as u32);
                w.i32(step.arg1);
                w.i32(step.arg2);
            }
        }
        w.names(&self.type_names);
        w.names(&self.item_names);
        w.names(&self.rule_names);
        let t = &self.tunables;
        w.u32(t.choose_local_tries);
        w.u32(t.choose_local_fallback_tries);
        w.u32(t.choose_total_tries);
        w.u32(t.chooseleaf_descend_once);
        w.out.push(t.chooseleaf_vary_r);
        w.out.push(t.straw_calc_version);
        w.u32(t.allowed_bucket_algs);
        w.out.push(t.chooseleaf_stable);
        w.ids(&self.device_classes);
        w.names(&self.class_names);
        w.u32(self.class_buckets.len() as u32);
        for (&bucket, shadows) in &self.class_buckets {
            w.i32(bucket);
            w.ids(shadows);
        }
        w.u32(self.choose_args.len() as u32);
        for (&id, args) in &self.choose_args {
            w.out.extend_from_slice(&id.to_le_bytes());
            w.u32(args.iter().count() as u32);
            for (slot, arg) in args.iter() {
                w.u32(slot as u32);
                w.u32(arg.weight_set.len() as u32);
                for weights in &arg.weight_set {
                    w.u32(weights.len() as u32);
                    w.words(weights);
                }
                w.u32(arg.ids.len() as u32);
                arg.ids.iter().for_each(|&id| w.i32(id));
            }
        }
        w.out
    }

    /// Decodes the binary form, which must fill `bytes`. Maps of older releases, which end earlier, get those releases' values.
    pub fn decode(bytes: &[u8]) -> Result<Self, CrushDecodeError> {
        let mut r = Reader { rest: bytes, part: "header" };
        if r.u32()? != MAGIC {
            return Err(CrushDecodeError::BadMagic);
        }
        let max_buckets = r.u32()? as usize;
        let max_rules = r.u32()? as usize;
        // Computed from the buckets below, as in Ceph.
        r.u32()?;
        let mut map = CrushMap { tunables: TunablesProfile::Argonaut.tunables(), ..CrushMap::default() };

        r.part = "buckets";
        if max_buckets > MAX_BUCKETS {
            return corrupt(format!("{max_buckets} bucket slots, more than {MAX_BUCKETS}"));
        }
        for slot in 0..max_buckets {
            let bucket = r.bucket(slot)?;
            map.buckets.push(bucket);
        }
        r.part = "rules";
        for id in 0..max_rules {
            let rule = r.rule(id)?;
            map.rules.push(rule);
        }
        r.part = "names";
        map.type_names = r.names(true)?;
        map.item_names = r.names(true)?;
        map.rule_names = r.names(true)?;

        r.part = "tunables";
        let t = &mut map.tunables;
        if !r.at_end() {
            t.choose_local_tries = r.u32()?;
            t.choose_local_fallback_tries = r.u32()?;
            t.choose_total_tries = r.u32()?;
        }
        if !r.at_end() {
            t.chooseleaf_descend_once = r.u32()?;
        }
        if !r.at_end() {
            t.chooseleaf_vary_r = r.u8()?;
        }
        if !r.at_end() {
            t.straw_calc_version = r.u8()?;
        }
        if !r.at_end() {
            t.allowed_bucket_algs = r.u32()?;
        }
        if !r.at_end() {
            t.chooseleaf_stable = r.u8()?;
        }
        r.part = "device classes";
        if !r.at_end() {
            map.device_classes = r.ids()?;
            map.class_names = r.names(false)?;
            for _ in 0..r.count(8)? {
                let bucket = r.i32()?;
                if map.class_buckets.insert(bucket, r.ids()?).is_some() {
                    return corrupt(format!("two sets of shadows of bucket {bucket}"));
                }
            }
        }
        r.part = "choose_args";
        if !r.at_end() {
            for _ in 0..r.count(12)? {
                let id = r.i64()?;
                let args = r.choose_args(&map)?;
                if map.choose_args.insert(id, args).is_some() {
                    return corrupt(format!("two choose_args of id {id}"));
                }
            }
        }
        if !r.at_end() {
            return corrupt(format!("{} bytes after the end, written by a newer release?", r.rest.len()));
        }
        map.check_structure()?;
        map.recompute_max_devices();
        Ok(map)
    }

    /// `finalize`: the device count is one more than the highest device that is in a bucket or has a name.
    pub(crate) fn recompute_max_devices(&mut self) {
        let placed = self.buckets().flat_map(|b| b.items.iter().copied()).max().unwrap_or(-1);
        let named = self.item_names.last_key_value().map_or(-1, |(&id, _)| id);
        self.max_devices = placed.max(named).max(-1) + 1;
    }

    /// Checks that every item is a device within bounds or an existing bucket, and that no bucket contains itself.
    pub(crate) fn check_structure(&self) -> Result<(), CrushDecodeError> {
        if let Some(&device) = self.item_names.keys().find(|id| **id >= MAX_DEVICES) {
            return corrupt(format!("device {device} is out of range"));
        }
        let mut holders = vec![0_u32; self.buckets.len()];
        for bucket in self.buckets() {
            for &item in &bucket.items {
                if item >= MAX_DEVICES {
                    return corrupt(format!("device {item} in bucket {} is out of range", bucket.id));
                }
                if item < 0 {
                    if self.bucket(item).is_none() {
                        return corrupt(format!(
                            "bucket {} holds bucket {item}, which does not exist",
                            bucket.id
                        ));
                    }
                    holders[!item as usize] += 1;
                }
            }
        }
        // Removes buckets that no remaining bucket contains. The remaining ones contain themselves.
        let mut depths = vec![0_usize; self.buckets.len()];
        let mut free: Vec<&Bucket> = self.buckets().filter(|b| holders[!b.id as usize] == 0).collect();
        let mut peeled = 0;
        while let Some(bucket) = free.pop() {
            peeled += 1;
            let depth = depths[!bucket.id as usize] + 1;
            if depth > MAX_DEPTH {
                return corrupt(format!("buckets are nested more than {MAX_DEPTH} deep"));
            }
            for &item in bucket.items.iter().filter(|&&item| item < 0) {
                let slot = !item as usize;
                depths[slot] = depths[slot].max(depth);
                holders[slot] -= 1;
                if holders[slot] == 0 {
                    free.extend(self.bucket(item));
                }
            }
        }
        if peeled != self.buckets().count() {
            return corrupt("the buckets form a cycle");
        }
        Ok(())
    }
}

struct Writer {
    out: Vec<u8>,
}

impl Writer {
    fn u32(&mut self, v: u32) {
        self.out.extend_from_slice(&v.to_le_bytes());
    }

    fn i32(&mut self, v: i32) {
        self.out.extend_from_slice(&v.to_le_bytes());
    }

    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|&w| self.u32(w));
    }

    fn names(&mut self, names: &BTreeMap<i32, String>) {
        self.u32(names.len() as u32);
        for (&id, name) in names {
            self.i32(id);
            self.u32(name.len() as u32);
            self.out.extend_from_slice(name.as_bytes());
        }
    }

    fn ids(&mut self, ids: &BTreeMap<i32, i32>) {
        self.u32(ids.len() as u32);
        for (&key, &value) in ids {
            self.i32(key);
            self.i32(value);
        }
    }

    fn bucket(&mut self, bucket: &Bucket) {
        self.u32(bucket.alg() as u32);
        self.i32(bucket.id);
        self.out.extend_from_slice(&bucket.type_id.to_le_bytes());
        self.out.extend_from_slice(&[bucket.alg() as u8, bucket.hash]);
        self.u32(bucket.weight);
        self.u32(bucket.items.len() as u32);
        bucket.items.iter().for_each(|&item| self.i32(item));
        let mut pairs = |a: &[u32], b: &[u32]| {
            for (&a, &b) in a.iter().zip(b) {
                self.u32(a);
                self.u32(b);
            }
        };
        match &bucket.body {
            BucketBody::Uniform { item_weight } => self.u32(*item_weight),
            BucketBody::List { item_weights, sum_weights } => pairs(item_weights, sum_weights),
            BucketBody::Straw { item_weights, straws } => pairs(item_weights, straws),
            BucketBody::Straw2 { item_weights } => self.words(item_weights),
            BucketBody::Tree { node_weights } => {
                self.out.push(node_weights.len() as u8);
                self.words(node_weights);
            }
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    part: &'static str,
}

impl Reader<'_> {
    fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, n: usize) -> Result<&[u8], CrushDecodeError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(CrushDecodeError::CutShort(self.part))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CrushDecodeError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(CrushDecodeError::CutShort(self.part))?;
        self.rest = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, CrushDecodeError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, CrushDecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, CrushDecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn i32(&mut self) -> Result<i32, CrushDecodeError> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64, CrushDecodeError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Reads a count of elements that take at least `bytes_each`. A count that exceeds the remaining bytes is an error.
    fn count(&mut self, bytes_each: usize) -> Result<usize, CrushDecodeError> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / bytes_each {
            return Err(CrushDecodeError::CutShort(self.part));
        }
        Ok(count)
    }

    fn words(&mut self, count: usize) -> Result<Vec<u32>, CrushDecodeError> {
        let bytes = self.take(count.checked_mul(4).ok_or(CrushDecodeError::CutShort("arrays"))?)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|w| u32::from_le_bytes(*w)).collect())
    }

    fn signed_words(&mut self, count: usize) -> Result<Vec<i32>, CrushDecodeError> {
        Ok(self.words(count)?.into_iter().map(|w| w as i32).collect())
    }

    fn pairs(&mut self, count: usize) -> Result<(Vec<u32>, Vec<u32>), CrushDecodeError> {
        let words = self.words(count.saturating_mul(2))?;
        Ok(words.chunks_exact(2).map(|pair| (pair[0], pair[1])).unzip())
    }

    /// Reads a map of names. `wide_keys`: some old releases wrote 64-bit keys, whose high half appears as an empty name.
    fn names(&mut self, wide_keys: bool) -> Result<BTreeMap<i32, String>, CrushDecodeError> {
        let mut names = BTreeMap::new();
        for _ in 0..self.count(8)? {
            let id = self.i32()?;
            let mut len = self.u32()? as usize;
            if len == 0 && wide_keys {
                len = self.u32()? as usize;
            }
            let part = self.part;
            let name = match str::from_utf8(self.take(len)?) {
                Ok("") => return corrupt(format!("empty name of {id} in its {part}")),
                Ok(name) => name.to_owned(),
                Err(_) => return corrupt(format!("name of {id} is not text")),
            };
            if names.insert(id, name).is_some() {
                return corrupt(format!("two names of {id}"));
            }
        }
        Ok(names)
    }

    fn ids(&mut self) -> Result<BTreeMap<i32, i32>, CrushDecodeError> {
        let mut ids = BTreeMap::new();
        for _ in 0..self.count(8)? {
            let key = self.i32()?;
            if ids.insert(key, self.i32()?).is_some() {
                return corrupt(format!("two entries of {key} in its {}", self.part));
            }
        }
        Ok(ids)
    }

    fn bucket(&mut self, slot: usize) -> Result<Option<Bucket>, CrushDecodeError> {
        let alg = self.u32()?;
        if alg == 0 {
            return Ok(None);
        }
        let id = self.i32()?;
        if id != bucket_id_of(slot) {
            return corrupt(format!("bucket {id} in the slot of bucket {}", bucket_id_of(slot)));
        }
        let type_id = self.u16()?;
        let alg_again = self.u8()?;
        let hash = self.u8()?;
        let Some(alg) = BucketAlg::from_number(alg).filter(|_| alg == u32::from(alg_again)) else {
            return corrupt(format!("bucket {id} has algorithm {alg}, {alg_again}"));
        };
        if type_id == 0 {
            return corrupt(format!("bucket {id} has the devices' type"));
        }
        let weight = self.u32()?;
        let size = self.count(4)?;
        let items = self.signed_words(size)?;
        let body = match alg {
            BucketAlg::Uniform => BucketBody::Uniform { item_weight: self.u32()? },
            BucketAlg::List => {
                let (item_weights, sum_weights) = self.pairs(size)?;
                BucketBody::List { item_weights, sum_weights }
            }
            BucketAlg::Straw => {
                let (item_weights, straws) = self.pairs(size)?;
                BucketBody::Straw { item_weights, straws }
            }
            BucketAlg::Straw2 => BucketBody::Straw2 { item_weights: self.words(size)? },
            BucketAlg::Tree => {
                let nodes = usize::from(self.u8()?);
                if nodes / 2 < size || !(nodes == 0 || nodes.is_power_of_two()) {
                    return corrupt(format!("tree bucket {id} has {nodes} nodes for {size} items"));
                }
                BucketBody::Tree { node_weights: self.words(nodes)? }
            }
        };
        Ok(Some(Bucket { id, type_id, hash, weight, items, body }))
    }

    fn rule(&mut self, id: usize) -> Result<Option<Rule>, CrushDecodeError> {
        if self.u32()? == 0 {
            return Ok(None);
        }
        let len = self.u32()? as usize;
        let [ruleset, kind, min_size, max_size] = self.array()?;
        if len > self.rest.len() / 12 {
            return Err(CrushDecodeError::CutShort(self.part));
        }
        let mut steps = Vec::with_capacity(len);
        for _ in 0..len {
            let op = self.u32()?;
            let Some(op) = StepOp::from_number(op) else {
                return corrupt(format!("rule {id} has step {op}, which this release does not know"));
            };
            steps.push(Step { op, arg1: self.i32()?, arg2: self.i32()? });
        }
        Ok(Some(Rule { ruleset, kind: RuleType::from_number(kind), min_size, max_size, steps }))
    }

    fn choose_args(&mut self, map: &CrushMap) -> Result<ChooseArgs, CrushDecodeError> {
        let mut args = ChooseArgs::default();
        let mut next_slot = 0;
        for _ in 0..self.count(12)? {
            let slot = self.u32()? as usize;
            if slot < next_slot {
                return corrupt("choose_args out of order");
            }
            next_slot = slot + 1;
            let Some(bucket) = map.buckets.get(slot).and_then(Option::as_ref) else {
                return corrupt(format!("choose_args of bucket slot {slot}, which is empty"));
            };
            let size = bucket.items.len();
            let positions = self.count(4)?;
            let mut arg = ChooseArg::default();
            for _ in 0..positions {
                if self.count(4)? != size {
                    return corrupt(format!(
                        "choose_args of bucket {} with another number of weights",
                        bucket.id
                    ));
                }
                arg.weight_set.push(self.words(size)?);
            }
            let ids = self.count(4)?;
            if ids != 0 && ids != size {
                return corrupt(format!("choose_args of bucket {} with another number of ids", bucket.id));
            }
            arg.ids = self.signed_words(ids)?;
            // Only straw2 draws use them; Ceph drops those of other algorithms too.
            if bucket.alg() == BucketAlg::Straw2 {
                args.set(slot, arg);
            }
        }
        Ok(args)
    }
}
