//! Tests that strangers, and peers that lost their rights, can't use up resources.

use super::*;

/// Answers every message with more than was requested. Ends connections that do not read.
#[derive(Default)]
struct Flood {
    cut_off: AtomicUsize,
}

impl Dispatcher for Flood {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let _: TestMessage = frame.decode().unwrap();
        let answer = note(1, 60 << 10);
        for _ in 0..200 {
            match conn.send(&answer) {
                Ok(()) => {}
                Err(Error::Full) => {
                    self.cut_off.fetch_add(1, Ordering::SeqCst);
                    return conn.abort();
                }
                Err(_) => return,
            }
        }
    }

    fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {}
}

#[tokio::test]
async fn clients_that_do_not_read_share_one_bound() {
    const CLIENTS: usize = 8;
    let realm = Realm::new();
    let flood = Arc::new(Flood::default());
    let osd0 = Messenger::builder(&config(osd(0), &[("ms_out_queues_bytes", "1Mi")]))
        .lane(Handle::current(), flood.clone())
        .verifier(realm.verifier())
        .build()
        .unwrap();
    let addr = osd0.bind(loopback()).unwrap();
    let mut users = Vec::new();
    let mut most = 0;
    for _ in 0..CLIENTS {
        let name = EntityName::client("a");
        let client = Arc::new(RecordingDispatcher { hold: true, ..RecordingDispatcher::default() });
        // Reads two messages and then no more, because it keeps holding them.
        let user = Messenger::builder(&config(name.clone(), &[]))
            .lane(Handle::current(), client.clone())
            .cluster_throttle(Throttle::new(128 << 10, 0))
            .build()
            .unwrap();
        let ticket = Credential::Ticket(realm.ticket(&name));
        let conn = user.connect(target(addr, Policy::Lossy, ticket)).unwrap();
        conn.send(&note(1, 0)).unwrap();
        users.push((user, client));
    }
    until("the clients are cut off", || {
        most = most.max(osd0.0.out_bytes.load(Ordering::SeqCst));
        flood.cut_off.load(Ordering::SeqCst) >= CLIENTS - 1
    })
    .await;
    // The bound, and a fair share with one more message for each.
    assert!(most <= (1 << 20) + CLIENTS * ((1 << 20) + (64 << 10)), "{most} bytes were queued");
    for (user, _) in users {
        user.shutdown(Duration::ZERO).await;
    }
    osd0.shutdown(Duration::ZERO).await;
    until("all is given back", || osd0.0.out_bytes.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn connections_of_clients_are_counted() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let osd0 = messenger(osd(0), &[("ms_max_connections", "16")], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &[], Verifier::new(), &client);
    let conns: Vec<Conn> = (0..40)
        .map(|_| {
            let ticket = Credential::Ticket(realm.ticket(&name));
            user.connect(target(addr, Policy::Lossy, ticket)).unwrap()
        })
        .collect();
    let mut ready = 0;
    for conn in &conns {
        ready += usize::from(conn.ready().await.is_ok());
    }
    assert_eq!(ready, 16);
    // Daemons are still accepted.
    let other = messenger(osd(1), &[], Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&osd(1)));
    other.connect(target(addr, Policy::Lossless, ticket)).unwrap().ready().await.unwrap();
    for messenger in [user, other, osd0] {
        messenger.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn thousands_of_half_open_handshakes_hold_little_and_delay_nobody() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    // No timeout ends a connection here.
    let settings = [("ms_connection_ready_timeout", "600"), ("ms_max_handshakes", "64")];
    let osd0 = messenger(osd(0), &settings, realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let mut silent = Vec::new();
    let mut flood = || {
        for _ in 0..1000 {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            // Whether refused or not, it never sends anything.
            let _ = socket.connect(&addr.into());
            silent.push(socket);
        }
    };
    flood();
    until("handshakes are under way", || osd0.0.handshakes.len() == 64).await;
    assert!(osd0.0.conns.lock().is_empty(), "nothing is kept of who has not said who it is");
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &[], Verifier::new(), &client);
    for _ in 0..3 {
        flood();
        let ticket = Credential::Ticket(realm.ticket(&name));
        let conn = user.connect(target(addr, Policy::Lossy, ticket)).unwrap();
        // Dropped packets of a full backlog are sent again after one or three seconds.
        let ready = tokio::time::timeout(Duration::from_secs(20), conn.ready()).await;
        ready.expect("an honest client is let in beside thousands of silent ones").unwrap();
        assert!(osd0.0.handshakes.len() <= 64);
    }
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn the_oldest_of_the_greediest_stranger_is_given_up_first() {
    let handshakes = Arc::new(HandshakeLimiter::new(4));
    let (greedy, modest) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let over = |given_up: &mut tokio::sync::oneshot::Receiver<()>| {
        given_up.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Closed)
    };
    let mut honest = handshakes.clone().begin(modest).await.unwrap();
    let mut known = handshakes.clone().begin(greedy).await.unwrap();
    known.0.set_authenticated();
    let mut strangers = Vec::new();
    for _ in 0..2 {
        strangers.push(handshakes.clone().begin(greedy).await.unwrap());
    }
    // Each round takes the place of the oldest connection, which has to end first.
    for _ in 0..10 {
        let next = tokio::spawn(handshakes.clone().begin(greedy));
        until("one is given up", || over(&mut strangers[0].1)).await;
        assert!(!over(&mut strangers[1].1) && !over(&mut honest.1) && !over(&mut known.1));
        drop(strangers.remove(0));
        strangers.push(next.await.unwrap().unwrap());
        assert_eq!(handshakes.len(), 4);
    }
    for (slot, _) in &strangers {
        slot.set_authenticated();
    }
    // Then also a peer that is alone at its address, and finally those that have proved a secret.
    let next = tokio::spawn(handshakes.clone().begin(greedy));
    until("the stranger is given up", || over(&mut honest.1)).await;
    assert!(strangers.iter_mut().chain([&mut known]).all(|(_, given_up)| !over(given_up)));
    drop(honest);
    let (slot, _given_up) = next.await.unwrap().unwrap();
    slot.set_authenticated();
    let next = tokio::spawn(handshakes.clone().begin(modest));
    until("the oldest is given up", || over(&mut known.1)).await;
    drop(known);
    next.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_ends_with_its_ticket() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &[], Verifier::new(), &client);
    // Clocks may differ by 10 s, so this ticket is valid for two more.
    let ticket = Credential::Ticket(realm.ticket_until(&name, now_unix() - 8));
    let conn = user.connect(target(addr, Policy::Lossy, ticket)).unwrap();
    conn.ready().await.unwrap();
    until("the end", || !client.resets.lock().is_empty() && !server.resets.lock().is_empty()).await;
    assert!(matches!(&server.resets.lock()[0], ResetReason::Failed(Error::Expired(_))));
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_session_outlives_its_tickets_as_long_as_there_are_new_ones() {
    let realm = Arc::new(Realm::new());
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let osd1 = messenger(osd(1), &[], Verifier::new(), &client);
    let tickets = realm.clone();
    let short = move || Ok(Credential::Ticket(tickets.ticket_until(&osd(1), now_unix() - 8)));
    let target = ConnectTarget {
        credentials: Arc::new(short),
        ..target(addr, Policy::Lossless, Credential::Ticket(realm.ticket(&osd(1))))
    };
    let conn = osd1.connect(target).unwrap();
    conn.ready().await.unwrap();
    let mut sent = 0;
    until("two tickets are used up", || {
        sent += 1;
        conn.send(&note(sent, 10)).unwrap();
        server.faults.load(Ordering::SeqCst) >= 2
    })
    .await;
    until("everything arrived", || server.count() == sent as usize).await;
    assert!(server.notes.lock().iter().enumerate().all(|(at, note)| note.number == at as u64 + 1));
    assert!(server.resets.lock().is_empty() && client.resets.lock().is_empty());
    osd1.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}
