//! Converts the words of a `ceph` command line to a command and its destination.

use nacre_types::command::{CommandError, Table, mon_commands, mon_daemon_commands, osd_commands};
use nacre_types::ids::{EntityKind, EntityName};
use nacre_types::{OsdId, PgId};
use serde_json::Value;
use std::path::PathBuf;

/// Ceph's output formats that Nacre supports.
const FORMATS: [&str; 3] = ["plain", "json", "json-pretty"];

/// The destination of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Mon,
    /// `tell mon.a`
    MonDaemon,
    Osd(OsdId),
    /// `tell osd.*`
    AllOsds,
    Pg(PgId),
}

/// The action of a command line.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Help(String),
    Command {
        destination: Destination,
        command: String,
    },
    /// Send a command to the daemon behind an admin socket.
    Daemon {
        socket: AdminSocketRef,
        command: String,
    },
    /// Compact the databases of OSDs.
    Compact(Compact),
    /// `tier advise` for this pool.
    Advise(String),
    /// `tier dirty` for this pool.
    Dirty(String),
    /// Print the status, then lines of the cluster log as they arrive.
    Watch {
        level: String,
        channel: String,
    },
}

/// `osd compact`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Compact {
    /// The OSDs, or `None` for all that are up.
    pub(super) osds: Option<Vec<OsdId>>,
    /// Maximum number of OSDs at a time.
    pub(super) parallel: usize,
}

/// The selection of an admin socket.
#[derive(Debug, PartialEq)]
pub(super) enum AdminSocketRef {
    Path(PathBuf),
    /// The socket in this daemon's configuration.
    OfDaemon(EntityName),
}

/// A parsed command line.
#[derive(Debug, PartialEq)]
pub(super) struct ParsedCommand {
    pub(super) action: Action,
    /// `-f`, except `plain`.
    pub(super) format: Option<String>,
    /// `-i`.
    pub(super) input: Option<PathBuf>,
    /// `-o`.
    pub(super) output: Option<PathBuf>,
    /// `--connect-timeout`, in seconds.
    pub(super) connect_timeout: Option<u32>,
}

/// Why a command line is rejected.
#[derive(Debug, PartialEq)]
pub(super) enum ParseError {
    /// The program's own options are invalid.
    Usage(String),
    /// The words are not a command.
    Command(String),
    /// They are a command of Ceph that Nacre does not have.
    Refused(String),
}

impl ParsedCommand {
    pub(super) fn parse(args: &[String]) -> Result<ParsedCommand, ParseError> {
        let mut words: Vec<String> = Vec::new();
        let (mut format, mut input, mut output, mut connect_timeout) = (None, None, None, None);
        let (mut help, mut version, mut status) = (false, false, false);
        let (mut watch, mut channel, mut admin_daemon) = (None, "cluster".to_owned(), None);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if arg == "--" {
                words.push(arg.clone());
                words.extend(args.by_ref().cloned());
                break;
            }
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) if arg.starts_with("--") => (flag, Some(value)),
                _ => (arg.as_str(), None),
            };
            let mut value = || {
                let value = inline.or_else(|| args.next().map(String::as_str));
                value.ok_or_else(|| ParseError::Usage(format!("argument {flag}: expected one argument")))
            };
            match flag {
                "-f" | "--format" => format = Some(read_format(value()?)?),
                "-i" | "--in-file" => input = Some(PathBuf::from(value()?)),
                "-o" | "--out-file" => output = Some(PathBuf::from(value()?)),
                "--connect-timeout" => {
                    let text = value()?;
                    let seconds = text.parse().ok().filter(|seconds| *seconds > 0);
                    let wrong =
                        || ParseError::Usage(format!("argument --connect-timeout: invalid value: '{text}'"));
                    connect_timeout = Some(seconds.ok_or_else(wrong)?);
                }
                "-s" | "--status" => status = true,
                "-w" | "--watch" | "--watch-info" => watch = Some("info"),
                "--watch-debug" => watch = Some("debug"),
                "--watch-sec" => watch = Some("sec"),
                "--watch-warn" => watch = Some("warn"),
                "--watch-error" => watch = Some("error"),
                "-W" | "--watch-channel" => channel = read_channel(value()?)?,
                "--admin-daemon" => admin_daemon = Some(PathBuf::from(value()?)),
                "-h" | "--help" => help = true,
                "-v" | "--version" => version = true,
                "--verbose" | "--concise" => {}
                _ => words.push(arg.clone()),
            }
        }
        if status && words.is_empty() {
            words.push("status".to_owned());
        }
        let format = format.filter(|format| format != "plain");
        let action = if version {
            Action::Help(format!("nacre version {}\n", env!("CARGO_PKG_VERSION")))
        } else if let (Some(level), true) = (watch, words.is_empty() && !help) {
            Action::Watch { level: level.to_owned(), channel }
        } else if help || words.is_empty() {
            Action::Help(help_for(&words))
        } else if let Some(path) = admin_daemon {
            daemon(AdminSocketRef::Path(path), &words, format.as_deref())?
        } else if words[0] == "daemon" {
            let target = words.get(1).ok_or_else(|| needs_target("daemon"))?;
            let socket = match target.parse::<EntityName>() {
                _ if target.contains('/') => AdminSocketRef::Path(PathBuf::from(target)),
                Ok(entity) => AdminSocketRef::OfDaemon(entity),
                Err(_) => return Err(no_target(target)),
            };
            daemon(socket, &words[2..], format.as_deref())?
        } else if words.len() >= 2 && words[..2].join(" ") == COMPACT {
            Action::Compact(compact(&words[2..])?)
        } else if words.len() >= 2 && words[..2].join(" ") == ADVISE {
            Action::Advise(only_pool(&words[2..], ADVISE_USAGE)?)
        } else if words.len() >= 2 && words[..2].join(" ") == DIRTY {
            Action::Dirty(only_pool(&words[2..], DIRTY_USAGE)?)
        } else {
            command(&words, format.as_deref())?
        };
        Ok(ParsedCommand { action, format, input, output, connect_timeout })
    }
}

fn read_format(text: &str) -> Result<String, ParseError> {
    if FORMATS.contains(&text) {
        return Ok(text.to_owned());
    }
    let choices = FORMATS.map(|format| format!("'{format}'")).join(", ");
    Err(ParseError::Usage(format!("argument -f/--format: invalid choice: '{text}' (choose from {choices})")))
}

fn read_channel(text: &str) -> Result<String, ParseError> {
    const CHANNELS: [&str; 4] = ["cluster", "audit", "cephadm", "*"];
    if CHANNELS.contains(&text) {
        return Ok(text.to_owned());
    }
    let choices = CHANNELS.map(|channel| format!("'{channel}'")).join(", ");
    Err(ParseError::Usage(format!(
        "argument -W/--watch-channel: invalid choice: '{text}' (choose from {choices})"
    )))
}

fn needs_target(word: &str) -> ParseError {
    ParseError::Command(format!("Invalid command: {word} needs a target such as osd.0"))
}

/// A command for the daemon behind a socket: an OSD's or the map authority's own.
fn daemon(socket: AdminSocketRef, words: &[String], format: Option<&str>) -> Result<Action, ParseError> {
    let tables = match &socket {
        AdminSocketRef::OfDaemon(entity) if entity.kind == EntityKind::Mon => {
            [mon_daemon_commands(), mon_daemon_commands()]
        }
        AdminSocketRef::OfDaemon(_) => [osd_commands(), osd_commands()],
        AdminSocketRef::Path(_) => [osd_commands(), mon_daemon_commands()],
    };
    let parsed =
        tables[0].parse_words(words).or_else(|error| tables[1].parse_words(words).map_err(|_| error));
    let mut fields = parsed.map_err(|error| problem(&error))?;
    if let Some(format) = format {
        fields.insert("format".into(), format.into());
    }
    Ok(Action::Daemon { socket, command: Value::Object(fields).to_string() })
}

fn compact(words: &[String]) -> Result<Compact, ParseError> {
    let wrong = |detail: &str| ParseError::Command(format!("Invalid command: {detail}\n{COMPACT_USAGE}"));
    let (mut all, mut osds, mut parallel) = (false, Vec::new(), 1);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word.as_str(), None),
        };
        match flag {
            "--all" | "all" | "osd.*" => all = true,
            "--parallel" => {
                let value = inline.or_else(|| words.next().map(String::as_str)).unwrap_or_default();
                let number = value.parse().ok().filter(|number| (1..=1024).contains(number));
                parallel =
                    number.ok_or_else(|| wrong(&format!("--parallel must be 1 to 1024, not '{value}'")))?;
            }
            osd => osds.push(osd_id(osd)?),
        }
    }
    match (all, osds.is_empty()) {
        (true, true) => Ok(Compact { osds: None, parallel }),
        (false, false) => Ok(Compact { osds: Some(osds), parallel }),
        (true, false) => Err(wrong("--all and OSDs can't be used together")),
        (false, true) => Err(wrong("which OSDs?")),
    }
}

/// The pool, which is the command's only argument.
fn only_pool(words: &[String], usage: &str) -> Result<String, ParseError> {
    match words {
        [pool] if !pool.is_empty() => Ok(pool.clone()),
        [] => Err(ParseError::Command(format!("Invalid command: which pool?\n{usage}"))),
        [_, unused, ..] => {
            Err(ParseError::Command(format!("Invalid command: unused arguments: ['{unused}']\n{usage}")))
        }
        [_] => Err(ParseError::Command(format!("Invalid command: an empty name\n{usage}"))),
    }
}

fn command(words: &[String], format: Option<&str>) -> Result<Action, ParseError> {
    let word = |at: usize| words.get(at).map(String::as_str);
    let (destination, table, words) = match (word(0), word(1)) {
        (Some("tell"), Some(target)) => {
            let rest = words[2..].to_vec();
            match target {
                // Commands of the daemon itself. Other commands belong to the cluster, whichever monitor is addressed.
                mon if mon == "mon" || mon.starts_with("mon.") => {
                    match mon_daemon_commands().parse_words(&rest) {
                        Ok(_) => (Destination::MonDaemon, mon_daemon_commands(), rest),
                        Err(_) => (Destination::Mon, mon_commands(), rest),
                    }
                }
                "osd.*" => (Destination::AllOsds, osd_commands(), rest),
                osd if osd.starts_with("osd.") => (Destination::Osd(osd_id(osd)?), osd_commands(), rest),
                pg => to_pg(pg.parse().map_err(|_| no_target(pg))?, &words[2..]),
            }
        }
        (Some("tell"), None) => return Err(needs_target("tell")),
        (Some("pg"), Some(pg)) if pg.parse::<PgId>().is_ok() => {
            to_pg(pg.parse().map_err(|_| no_target(pg))?, &words[2..])
        }
        _ => (Destination::Mon, mon_commands(), words.to_vec()),
    };
    let mut fields = table.parse_words(&words).map_err(|error| problem(&error))?;
    if let Some(format) = format {
        fields.insert("format".into(), format.into());
    }
    Ok(Action::Command { destination, command: Value::Object(fields).to_string() })
}

/// `query` and similar commands have the PG also as a parameter.
fn to_pg(pg: PgId, verb: &[String]) -> (Destination, &'static Table, Vec<String>) {
    let mut words = verb.to_vec();
    words.insert(words.len().min(1), pg.to_string());
    (Destination::Pg(pg), osd_commands(), words)
}

fn osd_id(text: &str) -> Result<OsdId, ParseError> {
    text.parse().map_err(|_| no_target(text))
}

fn no_target(text: &str) -> ParseError {
    ParseError::Command(format!(
        "Invalid command: '{text}' is not mon, osd.N, osd.* or a placement group such as 2.1f"
    ))
}

/// The error and the usage of the command, with the texts of the `ceph` program.
fn problem(error: &CommandError) -> ParseError {
    match error {
        CommandError::Invalid { detail, usage, .. } => {
            ParseError::Command(format!("Invalid command: {detail}\n{usage}"))
        }
        CommandError::Refused { .. } => ParseError::Refused(error.to_string()),
        other => ParseError::Command(other.to_string()),
    }
}

/// Commands that this program composes of several commands of daemons.
pub(in crate::cmd) const CLIENT_SIDE_COMMANDS: [&str; 3] = [COMPACT, ADVISE, DIRTY];
const COMPACT: &str = "osd compact";
const ADVISE: &str = "tier advise";
const ADVISE_USAGE: &str = "tier advise <pool>";
const DIRTY: &str = "tier dirty";
const DIRTY_USAGE: &str = "tier dirty <pool>";
const COMPACT_USAGE: &str = "osd compact --all|<osd.N>... [--parallel N]";

/// General usage, then the commands that start with the words.
pub(super) fn help_for(words: &[String]) -> String {
    let begins = |prefix: &str| prefix.split(' ').zip(words).all(|(have, word)| have == word);
    let signatures = mon_commands().signatures().iter();
    let chosen = signatures.filter(|signature| begins(&signature.prefix));
    let mut lines: String =
        chosen.map(|signature| format!("{signature}\n    {}\n", signature.help)).collect();
    if !words.is_empty() && begins(ADVISE) {
        lines.push_str(&format!(
            "{ADVISE_USAGE}\n    predict the hit rate of a cache pool for other sizes and promotion parameters\n"
        ));
    }
    if !words.is_empty() && begins(DIRTY) {
        lines.push_str(&format!(
            "{DIRTY_USAGE}\n    list the objects of a cache pool with cache_dirty_log that may have changes the base pool lacks\n"
        ));
    }
    if !words.is_empty() && begins(COMPACT) {
        lines.push_str(&format!(
            "{COMPACT_USAGE}\n    compact the databases of OSDs while they run, N at a time\n"
        ));
    }
    if words.is_empty() { format!("{USAGE}{lines}") } else { lines }
}

const USAGE: &str = "\
usage: nacre ceph [-h] [-c CEPHCONF] [-i INPUT_FILE] [-o OUTPUT_FILE] [-k KEYRING] [-m ADDRESS]
                  [--id CLIENT_ID] [--name CLIENT_NAME] [--cluster CLUSTER] [-s] [-f {plain,json,json-pretty}]
                  [--connect-timeout SECONDS] [--version] COMMAND...

  -i, --in-file FILE    input file, '-' for standard input
  -o, --out-file FILE   output file, '-' for raw data on standard output
  -s, --status          show cluster status
  -f, --format FORMAT   plain, json or json-pretty

  -w, --watch           show cluster status and follow the cluster log; --watch-debug, --watch-info, --watch-sec,
                        --watch-warn, --watch-error choose its least level
  -W, --watch-channel CHANNEL   which lines to follow: cluster, audit or * (default: cluster)
  --admin-daemon PATH   ask the daemon behind an admin socket

Commands of daemons: 'tell osd.N COMMAND', 'tell osd.* COMMAND', 'tell mon.a COMMAND', 'pg PGID query'; from the
daemon's machine, whether or not the cluster works: 'daemon osd.N COMMAND', 'daemon PATH COMMAND'; COMMAND 'help'
lists them. 'osd compact --all|OSD... [--parallel N]' compacts the databases of OSDs while they run, N at a time.
'tier advise POOL' predicts the hit rate of a cache pool for other sizes and promotion parameters.
'tier dirty POOL' lists the objects of a cache pool with cache_dirty_log that its base pool may lack changes of.

Monitor commands:
";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<ParsedCommand, ParseError> {
        ParsedCommand::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn sent(text: &str) -> (Destination, String) {
        match plan(text).unwrap().action {
            Action::Command { destination, command } => (destination, command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_go_to_whom_they_are_for() {
        assert_eq!(sent("-s"), (Destination::Mon, r#"{"prefix":"status"}"#.into()));
        assert_eq!(
            sent("osd tree -f json"),
            (Destination::Mon, r#"{"prefix":"osd tree","format":"json"}"#.into())
        );
        let query = r#"{"prefix":"query","pgid":"2.1f"}"#;
        let pg = Destination::Pg("2.1f".parse().unwrap());
        assert_eq!(sent("pg 2.1f query"), (pg, query.into()));
        assert_eq!(sent("tell 2.1f query"), (pg, query.into()));
        assert_eq!(
            sent("tell osd.3 version"),
            (Destination::Osd(OsdId(3)), r#"{"prefix":"version"}"#.into())
        );
        assert_eq!(sent("tell osd.* perf dump").0, Destination::AllOsds);
        assert_eq!(sent("tell mon.a version").0, Destination::MonDaemon);
        assert_eq!(sent("tell mon.a config show").0, Destination::MonDaemon);
        assert_eq!(sent("tell mon.a osd tree").0, Destination::Mon);
        assert_eq!(sent("pg map 2.1f").1, r#"{"prefix":"pg map","pgid":"2.1f"}"#);
    }

    #[test]
    fn compaction_names_its_osds() {
        let of = |text: &str| match plan(text).unwrap().action {
            Action::Compact(compact) => compact,
            other => panic!("{other:?}"),
        };
        assert_eq!(of("osd compact --all --parallel 4"), Compact { osds: None, parallel: 4 });
        assert!(help_for(&["osd".into(), "compact".into()]).starts_with(COMPACT_USAGE));
        let two = Some(vec![OsdId(1), OsdId(4)]);
        assert_eq!(of("osd compact osd.1 4 --parallel=2"), Compact { osds: two, parallel: 2 });
        for wrong in ["", "--all osd.1", "--all --parallel 0", "--parallel 2", "osd.x", "--all --parallel"] {
            let parsed = plan(&format!("osd compact {wrong}"));
            assert!(matches!(parsed, Err(ParseError::Command(_))), "{wrong}: {parsed:?}");
        }
    }

    #[test]
    fn advice_is_of_a_pool() {
        assert_eq!(plan("tier advise cache").unwrap().action, Action::Advise("cache".into()));
        for wrong in ["tier advise", "tier advise cache more"] {
            assert!(matches!(plan(wrong), Err(ParseError::Command(_))), "{wrong}");
        }
        assert!(help_for(&["tier".into()]).starts_with(ADVISE_USAGE));
    }

    #[test]
    fn dirty_objects_are_of_a_pool() {
        assert_eq!(plan("tier dirty cache").unwrap().action, Action::Dirty("cache".into()));
        for wrong in ["tier dirty", "tier dirty cache more"] {
            assert!(matches!(plan(wrong), Err(ParseError::Command(_))), "{wrong}");
        }
        assert!(help_for(&["tier".into(), "dirty".into()]).starts_with(DIRTY_USAGE));
    }

    #[test]
    fn daemons_are_asked_by_name_or_path() {
        let asked = |text: &str| match plan(text).unwrap().action {
            Action::Daemon { socket, command } => (socket, command),
            other => panic!("{other:?}"),
        };
        let of = |name: &str| AdminSocketRef::OfDaemon(name.parse().unwrap());
        assert_eq!(asked("daemon osd.3 perf dump osd").0, of("osd.3"));
        assert_eq!(asked("daemon osd.3 perf dump osd").1, r#"{"prefix":"perf dump","logger":"osd"}"#);
        assert_eq!(asked("daemon mon.a mon_status -f json").1, r#"{"prefix":"mon_status","format":"json"}"#);
        let path = AdminSocketRef::Path("/run/x.asok".into());
        assert_eq!(asked("daemon /run/x.asok mon_status"), (path, r#"{"prefix":"mon_status"}"#.into()));
        assert_eq!(asked("--admin-daemon /run/x.asok status").1, r#"{"prefix":"status"}"#);
        assert!(matches!(plan("daemon osd.3 nonesuch"), Err(ParseError::Command(_))));
        assert!(matches!(plan("daemon"), Err(ParseError::Command(_))));
    }

    #[test]
    fn the_log_is_followed_from_a_level_on() {
        let watch = |text: &str| plan(text).unwrap().action;
        let expected =
            |level: &str, channel: &str| Action::Watch { level: level.into(), channel: channel.into() };
        assert_eq!(watch("-w"), expected("info", "cluster"));
        assert_eq!(watch("--watch-warn -W audit"), expected("warn", "audit"));
        assert!(matches!(plan("-w -W x"), Err(ParseError::Usage(_))));
    }

    #[test]
    fn options_may_stand_anywhere() {
        let plan = plan("osd -i in setcrushmap --out-file=out --connect-timeout 5 -f json-pretty").unwrap();
        assert_eq!((plan.input, plan.output), (Some("in".into()), Some("out".into())));
        assert_eq!((plan.connect_timeout, plan.format.as_deref()), (Some(5), Some("json-pretty")));
    }

    #[test]
    fn errors_are_worded_as_cephs() {
        let Err(ParseError::Command(text)) = plan("osd pool create") else { panic!() };
        assert!(text.starts_with(
            "Invalid command: missing required parameter pool(<pool>)\nosd pool create <pool> [<pg_num:int>]"
        ));
        let Err(ParseError::Command(text)) = plan("osd frob") else { panic!() };
        assert!(text.starts_with("no valid command found; 10 closest matches:\nosd stat\n"));
        let refused = "command 'osd pool mksnap' is not supported: there are no snapshots";
        assert_eq!(plan("osd pool mksnap p s"), Err(ParseError::Refused(refused.into())));
        assert!(
            matches!(plan("status -f xml"), Err(ParseError::Usage(text)) if text.contains("invalid choice: 'xml'"))
        );
        assert!(matches!(plan("tell"), Err(ParseError::Command(_))));
        assert!(matches!(plan("tell osd.x version"), Err(ParseError::Command(_))));
    }

    #[test]
    fn help_lists_the_commands_that_begin_so() {
        let Action::Help(text) = plan("osd pool -h").unwrap().action else { panic!() };
        assert!(text.starts_with("osd pool ls [detail]\n    list pools\n") && !text.contains("osd tree"));
        let Action::Help(text) = plan("").unwrap().action else { panic!() };
        assert!(text.starts_with("usage: nacre ceph") && text.contains("\nosd tree "));
    }
}
