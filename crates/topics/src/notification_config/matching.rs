//! Which configurations apply to a change, by its type and its key.

use super::{KeyFilter, MAX_KEY_RULE_BYTES, NotificationConfig, TopicConfiguration};
use crate::error::{Error, Result};
use crate::event::EventType;
use regex::bytes::{Regex, RegexBuilder};

/// The largest program of a regular expression, in bytes: bounds the memory of a filter and the time of a match.
const MAX_PROGRAM_BYTES: usize = 64 << 10;
/// The most levels of nested groups in a regular expression.
const MAX_NESTING: u32 = 32;

/// The configurations of a bucket with their regular expressions compiled. Immutable and cheap to share.
#[derive(Debug)]
pub struct Matcher {
    configurations: Vec<(TopicConfiguration, Option<Regex>)>,
}

/// Compares the configurations: they determine the regular expressions.
impl PartialEq for Matcher {
    fn eq(&self, other: &Matcher) -> bool {
        self.configurations().eq(other.configurations())
    }
}

/// A configuration that applies to a change according to type and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The configuration. Its [`MetadataTagFilter`](super::MetadataTagFilter) is not yet evaluated.
    pub configuration: &'a TopicConfiguration,
    /// The event's type for this configuration.
    pub event: EventType,
}

impl Matcher {
    /// Compiles the regular expressions of configurations. Fails if [`NotificationConfig::from_xml`] would not accept a
    /// stored expression.
    pub fn new(config: NotificationConfig) -> Result<Matcher> {
        let compiled = config.configurations.into_iter().map(|configuration| {
            let regex = compile(&configuration.key)?;
            Ok((configuration, regex))
        });
        Ok(Matcher { configurations: compiled.collect::<Result<_>>()? })
    }

    /// Whether there are no configurations.
    pub fn is_empty(&self) -> bool {
        self.configurations.is_empty()
    }

    /// All configurations, in their order.
    pub fn configurations(&self) -> impl Iterator<Item = &TopicConfiguration> {
        self.configurations.iter().map(|(configuration, _)| configuration)
    }

    /// The configurations that apply to a change of `key`, in their order. A change may have several types (an expiration
    /// has Ceph's and S3's); a configuration is returned once for each type that it names.
    pub fn candidates<'a>(
        &'a self,
        events: &'a [EventType],
        key: &'a str,
    ) -> impl Iterator<Item = Candidate<'a>> {
        let applies = move |(configuration, regex): &&(TopicConfiguration, Option<Regex>)| {
            let wants =
                |event: &EventType| configuration.events.iter().any(|pattern| pattern.matches(*event));
            events.iter().any(wants) && key_matches(&configuration.key, regex.as_ref(), key)
        };
        self.configurations.iter().filter(applies).flat_map(move |(configuration, _)| {
            let wanted =
                move |event: &&EventType| configuration.events.iter().any(|pattern| pattern.matches(**event));
            events.iter().filter(wanted).map(move |event| Candidate { configuration, event: *event })
        })
    }
}

fn key_matches(filter: &KeyFilter, regex: Option<&Regex>, key: &str) -> bool {
    key.starts_with(&filter.prefix)
        && key.ends_with(&filter.suffix)
        && regex.is_none_or(|regex| regex.is_match(key.as_bytes()))
}

/// The expression that matches whole keys; `None` if there is no rule. It was checked when it was set ([`check_regex`]).
fn compile(filter: &KeyFilter) -> Result<Option<Regex>> {
    let pattern = &filter.regex;
    if pattern.is_empty() {
        return Ok(None);
    }
    if pattern.len() > MAX_KEY_RULE_BYTES {
        return Err(Error::TooLarge { what: "a regular expression in bytes", limit: MAX_KEY_RULE_BYTES });
    }
    build(&format!(r"\A(?:{pattern})\z")).map(Some)
}

/// Compiles an expression for bytes, not characters: `\w`, `\d` and `.` match ASCII and single bytes as in Ceph, and
/// programs stay small.
fn build(pattern: &str) -> Result<Regex> {
    let mut builder = RegexBuilder::new(pattern);
    builder
        .unicode(false)
        .size_limit(MAX_PROGRAM_BYTES)
        .dfa_size_limit(MAX_PROGRAM_BYTES)
        .nest_limit(MAX_NESTING);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => Error::invalid(
            "regex",
            "the regular expression needs too much memory; make its repetitions smaller",
        ),
        error => {
            let text = error.to_string();
            // The lines before the last one quote the expression.
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            Error::invalid("regex", format!("not a regular expression: {reason}"))
        }
    })
}

/// Refuses invalid regular expressions and those that need too much memory.
pub(super) fn check_regex(filter: &KeyFilter) -> Result<()> {
    if filter.regex.len() <= MAX_KEY_RULE_BYTES {
        // The expression is first compiled alone: `a)(b` would be valid within the group.
        build(&filter.regex)?;
    }
    compile(filter).map(drop)
}
