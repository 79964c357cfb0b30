//! Users, their keys and policies.

use super::{Call, MAX_POLICIES, Xml, absent, time};
use crate::forms::QueryError;
use http::StatusCode;
use nacre_rgw::caps::Perm;
use nacre_rgw::error::Error;
use nacre_rgw::policy::Policy;
use nacre_rgw::user::{AccessKey, User};

/// This interface creates no key pair for a user that has this many.
const MAX_KEYS: usize = 16;

/// Returns the capability and the permission that an operation on users needs; `None` for other actions.
fn needs(action: &str) -> Option<(&'static str, Perm)> {
    Some(match action {
        "GetUser" | "ListUsers" | "ListAccessKeys" | "ListGroupsForUser" | "ListUserTags" => {
            ("users", Perm::READ)
        }
        "CreateUser" | "DeleteUser" | "CreateAccessKey" | "DeleteAccessKey" => ("users", Perm::WRITE),
        "GetUserPolicy" | "ListUserPolicies" | "ListAttachedUserPolicies" => ("user-policy", Perm::READ),
        "PutUserPolicy" | "DeleteUserPolicy" => ("user-policy", Perm::WRITE),
        _ => return None,
    })
}

fn arn(id: &str) -> String {
    format!("arn:aws:iam:::user/{id}")
}

pub(super) async fn answer(call: &Call<'_>, action: &str) -> Result<Option<Xml>, QueryError> {
    let Some((kind, perm)) = needs(action) else { return Ok(None) };
    let (gateway, form) = (call.gateway, call.form);
    let iam = format!("iam:{action}");
    let mut xml = Xml::default();
    if action == "ListUsers" {
        call.may(kind, perm, &iam, &arn("*"))?;
        let names = gateway.users.list().await?;
        let mut users = std::collections::BTreeMap::new();
        for name in names {
            match gateway.users.get(&name).await {
                // The user was removed after it was listed.
                Err(Error::NoSuchUser(_)) => {}
                user => drop(users.insert(name, user?)),
            }
        }
        let names = users.keys().cloned().collect();
        xml.page(form, "Users", names, |xml, name| {
            if let Some(user) = users.get(name) {
                describe(xml, "member", user);
            }
        });
        return Ok(Some(xml));
    }
    let own = &call.caller.assumed.user.id;
    let id = form.get("UserName").unwrap_or(own);
    // Every user may look up itself.
    if action != "GetUser" || id != own || call.caller.assumed.role.is_some() {
        call.may(kind, perm, &iam, &arn(id))?;
    }
    match action {
        "CreateUser" => {
            let user = User::new(form.needed("UserName")?, id);
            gateway.users.create(&user).await?;
            describe(&mut xml, "User", &gateway.users.get(id).await?);
        }
        "GetUser" => describe(&mut xml, "User", &gateway.users.get(id).await?),
        "DeleteUser" => {
            let user = gateway.users.get(form.needed("UserName")?).await?;
            let conflict = |what: &str| {
                QueryError::new(StatusCode::CONFLICT, "DeleteConflict", format!("the user has {what}"))
            };
            if !user.keys.is_empty() {
                return Err(conflict("keys"));
            }
            if !user.policies.is_empty() {
                return Err(conflict("policies"));
            }
            if !gateway.users.buckets.list(id, "", 1).await?.is_empty() {
                return Err(conflict("buckets"));
            }
            gateway.users.remove(id).await?;
        }
        "ListGroupsForUser" => _ = xml.page(form, "Groups", Vec::new(), |_, _| {}),
        "ListUserTags" => _ = xml.page(form, "Tags", Vec::new(), |_, _| {}),
        "ListAttachedUserPolicies" => _ = xml.page(form, "AttachedPolicies", Vec::new(), |_, _| {}),
        "CreateAccessKey" | "ListAccessKeys" | "DeleteAccessKey" => keys(call, action, id, &mut xml).await?,
        _ => policies(call, action, form.needed("UserName")?, &mut xml).await?,
    }
    Ok(Some(xml))
}

fn describe(xml: &mut Xml, name: &str, user: &User) {
    xml.part(name, |xml| {
        xml.text("Path", "/")
            .text("UserName", &user.id)
            .text("UserId", &user.id)
            .text("Arn", &arn(&user.id))
            .text("CreateDate", &time(user.created_ns));
    });
}

async fn keys(call: &Call<'_>, action: &str, id: &str, xml: &mut Xml) -> Result<(), QueryError> {
    let (gateway, form) = (call.gateway, call.form);
    let user = gateway.users.get(id).await?;
    match action {
        "CreateAccessKey" => {
            if user.keys.len() >= MAX_KEYS {
                return Err(Error::LimitExceeded(format!("{MAX_KEYS} pairs of keys")).into());
            }
            let key = AccessKey::generate()?;
            gateway.users.add_key(id, key.clone()).await?;
            xml.part("AccessKey", |xml| {
                xml.text("UserName", id)
                    .text("AccessKeyId", &key.access_key)
                    .text("Status", "Active")
                    .text("SecretAccessKey", &key.secret_key);
            });
        }
        "ListAccessKeys" => {
            let mut names: Vec<String> = user.keys.iter().map(|key| key.access_key.clone()).collect();
            names.sort_unstable();
            xml.page(form, "AccessKeyMetadata", names, |xml, name| {
                xml.part("member", |xml| {
                    xml.text("UserName", id).text("AccessKeyId", name).text("Status", "Active");
                });
            });
        }
        _ => {
            let key = form.needed("AccessKeyId")?;
            if !user.keys.iter().any(|known| known.access_key == key) {
                return Err(absent(format!("the user has no key {key}")));
            }
            gateway.users.remove_key(id, key).await?;
        }
    }
    Ok(())
}

async fn policies(call: &Call<'_>, action: &str, id: &str, xml: &mut Xml) -> Result<(), QueryError> {
    let (gateway, form) = (call.gateway, call.form);
    let user = gateway.users.get(id).await?;
    if action == "ListUserPolicies" {
        let names = user.policies.keys().cloned().collect();
        xml.page(form, "PolicyNames", names, |xml, name| _ = xml.text("member", name));
        return Ok(());
    }
    let name = form.name("PolicyName", 128)?;
    let absent = || absent(format!("the user has no policy {name}"));
    match action {
        "GetUserPolicy" => {
            let text = user.policies.get(name).ok_or_else(absent)?;
            xml.text("UserName", id)
                .text("PolicyName", name)
                .text("PolicyDocument", &urlencoding::encode(text));
        }
        "PutUserPolicy" => {
            let text = form.policy("PolicyDocument", Policy::read_identity)?;
            let change = |user: &mut User| {
                user.policies.insert(name.to_owned(), text.to_owned());
                let fits = user.policies.len() <= MAX_POLICIES;
                if fits { Ok(()) } else { Err(Error::LimitExceeded(format!("{MAX_POLICIES} policies"))) }
            };
            gateway.users.modify(id, change).await?;
        }
        _ => {
            let mut was_there = false;
            let change = |user: &mut User| {
                was_there = user.policies.remove(name).is_some();
                Ok(())
            };
            gateway.users.modify(id, change).await?;
            if !was_there {
                return Err(absent());
            }
        }
    }
    Ok(())
}
