//! Policies, in AWS's policy language: who may do what with which resource under which conditions. They belong to buckets
//! and topics, to users and roles (what these may do), and also to roles (who may assume them).
//!
//! A policy is parsed completely when it is set. Anything in it that is not known is refused then, and never ignored. This
//! module is pure: a decision depends only on the policy and on [`PolicyRequest`], and takes a bounded number of steps ([`glob`]).

mod glob;

use glob::{StepBudget, matches};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// The maximum size of a policy, in bytes.
pub(crate) const MAX_BYTES: usize = 20 << 10;

/// The prefix of condition keys for a tag of the object.
pub const EXISTING_TAG: &str = "s3:existingobjecttag/";
/// The prefix of condition keys for a tag in the request.
pub const REQUEST_TAG: &str = "s3:requestobjecttag/";

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    statements: Vec<Statement>,
    asks_for_tags: bool,
}

/// The decision of a policy on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The policy refuses the request, whatever else allows it.
    Deny,
    /// The policy allows the request.
    Allow,
    /// The policy neither allows nor refuses the request.
    Pass,
}

impl Decision {
    /// Combines the decisions of two policies of which either may allow.
    pub fn or(self, other: Decision) -> Decision {
        match (self, other) {
            (Decision::Deny, _) | (_, Decision::Deny) => Decision::Deny,
            (Decision::Allow, _) | (_, Decision::Allow) => Decision::Allow,
            _ => Decision::Pass,
        }
    }

    /// Combines the decisions of two policies of which both must allow.
    pub fn and(self, other: Decision) -> Decision {
        match (self, other) {
            (Decision::Deny, _) | (_, Decision::Deny) => Decision::Deny,
            (Decision::Allow, Decision::Allow) => Decision::Allow,
            _ => Decision::Pass,
        }
    }
}

/// The error of an evaluation that has reached its limit of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimitExceeded;

/// A request, as policies see it.
pub struct PolicyRequest<'a> {
    /// The sender.
    pub who: PolicyPrincipal<'a>,
    /// For example, `s3:GetObject`.
    pub action: &'a str,
    /// For example, `arn:aws:s3:::bucket/key`.
    pub resource: &'a str,
    /// Returns the values of a condition's key, which is in lower case, such as `aws:sourceip`. Returns none if the request
    /// has none.
    pub context: &'a dyn Fn(&str) -> Vec<String>,
}

/// The requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyPrincipal<'a> {
    /// The user's id; `None` for an anonymous client.
    pub user: Option<&'a str>,
    /// The role that the user has assumed, and the name of the session.
    pub role: Option<(&'a str, &'a str)>,
}

/// What a policy belongs to.
#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    /// The bucket of that name.
    Bucket(&'a str),
    /// A user, a role or a session: the policy says what these may do.
    Identity,
    /// A role: the policy says who may assume it.
    Trust,
    /// A notification topic.
    Topic,
}

#[derive(Clone, Debug, PartialEq)]
struct Statement {
    allow: bool,
    principals: Matcher<Principal>,
    actions: Matcher<String>,
    resources: Matcher<String>,
    conditions: Vec<Condition>,
}

/// Matches the listed values or, if negated, all others.
#[derive(Clone, Debug, PartialEq)]
struct Matcher<T> {
    negated: bool,
    any: Vec<T>,
}

#[derive(Clone, Debug, PartialEq)]
enum Principal {
    Everybody,
    User(String),
    Role(String),
    Session(String, String),
    /// A service or a federated user, which never sends requests to this gateway.
    External,
}

#[derive(Clone, Debug, PartialEq)]
struct Condition {
    operator: Operator,
    negated: bool,
    /// The condition also holds if the request has no such key.
    if_exists: bool,
    /// All values of the request must match; there may be none (`ForAllValues`).
    all: bool,
    /// At least one value of the request must match (`ForAnyValue`).
    any: bool,
    key: String,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equals,
    EqualsIgnoreCase,
    Like,
    Number(Order),
    Date(Order),
    Bool,
    IpAddress,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Order {
    fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Order::Equal => a == b,
            Order::Less => a < b,
            Order::LessOrEqual => a <= b,
            Order::Greater => a > b,
            Order::GreaterOrEqual => a >= b,
        }
    }
}

/// Reads a text, or an array of texts.
fn texts(value: &Value, of: &str) -> Result<Vec<String>, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(value) => Ok(value.to_string()),
        _ => Err(format!("{of}: neither a text nor several")),
    };
    match value {
        Value::Array(values) => values.iter().map(text).collect(),
        value => Ok(vec![text(value)?]),
    }
}

fn principals(value: &Value) -> Result<Vec<Principal>, String> {
    let one = |text: String| {
        if text == "*" {
            return Ok(Principal::Everybody);
        }
        // arn:aws:iam:::user/alice, with or without a tenant or account before the last colon.
        let named = |service: &str, kind: &str| {
            let (_, name) = text.strip_prefix(service)?.split_once(kind)?;
            // Callers ignore a path before a role's name.
            (!name.is_empty()).then_some(name)
        };
        let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        if let Some(id) = named("arn:aws:iam::", ":user/") {
            return Ok(Principal::User(id.to_owned()));
        }
        if let Some(name) = named("arn:aws:iam::", ":role/") {
            return Ok(Principal::Role(last(name)));
        }
        // Users are the only accounts.
        let account = text.strip_prefix("arn:aws:iam::").and_then(|rest| rest.strip_suffix(":root"));
        if let Some(id) = account.filter(|id| !id.is_empty()) {
            return Ok(Principal::User(id.to_owned()));
        }
        if let Some((role, session)) =
            named("arn:aws:sts::", ":assumed-role/").and_then(|name| name.rsplit_once('/'))
        {
            return Ok(Principal::Session(last(role), session.to_owned()));
        }
        if text.contains(':') || text.is_empty() {
            return Err(format!("Principal: '{text}' is not known"));
        }
        Ok(Principal::User(text))
    };
    match value {
        Value::String(text) if text == "*" => Ok(vec![Principal::Everybody]),
        Value::Object(kinds) => {
            let mut all = Vec::new();
            for (kind, value) in kinds {
                for text in texts(value, "Principal")? {
                    all.push(match kind.as_str() {
                        "AWS" | "CanonicalUser" => one(text)?,
                        "Service" | "Federated" => Principal::External,
                        _ => return Err(format!("Principal: {kind} is not known")),
                    });
                }
            }
            Ok(all)
        }
        _ => Err("Principal is \"*\" or {\"AWS\": …}".into()),
    }
}

/// Reads a key of a statement or the one that negates it. Exactly one of them must be present.
fn matcher<T>(
    statement: &Map<String, Value>,
    name: &str,
    read: impl Fn(&Value) -> Result<Vec<T>, String>,
) -> Result<Matcher<T>, String> {
    let negation = format!("Not{name}");
    let (negated, value) = match (statement.get(name), statement.get(&negation)) {
        (Some(value), None) => (false, value),
        (None, Some(value)) => (true, value),
        _ => return Err(format!("a statement has either {name} or {negation}")),
    };
    let any = read(value)?;
    if any.is_empty() { Err(format!("{name} is empty")) } else { Ok(Matcher { negated, any }) }
}

impl<T> Matcher<T> {
    fn holds(&self, is: impl Fn(&T) -> bool) -> bool {
        self.any.iter().any(is) != self.negated
    }
}

impl Condition {
    fn read(operator: &str, key: &str, value: &Value) -> Result<Condition, String> {
        let (all, any, name) = match operator.split_once(':') {
            Some(("ForAllValues", name)) => (true, false, name),
            Some(("ForAnyValue", name)) => (false, true, name),
            Some(_) => return Err(format!("the condition {operator} is not known")),
            None => (false, false, operator),
        };
        let (name, if_exists) = match name.strip_suffix("IfExists") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let order = |name: &str| {
            Some(match name {
                "Equals" => (Order::Equal, false),
                "NotEquals" => (Order::Equal, true),
                "LessThan" => (Order::Less, false),
                "LessThanEquals" => (Order::LessOrEqual, false),
                "GreaterThan" => (Order::Greater, false),
                "GreaterThanEquals" => (Order::GreaterOrEqual, false),
                _ => return None,
            })
        };
        let known = match name {
            "StringEquals" | "ArnEquals" => Some((Operator::Equals, false)),
            "StringNotEquals" | "ArnNotEquals" => Some((Operator::Equals, true)),
            "StringEqualsIgnoreCase" => Some((Operator::EqualsIgnoreCase, false)),
            "StringNotEqualsIgnoreCase" => Some((Operator::EqualsIgnoreCase, true)),
            "StringLike" | "ArnLike" => Some((Operator::Like, false)),
            "StringNotLike" | "ArnNotLike" => Some((Operator::Like, true)),
            "Bool" => Some((Operator::Bool, false)),
            "IpAddress" => Some((Operator::IpAddress, false)),
            "NotIpAddress" => Some((Operator::IpAddress, true)),
            "Null" => Some((Operator::Null, false)),
            _ => match (name.strip_prefix("Numeric"), name.strip_prefix("Date")) {
                (Some(rest), _) => order(rest).map(|(order, negated)| (Operator::Number(order), negated)),
                (_, Some(rest)) => order(rest).map(|(order, negated)| (Operator::Date(order), negated)),
                _ => None,
            },
        };
        let (operator, negated) = known.ok_or_else(|| format!("the condition {operator} is not known"))?;
        let values = texts(value, key)?;
        for value in &values {
            let sound = match operator {
                Operator::Number(_) => value.parse::<f64>().is_ok(),
                Operator::Date(_) => date(value).is_some(),
                Operator::Bool | Operator::Null => value.parse::<bool>().is_ok(),
                Operator::IpAddress => network(value).is_some(),
                _ => true,
            };
            if !sound {
                return Err(format!("{key}: '{value}' is not what its condition compares"));
            }
        }
        Ok(Condition { operator, negated, if_exists, all, any, key: key.to_ascii_lowercase(), values })
    }

    fn holds(&self, asked: &PolicyRequest<'_>, budget: &StepBudget) -> bool {
        let given = (asked.context)(&self.key);
        if self.operator == Operator::Null {
            return self.values.iter().any(|value| (value == "true") == given.is_empty());
        }
        if given.is_empty() {
            // An absent value differs from every value.
            return self.if_exists || (self.negated && !self.any) || self.all;
        }
        let is = |given: &String| {
            self.values.iter().any(|value| self.compare(given, value, budget)) != self.negated
        };
        // For a negated condition every value must differ, unless the condition says that one is enough.
        if self.all || (self.negated && !self.any) { given.iter().all(is) } else { given.iter().any(is) }
    }

    /// Whether it holds only for certain users or networks, which it names.
    fn confines(&self) -> bool {
        if self.negated || self.if_exists || self.all {
            return false;
        }
        match (self.operator, self.key.as_str()) {
            (Operator::IpAddress, "aws:sourceip") => {
                self.values.iter().all(|value| network(value).is_some_and(|(_, bits)| bits > 0))
            }
            (Operator::Equals | Operator::EqualsIgnoreCase, "aws:userid" | "aws:username") => true,
            _ => false,
        }
    }

    fn compare(&self, given: &str, value: &str, budget: &StepBudget) -> bool {
        match self.operator {
            Operator::Equals => given == value,
            Operator::EqualsIgnoreCase => given.eq_ignore_ascii_case(value),
            Operator::Like => matches(value, given, budget),
            Operator::Number(order) => match (given.parse::<f64>(), value.parse::<f64>()) {
                (Ok(given), Ok(value)) => order.holds(given, value),
                _ => false,
            },
            Operator::Date(order) => match (date(given), date(value)) {
                (Some(given), Some(value)) => order.holds(given, value),
                _ => false,
            },
            Operator::Bool => given.eq_ignore_ascii_case(value),
            Operator::IpAddress => match (given.parse::<IpAddr>(), network(value)) {
                (Ok(given), Some((network, bits))) => same_network(given, network, bits),
                _ => false,
            },
            Operator::Null => false,
        }
    }
}

/// Parses a time in RFC 3339 or as a number; returns seconds since 1970.
fn date(text: &str) -> Option<i64> {
    use time::format_description::well_known::Rfc3339;
    let parsed = time::OffsetDateTime::parse(text, &Rfc3339).map(time::OffsetDateTime::unix_timestamp);
    parsed.ok().or_else(|| text.parse().ok())
}

/// Parses an address and the number of its significant bits.
fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address.parse::<IpAddr>().ok()?, bits.parse().ok()?),
        None => {
            let address = text.parse::<IpAddr>().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, bits))
}

fn same_network(a: IpAddr, b: IpAddr, bits: u32) -> bool {
    let differ = match (a.to_canonical(), b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
        _ => return false,
    };
    differ >= bits
}

impl Policy {
    /// Reads the policy of `bucket`; the error says what is wrong with it.
    pub fn read(text: &str, bucket: &str) -> Result<Policy, String> {
        Policy::read_as(text, Kind::Bucket(bucket))
    }

    /// Reads a policy that says what a user, a role or a session may do.
    pub fn read_identity(text: &str) -> Result<Policy, String> {
        Policy::read_as(text, Kind::Identity)
    }

    /// Reads a policy that says who may assume a role.
    pub fn read_trust(text: &str) -> Result<Policy, String> {
        Policy::read_as(text, Kind::Trust)
    }

    /// Reads the policy of a notification topic.
    pub fn read_topic(text: &str) -> Result<Policy, String> {
        Policy::read_as(text, Kind::Topic)
    }

    fn read_as(text: &str, kind: Kind<'_>) -> Result<Policy, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("a policy has at most {MAX_BYTES} bytes"));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let policy = value.as_object().ok_or("a policy is an object")?;
        if let Some(unknown) =
            policy.keys().find(|key| !["Version", "Id", "Statement"].contains(&key.as_str()))
        {
            return Err(format!("{unknown} is not known"));
        }
        if policy.get("Version").is_some_and(|version| version != "2012-10-17" && version != "2008-10-17") {
            return Err("Version is 2012-10-17".into());
        }
        let list = match policy.get("Statement") {
            Some(Value::Array(list)) => list.iter().collect(),
            Some(one @ Value::Object(_)) => vec![one],
            _ => return Err("a policy has a Statement".into()),
        };
        let statements = list.into_iter().map(|statement| Statement::read(statement, kind));
        let mut policy = Policy { statements: statements.collect::<Result<_, _>>()?, asks_for_tags: false };
        let asks = policy.condition_keys().any(|key| key.starts_with(EXISTING_TAG));
        policy.asks_for_tags = asks;
        Ok(policy)
    }

    /// Returns the decision on a request. Fails if the evaluation exceeds its limit of steps; then the request must be
    /// refused.
    pub fn decide(&self, asked: &PolicyRequest<'_>) -> Result<Decision, StepLimitExceeded> {
        let (mut decision, budget) = (Decision::Pass, StepBudget::default());
        for statement in &self.statements {
            let concerned = statement.concerns(asked, &budget);
            if budget.is_exhausted() {
                return Err(StepLimitExceeded);
            }
            match (concerned, statement.allow) {
                (true, false) => return Ok(Decision::Deny),
                (true, true) => decision = Decision::Allow,
                (false, _) => {}
            }
        }
        Ok(decision)
    }

    /// Returns the keys that its conditions use, in lower case.
    pub fn condition_keys(&self) -> impl Iterator<Item = &str> {
        let conditions = self.statements.iter().flat_map(|statement| &statement.conditions);
        conditions.map(|condition| condition.key.as_str())
    }

    /// Whether its decisions depend on the tags of the requested object.
    pub fn uses_object_tags(&self) -> bool {
        self.asks_for_tags
    }

    /// Whether it allows anything to everybody without a condition that names users or networks.
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(|statement| {
            statement.allow
                && !statement.conditions.iter().any(Condition::confines)
                && (statement.principals.negated || statement.principals.any.contains(&Principal::Everybody))
        })
    }
}

impl Statement {
    fn read(value: &Value, kind: Kind<'_>) -> Result<Statement, String> {
        const KNOWN: [&str; 9] = [
            "Sid",
            "Effect",
            "Principal",
            "NotPrincipal",
            "Action",
            "NotAction",
            "Resource",
            "NotResource",
            "Condition",
        ];
        let statement = value.as_object().ok_or("a statement is an object")?;
        if let Some(unknown) = statement.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            return Err(format!("{unknown} is not known"));
        }
        let allow = match statement.get("Effect").and_then(Value::as_str) {
            Some("Allow") => true,
            Some("Deny") => false,
            _ => return Err("Effect is Allow or Deny".into()),
        };
        let actions = matcher(statement, "Action", |value| {
            let actions = texts(value, "Action")?;
            let fits = |action: &String| {
                let (service, name) = action.split_once(':').unwrap_or(("", ""));
                match kind {
                    _ if action == "*" => true,
                    Kind::Bucket(_) => service.eq_ignore_ascii_case("s3"),
                    Kind::Trust => service.eq_ignore_ascii_case("sts"),
                    Kind::Topic => service.eq_ignore_ascii_case("sns"),
                    Kind::Identity => !service.is_empty() && !name.is_empty(),
                }
            };
            match actions.iter().find(|action| !fits(action)) {
                Some(foreign) => Err(format!("Action: '{foreign}' has no meaning here")),
                None => Ok(actions.iter().map(|action| action.to_ascii_lowercase()).collect()),
            }
        })?;
        let forbidden: &[&str] = match kind {
            Kind::Bucket(_) | Kind::Topic => &[],
            Kind::Identity => &["Principal", "NotPrincipal"],
            Kind::Trust => &["Resource", "NotResource"],
        };
        if let Some(name) = forbidden.iter().find(|name| statement.contains_key(**name)) {
            return Err(format!("{name} has no meaning here"));
        }
        let read_resources = |value: &Value| {
            let Kind::Bucket(bucket) = kind else { return texts(value, "Resource") };
            let own = |resource: String| {
                if resource == "*" {
                    return Ok(resource);
                }
                // The regions and accounts of resources are ignored.
                let fields: Vec<&str> = resource.splitn(6, ':').collect();
                let name = match fields[..] {
                    ["arn", "aws", "s3", _, _, name] => Some(name),
                    _ => None,
                };
                let budget = StepBudget::default();
                let of_bucket =
                    |name: &&str| matches(name.split('/').next().unwrap_or_default(), bucket, &budget);
                let name = name.filter(of_bucket);
                let name = name.ok_or_else(|| format!("Resource: '{resource}' is not of this bucket"))?;
                Ok(format!("arn:aws:s3:::{name}"))
            };
            texts(value, "Resource")?.into_iter().map(own).collect()
        };
        let resources = match kind {
            Kind::Trust => Matcher { negated: false, any: vec!["*".to_owned()] },
            _ => matcher(statement, "Resource", read_resources)?,
        };
        let principals = match kind {
            Kind::Identity => Matcher { negated: false, any: vec![Principal::Everybody] },
            _ => matcher(statement, "Principal", principals)?,
        };
        if allow && principals.negated {
            return Err("Allow goes without NotPrincipal".into());
        }
        let mut conditions = Vec::new();
        if let Some(value) = statement.get("Condition") {
            for (operator, keys) in value.as_object().ok_or("Condition is an object")? {
                for (key, value) in keys.as_object().ok_or("a condition is an object")? {
                    conditions.push(Condition::read(operator, key, value)?);
                }
            }
        }
        Ok(Statement { allow, principals, actions, resources, conditions })
    }

    fn concerns(&self, asked: &PolicyRequest<'_>, budget: &StepBudget) -> bool {
        let action = asked.action.to_ascii_lowercase();
        self.principals.holds(|principal| match principal {
            Principal::Everybody => true,
            Principal::User(id) => asked.who.user == Some(id) && asked.who.role.is_none(),
            Principal::Role(name) => asked.who.role.is_some_and(|(role, _)| role == name),
            Principal::Session(name, session) => asked.who.role == Some((name, session)),
            Principal::External => false,
        }) && self.actions.holds(|pattern| matches(pattern, &action, budget))
            && self.resources.holds(|pattern| matches(pattern, asked.resource, budget))
            && self.conditions.iter().all(|condition| condition.holds(asked, budget))
    }
}

#[cfg(test)]
mod tests;
