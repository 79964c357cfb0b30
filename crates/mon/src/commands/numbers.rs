//! Numbers in commands, as Ceph's `strict_strtoll`, `strict_iec_cast` and `strict_si_cast` read them (18.2), with their
//! errors.

/// A whole number (`strict_strtoll`).
pub(super) fn strict_integer(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) {
            format!("The option value '{text}' seems to be invalid")
        } else {
            format!("Expected option value to be integer, got '{text}'")
        }
    })
}

/// A number with a binary unit: `1G`, `1Gi` or `1GB`, all 2^30 (`strict_iec_cast`).
pub(super) fn strict_iec(text: &str) -> Result<i64, String> {
    let failed = |what: &str| Err(format!("strict_iecstrtoll: {what}"));
    if text.is_empty() {
        return failed("value not specified");
    }
    let (number, unit) = split_unit(text);
    if unit.starts_with('B') && unit.ends_with('i') {
        return failed("illegal prefix \"Bi\"");
    }
    if unit.len() > 2 {
        return failed("illegal prefix (length > 2)");
    }
    let shift = match unit.chars().next() {
        None | Some('B') => 0,
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        Some('T') => 40,
        Some('P') => 50,
        Some('E') => 60,
        Some(_) => return failed("unit prefix not recognized"),
    };
    let value = strict_integer(number)?;
    match value.checked_mul(1 << shift) {
        Some(value) => Ok(value),
        None if value < 0 => failed("value seems to be too small"),
        None => failed("value seems to be too large"),
    }
}

/// A number with a decimal unit: `1K` is 1000 (`strict_si_cast`).
pub(super) fn strict_si(text: &str) -> Result<i64, String> {
    if text.is_empty() {
        return Err("strict_sistrtoll: value not specified".to_owned());
    }
    let (_, unit) = split_unit(text);
    let units = ['K', 'M', 'G', 'T', 'P', 'E'];
    let (number, power) = match unit.chars().last() {
        None | Some('B') => (text, 0),
        Some(last) => match units.iter().position(|unit| *unit == last) {
            Some(at) => (&text[..text.len() - 1], at as u32 + 1),
            None => return Err("strict_si_cast: unit prefix not recognized".to_owned()),
        },
    };
    let out_of_range = || "strict_si_cast: value out of range for the designated type".to_owned();
    strict_integer(number)?.checked_mul(1_000_i64.pow(power)).ok_or_else(out_of_range)
}

/// Splits the text before the first character that can't belong to a number.
fn split_unit(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '+' | '-'));
    text.split_at(at.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_or_decimal() {
        for (text, value) in
            [("5", 5), ("-5", -5), ("7B", 7), ("2K", 2048), ("2Ki", 2048), ("2MB", 2 << 20), ("1E", 1 << 60)]
        {
            assert_eq!(strict_iec(text), Ok(value), "{text}");
        }
        for (text, value) in [("5", 5), ("2K", 2000), ("3M", 3_000_000), ("1E", 10_i64.pow(18))] {
            assert_eq!(strict_si(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_told_as_in_ceph() {
        for (text, error) in [
            ("8E", "strict_iecstrtoll: value seems to be too large"),
            ("-9E", "strict_iecstrtoll: value seems to be too small"),
            ("1Bi", "strict_iecstrtoll: illegal prefix \"Bi\""),
            ("Ki", "Expected option value to be integer, got ''"),
            ("1é", "strict_iecstrtoll: unit prefix not recognized"),
            ("9223372036854775808", "The option value '9223372036854775808' seems to be invalid"),
        ] {
            assert_eq!(strict_iec(text).unwrap_err(), error, "{text}");
        }
        for (text, error) in [
            ("10E", "strict_si_cast: value out of range for the designated type"),
            ("1KB", "Expected option value to be integer, got '1KB'"),
            ("1é", "strict_si_cast: unit prefix not recognized"),
        ] {
            assert_eq!(strict_si(text).unwrap_err(), error, "{text}");
        }
    }
}
