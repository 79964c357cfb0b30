//! A command in its JSON form, checked against the table.

use super::{Owner, Param, ParamKind, Signature, Table, refused};
use crate::errno::Errno;
use crate::ids::{EntityName, OsdId, PgId};
use serde_json::{Map, Value};

/// Maximum length of a command in bytes of JSON: the parsed form is several times as large. Long input is sent separately.
const MAX_COMMAND_BYTES: usize = 1 << 20;

/// Why words or JSON are not a valid command.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommandError {
    /// The text is not a JSON object with a `prefix`.
    #[error("command is not valid JSON: {0}")]
    NotJson(String),
    /// There is no command with that name.
    #[error("no valid command found{}", nearest(.closest))]
    Unknown {
        /// Usage lines of the closest commands.
        closest: Vec<String>,
    },
    /// The daemon does not have the command; the text is Ceph's.
    #[error("{0}")]
    NotKnown(String),
    /// A command of Ceph that is refused by name.
    #[error("command '{prefix}' is not supported: {reason}")]
    Refused {
        /// The command.
        prefix: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// A parameter is missing, unknown or has a wrong value.
    #[error("{detail}")]
    Invalid {
        /// The command's prefix.
        prefix: String,
        /// The parameter and what is wrong with it.
        detail: String,
        /// The command's usage line.
        usage: String,
    },
}

fn nearest(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    format!("; {} closest matches:\n{}", lines.len(), lines.join("\n"))
}

impl CommandError {
    /// Returns EOPNOTSUPP for a refused command, else EINVAL, as Ceph does.
    pub fn errno(&self) -> Errno {
        match self {
            CommandError::Refused { .. } => Errno::EOPNOTSUPP,
            _ => Errno::EINVAL,
        }
    }
}

/// A checked command: all required parameters are present, and every value has its type and is within its bounds.
///
/// The getters panic for a name that the signature does not have: this is an error in the daemon, not of the user.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The command's signature.
    pub signature: &'a Signature,
    args: Map<String, Value>,
    format: Option<String>,
}

impl Table {
    /// Parses a command's JSON. Values may have their JSON type or be text, because librados' callers use both.
    pub fn parse_json(&self, json: &str) -> Result<Call<'_>, CommandError> {
        if json.len() > MAX_COMMAND_BYTES {
            return Err(CommandError::NotJson(format!("longer than {MAX_COMMAND_BYTES} bytes")));
        }
        let fields: Map<String, Value> =
            serde_json::from_str(json).map_err(|e| CommandError::NotJson(e.to_string()))?;
        let prefix = fields
            .get("prefix")
            .and_then(Value::as_str)
            .ok_or_else(|| CommandError::NotJson("it has no \"prefix\"".into()))?;
        let signature = self.find(prefix).ok_or_else(|| self.not_found(prefix))?;
        let mut args = Map::new();
        for param in &signature.params {
            match fields.get(param.name) {
                Some(value) => {
                    let value = signature.check_value(param, value)?;
                    args.insert(param.name.to_owned(), value);
                }
                None if param.required => return Err(signature.missing(param)),
                None => {}
            }
        }
        let format = fields.get("format").and_then(Value::as_str).map(str::to_owned);
        Ok(Call { signature, args, format })
    }

    /// Returns the error of Ceph's monitor, or of its other daemons, for a command that they do not have.
    fn not_found(&self, prefix: &str) -> CommandError {
        match self.owner {
            Owner::Mon => match refused::find(prefix) {
                Some((prefix, reason)) => CommandError::Refused { prefix, reason },
                None => CommandError::NotKnown("command not known".to_owned()),
            },
            Owner::Daemon => CommandError::NotKnown(format!("unknown command prefix {prefix}")),
        }
    }
}

impl Signature {
    pub(super) fn invalid(&self, detail: String) -> CommandError {
        CommandError::Invalid {
            prefix: self.prefix.clone(),
            detail,
            usage: format!("{self} :  {}", self.help),
        }
    }

    pub(super) fn missing(&self, param: &Param) -> CommandError {
        self.invalid(format!("missing required parameter {}({param})", param.name))
    }

    fn check_value(&self, param: &Param, value: &Value) -> Result<Value, CommandError> {
        if !param.repeats {
            return self.check_one(param, value);
        }
        match value {
            Value::Array(values) if values.is_empty() && param.required => Err(self.missing(param)),
            Value::Array(values) => values.iter().map(|value| self.check_one(param, value)).collect(),
            single => Ok(Value::Array(vec![self.check_one(param, single)?])),
        }
    }

    fn check_one(&self, param: &Param, value: &Value) -> Result<Value, CommandError> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => return Err(self.invalid(format!("{}: {value} is neither text nor a number", param.name))),
        };
        param.kind.parse_value(&text).map_err(|detail| self.invalid(format!("{}: {detail}", param.name)))
    }
}

impl ParamKind {
    /// Converts `text` to a JSON value. The error describes what is wrong.
    pub(super) fn parse_value(&self, text: &str) -> Result<Value, String> {
        match self {
            ParamKind::Int { min, max } => {
                let value: i64 = text.parse().map_err(|_| format!("{text} doesn't represent an int"))?;
                let number = (min..=max).contains(&&value);
                number
                    .then(|| value.into())
                    .ok_or_else(|| format!("{value} not in range {}", range(min, max)))
            }
            ParamKind::Float { min, max } => {
                let value: f64 = text.parse().map_err(|_| format!("{text} doesn't represent a float"))?;
                let number = value.is_finite() && (min..=max).contains(&&value);
                number
                    .then(|| value.into())
                    .ok_or_else(|| format!("{value} not in range {}", range(min, max)))
            }
            ParamKind::Bool => match text {
                "true" | "True" | "1" | "yes" | "on" => Ok(true.into()),
                "false" | "False" | "0" | "no" | "off" => Ok(false.into()),
                _ => Err(format!("{text} not one of 'true', 'false'")),
            },
            ParamKind::Choice(words) if words.contains(&text) => Ok(text.into()),
            ParamKind::Choice(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
                Err(format!("{text} not in {}", quoted.join("|")))
            }
            ParamKind::PgId => match text.parse::<PgId>() {
                Ok(pg) => Ok(pg.to_string().into()),
                Err(error) => Err(error.to_string()),
            },
            ParamKind::OsdName => match text.parse::<OsdId>() {
                Ok(osd) => Ok(osd.0.into()),
                Err(_) => Err(format!("osd id {text} is not of the form osd.N or N")),
            },
            ParamKind::Name => match text.parse::<EntityName>() {
                Ok(name) => Ok(name.to_string().into()),
                Err(error) => Err(error.to_string()),
            },
            ParamKind::Uuid => match text.parse::<uuid::Uuid>() {
                Ok(uuid) => Ok(uuid.to_string().into()),
                Err(error) => Err(format!("invalid UUID {text}: {error}")),
            },
            ParamKind::PoolName | ParamKind::ObjectName if text.is_empty() => Err("is empty".into()),
            ParamKind::String
            | ParamKind::Words(_)
            | ParamKind::PoolName
            | ParamKind::ObjectName
            | ParamKind::EntityAddr => Ok(text.into()),
        }
    }
}

fn range<T: ToString + PartialEq + Bounds>(min: &T, max: &T) -> String {
    if *max == T::MOST {
        format!("[{}, ]", min.to_string())
    } else {
        format!("[{}, {}]", min.to_string(), max.to_string())
    }
}

trait Bounds {
    const MOST: Self;
}
impl Bounds for i64 {
    const MOST: i64 = i64::MAX;
}
impl Bounds for f64 {
    const MOST: f64 = f64::MAX;
}

impl Call<'_> {
    /// The given arguments, by name.
    pub fn arguments(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.args.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The command's name: its words joined by blanks.
    pub fn prefix(&self) -> &str {
        &self.signature.prefix
    }

    /// The requested output format (`json`, `json-pretty`, `plain`, …), if any.
    pub fn format(&self) -> Option<&str> {
        self.format.as_deref()
    }

    fn arg(&self, name: &str) -> Option<&Value> {
        assert!(
            self.signature.params.iter().any(|param| param.name == name),
            "invariant: '{}' has a parameter '{name}'",
            self.signature.prefix
        );
        self.args.get(name)
    }

    /// A text parameter.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.arg(name)?.as_str()
    }

    /// A required text parameter.
    pub fn required_text(&self, name: &str) -> &str {
        self.text(name).expect("invariant: required parameters are there after the check")
    }

    /// A whole number, or the id of an OSD.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.arg(name)?.as_i64()
    }

    /// A number.
    pub fn float(&self, name: &str) -> Option<f64> {
        self.arg(name)?.as_f64()
    }

    /// A switch; off if it is absent.
    pub fn flag(&self, name: &str) -> bool {
        self.arg(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// An OSD.
    pub fn osd(&self, name: &str) -> Option<OsdId> {
        self.arg(name)?.as_u64().and_then(|id| u32::try_from(id).ok()).map(OsdId)
    }

    /// A placement group.
    pub fn pg(&self, name: &str) -> Option<PgId> {
        self.text(name)?.parse().ok()
    }

    /// The values of a repeated text parameter; none if it is absent.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.arg(name) {
            Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(value)) => vec![value],
            _ => Vec::new(),
        }
    }
}
