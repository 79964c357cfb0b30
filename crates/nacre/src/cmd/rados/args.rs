//! Parses the command line of `rados`: its own options, separate from verbs and their arguments.

use super::RadosFailure;
pub(super) use crate::cmd::output::Format;
use std::path::PathBuf;

/// Everything after the options common to all of Ceph's programs.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Args {
    pub(super) pool: Option<String>,
    pub(super) target_pool: Option<String>,
    pub(super) namespace: String,
    pub(super) target_namespace: Option<String>,
    /// `--all`, unless `--default` overrides it.
    pub(super) all: bool,
    pub(super) locator: String,
    pub(super) target_locator: Option<String>,
    pub(super) format: Format,
    /// `-b`, in bytes.
    pub(super) op_size: Option<u64>,
    /// `-O`, in bytes.
    pub(super) object_size: Option<u64>,
    /// `--striper`: verbs work on striped objects.
    pub(super) striper: bool,
    /// `--stripe-unit`, in bytes.
    pub(super) stripe_unit: Option<u64>,
    /// `--stripe-count`.
    pub(super) stripe_count: Option<u32>,
    pub(super) max_objects: u64,
    pub(super) concurrent: Option<u32>,
    /// `--clients`: sessions that a benchmark opens, each with the same number of operations in flight.
    pub(super) clients: Option<u32>,
    /// `--warm-up`: maximum seconds that a benchmark runs before it measures, or 0 for none.
    pub(super) warm_up: u64,
    /// `--slice`: seconds per slice of a benchmark's curve.
    pub(super) slice: Option<u64>,
    pub(super) offset: u64,
    pub(super) show_time: bool,
    pub(super) no_cleanup: bool,
    pub(super) no_hints: bool,
    pub(super) no_verify: bool,
    pub(super) run_name: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) force_full: bool,
    pub(super) confirmed: bool,
    pub(super) input_file: Option<PathBuf>,
    pub(super) lock_tag: String,
    pub(super) lock_cookie: String,
    pub(super) lock_description: String,
    /// `--lock-duration`, in seconds.
    pub(super) lock_duration: u32,
    /// `--lock-type shared`.
    pub(super) lock_shared: bool,
    pub(super) omap_key_file: Option<PathBuf>,
    pub(super) help: bool,
    pub(super) version: bool,
    /// The verb and its arguments.
    pub(super) words: Vec<String>,
}

/// Options of Ceph's program that Nacre does not support.
const UNSUPPORTED: &[&str] =
    &["--pgid", "-s", "--snap", "--create", "--reuse-bench", "--write-omap", "--write-xattr"];

/// The error of Ceph's program for an invalid `--lock-type`.
const UNKNOWN_LOCK_TYPE: &str = "unknown lock type was specified, aborting\nerror 22: (22) Invalid argument";

impl Args {
    /// Parses the arguments.
    pub(super) fn parse(args: &[String]) -> Result<Args, RadosFailure> {
        let mut out = Args::default();
        let mut default_namespace = false;
        let mut obj_name_file: Option<PathBuf> = None;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--" {
                out.words.extend(args.by_ref().cloned());
                break;
            }
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) if arg.starts_with("--") => (flag, Some(value)),
                _ => (arg.as_str(), None),
            };
            let mut value = || match inline.or_else(|| args.next().map(String::as_str)) {
                Some(value) => Ok(value),
                None => Err(RadosFailure::invalid(format!("Option {flag} requires an argument."))),
            };
            match flag {
                "-p" | "--pool" => out.pool = Some(value()?.to_owned()),
                "--target-pool" => out.target_pool = Some(value()?.to_owned()),
                "-N" | "--namespace" => out.namespace = value()?.to_owned(),
                "--target-nspace" => out.target_namespace = Some(value()?.to_owned()),
                "--all" => out.all = true,
                "--default" => default_namespace = true,
                "--object-locator" => out.locator = value()?.to_owned(),
                "--target-locator" => out.target_locator = Some(value()?.to_owned()),
                "-f" | "--format" => {
                    let name = value()?;
                    out.format = Format::from_name(name)
                        .ok_or_else(|| RadosFailure::invalid(format!("unrecognized format: {name}")))?;
                }
                "-b" | "--block-size" => out.op_size = Some(size("block-size", value()?)?),
                "-O" | "--object-size" => out.object_size = Some(size("object-size", value()?)?),
                "--striper" => out.striper = true,
                "--stripe-unit" => out.stripe_unit = Some(size("stripe-unit", value()?)?),
                "--stripe-count" => out.stripe_count = Some(number("stripe-count", value()?)?),
                "--max-objects" => out.max_objects = number("max-objects", value()?)?,
                "-t" | "--concurrent-ios" => {
                    out.concurrent = Some(number("concurrent-ios", value()?)?);
                }
                "--clients" => out.clients = Some(number("clients", value()?)?),
                "--warm-up" => out.warm_up = seconds(flag, value()?, 0)?,
                "--slice" => out.slice = Some(seconds(flag, value()?, 1)?),
                "--offset" => out.offset = size("offset", value()?)?,
                "--show-time" => out.show_time = true,
                "--no-cleanup" => out.no_cleanup = true,
                "--no-hints" => out.no_hints = true,
                "--no-verify" => out.no_verify = true,
                // Objects have no clones.
                "--write-object" | "--with-clones" => {}
                "--run-name" => out.run_name = Some(value()?.to_owned()),
                "--prefix" => out.prefix = Some(value()?.to_owned()),
                "--force-full" => out.force_full = true,
                "--yes-i-really-really-mean-it" => out.confirmed = true,
                "--input-file" => out.input_file = Some(value()?.into()),
                "--omap-key-file" => out.omap_key_file = Some(value()?.into()),
                "--lock-tag" => out.lock_tag = value()?.to_owned(),
                "--lock-cookie" => out.lock_cookie = value()?.to_owned(),
                "--lock-description" => out.lock_description = value()?.to_owned(),
                "--lock-duration" => out.lock_duration = number("lock-duration", value()?)?,
                "--lock-type" => {
                    out.lock_shared = match value()? {
                        "exclusive" => false,
                        "shared" => true,
                        _ => return Err(RadosFailure::new(UNKNOWN_LOCK_TYPE)),
                    }
                }
                "--obj-name-file" => obj_name_file = Some(value()?.into()),
                "-h" | "--help" => out.help = true,
                "--version" | "-v" => out.version = true,
                flag if UNSUPPORTED.contains(&flag) => return Err(RadosFailure::unsupported(flag)),
                _ => out.words.push(arg.clone()),
            }
        }
        out.all &= !default_namespace;
        if let Some(path) = obj_name_file {
            let name = std::fs::read_to_string(&path)
                .map_err(|e| RadosFailure::new(format!("error reading {}: {e}", path.display())))?;
            let name = name.strip_suffix('\n').unwrap_or(&name).to_owned();
            let at = out.words.len().min(1);
            out.words.insert(at, name);
        }
        Ok(out)
    }
}

pub(in crate::cmd) fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, RadosFailure> {
    text.parse().map_err(|_| {
        RadosFailure::invalid(format!("Invalid value for {what}: expected a number, got '{text}'"))
    })
}

pub(in crate::cmd) fn seconds(flag: &str, text: &str, least: u64) -> Result<u64, RadosFailure> {
    crate::cmd::steady::seconds(flag, text, least)
        .map_err(|error| RadosFailure::invalid(format!("{error:#}")))
}

/// A number of bytes with Ceph's binary suffixes: `4096`, `64K`, `4M`, `1Gi`.
pub(in crate::cmd) fn size(what: &str, text: &str) -> Result<u64, RadosFailure> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = text[digits..].trim_end_matches('B').trim_end_matches('i');
    let shift = match unit {
        "" => Some(0),
        "K" | "k" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    let value = text[..digits].parse::<u64>().ok();
    let bytes = value.zip(shift).and_then(|(value, shift)| value.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        RadosFailure::invalid(format!(
            "Invalid value for {what}: '{text}' is not a number of bytes such as 4096, 64K or 4M"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Args, RadosFailure> {
        Args::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_anywhere_among_the_words() {
        let args =
            parse("-p data bench 10 write -b 4K --concurrent-ios=4 --no-cleanup -O 4M --run-name r").unwrap();
        assert_eq!(args.words, ["bench", "10", "write"]);
        assert_eq!((args.op_size, args.object_size, args.concurrent), (Some(4096), Some(4 << 20), Some(4)));
        assert!(args.no_cleanup && args.pool.as_deref() == Some("data"));
        let args = parse("put -p x obj - -- --file").unwrap();
        assert_eq!(args.words, ["put", "obj", "-", "--file"]);
        assert!(
            parse("ls --all --default").unwrap().words == ["ls"] && !parse("--all --default").unwrap().all
        );
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        assert!(parse("-b 4097x").unwrap_err().text.contains("block-size"));
        assert!(parse("ls -p").unwrap_err().text.contains("-p requires an argument"));
        assert!(parse("ls -f xml").unwrap_err().text.contains("unrecognized format: xml"));
        assert!(parse("--pgid 1.0 ls").unwrap_err().text.contains("--pgid"));
        assert_eq!(parse("-b 18446744073709551615T").unwrap_err().code, 234);
    }
}
