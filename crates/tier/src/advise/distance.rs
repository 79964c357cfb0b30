//! Reuse distances: how many sampled objects, and how many bytes of them, were accessed after a given access.

/// Objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

/// The last accesses of the samples by position, as a Fenwick tree of sums. Positions rise with time and are given once
/// each; when all are given, the owner renumbers.
#[derive(Clone, Debug)]
pub(super) struct ReuseDistances {
    /// Entry `n` is the sum over the `n & -n` positions that end below `n`. Entry 0 is not used.
    sums: Vec<Others>,
    next: u32,
    total: Others,
}

impl ReuseDistances {
    pub(super) fn new(positions: u32) -> ReuseDistances {
        ReuseDistances {
            sums: vec![Others::default(); positions as usize + 1],
            next: 0,
            total: Others::default(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.next as usize + 1 == self.sums.len()
    }

    pub(super) fn clear(&mut self) {
        self.sums.fill(Others::default());
        self.next = 0;
        self.total = Others::default();
    }

    /// Adds an access at the end and returns its position.
    pub(super) fn push(&mut self, bytes: u64) -> u32 {
        let position = self.next;
        self.next += 1;
        self.total.objects += 1;
        self.total.bytes += bytes;
        self.update(position, |sum| {
            sum.objects += 1;
            sum.bytes += bytes;
        });
        position
    }

    /// Removes the access at this position, which was added with as many bytes.
    pub(super) fn remove(&mut self, position: u32, bytes: u64) {
        self.total.objects -= 1;
        self.total.bytes -= bytes;
        self.update(position, |sum| {
            sum.objects -= 1;
            sum.bytes -= bytes;
        });
    }

    /// The accesses behind this position.
    pub(super) fn after(&self, position: u32) -> Others {
        let mut after = self.total;
        let mut at = position as usize + 1;
        while at > 0 {
            after.objects -= self.sums[at].objects;
            after.bytes -= self.sums[at].bytes;
            at &= at - 1;
        }
        after
    }

    fn update(&mut self, position: u32, change: impl Fn(&mut Others)) {
        let mut at = position as usize + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            change(sum);
            at += at & at.wrapping_neg();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_those_of_a_list(steps in proptest::collection::vec((0..1000_u64, any::<bool>()), 0..64)) {
            let mut distances = ReuseDistances::new(64);
            let mut list: Vec<(u32, u64)> = Vec::new();
            for (value, removes) in steps {
                if removes && !list.is_empty() {
                    let (position, bytes) = list.remove(value as usize % list.len());
                    distances.remove(position, bytes);
                } else {
                    list.push((distances.push(value), value));
                }
                for (at, (position, _)) in list.iter().enumerate() {
                    let behind = &list[at + 1..];
                    let expected = Others {
                        objects: behind.len() as u64,
                        bytes: behind.iter().map(|(_, bytes)| bytes).sum(),
                    };
                    prop_assert_eq!(distances.after(*position), expected);
                }
            }
        }
    }
}
