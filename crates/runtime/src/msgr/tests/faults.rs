//! Sockets that are cut, corrupted and stalled between the two sides, and processes that restart.

use super::*;
use nacre_session::wire::{FrameHeader, HEADER_BYTES};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A small generator of reproducible random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Forwards bytes between a client and `to`, and causes faults.
struct Proxy {
    addr: SocketAddr,
    cuts: Arc<AtomicUsize>,
    calm: watch::Sender<bool>,
}

#[derive(Clone, Copy)]
struct Misbehaviour {
    /// Each socket is cut after at most this number of bytes of either direction.
    cut_within: u64,
    /// One byte of a forwarded piece is altered, about once per this number of pieces.
    corrupt_every: u64,
}

impl Proxy {
    async fn start(to: SocketAddr, misbehaviour: Misbehaviour) -> Proxy {
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicUsize::new(0));
        let calm = watch::Sender::new(false);
        let (counted, calmed) = (cuts.clone(), calm.subscribe());
        tokio::spawn(async move {
            let mut seed = 1;
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(to).await else { continue };
                seed += 1;
                let (counted, calmed) = (counted.clone(), calmed.clone());
                tokio::spawn(async move {
                    pass(near, far, misbehaviour, Dice(seed * 7919), calmed).await;
                    counted.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        Proxy { addr, cuts, calm }
    }
}

async fn pass(
    near: TcpStream,
    far: TcpStream,
    misbehaviour: Misbehaviour,
    mut dice: Dice,
    calm: watch::Receiver<bool>,
) {
    let budgets = [dice.below(misbehaviour.cut_within), dice.below(misbehaviour.cut_within)];
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let corrupt_every = misbehaviour.corrupt_every;
    let mut dices = [Dice(dice.below(u64::MAX >> 8)), Dice(dice.below(u64::MAX >> 8))];
    let [up, down] = &mut dices;
    tokio::select! {
        () = pump(&mut near_in, &mut far_out, budgets[0], corrupt_every, up, calm.clone()) => {}
        () = pump(&mut far_in, &mut near_out, budgets[1], corrupt_every, down, calm) => {}
    }
}

async fn pump(
    from: &mut tokio::net::tcp::OwnedReadHalf,
    to: &mut tokio::net::tcp::OwnedWriteHalf,
    mut budget: u64,
    corrupt_every: u64,
    dice: &mut Dice,
    calm: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 8192];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let misbehave = !*calm.borrow();
        if misbehave && corrupt_every > 0 && dice.below(corrupt_every) == 0 {
            buffer[dice.below(read as u64) as usize] ^= 1 << dice.below(8);
        }
        let passed = if misbehave { (read as u64).min(budget) } else { read as u64 };
        if to.write_all(&buffer[..passed as usize]).await.is_err() {
            return;
        }
        budget = budget.saturating_sub(passed);
        if misbehave && budget == 0 {
            return;
        }
    }
}

/// Sends notes both ways through a faulty proxy until it has cut `cuts` sockets. Each must arrive once.
async fn survive(mode: &str, misbehaviour: Misbehaviour, cuts: usize, sizes: u64) {
    let realm = Realm::new();
    // Short times, because an altered length makes a side wait for bytes that never arrive.
    let settings = [
        ("ms_cluster_mode", mode),
        ("ms_out_queue_bytes", "4Mi"),
        ("ms_connection_ready_timeout", "1"),
        ("ms_keepalive_interval", "0.05"),
        ("ms_keepalive_timeout", "0.5"),
    ];
    let server = Arc::new(RecordingDispatcher { echo: true, ..RecordingDispatcher::default() });
    let client = Arc::new(RecordingDispatcher::default());
    let osd0 = messenger(osd(0), &settings, realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let proxy = Proxy::start(addr, misbehaviour).await;
    let osd1 = messenger(osd(1), &settings, Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    let conn = osd1.connect(target(proxy.addr, Policy::Lossless, ticket)).unwrap();
    let mut dice = Dice(99);
    let mut sent = 0;
    let deadline = Instant::now() + Duration::from_secs(240);
    while proxy.cuts.load(Ordering::SeqCst) < cuts {
        assert!(Instant::now() < deadline, "{} cuts of {cuts}", proxy.cuts.load(Ordering::SeqCst));
        let size = if dice.below(8) == 0 { dice.below(sizes) } else { dice.below(600) };
        if sent < client.count() as u64 + 200 {
            conn.send(&note(sent, size as usize)).unwrap();
            sent += 1;
        } else {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        if sent % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    proxy.calm.send_replace(true);
    until("the last echo", || client.count() as u64 >= sent).await;
    for (side, seen) in [("server", &server), ("client", &client)] {
        let notes = seen.notes.lock();
        assert_eq!(notes.len() as u64, sent, "{side}");
        for (at, got) in notes.iter().enumerate() {
            assert_eq!(*got, note(at as u64, got.data.len()), "{side} at {at}");
        }
        assert!(seen.resets.lock().is_empty(), "{side}: {:?}", seen.resets.lock());
    }
    assert_eq!(server.accepted.lock().len(), 1, "one session through all sockets");
    assert!(osd1.counters().faults.load(Ordering::Relaxed) >= cuts as u64 / 2);
    until("the acknowledgements", || conn.queued_bytes() < 64 << 10).await;
    osd1.shutdown(Duration::from_secs(5)).await;
    osd0.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_survive_thousands_of_cut_sockets_exactly_once_and_in_order() {
    survive("crc", Misbehaviour { cut_within: 40_000, corrupt_every: 0 }, 2_000, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_messages_survive_cut_sockets() {
    survive("secure", Misbehaviour { cut_within: 60_000, corrupt_every: 0 }, 300, 100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn altered_bytes_are_noticed_and_sent_again() {
    for mode in ["crc", "secure"] {
        survive(mode, Misbehaviour { cut_within: 400_000, corrupt_every: 6 }, 120, 30_000).await;
    }
}

#[tokio::test]
async fn a_restarted_server_resets_the_session_and_serves_a_new_one() {
    let realm = Realm::new();
    let (first, second, client) = (
        Arc::new(RecordingDispatcher::default()),
        Arc::new(RecordingDispatcher::default()),
        Arc::new(RecordingDispatcher::default()),
    );
    let old = messenger(osd(0), &[], realm.verifier(), &first);
    let addr = old.bind(loopback()).unwrap();
    let osd1 = messenger(osd(1), &[], Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    let conn = osd1.connect(target(addr, Policy::Lossless, ticket)).unwrap();
    conn.send(&note(1, 10)).unwrap();
    until("the first message", || first.count() == 1).await;
    // As after a crash: sockets end without a goodbye.
    for accepted in first.accepted.lock().iter() {
        accepted.abort();
    }
    old.shutdown(Duration::ZERO).await;
    until("the loss", || client.faults.load(Ordering::SeqCst) > 0).await;
    conn.send(&note(2, 10)).unwrap();
    let new = messenger(osd(0), &[], realm.verifier(), &second);
    new.bind(addr).unwrap();
    until("the reset", || matches!(client.resets.lock()[..], [ResetReason::PeerRestarted])).await;
    conn.send(&note(3, 10)).unwrap();
    until("the next message", || second.count() == 1).await;
    assert_eq!(second.notes.lock()[0].number, 3, "what was in flight at the reset is gone");
    assert_eq!(first.count(), 1);
    osd1.shutdown(Duration::ZERO).await;
    new.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_restarted_client_supersedes_its_old_session() {
    let realm = Realm::new();
    let server = Arc::new(RecordingDispatcher::default());
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let proxy = Proxy::start(addr, Misbehaviour { cut_within: 1 << 40, corrupt_every: 0 }).await;
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    for run in 1..=2 {
        let process = messenger(osd(1), &[], Verifier::new(), &Arc::new(RecordingDispatcher::default()));
        let conn = process.connect(target(proxy.addr, Policy::Lossless, ticket.clone())).unwrap();
        conn.send(&note(run, 0)).unwrap();
        until("the message", || server.count() as u64 == run).await;
        if run == 1 {
            // As after a crash: no goodbye, and the session is never resumed.
            conn.abort();
        }
    }
    until("the reset", || server.resets.lock().len() == 1).await;
    assert!(matches!(server.resets.lock()[..], [ResetReason::PeerRestarted]));
    let accepted = server.accepted.lock().clone();
    assert!(accepted[0].is_over() && accepted[1].is_up());
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_session_that_its_peer_gave_up_is_over_before_the_next_one_begins() {
    let realm = Realm::new();
    let server = Arc::new(RecordingDispatcher::default());
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    let process = messenger(osd(1), &[], Verifier::new(), &Arc::new(RecordingDispatcher::default()));
    for run in 1..=3 {
        let conn = process.connect(target(addr, Policy::Lossless, ticket.clone())).unwrap();
        conn.send(&note(run, 0)).unwrap();
        until("the message", || server.count() as u64 == run).await;
        // Its peer was notified of the end of the earlier ones.
        assert_eq!(server.resets.lock().len() as u64, run - 1);
        assert!(server.resets.lock().iter().all(|reset| matches!(reset, ResetReason::PeerRestarted)));
        conn.abort();
    }
    process.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn two_processes_that_claim_one_name_do_not_make_the_server_spin() {
    let realm = Realm::new();
    let server = Arc::new(RecordingDispatcher::default());
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    let slow = [("ms_initial_backoff", "0.02"), ("ms_max_backoff", "0.2")];
    let twins = [(); 2]
        .map(|()| messenger(osd(1), &slow, Verifier::new(), &Arc::new(RecordingDispatcher::default())));
    for twin in &twins {
        twin.connect(target(addr, Policy::Lossless, ticket.clone())).unwrap();
    }
    until("the quarrel", || server.accepted.lock().len() > 8).await;
    let (before, began) = (server.accepted.lock().len(), Instant::now());
    until("more of it", || server.accepted.lock().len() >= before + 10).await;
    assert!(began.elapsed() >= Duration::from_millis(500), "10 sessions in {:?}", began.elapsed());
    for twin in &twins {
        twin.shutdown(Duration::ZERO).await;
    }
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_session_whose_peer_stays_away_lapses() {
    let realm = Realm::new();
    let server = Arc::new(RecordingDispatcher::default());
    let osd0 = messenger(osd(0), &[("ms_session_timeout", "1")], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let proxy = Proxy::start(addr, Misbehaviour { cut_within: 1 << 40, corrupt_every: 0 }).await;
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    let process = messenger(osd(1), &[], Verifier::new(), &Arc::new(RecordingDispatcher::default()));
    let conn = process.connect(target(proxy.addr, Policy::Lossless, ticket)).unwrap();
    conn.ready().await.unwrap();
    until("the session", || !server.accepted.lock().is_empty()).await;
    conn.abort();
    until("the lapse", || matches!(server.resets.lock()[..], [ResetReason::Lapsed])).await;
    assert!(matches!(server.accepted.lock()[0].send(&note(1, 1)), Err(Error::Closed)));
    osd0.shutdown(Duration::ZERO).await;
}

/// A socket that the peer's kernel keeps open without a process that reads or writes.
async fn stalled() -> SocketAddr {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    addr
}

#[tokio::test]
async fn peers_that_say_nothing_time_out() {
    let ticket = Credential::Ticket(Realm::new().ticket(&osd(1)));
    let quick = [("ms_connection_ready_timeout", "1")];
    let osd1 = messenger(osd(1), &quick, Verifier::new(), &Arc::new(RecordingDispatcher::default()));
    let conn = osd1.connect(target(stalled().await, Policy::Lossy, ticket.clone())).unwrap();
    assert!(matches!(conn.ready().await, Err(Error::TimedOut(_))));
    let listening = osd1.bind(loopback()).unwrap();
    let mut silent = TcpStream::connect(listening).await.unwrap();
    let mut banner = Vec::new();
    silent.read_to_end(&mut banner).await.unwrap();
    assert_eq!(banner.len(), 16, "the banner, and then the door");
    let gone = osd1.connect(target(([127, 0, 0, 1], 1).into(), Policy::Lossy, ticket)).unwrap();
    assert!(matches!(gone.ready().await, Err(Error::Unreachable { refused: true, .. })));
    osd1.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn speakers_of_other_protocols_are_turned_away() {
    let seen = Arc::new(RecordingDispatcher::default());
    let osd0 = messenger(osd(0), &[], Verifier::new(), &seen);
    let addr = osd0.bind(loopback()).unwrap();
    for greeting in [&b"ceph v2\n\x10\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(greeting).await.unwrap();
        let mut answer = Vec::new();
        // The kernel may reset the connection, because the greeting was not read completely.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.len() <= 16);
    }
    until("refusals", || osd0.counters().refusals.load(Ordering::Relaxed) == 2).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_stalled_connection_is_given_up_and_a_quiet_one_kept() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let settings = [("ms_keepalive_interval", "0.02"), ("ms_keepalive_timeout", "0.2")];
    let osd0 = messenger(osd(0), &settings, realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &settings, Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&name));
    let quiet = user.connect(target(addr, Policy::Lossy, ticket.clone())).unwrap();
    quiet.ready().await.unwrap();
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let proxied = listener.local_addr().unwrap();
    let stalling = tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(addr).await.unwrap();
        let (mut near_in, mut near_out) = near.into_split();
        let (mut far_in, mut far_out) = far.into_split();
        // Forwards the handshake and some more, then holds both sockets and forwards nothing.
        let both = async {
            tokio::join!(
                tokio::io::copy(&mut near_in, &mut far_out),
                tokio::io::copy(&mut far_in, &mut near_out)
            )
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), both).await;
        std::future::pending::<()>().await;
        drop((near_in, near_out, far_in, far_out));
    });
    let conn = user.connect(target(proxied, Policy::Lossy, ticket)).unwrap();
    conn.ready().await.unwrap();
    until("the stall's end", || {
        matches!(client.resets.lock()[..], [ResetReason::Failed(Error::TimedOut(_))])
            && matches!(server.resets.lock()[..], [ResetReason::Failed(Error::TimedOut(_))])
    })
    .await;
    assert!(quiet.is_up() && conn.is_over());
    stalling.abort();
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn unused_lossy_connections_are_closed_and_lossless_ones_kept() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let settings = [("ms_keepalive_interval", "0.1"), ("ms_connection_idle_timeout", "1")];
    let osd0 = messenger(osd(0), &settings, realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let user = messenger(osd(1), &settings, Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    let kept = user.connect(target(addr, Policy::Lossless, ticket.clone())).unwrap();
    let conn = user.connect(target(addr, Policy::Lossy, ticket)).unwrap();
    kept.ready().await.unwrap();
    until("the idle close", || conn.is_over()).await;
    until("both resets", || client.resets.lock().len() == 1 && server.resets.lock().len() == 1).await;
    assert!(kept.is_up());
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

proptest! {
    #[test]
    fn no_header_bytes_panic_and_no_altered_header_is_taken(
        bytes in prop::array::uniform32(any::<u8>()),
        at in 0..HEADER_BYTES,
        bit in 0..8u32,
        seq in any::<u64>(),
        meta_len in any::<u32>(),
        data_len in any::<u32>(),
    ) {
        let mut random = [0; HEADER_BYTES];
        random[..32].copy_from_slice(&bytes);
        prop_assert!(FrameHeader::decode(&random).is_err());
        let header = FrameHeader { seq, meta_len, data_len, ..FrameHeader::control(7, seq / 2) };
        let mut encoded = header.encode();
        prop_assert_eq!(FrameHeader::decode(&encoded), Ok(header));
        encoded[at] ^= 1 << bit;
        prop_assert!(FrameHeader::decode(&encoded).is_err());
    }
}
