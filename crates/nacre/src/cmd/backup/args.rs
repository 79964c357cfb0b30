//! The command line of `nacre backup`.

use super::USAGE;
use anyhow::{Result, anyhow, bail};
use nacre_client::Layout;

/// The maximum block size. A write of a block is one request to each object that it touches.
const MAX_BLOCK_BYTES: u64 = 64 << 20;
/// The maximum number of bytes in flight, all of which are in memory.
const MAX_IN_FLIGHT_BYTES: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Create,
    Append,
    Cat,
    List,
    Info,
    Verify,
    Remove,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Args {
    pub(super) command: Command,
    /// Empty only for `ls`.
    pub(super) volume: String,
    /// `None` means standard input or output.
    pub(super) file: Option<String>,
    pub(super) pool: String,
    pub(super) namespace: String,
    pub(super) resume: bool,
    pub(super) force: bool,
    pub(super) json: bool,
    pub(super) segment: Option<usize>,
    pub(super) block_size: u32,
    pub(super) depth: usize,
    pub(super) layout: Layout,
}

/// A number of bytes: `4096`, `64K`, `4M`, `1G`.
pub(in crate::cmd) fn size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl Args {
    /// Parses the arguments. `None` if help is requested.
    pub(super) fn parse(args: &[String]) -> Result<Option<Args>> {
        let mut words = Vec::new();
        let (mut pool, mut namespace) = ("backup".to_owned(), String::new());
        let (mut resume, mut force, mut json, mut segment) = (false, false, false, None);
        let (mut block_size, mut depth) = (4_u64 << 20, 8);
        let (mut unit, mut count, mut object) = (4_u64 << 20, 4, 32_u64 << 20);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) if arg.starts_with("--") => (flag, Some(value)),
                _ => (arg.as_str(), None),
            };
            let mut value = || {
                inline
                    .or_else(|| args.next().map(String::as_str))
                    .ok_or_else(|| anyhow!("{flag} needs a value\n{USAGE}"))
            };
            let bytes =
                |text: &str| size(text).ok_or_else(|| anyhow!("{flag}: '{text}' is not a number of bytes"));
            let number = |text: &str| text.parse().map_err(|_| anyhow!("{flag}: '{text}' is not a number"));
            match flag {
                "-h" | "--help" => return Ok(None),
                "-p" | "--pool" => pool = value()?.to_owned(),
                "-N" | "--namespace" => namespace = value()?.to_owned(),
                "--resume" => resume = true,
                "--force" => force = true,
                "--json" => json = true,
                "-f" | "--format" => json = is_json(value()?)?,
                "--segment" => segment = Some(number(value()?)?),
                "--block-size" => block_size = bytes(value()?)?,
                "--depth" => depth = number(value()?)?,
                "--stripe-unit" => unit = bytes(value()?)?,
                "--stripe-count" => count = number(value()?)?,
                "--object-size" => object = bytes(value()?)?,
                "-" => words.push(arg.clone()),
                other if other.starts_with('-') => bail!("unknown argument '{other}'\n{USAGE}"),
                _ => words.push(arg.clone()),
            }
        }
        let command = match words.first().map(String::as_str) {
            Some("create") => Command::Create,
            Some("append") => Command::Append,
            Some("cat") => Command::Cat,
            Some("ls") => Command::List,
            Some("info") => Command::Info,
            Some("verify") => Command::Verify,
            Some("rm") => Command::Remove,
            Some(other) => bail!("unknown command '{other}'\n{USAGE}"),
            None => return Ok(None),
        };
        let operands = match command {
            Command::List => 0..=0,
            Command::Create | Command::Append | Command::Cat => 1..=2,
            _ => 1..=1,
        };
        if !operands.contains(&(words.len() - 1)) {
            bail!("wrong number of arguments\n{USAGE}");
        }
        if !(4096..=MAX_BLOCK_BYTES).contains(&block_size) {
            bail!("--block-size must be from 4096 to {MAX_BLOCK_BYTES} bytes");
        }
        if !(1..=256).contains(&depth) {
            bail!("--depth must be from 1 to 256");
        }
        if block_size * depth as u64 > MAX_IN_FLIGHT_BYTES {
            bail!("{depth} blocks of {block_size} bytes in flight exceed {MAX_IN_FLIGHT_BYTES} bytes");
        }
        let part =
            |size: u64| u32::try_from(size).map_err(|_| anyhow!("{size} bytes are too large for one object"));
        let layout = Layout::new(part(unit)?, u32::try_from(count)?, part(object)?)?;
        let mut words = words.into_iter().skip(1);
        Ok(Some(Args {
            command,
            volume: words.next().unwrap_or_default(),
            file: words.next().filter(|file| file != "-"),
            pool,
            namespace,
            resume,
            force,
            json,
            segment,
            block_size: block_size as u32,
            depth,
            layout,
        }))
    }
}

/// Whether `--format` asks for JSON.
pub(in crate::cmd) fn is_json(format: &str) -> Result<bool> {
    match format {
        "plain" => Ok(false),
        "json" | "json-pretty" => Ok(true),
        other => bail!("--format: '{other}' is not plain, json or json-pretty"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Args>> {
        Args::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_anywhere() {
        let args =
            parse("create --pool=p v -N n - --block-size 64K --resume --stripe-count 2").unwrap().unwrap();
        assert_eq!((args.command, &*args.volume, args.file), (Command::Create, "v", None));
        assert_eq!((&*args.pool, &*args.namespace, args.block_size), ("p", "n", 65536));
        assert!(args.resume && args.layout.stripe_count() == 2);
        assert!(parse("ls --format json").unwrap().unwrap().json && parse("ls -f xml").is_err());
        assert_eq!(parse("cat v out").unwrap().unwrap().file.as_deref(), Some("out"));
        assert!(parse("").unwrap().is_none() && parse("ls --help").unwrap().is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "ls v",
            "info",
            "verify a b",
            "burn v",
            "create v --block-size 1",
            "create v --depth 0",
            "create v --depth x",
            "create v --depth 256 --block-size 64M",
            "create v --object-size 5M",
            "create v --pool",
            "create v --fast",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(
            [size("4M"), size("1gib"), size("12"), size("x"), size("1T")],
            [Some(4 << 20), Some(1 << 30), Some(12), None, None]
        );
    }
}
