//! What is known about a request while it is served.

use http::{Extensions, HeaderMap, Uri, header};
use nacre_rgw::ratelimit::RateLimiterEntry;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin {
    pub(crate) address: IpAddr,
    /// Whether the request came over TLS.
    pub(crate) secure: bool,
}

/// Marks a request whose host names this bucket. The whole path is the key.
#[derive(Clone, Debug)]
pub(crate) struct VirtualHostBucket(pub(crate) String);

/// Information about a request that is collected while it is served.
#[derive(Debug, Default)]
pub(crate) struct RequestInfo {
    id: OnceLock<Box<str>>,
    pub(crate) asked: OnceLock<(Box<str>, Box<str>)>,
    pub(crate) owner: OnceLock<Box<str>>,
    pub(crate) bucket: OnceLock<Box<str>>,
    /// The accounts to which its bytes are charged: its user's and its bucket's.
    pub(crate) accounts: Mutex<Vec<Arc<RateLimiterEntry>>>,
}

impl RequestInfo {
    /// Creates the information of a request with the given id.
    pub(crate) fn of(id: &str) -> RequestInfo {
        RequestInfo { id: OnceLock::from(Box::from(id)), ..RequestInfo::default() }
    }

    /// Returns the request's id; empty if there is no request of a client.
    pub(crate) fn id(&self) -> &str {
        self.id.get().map_or("", |id| id)
    }

    /// Returns whether the requester is a user whose signature is valid.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.asked.get().is_some_and(|(_, requester)| !requester.is_empty())
    }

    /// Sets S3's operation and the requester; only the first call has an effect.
    pub(crate) fn set_operation(&self, operation: &str, requester: &str) {
        self.asked.get_or_init(|| (operation.into(), requester.into()));
    }

    /// Sets the bucket that the request names, whether it exists or not.
    pub(crate) fn set_bucket(&self, bucket: &str) {
        self.bucket.get_or_init(|| bucket.into());
    }

    /// Adds an account to which the request's bytes are charged.
    pub(crate) fn add_rate_limit_entry(&self, account: Arc<RateLimiterEntry>) {
        self.accounts.lock().push(account);
    }

    /// Sets the owner of the bucket.
    pub(crate) fn set_owner(&self, owner: &str) {
        self.owner.get_or_init(|| owner.into());
    }
}

/// Returns the length of a request's body according to its headers; 0 if they do not say.
pub(crate) fn content_length(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}

/// Returns the bucket that a request concerns as a whole, by its host or its path; `None` for other requests.
pub(crate) fn bucket_level_target(uri: &Uri, marks: &Extensions) -> Option<String> {
    let path = uri.path().strip_prefix('/')?;
    if let Some(VirtualHostBucket(bucket)) = marks.get::<VirtualHostBucket>() {
        return path.is_empty().then(|| bucket.clone());
    }
    let name = path.strip_suffix('/').unwrap_or(path);
    if name.is_empty() || name.contains('/') {
        return None;
    }
    urlencoding::decode(name).ok().map(|name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_named_by_host_or_path() {
        let by_path = |path: &str| bucket_level_target(&path.parse().unwrap(), &Extensions::new());
        assert_eq!(by_path("/photos?notification"), Some("photos".into()));
        assert_eq!(by_path("/photos/?notification=a"), Some("photos".into()));
        assert_eq!(by_path("/ph%6ftos?notification"), Some("photos".into()));
        assert_eq!(by_path("/photos/key?notification"), None);
        assert_eq!(by_path("/?notification"), None);
        let by_host = |path: &str| {
            let mut marks = Extensions::new();
            marks.insert(VirtualHostBucket("photos".into()));
            bucket_level_target(&path.parse().unwrap(), &marks)
        };
        assert_eq!(by_host("/?notification"), Some("photos".into()));
        assert_eq!(by_host("/key?notification"), None);
    }
}
