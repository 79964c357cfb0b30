//! The words of the command line, in osdmaptool's own syntax: `--opt value` and `--opt=value`, `-` and `_` alike, words
//! in any order, `--tree` and `--print` without or with a format.

use nacre_types::PoolId;
use std::ffi::OsString;

pub(in crate::cmd) const USAGE: &str = "\
 usage: [--print] <mapfilename>
   --createsimple <numosd> [--clobber] [--pg-bits <bitsperosd>] [--pgp-bits <bits>]
                           creates a relatively generic OSD map with <numosd> devices
   --pgp-bits <bits>       pgp_num map attribute will be shifted by <bits>
   --pg-bits <bits>        pg_num map attribute will be shifted by <bits>
   --with-default-pool     include default pool when creating map
   --clobber               allows osdmaptool to overwrite <mapfilename> if it already exists
   --export-crush <file>   write osdmap's crush map to <file>
   --import-crush <file>   replace osdmap's crush map with <file>
   --health                dump health checks
   --test-map-pgs [--pool <poolid>] [--pg_num <pg_num>] map all pgs
   --test-map-pgs-dump [--pool <poolid>] map all pgs
   --test-map-pgs-dump-all [--pool <poolid>] map all pgs to osds
   --mark-up-in            mark osds up and in (but do not persist)
   --mark-out <osdid>      mark an osd as out (but do not persist)
   --mark-up <osdid>       mark an osd as up (but do not persist)
   --mark-in <osdid>       mark an osd as in (but do not persist)
   --test-map-pg <pgid>    map a pgid to osds
   --test-map-object <objectname> [--pool <poolid>] map an object to osds
   --dump <format>         displays the map in plain text when <format> is 'plain', else in json
   --tree                  displays a tree of the map

Maps are those that 'ceph osd getmap -o <mapfilename>' writes.
";

/// How much `--test-map-pgs` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Sums.
    Sums,
    /// And a line for each PG.
    Each,
    /// And how it came about.
    All,
}

/// How a map is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dump {
    Plain,
    Json,
}

/// All words, understood.
#[derive(Debug)]
pub(super) struct Args {
    pub(super) help: bool,
    pub(super) file: Option<String>,
    pub(super) create_simple: Option<u32>,
    pub(super) with_default_pool: bool,
    pub(super) pg_bits: u32,
    pub(super) pgp_bits: u32,
    pub(super) clobber: bool,
    pub(super) import_crush: Option<String>,
    pub(super) export_crush: Option<String>,
    pub(super) mark_up_in: bool,
    pub(super) mark_out: Vec<u32>,
    pub(super) mark_up: Vec<u32>,
    pub(super) mark_in: Vec<u32>,
    pub(super) pool: Option<PoolId>,
    pub(super) pg_num: Option<u32>,
    pub(super) test_map_object: Option<String>,
    pub(super) test_map_pg: Option<String>,
    pub(super) test_map_pgs: Option<Level>,
    pub(super) dump: Option<Dump>,
    /// The format of `--tree`.
    pub(super) tree: Option<&'static str>,
    pub(super) health: bool,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            help: false,
            file: None,
            create_simple: None,
            with_default_pool: false,
            pg_bits: 6,
            pgp_bits: 6,
            clobber: false,
            import_crush: None,
            export_crush: None,
            mark_up_in: false,
            mark_out: Vec::new(),
            mark_up: Vec::new(),
            mark_in: Vec::new(),
            pool: None,
            pg_num: None,
            test_map_object: None,
            test_map_pg: None,
            test_map_pgs: None,
            dump: None,
            tree: None,
            health: false,
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("The option value '{text}' is invalid"))
}

impl Args {
    /// Understands the words, or says what is wrong with them.
    pub(super) fn parse(words: &[OsString]) -> Result<Args, String> {
        let mut args = Args::default();
        let mut words = words.iter().map(|word| word.to_string_lossy().into_owned());
        let mut only_files = false;
        while let Some(word) = words.next() {
            if only_files || !word.starts_with('-') {
                if args.file.replace(word).is_some() {
                    return Err(
                        "osdmaptool: too many arguments\nosdmaptool: -h or --help for usage".to_owned()
                    );
                }
                continue;
            }
            if word == "--" {
                only_files = true;
                continue;
            }
            let (option, attached) = match word.split_once('=') {
                Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
                None => (word.clone(), None),
            };
            let format = attached.clone();
            let mut value = || {
                attached
                    .clone()
                    .or_else(|| words.next())
                    .ok_or_else(|| format!("Option {option} requires an argument.\n"))
            };
            match option.replace('_', "-").as_str() {
                "-h" | "--help" => args.help = true,
                "-p" | "--print" => args.dump = Some(Dump::Plain),
                "--dump" => args.dump = Some(if value()? == "plain" { Dump::Plain } else { Dump::Json }),
                "--tree" => {
                    args.tree = Some(match format.as_deref() {
                        None | Some("plain" | "") => "plain",
                        Some("json-pretty") => "json-pretty",
                        Some(_) => "json",
                    });
                }
                "--health" => args.health = true,
                "--createsimple" => {
                    let osds: u32 = number(&value()?)?;
                    if osds == 0 || osds > 10_000 {
                        return Err("osdmaptool: osd count must be > 0 and at most 10000".to_owned());
                    }
                    args.create_simple = Some(osds);
                }
                "--with-default-pool" => args.with_default_pool = true,
                "--pg-bits" | "--osd-pg-bits" => args.pg_bits = number(&value()?)?,
                "--pgp-bits" | "--osd-pgp-bits" => args.pgp_bits = number(&value()?)?,
                "--clobber" => args.clobber = true,
                "--import-crush" => args.import_crush = Some(value()?),
                "--export-crush" => args.export_crush = Some(value()?),
                "--mark-up-in" => args.mark_up_in = true,
                "--mark-out" => args.mark_out.push(number(&value()?)?),
                "--mark-up" => args.mark_up.push(number(&value()?)?),
                "--mark-in" => args.mark_in.push(number(&value()?)?),
                "--pool" => args.pool = Some(PoolId(number(&value()?)?)),
                "--pg-num" => args.pg_num = Some(number(&value()?)?),
                "--test-map-object" => args.test_map_object = Some(value()?),
                "--test-map-pg" => args.test_map_pg = Some(value()?),
                "--test-map-pgs" => args.test_map_pgs = args.test_map_pgs.or(Some(Level::Sums)),
                "--test-map-pgs-dump" => args.test_map_pgs = Some(Level::Each),
                "--test-map-pgs-dump-all" => args.test_map_pgs = Some(Level::All),
                _ => {
                    return Err(format!(
                        "osdmaptool: {word} is not offered\nosdmaptool: -h or --help for usage"
                    ));
                }
            }
        }
        Ok(args)
    }

    /// Whether OSDs are marked for what is shown.
    pub(super) fn marks(&self) -> bool {
        self.mark_up_in || !(self.mark_out.is_empty() && self.mark_up.is_empty() && self.mark_in.is_empty())
    }

    /// Whether there is anything to show or write besides the map itself.
    pub(super) fn acts(&self) -> bool {
        self.export_crush.is_some()
            || self.marks()
            || self.test_map_object.is_some()
            || self.test_map_pg.is_some()
            || self.test_map_pgs.is_some()
            || self.dump.is_some()
            || self.tree.is_some()
            || self.health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Args, String> {
        Args::parse(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_stand_in_any_order_and_spelling() {
        let args = parse("--mark_up_in om --test-map-pgs-dump --pool=3 --mark-out 1 --mark-out 2").unwrap();
        assert_eq!((args.file.as_deref(), args.pool), (Some("om"), Some(PoolId(3))));
        assert_eq!((args.test_map_pgs, args.mark_out), (Some(Level::Each), vec![1, 2]));
        assert!(args.mark_up_in);
        let args = parse("--tree=json-pretty om --dump plain").unwrap();
        assert_eq!((args.tree, args.dump), (Some("json-pretty"), Some(Dump::Plain)));
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        assert!(parse("om --upmap out").unwrap_err().contains("--upmap is not offered"));
        assert!(parse("a b").unwrap_err().contains("too many arguments"));
        assert!(parse("om --pool x").unwrap_err().contains("'x' is invalid"));
        assert!(parse("--createsimple").unwrap_err().contains("requires an argument"));
        assert!(parse("--createsimple 0 om").is_err());
    }
}
