//! Authentication to other OSDs.

use arc_swap::ArcSwapOption;
use nacre_common::auth::{Credential, CredentialProvider, Ticket};
use nacre_common::error::Error;
use std::sync::Arc;

/// The ticket from the map authority.
pub(crate) struct TicketCredentials(pub(crate) Arc<ArcSwapOption<Ticket>>);

impl CredentialProvider for TicketCredentials {
    fn credential(&self) -> Result<Credential, Error> {
        match self.0.load_full() {
            Some(ticket) => Ok(Credential::Ticket((*ticket).clone())),
            None => Err(Error::Expired("no ticket from the monitor yet".into())),
        }
    }
}
