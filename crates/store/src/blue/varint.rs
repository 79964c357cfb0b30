//! LEB128 numbers, as used in the records of docs/format/bluestore.md.

/// Appends `value`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed difference in zigzag encoding.
pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Reads fields from the start of a record. `None` if it ends early or a number is malformed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldReader<'a>(pub(super) &'a [u8]);

impl<'a> FieldReader<'a> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(at as u32 * 7)?;
            if byte & 0x80 == 0 {
                // The tenth byte has only one usable bit.
                if at == 9 && *byte > 1 {
                    return None;
                }
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    pub(super) fn signed(&mut self) -> Option<i64> {
        let raw = self.number()?;
        Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// A number that must fit into a `u32`.
    pub(super) fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_malformed_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            put_signed(&mut out, value as i64);
            let mut fields = FieldReader(&out);
            assert_eq!((fields.number(), fields.signed()), (Some(value), Some(value as i64)));
            assert!(fields.0.is_empty());
        }
        assert_eq!(FieldReader(&[0x80]).number(), None);
        assert_eq!(FieldReader(&[0xff; 11]).number(), None);
        assert_eq!(FieldReader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number(), None);
    }
}
