//! Parses the command line in osdmaptool's own syntax: `--opt value` and `--opt=value`, `-` and `_` are equivalent, any order,
//! `--tree` and `--print` with or without a format.

use super::ME;
use super::options::OPTIONS;
use crate::cmd::formatter::DumpFormat;
use crate::cmd::tool_options::refusal;
use nacre_common::config::{Invocation, ProgramKind, parse_argv};
use nacre_crush::weight_from_f32;
use nacre_types::PoolId;
use std::ffi::OsString;

/// Maximum number of OSDs of a new map.
const MAX_OSDS: u32 = 10_000;

/// The level of detail of `--test-map-pgs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapPgsDetail {
    /// Sums.
    Sums,
    /// Also a line for each PG.
    Each,
    /// Also how each placement was computed.
    All,
}

/// The output format of a map or a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisplayFormat {
    /// As text.
    Plain,
    /// In one of Ceph's formats.
    As(DumpFormat),
}

impl DisplayFormat {
    /// The format with this name, or JSON if there is none.
    fn from_name(name: &str) -> DisplayFormat {
        match name {
            "" | "plain" => DisplayFormat::Plain,
            name => DisplayFormat::As(DumpFormat::from_name(name).unwrap_or(DumpFormat::Json)),
        }
    }
}

/// A new map to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapSource {
    /// With this many OSDs.
    Simple(u32),
    /// With the OSDs in ceph.conf.
    Conf,
}

/// `--upmap` and `--upmap-cleanup`.
#[derive(Debug)]
pub(super) struct UpmapArgs {
    /// File for the commands, or `-` for standard output.
    pub(super) file: String,
    /// Whether entries are also computed.
    pub(super) balance: bool,
    pub(super) max: usize,
    pub(super) deviation: u32,
    pub(super) pools: Vec<String>,
    pub(super) active: bool,
    pub(super) aggressive: bool,
    pub(super) retries: u64,
}

/// The parsed command line.
#[derive(Debug)]
pub(super) struct Args {
    pub(super) help: bool,
    pub(super) file: Option<String>,
    /// Options common to all programs, and those of ceph.conf.
    pub(super) invocation: Invocation,
    pub(super) create: Option<MapSource>,
    pub(super) with_default_pool: bool,
    pub(super) pg_bits: u32,
    pub(super) pgp_bits: u32,
    pub(super) clobber: bool,
    pub(super) import_crush: Option<String>,
    pub(super) export_crush: Option<String>,
    pub(super) mark_up_in: bool,
    pub(super) mark_out: Option<u32>,
    pub(super) mark_up: Option<u32>,
    pub(super) mark_in: Option<u32>,
    pub(super) pool: Option<PoolId>,
    pub(super) pg_num: Option<u32>,
    pub(super) test_map_object: Option<String>,
    pub(super) test_map_pg: Option<String>,
    pub(super) test_map_pgs: Option<MapPgsDetail>,
    pub(super) test_random: bool,
    pub(super) test_crush: bool,
    /// OSDs and their CRUSH weights (in 16.16 format, and as printed).
    pub(super) adjust_crush_weight: Vec<(u32, u32, f32)>,
    pub(super) clear_temp: bool,
    pub(super) clean_temps: bool,
    pub(super) upmap_cleanup: bool,
    pub(super) upmap: UpmapArgs,
    pub(super) save: bool,
    /// First and last map in a folder.
    pub(super) range: (Option<i64>, Option<i64>),
    pub(super) dump: Option<DisplayFormat>,
    pub(super) tree: Option<DisplayFormat>,
    pub(super) health: bool,
}

impl Args {
    fn new(invocation: Invocation) -> Args {
        Args {
            help: false,
            file: None,
            invocation,
            create: None,
            with_default_pool: false,
            pg_bits: 6,
            pgp_bits: 6,
            clobber: false,
            import_crush: None,
            export_crush: None,
            mark_up_in: false,
            mark_out: None,
            mark_up: None,
            mark_in: None,
            pool: None,
            pg_num: None,
            test_map_object: None,
            test_map_pg: None,
            test_map_pgs: None,
            test_random: false,
            test_crush: false,
            adjust_crush_weight: Vec::new(),
            clear_temp: false,
            clean_temps: false,
            upmap_cleanup: false,
            upmap: UpmapArgs {
                file: "-".to_owned(),
                balance: false,
                max: 10,
                deviation: 5,
                pools: Vec::new(),
                active: false,
                aggressive: true,
                retries: 100,
            },
            save: false,
            range: (None, None),
            dump: None,
            tree: None,
            health: false,
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("The option value '{text}' is invalid"))
}

/// Why a command line is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UsageError {
    /// Only the message is printed.
    MessageOnly(String),
    /// The usage follows the message.
    WithUsage(String),
}

impl From<String> for UsageError {
    fn from(text: String) -> UsageError {
        UsageError::MessageOnly(text)
    }
}

/// The words that are not parsed yet, and the current option.
struct Words {
    words: std::vec::IntoIter<String>,
    option: String,
    attached: Option<String>,
}

impl Words {
    fn value(&mut self) -> Result<String, String> {
        let value = self.attached.take().or_else(|| self.words.next());
        value.ok_or_else(|| format!("Option {} requires an argument.\n", self.option))
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        number(&self.value()?)
    }
}

impl Args {
    /// Parses the words, or returns the error.
    pub(super) fn parse(words: &[OsString]) -> Result<Args, UsageError> {
        let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let ceph_args = std::env::var("CEPH_ARGS").ok();
        let invocation = parse_argv(ProgramKind::Client, &words, ceph_args.as_deref())
            .map_err(|error| format!("{ME}: {error}"))?;
        let rest = invocation.rest.clone();
        let mut args = Args::new(invocation);
        let mut words = Words { words: rest.into_iter(), option: String::new(), attached: None };
        let mut only_files = false;
        while let Some(word) = words.words.next() {
            if word == "--" && !only_files {
                only_files = true;
            } else if only_files || !word.starts_with('-') {
                if args.file.replace(word).is_some() {
                    return Err(UsageError::WithUsage(format!("{ME}: too many arguments")));
                }
            } else {
                let (option, attached) = match word.split_once('=') {
                    Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
                    None => (word.clone(), None),
                };
                let canonical = option.replace('_', "-");
                (words.option, words.attached) = (option, attached);
                if !(args.option(&canonical, &mut words)? || args.more_options(&canonical, &mut words)?) {
                    let text = match refusal(OPTIONS, &canonical) {
                        Some(why) => format!("{ME}: {word} is refused: {why}"),
                        None => format!("{ME}: {word} is not an option"),
                    };
                    return Err(UsageError::WithUsage(text));
                }
            }
        }
        Ok(args)
    }

    /// Parses an option that creates, marks or shows a map. Returns false if the word is not one.
    fn option(&mut self, option: &str, words: &mut Words) -> Result<bool, UsageError> {
        match option {
            "-h" | "--help" => self.help = true,
            "-p" | "--print" => self.dump = Some(DisplayFormat::Plain),
            "--dump" => {
                let format = words.attached.take().or_else(|| words.words.next()).unwrap_or_default();
                self.dump = Some(DisplayFormat::from_name(&format));
            }
            "--tree" => {
                self.tree = Some(DisplayFormat::from_name(words.attached.as_deref().unwrap_or_default()))
            }
            "--health" => self.health = true,
            "--create-from-conf" => self.create = Some(MapSource::Conf),
            "--createsimple" => {
                let osds: i64 = words.number()?;
                if osds <= 0 {
                    return Err(UsageError::MessageOnly(format!("{ME}: osd count must be > 0")));
                }
                let osds = u32::try_from(osds).ok().filter(|osds| *osds <= MAX_OSDS);
                let osds = osds.ok_or_else(|| format!("{ME}: osd count must be at most {MAX_OSDS}"))?;
                self.create = Some(MapSource::Simple(osds));
            }
            "--with-default-pool" => self.with_default_pool = true,
            "--pg-bits" | "--osd-pg-bits" => self.pg_bits = words.number()?,
            "--pgp-bits" | "--osd-pgp-bits" => self.pgp_bits = words.number()?,
            "--clobber" => self.clobber = true,
            "--import-crush" => self.import_crush = Some(words.value()?),
            "--export-crush" => self.export_crush = Some(words.value()?),
            "--mark-up-in" => self.mark_up_in = true,
            "--mark-out" => self.mark_out = Some(words.number()?),
            "--mark-up" => self.mark_up = Some(words.number()?),
            "--mark-in" => self.mark_in = Some(words.number()?),
            "--clear-temp" => self.clear_temp = true,
            "--clean-temps" => self.clean_temps = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses an option that tests or balances. Returns false if the word is not one.
    fn more_options(&mut self, option: &str, words: &mut Words) -> Result<bool, UsageError> {
        match option {
            "--pool" => self.pool = Some(PoolId(words.number()?)),
            "--pg-num" => self.pg_num = u32::try_from(words.number::<i64>()?).ok(),
            "--test-map-object" => self.test_map_object = Some(words.value()?),
            "--test-map-pg" => self.test_map_pg = Some(words.value()?),
            "--test-map-pgs" => self.test_map_pgs = self.test_map_pgs.or(Some(MapPgsDetail::Sums)),
            "--test-map-pgs-dump" => self.test_map_pgs = Some(MapPgsDetail::Each),
            "--test-map-pgs-dump-all" => self.test_map_pgs = Some(MapPgsDetail::All),
            "--test-random" => self.test_random = true,
            "--test-crush" => self.test_crush = true,
            "--range-first" => self.range.0 = Some(words.number()?),
            "--range-last" => self.range.1 = Some(words.number()?),
            "--adjust-crush-weight" => self.adjust_crush_weight = adjustments(&words.value()?)?,
            "--save" => self.save = true,
            "--upmap-cleanup" => {
                self.upmap.file = words.value()?;
                self.upmap_cleanup = true;
            }
            "--upmap" => {
                self.upmap.file = words.value()?;
                self.upmap.balance = true;
            }
            "--upmap-max" => self.upmap.max = words.number()?,
            "--upmap-deviation" => {
                let deviation: i64 = words.number()?;
                let deviation = u32::try_from(deviation).ok().filter(|deviation| *deviation >= 1);
                let refuse = || UsageError::WithUsage(format!("{ME}: upmap-deviation must be >= 1"));
                self.upmap.deviation = deviation.ok_or_else(refuse)?;
            }
            "--upmap-pool" => self.upmap.pools.push(words.value()?),
            "--upmap-active" => self.upmap.active = true,
            "--osd-calc-pg-upmaps-aggressively" => {
                self.upmap.aggressive = match words.attached.take().as_deref() {
                    None | Some("true" | "1" | "yes" | "on") => true,
                    Some("false" | "0" | "no" | "off") => false,
                    Some(other) => return Err(format!("The option value '{other}' is invalid").into()),
                };
            }
            "--osd-calc-pg-upmaps-local-fallback-retries" => self.upmap.retries = words.number()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether upmap entries are requested.
    pub(super) fn needs_upmap(&self) -> bool {
        self.upmap_cleanup || self.upmap.balance
    }

    /// Whether there is anything to show or write besides the map itself.
    pub(super) fn has_action(&self) -> bool {
        self.export_crush.is_some()
            || self.test_crush
            || !self.adjust_crush_weight.is_empty()
            || self.needs_upmap()
            || self.test_map_object.is_some()
            || self.test_map_pg.is_some()
            || self.test_map_pgs.is_some()
            || self.dump.is_some()
            || self.tree.is_some()
            || self.health
    }
}

/// `OSD:WEIGHT[,OSD:WEIGHT…]`.
fn adjustments(text: &str) -> Result<Vec<(u32, u32, f32)>, UsageError> {
    let mut adjustments = Vec::new();
    for part in text.split(',') {
        let (osd, weight) = part.split_once(':').ok_or_else(|| {
            UsageError::WithUsage(format!("{ME}: use ':' as separator of osd id and its weight"))
        })?;
        let (osd, shown): (u32, f32) = (number(osd)?, number(weight)?);
        let weight = weight_from_f32(shown).map_err(|_| format!("The option value '{weight}' is invalid"))?;
        adjustments.push((osd, weight, shown));
    }
    Ok(adjustments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Args, UsageError> {
        Args::parse(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_stand_in_any_order_and_spelling() {
        let args = parse("--mark_up_in om --test-map-pgs-dump --pool=3 --mark-out 1 --mark-out 2").unwrap();
        assert_eq!((args.file.as_deref(), args.pool), (Some("om"), Some(PoolId(3))));
        assert_eq!((args.test_map_pgs, args.mark_out), (Some(MapPgsDetail::Each), Some(2)));
        assert!(args.mark_up_in);
        let args = parse("--tree=json-pretty om --dump plain").unwrap();
        assert_eq!(
            (args.tree, args.dump),
            (Some(DisplayFormat::As(DumpFormat::JsonPretty)), Some(DisplayFormat::Plain))
        );
        let args =
            parse("om --dump yaml --adjust-crush-weight 1:0.5,2:3 -c conf --upmap - --upmap_max=3").unwrap();
        assert_eq!(args.dump, Some(DisplayFormat::As(DumpFormat::Json)));
        assert_eq!(args.adjust_crush_weight, [(1, 0x8000, 0.5), (2, 0x3_0000, 3.0)]);
        assert_eq!((args.upmap.balance, args.upmap.max), (true, 3));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let refused = |text: &str| match parse(text).unwrap_err() {
            UsageError::MessageOnly(text) | UsageError::WithUsage(text) => text,
        };
        assert!(refused("om --nonsense out").contains("--nonsense is not an option"));
        assert!(refused("a b").contains("too many arguments"));
        assert!(refused("om --pool x").contains("'x' is invalid"));
        assert!(refused("--createsimple").contains("requires an argument"));
        assert!(refused("--createsimple 0 om").contains("must be > 0"));
        assert!(refused("om --upmap-deviation 0").contains("must be >= 1"));
        assert!(refused("om --adjust-crush-weight 1").contains("use ':'"));
        assert!(refused("om --adjust-crush-weight 1:-2").contains("invalid"));
    }

    #[test]
    fn every_option_of_the_table_is_understood() {
        for (name, support) in crate::cmd::tool_options::support_rows(OPTIONS) {
            // An option of all programs.
            let known = name == "--conf";
            let mut words =
                Words { words: vec!["1:1".to_owned()].into_iter(), option: String::new(), attached: None };
            let mut args = Args::new(parse_argv(ProgramKind::Client, &[], None).unwrap());
            let taken = [Args::option, Args::more_options]
                .into_iter()
                .any(|take| take(&mut args, &name.replace('_', "-"), &mut words) != Ok(false));
            assert_eq!(known || taken, !support.is_refused(), "{name}");
        }
    }
}
