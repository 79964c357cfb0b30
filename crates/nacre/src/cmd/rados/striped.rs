//! `rados --striper`: the verbs that work on striped objects.

use super::args::Format;
use super::transfer::{io_text, read_piece, window};
use super::{Command, Context, EXIT_INVALID, RadosFailure, failed, formatting, objects, out, reason};
use crate::progress::{Progress, Unit};
use nacre_client::{Layout, Pending, Striper, block_on};
use nacre_types::errno::Errno;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

/// The verb, if it exists for striped objects.
pub(super) fn command(verb: &str) -> Option<Command> {
    let in_pool =
        |least, most, run| Some(Command { operands: least..=most, needs_pool: true, takes_pool: true, run });
    match verb {
        "ls" => in_pool(0, 1, list),
        "get" => in_pool(2, 2, get),
        "put" => in_pool(2, 2, put),
        "append" => in_pool(2, 2, append),
        "stat" => in_pool(1, 1, |context, operands| stat(context, operands[0], 1_000_000_000)),
        "stat2" => in_pool(1, 1, |context, operands| stat(context, operands[0], 1)),
        "truncate" => in_pool(2, 2, truncate),
        "rm" => in_pool(1, usize::MAX, remove),
        "setxattr" => in_pool(2, 3, set_xattr),
        "getxattr" => in_pool(2, 2, get_xattr),
        "rmxattr" => in_pool(2, 2, rm_xattr),
        "listxattr" => in_pool(1, 1, list_xattr),
        _ => None,
    }
}

/// The pool's striped objects. New ones get the layout from the options.
fn striper(context: &Context<'_>) -> Result<Striper, RadosFailure> {
    let (args, striper) = (context.args, nacre_client::striper(context.pool().clone()));
    let part = |what: &str, value: Option<u64>, default: u64| {
        u32::try_from(value.unwrap_or(default)).map_err(|_| {
            RadosFailure::invalid(format!("a {what} of {} bytes is too large", value.unwrap_or(default)))
        })
    };
    let default = Layout::default();
    let object_size = part("object size", args.object_size, default.object_size())?;
    let unit = part("stripe unit", args.stripe_unit, default.stripe_unit().min(object_size.into()))?;
    let count = args.stripe_count.unwrap_or(1);
    let layout = Layout::new(unit, count, object_size)
        .map_err(|error| RadosFailure { text: reason(&error), code: EXIT_INVALID })?;
    striper.set_layout(layout);
    Ok(striper)
}

fn list(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let pool = context.pool();
    let file: Box<dyn Write> = match operands.first() {
        None | Some(&"-") => Box::new(std::io::stdout().lock()),
        Some(path) => {
            Box::new(File::create(path).map_err(|e| RadosFailure::new(format!("error opening {path}: {e}")))?)
        }
    };
    let mut sink = BufWriter::new(file);
    let listing = |e| RadosFailure::new(format!("error writing the listing: {e}"));
    let mut lister = match context.args.all {
        true => Striper::list_all(pool),
        false => nacre_client::striper(pool.clone()).list(),
    };
    let mut entries = Vec::new();
    while let Some((name, first)) = block_on(lister.next_object())
        .map_err(failed(format_args!("error listing pool {}", pool.pool_name())))?
    {
        if context.args.format == Format::Plain {
            let namespace = if context.args.all { format!("{}\t", first.namespace()) } else { String::new() };
            let locator =
                if first.locator().is_empty() { String::new() } else { format!("\t{}", first.locator()) };
            match sink.write_all(format!("{namespace}{name}{locator}\n").as_bytes()) {
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(listing)?,
            }
        } else {
            entries.push(json!({ "namespace": first.namespace(), "name": name }));
        }
    }
    if context.args.format != Format::Plain {
        let text = formatting::json(&Value::Array(entries), context.args.format);
        sink.write_all(text.as_bytes()).map_err(listing)?;
    }
    match sink.flush() {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        flushed => flushed.map_err(listing),
    }
}

fn open(path: &str) -> Result<(Box<dyn Read>, u64), RadosFailure> {
    if path == "-" {
        return Ok((Box::new(std::io::stdin().lock()), 0));
    }
    let reading =
        |e: std::io::Error| RadosFailure::new(format!("error reading input file {path}: {}", io_text(&e)));
    let file = File::open(path).map_err(reading)?;
    let meta = file.metadata().map_err(reading)?;
    if meta.is_dir() {
        return Err(RadosFailure::new(format!("error reading input file {path}: {}", Errno::EISDIR)));
    }
    Ok((Box::new(file), meta.len()))
}

fn put(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (object, path) = (operands[0], operands[1]);
    let (striper, name, op_size) = (striper(context)?, context.name(object), context.op_size());
    let (mut input, total) = open(path)?;
    let mut read = || {
        read_piece(&mut input, op_size)
            .map_err(|e| RadosFailure::new(format!("error reading input file {path}: {}", io_text(&e))))
    };
    let putting = || failed(format!("error putting {name}"));
    let progress = Progress::start(format!("put {object}"), Unit::Bytes, (total > 0).then_some(total));
    let mut offset = context.args.offset;
    let first = read()?;
    let mut last = (first.len() as u64) < op_size;
    progress.add(first.len() as u64);
    offset += first.len() as u64;
    // At offset 0 it replaces the previous contents. Nothing else may be in flight meanwhile.
    match context.args.offset {
        0 => striper.write_full(object, first).wait(),
        at => striper.write(object, at, first).wait(),
    }
    .map_err(putting())?;
    let mut in_flight: VecDeque<(u64, Pending<()>)> = VecDeque::new();
    while !last || !in_flight.is_empty() {
        if !last {
            let piece = read()?;
            let len = piece.len() as u64;
            last = len < op_size;
            if len > 0 {
                in_flight.push_back((len, striper.write(object, offset, piece)));
            }
            offset += len;
        }
        if (last || in_flight.len() >= window(op_size))
            && let Some((len, pending)) = in_flight.pop_front()
        {
            pending.wait().map_err(putting())?;
            progress.add(len);
        }
    }
    drop(progress);
    Ok(())
}

fn append(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (object, path) = (operands[0], operands[1]);
    let (striper, op_size) = (striper(context)?, context.op_size());
    let (mut input, _) = open(path)?;
    loop {
        let piece = read_piece(&mut input, op_size)
            .map_err(|e| RadosFailure::new(format!("error reading input file {path}: {}", io_text(&e))))?;
        let last = (piece.len() as u64) < op_size;
        if !piece.is_empty() {
            let doing = format!("error appending {}", context.name(object));
            striper.append(object, piece).wait().map_err(failed(doing))?;
        }
        if last {
            return Ok(());
        }
    }
}

fn get(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let (object, path) = (operands[0], operands[1]);
    let (striper, name, op_size) = (striper(context)?, context.name(object), context.op_size());
    let getting = || failed(format!("error getting {name}"));
    let size = striper.stat(object).wait().map_err(getting())?.size;
    let writing =
        |e: std::io::Error| RadosFailure::new(format!("error writing to file {path}: {}", io_text(&e)));
    let mut output: Box<dyn Write> = match path {
        "-" => Box::new(std::io::stdout().lock()),
        path => Box::new(File::create(path).map_err(writing)?),
    };
    let mut next = context.args.offset;
    let progress = Progress::start(format!("get {object}"), Unit::Bytes, Some(size.saturating_sub(next)));
    let mut in_flight = VecDeque::new();
    loop {
        while next < size && in_flight.len() < window(op_size) {
            in_flight.push_back(striper.read_runs(object, next, op_size));
            next += op_size;
        }
        let Some(pending) = in_flight.pop_front() else { break };
        for run in pending.wait().map_err(getting())? {
            match output.write_all(&run) {
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe && path == "-" => return Ok(()),
                written => written.map_err(writing)?,
            }
            progress.add(run.len() as u64);
        }
    }
    drop(progress);
    output.flush().map_err(writing)
}

fn stat(context: &Context<'_>, object: &str, resolution_ns: u64) -> Result<(), RadosFailure> {
    let name = context.name(object);
    let stat = striper(context)?.stat(object).wait();
    let stat = stat.map_err(failed(format_args!(" error stat-ing {name}")))?;
    let mtime_ns = stat.mtime_ns / resolution_ns * resolution_ns;
    out(objects::format_stat(context, object, stat.size, mtime_ns))
}

fn truncate(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let size = objects::parse_truncate_size(operands[1])?;
    let doing = format!("error truncating oid {} to {size}", operands[0]);
    striper(context)?.truncate(operands[0], size).wait().map_err(failed(doing))
}

fn remove(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let striper = striper(context)?;
    // All of them are tried. Only failures print messages.
    let mut failures = Vec::new();
    for object in operands {
        if let Err(error) = striper.remove(object).wait() {
            let doing = format!("error removing {}>{object}", context.pool().pool_name());
            failures.push(failed(doing)(error).text);
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(RadosFailure::new(failures.join("\n"))) }
}

fn set_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let value = match operands.get(2) {
        Some(value) => value.as_bytes().to_vec(),
        None => objects::read_input(Path::new("-"))?,
    };
    let doing = format!("error setting xattr {}/{}", context.name(operands[0]), operands[1]);
    striper(context)?.set_xattr(operands[0], operands[1], value).wait().map_err(failed(doing))
}

fn get_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting xattr {}/{}", context.name(operands[0]), operands[1]);
    let value = striper(context)?.get_xattr(operands[0], operands[1]).wait().map_err(failed(doing))?;
    out(formatting::attribute(operands[1], &value, context.args.format))
}

fn rm_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error removing xattr {}/{}", context.name(operands[0]), operands[1]);
    striper(context)?.rm_xattr(operands[0], operands[1]).wait().map_err(failed(doing))
}

fn list_xattr(context: &Context<'_>, operands: &[&str]) -> Result<(), RadosFailure> {
    let doing = format!("error getting xattr set {}", context.name(operands[0]));
    let attributes = striper(context)?.get_xattrs(operands[0]).wait().map_err(failed(doing))?;
    out(formatting::names(attributes.keys().map(|name| &name[..]), context.args.format))
}
