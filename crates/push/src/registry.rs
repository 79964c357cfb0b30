//! Clients that are in use, by their endpoint.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Holds weak references to clients, which end with their last user.
pub(crate) struct Registry<K, C> {
    clients: Mutex<Vec<(K, Weak<C>)>>,
}

impl<K, C> Default for Registry<K, C> {
    fn default() -> Registry<K, C> {
        Registry { clients: Mutex::new(Vec::new()) }
    }
}

impl<K: Clone + PartialEq, C> Registry<K, C> {
    /// The client for `key`; creates it if there is none.
    pub(crate) fn get_or_make<E>(&self, key: &K, make: impl FnOnce() -> Result<C, E>) -> Result<Arc<C>, E> {
        let mut clients = self.clients.lock();
        let known = clients.iter().find(|(known, _)| known == key);
        if let Some(client) = known.and_then(|(_, client)| client.upgrade()) {
            return Ok(client);
        }
        clients.retain(|(_, client)| client.strong_count() > 0);
        let client = Arc::new(make()?);
        clients.push((key.clone(), Arc::downgrade(&client)));
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_shared_and_forgotten_with_their_last_user() {
        let registry: Registry<&str, u32> = Registry::default();
        let make = |number| registry.get_or_make::<()>(&"a", || Ok(number)).unwrap();
        let (first, second) = (make(1), make(2));
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        assert_eq!(*make(3), 3);
        assert_eq!(*registry.get_or_make::<()>(&"b", || Ok(4)).unwrap(), 4);
        assert_eq!(registry.clients.lock().len(), 1, "the clients of 'a' are gone");
        assert_eq!(registry.get_or_make(&"c", || Err("fails")), Err("fails"));
    }
}
