//! IAM and STS: forms posted to `/` that ask for an `Action`, for users' keys and policies, roles, and temporary
//! credentials. Parameters, answers and errors are AWS's, as far as radosgw has the operation.
//!
//! Who asks needs a capability (`users`, `user-policy`, `roles`), as with radosgw, or a policy of its own that allows the
//! action. Nobody can make itself more than it is: what assumes a role, the role's own policy says.

mod roles;
mod sts;
mod users;

use crate::caps::{self, Perm};
use crate::error::Error;
use crate::evaluation::evaluate;
use crate::gateway::Gateway;
use crate::policy::{Asked, Decision, Policy, Who};
use crate::s3::{Context, Peer, log_fault};
use crate::server::Seen;
use crate::session::Assumed;
use crate::signature::{self, Refusal};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use s3s::Body;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use time::OffsetDateTime;

/// The longest form.
const MAX_BODY_BYTES: usize = 256 << 10;
/// The most policies of a user or role (`rgw_user_policies_max_num`).
const MAX_POLICIES: usize = 100;
/// Names in one answer.
const MAX_PAGE: usize = 1000;

/// Why a request was refused: status, AWS's code, and what it says.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Failure {
        Failure { status, code, message: message.into() }
    }

    fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "ValidationError", message)
    }

    fn malformed(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "MalformedPolicyDocument", message)
    }

    fn absent(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, "NoSuchEntity", message)
    }

    fn denied(action: &str) -> Failure {
        Failure::new(StatusCode::FORBIDDEN, "AccessDenied", format!("not authorized to perform {action}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (status, code) = match &error {
            Error::NoSuchUser(_) | Error::NoSuchRole(_) => (StatusCode::NOT_FOUND, "NoSuchEntity"),
            Error::UserExists(_) | Error::KeyExists(_) | Error::RoleExists(_) => {
                (StatusCode::CONFLICT, "EntityAlreadyExists")
            }
            Error::LimitExceeded(_) => (StatusCode::CONFLICT, "LimitExceeded"),
            Error::Invalid(_) => (StatusCode::BAD_REQUEST, "ValidationError"),
            Error::InvalidToken => (StatusCode::FORBIDDEN, "InvalidClientTokenId"),
            Error::ExpiredToken => (StatusCode::FORBIDDEN, "ExpiredToken"),
            Error::Denied(_) => (StatusCode::FORBIDDEN, "AccessDenied"),
            Error::IndexBusy(_) | Error::Contended(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
            }
            error if error.is_unavailable() => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure"),
        };
        if status.is_server_error() {
            log_fault(&error);
            return Failure::new(
                status,
                code,
                "The request processing has failed because of an internal error.",
            );
        }
        Failure { status, code, message: error.to_string() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let (code, message) = match refusal {
            Refusal::Missing => ("MissingAuthenticationToken", "the request is not signed"),
            Refusal::Malformed => {
                ("IncompleteSignature", "the signature can't be understood, or covers too little")
            }
            Refusal::Skewed => ("RequestExpired", "the request's time is too far from this server's"),
            Refusal::Wrong => ("SignatureDoesNotMatch", "the signature is not that of the request"),
        };
        Failure::new(StatusCode::FORBIDDEN, code, message)
    }
}

/// What is between the tags of an answer.
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
                // What XML 1.0 has no way to write.
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

    /// A page of names behind the form's `Marker`.
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

/// A form's fields. One that is there twice is refused: it would not be known which one counts.
struct Form(BTreeMap<String, String>);

impl Form {
    fn read(body: &[u8]) -> Result<Form, Failure> {
        let wrong =
            || Failure::new(StatusCode::BAD_REQUEST, "MalformedQueryString", "the form can't be read");
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

    fn needed(&self, name: &str) -> Result<&str, Failure> {
        self.get(name).ok_or_else(|| Failure::invalid(format!("{name} is needed")))
    }

    /// A number within bounds, where it is there.
    fn number(&self, name: &str, bounds: std::ops::RangeInclusive<u32>) -> Result<Option<u32>, Failure> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        let wrong = || Failure::invalid(format!("{name} is between {} and {}", bounds.start(), bounds.end()));
        number.map(Some).ok_or_else(wrong)
    }

    /// The name of a policy, role or session.
    fn name(&self, name: &str, max: usize) -> Result<&str, Failure> {
        let text = self.needed(name)?;
        let sound = text.len() <= max
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+=,.@-".contains(&byte));
        if sound {
            Ok(text)
        } else {
            Err(Failure::invalid(format!("{name}: '{text}' is not a name that it may have")))
        }
    }

    /// A policy that was read, with its text.
    fn policy(&self, name: &str, read: fn(&str) -> Result<Policy, String>) -> Result<&str, Failure> {
        let text = self.needed(name)?;
        let policy = read(text).map_err(Failure::malformed)?;
        match policy.keys().find(|key| !crate::s3::is_known_key(key)) {
            Some(key) => Err(Failure::malformed(format!("conditions can't ask for {key}"))),
            None => Ok(text),
        }
    }
}

/// A request that was understood and whose signature is right.
struct Call<'a> {
    gateway: &'a Arc<Gateway>,
    form: &'a Form,
    assumed: Assumed,
    /// By temporary credentials.
    temporary: bool,
    /// What conditions may ask for.
    context: Context,
}

impl Call<'_> {
    fn who(&self) -> Who<'_> {
        let role = self.assumed.role.as_ref().map(|(role, session)| (role.name.as_str(), session.as_str()));
        Who { user: Some(&self.assumed.user.id), role }
    }

    /// What the caller's own policies say.
    fn own_decision(&self, action: &str, resource: &str) -> Decision {
        let policies = match &self.assumed.role {
            Some((role, _)) => &role.permissions,
            None => &self.assumed.user.identity,
        };
        let own = self.decide(policies.iter().map(|policy| &**policy), action, resource);
        match &self.assumed.policy {
            None => own,
            Some(session) => own.and(self.decide([&**session].into_iter(), action, resource)),
        }
    }

    fn decide<'p>(
        &self,
        policies: impl Iterator<Item = &'p Policy>,
        action: &str,
        resource: &str,
    ) -> Decision {
        let context = |key: &str| self.context.get(key);
        let asked = Asked { who: self.who(), action, resource, context: &context };
        policies.fold(Decision::Nothing, |decision, policy| decision.or(evaluate(policy, &asked)))
    }

    /// Refuses who has neither the capability nor a policy that allows the action.
    fn may(&self, kind: &str, perm: Perm, action: &str, resource: &str) -> Result<(), Failure> {
        let user = &self.assumed.user;
        // Capabilities are the user's own: a session has what policies give it.
        let bare = self.assumed.role.is_none() && self.assumed.policy.is_none();
        let capable = bare && (user.admin || user.system || caps::allow(&user.caps, kind, perm));
        match self.own_decision(action, resource) {
            Decision::Deny if !(user.admin || user.system) => Err(Failure::denied(action)),
            Decision::Allow => Ok(()),
            _ if capable => Ok(()),
            _ => Err(Failure::denied(action)),
        }
    }

    async fn answer(&self, action: &str) -> Result<Xml, Failure> {
        let known = match action {
            "AssumeRole" | "GetSessionToken" | "GetCallerIdentity" => return sts::answer(self, action).await,
            // As in AWS, credentials of GetSessionToken can't call IAM without a second factor, which Nacre does not have: a thief
            // of them could create credentials that do not expire.
            _ if self.temporary && self.assumed.role.is_none() => return Err(Failure::denied(action)),
            _ => roles::answer(self, action).await?,
        };
        let known = match known {
            Some(xml) => Some(xml),
            None => users::answer(self, action).await?,
        };
        known.ok_or_else(|| {
            Failure::new(StatusCode::BAD_REQUEST, "InvalidAction", format!("there is no {action} here"))
        })
    }
}

/// Whether a request is one of these.
pub(crate) fn is_form(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    *method == Method::POST
        && path == "/"
        && kind
            .split(';')
            .next()
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded"))
}

/// Answers a form.
pub(crate) async fn respond(gateway: &Arc<Gateway>, request: Request<Body>) -> Response<Body> {
    let (status, text) = match serve(gateway, request).await {
        Ok(text) => (StatusCode::OK, text),
        Err(failure) => {
            let mut xml = Xml::default();
            let kind = if failure.status.is_server_error() { "Receiver" } else { "Sender" };
            xml.part("ErrorResponse", |xml| {
                xml.part("Error", |xml| {
                    xml.text("Type", kind).text("Code", failure.code).text("Message", &failure.message);
                });
            });
            (failure.status, xml.0)
        }
    };
    let mut response = Response::new(Body::from(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{text}")));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    response
}

async fn serve(gateway: &Arc<Gateway>, request: Request<Body>) -> Result<String, Failure> {
    let (head, mut body) = request.into_parts();
    if head.uri.query().is_some_and(|query| !query.is_empty()) {
        return Err(Failure::new(
            StatusCode::BAD_REQUEST,
            "InvalidParameterCombination",
            "parameters are in the form",
        ));
    }
    let body = body.store_all_limited(MAX_BODY_BYTES).await;
    let body = body.map_err(|_| Failure::invalid("the form is cut short or too long"))?;
    let signature = signature::read(&head.headers)?;
    if !["iam", "sts", "s3"].contains(&signature.service) {
        return Err(Failure::new(
            StatusCode::FORBIDDEN,
            "SignatureDoesNotMatch",
            "the signature is for another service",
        ));
    }
    let unknown =
        || Failure::new(StatusCode::FORBIDDEN, "InvalidClientTokenId", "there is no such access key");
    let secret = match gateway.secret_of(signature.access_key).await {
        Err(Error::NoSuchUser(_)) => return Err(unknown()),
        secret => secret?,
    };
    signature.check_form(&head.headers, &body, &secret, OffsetDateTime::now_utc())?;
    let token = head.headers.get("x-amz-security-token").and_then(|token| token.to_str().ok());
    let assumed = match gateway.identify(signature.access_key, token).await {
        Err(Error::NoSuchUser(_)) => return Err(unknown()),
        assumed => assumed?,
    };
    let form = Form::read(&body)?;
    let action = form.needed("Action")?;
    if let Some(seen) = head.extensions.get::<Arc<Seen>>() {
        seen.note(if signature.service == "sts" { "STS" } else { "IAM" }, &assumed.user.id);
    }
    let peer = head.extensions.get::<Peer>();
    let context = Context::of(&head.headers, "", peer, Some(assumed.user.as_ref()), assumed.role.as_ref());
    let temporary = crate::session::is_temporary(signature.access_key);
    let call = Call { gateway, form: &form, assumed, temporary, context };
    let inner = call.answer(action).await?;
    let space = match signature.service {
        "sts" => "https://sts.amazonaws.com/doc/2011-06-15/",
        _ => "https://iam.amazonaws.com/doc/2010-05-08/",
    };
    let result = if inner.0.is_empty() {
        String::new()
    } else {
        format!("<{action}Result>{}</{action}Result>", inner.0)
    };
    let id = gateway.tag();
    Ok(format!(
        "<{action}Response xmlns=\"{space}\">{result}<ResponseMetadata><RequestId>{id}</RequestId></ResponseMetadata>\
         </{action}Response>"
    ))
}

/// A time as AWS's XML has it.
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
    fn forms_are_told_from_objects() {
        let headers = |kind: &str| HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert!(is_form(&Method::POST, "/", &headers(form)));
        assert!(!is_form(&Method::POST, "/bucket", &headers(form)));
        assert!(!is_form(&Method::PUT, "/", &headers(form)));
        assert!(!is_form(&Method::POST, "/", &headers("multipart/form-data")));
        assert_eq!(time(1_767_323_045_000_000_000), "2026-01-02T03:04:05Z");
    }
}
