//! The XML document of notification configurations: S3's, with Ceph's filters.

use super::{
    KeyFilter, MAX_CONFIGURATIONS, MAX_EVENT_PATTERNS, MAX_FILTER_RULE_BYTES, MAX_FILTER_RULES,
    MAX_KEY_RULE_BYTES, METADATA_PREFIX, MetadataTagFilter, NotificationConfig, TopicConfiguration, check_id,
    matching,
};
use crate::arn::TopicArn;
use crate::error::{Error, Result, quoted};
use crate::event::EventPattern;
use crate::xml::{self, Element, Writer};
use nacre_types::hash::ceph_str_hash_rjenkins;

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
const ROOT: &str = "NotificationConfiguration";
/// S3's destinations other than topics.
const OTHER_DESTINATIONS: [&str; 5] = [
    "QueueConfiguration",
    "CloudFunctionConfiguration",
    "LambdaFunctionConfiguration",
    "EventBridgeConfiguration",
    "CloudFunction",
];

impl NotificationConfig {
    /// Parses the document of `PUT ?notification`. It replaces all configurations; an empty one removes them.
    ///
    /// A configuration without patterns of event types has [`EventPattern::DEFAULT`]. A configuration without an id gets
    /// one that is derived from its content. Unknown elements are refused, so that no filter is ignored.
    pub fn from_xml(document: &[u8]) -> Result<NotificationConfig> {
        let root = xml::parse(document)?;
        if root.name != ROOT {
            return Err(Error::xml(format!("the root element is {}, not {ROOT}", quoted(&root.name))));
        }
        let mut config = NotificationConfig::default();
        for child in &root.children {
            match child.name.as_str() {
                "TopicConfiguration" => {
                    if config.configurations.len() == MAX_CONFIGURATIONS {
                        let what = "the number of TopicConfigurations";
                        return Err(Error::TooLarge { what, limit: MAX_CONFIGURATIONS });
                    }
                    let made = configuration(child, &config)?;
                    config.configurations.push(made);
                }
                name if OTHER_DESTINATIONS.contains(&name) => {
                    return Err(Error::invalid(name, "only topics take events: use TopicConfiguration"));
                }
                _ => return Err(root.unexpected(child)),
            }
        }
        Ok(config)
    }

    /// The document of `GET ?notification`, with all configurations or only the one with the id `id`.
    pub fn to_xml(&self, id: Option<&str>) -> String {
        let shown =
            self.configurations.iter().filter(|configuration| id.is_none_or(|id| configuration.id == id));
        let mut document = Writer::new();
        document.element_in_namespace(ROOT, NAMESPACE, |root| {
            for configuration in shown {
                root.element("TopicConfiguration", |part| write(part, configuration));
            }
        });
        document.finish()
    }
}

fn write(part: &mut Writer, configuration: &TopicConfiguration) {
    part.text("Id", &configuration.id).text("Topic", &configuration.topic.to_string());
    let (key, attributes) = (&configuration.key, &configuration.attributes);
    if *key != KeyFilter::default() || !attributes.is_empty() {
        let key_rules = [("prefix", &key.prefix), ("suffix", &key.suffix), ("regex", &key.regex)];
        let key_rules = key_rules.into_iter().filter(|(_, value)| !value.is_empty());
        let metadata =
            attributes.metadata.iter().map(|(name, value)| (format!("{METADATA_PREFIX}{name}"), value));
        part.element("Filter", |filter| {
            rules(filter, "S3Key", key_rules.map(|(name, value)| (name.to_owned(), value)));
            rules(filter, "S3Metadata", metadata);
            rules(filter, "S3Tags", attributes.tags.iter().map(|(name, value)| (name.clone(), value)));
        });
    }
    for event in &configuration.events {
        part.text("Event", &event.to_string());
    }
}

fn rules<'a>(filter: &mut Writer, name: &str, rules: impl Iterator<Item = (String, &'a String)>) {
    let mut rules = rules.peekable();
    if rules.peek().is_none() {
        return;
    }
    filter.element(name, |part| {
        for (name, value) in rules {
            part.element("FilterRule", |rule| _ = rule.text("Name", &name).text("Value", value));
        }
    });
}

fn configuration(element: &Element, earlier: &NotificationConfig) -> Result<TopicConfiguration> {
    let (mut id, mut topic, mut events, mut filter) = (None, None, Vec::new(), None);
    for child in &element.children {
        match child.name.as_str() {
            "Id" => once(&mut id, child, child.value()?.trim())?,
            // S3's XML calls it Topic; SDKs call it TopicArn.
            "Topic" | "TopicArn" => once(&mut topic, child, child.value()?.trim())?,
            "Event" => {
                let event: EventPattern = child.value()?.trim().parse()?;
                if !events.contains(&event) {
                    events.push(event);
                }
                if events.len() > MAX_EVENT_PATTERNS {
                    return Err(Error::TooLarge { what: "the number of Events", limit: MAX_EVENT_PATTERNS });
                }
            }
            "Filter" => once(&mut filter, child, child)?,
            _ => return Err(element.unexpected(child)),
        }
    }
    let topic = topic.ok_or(Error::Missing("Topic"))?.parse::<TopicArn>()?;
    if events.is_empty() {
        events = EventPattern::DEFAULT.to_vec();
    }
    let (key, attributes) = filter.map(filters).transpose()?.unwrap_or_default();
    let mut made = TopicConfiguration { id: String::new(), topic, events, key, attributes };
    made.id = match id.filter(|id| !id.is_empty()) {
        Some(id) => id.to_owned(),
        None => assigned_id(&made, earlier),
    };
    check_id(&made.id)?;
    if earlier.get(&made.id).is_some() {
        return Err(Error::invalid("Id", format!("{} is there twice", quoted(&made.id))));
    }
    Ok(made)
}

/// Sets `slot` from an element that may occur only once.
fn once<T>(slot: &mut Option<T>, child: &Element, value: T) -> Result<()> {
    if slot.replace(value).is_some() {
        return Err(Error::xml(format!("{} is there twice", child.name)));
    }
    Ok(())
}

/// The id of a configuration that has none in the request: a hash of its content, so that setting the same document again
/// changes nothing. A number is appended if another configuration has that id.
fn assigned_id(made: &TopicConfiguration, earlier: &NotificationConfig) -> String {
    let mut text = Writer::new();
    write(&mut text, made);
    let base = format!("notif-{:08x}", ceph_str_hash_rjenkins(text.finish().as_bytes()));
    let mut id = base.clone();
    let mut number = 1;
    while earlier.get(&id).is_some() {
        number += 1;
        id = format!("{base}-{number}");
    }
    id
}

fn filters(element: &Element) -> Result<(KeyFilter, MetadataTagFilter)> {
    let (mut key, mut attributes) = (None, MetadataTagFilter::default());
    let (mut has_metadata, mut has_tags) = (None, None);
    for child in &element.children {
        match child.name.as_str() {
            "S3Key" => once(&mut key, child, key_filter(child)?)?,
            "S3Metadata" => {
                once(&mut has_metadata, child, ())?;
                attributes.metadata = pairs(child, metadata_name)?;
            }
            "S3Tags" => {
                once(&mut has_tags, child, ())?;
                attributes.tags = pairs(child, |name| Ok(name.to_owned()))?;
            }
            "S3Zones" => return Err(Error::invalid("S3Zones", "there are no zones to filter by")),
            _ => return Err(element.unexpected(child)),
        }
    }
    Ok((key.unwrap_or_default(), attributes))
}

/// The name and the value of a filter rule.
fn rule<'a>(filter: &Element, element: &'a Element) -> Result<(&'a str, &'a str)> {
    if element.name != "FilterRule" {
        return Err(filter.unexpected(element));
    }
    let (mut name, mut value) = (None, None);
    for child in &element.children {
        match child.name.as_str() {
            "Name" => once(&mut name, child, child.value()?.trim())?,
            "Value" => once(&mut value, child, child.value()?)?,
            "Exclude" => return Err(Error::invalid("Exclude", "rules that exclude are not supported")),
            _ => return Err(element.unexpected(child)),
        }
    }
    let missing = |name: &str| Error::xml(format!("a FilterRule has no {name}"));
    Ok((name.ok_or_else(|| missing("Name"))?, value.ok_or_else(|| missing("Value"))?))
}

fn key_filter(element: &Element) -> Result<KeyFilter> {
    let (mut prefix, mut suffix, mut regex) = (None, None, None);
    for child in &element.children {
        let (name, value) = rule(element, child)?;
        if value.len() > MAX_KEY_RULE_BYTES {
            return Err(Error::TooLarge { what: "a rule for keys in bytes", limit: MAX_KEY_RULE_BYTES });
        }
        let slot = match name.to_ascii_lowercase().as_str() {
            "prefix" => &mut prefix,
            "suffix" => &mut suffix,
            "regex" => &mut regex,
            _ => {
                let reason = format!("{} is not one of prefix, suffix, regex", quoted(name));
                return Err(Error::invalid("S3Key", reason));
            }
        };
        if slot.replace(value.to_owned()).is_some() {
            return Err(Error::invalid("S3Key", format!("{} is there twice", quoted(name))));
        }
    }
    let filter = KeyFilter {
        prefix: prefix.unwrap_or_default(),
        suffix: suffix.unwrap_or_default(),
        regex: regex.unwrap_or_default(),
    };
    matching::check_regex(&filter)?;
    Ok(filter)
}

/// Parses rules that are pairs; `name_of` converts a rule's name.
fn pairs(element: &Element, name_of: impl Fn(&str) -> Result<String>) -> Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for child in &element.children {
        let (name, value) = rule(element, child)?;
        if name.len().max(value.len()) > MAX_FILTER_RULE_BYTES {
            let what = "a rule for metadata or tags in bytes";
            return Err(Error::TooLarge { what, limit: MAX_FILTER_RULE_BYTES });
        }
        if pairs.len() == MAX_FILTER_RULES {
            let what = "the number of rules for metadata or tags";
            return Err(Error::TooLarge { what, limit: MAX_FILTER_RULES });
        }
        let name = name_of(name)?;
        if pairs.iter().any(|(earlier, _)| *earlier == name) {
            return Err(Error::invalid(&element.name, format!("{} is there twice", quoted(&name))));
        }
        pairs.push((name, value.to_owned()));
    }
    Ok(pairs)
}

fn metadata_name(name: &str) -> Result<String> {
    let lower = name.to_ascii_lowercase();
    match lower.strip_prefix(METADATA_PREFIX).filter(|rest| !rest.is_empty()) {
        Some(rest) => Ok(rest.to_owned()),
        None => {
            let reason = format!("{} does not begin with {METADATA_PREFIX}", quoted(name));
            Err(Error::invalid("S3Metadata", reason))
        }
    }
}
