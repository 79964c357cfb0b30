//! What the host does after a request, in addition to its transaction and its answer.

use bytes::Bytes;

/// A further action for a request that has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchNotifyEffect {
    /// Connects the watch to the request's connection.
    Connect {
        /// The watch.
        cookie: u64,
        /// Its timeout in seconds.
        timeout_s: u32,
    },
    /// Records a ping of the watch.
    Ping {
        /// The watch.
        cookie: u64,
    },
    /// Ends the watch.
    Disconnect {
        /// The watch.
        cookie: u64,
    },
    /// Ends all watches of the object, which was removed.
    DisconnectAll,
    /// Sends a notify to the watchers; the request is answered when they have acknowledged it.
    Notify {
        /// The timeout in seconds.
        timeout_s: u32,
        /// The payload for the watchers.
        payload: Bytes,
    },
    /// Acknowledges a notify.
    Ack {
        /// The notify.
        notify_id: u64,
        /// The watch.
        cookie: u64,
        /// The payload for the notifier.
        payload: Bytes,
    },
}
