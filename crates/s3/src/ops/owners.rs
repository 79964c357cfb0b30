//! Owners as answers show them: id and display name.

use nacre_rgw::gateway::Gateway;
use s3s::dto::{Initiator, Owner};
use std::collections::{BTreeSet, HashMap};

/// Returns the user ids without duplicates.
pub(super) fn distinct<'a>(ids: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for id in ids {
        if !all.contains(id) {
            all.insert(id.to_owned());
        }
    }
    all
}

/// The display names of an answer's owners.
#[derive(Debug, Default)]
pub(super) struct OwnerNames(HashMap<String, String>);

impl OwnerNames {
    /// Looks up users. A user that can't be read is shown by its id.
    pub(super) async fn find(gateway: &Gateway, ids: BTreeSet<String>) -> OwnerNames {
        let mut names = HashMap::new();
        for id in ids {
            let user = gateway.users.cached(&id).await;
            let name = user.map_or_else(|_| id.clone(), |user| user.display_name.clone());
            names.insert(id, name);
        }
        OwnerNames(names)
    }

    /// Returns the display name of a user.
    pub(super) fn name(&self, id: &str) -> String {
        self.0.get(id).map_or(id, String::as_str).to_owned()
    }

    pub(super) fn owner(&self, id: &str) -> Option<Owner> {
        Some(Owner { id: Some(id.to_owned()), display_name: Some(self.name(id)) })
    }

    pub(super) fn initiator(&self, id: &str) -> Option<Initiator> {
        Some(Initiator { id: Some(id.to_owned()), display_name: Some(self.name(id)) })
    }
}
