//! Roles, the policies that say who may assume them, and their own policies.

use super::{Call, Form, MAX_POLICIES, Xml, absent, time};
use crate::forms::QueryError;
use http::StatusCode;
use nacre_rgw::caps::Perm;
use nacre_rgw::error::Error;
use nacre_rgw::policy::Policy;
use nacre_rgw::role::{DEFAULT_MAX_SESSION_S, MAX_SESSION_S, Role};

/// The capability that operations on roles need.
const KIND: &str = "roles";
/// The lower bound of the maximum session duration of a role, in seconds.
const MIN_MAX_SESSION_S: u32 = 3600;

/// Carries out an operation on roles; `None` for other actions.
pub(super) async fn answer(call: &Call<'_>, action: &str) -> Result<Option<Xml>, QueryError> {
    let reads = matches!(
        action,
        "GetRole"
            | "ListRoles"
            | "GetRolePolicy"
            | "ListRolePolicies"
            | "ListAttachedRolePolicies"
            | "ListInstanceProfilesForRole"
            | "ListRoleTags"
    );
    let writes = matches!(
        action,
        "CreateRole"
            | "UpdateRole"
            | "DeleteRole"
            | "UpdateAssumeRolePolicy"
            | "PutRolePolicy"
            | "DeleteRolePolicy"
    );
    if !reads && !writes {
        return Ok(None);
    }
    let form = call.form;
    let perm = if reads { Perm::READ } else { Perm::WRITE };
    let iam = format!("iam:{action}");
    if action == "ListRoles" {
        call.may(KIND, perm, &iam, "arn:aws:iam:::role/*")?;
        return list(call).await.map(Some);
    }
    let name = form.name("RoleName", 64)?;
    if action == "CreateRole" {
        let role = new_role(form, name)?;
        call.may(KIND, perm, &iam, &role.arn())?;
        let role = call.gateway.roles.create(role).await?;
        let mut xml = Xml::default();
        describe(&mut xml, "Role", &role);
        return Ok(Some(xml));
    }
    let role = call.gateway.roles.get(name).await;
    // The permission is checked before a failed lookup is reported, so that callers without it do not learn which roles
    // exist.
    let arn = role.as_ref().map_or_else(|_| format!("arn:aws:iam:::role/{name}"), Role::arn);
    call.may(KIND, perm, &iam, &arn)?;
    let role = role?;
    let mut xml = Xml::default();
    match action {
        "GetRole" => describe(&mut xml, "Role", &role),
        "GetRolePolicy" => {
            let policy = form.name("PolicyName", 128)?;
            let text = role.policies.get(policy).ok_or_else(|| no_policy(policy))?;
            xml.text("RoleName", name)
                .text("PolicyName", policy)
                .text("PolicyDocument", &urlencoding::encode(text));
        }
        "ListRolePolicies" => {
            let names = role.policies.keys().cloned().collect();
            xml.page(form, "PolicyNames", names, |xml, name| _ = xml.text("member", name));
        }
        "ListAttachedRolePolicies" => _ = xml.page(form, "AttachedPolicies", Vec::new(), |_, _| {}),
        "ListInstanceProfilesForRole" => _ = xml.page(form, "InstanceProfiles", Vec::new(), |_, _| {}),
        "ListRoleTags" => _ = xml.page(form, "Tags", Vec::new(), |_, _| {}),
        "DeleteRole" => {
            if !role.policies.is_empty() {
                let message = "the role has policies: remove them first";
                return Err(QueryError::new(StatusCode::CONFLICT, "DeleteConflict", message));
            }
            call.gateway.roles.remove(name).await?;
        }
        _ => change(call, action, name).await?,
    }
    Ok(Some(xml))
}

fn no_policy(name: &str) -> QueryError {
    absent(format!("there is no policy {name}"))
}

fn new_role(form: &Form, name: &str) -> Result<Role, QueryError> {
    let path = form.get("Path").unwrap_or("/");
    let sound = path.starts_with('/')
        && path.ends_with('/')
        && path.len() <= 512
        && path.bytes().all(|b| b.is_ascii_graphic());
    if !sound {
        return Err(QueryError::validation("Path begins and ends with /"));
    }
    Ok(Role {
        name: name.to_owned(),
        path: path.to_owned(),
        description: form.get("Description").unwrap_or_default().chars().take(1000).collect(),
        trust: form.policy("AssumeRolePolicyDocument", Policy::read_trust)?.to_owned(),
        max_session_s: max_session(form)?.unwrap_or(DEFAULT_MAX_SESSION_S),
        ..Role::default()
    })
}

fn max_session(form: &Form) -> Result<Option<u32>, QueryError> {
    form.number("MaxSessionDuration", MIN_MAX_SESSION_S..=MAX_SESSION_S)
}

async fn change(call: &Call<'_>, action: &str, name: &str) -> Result<(), QueryError> {
    let (gateway, form) = (call.gateway, call.form);
    match action {
        "UpdateRole" => {
            let (max_session_s, description) =
                (max_session(form)?, form.get("Description").map(str::to_owned));
            gateway
                .roles
                .modify(name, |role| {
                    role.max_session_s = max_session_s.unwrap_or(role.max_session_s);
                    role.description = description.clone().unwrap_or(std::mem::take(&mut role.description));
                    Ok(())
                })
                .await?;
        }
        "UpdateAssumeRolePolicy" => {
            let trust = form.policy("PolicyDocument", Policy::read_trust)?;
            let change = |role: &mut Role| {
                role.trust = trust.to_owned();
                Ok(())
            };
            gateway.roles.modify(name, change).await?;
        }
        "PutRolePolicy" => {
            let policy = form.name("PolicyName", 128)?;
            let text = form.policy("PolicyDocument", Policy::read_identity)?;
            let change = |role: &mut Role| {
                role.policies.insert(policy.to_owned(), text.to_owned());
                let fits = role.policies.len() <= MAX_POLICIES;
                if fits { Ok(()) } else { Err(Error::LimitExceeded(format!("{MAX_POLICIES} policies"))) }
            };
            gateway.roles.modify(name, change).await?;
        }
        _ => {
            let policy = form.name("PolicyName", 128)?;
            let mut was_there = false;
            let change = |role: &mut Role| {
                was_there = role.policies.remove(policy).is_some();
                Ok(())
            };
            gateway.roles.modify(name, change).await?;
            if !was_there {
                return Err(no_policy(policy));
            }
        }
    }
    Ok(())
}

async fn list(call: &Call<'_>) -> Result<Xml, QueryError> {
    let prefix = call.form.get("PathPrefix").unwrap_or("/");
    let mut roles = std::collections::BTreeMap::new();
    for name in call.gateway.roles.list().await? {
        match call.gateway.roles.cached(&name).await {
            // The role was removed after it was listed.
            Err(Error::NoSuchRole(_)) => {}
            role => {
                let role = role?;
                if role.path.starts_with(prefix) {
                    roles.insert(name, role);
                }
            }
        }
    }
    let mut xml = Xml::default();
    let names = roles.keys().cloned().collect();
    xml.page(call.form, "Roles", names, |xml, name| {
        if let Some(role) = roles.get(name) {
            describe(xml, "member", role);
        }
    });
    Ok(xml)
}

fn describe(xml: &mut Xml, name: &str, role: &Role) {
    xml.part(name, |xml| {
        xml.text("RoleId", &role.id)
            .text("RoleName", &role.name)
            .text("Path", &role.path)
            .text("Arn", &role.arn())
            .text("CreateDate", &time(role.created_ns))
            .text("MaxSessionDuration", &role.max_session_s.to_string())
            .text("AssumeRolePolicyDocument", &urlencoding::encode(&role.trust));
        if !role.description.is_empty() {
            xml.text("Description", &role.description);
        }
    });
}
