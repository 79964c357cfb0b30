//! Bytes in hex and text, as Ceph's tools show values.

use std::fmt::Write as _;

/// Bytes in hex and text, sixteen a line, with the length in the last line.
pub(crate) fn hexdump(data: &[u8]) -> String {
    let mut out = String::new();
    for (line, chunk) in data.chunks(16).enumerate() {
        let mut hex = String::new();
        for (at, byte) in chunk.iter().enumerate() {
            let gap = if at == 8 { " " } else { "" };
            let _ = write!(hex, "{gap} {byte:02x}");
        }
        let text: String =
            chunk.iter().map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '.' }).collect();
        let _ = writeln!(out, "{:08x} {hex:<49}  |{text}|", line * 16);
    }
    let _ = writeln!(out, "{:08x}", data.len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexdumps_have_the_layout_of_rados() {
        assert_eq!(
            hexdump(b"v1"),
            "00000000  76 31                                             |v1|\n00000002\n"
        );
        let long = hexdump(b"0123456789abcdef\n");
        assert!(long.starts_with(
            "00000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  |0123456789abcdef|\n00000010  0a"
        ));
        assert!(long.ends_with("|.|\n00000011\n"));
    }
}
