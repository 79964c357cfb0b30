//! Parses the command line in crushtool's own syntax: `--opt value` and `--opt=value`, `-` and `_` are equivalent, options with
//! several values, any order.

use super::options::OPTIONS;
use crate::cmd::tool_options::refusal;
use nacre_crush::{BucketMatch, Location, is_valid_name};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};

/// An item to add to the hierarchy.
pub(super) enum ItemChange {
    Add { id: i32, weight: f32, name: String },
    Update { id: i32, weight: f32, name: String },
}

pub(super) enum RuleMode {
    Replicated,
    Simple(String),
}

pub(super) struct NewRule {
    pub(super) name: String,
    pub(super) root: String,
    pub(super) failure_domain: String,
    pub(super) mode: RuleMode,
}

/// What `--test` and `--compare` map and print. Negative numbers mean that the option was not given.
pub(super) struct TestArgs {
    pub(super) min_x: i64,
    pub(super) max_x: i64,
    pub(super) min_rule: i64,
    pub(super) max_rule: i64,
    pub(super) min_rep: i64,
    pub(super) max_rep: i64,
    pub(super) ruleset: i64,
    pub(super) pool_id: i64,
    /// Device and weight from 0 to 1.
    pub(super) weights: Vec<(i64, f32)>,
    pub(super) mappings: bool,
    pub(super) bad_mappings: bool,
    pub(super) statistics: bool,
    pub(super) utilization: bool,
    pub(super) utilization_all: bool,
    pub(super) choose_tries: bool,
    /// Place by a random number generator instead of CRUSH.
    pub(super) simulate: bool,
    /// Whether the figures are also written to files.
    pub(super) csv: bool,
    /// Prefix of the files' names.
    pub(super) csv_prefix: String,
    /// Number of batches that the inputs are divided into for the files.
    pub(super) batches: i64,
}

/// The parsed command line.
#[derive(Default)]
pub(super) struct Args {
    pub(super) help: bool,
    pub(super) help_output: bool,
    pub(super) verbose: bool,
    pub(super) input: Option<String>,
    pub(super) output: Option<String>,
    pub(super) decompile: bool,
    pub(super) compile: Option<String>,
    pub(super) build: bool,
    pub(super) num_osds: i64,
    /// Words that are not options: the layers of `--build`.
    pub(super) rest: Vec<String>,
    /// Tunables to set.
    pub(super) tunables: Vec<(&'static str, u32)>,
    pub(super) item: Option<ItemChange>,
    pub(super) loc: Location,
    pub(super) remove_item: Option<String>,
    pub(super) reweight_item: Option<(String, f32)>,
    pub(super) add_bucket: Option<(String, String)>,
    pub(super) move_item: Option<String>,
    pub(super) reweight: bool,
    pub(super) rebuild_class_roots: bool,
    /// Bucket and class.
    pub(super) set_subtree_class: BTreeMap<String, String>,
    pub(super) reclassify: bool,
    /// Root and class.
    pub(super) reclassify_root: BTreeMap<String, String>,
    /// Indexed by pattern.
    pub(super) reclassify_bucket: BTreeMap<String, BucketMatch>,
    pub(super) create_rule: Option<NewRule>,
    pub(super) device_class: Option<String>,
    pub(super) remove_rule: Option<String>,
    pub(super) dump: bool,
    pub(super) format: Option<String>,
    pub(super) tree: bool,
    pub(super) bucket_tree: bool,
    pub(super) bucket_name: Option<String>,
    pub(super) show_location: Option<i32>,
    /// `--check` with its number, or negative without one.
    pub(super) check_ids: Option<i64>,
    pub(super) test: bool,
    pub(super) tester: TestArgs,
    pub(super) compare: Option<String>,
    nothing_given: bool,
}

impl Default for TestArgs {
    fn default() -> Self {
        Self {
            min_x: -1,
            max_x: -1,
            min_rule: -1,
            max_rule: -1,
            min_rep: -1,
            max_rep: -1,
            ruleset: -1,
            pool_id: -1,
            weights: Vec::new(),
            mappings: false,
            bad_mappings: false,
            statistics: false,
            utilization: false,
            utilization_all: false,
            choose_tries: false,
            simulate: false,
            csv: false,
            csv_prefix: String::new(),
            batches: 1,
        }
    }
}

/// The words that are not parsed yet.
struct Words {
    words: std::iter::Peekable<std::vec::IntoIter<String>>,
    /// The value of `--opt=value`.
    attached: Option<String>,
    /// The option as the user wrote it.
    option: String,
}

impl Words {
    fn value(&mut self) -> Result<String, String> {
        self.attached
            .take()
            .or_else(|| self.words.next())
            .ok_or_else(|| format!("Option {} requires an argument.\n", self.option))
    }

    /// The next value of an option with several values.
    fn more(&mut self, canonical: &str) -> Result<String, String> {
        self.words.next().ok_or_else(|| format!("expecting additional argument to {canonical}"))
    }

    /// The next value. The error does not name the option.
    fn next(&mut self) -> Result<String, String> {
        self.words.next().ok_or_else(|| "expecting additional argument".to_owned())
    }

    fn number(&mut self) -> Result<i64, String> {
        let value = self.value()?;
        value.parse::<i32>().map(i64::from).map_err(|_| format!("The option value '{value}' is invalid"))
    }
}

/// The result of C's `atof`: parses the longest prefix that is a number, otherwise 0.
fn lenient_float(word: &str) -> f32 {
    let word = word.trim_start();
    let longest = (0..=word.len()).rev().filter(|end| word.is_char_boundary(*end));
    longest.into_iter().find_map(|end| word[..end].parse::<f64>().ok()).unwrap_or(0.0) as f32
}

impl Args {
    /// Parses the words, or returns an error text.
    pub(super) fn parse(words: &[OsString]) -> Result<Self, String> {
        let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut args = Args { nothing_given: words.is_empty(), ..Args::default() };
        let mut w = Words { words: words.into_iter().peekable(), attached: None, option: String::new() };
        while let Some(word) = w.words.next() {
            if word == "--" {
                args.rest.extend(w.words.by_ref());
                break;
            }
            let (option, attached) = match word.split_once('=') {
                Some((option, value)) if word.starts_with("--") => {
                    (option.to_owned(), Some(value.to_owned()))
                }
                _ => (word.clone(), None),
            };
            (w.option, w.attached) = (option.clone(), attached);
            let canonical = if option.starts_with("--") { option.replace('_', "-") } else { option };
            if !args.option(&canonical, &mut w)? {
                args.rest.push(word);
            }
        }
        Ok(args)
    }

    /// Parses one option. Returns false if the word is not an option.
    fn option(&mut self, option: &str, w: &mut Words) -> Result<bool, String> {
        let t = &mut self.tester;
        match option {
            "-h" | "--help" => self.help = true,
            "-v" | "--verbose" => self.verbose = true,
            "-i" | "--infn" => self.input = Some(w.value()?),
            "-o" | "--outfn" => self.output = Some(w.value()?),
            "-d" | "--decompile" => {
                self.input = Some(w.value()?);
                self.decompile = true;
            }
            "-c" | "--compile" => self.compile = Some(w.value()?),
            "--enable-unsafe-tunables" => {}
            "--build" => self.build = true,
            "--num-osds" => self.num_osds = w.number()?,
            "--add-item" | "--update-item" => {
                let id = w.number()? as i32;
                let weight = lenient_float(&w.more(option)?);
                let name = w.more(option)?;
                self.item = Some(match option {
                    "--add-item" => ItemChange::Add { id, weight, name },
                    _ => ItemChange::Update { id, weight, name },
                });
            }
            "--loc" => {
                let kind = w.value()?;
                let name = w.more(option)?;
                if !is_valid_name(&kind) {
                    return Err(format!("loc type '{kind}' is not a valid crush name ([A-Za-z0-9_-.]+)"));
                }
                if !is_valid_name(&name) {
                    return Err(format!("loc name '{name}' is not a valid crush name ([A-Za-z0-9_-.]+)"));
                }
                self.loc.insert(kind, name);
            }
            "--remove-item" => self.remove_item = Some(w.value()?),
            "--reweight-item" => {
                let name = w.value()?;
                self.reweight_item = Some((name, lenient_float(&w.more(option)?)));
            }
            // These two take no value after `=`.
            "--add-bucket" if w.attached.is_none() => {
                let name = w.more(option)?;
                self.add_bucket = Some((name, w.more(option)?));
            }
            "--move" if w.attached.is_none() => self.move_item = Some(w.more(option)?),
            "--reweight" => self.reweight = true,
            "--rebuild-class-roots" => self.rebuild_class_roots = true,
            "--set-subtree-class" => {
                let bucket = w.value()?;
                self.set_subtree_class.insert(bucket, w.next()?);
            }
            "--reclassify" => self.reclassify = true,
            "--reclassify-root" => {
                let root = w.value()?;
                self.reclassify_root.insert(root, w.next()?);
            }
            "--reclassify-bucket" => {
                let pattern = w.value()?;
                let (class, default_parent) = (w.next()?, w.next()?);
                let one = BucketMatch { pattern: pattern.clone(), class, default_parent };
                self.reclassify_bucket.insert(pattern, one);
            }
            "--create-simple-rule" | "--create-replicated-rule" => {
                let name = w.value()?;
                let root = w.more(option)?;
                let failure_domain = w.more(option)?;
                let mode = match option {
                    "--create-simple-rule" => RuleMode::Simple(w.more(option)?),
                    _ => RuleMode::Replicated,
                };
                self.create_rule = Some(NewRule { name, root, failure_domain, mode });
            }
            "--device-class" => self.device_class = Some(w.value()?),
            "--remove-rule" => self.remove_rule = Some(w.value()?),
            "--dump" => self.dump = true,
            "-f" | "--format" => self.format = Some(w.value()?),
            "--tree" => self.tree = true,
            "--bucket-tree" => self.bucket_tree = true,
            "-b" | "--bucket-name" => self.bucket_name = Some(w.value()?),
            "--show-location" => self.show_location = Some(w.number()? as i32),
            "--check" => {
                let next_is_number = w.words.peek().is_some_and(|word| word.parse::<i32>().is_ok());
                let given = w.attached.is_some() || next_is_number;
                self.check_ids = Some(if given { w.number()? } else { -1 });
            }
            "-t" | "--test" => self.test = true,
            "--compare" => self.compare = Some(w.value()?),
            "--min-x" => t.min_x = w.number()?,
            "--max-x" => t.max_x = w.number()?,
            "--x" => {
                t.min_x = w.number()?;
                t.max_x = t.min_x;
            }
            "--min-rule" => t.min_rule = w.number()?,
            "--max-rule" => t.max_rule = w.number()?,
            "--rule" => {
                t.min_rule = w.number()?;
                t.max_rule = t.min_rule;
            }
            "--ruleset" => t.ruleset = w.number()?,
            "--min-rep" => t.min_rep = w.number()?,
            "--max-rep" => t.max_rep = w.number()?,
            "--num-rep" => {
                t.min_rep = w.number()?;
                t.max_rep = t.min_rep;
            }
            "--pool-id" => t.pool_id = w.number()?,
            "--batches" => t.batches = w.number()?,
            "-s" | "--simulate" => t.simulate = true,
            "--output-csv" => t.csv = true,
            "--output-name" => t.csv_prefix = format!("{}-", w.value()?),
            "--help-output" => self.help_output = true,
            "-w" | "--weight" => {
                let device = w.number()?;
                t.weights.push((device, lenient_float(&w.more("--weight")?)));
            }
            "--show-mappings" => t.mappings = true,
            "--show-bad-mappings" => t.bad_mappings = true,
            "--show-statistics" => t.statistics = true,
            "--show-utilization" => t.utilization = true,
            "--show-utilization-all" => t.utilization_all = true,
            "--show-choose-tries" => t.choose_tries = true,
            _ => match tunable(option) {
                Some(name) => {
                    // crushtool treats any other word as 1, which is not worth copying.
                    let value = w.number()?;
                    let value =
                        u32::try_from(value).map_err(|_| format!("The option value '{value}' is invalid"))?;
                    self.tunables.push((name, value));
                }
                None => {
                    return match refusal(OPTIONS, option) {
                        Some(why) => Err(format!("{}: {} is refused: {why}", super::ME, w.option)),
                        None => Ok(false),
                    };
                }
            },
        }
        Ok(true)
    }

    /// Checks that the words are consistent. Warnings are written to `err`.
    pub(super) fn check(&self, err: &mut dyn Write) -> Result<(), super::ExitError> {
        let fail = |message: &str| Err(super::ExitError::failed(message));
        if self.nothing_given {
            return fail("crushtool: -h or --help for usage");
        }
        let t = &self.tester;
        let shows = t.mappings
            || t.bad_mappings
            || t.statistics
            || t.utilization
            || t.utilization_all
            || t.choose_tries
            || t.csv;
        if self.test && self.check_ids.is_none() && !shows && self.compare.is_none() {
            warn(err)?;
        }
        if u8::from(self.decompile) + u8::from(self.compile.is_some()) + u8::from(self.build) > 1 {
            return fail("cannot specify more than one of compile, decompile, and build");
        }
        let changes = self.reweight
            || self.rebuild_class_roots
            || !self.tunables.is_empty()
            || self.item.is_some()
            || self.add_bucket.is_some()
            || self.move_item.is_some()
            || self.create_rule.is_some()
            || self.remove_rule.is_some()
            || self.remove_item.is_some()
            || self.reweight_item.is_some()
            || self.reclassify;
        let shown = self.check_ids.is_some()
            || self.test
            || self.tree
            || self.bucket_tree
            || self.dump
            || self.show_location.is_some()
            || self.compare.is_some();
        if !(self.decompile || self.compile.is_some() || self.build || changes || shown) {
            return fail("no action specified; -h for help");
        }
        if !self.build && !self.rest.is_empty() {
            return fail(&format!("unrecognized arguments: [{}]", self.rest.join(",")));
        }
        Ok(())
    }
}

fn warn(err: &mut dyn Write) -> io::Result<()> {
    writeln!(err, "WARNING: no output selected; use --output-csv or --show-X")
}

/// The tunable that `--set-NAME` sets.
fn tunable(option: &str) -> Option<&'static str> {
    Some(match option.strip_prefix("--set-")? {
        "choose-local-tries" => "choose_local_tries",
        "choose-local-fallback-tries" => "choose_local_fallback_tries",
        "choose-total-tries" => "choose_total_tries",
        "chooseleaf-descend-once" => "chooseleaf_descend_once",
        "chooseleaf-vary-r" => "chooseleaf_vary_r",
        "chooseleaf-stable" => "chooseleaf_stable",
        "straw-calc-version" => "straw_calc_version",
        "allowed-bucket-algs" => "allowed_bucket_algs",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_the_table_is_understood_or_refused() {
        for (name, support) in crate::cmd::tool_options::support_rows(OPTIONS) {
            let words = vec!["1".to_owned(); 4].into_iter().peekable();
            let mut words = Words { words, attached: None, option: name.to_owned() };
            let taken = Args::default().option(&name.replace('_', "-"), &mut words);
            match support.is_refused() {
                true => assert!(taken.is_err_and(|why| why.contains(" is refused: ")), "{name}"),
                false => assert_eq!(taken, Ok(true), "{name}"),
            }
        }
    }
}
