//! Admission: whether an operation may begin though it would add events to a queue that refuses more than its limit.

use crate::error::Result;
use crate::gateway::Gateway;
use nacre_topics::pending::PendingEvents;
use nacre_topics::topic::Topic;

/// What the queues of topics that refuse events when they are full have room for.
#[derive(Debug, Default)]
pub(crate) struct Admissions {}

/// Room in a queue that an operation's events take. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {}

impl Gateway {
    pub(super) async fn admit(&self, _topic: &Topic, _events: &PendingEvents, _key: &str) -> Result<Option<Ticket>> {
        Ok(None)
    }
}
