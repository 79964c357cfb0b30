use super::*;
use crate::auth::{Caps, Credential, ServiceKeyring, ServiceKeys, Ticket, TicketBody};
use crate::config::ConfigBuilder;
use bytes::Bytes;
use nacre_types::ids::{ClientId, OsdId};
use nacre_types::msg::Message;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicUsize;
use std::time::{SystemTime, UNIX_EPOCH};

/// A message with everything that messages have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) number: u64,
    pub(super) text: String,
    #[serde(with = "nacre_types::payload")]
    pub(super) data: Bytes,
}

impl Message for Note {
    const KIND: u16 = 60_000;
    const NAME: &'static str = "Note";
}

pub(super) fn note(number: u64, bytes: usize) -> Note {
    let data: Vec<u8> = (0..bytes).map(|at| (number as usize + at) as u8).collect();
    Note { number, text: format!("note {number}"), data: data.into() }
}

/// What a test's dispatcher saw.
#[derive(Default)]
pub(super) struct Seen {
    notes: Mutex<Vec<Note>>,
    frames: Mutex<Vec<Frame>>,
    accepted: Mutex<Vec<Conn>>,
    resets: Mutex<Vec<Reset>>,
    faults: AtomicUsize,
    connects: AtomicUsize,
    echo: bool,
    hold: bool,
}

impl Dispatcher for Seen {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let message: Note = frame.decode().unwrap();
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
    fn on_reset(&self, _conn: &Conn, reset: Reset) {
        self.resets.lock().push(reset);
    }
    fn on_fault(&self, _conn: &Conn, _error: &Error) {
        self.faults.fetch_add(1, Ordering::SeqCst);
    }
}

impl Seen {
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

/// A small realm: service keys, and tickets for anybody.
struct Realm {
    keys: ServiceKeyring,
}

impl Realm {
    fn new() -> Realm {
        Realm { keys: ServiceKeyring::generate(now_unix(), 3600).unwrap() }
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
            session_key: crate::auth::SessionKey::generate().unwrap(),
        };
        self.keys.seal(body).unwrap()
    }

    fn verifier(&self) -> Verifier {
        let keys = ServiceKeys::new(10);
        keys.update(self.keys.keys().to_vec());
        Verifier::new().with_tickets(Arc::new(keys))
    }
}

fn osd(id: u32) -> EntityName {
    EntityName::osd(OsdId(id))
}

fn config(entity: EntityName, settings: &[(&str, &str)]) -> Config {
    let mut builder =
        ConfigBuilder::new(entity).set("ms_initial_backoff", "0.001").set("ms_max_backoff", "0.01");
    for (name, value) in settings {
        builder = builder.set(name, *value);
    }
    builder.build().unwrap()
}

fn messenger(
    entity: EntityName,
    settings: &[(&str, &str)],
    verifier: Verifier,
    dispatcher: &Arc<Seen>,
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

fn target(addr: SocketAddr, policy: Policy, credential: Credential) -> Target {
    Target { addr, entity: None, policy, lane: 0, credentials: Arc::new(credential) }
}

#[tokio::test]
async fn messages_of_all_sizes_arrive_in_order_and_come_back() {
    for mode in ["crc", "secure"] {
        let realm = Realm::new();
        let settings = [("ms_cluster_mode", mode), ("ms_service_mode", mode), ("ms_client_mode", mode)];
        let server = Arc::new(Seen { echo: true, ..Seen::default() });
        let client = Arc::new(Seen::default());
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
        assert!(matches!(server.resets.lock()[0], Reset::PeerClosed));
        assert!(client.resets.lock().is_empty());
        messenger.shutdown(Duration::from_secs(5)).await;
        osd0.shutdown(Duration::from_secs(5)).await;
    }
}
