//! IAM and STS: forms ([`crate::forms`]) whose `Action` concerns users' keys and policies, roles, or temporary credentials.
//! Parameters, responses and errors are AWS's, as far as radosgw has the operation.
//!
//! The caller needs a capability (`users`, `user-policy`, `roles`), as with radosgw, or a policy of its own that allows the
//! action. No caller can extend its own rights: the role's own policy decides who may assume it.

mod roles;
mod sts;
mod users;

use crate::caller::Caller;
use crate::conditions::is_known_key;
use crate::forms::{QueryError, Service, SignedQuery};
use http::StatusCode;
use nacre_rgw::caps::Perm;
use nacre_rgw::gateway::Gateway;
use nacre_rgw::policy::{Decision, Policy};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use time::OffsetDateTime;

/// The maximum number of policies of a user or role (`rgw_user_policies_max_num`).
const MAX_POLICIES: usize = 100;
/// The maximum number of names in one response.
const MAX_PAGE: usize = 1000;
/// The beginning of a response.
const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";

fn malformed(message: impl Into<String>) -> QueryError {
    QueryError::new(StatusCode::BAD_REQUEST, "MalformedPolicyDocument", message)
}

fn absent(message: impl Into<String>) -> QueryError {
    QueryError::new(StatusCode::NOT_FOUND, "NoSuchEntity", message)
}

/// The XML content of a response.
#[derive(Debug, Default)]
struct Xml(String);

impl Xml {
    fn text(&mut self, name: &str, text: &str) -> &mut Xml {
        _ = write!(self.0, "<{name}>");
        for letter in text.chars() {
            match letter {
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '&' => self.0.push_str("&amp;"),
                // XML 1.0 can't represent these characters.
                letter if letter < ' ' && !matches!(letter, '\t' | '\n' | '\r') => self.0.push('\u{fffd}'),
                letter => self.0.push(letter),
            }
        }
        _ = write!(self.0, "</{name}>");
        self
    }

    fn part(&mut self, name: &str, inner: impl FnOnce(&mut Xml)) -> &mut Xml {
        _ = write!(self.0, "<{name}>");
        inner(self);
        _ = write!(self.0, "</{name}>");
        self
    }

    /// Adds a page of the names after the form's `Marker`.
    fn page(
        &mut self,
        form: &Form,
        list: &str,
        names: Vec<String>,
        each: impl Fn(&mut Xml, &str),
    ) -> &mut Xml {
        let after = form.get("Marker").unwrap_or_default();
        let max =
            form.get("MaxItems").and_then(|max| max.parse().ok()).unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
        let mut rest = names.into_iter().filter(|name| name.as_str() > after);
        let shown: Vec<String> = rest.by_ref().take(max).collect();
        let more = rest.next().is_some();
        self.part(list, |xml| shown.iter().for_each(|name| each(xml, name)));
        self.text("IsTruncated", if more { "true" } else { "false" });
        if let (true, Some(last)) = (more, shown.last()) {
            self.text("Marker", last);
        }
        self
    }
}

/// The fields of a form. A form with a repeated field is refused, because it would be unclear which value counts.
struct Form(BTreeMap<String, String>);

impl Form {
    fn read(body: &[u8]) -> Result<Form, QueryError> {
        let wrong =
            || QueryError::new(StatusCode::BAD_REQUEST, "MalformedQueryString", "the form can't be read");
        let body = std::str::from_utf8(body).map_err(|_| wrong())?;
        let mut fields = BTreeMap::new();
        for pair in body.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode =
                |text: &str| urlencoding::decode(&text.replace('+', " ")).map(|text| text.into_owned());
            let (name, value) = (decode(name).map_err(|_| wrong())?, decode(value).map_err(|_| wrong())?);
            if fields.insert(name, value).is_some() {
                return Err(wrong());
            }
        }
        Ok(Form(fields))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn needed(&self, name: &str) -> Result<&str, QueryError> {
        self.get(name).ok_or_else(|| QueryError::validation(format!("{name} is needed")))
    }

    /// Returns a number, which must be within the bounds, or `None` if it is absent.
    fn number(&self, name: &str, bounds: std::ops::RangeInclusive<u32>) -> Result<Option<u32>, QueryError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        let wrong =
            || QueryError::validation(format!("{name} is between {} and {}", bounds.start(), bounds.end()));
        number.map(Some).ok_or_else(wrong)
    }

    /// Returns the name of a policy, role or session.
    fn name(&self, name: &str, max: usize) -> Result<&str, QueryError> {
        let text = self.needed(name)?;
        let sound = text.len() <= max
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte));
        if sound {
            Ok(text)
        } else {
            Err(QueryError::validation(format!("{name}: '{text}' is not a name that it may have")))
        }
    }

    /// Checks a policy and returns its text.
    fn policy(&self, name: &str, read: fn(&str) -> Result<Policy, String>) -> Result<&str, QueryError> {
        let text = self.needed(name)?;
        let policy = read(text).map_err(malformed)?;
        match policy.condition_keys().find(|key| !is_known_key(key)) {
            Some(key) => Err(malformed(format!("conditions can't ask for {key}"))),
            None => Ok(text),
        }
    }
}

/// A parsed request with a valid signature.
struct Call<'a> {
    gateway: &'a Arc<Gateway>,
    form: &'a Form,
    caller: &'a Caller,
}

impl Call<'_> {
    /// Refuses a caller that has neither the capability nor a policy that allows the action.
    fn may(&self, kind: &str, perm: Perm, action: &str, resource: &str) -> Result<(), QueryError> {
        match self.caller.own_decision(action, resource) {
            Decision::Deny if !self.caller.is_administrator() => Err(QueryError::denied(action)),
            Decision::Allow => Ok(()),
            _ if self.caller.has_capability(kind, perm) => Ok(()),
            _ => Err(QueryError::denied(action)),
        }
    }

    async fn answer(&self, action: &str) -> Result<Xml, QueryError> {
        let known = match action {
            "AssumeRole" | "GetSessionToken" | "GetCallerIdentity" => return sts::answer(self, action).await,
            // As in AWS, credentials of GetSessionToken can't call IAM without a second factor, which Nacre does not
            // support: a thief could use them to create credentials that do not expire.
            _ if self.caller.temporary && self.caller.assumed.role.is_none() => {
                return Err(QueryError::denied(action));
            }
            _ => roles::answer(self, action).await?,
        };
        let known = match known {
            Some(xml) => Some(xml),
            None => users::answer(self, action).await?,
        };
        known.ok_or_else(|| {
            QueryError::new(StatusCode::BAD_REQUEST, "InvalidAction", format!("there is no {action} here"))
        })
    }
}

/// Answers a form.
pub(crate) async fn answer(gateway: &Arc<Gateway>, signed: &SignedQuery) -> Result<String, QueryError> {
    let form = Form::read(&signed.body)?;
    let action = form.needed("Action")?;
    let is_sts = signed.service == Service::Sts;
    signed.info.set_operation(if is_sts { "STS" } else { "IAM" }, &signed.caller.assumed.user.id);
    let call = Call { gateway, form: &form, caller: &signed.caller };
    let inner = call.answer(action).await?;
    let space = if is_sts {
        "https://sts.amazonaws.com/doc/2011-06-15/"
    } else {
        "https://iam.amazonaws.com/doc/2010-05-08/"
    };
    let result = if inner.0.is_empty() {
        String::new()
    } else {
        format!("<{action}Result>{}</{action}Result>", inner.0)
    };
    let id = signed.info.id();
    Ok(format!(
        "{DECLARATION}<{action}Response xmlns=\"{space}\">{result}<ResponseMetadata><RequestId>{id}</RequestId>\
         </ResponseMetadata></{action}Response>"
    ))
}

/// Returns the response to a form that was refused.
pub(crate) fn error_xml(failure: &QueryError) -> String {
    let mut xml = Xml::default();
    let kind = if failure.status.is_server_error() { "Receiver" } else { "Sender" };
    xml.part("ErrorResponse", |xml| {
        xml.part("Error", |xml| {
            xml.text("Type", kind).text("Code", failure.code).text("Message", &failure.message);
        });
    });
    format!("{DECLARATION}{}", xml.0)
}

/// Formats a time as in AWS's XML.
fn time(ns: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp((ns / 1_000_000_000) as i64)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, time) = (at.date(), at.time());
    format!("{date}T{:02}:{:02}:{:02}Z", time.hour(), time.minute(), time.second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_and_doubled_fields_refused() {
        let form = Form::read(b"Action=GetUser&UserName=a%2Bb+c&Empty=").unwrap();
        assert_eq!((form.get("UserName"), form.get("Empty")), (Some("a+b c"), None));
        assert!(Form::read(b"Action=GetUser&Action=DeleteUser").is_err());
        assert!(Form::read(b"A=%FF").is_err() && Form::read(b"\xff").is_err());
        let form = Form::read(b"N=12&RoleName=a/b&PolicyName=ok-1").unwrap();
        assert_eq!(form.number("N", 1..=20).unwrap(), Some(12));
        assert!(form.number("N", 13..=20).is_err() && form.name("RoleName", 64).is_err());
        assert_eq!(form.name("PolicyName", 64).unwrap(), "ok-1");
        assert!(form.name("PolicyName", 3).is_err());
    }

    #[test]
    fn answers_are_escaped_and_come_in_pages() {
        let mut xml = Xml::default();
        xml.text("A", "<&>\u{1}");
        assert_eq!(xml.0, "<A>&lt;&amp;&gt;\u{fffd}</A>");
        let page = |form: &[u8]| {
            let mut xml = Xml::default();
            let names = ["a", "b"].map(str::to_owned).to_vec();
            xml.page(&Form::read(form).unwrap(), "L", names, |xml, name| _ = xml.text("m", name));
            xml.0
        };
        assert_eq!(page(b"MaxItems=1"), "<L><m>a</m></L><IsTruncated>true</IsTruncated><Marker>a</Marker>");
        assert_eq!(page(b"Marker=a"), "<L><m>b</m></L><IsTruncated>false</IsTruncated>");
    }

    #[test]
    fn times_are_those_of_aws() {
        assert_eq!(time(1_767_323_045_000_000_000), "2026-01-02T03:04:05Z");
    }
}
