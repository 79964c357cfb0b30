//! A watch on etcd that survives the loss of a member.

use super::{EtcdAccess, EtcdUrl, FIRST_PAUSE, Failure, REQUEST_TIMEOUT, classify};
use async_trait::async_trait;
use etcd_client::{Client, EventType, WatchOptions, WatchStream};
use nacre_mapstore::{MapStoreError, Watch, WatchEvent};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// A watch of a range of keys, with the revision to continue from.
pub(super) struct EtcdWatch {
    url: EtcdUrl,
    access: EtcdAccess,
    /// The watched range, with the prefix of the cluster.
    start: Vec<u8>,
    end: Vec<u8>,
    /// Length of the prefix.
    prefix: usize,
    /// The first revision that was not received yet. Etcd sends the changes of a revision together.
    next_revision: u64,
    endpoint: usize,
    /// The connection that the stream belongs to, and the stream.
    stream: Option<(Client, WatchStream)>,
    events: VecDeque<WatchEvent>,
}

impl EtcdWatch {
    pub(super) fn new(
        url: &EtcdUrl,
        access: &EtcdAccess,
        start: Vec<u8>,
        end: Vec<u8>,
        prefix: usize,
        revision: u64,
    ) -> EtcdWatch {
        EtcdWatch {
            url: url.clone(),
            access: access.clone(),
            start,
            end,
            prefix,
            next_revision: revision,
            endpoint: 0,
            stream: None,
            events: VecDeque::new(),
        }
    }

    /// Opens the stream, at any member.
    pub(super) async fn connect(&mut self) -> Result<(), MapStoreError> {
        let mut last = MapStoreError::Unavailable("no member".into());
        for _ in 0..self.url.endpoints.len() {
            let opened = tokio::time::timeout(REQUEST_TIMEOUT, self.open_stream()).await;
            match opened {
                Ok(Ok(stream)) => {
                    self.stream = Some(stream);
                    return Ok(());
                }
                Ok(Err(Failure::Final(error))) => return Err(error),
                Ok(Err(Failure::Unavailable(text) | Failure::NoSpace(text))) => {
                    last = MapStoreError::Unavailable(text);
                }
                Ok(Err(Failure::NoLease)) => last = MapStoreError::Unavailable("no lease".into()),
                Err(_) => last = MapStoreError::Unavailable(format!("no answer within {REQUEST_TIMEOUT:?}")),
            }
            self.endpoint += 1;
        }
        Err(last)
    }

    async fn open_stream(&self) -> Result<(Client, WatchStream), Failure> {
        let endpoint = &self.url.endpoints[self.endpoint % self.url.endpoints.len()];
        let options = self.access.options().map_err(Failure::Final)?;
        let client = Client::connect([endpoint], Some(options)).await.map_err(|e| classify(&e))?;
        let options = WatchOptions::new()
            .with_range(self.end.clone())
            .with_start_revision(self.next_revision as i64)
            .with_progress_notify();
        let stream = client
            .watch_client()
            // A backlog comes in one answer.
            .max_decoding_message_size(usize::MAX)
            .watch(self.start.clone(), Some(options))
            .await
            .map_err(|e| classify(&e))?;
        Ok((client, stream))
    }

    /// Takes over the changes of an answer. Returns false if the stream has ended.
    fn on_answer(&mut self, answer: &etcd_client::WatchResponse) -> Result<bool, MapStoreError> {
        if answer.compact_revision() > 0 {
            return Err(MapStoreError::Compacted { oldest: answer.compact_revision() as u64 });
        }
        if answer.canceled() {
            tracing::warn!(reason = answer.cancel_reason(), "etcd has ended a watch");
            return Ok(false);
        }
        for event in answer.events() {
            let Some(changed) = event.kv() else { continue };
            let value = (event.event_type() == EventType::Put).then(|| changed.value().to_vec());
            self.events.push_back(WatchEvent {
                revision: changed.mod_revision() as u64,
                key: changed.key().get(self.prefix..).unwrap_or_default().to_vec(),
                value,
            });
        }
        // Answers without events are notifications of progress: everything up to their revision was sent.
        let last = match self.events.back() {
            Some(event) if !answer.events().is_empty() => event.revision,
            _ if answer.created() => return Ok(true),
            _ => answer.header().map_or(0, |header| header.revision()) as u64,
        };
        self.next_revision = self.next_revision.max(last + 1);
        Ok(true)
    }
}

#[async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self, timeout: Duration) -> Result<Option<WatchEvent>, MapStoreError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let Some((_, stream)) = &mut self.stream else {
                match tokio::time::timeout_at(deadline, self.connect()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(MapStoreError::Unavailable(error))) => {
                        tracing::debug!(%error, "a watch of the map store is opened again");
                        tokio::time::sleep(FIRST_PAUSE).await;
                    }
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Ok(None),
                }
                continue;
            };
            match tokio::time::timeout_at(deadline, stream.message()).await {
                Ok(Ok(Some(answer))) => {
                    if !self.on_answer(&answer)? {
                        self.stream = None;
                        self.endpoint += 1;
                        tokio::time::sleep(FIRST_PAUSE).await;
                    }
                }
                Ok(Ok(None) | Err(_)) => {
                    self.stream = None;
                    self.endpoint += 1;
                }
                Err(_) => return Ok(None),
            }
        }
    }
}
