//! Requests with copy-from ops whose sources the test reads.

use super::*;
use crate::copy::MAX_COPY_BYTES;
use nacre_exec::CopiedObject;
use nacre_types::op::{CopyCursor, CopyGetReply, copy_from_flag};
use nacre_types::tier::TierSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const CAP: &[(&str, &str)] = &[("osd_client_message_cap", "64")];
/// The number of copies, with the requests that wait for them, that an OSD with that cap holds.
const MOST: u64 = 8;

impl Bench {
    fn copy(&self, tid: u64) -> OsdRequest {
        let source = ObjectId::new(PG.pool, "", "", "source");
        self.request(tid, Op::CopyFrom { source, version: 0, flags: 0, truncate: (0, 0) })
    }

    /// Completes the read of a request's source, which has `source` bytes.
    fn fetched(&self, request: OsdRequest, conn: &ConnRef, source: u64, share: Option<OwnedSemaphorePermit>) {
        let arrival = IncomingRequest { request, conn: conn.clone(), permit: None, arrived_ns: 0 };
        let head = CopyGetReply { size: source, ..CopyGetReply::default() };
        let fetched = crate::copy::FetchedSource {
            copy: Ok(Box::new(CopiedObject { head, ..CopiedObject::default() })),
            share,
        };
        self.cell.enter(|shard| shard.on_fetched(arrival, fetched)).unwrap();
    }

    fn has_copies(&self) -> bool {
        self.cell.inspect(|shard| shard.copies.is_any())
    }
}

#[test]
fn a_request_copies_one_object() {
    let bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    let ops = [bench.copy(1).ops, bench.copy(2).ops].concat();
    bench.arrive(OsdRequest { ops, ..bench.copy(1) }, &conn, None);
    assert_eq!(heard.lock().result(1), Some(Errno::EINVAL.negated()));
}

#[test]
fn a_copy_gives_its_memory_back_when_its_pg_has_it() {
    let bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    let room = Arc::new(Semaphore::new(1));
    bench.gain_lease();
    bench.arrive(bench.copy(1), &conn, None);
    assert!(bench.has_copies());
    bench.fetched(bench.copy(1), &conn, 0, Some(Arc::clone(&room).try_acquire_owned().unwrap()));
    assert_eq!((bench.unanswered(), heard.lock().result(1)), (1, None), "the other member has not answered");
    assert_eq!(room.available_permits(), 1, "other copies can be read");
    bench.acknowledge();
    assert_eq!(heard.lock().result(1), Some(0));
}

#[test]
fn what_waits_for_copies_is_bounded() {
    let bench = Bench::with(CAP);
    let (conn, heard) = connect_and_hear();
    let object = bench.copy(1).object;
    let write = |tid| OsdRequest {
        object: object.clone(),
        oldest_tid: 1,
        ..bench.request(tid, Op::Create { exclusive: false })
    };
    bench.arrive(bench.copy(1), &conn, None);
    (2..=12).for_each(|tid| bench.arrive(write(tid), &conn, None));
    let sent_back: Vec<u64> = (MOST + 1..=12).collect();
    assert_eq!(heard.lock().backoffs, sent_back);
    let (other, heard_by_other) = connect_and_hear();
    bench.arrive(bench.copy(20), &other, None);
    assert_eq!(heard_by_other.lock().backoffs, [20], "copies of other objects count too");
    bench.gain_lease();
    bench.fetched(bench.copy(1), &conn, 0, None);
    bench.acknowledge();
    (1..=MOST).for_each(|tid| assert_eq!(heard.lock().result(tid), Some(0)));
    bench.arrive(OsdRequest { attempt: 1, ..bench.copy(20) }, &other, None);
    assert!(bench.has_copies() && heard_by_other.lock().backoffs.len() == 1);
}

#[test]
fn reads_of_sources_do_not_wait_for_copies_that_were_sent_back() {
    let bench = Bench::with(CAP);
    let (conn, heard) = connect_and_hear();
    bench.gain_lease();
    let after = |tid, op| OsdRequest { oldest_tid: 1, ..bench.request(tid, op) };
    (1..=MOST + 1).for_each(|tid| bench.arrive(OsdRequest { oldest_tid: 1, ..bench.copy(tid) }, &conn, None));
    bench.arrive(after(20, Op::Stat), &conn, None);
    assert_eq!(heard.lock().backoffs, [MOST + 1, 20], "it would overtake the copy");
    bench.arrive(after(21, Op::CopyGet { cursor: CopyCursor::default(), max_bytes: 1 }), &conn, None);
    assert_eq!(heard.lock().result(21), Some(Errno::ENOENT.negated()), "a copy may wait for it");
}

#[test]
fn flushes_have_room_beside_copies() {
    const CACHE: PoolId = PoolId(2);
    let mut bench = Bench::with(CAP);
    let mut base = Pool::replicated("p", 2, 2, 0, 1, Epoch(1));
    base.tiering.tiers = vec![CACHE];
    let mut cache = Pool::replicated("cache", 2, 2, 0, 1, Epoch(1));
    cache.tiering.tier_of = Some(PG.pool);
    bench.map.pools.insert(PG.pool, Arc::new(base));
    bench.map.pools.insert(CACHE, Arc::new(cache));
    let membership = bench.map.membership(PG).cloned();
    bench.map.pgs.insert(CACHE, Arc::new(vec![membership]));
    bench.next_interval();
    let (conn, heard) = connect_and_hear();
    bench.gain_lease();
    (1..=MOST).for_each(|tid| bench.arrive(OsdRequest { oldest_tid: 1, ..bench.copy(tid) }, &conn, None));
    let (peer, heard_by_peer) = connect_as(EntityName::osd(OTHER));
    let pg = PgId::new(CACHE, 0);
    let (interval, epoch) = (bench.map.interval(pg), bench.map.epoch);
    let sender = TierSender { pg, interval, epoch, client: None, user_version: 0 };
    let source = ObjectId::new(CACHE, "", "", "o20");
    let flush = Op::CopyFrom { source, version: 1, flags: copy_from_flag::FLUSH, truncate: (0, 0) };
    let flush = OsdRequest { tier: Some(Box::new(sender)), ..bench.request(20, flush) };
    bench.arrive(flush, &peer, None);
    bench.arrive(OsdRequest { oldest_tid: 1, ..bench.copy(21) }, &conn, None);
    assert_eq!((&heard_by_peer.lock().backoffs[..], &heard.lock().backoffs[..]), (&[][..], &[21][..]));
}

#[test]
fn copies_in_the_hands_of_pgs_are_bounded_until_they_are_answered() {
    // A copy of a hole: it counts, but uses no memory here.
    const HOLE: u64 = 100 << 20;
    let bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    bench.gain_lease();
    let most = MAX_COPY_BYTES / HOLE;
    for tid in 1..=most + 1 {
        let request = OsdRequest { oldest_tid: 1, ..bench.copy(tid) };
        bench.arrive(request.clone(), &conn, None);
        bench.fetched(request, &conn, HOLE, None);
    }
    assert_eq!((bench.unanswered() as u64, &heard.lock().backoffs[..]), (most, &[most + 1][..]));
    bench.acknowledge();
    (1..=most).for_each(|tid| assert_eq!(heard.lock().result(tid), Some(0)));
    let again = OsdRequest { oldest_tid: 1, attempt: 1, ..bench.copy(most + 1) };
    bench.arrive(again.clone(), &conn, None);
    bench.fetched(again, &conn, HOLE, None);
    bench.acknowledge();
    assert_eq!(heard.lock().result(most + 1), Some(0));
}

#[test]
fn no_source_is_read_for_a_pg_that_does_not_execute() {
    let mut bench = Bench::new();
    let (conn, heard) = connect_and_hear();
    bench.arrive(bench.copy(1), &conn, None);
    let membership = bench.map.membership(PG).unwrap().clone();
    // With a higher min_size, the PG does not serve.
    bench.map.pools.insert(PG.pool, Arc::new(Pool::replicated("p", 3, 3, 0, 1, Epoch(1))));
    bench.enter_interval(membership);
    bench.fetched(bench.copy(1), &conn, 0, None);
    assert_eq!(
        (bench.unanswered(), &heard.lock().backoffs[..]),
        (0, &[1][..]),
        "it would hold what was read"
    );
    let other = connect();
    bench.arrive(bench.copy(2), &other, None);
    assert!(!bench.has_copies());
}
