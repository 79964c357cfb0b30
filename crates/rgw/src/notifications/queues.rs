//! What this gateway does with the queues of topics.

use crate::error::Result;
use crate::gateway::Gateway;
use nacre_notify::topic_store::StoredTopic;

impl Gateway {
    pub(super) async fn complete_queues(&self, stored: StoredTopic) -> Result<StoredTopic> {
        Ok(stored)
    }

    pub(super) async fn remove_queues(&self, _deleted: StoredTopic) -> Result<()> {
        Ok(())
    }
}
