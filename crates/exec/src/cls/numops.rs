//! Class `numops`: arithmetic on omap values that contain numbers as text.

use super::access::{READ, WRITE};
use super::{Class, Method, MethodContext, done};
use bytes::Bytes;
use nacre_types::ceph::Decoder;
use nacre_types::errno::Errno;
use nacre_types::op::OpResult;

pub(super) struct NumOps;

impl Class for NumOps {
    fn name(&self) -> &'static str {
        "numops"
    }

    fn methods(&self) -> &'static [Method] {
        const METHODS: &[Method] = &[
            Method { name: "add", access: READ | WRITE, run: add },
            Method { name: "mul", access: READ | WRITE, run: multiply },
        ];
        METHODS
    }
}

/// Significant digits of a stored value.
const PRECISION: usize = 10;

fn add(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    change(object, input, |value, by| value + by)
}

fn multiply(object: &mut MethodContext<'_, '_>, input: &Bytes) -> Result<OpResult, Errno> {
    change(object, input, |value, by| value * by)
}

/// Input: key and number, both as strings. An absent or empty value counts as 0.
fn change(
    object: &mut MethodContext<'_, '_>,
    input: &Bytes,
    operation: fn(f64, f64) -> f64,
) -> Result<OpResult, Errno> {
    let mut input = Decoder::new(input);
    let mut text = || input.bytes().map_err(|_| Errno::EINVAL);
    let (key, by) = (text()?, text()?);
    let by = parse(&by).ok_or(Errno::EINVAL)?;
    let value = match object.omap_get(&key)? {
        Some(stored) if !stored.is_empty() => parse(&stored).ok_or(Errno::EBADMSG)?,
        _ => 0.0,
    };
    object.omap_set(key, print(operation(value, by)).into());
    done()
}

/// Parses a number as `strtod` does; all of the text up to the first NUL must match. Empty text is 0, as in `strtod`.
fn parse(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let text = std::str::from_utf8(text).ok()?;
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let magnitude = match hexadecimal {
        Some(digits) => parse_hexadecimal(digits)?,
        // `strtod` accepts only one sign.
        None if digits.starts_with(['+', '-']) => return None,
        None => digits.parse::<f64>().ok()?,
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// Parses `1f.8p3`: hexadecimal digits with an optional point and an optional power of two.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['p', 'P']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digit = |c: char| c.to_digit(16).map(f64::from);
    let whole = whole.chars().try_fold(0.0, |value, c| Some(value * 16.0 + digit(c)?))?;
    let fraction = fraction.chars().rev().try_fold(0.0, |value, c| Some((value + digit(c)?) / 16.0))?;
    Some((whole + fraction) * f64::from(exponent).exp2())
}

/// Formats a number as C++ streams do (`%.10g`).
fn print(value: f64) -> String {
    if !value.is_finite() {
        let sign = if value.is_sign_negative() { "-" } else { "" };
        return format!("{sign}{}", if value.is_nan() { "nan" } else { "inf" });
    }
    let scientific = format!("{value:.*e}", PRECISION - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("invariant: that format has an exponent");
    let exponent: i32 = exponent.parse().expect("invariant: that format's exponent is a number");
    let trim = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if (-4..PRECISION as i32).contains(&exponent) {
        let decimals = usize::try_from(PRECISION as i32 - 1 - exponent).unwrap_or(0);
        return trim(&format!("{value:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_streams_print_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (10.0, "10"),
            (0.1 + 0.2, "0.3"),
            (-2.5, "-2.5"),
            (1234567890.0, "1234567890"),
            (12345678901.0, "1.23456789e+10"),
            (9999999999.9, "1e+10"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e300, "1e+300"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(print(value), text);
        }
    }

    #[test]
    fn numbers_are_read_as_strtod_reads_them() {
        for (text, value) in [
            ("", Some(0.0)),
            ("10", Some(10.0)),
            ("  +1.5e3", Some(1500.0)),
            ("-.5", Some(-0.5)),
            ("0x1F.8p1", Some(63.0)),
            ("inf", Some(f64::INFINITY)),
            ("5\0rubbish", Some(5.0)),
            ("1 ", None),
            ("one", None),
            ("--1", None),
            ("+-1", None),
            ("0x", None),
            ("1,5", None),
        ] {
            assert_eq!(parse(text.as_bytes()), value, "{text:?}");
        }
    }
}
