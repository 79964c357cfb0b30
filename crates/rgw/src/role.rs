//! Roles, which users may assume for a limited time and which have their own rights: records in `default.rgw.meta`
//! (docs/format/rgw.md).

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::message::GatewayMessage;
use crate::peers::{MetadataCache, Peers};
use crate::policy::Policy;
use crate::record;
use crate::time::now_ns;
use nacre_types::encoding::{DecodeError, Versioned};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default for the maximum duration of a role's sessions, in seconds.
pub const DEFAULT_MAX_SESSION_S: u32 = 3600;
/// The largest value that may be set for it, in seconds.
pub const MAX_SESSION_S: u32 = 43_200;

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Unique among the roles.
    pub name: String,
    /// Unique in the cluster and never reused, so sessions of a role end with it.
    pub id: String,
    /// For example, `/` or `/team/`.
    pub path: String,
    /// A text of the administrator.
    pub description: String,
    /// The policy that says who may assume it. JSON.
    pub trust: String,
    /// The policies that say what its sessions may do, by name. JSON.
    pub policies: BTreeMap<String, String>,
    /// The maximum duration of a session, in seconds.
    pub max_session_s: u32,
    /// Nanoseconds since 1970.
    pub created_ns: u64,
    /// Parsed from the policies.
    #[serde(skip)]
    pub permissions: Vec<Arc<Policy>>,
    /// The parsed policy that says who may assume it.
    #[serde(skip)]
    pub assumed_by: Option<Arc<Policy>>,
}

impl Versioned for Role {
    const NAME: &'static str = "role";
}

impl Role {
    /// Returns its name in policies.
    pub fn arn(&self) -> String {
        format!("arn:aws:iam:::role{}{}", self.path, self.name)
    }

    /// Parses the policies. A policy that can't be parsed fails every use of the role.
    fn read_policies(mut self) -> Result<Role> {
        let corrupt = |detail: String| Error::Corrupt {
            name: self.name.clone(),
            source: DecodeError::Corrupt { what: "a role's policy", detail },
        };
        self.assumed_by = Some(Arc::new(Policy::read_trust(&self.trust).map_err(corrupt)?));
        let read =
            self.policies.values().map(|text| Policy::read_identity(text).map(Arc::new).map_err(corrupt));
        self.permissions = read.collect::<Result<_>>()?;
        Ok(self)
    }
}

/// The roles of a cluster.
pub struct Roles {
    connection: Arc<Connection>,
    peers: Arc<Peers>,
    cache: MetadataCache<Role>,
}

impl Roles {
    pub(crate) fn new(connection: &Arc<Connection>, peers: &Arc<Peers>) -> Roles {
        let cache = MetadataCache::new(peers, |roles, change| {
            if let GatewayMessage::Role(name) = change {
                roles.remove(name);
            }
        });
        Roles { connection: Arc::clone(connection), peers: Arc::clone(peers), cache }
    }

    /// Returns the role of that name, as of the beginning of the call or later.
    pub async fn cached(&self, name: &str) -> Result<Arc<Role>> {
        self.cache.get(name, self.get(name)).await
    }

    /// Reads the role of that name.
    pub async fn get(&self, name: &str) -> Result<Role> {
        let found = record::read::<Role>(&self.connection.pools.roles, name).await?;
        let (role, _) = found.ok_or_else(|| Error::NoSuchRole(name.to_owned()))?;
        role.read_policies()
    }

    /// Creates a role; sets its id and its time of creation.
    pub async fn create(&self, mut role: Role) -> Result<Role> {
        role.id = self.connection.new_tag();
        role.created_ns = now_ns();
        let creating = record::create(&self.connection.pools.roles, &role.name, &role);
        if self.peers.with_invalidation(GatewayMessage::Role(role.name.clone()), creating).await? {
            return role.read_policies();
        }
        Err(Error::RoleExists(role.name))
    }

    /// Changes a role.
    pub async fn modify(&self, name: &str, change: impl FnMut(&mut Role) -> Result<()>) -> Result<Role> {
        let changing = record::update(&self.connection.pools.roles, name, change);
        let changed = self.peers.with_invalidation(GatewayMessage::Role(name.to_owned()), changing).await?;
        changed.ok_or_else(|| Error::NoSuchRole(name.to_owned()))
    }

    /// Removes a role, which ends its sessions.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let removing = record::remove(&self.connection.pools.roles, name);
        let was_there = self.peers.with_invalidation(GatewayMessage::Role(name.to_owned()), removing).await?;
        if was_there { Ok(()) } else { Err(Error::NoSuchRole(name.to_owned())) }
    }

    /// Returns the names of all roles.
    pub async fn list(&self) -> Result<Vec<String>> {
        let mut lister = self.connection.pools.roles.list();
        let mut names = Vec::new();
        while let Some(object) = lister.next().await? {
            names.push(object.name().to_owned());
        }
        names.sort_unstable();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCluster;

    #[test]
    fn roles_are_created_changed_and_removed() {
        let cluster = TestCluster::new();
        let (connection, peers) = cluster.connect();
        cluster.run(async move {
            let roles = Roles::new(&connection, &peers);
            let trust = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"*"},"Action":"sts:AssumeRole"}]}"#;
            let role = Role { name: "reader".into(), path: "/team/".into(), trust: trust.into(), ..Role::default() };
            let first = roles.create(role.clone()).await.unwrap();
            assert!(matches!(roles.create(role.clone()).await, Err(Error::RoleExists(_))));
            assert_eq!(first.arn(), "arn:aws:iam:::role/team/reader");
            let change = |role: &mut Role| {
                role.max_session_s = 900;
                Ok(())
            };
            roles.modify("reader", change).await.unwrap();
            assert_eq!(roles.get("reader").await.unwrap().max_session_s, 900);
            roles.remove("reader").await.unwrap();
            assert!(matches!(roles.remove("reader").await, Err(Error::NoSuchRole(_))));
            // Sessions of the role that was removed do not belong to the new one.
            assert_ne!(roles.create(role).await.unwrap().id, first.id);
            assert_eq!(roles.list().await.unwrap(), ["reader"]);
        });
    }
}
