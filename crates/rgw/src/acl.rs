//! Access control lists: which users besides the owner may do what with a bucket or an object.

use serde::{Deserialize, Serialize};

/// An access control list. The owner may always read and write the list itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    /// The grants, including the owner's own.
    pub grants: Vec<Grant>,
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The user or group that has the permission.
    pub grantee: Grantee,
    /// The permission.
    pub permission: Permission,
}

/// The user or group that a grant applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grantee {
    /// A user, by its id.
    User(String),
    /// Everybody, including anonymous clients.
    Everybody,
    /// Every authenticated user.
    AnyUser,
}

impl Grantee {
    /// Whether the grantee is a group, not a single user.
    pub fn is_group(&self) -> bool {
        !matches!(self, Grantee::User(_))
    }
}

/// A permission that a grant gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Permission {
    /// List a bucket; read an object.
    Read,
    /// Write and remove a bucket's objects.
    Write,
    /// Read the access control list.
    ReadAcl,
    /// Change the access control list.
    WriteAcl,
    /// All permissions.
    Full,
}

impl Acl {
    /// Returns a list that grants everything to the owner and nothing to others.
    pub fn private(owner: &str) -> Acl {
        let grantee = Grantee::User(owner.to_owned());
        Acl { grants: vec![Grant { grantee, permission: Permission::Full }] }
    }

    /// Returns S3's canned ACL `name` for a resource of `owner` in a bucket of `bucket_owner`, or `None` if there is no
    /// canned ACL of that name.
    pub fn canned(name: &str, owner: &str, bucket_owner: &str) -> Option<Acl> {
        use Permission::{Full, Read, Write};
        let user = |id: &str| Grantee::User(id.to_owned());
        let more: Vec<(Grantee, Permission)> = match name {
            "private" | "aws-exec-read" | "log-delivery-write" => vec![],
            "public-read" => vec![(Grantee::Everybody, Read)],
            "public-read-write" => vec![(Grantee::Everybody, Read), (Grantee::Everybody, Write)],
            "authenticated-read" => vec![(Grantee::AnyUser, Read)],
            "bucket-owner-read" if owner != bucket_owner => vec![(user(bucket_owner), Read)],
            "bucket-owner-full-control" if owner != bucket_owner => vec![(user(bucket_owner), Full)],
            "bucket-owner-read" | "bucket-owner-full-control" => vec![],
            _ => return None,
        };
        let mut acl = Acl::private(owner);
        acl.grants.extend(more.into_iter().map(|(grantee, permission)| Grant { grantee, permission }));
        Some(acl)
    }

    /// Transfers the grants of user `from` to user `to`.
    pub(crate) fn transfer_grants(&mut self, from: &str, to: &str) {
        for grant in &mut self.grants {
            if matches!(&grant.grantee, Grantee::User(id) if id == from) {
                grant.grantee = Grantee::User(to.to_owned());
            }
        }
    }

    /// Whether the list grants nothing to anyone but `owner`.
    pub fn is_private(&self, owner: &str) -> bool {
        self.grants.iter().all(|grant| matches!(&grant.grantee, Grantee::User(id) if id == owner))
    }

    /// Whether anything is granted to everybody or to all users.
    pub fn is_public(&self) -> bool {
        self.grants.iter().any(|grant| grant.grantee.is_group())
    }

    /// Whether the list grants `wanted` to `user`; `None` is an anonymous client.
    pub fn grants(&self, user: Option<&str>, wanted: Permission) -> bool {
        self.grants_with_groups(user, wanted, true)
    }

    /// Like [`Acl::grants`], but ignores grants to groups unless `groups` is set.
    pub fn grants_with_groups(&self, user: Option<&str>, wanted: Permission, groups: bool) -> bool {
        let is = |grantee: &Grantee| match grantee {
            Grantee::User(id) => user == Some(id),
            Grantee::Everybody => true,
            Grantee::AnyUser => user.is_some(),
        };
        self.grants.iter().any(|grant| {
            (grant.permission == wanted || grant.permission == Permission::Full)
                && (groups || !grant.grantee.is_group())
                && is(&grant.grantee)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canned_lists_grant_what_they_say() {
        let cases: [(&str, Permission, [bool; 4]); 8] = [
            // The writer, the bucket's owner, another user, an anonymous client.
            ("private", Permission::Read, [true, false, false, false]),
            ("public-read", Permission::Read, [true, true, true, true]),
            ("public-read", Permission::Write, [true, false, false, false]),
            ("public-read-write", Permission::Write, [true, true, true, true]),
            ("authenticated-read", Permission::Read, [true, true, true, false]),
            ("bucket-owner-read", Permission::Read, [true, true, false, false]),
            ("bucket-owner-read", Permission::WriteAcl, [true, false, false, false]),
            ("bucket-owner-full-control", Permission::WriteAcl, [true, true, false, false]),
        ];
        for (name, wanted, expected) in cases {
            let acl = Acl::canned(name, "writer", "owner").unwrap();
            let users = [Some("writer"), Some("owner"), Some("other"), None];
            assert_eq!(users.map(|user| acl.grants(user, wanted)), expected, "{name} {wanted:?}");
        }
        assert_eq!(Acl::canned("nonesuch", "a", "b"), None);
    }
}
