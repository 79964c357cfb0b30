//! `nacre rados`: the `rados` program's verbs, options, output and exit codes.
//!
//! Extensions: `put-tree DIR [PREFIX]` and `get-tree DIR [PREFIX]` store a directory's files as objects named by their relative
//! path, and fetch them. Benchmarks print the client's CPU time per operation.

pub(super) mod args;
mod bench;
mod cache;
pub(super) mod formatting;
mod lock;
mod objects;
mod pools;
mod striped;
pub(super) mod transfer;
mod tree;
mod watch;

use super::session;
use args::Args;
use nacre_client::{Cluster, Error, IoCtx, NetworkThread, block_on};
use nacre_common::config::Invocation;
use nacre_types::errno::Errno;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// An error for the user, and the exit code.
#[derive(Debug)]
pub(crate) struct RadosFailure {
    pub(crate) text: String,
    pub(crate) code: u8,
}

/// `-EINVAL` as an exit code, as in Ceph's program for values that it can't parse.
const EXIT_INVALID: u8 = 234;

impl RadosFailure {
    pub(in crate::cmd) fn new(text: impl Into<String>) -> RadosFailure {
        RadosFailure { text: text.into(), code: 1 }
    }

    pub(in crate::cmd) fn invalid(text: impl Into<String>) -> RadosFailure {
        RadosFailure { text: text.into(), code: EXIT_INVALID }
    }

    fn unsupported(what: &str) -> RadosFailure {
        let errno = Errno::ENOTSUP;
        RadosFailure::new(format!("{what} is not supported by this release\nerror {}: {errno}", errno.0))
    }

    fn usage() -> RadosFailure {
        RadosFailure::new(USAGE)
    }
}

/// `DOING pool/object: (2) No such file or directory`, with details that the number does not contain.
fn failed(doing: impl std::fmt::Display) -> impl FnOnce(Error) -> RadosFailure {
    move |error| RadosFailure::new(format!("{doing}: {}", reason(&error)))
}

fn reason(error: &Error) -> String {
    match error {
        Error::Refused(errno) => errno.to_string(),
        Error::NoSuchPool(_) | Error::Blocklisted => error.errno().to_string(),
        other => format!("{} ({other})", other.errno()),
    }
}

/// Writes to standard output. A closed pipe ends the program quietly.
pub(in crate::cmd) fn out(text: impl AsRef<[u8]>) -> Result<(), RadosFailure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|e| RadosFailure::new(format!("error writing to stdout: {e}"))),
    }
}

/// Runs the program with the arguments after `nacre rados`.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(RadosFailure { text, code }) => {
            if !text.is_empty() {
                eprintln!("{text}");
            }
            ExitCode::from(code)
        }
    }
}

fn run(args: Vec<OsString>) -> Result<(), RadosFailure> {
    let invocation = session::parse(args).map_err(RadosFailure::new)?;
    let args = Args::parse(&invocation.rest)?;
    if args.help {
        return out(USAGE);
    }
    if args.version {
        return out(format!("nacre version {}\n", env!("CARGO_PKG_VERSION")));
    }
    let Some((verb, operands)) = args.words.split_first() else {
        return Err(RadosFailure::new("rados: -h or --help for usage"));
    };
    let found = if args.striper { striped::command(verb) } else { command(verb) };
    if found.is_none() && command(verb).is_some() {
        return Err(RadosFailure::new(format!(
            "rados: '{verb}' does not work on striped objects (--striper)"
        )));
    }
    let Some(command) = found else {
        let errno = Errno::EINVAL;
        let text = format!("unrecognized command {verb}; -h or --help for usage\nerror {}: {errno}", errno.0);
        return Err(RadosFailure::new(text));
    };
    let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
    if !command.operands.contains(&operands.len()) {
        return Err(RadosFailure::usage());
    }
    if command.needs_pool && args.pool.is_none() {
        return Err(match verb.as_str() {
            "ls" => RadosFailure::new("either pool name or pg id needs to be specified"),
            _ => RadosFailure::usage(),
        });
    }
    let cluster = session::connect(&invocation)
        .map_err(|e| RadosFailure::new(format!("couldn't connect to cluster: {e}")))?;
    let pool = match args.pool.as_deref().filter(|_| command.needs_pool || command.takes_pool) {
        Some(name) => Some(open_pool(&cluster, name, &args)?),
        None => None,
    };
    let context = Context { invocation: &invocation, cluster: &cluster, pool, args: &args };
    let result = (command.run)(&context, &operands);
    cluster.shut_down();
    result
}

fn open_pool(cluster: &Cluster, name: &str, args: &Args) -> Result<IoCtx, RadosFailure> {
    let pool =
        block_on(cluster.open_pool(name)).map_err(failed(format_args!("error opening pool {name}")))?;
    Ok(pool.with_namespace(&args.namespace).with_locator(&args.locator).with_full_try())
}

/// The inputs of a verb.
struct Context<'a> {
    invocation: &'a Invocation,
    cluster: &'a Cluster,
    pool: Option<IoCtx>,
    args: &'a Args,
}

impl Context<'_> {
    fn pool(&self) -> &IoCtx {
        self.pool.as_ref().expect("invariant: the table says that the verb needs a pool")
    }

    /// The same pool through a separate session, which ends with the cluster's handle.
    fn another_session(&self, network: &Arc<NetworkThread>) -> Result<(Cluster, IoCtx), RadosFailure> {
        let cluster = session::connect_on(network, self.invocation)
            .map_err(|e| RadosFailure::new(format!("couldn't connect to cluster: {e}")))?;
        let pool = open_pool(&cluster, self.pool().pool_name(), self.args)?;
        Ok((cluster, pool))
    }

    /// `pool/object`, as in messages.
    fn name(&self, object: &str) -> String {
        format!("{}/{object}", self.pool().pool_name())
    }

    /// `-b`, or Ceph's default of 4 MiB.
    fn op_size(&self) -> u64 {
        self.args.op_size.filter(|size| *size > 0).unwrap_or(4 << 20)
    }

    /// Maximum size of an object on OSDs, according to this client's configuration.
    fn max_object_size(&self) -> u64 {
        let configured = self.cluster.option("osd_max_object_size").and_then(|text| text.parse().ok());
        configured.unwrap_or(128 << 20)
    }
}

type Run = fn(&Context<'_>, &[&str]) -> Result<(), RadosFailure>;

struct Command {
    operands: std::ops::RangeInclusive<usize>,
    needs_pool: bool,
    takes_pool: bool,
    run: Run,
}

fn command(verb: &str) -> Option<Command> {
    const MANY: usize = usize::MAX;
    let in_pool =
        |least, most, run| Some(Command { operands: least..=most, needs_pool: true, takes_pool: true, run });
    let global = |least, most, run| {
        Some(Command { operands: least..=most, needs_pool: false, takes_pool: false, run })
    };
    match verb {
        "lspools" => global(0, 0, pools::list_pools),
        "df" => Some(Command { operands: 0..=0, needs_pool: false, takes_pool: true, run: pools::df }),
        "purge" => global(1, 1, pools::purge),
        "ls" => in_pool(0, 1, pools::list_objects),
        "get" => in_pool(2, 2, transfer::get),
        "put" => in_pool(2, 2, transfer::put),
        "append" => in_pool(2, 2, transfer::append),
        "put-tree" => in_pool(1, 2, tree::put),
        "get-tree" => in_pool(1, 2, tree::get),
        "stat" => in_pool(1, 1, objects::stat),
        "stat2" => in_pool(1, 1, objects::stat2),
        "touch" => in_pool(1, 2, objects::touch),
        "truncate" => in_pool(2, 2, objects::truncate),
        "create" => in_pool(1, 1, objects::create),
        "rm" => in_pool(1, MANY, objects::remove),
        "cp" => in_pool(1, 2, objects::copy),
        "setxattr" => in_pool(2, 3, objects::set_xattr),
        "getxattr" => in_pool(2, 2, objects::get_xattr),
        "rmxattr" => in_pool(2, 2, objects::rm_xattr),
        "listxattr" => in_pool(1, 1, objects::list_xattr),
        "setomapval" => in_pool(1, 3, objects::omap::set_value),
        "getomapval" => in_pool(1, 3, objects::omap::get_value),
        "rmomapkey" => in_pool(1, 2, objects::omap::rm_key),
        "clearomap" => in_pool(1, MANY, objects::omap::clear),
        "listomapkeys" => in_pool(1, 1, objects::omap::list_keys),
        "listomapvals" => in_pool(1, 1, objects::omap::list_values),
        "getomapheader" => in_pool(1, 2, objects::omap::get_header),
        "setomapheader" => in_pool(2, 2, objects::omap::set_header),
        "set-alloc-hint" => in_pool(3, 3, objects::set_alloc_hint),
        "mapext" => in_pool(1, 1, objects::map_extents),
        "lock" => in_pool(2, 4, lock::lock),
        "listwatchers" => in_pool(1, 1, watch::list_watchers),
        "watch" => in_pool(1, 1, watch::watch),
        "notify" => in_pool(2, 2, watch::notify),
        "bench" => in_pool(2, 2, bench::bench),
        "cleanup" => in_pool(0, 0, bench::cleanup),
        "cache-flush" => in_pool(1, 1, cache::flush),
        "cache-try-flush" => in_pool(1, 1, cache::try_flush),
        "cache-evict" => in_pool(1, 1, cache::evict),
        "cache-flush-evict-all" => in_pool(0, 0, cache::flush_evict_all),
        "cache-try-flush-evict-all" => in_pool(0, 0, cache::try_flush_evict_all),
        _ => None,
    }
}

pub(super) const USAGE: &str = include_str!("rados/usage.txt");

/// The verbs in the help text.
pub(super) fn verbs() -> Vec<String> {
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let mut verbs: Vec<String> =
        USAGE.lines().filter_map(first).filter(|word| command(word).is_some()).collect();
    verbs.dedup();
    verbs
}
