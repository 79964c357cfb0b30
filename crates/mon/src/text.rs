//! Ceph's output formats: tables, sizes, times. Pure functions of their arguments.

pub(crate) use nacre_types::time::{stamp, stamp_z};
use std::fmt::Write as _;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Ceph's `TextTable`: columns as wide as their widest cell, separated by two blanks, with headings aligned separately.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns: heading, its alignment and that of the cells.
    pub(crate) fn new(columns: &[(&'static str, Align, Align)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "invariant: one cell per column");
        self.rows.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        let width = |at: usize| {
            let cells = self.rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
            cells.max(self.columns[at].0.len())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        let headings = self.columns.iter().map(|(name, align, _)| ((*name).to_owned(), *align));
        line(&mut out, headings, &widths);
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns).map(|(cell, (_, _, align))| (cell.clone(), *align));
            line(&mut out, cells, &widths);
        }
        out
    }
}

fn line(out: &mut String, cells: impl Iterator<Item = (String, Align)>, widths: &[usize]) {
    for (at, (cell, align)) in cells.enumerate() {
        let gap = if at == 0 { "" } else { "  " };
        let pad = " ".repeat(widths[at].saturating_sub(cell.chars().count()));
        match align {
            Align::Left => out.extend([gap, &cell, &pad]),
            Align::Right => out.extend([gap, &pad, &cell]),
        }
    }
    out.push('\n');
}

/// `byte_u_t`: `0 B`, `56 KiB`, `1.2 MiB`, `4 GiB`.
pub(crate) fn bytes(value: u64) -> String {
    scaled(value, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], " ", "B")
}

/// `si_u_t`: `999`, `1.21k`, `15.70M`.
pub(crate) fn count(value: u64) -> String {
    scaled(value, 1000, &["", "k", "M", "G", "T", "P", "E"], "", "")
}

/// A value in its unit: whole if it divides evenly, otherwise with as many decimals, at most two, as keep the text below
/// eight characters.
fn scaled(value: u64, base: u64, units: &[&str], gap: &str, suffix: &str) -> String {
    let mut divisor = 1_u64;
    let mut at = 0;
    while at + 1 < units.len() && value / divisor >= base {
        divisor *= base;
        at += 1;
    }
    let unit = format!("{gap}{}{suffix}", units[at]);
    if value.is_multiple_of(divisor) {
        return format!("{}{unit}", value / divisor);
    }
    let shown = |decimals: usize| format!("{:.decimals$}{unit}", value as f64 / divisor as f64);
    [2, 1].into_iter().map(shown).find(|text| text.len() < 8).unwrap_or_else(|| shown(0))
}

/// Ceph's short timespan: `9s`, `97s`, `2m`, `3h`, `4d`, in the largest unit that gives at least two.
pub(crate) fn age(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const WEEK: u64 = 7 * DAY;
    const YEAR: u64 = 365 * DAY;
    match seconds {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 2 * HOUR => format!("{}m", s / MINUTE),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 2 * WEEK => format!("{}d", s / DAY),
        s if s < 2 * YEAR => format!("{}w", s / WEEK),
        s => format!("{}y", s / YEAR),
    }
}

/// Numbers as C++ streams print doubles: at most six significant digits, no trailing zeros.
pub(crate) fn float(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-5..6).contains(&exponent) {
        let mut text = format!("{value:.5e}");
        if let Some((mantissa, exp)) = text.split_once('e') {
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            let exp: i32 = exp.parse().unwrap_or(0);
            text = format!("{mantissa}e{}{:02}", if exp < 0 { '-' } else { '+' }, exp.abs());
        }
        return text;
    }
    let decimals = (5 - exponent).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `[0,1,2]`.
pub(crate) fn bracketed_list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut out = String::from("[");
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        // Writing into a String can't fail.
        let _ = write!(out, "{item}");
    }
    out.push(']');
    out
}

/// `pg` or `pgs`, `osd` or `osds`.
pub(crate) fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_cephs_digits() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (56 * 1024, "56 KiB"),
            (1_210_752, "1.2 MiB"),
            (4 << 30, "4 GiB"),
            (12_880_330_705, "12 GiB"),
            (4_293_080_441, "4.0 GiB"),
            (1_370_023_040, "1.3 GiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!((count(8), count(1500), count(15_700_000)), ("8".into(), "1.50k".into(), "15.70M".into()));
    }

    #[test]
    fn times_are_printed_as_ceph_does() {
        assert_eq!(
            ["9s", "97s", "2m", "3h", "4d"],
            [9, 97, 121, 3 * 3600 + 5, 4 * 86_400].map(age).each_ref().map(String::as_str)
        );
    }

    #[test]
    fn floats_look_like_those_of_cpp_streams() {
        for (value, text) in [
            (0.5, "0.5"),
            (1.0, "1"),
            (0.003, "0.003"),
            (8.333_333_3, "8.33333"),
            (1e-7, "1e-07"),
            (1_234_567.0, "1.23457e+06"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn tables_align_headings_and_cells_separately() {
        let mut table = Table::new(&[("ID", Align::Left, Align::Right), ("NAME", Align::Left, Align::Left)]);
        table.row(vec!["-1".into(), "root default".into()]);
        table.row(vec!["0".into(), "osd.0".into()]);
        assert_eq!(table.render(), "ID  NAME        \n-1  root default\n 0  osd.0       \n");
    }
}
