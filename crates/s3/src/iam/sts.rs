//! Temporary credentials: `AssumeRole`, `GetSessionToken`, `GetCallerIdentity`.

use super::{Call, Xml, time};
use crate::forms::QueryError;
use http::StatusCode;
use nacre_rgw::policy::{Decision, Policy};
use nacre_rgw::session::{Credentials, Session};
use nacre_rgw::time::now_ns;

/// The shortest duration of a session and the default, in seconds.
const MIN_SESSION_S: u32 = 900;
const DEFAULT_SESSION_S: u32 = 3600;
/// The longest duration of a user's session, in seconds.
const MAX_USER_SESSION_S: u32 = 129_600;
/// The longest policy of a session, in bytes.
const MAX_SESSION_POLICY_BYTES: usize = 2048;

pub(super) async fn answer(call: &Call<'_>, action: &str) -> Result<Xml, QueryError> {
    match action {
        "AssumeRole" => assume_role(call).await,
        "GetSessionToken" => session_token(call).await,
        _ => Ok(caller(call)),
    }
}

fn credentials(xml: &mut Xml, given: &Credentials) {
    xml.part("Credentials", |xml| {
        xml.text("AccessKeyId", &given.access_key)
            .text("SecretAccessKey", &given.secret_key)
            .text("SessionToken", &given.token)
            .text("Expiration", &time(given.expires_ns));
    });
}

fn expires(seconds: u32) -> u64 {
    now_ns() + u64::from(seconds) * 1_000_000_000
}

async fn assume_role(call: &Call<'_>) -> Result<Xml, QueryError> {
    const ACTION: &str = "sts:AssumeRole";
    let form = call.form;
    let arn = form.needed("RoleArn")?;
    let session = form.name("RoleSessionName", 64)?;
    if session.len() < 2 {
        return Err(QueryError::validation("RoleSessionName has at least 2 characters"));
    }
    let named = arn.strip_prefix("arn:aws:iam::").and_then(|rest| rest.split_once(":role/"));
    let name = named.and_then(|(_, path)| path.rsplit('/').next()).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| QueryError::validation("RoleArn is arn:aws:iam:::role/NAME"))?;
    // Callers that may not assume a role must not learn whether it exists.
    let role = match call.gateway.roles.cached(name).await {
        Err(nacre_rgw::Error::NoSuchRole(_)) => return Err(QueryError::denied(ACTION)),
        role => role?,
    };
    let trusted = role.assumed_by.iter().map(|policy| &**policy);
    let trusted = call.caller.evaluate_policies(trusted, ACTION, &role.arn());
    let own = call.caller.own_decision(ACTION, &role.arn());
    let limited = call.caller.assumed.policy.is_some() && own != Decision::Allow;
    if trusted != Decision::Allow || own == Decision::Deny || limited {
        return Err(QueryError::denied(ACTION));
    }
    let seconds = form.number("DurationSeconds", MIN_SESSION_S..=role.max_session_s)?;
    if form.0.keys().any(|name| name.starts_with("PolicyArns.")) {
        return Err(QueryError::validation("there are no managed policies here"));
    }
    let policy = match form.get("Policy") {
        Some(text) if text.len() > MAX_SESSION_POLICY_BYTES => {
            let code = "PackedPolicyTooLarge";
            return Err(QueryError::new(StatusCode::BAD_REQUEST, code, "the session's policy is too long"));
        }
        Some(_) => form.policy("Policy", Policy::read_identity)?.to_owned(),
        None => String::new(),
    };
    let packed = policy.len() * 100 / MAX_SESSION_POLICY_BYTES;
    let given = Session {
        access_key: String::new(),
        user: call.caller.assumed.user.id.clone(),
        user_created_ns: call.caller.assumed.user.created_ns,
        role: Some((role.name.clone(), role.id.clone(), session.to_owned())),
        policy,
        expires_ns: expires(seconds.unwrap_or(DEFAULT_SESSION_S.min(role.max_session_s))),
    };
    let given = call.gateway.authenticator.issue(given).await?;
    let mut xml = Xml::default();
    credentials(&mut xml, &given);
    xml.part("AssumedRoleUser", |xml| {
        xml.text("AssumedRoleId", &format!("{}:{session}", role.id))
            .text("Arn", &format!("arn:aws:sts:::assumed-role/{}/{session}", role.name));
    });
    xml.text("PackedPolicySize", &packed.to_string());
    Ok(xml)
}

async fn session_token(call: &Call<'_>) -> Result<Xml, QueryError> {
    const ACTION: &str = "sts:GetSessionToken";
    let user = &call.caller.assumed.user;
    // Temporary credentials could otherwise be renewed without end.
    if call.caller.temporary || call.caller.own_decision(ACTION, "*") == Decision::Deny {
        return Err(QueryError::denied(ACTION));
    }
    let seconds = call.form.number("DurationSeconds", MIN_SESSION_S..=MAX_USER_SESSION_S)?;
    let session = Session {
        user: user.id.clone(),
        user_created_ns: user.created_ns,
        expires_ns: expires(seconds.unwrap_or(DEFAULT_SESSION_S)),
        ..Session::default()
    };
    let given = call.gateway.authenticator.issue(session).await?;
    let mut xml = Xml::default();
    credentials(&mut xml, &given);
    Ok(xml)
}

/// Describes the caller. Every caller may request this about itself.
fn caller(call: &Call<'_>) -> Xml {
    let user = &call.caller.assumed.user.id;
    let (arn, id) = match &call.caller.assumed.role {
        Some((role, session)) => {
            (format!("arn:aws:sts:::assumed-role/{}/{session}", role.name), format!("{}:{session}", role.id))
        }
        None => (format!("arn:aws:iam:::user/{user}"), user.clone()),
    };
    let mut xml = Xml::default();
    xml.text("Arn", &arn).text("UserId", &id).text("Account", "");
    xml
}
