//! Numbers, times, dumps and JSON as Ceph's programs print them.

use super::args::Format;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// A number of bytes as `byte_u_t` prints it: `12 KiB`, `1.5 MiB`, with at most seven characters if possible.
pub(super) fn bytes(value: u64) -> String {
    const UNITS: [&str; 7] = [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    let index = if value == 0 { 0 } else { (value.ilog2() / 10) as usize };
    let unit = 1_u64 << (10 * index);
    if value.is_multiple_of(unit) {
        return format!("{}{}", value / unit, UNITS[index]);
    }
    let scaled = value as f64 / unit as f64;
    let candidates = (0..=2).rev().map(|digits| format!("{scaled:.digits$}{}", UNITS[index]));
    let mut last = String::new();
    for text in candidates {
        last = text;
        if last.len() <= 7 {
            break;
        }
    }
    last
}

/// A floating point number as C++ streams print it: six significant digits, with exponents if that is shorter.
pub(in crate::cmd) fn format_g(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return value.to_string();
    }
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("invariant: {:e} prints an exponent");
    let exponent: i32 = exponent.parse().expect("invariant: {:e} prints a number after the e");
    if (-4..6).contains(&exponent) {
        let digits = usize::try_from(5 - exponent).unwrap_or(0);
        return trim_zeros(&format!("{value:.digits$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.abs())
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Nanoseconds since 1970 as Ceph prints times: `2026-11-21T21:30:46.965984+0000` (in UTC).
pub(in crate::cmd) fn time(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days: eras of 400 years that start on 1 March.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let micros = ns % 1_000_000_000 / 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+0000")
}

/// The current time in nanoseconds since 1970.
pub(in crate::cmd) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Bytes as text in JSON. Bytes that are not UTF-8 are replaced by replacement characters.
pub(super) fn text(bytes: &[u8]) -> Value {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// An attribute's value: unchanged, or as a document.
pub(super) fn attribute(name: &str, value: &[u8], format: Format) -> Vec<u8> {
    match format {
        Format::Plain => value.to_vec(),
        format => {
            let shown = serde_json::json!({ "name": name, "value": text(value), "length": value.len() });
            json(&shown, format).into_bytes()
        }
    }
}

/// A list of names: one per line, or a JSON array.
pub(super) fn names<'a>(names: impl IntoIterator<Item = &'a [u8]>, format: Format) -> Vec<u8> {
    match format {
        Format::Plain => names.into_iter().flat_map(|name| [name, b"\n"].concat()).collect(),
        format => json(&names.into_iter().map(text).collect(), format).into_bytes(),
    }
}

/// Ceph's JSON: compact without a newline, or indented by four with one.
pub(in crate::cmd) fn json(value: &Value, format: Format) -> String {
    format.render(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_are_cephs() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (12 << 10, "12 KiB"),
            ((4 << 30) - 13 * 1024, "4.0 GiB"),
            (4 << 30, "4 GiB"),
            (10_239, "10 KiB"),
            (123_456_789, "118 MiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (value, text) in cases {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn floats_are_those_of_cxx_streams() {
        let cases = [
            (0.0, "0"),
            (3.00022, "3.00022"),
            (35.083_371_2, "35.0834"),
            (312.541, "312.541"),
            (0.000_444_357, "0.000444357"),
            (6.5137e-5, "6.5137e-05"),
            (f64::MAX, "1.79769e+308"),
            (38.418, "38.418"),
            (-1.0, "-1"),
            (999_999.9, "1e+06"),
            (123_456.0, "123456"),
            (0.0001, "0.0001"),
        ];
        for (value, text) in cases {
            assert_eq!(format_g(value), text);
        }
    }

    #[test]
    fn times_are_iso_8601_in_utc() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000000+0000");
        assert_eq!(time(951_782_400_000_000_000), "2000-02-29T00:00:00.000000+0000");
        assert_eq!(time(1_795_296_646_965_984_321), "2026-11-21T21:30:46.965984+0000");
    }
}
