//! The size of the log.

use super::cluster::{Cluster, osd};
use super::host::Request;
use super::life::{cluster, write_some};
use crate::primary::MAX_LOG_BYTES;

fn fail(c: &mut Cluster, times: usize) {
    for _ in 0..times {
        c.ask("f", Request::Fail);
    }
}

#[test]
fn long_answers_do_not_make_the_log_too_long_for_a_message() {
    let mut c = cluster(3, 3, 2);
    write_some(&mut c, 3);
    c.kill(osd(2), 0);
    c.mon.down(osd(2));
    fail(&mut c, MAX_LOG_BYTES / (60 << 10) * 2);
    for n in 0..2 {
        let log = c.hosts[&osd(n)].pg.log();
        assert!(log.bytes() <= MAX_LOG_BYTES + (64 << 10), "osd.{n}: {} bytes", log.bytes());
        assert_eq!(log.bytes(), log.entries().map(|entry| entry.size()).sum::<usize>());
    }
    write_some(&mut c, 3);
    c.boot(osd(2));
    c.run_clean();
}

#[test]
fn updates_wait_while_entries_that_are_not_committed_are_large() {
    let mut c = cluster(2, 2, 1);
    write_some(&mut c, 1);
    // The other member does not answer, and is not marked down.
    c.cut(osd(0), osd(1));
    let requests = MAX_LOG_BYTES / (60 << 10) * 2;
    let sent: Vec<_> = (0..requests).map(|_| c.send("f", Request::Fail)).collect();
    c.run_for(c.settings.retry_ns / 2, &|_| false);
    assert!(c.hosts[&osd(0)].pg.log().bytes() <= MAX_LOG_BYTES + (64 << 10));
    c.heal();
    c.run_until("answers", |c| sent.iter().all(|op| c.clients.answer(*op).is_some()));
    c.run_clean();
}
