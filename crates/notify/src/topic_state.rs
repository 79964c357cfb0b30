//! The state that this gateway has for each topic.

use crate::admission::TopicAdmissions;
use crate::closed_generations::ClosedGenerations;
use crate::core::Core;
use crate::endpoints::EndpointTable;
use crate::producer::Producers;
use crate::push::EndpointConnector;
use nacre_topics::topic::TopicId;
use std::sync::Arc;

/// The parts that have a state for each topic.
pub(crate) struct TopicStates {
    pub(crate) endpoints: EndpointTable,
    pub(crate) admissions: TopicAdmissions,
    pub(crate) producers: Producers,
    pub(crate) closed_generations: ClosedGenerations,
}

impl TopicStates {
    pub(crate) fn new(core: &Arc<Core>, connector: Arc<dyn EndpointConnector>) -> TopicStates {
        TopicStates {
            endpoints: EndpointTable::new(core, connector),
            admissions: TopicAdmissions::new(core),
            producers: Producers::new(core),
            closed_generations: ClosedGenerations::new(core),
        }
    }

    /// Removes the state of a topic that no longer exists.
    pub(crate) fn forget(&self, topic: TopicId) {
        self.endpoints.forget(topic);
        self.admissions.forget(topic);
        self.closed_generations.retain(topic, &[]);
        self.producers.forget(topic);
    }
}
