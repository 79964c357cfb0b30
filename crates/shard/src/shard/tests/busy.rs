//! A shard whose store is slow.

use super::*;
use crate::control::Control;
use crate::superblock::{OsdRecords, Superblock};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The duration of a store call while control waits for the shard.
const HANGS: Duration = Duration::from_secs(20);

/// A control with its own shard.
fn control(bench: &Bench) -> (Arc<Vec<ShardCell>>, Control) {
    let cells = Arc::new(vec![ShardCell::new(&bench.shared, 0)]);
    let superblock =
        Superblock { fsid: Uuid::nil(), osd: OsdId(0), uuid: Uuid::nil(), epoch: Epoch(0), generation: 0 };
    let records = OsdRecords::new(superblock);
    let control = Control::new(Arc::clone(&bench.shared), Arc::clone(&cells), records, Default::default());
    (cells, control)
}

#[test]
fn control_goes_on_while_a_shard_waits_for_its_store() {
    let bench = Bench::new();
    let (cells, mut control) = control(&bench);
    bench.shared.map.store(Some(Arc::new(bench.map.clone())));
    control.on_connected();
    let (began, is_at_work) = mpsc::channel();
    let (returned, has_returned) = mpsc::channel();
    std::thread::scope(|scope| {
        let cells = &cells;
        let store_call = scope.spawn(move || {
            cells[0].with(|_| {
                began.send(()).unwrap();
                has_returned.recv_timeout(HANGS).is_ok()
            })
        });
        is_at_work.recv().unwrap();
        let start = Instant::now();
        control.request_report();
        control.tick();
        assert!(start.elapsed() < HANGS / 4, "a round took {:?}", start.elapsed());
        returned.send(()).ok();
        assert!(store_call.join().unwrap(), "the round waited for the store");
    });
    cells[0].with(Shard::close);
}

#[test]
fn a_shard_that_does_not_answer_counts_as_a_slow_op() {
    let bench = Bench::with(&[("osd_op_complaint_time", "30")]);
    let (cells, mut control) = control(&bench);
    let (began, is_at_work) = mpsc::channel();
    let (returned, has_returned) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cells = &cells;
        let turn = scope.spawn(move || {
            cells[0].enter(|_| {
                began.send(()).unwrap();
                has_returned.recv_timeout(HANGS).is_ok()
            })
        });
        is_at_work.recv().unwrap();
        let since_ns = bench.shared.progress.turn_since_ns(0).unwrap();
        assert_eq!(control.watch_slow_ops(since_ns + 29 * SECOND).count, 0);
        let slow = control.watch_slow_ops(since_ns + 41 * SECOND);
        assert_eq!((slow.count, slow.oldest_ms, &slow.oldest[..]), (1, 41_000, "shard 0 does not answer"));
        returned.send(()).ok();
        assert_eq!(turn.join().unwrap(), Some(true));
    });
    assert_eq!(control.watch_slow_ops(bench.shared.world.boot_ns() + 41 * SECOND).count, 0);
    cells[0].with(Shard::close);
}
