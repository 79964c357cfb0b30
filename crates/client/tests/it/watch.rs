//! Watches with failovers.

use crate::fake::{Fake, Mood, until};
use nacre_client::{Error, Notification, WatchHandler, block_on};
use nacre_types::OsdId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Records the errors with which watches were lost.
#[derive(Default)]
struct Losses(Mutex<Vec<Error>>);

impl WatchHandler for Losses {
    fn notified(&self, _: Notification) {}

    fn lost(&self, _: u64, error: Error) {
        self.0.lock().push(error);
    }
}

#[test]
fn a_watch_outlives_a_failover_with_a_ping_in_flight() {
    // The ping reaches the new primary before the watch does. It is refused, or it succeeds.
    for lenient in [false, true] {
        let fake = Fake::start();
        let pool = block_on(fake.connect().open_pool("data")).unwrap();
        pool.write_full("object", "data").wait().unwrap();
        let losses = Arc::new(Losses::default());
        let (cookie, registered) = pool.watch("object", Some(Duration::from_secs(1)), losses.clone());
        registered.wait().unwrap();
        fake.world.lock().mood = Mood::Swallow;
        fake.world.lock().pings.clear();
        until("a ping", || !fake.world.lock().pings.is_empty());
        let before = {
            let mut world = fake.world.lock();
            (world.mood, world.lenient_pings) = (Mood::Serve, lenient);
            world.pings.drain(..).next_back().unwrap()
        };
        fake.move_all_to(OsdId(1 - before.0));
        until("later pings", || fake.world.lock().pings.len() > 2 || !losses.0.lock().is_empty());
        assert!(losses.0.lock().is_empty(), "{:?}", losses.0.lock());
        assert!(pool.watch_check(cookie).is_ok());
    }
}
