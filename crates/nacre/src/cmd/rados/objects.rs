//! Verbs on single objects: their existence, size, times and attributes.

pub(super) mod omap;

use super::args::Format;
use super::{Context, RadosFailure, failed, formatting, out};
use crate::progress::{Progress, Unit};
use nacre_client::{ReadOp, Result, WriteOp, block_on};
use nacre_types::errno::Errno;
use nacre_types::op::request_flag;
use serde_json::json;
use std::io::Read;
use std::path::Path;

/// Names or keys per request.
const PAGE: u64 = 512;
/// Bytes per request of a copy.
const COPY_CHUNK: u64 = 4 << 20;

pub(super) fn stat(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    print_stat(context, operands[0], 1_000_000_000)
}

pub(super) fn stat2(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    print_stat(context, operands[0], 1)
}

fn print_stat(context: &Context<'_>, object: &str, resolution_ns: u64) -> Result<(), RadosFailure> {
    let name = context.name(object);
    let stat = context.pool().stat(object).wait().map_err(failed(format_args!(" error stat-ing {name}")))?;
    out(format_stat(context, object, stat.size, stat.mtime_ns / resolution_ns * resolution_ns))
}

/// An object's size and time.
pub(super) fn format_stat(context: &Context<'_>, object: &str, size: u64, mtime_ns: u64) -> String {
    let mtime = formatting::time(mtime_ns);
    match context.args.format {
        Format::Plain => format!("{} mtime {mtime}, size {size}\n", context.name(object)),
        format => {
            let pool = context.pool().pool_name();
            formatting::json(&json!({ "pool": pool, "name": object, "mtime": mtime, "size": size }), format)
        }
    }
}

pub(super) fn touch(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let mtime_ns = match operands.get(1) {
        None => formatting::now_ns(),
        Some(seconds) => {
            let seconds: u64 = seconds
                .parse()
                .map_err(|_| RadosFailure::new(format!("Invalid value for timestamp: '{seconds}'")))?;
            seconds.saturating_mul(1_000_000_000)
        }
    };
    let mut op = WriteOp::new();
    op.create(false).mtime_ns(mtime_ns);
    let doing = format!(" error touch-ing {}", context.name(operands[0]));
    write(context, operands[0], op, doing)
}

fn write(context: &Context<'_>, object: &str, op: WriteOp, doing: String) -> Result<(), RadosFailure> {
    let reply = context.pool().operate(object, op).wait();
    reply.and_then(|reply| reply.success()).map(drop).map_err(failed(doing))
}

pub(super) fn truncate(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let size = parse_truncate_size(operands[1])?;
    let doing = format!("error truncating oid {} to {size}", operands[0]);
    context.pool().truncate(operands[0], size).wait().map_err(failed(doing))
}

/// The size for `truncate`.
pub(super) fn parse_truncate_size(text: &str) -> Result<u64, RadosFailure> {
    match text.parse::<i64>() {
        Ok(size) if size < 0 => Err(RadosFailure::new("error, cannot truncate to negative value")),
        Ok(size) => Ok(size.unsigned_abs()),
        Err(_) => Err(RadosFailure::new(format!("Invalid value for size: '{text}'"))),
    }
}

pub(super) fn create(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error creating {}", context.name(operands[0]));
    context.pool().create(operands[0], true).wait().map_err(failed(doing))
}

pub(super) fn remove(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let pool = match context.args.force_full {
        true => context.pool().with_flags(request_flag::FULL_FORCE),
        false => context.pool().clone(),
    };
    let progress = Progress::start("rm", Unit::Items("objects"), Some(operands.len() as u64));
    // All of them are tried. The first failure, with its message, determines the exit code.
    let mut failure = None;
    for group in operands.chunks(64) {
        let removals: Vec<_> = group.iter().map(|object| (object, pool.remove(object))).collect();
        for (object, removal) in removals {
            progress.add(1);
            if let Err(error) = removal.wait() {
                let doing = format!("error removing {}>{object}", pool.pool_name());
                let error = failed(doing)(error);
                match &mut failure {
                    None => failure = Some(error),
                    Some(first) => first.text = [first.text.as_str(), &error.text].join("\n"),
                }
            }
        }
    }
    drop(progress);
    failure.map_or(Ok(()), Err)
}

pub(super) fn copy(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let args = context.args;
    let from = context.pool();
    let target_name = operands.get(1).copied().unwrap_or(operands[0]);
    let mut to = match &args.target_pool {
        Some(name) => super::open_pool(context.cluster, name, args)?,
        None => from.clone(),
    };
    if let Some(locator) = &args.target_locator {
        to = to.with_locator(locator);
    }
    if let Some(namespace) = &args.target_namespace {
        to = to.with_namespace(namespace);
    }
    let same_place =
        to.pool() == from.pool() && to.locator() == from.locator() && to.namespace() == from.namespace();
    if same_place && target_name == operands[0] {
        return Err(RadosFailure::new("cannot copy object into itself"));
    }
    let doing = format!("error copying {} => {}/{target_name}", context.name(operands[0]), to.pool_name());
    block_on(copy_object(from, operands[0], &to, target_name)).map_err(failed(doing))
}

/// Copies data, attributes and omap. If the source changes meanwhile, the copy fails with ERANGE.
async fn copy_object(
    from: &nacre_client::IoCtx,
    source: &str,
    to: &nacre_client::IoCtx,
    target: &str,
) -> Result<()> {
    let mut read = ReadOp::new();
    read.stat().get_xattrs().omap_get_header().omap_get_vals("", "", PAGE).read(0, COPY_CHUNK);
    let mut reply = from.operate_read(source, read).await?.success()?;
    let version = reply.version;
    let size = reply.stat(0)?.size;
    let attributes = reply.pairs(1)?;
    let header = reply.output(2)?;
    let mut values = reply.omap_vals(3)?;
    let mut write = WriteOp::new();
    write.remove().op_flags(nacre_types::op::op_flag::FAILOK).create(false).write_full(reply.output(4)?);
    for (name, value) in attributes {
        let name = String::from_utf8_lossy(&name).into_owned();
        write.set_xattr(&name, value);
    }
    if !header.is_empty() {
        write.omap_set_header(header);
    }
    let mut last_key = values.entries.last().map(|(key, _)| key.clone());
    if !values.entries.is_empty() {
        write.omap_set(std::mem::take(&mut values.entries));
    }
    to.operate(target, write).await?.success()?;
    let mut offset = COPY_CHUNK;
    while offset < size {
        let mut read = ReadOp::new();
        read.assert_version(version).read(offset, COPY_CHUNK);
        let data = from.operate_read(source, read).await?.success()?.output(1)?;
        if data.is_empty() {
            return Err(Errno::ERANGE.into());
        }
        let len = data.len() as u64;
        to.write(target, offset, data).await?;
        offset += len;
    }
    while let Some(after) = last_key.take().filter(|_| values.more) {
        let mut read = ReadOp::new();
        read.assert_version(version).omap_get_vals(after, "", PAGE);
        values = from.operate_read(source, read).await?.success()?.omap_vals(1)?;
        last_key = values.entries.last().map(|(key, _)| key.clone());
        if !values.entries.is_empty() {
            to.omap_set(target, std::mem::take(&mut values.entries)).await?;
        }
    }
    Ok(())
}

pub(super) fn set_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let value = match operands.get(2) {
        Some(value) => value.as_bytes().to_vec(),
        None => read_input(Path::new("-"))?,
    };
    let doing = format!("error setting xattr {}/{}", context.name(operands[0]), operands[1]);
    context.pool().set_xattr(operands[0], operands[1], value).wait().map_err(failed(doing))
}

pub(super) fn get_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting xattr {}/{}", context.name(operands[0]), operands[1]);
    let value = context.pool().get_xattr(operands[0], operands[1]).wait().map_err(failed(doing))?;
    out(formatting::attribute(operands[1], &value, context.args.format))
}

pub(super) fn rm_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error removing xattr {}/{}", context.name(operands[0]), operands[1]);
    context.pool().rm_xattr(operands[0], operands[1]).wait().map_err(failed(doing))
}

pub(super) fn list_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting xattr set {}", context.name(operands[0]));
    let attributes = context.pool().get_xattrs(operands[0]).wait().map_err(failed(doing))?;
    out(formatting::names(attributes.keys().map(|name| &name[..]), context.args.format))
}

pub(super) fn map_extents(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("mapext error on {}", context.name(operands[0]));
    let extents = context.pool().map_extents(operands[0], 0, 0).wait().map_err(failed(doing))?;
    if context.args.format == Format::Plain {
        return extents.iter().try_for_each(|(offset, len)| out(format!("{offset:x}\t{len:x}\n")));
    }
    let entries = extents.iter().map(|(offset, len)| json!({ "offset": offset, "length": len }));
    out(formatting::json(&entries.collect(), context.args.format))
}

pub(super) fn set_alloc_hint(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let parse = |what: &str, text: &str| {
        text.parse::<u64>()
            .map_err(|_| RadosFailure::new(format!("couldn't parse expected_{what}_size: '{text}'")))
    };
    let (object_size, write_size) = (parse("object", operands[1])?, parse("write", operands[2])?);
    let mut op = WriteOp::new();
    op.set_alloc_hint(object_size, write_size, 0);
    write(context, operands[0], op, format!("error setting alloc-hint {}", context.name(operands[0])))
}

/// The contents of a file, or of standard input for `-`.
pub(super) fn read_input(path: &Path) -> Result<Vec<u8>, RadosFailure> {
    let mut data = Vec::new();
    let result = match path.to_str() {
        Some("-") => std::io::stdin().lock().read_to_end(&mut data),
        _ => std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut data)),
    };
    match result {
        Ok(_) => Ok(data),
        Err(e) => Err(RadosFailure::new(format!(
            "error reading file {}: {}",
            path.display(),
            super::transfer::io_text(&e)
        ))),
    }
}
