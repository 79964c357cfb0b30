//! The part of the command line that all of Ceph's programs share: entity, cluster, and options by name.

use crate::error::{Error, Result};
use crate::options::{self, OptionType};
use nacre_types::ids::{EntityKind, EntityName};
use std::fmt;
use std::path::PathBuf;

/// The kind of program. It determines the default entity and the meaning of `-i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramKind {
    /// A daemon of this kind; `-i` sets its id.
    Daemon(EntityKind),
    /// A tool, `client.admin` by default; the tool itself handles `-i` (`ceph -i FILE`).
    Client,
}

/// Options by name, in order. Secrets print as dots.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OptionSettings(pub Vec<(String, String)>);

impl OptionSettings {
    /// Adds a setting. The last one of a name counts.
    pub fn push(&mut self, pair: (String, String)) {
        self.0.push(pair);
    }
}

impl fmt::Debug for OptionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(name, value)| (name, options::redacted(name, value))))
            .finish()
    }
}

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The entity that the program runs as.
    pub entity: EntityName,
    /// The cluster's name.
    pub cluster: String,
    /// `-c FILE`.
    pub conf: Option<PathBuf>,
    /// Options by name. The last one of a name counts.
    pub options: OptionSettings,
    /// The same from `CEPH_ARGS`.
    pub env: OptionSettings,
    /// Arguments that are not shared by all programs: verbs, their arguments and flags, in order.
    pub rest: Vec<String>,
}

#[derive(Default)]
struct Parsed {
    name: Option<EntityName>,
    id: Option<String>,
    cluster: Option<String>,
    conf: Option<PathBuf>,
    options: Vec<(String, String)>,
    rest: Vec<String>,
}

/// Parses the arguments after the program's name, and `ceph_args`, the value of `CEPH_ARGS`. Supports `-c`, `--conf`, `-n`,
/// `--name`, `--id`, `--user`, `-i` (daemons), `-m`, `-k`, `--keyring`, `--cluster`, and every option of the table as
/// `--option-name value` or `--option_name=value`; a switch may have no value, or be `--no-option`. Everything from `--` on,
/// and all other arguments, are left in `rest`.
pub fn parse_argv(program: ProgramKind, args: &[String], ceph_args: Option<&str>) -> Result<Invocation> {
    let env = parse(program, &split_args(ceph_args.unwrap_or_default())?)?;
    let line = parse(program, args)?;
    let kind = match program {
        ProgramKind::Daemon(kind) => kind,
        ProgramKind::Client => EntityKind::Client,
    };
    let entity = |parsed: &Parsed| match (&parsed.name, &parsed.id) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(id)) => Some(EntityName::new(kind, id.clone())),
        (None, None) => None,
    };
    let default_id = if kind == EntityKind::Mon { "" } else { "admin" };
    Ok(Invocation {
        entity: entity(&line).or_else(|| entity(&env)).unwrap_or_else(|| EntityName::new(kind, default_id)),
        cluster: line.cluster.or(env.cluster).unwrap_or_else(|| "ceph".to_owned()),
        conf: line.conf.or(env.conf),
        options: OptionSettings(line.options),
        env: OptionSettings(env.options),
        rest: if env.rest.is_empty() { line.rest } else { [env.rest, line.rest].concat() },
    })
}

fn parse(program: ProgramKind, args: &[String]) -> Result<Parsed> {
    let mut out = Parsed::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            out.rest.push(arg.clone());
            out.rest.extend(args.by_ref().cloned());
            break;
        }
        let (flag, inline) = match arg.split_once('=') {
            Some((flag, value)) if arg.starts_with("--") => (flag, Some(value.to_owned())),
            _ => (arg.as_str(), None),
        };
        let mut value = || {
            inline
                .clone()
                .or_else(|| args.next().cloned())
                .ok_or_else(|| Error::Usage(format!("{flag} needs a value")))
        };
        match flag {
            "-c" | "--conf" => out.conf = Some(PathBuf::from(value()?)),
            "-n" | "--name" => {
                let text = value()?;
                out.name = Some(text.parse().map_err(|e| Error::Usage(format!("{flag}: {e}")))?);
            }
            "--id" | "--user" => out.id = Some(value()?),
            "-i" if matches!(program, ProgramKind::Daemon(_)) => out.id = Some(value()?),
            "--cluster" => out.cluster = Some(value()?),
            "-m" | "--mon-host" | "--mon_host" => out.options.push(("mon_host".to_owned(), value()?)),
            "-k" | "--keyring" => out.options.push(("keyring".to_owned(), value()?)),
            _ => match named_option(flag, inline.as_deref(), &mut args)? {
                Some(pair) => out.options.push(pair),
                None => out.rest.push(arg.clone()),
            },
        }
    }
    Ok(out)
}

/// Parses `flag` as an option of the table, with its value from `inline` or the next argument.
fn named_option(
    flag: &str,
    inline: Option<&str>,
    args: &mut std::slice::Iter<'_, String>,
) -> Result<Option<(String, String)>> {
    let Some(name) = flag.strip_prefix("--") else { return Ok(None) };
    if let Some(positive) = name.strip_prefix("no-").or_else(|| name.strip_prefix("no_"))
        && inline.is_none()
        && let Some(spec) = options::find(positive).filter(|spec| spec.ty == OptionType::Bool)
    {
        return Ok(Some((spec.name.to_owned(), "false".to_owned())));
    }
    let Some(spec) = options::find(name) else { return Ok(None) };
    let value = match inline {
        Some(value) => value.to_owned(),
        None if spec.ty == OptionType::Bool => {
            let next = args.as_slice().first().filter(|next| spec.canonical(next).is_ok());
            if next.is_some() {
                args.next();
            }
            next.map_or_else(|| "true".to_owned(), String::clone)
        }
        None => args.next().cloned().ok_or_else(|| Error::Usage(format!("{flag} needs a value")))?,
    };
    spec.canonical(&value)?;
    Ok(Some((spec.name.to_owned(), value)))
}

/// Splits a text into arguments at blanks, with quotes and backslashes as in a shell.
pub fn split_args(text: &str) -> Result<Vec<String>> {
    let mut out = Vec::new();
    let mut current: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\\', Some('"') | None) => match chars.next() {
                Some(escaped) => current.get_or_insert_default().push(escaped),
                None => return Err(Error::Usage("backslash at the end of the arguments".to_owned())),
            },
            (c, Some(_)) => current.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                current.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => out.extend(current.take()),
            (c, None) => current.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(Error::Usage("quotation mark without its pair in the arguments".to_owned()));
    }
    out.extend(current);
    Ok(out)
}
