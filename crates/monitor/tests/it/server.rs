//! A map authority over real connections: authentication, authorization, publications, and what a restart preserves.

use crate::site::{Heard, PATIENCE, Session, Site, boot, booted, member, mon_config};
use bytes::Bytes;
use nacre_common::auth::{AuthTicketReply, AuthTicketRequest, Key, Keyring, RotatingKeyring};
use nacre_mapstore::PersistError;
use nacre_monitor::{MonError, MonServer, mint_generation, mkfs, stored_fsid};
use nacre_runtime::msgr::Frame;
use nacre_types::ids::{EntityName, Epoch, Interval, OsdId, PgId, PoolId};
use nacre_types::msg::{
    ConfigPublish, LogAppend, LogPublish, LogSubscribe, MapPublish, Message, MonSubscribe, OsdBoot,
    OsdMarkMeDown, PgCas, PgCasReply,
};
use nacre_types::osdmap::PgMembership;
use nacre_types::placement::PgMapper;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[test]
fn osds_boot_swap_memberships_and_everybody_is_told() {
    let site = Site::new();
    let mon = site.start();
    let (mut admin, mut osds) = booted(&site, &mon);
    let map = osds[0].map_where(|map| map.pool_by_name("p").is_some());
    let pg = PgId::new(PoolId(1), 3);
    let up = PgMapper::new(&map).up(pg);
    assert_eq!(up.len(), 3);
    let in_sync = up.iter().map(|osd| member(osd.0)).collect();
    let proposed = PgMembership { interval: Interval(1), primary: up[0], in_sync };
    let cas = PgCas { tid: 5, pg, proposer: member(up[0].0), expected: None, proposed: proposed.clone() };
    let primary = &mut osds[up[0].0 as usize];
    primary.send(&cas);
    let reply: PgCasReply = primary.wait();
    assert_eq!((reply.tid, reply.accepted, reply.current), (5, true, Some(proposed.clone())));
    let shown = primary.map_where(|map| map.epoch >= reply.epoch);
    assert_eq!(shown.membership(pg), Some(&proposed));
    // The same from another OSD loses the race.
    let other = &mut osds[up[1].0 as usize];
    other.send(&PgCas { tid: 6, proposer: member(up[1].0), ..cas });
    let reply: PgCasReply = other.wait();
    assert_eq!((reply.tid, reply.accepted, reply.current), (6, false, Some(proposed)));

    osds[2].send(&OsdMarkMeDown { boot_nonce: 1 });
    osds[0].map_where(|map| !map.is_up(OsdId(2)));
    let tree = admin.command(json!({ "prefix": "osd tree" })).2;
    assert!(tree.contains("osd.2    down"), "{tree}");
    osds[0].send(&LogAppend { level: "warn".into(), text: "something is odd".into() });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = admin.command(json!({ "prefix": "log last", "num": 50 })).2;
        if log.contains("osd.0 (osd.0)") && log.contains("cluster [WRN] something is odd") {
            break;
        }
        assert!(Instant::now() < deadline, "{log}");
    }
    mon.stop();
    let file = std::fs::read_to_string(site.data().join("cluster.log")).unwrap();
    assert!(file.contains("osd.0 127.0.0.1:42000 boot"), "{file}");
}

#[test]
fn who_has_no_key_or_no_caps_gets_nothing() {
    let site = Site::new();
    let mon = site.start();
    let stranger = Session::open(&mon, "client.stranger".parse().unwrap(), Key::generate().unwrap());
    stranger.wait_for_reset();
    let thief = Session::open(&mon, "client.admin".parse().unwrap(), Key::generate().unwrap());
    thief.wait_for_reset();
    let mut reader = site.connect(&mon, "client.reader");
    assert_eq!(reader.command(json!({ "prefix": "osd stat" })).0, 0);
    assert_eq!(
        reader.command(json!({ "prefix": "osd set", "key": "noout" })),
        (-13, "access denied".into(), String::new())
    );
    let mut nobody = site.connect(&mon, "client.nobody");
    assert_eq!(nobody.command(json!({ "prefix": "status" })).0, -13);
    // Neither a client nor another OSD may act for osd.0.
    for who in ["client.admin", "osd.1"] {
        let impostor = site.connect(&mon, who);
        impostor.send(&boot(0, 1));
        impostor.wait_for_reset();
    }
    let mut admin = site.connect(&mon, "client.admin");
    // Commands do not wait for a change that is never made durable.
    site.connect(&mon, "osd.1").send(&boot(1, 2));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(admin.command(json!({ "prefix": "osd ls" })).2, "");
    // Removing the key ends the rights of its holder.
    assert_eq!(admin.command(json!({ "prefix": "auth rm", "entity": "client.reader" })).0, 0);
    reader.wait_for_reset();
    site.connect(&mon, "client.reader").wait_for_reset();
}

/// CVE-2026-50152: a subscription must not show more than commands do.
#[test]
fn subscriptions_show_no_secrets_and_nothing_without_caps() {
    const SECRET: &str = "ssh-key-of-the-orchestrator";
    let site = Site::new();
    let mon = site.start();
    let mut admin = site.connect(&mon, "client.admin");
    for command in [
        json!({ "prefix": "config-key set", "key": "mgr/cephadm/ssh_identity_key", "val": SECRET }),
        json!({ "prefix": "config set", "who": "client.rgw", "name": "rgw_dns_name", "value": "others.example" }),
        json!({ "prefix": "config set", "who": "client.reader", "name": "rgw_dns_name", "value": "own.example" }),
    ] {
        let (code, status, _) = admin.command(command);
        assert_eq!(code, 0, "{status}");
    }
    let everything = |session: &mut Session| {
        session.subscribe(0);
        session.send(&LogSubscribe { level: "debug".into(), channel: "*".into(), after: Some(0) });
        session.send(&AuthTicketRequest { tid: 1, renew: None });
        let ticket: AuthTicketReply = session.wait();
        assert!(ticket.keys.is_empty(), "service keys are for OSDs");
        for command in [
            json!({ "prefix": "config-key get", "key": "mgr/cephadm/ssh_identity_key" }),
            json!({ "prefix": "config-key exists", "key": "mgr/cephadm/ssh_identity_key" }),
            json!({ "prefix": "config-key dump" }),
            json!({ "prefix": "config-key ls" }),
            json!({ "prefix": "auth get", "entity": "client.admin" }),
            json!({ "prefix": "auth ls" }),
        ] {
            assert_eq!(session.command(command), (-13, "access denied".into(), String::new()));
        }
    };
    let no_secret = |what: &[u8]| {
        let text = String::from_utf8_lossy(what);
        assert!(!text.contains(SECRET), "{text}");
        for (entity, entry) in site.keyring.iter() {
            assert!(!text.contains(entry.key.to_base64().as_str()), "the key of {entity}: {text}");
        }
    };

    // A client that may read gets the map, its own configuration and the log.
    let mut reader = site.connect(&mon, "client.reader");
    everything(&mut reader);
    let config: ConfigPublish = reader.wait();
    assert_eq!(config.values.get("rgw_dns_name").map(String::as_str), Some("own.example"));
    no_secret(format!("{config:?}").as_bytes());
    assert!(!format!("{config:?}").contains("others.example"), "{config:?}");
    let maps: MapPublish = reader.wait();
    no_secret(&maps.full);
    maps.incrementals.iter().for_each(|blob| no_secret(&blob.0));
    loop {
        let log: LogPublish = reader.wait();
        no_secret(format!("{log:?}").as_bytes());
        if log.lines.iter().any(|line| line.text.contains("config-key set")) {
            break;
        }
    }

    // A client that may read only the map gets only the map; a client without capabilities gets nothing.
    let mut maps = site.connect(&mon, "client.maps");
    let mut nobody = site.connect(&mon, "client.nobody");
    everything(&mut maps);
    everything(&mut nobody);
    assert_eq!(admin.command(json!({ "prefix": "osd set", "key": "noout" })).0, 0);
    assert_eq!(admin.command(json!({ "prefix": "osd unset", "key": "noout" })).0, 0);
    maps.map_where(|map| map.epoch >= Epoch(3));
    for session in [&mut maps, &mut nobody] {
        // Answers are in order: everything published before has arrived.
        assert_eq!(session.command(json!({ "prefix": "auth ls" })).0, -13);
    }
    let kinds = |session: &Session| session.later.iter().map(Frame::kind).collect::<Vec<_>>();
    assert!(!kinds(&maps).contains(&LogPublish::KIND));
    assert!(kinds(&nobody).is_empty(), "{:?}", kinds(&nobody));

    // A client with a wrong key gets no answer.
    let stranger = Session::open(&mon, "client.admin".parse().unwrap(), Key::generate().unwrap());
    // It may be closed already.
    _ = stranger.conn.send(&MonSubscribe { next_epoch: Epoch(0), config: true });
    match stranger.heard.recv_timeout(PATIENCE) {
        Ok(Heard::Reset) => {}
        Ok(Heard::Frame(frame)) => panic!("a stranger was sent a message of kind {}", frame.kind()),
        Err(_) => panic!("the connection was not reset"),
    }
}

#[test]
fn a_rotated_key_shuts_out_the_old_one_at_once() {
    let site = Site::new();
    let mon = site.start();
    let mut admin = site.connect(&mon, "client.admin");
    let mut reader = site.connect(&mon, "client.reader");
    assert_eq!(reader.command(json!({ "prefix": "osd stat" })).0, 0);
    let (code, _, keyring) = admin.command(json!({ "prefix": "auth rotate", "entity": "client.reader" }));
    assert_eq!(code, 0);
    reader.wait_for_reset();
    site.connect(&mon, "client.reader").wait_for_reset();
    let entity: EntityName = "client.reader".parse().unwrap();
    let rotated = Keyring::parse(Path::new("rotated"), &keyring).unwrap();
    let entry = rotated.get(&entity).unwrap();
    assert_eq!(entry.caps["mon"], "allow r");
    let mut back = Session::open(&mon, entity.clone(), entry.key.clone());
    assert_eq!(back.command(json!({ "prefix": "osd stat" })).0, 0);
    let unknown = admin.command(json!({ "prefix": "auth rotate", "entity": "client.zz" }));
    assert_eq!((unknown.0, unknown.1.as_str()), (-2, "entity does not exist"));
}

/// A connection that only listens ends when its entity loses the right to what it receives.
#[test]
fn revoked_rights_end_what_was_granted_by_them() {
    let site = Site::new();
    let mon = site.start();
    let mut admin = site.connect(&mon, "client.admin");
    let caps =
        |entity: &str, caps: &str| json!({ "prefix": "auth caps", "entity": entity, "caps": ["mon", caps] });

    // The log: for an entity that is removed, and for one that may no longer read it.
    let follow = || LogSubscribe { level: "debug".into(), channel: "*".into(), after: Some(0) };
    let mut reader = site.connect(&mon, "client.reader");
    reader.send(&follow());
    let _: LogPublish = reader.wait();
    assert_eq!(admin.command(caps("client.reader", "allow service osd r")).0, 0);
    reader.wait_for_reset();
    assert_eq!(admin.command(caps("client.maps", "allow r")).0, 0);
    let mut follower = site.connect(&mon, "client.maps");
    follower.send(&follow());
    let _: LogPublish = follower.wait();
    assert_eq!(admin.command(json!({ "prefix": "auth rm", "entity": "client.maps" })).0, 0);
    follower.wait_for_reset();

    // Maps.
    let mut subscriber = site.connect(&mon, "client.reader");
    subscriber.subscribe(0);
    subscriber.map_where(|_| true);
    assert_eq!(admin.command(caps("client.reader", "allow service osd r, allow service log w")).0, 0);
    assert_eq!(subscriber.command(json!({ "prefix": "osd stat" })).0, 0, "what it may have goes on");
    assert_eq!(admin.command(caps("client.reader", "allow service mon r")).0, 0);
    subscriber.wait_for_reset();

    // Service keys.
    let mut osd = site.connect(&mon, "osd.0");
    osd.send(&AuthTicketRequest { tid: 1, renew: None });
    assert_eq!(osd.wait::<AuthTicketReply>().keys.len(), 3);
    assert_eq!(admin.command(caps("osd.0", "allow r")).0, 0);
    osd.wait_for_reset();
}

#[test]
fn tickets_name_sessions_uniquely_and_osds_can_open_them() {
    let site = Site::new();
    let mon = site.start();
    let ask = |session: &mut Session, renew: Option<Bytes>| -> AuthTicketReply {
        session.send(&AuthTicketRequest { tid: 3, renew });
        session.wait()
    };
    let mut osd = site.connect(&mon, "osd.0");
    let osd_reply = ask(&mut osd, None);
    assert_eq!((osd_reply.tid, osd_reply.code, osd_reply.keys.len()), (3, 0, 3));
    let keys = RotatingKeyring::new(10);
    keys.update(osd_reply.keys);
    let mut admin = site.connect(&mon, "client.admin");
    let first = ask(&mut admin, None);
    assert!(first.keys.is_empty(), "service keys are for OSDs only");
    let grant = first.ticket.unwrap();
    let body = keys.unseal(&grant.blob, grant.expires_unix - 1).unwrap();
    assert_eq!((body.entity.to_string().as_str(), body.client), ("client.admin", Some(first.client)));
    assert_eq!(body.caps["osd"], "allow *");
    assert_eq!(body.session_key, grant.session_key);
    assert_eq!(ask(&mut admin, Some(grant.blob.clone())).client, first.client, "a renewed session goes on");
    let mut other = site.connect(&mon, "client.reader");
    let stolen = ask(&mut other, Some(grant.blob)).client;
    assert!(stolen != first.client, "a ticket renews its holder's session only");
    mon.stop();
    let mon = site.start();
    let later = ask(&mut site.connect(&mon, "client.admin"), None).client;
    assert!(later > stolen && later > first.client, "ids are not given out again after a restart");
}

#[test]
fn configuration_reaches_those_it_is_for() {
    let site = Site::new();
    let mon = site.start();
    let (mut admin, mut osds) = booted(&site, &mon);
    let value_of = |osd: &mut Session, wanted: Option<&str>| loop {
        let publish: ConfigPublish = osd.wait();
        if publish.values.get("osd_max_backfills").map(String::as_str) == wanted {
            return;
        }
    };
    let set = |admin: &mut Session, who: &str, value: &str| {
        let cmd = json!({ "prefix": "config set", "who": who, "name": "osd_max_backfills", "value": value });
        assert_eq!(admin.command(cmd).0, 0);
    };
    set(&mut admin, "osd", "3");
    set(&mut admin, "osd.1", "4");
    value_of(&mut osds[0], Some("3"));
    value_of(&mut osds[1], Some("4"));
    set(&mut admin, "osd/class:ssd", "5");
    value_of(&mut osds[1], Some("5"));
    // The authority applies its own configuration.
    let rm =
        json!({ "prefix": "osd pool rm", "pool": "p", "pool2": "p", "yes_i_really_really_mean_it": true });
    assert!(admin.command(rm.clone()).1.starts_with("pool deletion is disabled"));
    let allow =
        json!({ "prefix": "config set", "who": "mon", "name": "mon_allow_pool_delete", "value": "true" });
    assert_eq!(admin.command(allow).0, 0);
    assert_eq!(admin.command(rm), (0, "pool 'p' removed".into(), String::new()));
}

#[test]
fn a_restart_keeps_everything_that_was_answered_and_subscribers_go_on() {
    let site = Site::new();
    let mon = site.start();
    let (mut admin, mut osds) = booted(&site, &mon);
    assert_eq!(admin.command(json!({ "prefix": "osd set", "key": "noout" })).0, 0);
    let map = osds[0].map_where(|map| map.has_flag(nacre_types::osdmap::flag::NOOUT));
    mon.stop();
    let mon = site.start();
    let mut osd = site.connect(&mon, "osd.0");
    osd.map = Some(map.clone());
    osd.subscribe(map.epoch.0 + 1);
    let mut admin = site.connect(&mon, "client.admin");
    assert_eq!(admin.command(json!({ "prefix": "osd unset", "key": "noout" })).0, 0);
    let now = osd.map_where(|now| !now.has_flag(nacre_types::osdmap::flag::NOOUT));
    assert_eq!(now.epoch, map.epoch.next(), "nothing was lost, nothing invented");
    assert!((0..3).all(|id| now.is_up(OsdId(id))) && now.pool_by_name("p").is_some());
}

#[test]
fn a_rolled_back_store_is_noticed_and_a_new_generation_heals_it() {
    let site = Site::new();
    let copy = tempfile::tempdir().unwrap();
    let mon = site.start();
    drop(mon);
    copy_tree(site.data(), &copy.path().join("copy"));
    let mon = site.start();
    let (_, mut osds) = booted(&site, &mon);
    let seen = osds[0].map_where(|map| map.pool_by_name("p").is_some());
    mon.stop();
    std::fs::remove_dir_all(site.data()).unwrap();
    copy_tree(&copy.path().join("copy"), &site.data().to_path_buf());

    let mon = site.start();
    let osd = site.connect(&mon, "osd.0");
    osd.send(&OsdBoot { epoch: seen.epoch, seen: seen.version(), ..boot(0, 2) });
    let mut admin = site.connect(&mon, "client.admin");
    let deadline = Instant::now() + PATIENCE;
    while !admin
        .command(json!({ "prefix": "health" }))
        .2
        .contains("have seen a map that the map store does not hold")
    {
        assert!(Instant::now() < deadline, "the roll-back is not reported");
    }
    assert_eq!(admin.command(json!({ "prefix": "osd ls" })).2, "");
    mon.stop();

    mint_generation(&mon_config(), site.data(), &[]).unwrap();
    let mon = site.start();
    let mut osd = site.connect(&mon, "osd.0");
    osd.send(&OsdBoot { epoch: seen.epoch, seen: seen.version(), ..boot(0, 2) });
    osd.map = Some(seen.clone());
    osd.subscribe(seen.epoch.0 + 1);
    let healed = osd.map_where(|map| map.is_up(OsdId(0)) && map.generation != seen.generation);
    assert!(healed.epoch > seen.epoch);
}

#[test]
fn a_monitor_notices_that_its_store_was_restored_before_any_osd_reports() {
    let site = Site::new();
    let copy = tempfile::tempdir().unwrap();
    drop(site.start());
    copy_tree(&site.data().join("store.db"), &copy.path().join("store.db"));
    let mon = site.start();
    let (_, mut osds) = booted(&site, &mon);
    let newest = osds[0].map_where(|map| map.pool_by_name("p").is_some()).history.to_string();
    let recorded = || -> String {
        let bytes = std::fs::read(site.data().join("seen_map")).unwrap_or_default();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let deadline = Instant::now() + PATIENCE;
    while !recorded().contains(&newest) {
        assert!(Instant::now() < deadline, "the newest map is not recorded");
        std::thread::sleep(Duration::from_millis(50));
    }
    mon.stop();
    std::fs::remove_dir_all(site.data().join("store.db")).unwrap();
    copy_tree(&copy.path().join("store.db"), &site.data().join("store.db"));

    let mon = site.start();
    let mut admin = site.connect(&mon, "client.admin");
    let health = admin.command(json!({ "prefix": "health", "detail": "detail" })).2;
    assert!(health.contains("MAP_STORE_ROLLED_BACK") && health.contains("mon.a has seen epoch"), "{health}");
    let refused = admin.command(json!({ "prefix": "osd set", "key": "noout" }));
    assert_eq!(refused.0, -30, "{refused:?}");
    mon.stop();
    mint_generation(&mon_config(), site.data(), &[]).unwrap();
    let mon = site.start();
    let mut admin = site.connect(&mon, "client.admin");
    assert_eq!(admin.command(json!({ "prefix": "osd set", "key": "noout" })).0, 0);
}

#[test]
fn a_directory_has_one_cluster_and_one_user() {
    let site = Site::new();
    assert!(matches!(
        mkfs(&mon_config(), site.data(), site.fsid, &site.keyring),
        Err(MonError::Map(PersistError::AlreadyInitialised))
    ));
    assert_eq!(stored_fsid(&mon_config(), site.data()).unwrap(), Some(site.fsid));
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(stored_fsid(&mon_config(), empty.path()).unwrap(), None);
    let listen = "127.0.0.1:0".parse().unwrap();
    assert!(matches!(
        MonServer::start(&mon_config(), empty.path(), listen),
        Err(MonError::Map(PersistError::NotInitialised))
    ));
    let mon = site.start();
    assert_eq!(mon.fsid(), site.fsid);
    assert!(matches!(
        MonServer::start(&mon_config(), site.data(), listen),
        Err(MonError::Map(PersistError::Store(_)))
    ));
}

#[test]
fn many_swaps_at_once_share_epochs() {
    let site = Site::new();
    let mon = site.start();
    let (mut admin, mut osds) = booted(&site, &mon);
    assert_eq!(admin.command(json!({ "prefix": "osd pool create", "pool": "wide", "pg_num": 128 })).0, 0);
    let map = osds[0].map_where(|map| map.pool_by_name("wide").is_some());
    let pgs: Vec<PgId> = (0..128).map(|seed| PgId::new(PoolId(2), seed)).collect();
    let mut mapper = PgMapper::new(&map);
    let mut sent = [0_usize; 3];
    for pg in &pgs {
        let up = mapper.up(*pg);
        let in_sync = up.iter().map(|osd| member(osd.0)).collect();
        let proposed = PgMembership { interval: Interval(1), primary: up[0], in_sync };
        let at = up[0].0 as usize;
        osds[at].send(&PgCas {
            tid: u64::from(pg.seed),
            pg: *pg,
            proposer: member(up[0].0),
            expected: None,
            proposed,
        });
        sent[at] += 1;
    }
    for (session, count) in osds.iter_mut().zip(sent) {
        for _ in 0..count {
            assert!(session.wait::<PgCasReply>().accepted);
        }
    }
    let done = osds[0].map_where(|map| map.pgs[&PoolId(2)].iter().all(Option::is_some));
    let epochs = done.epoch.0 - map.epoch.0;
    assert!(epochs < 64, "128 swaps took {epochs} epochs");
}

fn copy_tree(from: &Path, to: &PathBuf) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
