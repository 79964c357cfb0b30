//! Connecting, commands, tickets, and the loss of the map authority.

use crate::fake::{Fake, until};
use nacre_client::{Error, block_on, native};
use nacre_common::auth::Key;
use nacre_common::config::ConfigBuilder;
use nacre_types::errno::Errno;
use nacre_types::ids::EntityName;
use nacre_types::{OsdId, PgId};
use std::net::TcpListener;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[test]
fn a_client_learns_the_cluster_and_runs_commands() {
    let fake = Fake::start();
    let cluster = fake.connect();
    assert_eq!(cluster.fsid(), "00000000-0000-0000-0000-000000000001");
    assert_eq!(cluster.instance_id(), 101);
    let pools = block_on(cluster.pools()).unwrap();
    assert_eq!(pools, [(crate::fake::POOL, "data".to_owned())]);
    let reply = cluster.command(r#"{"prefix":"echo"}"#, "input").wait().unwrap();
    assert_eq!((reply.status.as_str(), &reply.output[..]), ("done", &b"input"[..]));
    let refused = cluster.command(r#"{"prefix":"fail"}"#, "").wait().unwrap_err();
    assert_eq!((refused.errno(), refused.to_string().as_str()), (Errno::ENOENT, "no such thing"));
    let told = cluster.tell(OsdId(1), r#"{"prefix":"version"}"#, "").wait().unwrap();
    assert_eq!(told.output, r#"osd.1: {"prefix":"version"}"#);
    let told = cluster.tell_pg(PgId::new(crate::fake::POOL, 2), "{}", "").wait().unwrap();
    assert_eq!(told.output, "osd.0: {}");
    assert_eq!(cluster.tell(OsdId(9), "{}", "").wait().unwrap_err().errno(), Errno::ENOENT);
}

#[test]
fn a_wrong_key_is_refused_within_seconds() {
    let fake = Fake::start();
    let config = fake.client_config(&[("key", Key::generate().unwrap().to_base64().as_str())]);
    let began = Instant::now();
    let error = native::connect(&config).wait().err().unwrap();
    assert!(matches!(&error, Error::Unreachable { errno: Errno::EACCES, .. }), "{error}");
    assert!(error.to_string().contains("client.admin"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_refusal_right_after_the_start_is_not_final() {
    let fake = Fake::start();
    fake.refuse_keys(2);
    let cluster = native::connect(&fake.client_config(&[])).wait().unwrap();
    assert_eq!(block_on(cluster.pools()).unwrap().len(), 1);
}

#[test]
fn nobody_at_the_address_times_out_and_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    drop(listener);
    let config = ConfigBuilder::new(EntityName::client("admin"))
        .set("mon_host", &addr)
        .set("key", Key::generate().unwrap().to_base64().as_str())
        .set("client_mount_timeout", "1")
        .build()
        .unwrap();
    let error = native::connect(&config).wait().err().unwrap();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    assert!(error.to_string().contains(&addr) && error.to_string().contains("refused"), "{error}");
}

#[test]
fn missing_configuration_is_named() {
    let key = Key::generate().unwrap().to_base64();
    let config = ConfigBuilder::new(EntityName::client("admin")).set("key", key.as_str()).build().unwrap();
    let error = native::connect(&config).wait().err().unwrap();
    assert!(matches!(&error, Error::Configuration { errno: Errno::ENOENT, .. }), "{error}");
    let config = ConfigBuilder::new(EntityName::client("nobody"))
        .set("mon_host", "127.0.0.1:40000")
        .set("keyring", "/nonexistent/keyring")
        .build()
        .unwrap();
    let error = native::connect(&config).wait().err().unwrap();
    assert!(error.to_string().contains("/nonexistent/keyring"), "{error}");
}

#[test]
fn commands_and_maps_survive_the_map_authoritys_restart() {
    let mut fake = Fake::start();
    let cluster = fake.connect();
    let pool = block_on(cluster.open_pool("data")).unwrap();
    fake.world.lock().mute = true;
    let pending = cluster.command(r#"{"prefix":"echo"}"#, "again");
    until("the command's arrival", || fake.world.lock().commands.len() == 1);
    fake.stop_mon();
    // I/O continues while the map authority is down.
    pool.write_full("object", "data").wait().unwrap();
    fake.world.lock().mute = false;
    fake.start_mon();
    assert_eq!(pending.wait().unwrap().output, "again");
    fake.move_all_to(OsdId(1));
    block_on(cluster.refresh_map()).unwrap();
    assert_eq!(cluster.osdmap().unwrap().epoch, fake.epoch());
    assert_eq!(pool.read("object", 0, 0).wait().unwrap(), "data");
    assert_eq!(cluster.instance_id(), 101, "the session's id outlives the connection");
}

#[test]
fn commands_that_fill_the_queue_of_a_new_connection_are_sent_as_it_drains() {
    let mut fake = Fake::start();
    let cluster = fake.connect_with(&[("ms_out_queue_bytes", "64Ki")]);
    fake.world.lock().mute = true;
    let mut pending = Vec::new();
    for sent in 1..=40 {
        pending.push(cluster.command(r#"{"prefix":"echo"}"#, vec![7; 48 << 10]));
        until("the command's arrival", || fake.world.lock().commands.len() == sent);
    }
    fake.stop_mon();
    fake.world.lock().mute = false;
    fake.start_mon();
    let answered = |pending: &mut Vec<nacre_client::Pending<nacre_client::CommandReply>>| {
        pending.retain_mut(|command| {
            match Pin::new(command).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => assert_eq!(answer.unwrap().output.len(), 48 << 10),
                Poll::Pending => return true,
            }
            false
        });
        pending.is_empty()
    };
    until("the answers", || answered(&mut pending));
}

#[test]
fn commands_to_an_osd_fail_when_the_map_shows_it_down() {
    // Over a connection that also carries requests, and over one that does not.
    for requests in [true, false] {
        let fake = Fake::start();
        let cluster = fake.connect();
        if requests {
            let pool = block_on(cluster.open_pool("data")).unwrap();
            fake.move_all_to(OsdId(1));
            pool.write_full("object", "data").wait().unwrap();
        }
        {
            let mut world = fake.world.lock();
            world.mute = true;
            world.commands.clear();
        }
        let pending = cluster.tell(OsdId(1), "{}", "");
        until("the command's arrival", || fake.world.lock().commands.len() == 1);
        fake.mark_down(OsdId(1));
        assert_eq!(pending.wait().unwrap_err().errno(), Errno::ENXIO);
        assert_eq!(cluster.tell(OsdId(1), "{}", "").wait().unwrap_err().errno(), Errno::ENXIO);
    }
}

#[test]
fn commands_to_an_osd_expire_by_rados_osd_op_timeout() {
    let fake = Fake::start();
    let cluster = fake.connect_with(&[("rados_osd_op_timeout", "1")]);
    fake.world.lock().mute = true;
    let error = cluster.tell(OsdId(1), "{}", "").wait().unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    assert!(error.to_string().contains("rados_osd_op_timeout"), "{error}");
}

#[test]
fn a_wait_for_a_map_ends_with_the_session() {
    let fake = Fake::start();
    let cluster = fake.connect();
    fake.world.lock().epochs_ahead = 1;
    let pending = cluster.refresh_map();
    // The map authority has reported the epoch before it answers this.
    cluster.command("{}", "").wait().unwrap();
    let waiter = std::thread::spawn(move || pending.wait());
    cluster.shut_down();
    assert!(matches!(waiter.join().unwrap(), Err(Error::ShutDown)));
}

#[test]
fn a_wait_for_a_map_expires_by_rados_mon_op_timeout() {
    let fake = Fake::start();
    let cluster = fake.connect_with(&[("rados_mon_op_timeout", "1")]);
    fake.world.lock().epochs_ahead = 1;
    let error = cluster.refresh_map().wait().unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    assert!(error.to_string().contains("rados_mon_op_timeout"), "{error}");
}

#[test]
fn tickets_are_renewed_before_and_after_they_expire() {
    let fake = Fake::start();
    fake.world.lock().ticket_life = 1;
    let cluster = fake.connect();
    let pool = block_on(cluster.open_pool("data")).unwrap();
    until("several renewals", || fake.world.lock().tickets >= 4);
    // A new connection to an OSD authenticates with the newest ticket.
    fake.cut_osd_connections();
    pool.write_full("object", "data").wait().unwrap();
    assert_eq!(cluster.instance_id(), 101);
}

#[test]
fn a_shut_down_handle_fails_what_is_in_flight() {
    let fake = Fake::start();
    let cluster = fake.connect();
    let pool = block_on(cluster.open_pool("data")).unwrap();
    fake.world.lock().mood = crate::fake::Mood::Swallow;
    let pending = pool.write_full("object", "data");
    cluster.shut_down();
    assert!(matches!(pending.wait(), Err(Error::ShutDown)));
    assert!(matches!(pool.stat("object").wait(), Err(Error::ShutDown)));
    assert!(matches!(cluster.command("{}", "").wait(), Err(Error::ShutDown)));
}
