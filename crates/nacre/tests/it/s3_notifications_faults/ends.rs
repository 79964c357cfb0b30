//! Reads the final state of both buckets from gateways.

use super::client::{Answer, Connection, Keys, Reply, Request, elements_of, text_of};
use super::history::{FinalState, History, OpKind, OpOutcome, PLAIN, VERSIONED, Version};
use crate::support::TEST_TIMEOUT;
use http::Method;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

/// A reader of one gateway, with retries where needed.
pub(super) struct Reader<'a> {
    pub(super) to: SocketAddr,
    pub(super) credentials: &'a Keys,
}

impl Reader<'_> {
    async fn surely(&self, request: Request) -> Answer {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let mut connection = Connection::new(Ipv4Addr::LOCALHOST, self.to);
            if let Reply::Answered(answer) = connection.send(self.credentials, &request).await
                && !answer.status.is_server_error()
            {
                return answer;
            }
            assert!(Instant::now() < deadline, "never answered: {request:?}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    /// The operation that wrote an object or a version, or `None` if there is none.
    async fn writer(&self, request: Request) -> Option<u32> {
        let answer = self.surely(request).await;
        answer.status.is_success().then(|| {
            let number = answer.header("x-amz-meta-op").and_then(|number| number.parse().ok());
            number.unwrap_or_else(|| panic!("an object that nobody wrote: {answer:?}"))
        })
    }

    /// The operation that tagged an object.
    async fn tagger(&self, key: &str) -> Option<u32> {
        let answer = self.surely(Request::new(Method::GET, PLAIN, key).query("tagging", "")).await;
        text_of(&answer.body, "Value")?.parse().ok()
    }

    /// The keys of a bucket with all their versions, from pages of ListObjectVersions.
    async fn versions(&self) -> BTreeMap<String, Vec<Version>> {
        let mut found: [BTreeMap<String, Vec<Version>>; 2] = [BTreeMap::new(), BTreeMap::new()];
        let (mut key, mut version) = (String::new(), String::new());
        loop {
            let mut request = Request::new(Method::GET, VERSIONED, "").query("versions", "");
            if !key.is_empty() {
                request = request.query("key-marker", &*key).query("version-id-marker", &*version);
            }
            let page = self.surely(request).await;
            assert!(page.status.is_success(), "{page:?}");
            for (is_marker, name) in [(false, "Version"), (true, "DeleteMarker")] {
                for entry in elements_of(&page.body, name) {
                    let field = |name| text_of(entry, name).unwrap_or_else(|| panic!("{name}: {entry}"));
                    let version = Version {
                        id: field("VersionId").to_owned(),
                        is_marker,
                        is_latest: field("IsLatest") == "true",
                        number: None,
                    };
                    let of_kind = &mut found[usize::from(is_marker)];
                    of_kind.entry(field("Key").to_owned()).or_default().push(version);
                }
            }
            if text_of(&page.body, "IsTruncated") != Some("true") {
                break;
            }
            let marker = |name| text_of(&page.body, name).unwrap_or_default().to_owned();
            (key, version) = (marker("NextKeyMarker"), marker("NextVersionIdMarker"));
        }
        let [mut versions, markers] = found;
        for (key, markers) in markers {
            versions.entry(key).or_default().extend(markers);
        }
        versions
    }

    /// The final state.
    pub(super) async fn read(&self, history: &History) -> FinalState {
        let mut ends = FinalState { objects: BTreeMap::new(), versions: self.versions().await };
        let operations = history.operations.iter().filter(|one| one.bucket == PLAIN);
        let keys: BTreeSet<&str> = operations.map(|one| one.key.as_str()).collect();
        for key in keys {
            if let Some(number) = self.writer(Request::new(Method::GET, PLAIN, key)).await {
                ends.objects.insert(key.to_owned(), (number, self.tagger(key).await));
            }
        }
        // Versions that no client received in an answer are those of unknown outcomes.
        let told: BTreeSet<&str> = history
            .operations
            .iter()
            .filter(|operation| operation.kind.is_creation() || operation.kind == OpKind::Delete)
            .filter_map(|operation| match &operation.outcome {
                OpOutcome::Acknowledged { version, .. } => version.as_deref(),
                OpOutcome::Refused | OpOutcome::Unknown => None,
            })
            .collect();
        for (key, versions) in &mut ends.versions {
            let others = versions.iter_mut().filter(|one| !one.is_marker && !told.contains(&*one.id));
            for version in others {
                let request = Request::new(Method::HEAD, VERSIONED, key).query("versionId", &*version.id);
                version.number = self.writer(request).await;
                assert!(version.number.is_some(), "{key}: version {} is listed and not read", version.id);
            }
        }
        ends
    }
}
