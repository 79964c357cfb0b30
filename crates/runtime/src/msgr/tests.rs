mod bounds;
mod faults;
mod frames;

use super::*;
use bytes::Bytes;
use nacre_common::auth::{
    Caps, Credential, Key, Keyring, RotatingKeyring, RotatingSecrets, Ticket, TicketBody,
};
use nacre_common::config::ConfigBuilder;
use nacre_types::ids::{ClientId, OsdId};
use nacre_types::msg::Message;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicUsize;
use std::time::{SystemTime, UNIX_EPOCH};

/// A message with all features of messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TestMessage {
    pub(super) number: u64,
    pub(super) text: String,
    #[serde(with = "nacre_types::payload")]
    pub(super) data: Bytes,
}

impl Message for TestMessage {
    const KIND: u16 = 60_000;
    const NAME: &'static str = "Note";
}

pub(super) fn note(number: u64, bytes: usize) -> TestMessage {
    let data: Vec<u8> = (0..bytes).map(|at| (number as usize + at) as u8).collect();
    TestMessage { number, text: format!("note {number}"), data: data.into() }
}

/// The events that a test's dispatcher received.
#[derive(Default)]
pub(super) struct RecordingDispatcher {
    notes: Mutex<Vec<TestMessage>>,
    frames: Mutex<Vec<Frame>>,
    accepted: Mutex<Vec<Conn>>,
    resets: Mutex<Vec<ResetReason>>,
    faults: AtomicUsize,
    connects: AtomicUsize,
    echo: bool,
    hold: bool,
}

impl Dispatcher for RecordingDispatcher {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let message: TestMessage = frame.decode().unwrap();
        if self.hold {
            self.frames.lock().push(frame);
        }
        if self.echo {
            conn.send(&message).unwrap();
        }
        self.notes.lock().push(message);
    }
    fn on_accept(&self, conn: &Conn) {
        self.accepted.lock().push(conn.clone());
    }
    fn on_connect(&self, _conn: &Conn) {
        self.connects.fetch_add(1, Ordering::SeqCst);
    }
    fn on_reset(&self, _conn: &Conn, reset: ResetReason) {
        self.resets.lock().push(reset);
    }
    fn on_fault(&self, _conn: &Conn, _error: &Error) {
        self.faults.fetch_add(1, Ordering::SeqCst);
    }
}

impl RecordingDispatcher {
    fn count(&self) -> usize {
        self.notes.lock().len()
    }
}

/// Polls until `done`, for at most a minute.
pub(super) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn now_unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A small realm: service keys, and tickets for any entity.
struct Realm {
    keys: RotatingSecrets,
}

impl Realm {
    fn new() -> Realm {
        Realm { keys: RotatingSecrets::generate(now_unix(), 3600).unwrap() }
    }

    fn ticket(&self, entity: &EntityName) -> Ticket {
        self.ticket_until(entity, now_unix() + 3600)
    }

    fn ticket_until(&self, entity: &EntityName, expires_unix: u64) -> Ticket {
        let body = TicketBody {
            entity: entity.clone(),
            client: Some(ClientId(77)),
            caps: Caps::from([("osd".to_owned(), "allow rw".to_owned())]),
            issued_unix: expires_unix.saturating_sub(3600).min(now_unix()),
            expires_unix,
            session_key: nacre_common::auth::SessionKey::generate().unwrap(),
        };
        self.keys.seal(body).unwrap()
    }

    fn verifier(&self) -> Verifier {
        let keys = RotatingKeyring::new(10);
        keys.update(self.keys.keys().to_vec());
        Verifier::new().with_tickets(Arc::new(keys))
    }
}

fn osd(id: u32) -> EntityName {
    EntityName::osd(OsdId(id))
}

fn config(entity: EntityName, settings: &[(&str, &str)]) -> Config {
    let mut builder =
        ConfigBuilder::new(entity).set("ms_initial_backoff", "0.001").set("ms_max_backoff", "0.002");
    for (name, value) in settings {
        builder = builder.set(name, *value);
    }
    builder.build().unwrap()
}

fn messenger(
    entity: EntityName,
    settings: &[(&str, &str)],
    verifier: Verifier,
    dispatcher: &Arc<RecordingDispatcher>,
) -> Messenger {
    Messenger::builder(&config(entity, settings))
        .lane(Handle::current(), dispatcher.clone())
        .verifier(verifier)
        .build()
        .unwrap()
}

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn target(addr: SocketAddr, policy: Policy, credential: Credential) -> ConnectTarget {
    ConnectTarget { addr, entity: None, policy, lane: 0, credentials: Arc::new(credential) }
}

#[tokio::test]
async fn messages_of_all_sizes_arrive_in_order_and_come_back() {
    for mode in ["crc", "secure"] {
        let realm = Realm::new();
        let settings = [("ms_cluster_mode", mode), ("ms_service_mode", mode), ("ms_client_mode", mode)];
        let server = Arc::new(RecordingDispatcher { echo: true, ..RecordingDispatcher::default() });
        let client = Arc::new(RecordingDispatcher::default());
        let osd0 = messenger(osd(0), &settings, realm.verifier(), &server);
        let addr = osd0.bind(loopback()).unwrap();
        let admin = EntityName::client("admin");
        let messenger = messenger(admin.clone(), &settings, Verifier::new(), &client);
        let ticket = Credential::Ticket(realm.ticket(&admin));
        let conn = messenger.connect(target(addr, Policy::Lossy, ticket)).unwrap();
        let sizes = [0, 1, 511, 512, 4096, 16383, 16384, 65536, 100_000, 1 << 20, 5 << 20, 7, 4096, 4096];
        for (number, size) in sizes.iter().enumerate() {
            conn.send(&note(number as u64, *size)).unwrap();
        }
        until("the echo", || client.count() == sizes.len()).await;
        for (number, echoed) in client.notes.lock().iter().enumerate() {
            assert_eq!(*echoed, note(number as u64, sizes[number]), "{mode}");
            if sizes[number] >= ALIGN_DATA_FROM_BYTES {
                assert_eq!(echoed.data.as_ptr() as usize % DATA_ALIGNMENT, 0);
            }
        }
        let accepted = server.accepted.lock()[0].clone();
        let peer = accepted.peer().unwrap();
        assert_eq!((&peer.entity, peer.client), (&admin, Some(ClientId(77))));
        assert_eq!(peer.caps["osd"], "allow rw");
        assert_eq!(conn.peer_entity(), Some(osd(0)));
        conn.close();
        until("the reset", || !server.resets.lock().is_empty()).await;
        assert!(matches!(server.resets.lock()[0], ResetReason::PeerClosed));
        assert!(client.resets.lock().is_empty());
        messenger.shutdown(Duration::from_secs(5)).await;
        osd0.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn peers_without_the_right_key_are_refused_and_told_why() {
    let key = Key::generate().unwrap();
    let mut keyring = Keyring::new();
    keyring.insert(EntityName::client("admin"), key.clone(), Caps::new());
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let mon = messenger(EntityName::mon(), &[], Verifier::new().with_keys(Arc::new(keyring)), &server);
    let addr = mon.bind(loopback()).unwrap();
    let admin = messenger(EntityName::client("admin"), &[], Verifier::new(), &client);
    let wrong = Key::generate().unwrap();
    for (name, key, fits) in [("admin", &key, true), ("admin", &wrong, false), ("nobody", &wrong, false)] {
        let credential = Credential::Key { entity: EntityName::client(name), key: key.clone() };
        let conn = admin.connect(target(addr, Policy::Lossy, credential)).unwrap();
        match conn.ready().await {
            Ok(()) => assert!(fits),
            Err(error) => {
                let text = format!("client.{name} is unknown or its key does not match");
                assert!(matches!(&error, Error::Denied(why) if *why == text), "{error}");
                assert!(!fits && conn.is_over());
                assert!(matches!(conn.send(&note(0, 0)), Err(Error::Closed)));
            }
        }
    }
    let realm = Realm::new();
    let ticket = Credential::Ticket(realm.ticket(&EntityName::client("admin")));
    let refused = admin.connect(target(addr, Policy::Lossy, ticket)).unwrap().ready().await;
    assert!(matches!(refused, Err(Error::Denied(_))), "a monitor takes no tickets");
    until("refusals", || mon.counters().refusals.load(Ordering::Relaxed) == 3).await;
    assert_eq!(client.resets.lock().len(), 3);
    admin.shutdown(Duration::from_secs(1)).await;
    mon.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn an_expired_ticket_is_refused_as_such() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &[], Verifier::new(), &client);
    let stale = Credential::Ticket(realm.ticket_until(&name, now_unix() - 100));
    let error = user.connect(target(addr, Policy::Lossy, stale)).unwrap().ready().await.unwrap_err();
    assert!(matches!(error, Error::Expired(_)), "{error}");
    let ticket = Credential::Ticket(realm.ticket(&name));
    let wrong = ConnectTarget { entity: Some(osd(5)), ..target(addr, Policy::Lossy, ticket) };
    let error = user.connect(wrong).unwrap().ready().await.unwrap_err();
    assert!(error.to_string().contains("osd.5 was wanted, but this is osd.0"), "{error}");
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[test]
fn refusals_of_one_peer_are_news_once() {
    let mut log = accept::RefusalLogLimiter::default();
    let window = Duration::from_secs(600);
    let mut news = |host: u8, who: &str| log.should_log([127, 0, 0, host].into(), who.to_owned(), window);
    assert!(news(1, "client.a"));
    assert!(!news(1, "client.a"));
    assert!(news(1, "client.b") && news(2, "client.a"));
    for at in 0..5000 {
        news(3, &at.to_string());
    }
    assert!(log.len() <= 1024);
}

#[tokio::test]
async fn reading_stops_at_the_throttle_and_senders_at_their_queue() {
    let realm = Realm::new();
    let server = Arc::new(RecordingDispatcher { hold: true, ..RecordingDispatcher::default() });
    let client = Arc::new(RecordingDispatcher::default());
    let limits = [("ms_out_queue_bytes", "1Mi")];
    let osd0 = Messenger::builder(&config(osd(0), &limits))
        .lane(Handle::current(), server.clone())
        .verifier(realm.verifier())
        .client_throttle(Throttle::new(256 << 10, 0))
        .build()
        .unwrap();
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &limits, Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&name));
    let conn = user.connect(target(addr, Policy::Lossy, ticket)).unwrap();
    conn.ready().await.unwrap();
    // Far more than the throttle, the queue and both socket buffers hold together.
    let message = note(1, 60 << 10);
    let mut sent = 0;
    until("a full queue", || {
        while conn.send(&message).is_ok() {
            sent += 1;
            assert!(sent < 100_000 && conn.queued_bytes() <= 1 << 20);
        }
        server.count() == 4 && matches!(conn.send(&message), Err(Error::Full))
    })
    .await;
    assert_eq!(server.frames.lock().len(), 4, "256 KiB hold four messages of 60 KiB");
    let waiting = tokio::spawn({
        let (conn, message) = (conn.clone(), message.clone());
        async move { conn.send_with_backpressure(&message).await }
    });
    until("everything handled", || {
        server.frames.lock().clear();
        assert!(server.frames.lock().len() <= 4);
        server.count() > sent
    })
    .await;
    waiting.await.unwrap().unwrap();
    assert!(osd0.counters().throttle_waits.load(Ordering::Relaxed) > 0);
    assert_eq!(conn.queued_bytes(), 0);
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn the_number_of_messages_in_hand_is_bounded_too() {
    let throttle = Throttle::new(1 << 20, 2);
    let one = throttle.try_take(10).unwrap();
    let two = throttle.try_take(10).unwrap();
    assert!(throttle.try_take(10).is_none());
    drop(one);
    let big = throttle.take(64 << 20);
    assert!(tokio::time::timeout(Duration::from_millis(5), big).await.is_err(), "others hold bytes");
    drop(two);
    let big = throttle.take(64 << 20).await;
    assert_eq!(throttle.free_bytes(), 0);
    drop(big);
    assert_eq!(throttle.free_bytes(), 1 << 20);
}

#[tokio::test]
async fn a_frame_over_the_receiver_s_limit_ends_the_connection() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let osd0 = messenger(osd(0), &[("ms_max_frame_data_bytes", "1Mi")], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &[("ms_max_frame_data_bytes", "2Mi")], Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&name));
    let conn = user.connect(target(addr, Policy::Lossy, ticket)).unwrap();
    conn.send(&note(1, 1 << 20)).unwrap();
    conn.send(&note(2, (1 << 20) + 1)).unwrap();
    assert!(matches!(conn.send(&note(3, (2 << 20) + 1)), Err(Error::TooBig { limit: 2_097_152, .. })));
    until("the reset", || !client.resets.lock().is_empty()).await;
    assert!(
        matches!(&server.resets.lock()[0], ResetReason::Failed(Error::Protocol { reason, .. }) if reason.contains("size limits"))
    );
    assert_eq!(server.count(), 1);
    user.shutdown(Duration::ZERO).await;
    osd0.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn shutdown_writes_what_is_queued() {
    let realm = Realm::new();
    let (server, client) =
        (Arc::new(RecordingDispatcher::default()), Arc::new(RecordingDispatcher::default()));
    let osd0 = messenger(osd(0), &[], realm.verifier(), &server);
    let addr = osd0.bind(loopback()).unwrap();
    let name = EntityName::client("a");
    let user = messenger(name.clone(), &[], Verifier::new(), &client);
    let ticket = Credential::Ticket(realm.ticket(&name));
    let conn = user.connect(target(addr, Policy::Lossy, ticket.clone())).unwrap();
    conn.ready().await.unwrap();
    for number in 0..200 {
        conn.send(&note(number, 50_000)).unwrap();
    }
    user.shutdown(Duration::from_secs(30)).await;
    assert!(conn.is_over() && user.connect(target(addr, Policy::Lossy, ticket)).is_err());
    until("all messages", || server.count() == 200).await;
    until("the reset", || matches!(server.resets.lock()[..], [ResetReason::PeerClosed])).await;
    osd0.shutdown(Duration::ZERO).await;
    assert!(std::net::TcpStream::connect(addr).is_err(), "the port is closed");
}

/// Records on which thread each connection's messages are handled.
#[derive(Default)]
struct Threads(Mutex<HashMap<u64, std::collections::HashSet<std::thread::ThreadId>>>);

impl Dispatcher for Threads {
    fn on_message(&self, conn: &Conn, _frame: Frame) {
        self.0.lock().entry(conn.id()).or_default().insert(std::thread::current().id());
    }
    fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {}
}

#[test]
fn each_lane_handles_its_connections_on_its_own_thread() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let realm = Realm::new();
    let stop = crate::signal::ShutdownSignal::new();
    let lanes: Vec<(Handle, Arc<Threads>, std::thread::JoinHandle<()>)> = (0..2)
        .map(|_| {
            let (runtime, stop) = (runtime(), stop.clone());
            let handle = runtime.handle().clone();
            let thread = std::thread::spawn(move || runtime.block_on(stop.wait()));
            (handle, Arc::new(Threads::default()), thread)
        })
        .collect();
    let mut builder = Messenger::builder(&config(osd(0), &[])).verifier(realm.verifier());
    for (handle, dispatcher, _) in &lanes {
        builder = builder.lane(handle.clone(), dispatcher.clone());
    }
    let osd0 = builder.build().unwrap();
    let addr = osd0.bind(loopback()).unwrap();
    runtime().block_on(async {
        let name = osd(1);
        let user = messenger(name.clone(), &[], Verifier::new(), &Arc::new(RecordingDispatcher::default()));
        let ticket = Credential::Ticket(realm.ticket(&name));
        let handled = || lanes.iter().map(|(_, seen, _)| seen.0.lock().len()).sum::<usize>();
        let policies = [Policy::Lossy, Policy::Lossless, Policy::Lossy, Policy::Lossless];
        for (before, policy) in policies.into_iter().enumerate() {
            let conn = user.connect(target(addr, policy, ticket.clone())).unwrap();
            conn.ready().await.unwrap();
            conn.send(&note(1, 10)).unwrap();
            until("the message", || handled() == before + 1).await;
            // Two lossless sessions of one messenger would supersede one another, with their unread messages.
            conn.close();
        }
        user.shutdown(Duration::from_secs(1)).await;
        osd0.shutdown(Duration::from_secs(1)).await;
    });
    for (_, seen, thread) in lanes {
        let seen = seen.0.lock();
        assert_eq!(seen.len(), 2, "connections are spread over the lanes");
        assert!(seen.values().all(|threads| threads.len() == 1 && threads.contains(&thread.thread().id())));
        stop.request();
        thread.join().unwrap();
    }
}
