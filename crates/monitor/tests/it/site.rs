//! A cluster with its keys, and sessions with its map authority.

use bytes::Bytes;
use nacre_common::auth::{Caps, Credential, Key, Keyring};
use nacre_common::config::{Config, ConfigBuilder};
use nacre_monitor::{MonError, MonServer, mkfs};
use nacre_runtime::msgr::{Conn, ConnectTarget, Dispatcher, Frame, Messenger, Policy, ResetReason};
use nacre_types::encoding;
use nacre_types::ids::{EntityKind, EntityName, Epoch, Incarnation, OsdId};
use nacre_types::msg::{MapPublish, Message, MonCommand, MonCommandReply, MonSubscribe, OsdBoot};
use nacre_types::osdmap::{Incremental, MapVersion, Member, OsdMap};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Maximum wait for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Site {
    dir: tempfile::TempDir,
    pub(crate) keyring: Keyring,
    pub(crate) fsid: Uuid,
    /// Options of the map authority.
    options: Vec<(String, String)>,
}

impl Site {
    /// A new cluster whose keyring has an administrator, a reader, an entity without caps and three OSDs.
    pub(crate) fn new() -> Site {
        Site::with_options(&[])
    }

    /// Likewise, with options of the map authority.
    pub(crate) fn with_options(options: &[(&str, &str)]) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let mut keyring = Keyring::new();
        let mut add = |name: &str, caps: &[(&str, &str)]| {
            let caps: Caps = caps.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            keyring.insert(name.parse().unwrap(), Key::generate().unwrap(), caps);
        };
        add("client.admin", &[("mon", "allow *"), ("osd", "allow *")]);
        add("client.reader", &[("mon", "allow r")]);
        add("client.maps", &[("mon", "allow service osd r")]);
        add("client.nobody", &[]);
        for osd in 0..3 {
            add(&format!("osd.{osd}"), &[("mon", "allow profile osd"), ("osd", "allow *")]);
        }
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let site = Site { dir, keyring, fsid: Uuid::from_u128(42), options };
        mkfs(&site.config(), site.data(), site.fsid, &site.keyring).unwrap();
        site
    }

    pub(crate) fn data(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn config(&self) -> Config {
        let log = self.data().join("cluster.log").display().to_string();
        let mut options: Vec<(&str, &str)> = vec![("mon_cluster_log_file", &log)];
        options.extend(self.options.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        mon_config_with(&options)
    }

    pub(crate) fn start(&self) -> MonServer {
        self.try_start().unwrap()
    }

    pub(crate) fn try_start(&self) -> Result<MonServer, MonError> {
        MonServer::start(&self.config(), self.data(), "127.0.0.1:0".parse().unwrap())
    }

    pub(crate) fn connect(&self, mon: &MonServer, who: &str) -> Session {
        let entity: EntityName = who.parse().unwrap();
        let key = self.keyring.get(&entity).unwrap().key.clone();
        Session::open(mon, entity, key)
    }
}

pub(crate) fn mon_config() -> Config {
    mon_config_with(&[])
}

pub(crate) fn mon_config_with(options: &[(&str, &str)]) -> Config {
    let builder =
        ConfigBuilder::new(EntityName::new(EntityKind::Mon, "a")).set("osd_crush_chooseleaf_type", "0");
    let builder = builder.set("admin_socket", "");
    options.iter().fold(builder, |b, (name, value)| b.set(name, *value)).build().unwrap()
}

pub(crate) enum Heard {
    Frame(Frame),
    Reset,
}

struct TestSession(Sender<Heard>);

impl Dispatcher for TestSession {
    fn on_message(&self, _conn: &Conn, frame: Frame) {
        // The session may have ended.
        let _ = self.0.send(Heard::Frame(frame));
    }
    fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {
        let _ = self.0.send(Heard::Reset);
    }
}

/// A peer of the map authority with its own map.
pub(crate) struct Session {
    pub(crate) conn: Conn,
    pub(crate) heard: Receiver<Heard>,
    pub(crate) later: Vec<Frame>,
    pub(crate) map: Option<OsdMap>,
    _messenger: Messenger,
    _runtime: tokio::runtime::Runtime,
}

impl Session {
    pub(crate) fn open(mon: &MonServer, entity: EntityName, key: Key) -> Session {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (ear, heard) = channel();
        let config = ConfigBuilder::new(entity.clone()).build().unwrap();
        let messenger = Messenger::builder(&config)
            .lane(runtime.handle().clone(), Arc::new(TestSession(ear)))
            .build()
            .unwrap();
        let guard = runtime.enter();
        let target = ConnectTarget {
            addr: mon.addr(),
            entity: None,
            policy: Policy::Lossy,
            lane: 0,
            credentials: Arc::new(Credential::Key { entity, key }),
        };
        let conn = messenger.connect(target).unwrap();
        drop(guard);
        Session { conn, heard, later: Vec::new(), map: None, _messenger: messenger, _runtime: runtime }
    }

    pub(crate) fn send<M: Message>(&self, message: &M) {
        self.conn.send(message).unwrap();
    }

    /// The next message of type `M`. Other messages are kept for later.
    pub(crate) fn wait<M: Message>(&mut self) -> M {
        if let Some(at) = self.later.iter().position(|frame| frame.kind() == M::KIND) {
            return self.later.remove(at).decode().unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Heard::Frame(frame)) if frame.kind() == M::KIND => return frame.decode().unwrap(),
                Ok(Heard::Frame(frame)) => self.later.push(frame),
                Ok(Heard::Reset) => panic!("connection was reset while waiting for {}", M::NAME),
                Err(_) => panic!("no {} arrived", M::NAME),
            }
        }
    }

    pub(crate) fn wait_for_reset(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Heard::Reset) => return,
                Ok(Heard::Frame(_)) => {}
                Err(_) => panic!("the connection was not reset"),
            }
        }
    }

    pub(crate) fn command(&mut self, cmd: Value) -> (i32, String, String) {
        self.send(&MonCommand { tid: 77, cmd: cmd.to_string(), input: Bytes::new() });
        let reply: MonCommandReply = self.wait();
        assert_eq!(reply.tid, 77);
        (reply.code, reply.status, String::from_utf8_lossy(&reply.output).into_owned())
    }

    pub(crate) fn subscribe(&mut self, next_epoch: u32) {
        self.send(&MonSubscribe { next_epoch: Epoch(next_epoch), config: true });
    }

    /// Follows publications until `wanted` holds.
    pub(crate) fn map_where(&mut self, wanted: impl Fn(&OsdMap) -> bool) -> OsdMap {
        loop {
            if let Some(map) = self.map.as_ref().filter(|map| wanted(map)) {
                return map.clone();
            }
            let publish: MapPublish = self.wait();
            if !publish.full.is_empty() {
                self.map = Some(encoding::decode(&publish.full).unwrap());
            }
            for blob in &publish.incrementals {
                let inc: Incremental = encoding::decode(&blob.0).unwrap();
                let map = self.map.as_ref().expect("incrementals follow a full map");
                self.map = Some(map.apply(&inc).unwrap());
            }
        }
    }
}

pub(crate) fn boot(osd: u32, nonce: u64) -> OsdBoot {
    OsdBoot {
        osd: OsdId(osd),
        uuid: Uuid::from_u128(0x100 + u128::from(osd)),
        incarnation: Incarnation(Uuid::from_u128(0x200 + u128::from(osd))),
        boot_nonce: nonce,
        addr: format!("127.0.0.1:{}", 42_000 + osd).parse().unwrap(),
        epoch: Epoch(1 << 30),
        seen: MapVersion::default(),
        total_bytes: 1 << 30,
        metadata: BTreeMap::from([("hostname".to_owned(), "here".to_owned())]),
        location: BTreeMap::new(),
        device_class: "ssd".into(),
    }
}

pub(crate) fn member(osd: u32) -> Member {
    Member { osd: OsdId(osd), incarnation: boot(osd, 0).incarnation }
}

/// Three OSDs that are up, and a pool of 8 PGs.
pub(crate) fn booted(site: &Site, mon: &MonServer) -> (Session, Vec<Session>) {
    let mut admin = site.connect(mon, "client.admin");
    let mut osds: Vec<Session> = (0..3).map(|osd| site.connect(mon, &format!("osd.{osd}"))).collect();
    for (osd, session) in osds.iter_mut().enumerate() {
        session.subscribe(0);
        session.send(&boot(osd as u32, 1));
        session.map_where(|map| map.is_up(OsdId(osd as u32)));
    }
    let created = admin.command(json!({ "prefix": "osd pool create", "pool": "p", "pg_num": 8 }));
    assert_eq!(created, (0, "pool 'p' created".into(), String::new()));
    (admin, osds)
}
