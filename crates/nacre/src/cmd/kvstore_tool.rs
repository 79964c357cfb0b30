//! `nacre kvstore-tool`: Ceph's `ceph-kvstore-tool` on the databases of Nacre's stores, while they are not in use.
//!
//! Prefixes are column families (docs/format/bluestore.md lists those of a BlueStore). In printed and given keys, every byte
//! except letters, digits and `-._~/` is written as `%` and two hex digits. `--format` is an extension.

use super::hexdump::hexdump;
use super::output::Format;
use nacre_store::{KvKind, KvSize, KvStore, StoreError};
use nacre_types::support_level::SupportLevel;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

pub(super) const USAGE: &str = "\
Usage: ceph-kvstore-tool <rocksdb|bluestore-kv> <store path> command [args...]

Commands:
  list [prefix]
  list-crc [prefix]
  dump [prefix]
  exists <prefix> [key]
  get <prefix> <key> [out <file>]
  crc <prefix> <key>
  get-size [<prefix> <key>]
  set <prefix> <key> [ver <N>|in <file>]
  rm <prefix> <key>
  rm-prefix <prefix>
  store-copy <path> [num-keys-per-tx]
  store-crc <path>
  compact
  compact-prefix <prefix>
  compact-range <prefix> <start> <end>
  destructive-repair  (use only as last resort! may corrupt healthy data)
  stats

--format json|json-pretty, anywhere: print JSON; values are in hex digits (an extension of Nacre)

";

/// The command for a database that can't be opened.
const REPAIR: &str = "destructive-repair";
/// Keys per write of `store-copy`, by default.
const KEYS_PER_TRANSACTION: u64 = 128;

/// Why the tool stops.
enum Stop {
    /// The command line is wrong. The usage is printed after the error.
    Usage(String),
    /// The requested item does not exist. The message was printed already.
    Absent,
    /// The command failed.
    Failed(String),
    /// Output could not be written.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Io(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Failed(error.to_string())
    }
}

/// Runs the command with the words after `kvstore-tool`.
pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let outcome = run(&words, &mut out).and_then(|()| Ok(out.flush()?));
    match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        // The reader has closed the pipe, as `| head` does.
        Err(Stop::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(Stop::Io(error)) => eprintln!("ceph-kvstore-tool: {error}"),
        Err(Stop::Failed(error)) => eprintln!("{error}"),
        Err(Stop::Usage(error)) => {
            if !error.is_empty() {
                eprintln!("{error}");
            }
            // Prints the usage, as Ceph's program does.
            let _ = out.write_all(USAGE.as_bytes());
        }
        Err(Stop::Absent) => {}
    }
    // Earlier output is written first. An error of it does not matter here.
    let _ = out.flush();
    ExitCode::FAILURE
}

fn run(words: &[OsString], out: &mut dyn Write) -> Result<(), Stop> {
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.to_str().ok_or_else(|| Stop::Usage(format!("argument {word:?} is not UTF-8"))))
        .collect::<Result<_, _>>()?;
    if words.iter().any(|word| matches!(*word, "-h" | "--help")) {
        return Ok(out.write_all(USAGE.as_bytes())?);
    }
    let (words, format) = split_format(words)?;
    let [kind, path, command, args @ ..] = words.as_slice() else {
        return Err(Stop::Usage(String::new()));
    };
    let kind = match *kind {
        "rocksdb" => KvKind::RocksDb,
        "bluestore-kv" => KvKind::BlueStoreKv,
        other => return Err(Stop::Usage(format!("Unrecognized type: {other}"))),
    };
    let path = Path::new(path);
    if *command == REPAIR {
        let repaired = KvStore::repair(kind, path)?;
        format.write_json(out, &json!({ "repaired": repaired }))?;
        if format != Format::Plain {
            return Ok(());
        }
        let text = match repaired {
            true => "destructive-repair completed without reporting an error",
            false => "the database opens and every entry can be read: nothing to repair",
        };
        return Ok(writeln!(out, "{text}")?);
    }
    let Some(command) = COMMANDS.iter().find(|known| known.name == *command) else {
        return Err(Stop::Usage(format!("Unrecognized command: {command}")));
    };
    if !command.args.contains(&args.len()) {
        return Err(Stop::Usage(String::new()));
    }
    (command.run)(&Context { store: KvStore::open(kind, path)?, path, format }, args, out)
}

/// Removes `--format` from the words.
fn split_format(words: Vec<&str>) -> Result<(Vec<&str>, Format), Stop> {
    let (mut rest, mut format) = (Vec::with_capacity(words.len()), Format::Plain);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let name = match word.strip_prefix("--format") {
            Some("") => words.next().unwrap_or_default(),
            Some(value) if value.starts_with('=') => &value[1..],
            _ => {
                rest.push(word);
                continue;
            }
        };
        format = Format::from_name(name)
            .ok_or_else(|| Stop::Usage(format!("--format: '{name}' is not plain, json or json-pretty")))?;
    }
    Ok((rest, format))
}

struct Context<'a> {
    store: KvStore,
    path: &'a Path,
    format: Format,
}

impl Context<'_> {
    fn is_plain(&self) -> bool {
        self.format == Format::Plain
    }
}

type Run = fn(&Context<'_>, &[&str], &mut dyn Write) -> Result<(), Stop>;

struct Command {
    name: &'static str,
    /// Number of arguments.
    args: std::ops::RangeInclusive<usize>,
    run: Run,
    /// Compared with Ceph.
    support: SupportLevel,
}

impl Command {
    /// A command that differs from Ceph's.
    const fn partial(self, missing: &'static str) -> Command {
        Command { name: self.name, args: self.args, run: self.run, support: SupportLevel::Partial(missing) }
    }
}

/// A command that is equivalent to Ceph's.
const fn command(name: &'static str, args: std::ops::RangeInclusive<usize>, run: Run) -> Command {
    Command { name, args, run, support: SupportLevel::Full }
}

static COMMANDS: &[Command] = &[
    command("list", 0..=1, |context, args, out| list(context, args, out, Show::Keys)),
    command("list-crc", 0..=1, |context, args, out| list(context, args, out, Show::Checksums)),
    command("dump", 0..=1, |context, args, out| list(context, args, out, Show::Values)),
    command("exists", 1..=2, exists),
    command("get", 2..=4, get),
    command("crc", 2..=2, crc),
    command("get-size", 0..=2, get_size),
    command("set", 4..=4, set),
    command("rm", 2..=2, |context, args, _| Ok(context.store.rm(args[0], &unescape(args[1])?)?)),
    command("rm-prefix", 1..=1, |context, args, _| Ok(context.store.rm_prefix(args[0])?)),
    command("store-copy", 1..=2, store_copy)
        .partial("a copy has the type of its source; Ceph's accepts another type as a third argument"),
    command("store-crc", 1..=1, store_crc),
    command("compact", 0..=0, |context, _, out| compact(context, None, (None, None), out)),
    command("compact-prefix", 1..=1, |context, args, out| compact(context, Some(args[0]), (None, None), out)),
    command("compact-range", 3..=3, |context, args, out| {
        let (start, end) = (unescape(args[1])?, unescape(args[2])?);
        compact(context, Some(args[0]), (Some(&start), Some(&end)), out)
    }),
    command("stats", 0..=0, stats).partial("RocksDB's text for each column family; Ceph's is JSON"),
];

/// Each command with its support.
pub(super) fn commands() -> Vec<(&'static str, SupportLevel)> {
    let repair = SupportLevel::Partial("a readable database is left unchanged; Ceph's rewrites it");
    COMMANDS.iter().map(|command| (command.name, command.support)).chain([(REPAIR, repair)]).collect()
}

/// All commands, for completions.
pub(super) fn verbs() -> Vec<String> {
    let kinds = ["rocksdb", "bluestore-kv"].map(str::to_owned);
    kinds.into_iter().chain(COMMANDS.iter().map(|command| command.name.to_owned())).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Show {
    Keys,
    Checksums,
    Values,
}

fn list(context: &Context<'_>, args: &[&str], out: &mut dyn Write, show: Show) -> Result<(), Stop> {
    let mut outcome = Ok(());
    let mut first = true;
    context.store.for_each(args.first().copied(), |prefix, key, value| {
        outcome = match context.format {
            Format::Plain => print_entry(out, show, prefix, key, value),
            format => {
                // One entry at a time, because all of them may exceed the memory.
                let start = if std::mem::take(&mut first) { "[" } else { "," };
                let entry = format.render(&described(show, prefix, key, value));
                write!(out, "{start}\n{}", entry.trim_end())
            }
        };
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    if !context.is_plain() {
        writeln!(out, "{}", if first { "[]" } else { "\n]" })?;
    }
    Ok(())
}

/// An entry for scripts.
fn described(show: Show, prefix: &str, key: &[u8], value: &[u8]) -> Value {
    let mut entry = named(prefix, key);
    match show {
        Show::Keys => {}
        Show::Checksums => entry["crc"] = ceph_crc(&[prefix.as_bytes(), key, value]).into(),
        Show::Values => {
            entry["size"] = value.len().into();
            entry["value"] = hex(value).into();
        }
    }
    entry
}

/// A prefix and a key, escaped as in the text output.
fn named(prefix: &str, key: &[u8]) -> Value {
    json!({ "prefix": escape(prefix.as_bytes()), "key": escape(key) })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn print_entry(out: &mut dyn Write, show: Show, prefix: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
    write!(out, "{}\t{}", escape(prefix.as_bytes()), escape(key))?;
    if show == Show::Checksums {
        write!(out, "\t{}", ceph_crc(&[prefix.as_bytes(), key, value]))?;
    }
    writeln!(out)?;
    if show == Show::Values {
        writeln!(out, "{}", hexdump(value))?;
    }
    Ok(())
}

/// Ceph's crc32c with seed 0 and without inversion.
fn ceph_crc(parts: &[&[u8]]) -> u32 {
    !parts.iter().fold(u32::MAX, |crc, part| nacre_types::crc32c::append(crc, part))
}

fn exists(context: &Context<'_>, args: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    let key = args.get(1).copied().unwrap_or_default();
    let found = match args.get(1) {
        Some(key) => context.store.get(args[0], &unescape(key)?)?.is_some(),
        None => {
            let mut found = false;
            context.store.for_each(Some(args[0]), |_, _, _| {
                found = true;
                ControlFlow::Break(())
            })?;
            found
        }
    };
    if context.is_plain() {
        let exists = if found { "exists" } else { "does not exist" };
        writeln!(out, "({}, {}) {exists}", escape(args[0].as_bytes()), escape(&unescape(key)?))?;
    } else {
        let mut answer = named(args[0], &unescape(key)?);
        answer["exists"] = found.into();
        context.format.write_json(out, &answer)?;
    }
    if found { Ok(()) } else { Err(Stop::Absent) }
}

/// The value of a key. If there is none, prints that.
fn value(context: &Context<'_>, args: &[&str], out: &mut dyn Write, gap: &str) -> Result<Vec<u8>, Stop> {
    let key = unescape(args[1])?;
    if context.is_plain() {
        write!(out, "({}, {}){gap}", escape(args[0].as_bytes()), escape(&key))?;
    }
    match context.store.get(args[0], &key)? {
        Some(value) => Ok(value),
        None if !context.is_plain() => {
            let mut answer = named(args[0], &key);
            answer["exists"] = false.into();
            context.format.write_json(out, &answer)?;
            Err(Stop::Absent)
        }
        None => {
            writeln!(out, " does not exist")?;
            Err(Stop::Absent)
        }
    }
}

fn get(context: &Context<'_>, args: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    let value = value(context, args, out, "")?;
    if context.is_plain() {
        writeln!(out)?;
    }
    match args[2..] {
        [] if !context.is_plain() => {
            let entry = described(Show::Values, args[0], &unescape(args[1])?, &value);
            Ok(context.format.write_json(out, &entry)?)
        }
        [] => Ok(writeln!(out, "{}", hexdump(&value))?),
        ["out", ""] => Err(Stop::Failed("output path must not be empty".into())),
        ["out", file] => std::fs::write(file, value).map_err(|e| Stop::Failed(format!("{file}: {e}"))),
        ["out"] => Err(Stop::Usage("expected path to output".into())),
        [other, ..] => Err(Stop::Usage(format!("unrecognized subcommand '{other}'"))),
    }
}

fn crc(context: &Context<'_>, args: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    let value = value(context, args, out, " ")?;
    if !context.is_plain() {
        let mut answer = named(args[0], &unescape(args[1])?);
        answer["crc"] = ceph_crc(&[&value]).into();
        return Ok(context.format.write_json(out, &answer)?);
    }
    Ok(writeln!(out, " crc {}", ceph_crc(&[&value]))?)
}

fn get_size(context: &Context<'_>, args: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    let size = context.store.size()?;
    if !context.is_plain() {
        return get_size_json(context, args, out, &size);
    }
    writeln!(out, "estimated store size: log - {}\nmisc - {}\nsst - {}", size.log, size.misc, size.sst)?;
    writeln!(out, "total - {0}\ntotal: {0}\n{0}", size.total())?;
    match args {
        [] => Ok(()),
        [_] => Err(Stop::Usage(String::new())),
        [prefix, key, ..] => {
            let escaped = (escape(prefix.as_bytes()), escape(&unescape(key)?));
            match context.store.get(prefix, &unescape(key)?)? {
                Some(value) => Ok(writeln!(out, "({},{}) size {} B", escaped.0, escaped.1, value.len())?),
                None => {
                    eprintln!("({},{}) does not exist", escaped.0, escaped.1);
                    Err(Stop::Absent)
                }
            }
        }
    }
}

fn get_size_json(
    context: &Context<'_>,
    args: &[&str],
    out: &mut dyn Write,
    size: &KvSize,
) -> Result<(), Stop> {
    let mut answer = json!({ "log": size.log, "misc": size.misc, "sst": size.sst, "total": size.total() });
    if let [prefix, key, ..] = args {
        let key = unescape(key)?;
        let mut entry = named(prefix, &key);
        let Some(value) = context.store.get(prefix, &key)? else {
            eprintln!("({},{}) does not exist", escape(prefix.as_bytes()), escape(&key));
            return Err(Stop::Absent);
        };
        entry["size"] = value.len().into();
        answer["entry"] = entry;
    } else if !args.is_empty() {
        return Err(Stop::Usage(String::new()));
    }
    Ok(context.format.write_json(out, &answer)?)
}

fn set(context: &Context<'_>, args: &[&str], _: &mut dyn Write) -> Result<(), Stop> {
    let value = match args[2] {
        "ver" => {
            let number: u64 =
                args[3].parse().map_err(|_| Stop::Failed(format!("'{}' is not a number", args[3])))?;
            number.to_le_bytes().to_vec()
        }
        "in" => std::fs::read(args[3])
            .map_err(|e| Stop::Failed(format!("error reading file: {}: {e}", args[3])))?,
        other => return Err(Stop::Usage(format!("unrecognized subcommand '{other}'"))),
    };
    Ok(context.store.set(args[0], &unescape(args[1])?, &value)?)
}

fn store_copy(context: &Context<'_>, args: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    let per_transaction = match args.get(1) {
        None => KEYS_PER_TRANSACTION,
        Some(text) => match text.parse() {
            Ok(number) if number > 0 => number,
            _ => return Err(Stop::Usage(format!("num-keys-per-tx must be a positive number, not '{text}'"))),
        },
    };
    let started = Instant::now();
    let mut printed = Ok(());
    let copied = context.store.copy_to(Path::new(args[0]), per_transaction, |copied| {
        if printed.is_ok() && context.is_plain() {
            printed = writeln!(
                out,
                "ts = {:.3}s, copied {} keys so far ({} B)",
                started.elapsed().as_secs_f64(),
                copied.keys,
                copied.bytes
            );
        }
    })?;
    printed?;
    if !context.is_plain() {
        let answer = json!({
            "keys": copied.keys,
            "transactions": copied.transactions,
            "bytes": copied.bytes,
            "from": context.path.display().to_string(),
            "to": args[0],
            "seconds": started.elapsed().as_secs_f64(),
        });
        return Ok(context.format.write_json(out, &answer)?);
    }
    writeln!(
        out,
        "summary:\n  copied {} keys\n  used {} transactions\n  total size {} B\n  from '{}' to '{}'\n  duration {} seconds",
        copied.keys,
        copied.transactions,
        copied.bytes,
        context.path.display(),
        args[0],
        started.elapsed().as_secs()
    )?;
    Ok(())
}

fn store_crc(context: &Context<'_>, args: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    let crc = context.store.crc()?;
    match context.format {
        Format::Plain => Ok(writeln!(out, "store at '{}' crc {crc}", args[0])?),
        format => Ok(format.write_json(out, &json!({ "path": args[0], "crc": crc }))?),
    }
}

fn compact(
    context: &Context<'_>,
    prefix: Option<&str>,
    range: (Option<&[u8]>, Option<&[u8]>),
    out: &mut dyn Write,
) -> Result<(), Stop> {
    // Only on a terminal: Ceph's program prints nothing.
    let tell = io::IsTerminal::is_terminal(&io::stderr());
    let (before, started) = (context.store.size()?, Instant::now());
    context.store.compact(prefix, range, |prefix| {
        if tell {
            eprintln!("compacting {prefix} …");
        }
    })?;
    let (before, after) = (before.total(), context.store.size()?.total());
    let seconds = started.elapsed().as_secs_f64();
    if tell {
        eprintln!("{before} B before, {after} B now, {seconds:.1} s");
    }
    let answer = json!({ "before_bytes": before, "after_bytes": after, "seconds": seconds });
    Ok(context.format.write_json(out, &answer)?)
}

fn stats(context: &Context<'_>, _: &[&str], out: &mut dyn Write) -> Result<(), Stop> {
    if !context.is_plain() {
        let stats = context.store.stats()?.into_iter();
        let stats: Value = stats.map(|(prefix, text)| json!({ "prefix": prefix, "text": text })).collect();
        return Ok(context.format.write_json(out, &stats)?);
    }
    for (prefix, text) in context.store.stats()? {
        writeln!(out, "db_statistics [{prefix}] {{\n{}\n}}", text.trim_end())?;
    }
    Ok(())
}

/// The bytes in the tool's output: `%` and two hex digits for all but letters, digits and `-._~/`.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Result<Vec<u8>, Stop> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = behind;
            continue;
        }
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|d| u8::from_str_radix(d, 16).ok());
        let at = text.len() - rest.len();
        bytes.push(
            byte.ok_or_else(|| Stop::Failed(format!("invalid escaped string at pos {at} of '{text}'")))?,
        );
        rest = &behind[2..];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_has_each_command_of_the_table() {
        let (_, lines) = USAGE.split_once("Commands:\n").unwrap();
        let mut told: Vec<&str> = lines
            .lines()
            .filter(|line| !line.starts_with("--"))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        let mut known: Vec<&str> = commands().into_iter().map(|(name, _)| name).collect();
        told.sort_unstable();
        known.sort_unstable();
        assert_eq!(told, known);
    }

    #[test]
    fn keys_survive_their_escaping() {
        let all: Vec<u8> = (0..=255).collect();
        assert!(unescape(&escape(&all)).is_ok_and(|bytes| bytes == all));
        assert_eq!(escape(b"a key/%\x00z"), "a%20key/%25%00z");
        for wrong in ["%", "a%2", "%zz", "%+1", "%é"] {
            assert!(matches!(unescape(wrong), Err(Stop::Failed(_))), "{wrong}");
        }
    }

    #[test]
    fn the_format_stands_anywhere() {
        let split = |text: &'static str| split_format(text.split(' ').collect());
        for line in ["--format json a list k", "a list --format=json k", "a list k --format json"] {
            let expected = (vec!["a", "list", "k"], Format::Json);
            assert!(split(line).is_ok_and(|found| found == expected), "{line}");
        }
        assert!(split("a list --formatted").is_ok_and(|(rest, _)| rest.len() == 3));
        for line in ["a list --format xml", "a list --format"] {
            assert!(matches!(split(line), Err(Stop::Usage(_))), "{line}");
        }
    }

    #[test]
    fn entries_are_described_for_scripts() {
        let entry = |show| described(show, "onodes", b"a b", &[1, 0xff]).to_string();
        assert_eq!(entry(Show::Keys), r#"{"prefix":"onodes","key":"a%20b"}"#);
        assert_eq!(entry(Show::Values), r#"{"prefix":"onodes","key":"a%20b","size":2,"value":"01ff"}"#);
        let crc = ceph_crc(&[b"onodes", b"a b", &[1, 0xff]]);
        assert_eq!(entry(Show::Checksums), format!(r#"{{"prefix":"onodes","key":"a%20b","crc":{crc}}}"#));
    }

    #[test]
    fn checksums_are_the_real_programs() {
        // Recorded from ceph-kvstore-tool 16.2 for the value 42 as eight bytes.
        let value = 42_u64.to_le_bytes();
        assert_eq!(ceph_crc(&[&value]), 3_712_195_341);
        assert_eq!(ceph_crc(&[b"onodes", b"k2", &value]), 724_146_292);
    }
}
