//! The topic API: SNS's query protocol, as awscli and boto3 use it.
//!
//! A request is a form that is posted to `/`; a reply is an XML document. Parsing a request checks only its form. The
//! gateway checks the signature before, and the permission ([`Request::permission`]) afterwards.

mod response;

pub use response::{
    create_topic, delete_topic, error, get_topic, get_topic_attributes, list_topics, set_topic_attributes,
};

use crate::arn::TopicArn;
use crate::endpoint::PushEndpoint;
use crate::error::{Error, Result, quoted};
use crate::names;
use std::collections::BTreeMap;
use std::fmt;

/// The largest form, in bytes.
pub const MAX_FORM_BYTES: usize = 256 << 10;
/// The most fields of a form.
const MAX_FIELDS: usize = 256;
/// The number of topics in one reply of ListTopics, as in SNS.
pub const LIST_PAGE: usize = 100;
/// The prefix of the names of attribute fields.
const ATTRIBUTES: &str = "Attributes.entry.";

/// The actions of this API.
pub const ACTIONS: [&str; 6] =
    ["CreateTopic", "DeleteTopic", "GetTopic", "GetTopicAttributes", "ListTopics", "SetTopicAttributes"];

/// Whether a form's `Action` belongs to this API. Other actions posted to `/` belong to IAM and STS.
pub fn is_action(action: &str) -> bool {
    ACTIONS.contains(&action)
}

/// A request.
#[derive(Clone, PartialEq, Eq)]
pub enum Request {
    /// Creates a topic, or replaces the attributes of the topic with that name.
    CreateTopic {
        /// Its name.
        name: String,
        /// Names and values of attributes, for [`Attributes::from_pairs`](crate::attributes::Attributes::from_pairs).
        attributes: Vec<(String, String)>,
    },
    /// Removes a topic. It is not an error if the topic does not exist.
    DeleteTopic {
        /// The topic.
        topic: TopicArn,
    },
    /// Shows a topic. Ceph's predecessor of GetTopicAttributes.
    GetTopic {
        /// The topic.
        topic: TopicArn,
    },
    /// Shows a topic.
    GetTopicAttributes {
        /// The topic.
        topic: TopicArn,
    },
    /// Sets one attribute of a topic.
    SetTopicAttributes {
        /// The topic.
        topic: TopicArn,
        /// The attribute.
        name: String,
        /// Its value; empty for the default.
        value: String,
    },
    /// Lists topics.
    ListTopics {
        /// The name of the last topic of the previous page.
        after: Option<String>,
    },
}

/// Omits the values of attributes, which may contain secrets.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(self.action());
        match self {
            Request::CreateTopic { name, attributes } => {
                let names: Vec<&str> = attributes.iter().map(|(name, _)| name.as_str()).collect();
                shown.field("name", name).field("attributes", &names)
            }
            Request::DeleteTopic { topic }
            | Request::GetTopic { topic }
            | Request::GetTopicAttributes { topic } => shown.field("topic", topic),
            Request::SetTopicAttributes { topic, name, .. } => {
                shown.field("topic", topic).field("name", name)
            }
            Request::ListTopics { after } => shown.field("after", after),
        }
        .finish()
    }
}

impl Request {
    /// Parses the body of a request.
    pub fn parse(form: &[u8]) -> Result<Request> {
        let mut form = Form::read(form)?;
        let action = form.needed("Action")?;
        let request = match action.as_str() {
            "CreateTopic" => {
                let name = form.needed("Name")?;
                names::check_topic(&name)?;
                Request::CreateTopic { name, attributes: form.attributes()? }
            }
            "DeleteTopic" => Request::DeleteTopic { topic: form.topic()? },
            "GetTopic" => Request::GetTopic { topic: form.topic()? },
            "GetTopicAttributes" => Request::GetTopicAttributes { topic: form.topic()? },
            "SetTopicAttributes" => Request::SetTopicAttributes {
                topic: form.topic()?,
                name: form.needed("AttributeName")?,
                value: form.take("AttributeValue").unwrap_or_default(),
            },
            "ListTopics" => {
                let after = form.take("NextToken").filter(|token| !token.is_empty());
                if let Some(token) = &after {
                    names::check_topic(token)
                        .map_err(|_| Error::invalid("NextToken", "not one of ListTopics"))?;
                }
                Request::ListTopics { after }
            }
            other => return Err(Error::UnknownAction(quoted(other))),
        };
        form.finish()?;
        Ok(request)
    }

    /// The action.
    pub fn action(&self) -> &'static str {
        match self {
            Request::CreateTopic { .. } => "CreateTopic",
            Request::DeleteTopic { .. } => "DeleteTopic",
            Request::GetTopic { .. } => "GetTopic",
            Request::GetTopicAttributes { .. } => "GetTopicAttributes",
            Request::SetTopicAttributes { .. } => "SetTopicAttributes",
            Request::ListTopics { .. } => "ListTopics",
        }
    }

    /// The permission that a topic's policy must grant to a caller who is not the owner. ListTopics shows the topics for
    /// which it is granted.
    pub fn permission(&self) -> &'static str {
        match self {
            Request::CreateTopic { .. } => "sns:CreateTopic",
            Request::DeleteTopic { .. } => "sns:DeleteTopic",
            Request::GetTopic { .. } | Request::GetTopicAttributes { .. } | Request::ListTopics { .. } => {
                "sns:GetTopicAttributes"
            }
            Request::SetTopicAttributes { .. } => "sns:SetTopicAttributes",
        }
    }

    /// Whether the request itself contains a secret: a password, or an endpoint with credentials.
    pub fn contains_secret(&self) -> bool {
        let is_secret = |name: &str, value: &str| match name {
            "password" => !value.is_empty(),
            "push-endpoint" => PushEndpoint::parse(value).is_ok_and(|uri| uri.has_credentials()),
            _ => false,
        };
        match self {
            Request::CreateTopic { attributes, .. } => {
                attributes.iter().any(|(name, value)| is_secret(name, value))
            }
            Request::SetTopicAttributes { name, value, .. } => is_secret(name, value),
            _ => false,
        }
    }
}

/// The permission that a topic's policy must grant to a caller who is not the owner and who names the topic in a bucket's
/// notification configuration.
pub const PUBLISH_PERMISSION: &str = "sns:Publish";

/// A form's fields. Each is taken once; fields that remain at the end are unknown.
struct Form(BTreeMap<String, String>);

impl Form {
    fn read(form: &[u8]) -> Result<Form> {
        if form.len() > MAX_FORM_BYTES {
            return Err(Error::TooLarge { what: "the form in bytes", limit: MAX_FORM_BYTES });
        }
        let malformed = |reason: String| Error::Malformed { document: "form", reason };
        let text = std::str::from_utf8(form).map_err(|_| malformed("not UTF-8".to_owned()))?;
        let mut fields = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| {
                let spaced = text.replace('+', " ");
                urlencoding::decode(&spaced).map(|text| text.into_owned())
            };
            let (Ok(name), Ok(value)) = (decode(name), decode(value)) else {
                return Err(malformed("a field is not UTF-8".to_owned()));
            };
            let shown = quoted(&name);
            if fields.insert(name, value).is_some() {
                return Err(malformed(format!("{shown} is there twice")));
            }
            if fields.len() > MAX_FIELDS {
                return Err(Error::TooLarge { what: "the number of fields", limit: MAX_FIELDS });
            }
        }
        // There is only one version of the protocol.
        fields.remove("Version");
        Ok(Form(fields))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn needed(&mut self, name: &'static str) -> Result<String> {
        self.take(name).filter(|value| !value.is_empty()).ok_or(Error::Missing(name))
    }

    fn topic(&mut self) -> Result<TopicArn> {
        self.needed("TopicArn")?.parse()
    }

    /// The fields `Attributes.entry.N.key` and `Attributes.entry.N.value`, ordered by their numbers, which may have gaps.
    fn attributes(&mut self) -> Result<Vec<(String, String)>> {
        let mut entries: BTreeMap<u32, (Option<String>, Option<String>)> = BTreeMap::new();
        let names: Vec<String> = self.0.keys().filter(|name| name.starts_with(ATTRIBUTES)).cloned().collect();
        for field in names {
            let malformed = || Error::invalid(quoted(&field), "not Attributes.entry.NUMBER.key or .value");
            let rest = &field[ATTRIBUTES.len()..];
            let (number, half) = rest.split_once('.').ok_or_else(malformed)?;
            // A number has one spelling, so two fields can't have the same meaning.
            let number = number.parse::<u32>().ok().filter(|parsed| parsed.to_string() == number);
            let entry = entries.entry(number.ok_or_else(malformed)?).or_default();
            let slot = match half {
                "key" => &mut entry.0,
                "value" => &mut entry.1,
                _ => return Err(malformed()),
            };
            *slot = self.0.remove(&field);
        }
        let pairs = entries.into_iter().map(|(number, (key, value))| {
            let missing = |half| Error::invalid(format!("{ATTRIBUTES}{number}.{half}"), "missing");
            Ok((key.ok_or_else(|| missing("key"))?, value.ok_or_else(|| missing("value"))?))
        });
        pairs.collect()
    }

    /// Refuses unknown fields.
    fn finish(self) -> Result<()> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::invalid(quoted(&name), "this action has no such parameter")),
        }
    }
}

#[cfg(test)]
mod tests;
