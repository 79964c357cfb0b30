//! Verbs on an object's omap.

use super::super::args::Format;
use super::super::{Context, RadosFailure, failed, formatting, out};
use super::{PAGE, read_input};
use crate::cmd::hexdump::hexdump;
use bytes::Bytes;
use nacre_client::block_on;
use serde_json::{Value, json};

/// The key from the operands or from `--omap-key-file`, and the operands after it.
fn key<'a>(context: &Context<'_>, operands: &'a [&'a str]) -> Result<(Bytes, &'a [&'a str]), RadosFailure> {
    if let Some(path) = &context.args.omap_key_file {
        return Ok((read_input(path)?.into(), &operands[1..]));
    }
    match operands.get(1) {
        Some(key) => Ok((Bytes::copy_from_slice(key.as_bytes()), &operands[2..])),
        None => Err(RadosFailure::usage()),
    }
}

/// `pool/object/key`.
fn name(context: &Context<'_>, object: &str, key: &[u8]) -> String {
    format!("{}/{}", context.name(object), String::from_utf8_lossy(key))
}

pub(in super::super) fn set_value(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (key, rest) = key(context, operands)?;
    let value = match (rest.first(), &context.args.input_file) {
        (Some(value), None) => value.as_bytes().to_vec(),
        (None, Some(path)) => read_input(path)?,
        (None, None) => read_input("-".as_ref())?,
        (Some(_), Some(_)) => return Err(RadosFailure::usage()),
    };
    let doing = format!("error setting omap value {}", name(context, operands[0], &key));
    context.pool().omap_set(operands[0], vec![(key, value.into())]).wait().map_err(failed(doing))
}

pub(in super::super) fn get_value(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (key, rest) = key(context, operands)?;
    let name = name(context, operands[0], &key);
    let found = context.pool().omap_get_vals_by_keys(operands[0], vec![key.clone()]).wait();
    let mut found = found.map_err(failed(format_args!("error getting omap value {name}")))?;
    match found.remove(&key) {
        None if context.args.format != Format::Plain => {
            Err(RadosFailure::new(format!("No such key: {name}")))
        }
        None => {
            out(format!("No such key: {name}\n"))?;
            Err(RadosFailure::new(""))
        }
        Some(value) => show(context.args.format, "value", &value, rest.first()),
    }
}

/// Writes a value to the file, or prints it as a dump or a document.
fn show(format: Format, what: &str, value: &[u8], file: Option<&&str>) -> Result<(), RadosFailure> {
    let Some(path) = file else { return out(shown(format, what, value)) };
    eprintln!("Writing to {path}");
    std::fs::write(path, value).map_err(|e| RadosFailure::new(format!("error writing to {path}: {e}")))
}

fn shown(format: Format, what: &str, value: &[u8]) -> String {
    match format {
        Format::Plain => dump(what, value),
        format => formatting::json(&json!({ what: formatting::text(value), "length": value.len() }), format),
    }
}

fn dump(what: &str, value: &[u8]) -> String {
    format!("{what} ({} bytes) :\n{}\n", value.len(), hexdump(value))
}

pub(in super::super) fn rm_key(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (key, _) = key(context, operands)?;
    let doing = format!("error removing omap key {}", name(context, operands[0], &key));
    context.pool().omap_rm_keys(operands[0], vec![key]).wait().map_err(failed(doing))
}

pub(in super::super) fn clear(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    operands.iter().try_for_each(|object| {
        let doing = format!("error clearing omap keys {}", context.name(object));
        context.pool().omap_clear(object).wait().map_err(failed(doing))
    })
}

pub(in super::super) fn list_keys(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting omap key set {}", context.name(operands[0]));
    let format = context.args.format;
    let (mut after, mut found) = (Bytes::new(), Vec::new());
    loop {
        let page = context.pool().omap_get_keys(operands[0], after, PAGE).wait();
        let page = page.map_err(failed(doing.as_str()))?;
        match format {
            Format::Plain => out(formatting::names(page.keys.iter().map(|key| &key[..]), format))?,
            _ => found.extend(page.keys.iter().cloned()),
        }
        match page.keys.last().filter(|_| page.more) {
            Some(last) => after = last.clone(),
            None if format == Format::Plain => return Ok(()),
            None => return out(formatting::names(found.iter().map(|key| &key[..]), format)),
        }
    }
}

pub(in super::super) fn list_values(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting omap keys {}", context.name(operands[0]));
    let format = context.args.format;
    let (mut after, mut found) = (Bytes::new(), Vec::new());
    loop {
        let page = context.pool().omap_get_vals(operands[0], after, "", PAGE).wait();
        let page = page.map_err(failed(doing.as_str()))?;
        for (key, value) in &page.entries {
            if format == Format::Plain {
                out([key, &b"\n"[..]].concat())?;
                out(dump("value", value))?;
            } else {
                found.push(
                    json!({ "key": formatting::text(key), "value": formatting::text(value), "length": value.len() }),
                );
            }
        }
        match page.entries.last().filter(|_| page.more) {
            Some((last, _)) => after = last.clone(),
            None if format == Format::Plain => return Ok(()),
            None => return out(formatting::json(&Value::Array(found), format)),
        }
    }
}

pub(in super::super) fn get_header(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting omap header {}", context.name(operands[0]));
    let header = block_on(context.pool().omap_get_header(operands[0])).map_err(failed(doing))?;
    show(context.args.format, "header", &header, operands.get(1))
}

pub(in super::super) fn set_header(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error setting omap value {}", context.name(operands[0]));
    let header = operands[1].as_bytes().to_vec();
    context.pool().omap_set_header(operands[0], header).wait().map_err(failed(doing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_dumps_or_documents() {
        assert!(shown(Format::Plain, "value", b"ab").starts_with("value (2 bytes) :\n"));
        assert_eq!(shown(Format::Json, "header", b"ab"), r#"{"header":"ab","length":2}"#);
    }
}
