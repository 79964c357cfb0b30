//! `nacre crushtool`: Ceph's `crushtool`, with its syntax, output and exit codes.
//!
//! It has Ceph's five stages: input (read, compile or build a map), tunables, changes, display and test, output.
//! `nacre_crush` has the map's logic; this module has the files, the command line and the layout of the output.
//!
//! [`options::OPTIONS`] has the options and their intended differences from Ceph. For a map that can't be decoded, the error has
//! the reason.

mod args;
mod build;
mod check;
mod options;
pub(super) mod tester;
mod tree;

pub(super) use options::{OPTIONS, usage};

use super::formatter::{self, DumpFormat, ElementNames};
use args::{Args, ItemChange, RuleMode};
use nacre_crush::{CrushError, CrushMap, RuleType, is_valid_name, weight_from_f32};
use nacre_types::errno::Errno;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;

/// The tool's name in its messages.
const ME: &str = "crushtool";

/// The names of the dump's parts in XML and tables.
const DUMP_NAMES: ElementNames = ElementNames {
    root: "crush_map",
    element: |array| match array {
        "devices" => "device",
        "types" => "type",
        "buckets" => "bucket",
        "items" => "item",
        "rules" => "rule",
        "steps" => "step",
        "weight_set" => "weights",
        "weights" => "weight",
        "ids" => "id",
        // Sets of weights and ids, named by pools.
        _ => "choose_args",
    },
    outer_fields: &[],
};

/// Runs the command with the words after `crushtool`.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut err = io::stderr().lock();
    let status = run(&words, &mut out, &mut err);
    match status.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        // The reader has closed the pipe, as `| head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{ME}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why the tool stops.
enum ExitError {
    /// A message for standard error, and the exit code.
    Failed(String, u8),
    /// Output could not be written.
    Io(io::Error),
}

impl From<io::Error> for ExitError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl ExitError {
    fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into(), 1)
    }

    /// An error as crushtool reports it: its text, and the negated number as exit code.
    fn edit(error: &CrushError) -> Self {
        Self::Failed(format!("{ME} {}", Errno::from(error)), exit_code(error))
    }
}

fn exit_code(error: &CrushError) -> u8 {
    Errno::from(error).negated() as u8
}

fn run(words: &[OsString], out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    match stages(words, out, err) {
        Ok(code) => Ok(code),
        Err(ExitError::Failed(message, code)) => {
            out.flush()?;
            writeln!(err, "{message}")?;
            Ok(code)
        }
        Err(ExitError::Io(error)) => Err(error),
    }
}

fn stages(words: &[OsString], out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, ExitError> {
    let args = Args::parse(words).map_err(ExitError::failed)?;
    if args.help {
        out.write_all(usage().as_bytes())?;
        return Ok(0);
    }
    if args.help_output {
        out.write_all(tester::csv::HELP.as_bytes())?;
        return Ok(0);
    }
    args.check(err)?;

    let mut map = CrushMap::empty();
    let mut modified = false;
    if let Some(file) = &args.input {
        map = read_map(file)?;
    }
    if let Some(file) = &args.compile {
        let bytes = fs::read(file).map_err(|_| {
            ExitError::Failed(format!("input file {file} not found"), Errno::ENOENT.negated() as u8)
        })?;
        let text = String::from_utf8_lossy(&bytes);
        map = CrushMap::compile(&text).map_err(|error| ExitError::failed(format!("{file}:{error}")))?;
        modified = true;
    }
    if args.build {
        map = build::build(args.num_osds, &args.rest, err)?;
        modified = true;
    }

    for &(name, value) in &args.tunables {
        modified |= map.tunables.set_by_name(name, value);
    }
    modified |= change(&mut map, &args, out, err)?;

    display(&map, &args, out)?;
    if let Some(most) = args.check_ids {
        for line in check::overlapping_rules(&map) {
            writeln!(out, "{line}")?;
        }
        check::names(&map, most).map_err(|why| {
            // crushtool prints this to standard output.
            match writeln!(out, "{why}") {
                Ok(()) => ExitError::Failed(String::new(), 1),
                Err(error) => ExitError::Io(error),
            }
        })?;
    }
    let mut code = 0;
    if args.test {
        tester::test(&map, &args.tester, out, err)?;
    }
    if let Some(file) = &args.compare {
        let other = read_map(file)?;
        if !tester::compare(&map, &other, &args.tester, out)? {
            code = 1;
            out.flush()?;
            writeln!(err, "warning: maps are NOT equivalent")?;
        }
    }
    if modified {
        match &args.output {
            None => {
                writeln!(out, "{ME} successfully built or modified map.  Use '-o <file>' to write it out.")?
            }
            Some(file) => {
                write_file(file, &map.encode())?;
                if args.verbose {
                    writeln!(out, "wrote crush map to {file}")?;
                }
            }
        }
    }
    Ok(code)
}

fn read_map(file: &str) -> Result<CrushMap, ExitError> {
    let mut bytes = Vec::new();
    let read = match file {
        "-" => io::stdin().lock().read_to_end(&mut bytes),
        _ => fs::File::open(file).and_then(|mut f| f.read_to_end(&mut bytes)),
    };
    read.map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "(2) No such file or directory".to_owned(),
            _ => error.to_string(),
        };
        ExitError::failed(format!("{ME}: error reading '{file}': can't open {file}: {why}"))
    })?;
    CrushMap::decode(&bytes)
        .map_err(|error| ExitError::failed(format!("{ME}: unable to decode {file}: {error}")))
}

fn write_file(file: &str, bytes: &[u8]) -> Result<(), ExitError> {
    fs::write(file, bytes).map_err(|_| ExitError::failed(format!("{ME}: error writing '{file}'")))
}

/// Applies the requested changes. Returns true if the map may have changed.
fn change(
    map: &mut CrushMap,
    args: &Args,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<bool, ExitError> {
    let mut modified = false;
    if let Some((name, weight)) = &args.reweight_item {
        writeln!(out, "{ME} reweighting item {name} to {}", tester::format_g(f64::from(*weight)))?;
        known_item(map, name, out, err)?;
        let weight = fixed(*weight)?;
        map.adjust_item_weight(name, weight).map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    if let Some(name) = &args.remove_item {
        writeln!(out, "{ME} removing item {name}")?;
        known_item(map, name, out, err)?;
        map.remove_item(name).map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    match &args.item {
        None => {}
        Some(ItemChange::Add { id, weight, name }) => {
            let weight = fixed(*weight)?;
            map.insert_item(*id, weight, name, &args.loc).map_err(|e| ExitError::edit(&e))?;
            modified = true;
        }
        Some(ItemChange::Update { id, weight, name }) => {
            let weight = fixed(*weight)?;
            map.update_item(*id, weight, name, &args.loc).map_err(|e| ExitError::edit(&e))?;
            modified = true;
        }
    }
    if let Some((name, type_name)) = &args.add_bucket {
        if map.item_id(name).is_some() {
            let exists = CrushError::Exists(String::new());
            return Err(ExitError::Failed(
                format!("{ME} bucket '{name}' already exists"),
                exit_code(&exists),
            ));
        }
        if map.type_id(type_name).is_none_or(|id| id <= 0) {
            let invalid = CrushError::Invalid(String::new());
            return Err(ExitError::Failed(format!("{ME} bad bucket type: {type_name}"), exit_code(&invalid)));
        }
        if !is_valid_name(name) {
            let invalid = CrushError::Invalid(String::new());
            return Err(ExitError::Failed(format!("{ME} bad bucket name: {name}"), exit_code(&invalid)));
        }
        map.add_empty_bucket(name, type_name, &args.loc).map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    if let Some(name) = &args.move_item {
        if map.item_id(name).is_none() {
            let missing = CrushError::NotFound(String::new());
            return Err(ExitError::Failed(format!("{ME} item '{name}' does not exist"), exit_code(&missing)));
        }
        map.move_item(name, &args.loc).map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    if let Some(rule) = &args.create_rule {
        let (option, mode_shown) = match &rule.mode {
            RuleMode::Replicated => ("--create-replicated-rule", String::new()),
            RuleMode::Simple(mode) => ("--create-simple-rule", format!(" mode={mode}")),
        };
        writeln!(
            out,
            "{option}: name={} root={} type={}{mode_shown}",
            rule.name, rule.root, rule.failure_domain
        )?;
        if map.rule_id(&rule.name).is_some() {
            return Err(ExitError::failed(format!("rule {} already exists", rule.name)));
        }
        let mode = match &rule.mode {
            RuleMode::Replicated => "firstn",
            RuleMode::Simple(mode) => mode,
        };
        let class = args.device_class.as_deref();
        let before = (mode != "firstn" && mode != "indep").then(|| map.clone());
        let firstn = mode != "indep";
        map.add_simple_rule(
            &rule.name,
            &rule.root,
            &rule.failure_domain,
            class,
            firstn,
            RuleType::Replicated,
        )
        .map_err(|error| ExitError::failed(error.to_string()))?;
        // crushtool checks the mode last.
        if let Some(before) = before {
            *map = before;
            return Err(ExitError::failed(format!("unknown mode {mode}")));
        }
        modified = true;
    }
    if let Some(name) = &args.remove_rule {
        if map.rule_id(name).is_none() {
            // Not an error in crushtool either.
            out.flush()?;
            writeln!(err, "rule {name} does not exist")?;
        } else {
            map.remove_rule(name).map_err(|e| ExitError::edit(&e))?;
            modified = true;
        }
    }
    if args.reweight {
        map.reweight_all().map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    for (bucket, class) in &args.set_subtree_class {
        let Some(root) = map.item_id(bucket) else {
            return Err(ExitError::failed(format!("node {bucket} does not exist")));
        };
        map.set_subtree_class(root, class).map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    if args.reclassify {
        reclassify(map, args, out)?;
        modified = true;
    }
    if args.rebuild_class_roots {
        map.rebuild_class_roots().map_err(|e| ExitError::edit(&e))?;
        modified = true;
    }
    Ok(modified)
}

fn reclassify(map: &mut CrushMap, args: &Args, out: &mut dyn Write) -> Result<(), ExitError> {
    let mut log = Vec::new();
    let buckets: Vec<_> = args.reclassify_bucket.values().cloned().collect();
    let done = map.reclassify(&args.reclassify_root, &buckets, &mut log);
    for line in &log {
        writeln!(out, "{line}")?;
    }
    done.map_err(|error| {
        let why = error.to_string();
        let reported = log.last() == Some(&why);
        let why = if reported { String::new() } else { format!("{why}\n") };
        ExitError::failed(format!("{why}failed to reclassify map"))
    })
}

fn known_item(map: &CrushMap, name: &str, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), ExitError> {
    if map.item_id(name).is_some() {
        return Ok(());
    }
    out.flush()?;
    writeln!(err, " name {name} dne")?;
    Err(ExitError::edit(&CrushError::NotFound(String::new())))
}

/// A weight in 16.16 format. Ceph stores it in 31 bits.
fn fixed(weight: f32) -> Result<u32, ExitError> {
    let fixed = weight_from_f32(weight).ok().filter(|fixed| *fixed <= i32::MAX.unsigned_abs());
    fixed.ok_or_else(|| {
        ExitError::Failed(format!("{ME} {}", Errno::EOVERFLOW), Errno::EOVERFLOW.negated() as u8)
    })
}

fn display(map: &CrushMap, args: &Args, out: &mut dyn Write) -> Result<(), ExitError> {
    if let Some(id) = args.show_location {
        for (kind, name) in map.full_location(id) {
            writeln!(out, "{kind}\t{name}")?;
        }
    }
    if args.tree {
        tree::print(map, out)?;
    }
    if args.bucket_tree {
        let name = args
            .bucket_name
            .as_deref()
            .ok_or_else(|| ExitError::failed(": error bucket_name is empty".to_owned()))?;
        if let Some(root) = map.item_id(name) {
            for device in map.devices_below(root) {
                writeln!(out, "{}", map.item_name(device).unwrap_or_default())?;
            }
        }
    }
    if args.dump {
        let format = args.format.as_deref().and_then(DumpFormat::from_name).unwrap_or(DumpFormat::JsonPretty);
        writeln!(out, "{}", formatter::render(&map.dump(), DUMP_NAMES, format))?;
    }
    if args.decompile {
        let text = map.decompile();
        match &args.output {
            None => out.write_all(text.as_bytes())?,
            Some(file) => write_file(file, text.as_bytes())?,
        }
    }
    Ok(())
}
