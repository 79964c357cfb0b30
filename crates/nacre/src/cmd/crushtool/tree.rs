//! Prints `--tree` as a table.

use nacre_crush::{CrushMap, DEFAULT_CHOOSE_ARGS, TreeItem, WEIGHT_ONE};
use std::io::{self, Write};

/// A weight for users: five decimals, or `0`.
fn weight_text(weight: u32) -> String {
    let weight = f64::from(weight as f32 / WEIGHT_ONE as f32);
    if weight < 0.000_001 { "0".to_owned() } else { format!("{weight:.5}") }
}

pub(super) fn print(map: &CrushMap, out: &mut dyn Write) -> io::Result<()> {
    let mut head = vec!["ID".to_owned(), "CLASS".to_owned(), "WEIGHT".to_owned()];
    for (id, _) in map.choose_args() {
        head.push(if id == DEFAULT_CHOOSE_ARGS { "(compat)".to_owned() } else { id.to_string() });
    }
    head.push("TYPE NAME".to_owned());
    let rows: Vec<Vec<String>> = map.tree(true).iter().map(|item| row(map, item)).collect();

    let width =
        |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let last = head.len() - 1;
    let line = |out: &mut dyn Write, row: &[String], is_head: bool| -> io::Result<()> {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            if is_head || column == last {
                write!(out, "{gap}{cell:<width$}")?;
            } else {
                write!(out, "{gap}{cell:>width$}")?;
            }
        }
        writeln!(out)
    };
    line(out, &head, true)?;
    rows.iter().try_for_each(|row| line(out, row, false))
}

fn row(map: &CrushMap, item: &TreeItem) -> Vec<String> {
    let mut row = vec![
        item.id.to_string(),
        map.device_class(item.id).unwrap_or_default().to_owned(),
        weight_text(item.weight),
    ];
    for (_, args) in map.choose_args() {
        let weight = item.parent.and_then(|parent| {
            let at = map.bucket(parent)?.position(item.id)?;
            args.get((-1 - parent) as usize)?.weight_set.first()?.get(at).copied()
        });
        row.push(weight.map(weight_text).unwrap_or_default());
    }
    let indent = "    ".repeat(item.depth);
    row.push(match map.bucket(item.id) {
        Some(bucket) => {
            let kind = map.type_name(i32::from(bucket.type_id)).unwrap_or_default();
            format!("{indent}{kind} {}", map.item_name(item.id).unwrap_or_default())
        }
        None => format!("{indent}osd.{}", item.id),
    });
    row
}
