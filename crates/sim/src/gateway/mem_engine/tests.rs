//! Tests of the engine through its public interface: the guarantees for gateways, and each kind of fault.

mod fencing;
mod watches;

use super::*;
use crate::gateway::executor::{Settings, Stuck};
use crate::schedule::{MILLI, SECOND};
use bytes::Bytes;
use nacre_engine::{IoCtx, ReadOp, Result, WriteOp};
use nacre_task::Env;
use nacre_types::errno::Errno;
use nacre_types::op::CmpOp;
use std::time::Duration;

const POOL: &str = "pool";

struct World {
    executor: Executor,
    cluster: MemCluster,
}

impl World {
    fn new(seed: u64, faults: Faults) -> World {
        let executor = Executor::new(seed, Settings { trace: true, ..Settings::default() });
        let cluster = MemCluster::new(&executor, seed, faults);
        cluster.make_pool(POOL, 8);
        World { executor, cluster }
    }

    /// A process with a session and the pool opened.
    fn client(&self) -> Client {
        let process = self.executor.start_process();
        let cluster = self.cluster.connect(process);
        let opening = cluster.clone();
        let opened = self.executor.run(process, 60 * SECOND, async move { opening.open_pool(POOL).await });
        let pool = opened.expect("the future completes").expect("the pool is there");
        Client { process, env: self.executor.env(process), cluster, pool }
    }

    /// Runs a client's future to completion.
    fn run<T: Send + 'static>(
        &self,
        client: &Client,
        future: impl Future<Output = T> + Send + 'static,
    ) -> std::result::Result<T, Stuck> {
        self.executor.run(client.process, 600 * SECOND, future)
    }

    fn wait<T: Send + 'static>(
        &self,
        client: &Client,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.run(client, future).expect("the future completes")
    }

    fn data(&self, client: &Client, name: &str) -> Option<Vec<u8>> {
        let object = client.pool.object(name).expect("the name is valid");
        self.cluster.object(&object).map(|object| object.data.to_vec())
    }
}

struct Client {
    process: ProcessId,
    env: Env,
    cluster: Cluster,
    pool: IoCtx,
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Clients increment a counter by compare-and-swap, each `rounds` times. Returns the counter, the trace's hash and the faults.
fn count(seed: u64, faults: Faults, rounds: u64) -> (u64, u64, FaultCounts) {
    let world = World::new(seed, faults);
    let clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
    world.wait(&clients[0], clients[0].pool.omap_set("o", vec![(bytes("n"), bytes("0"))])).unwrap();
    let tasks = clients.iter().map(|client| {
        let (pool, env) = (client.pool.clone(), client.env.clone());
        client.env.spawn(async move {
            let mut done = 0;
            while done < rounds {
                let stored = pool.omap_get_vals_by_keys("o", vec![bytes("n")]).await.unwrap();
                let now: u64 = std::str::from_utf8(&stored[&bytes("n")]).unwrap().parse().unwrap();
                let mut op = WriteOp::new();
                op.omap_cmp(vec![(bytes("n"), CmpOp::Eq, bytes(&now.to_string()))]);
                op.omap_set(vec![(bytes("n"), bytes(&(now + 1).to_string()))]);
                match pool.operate("o", op).await.and_then(nacre_engine::OpReply::success) {
                    Ok(_) => done += 1,
                    Err(error) => assert_eq!(error.errno(), Errno::ECANCELED),
                }
                env.sleep(env.jitter(Duration::from_millis(5))).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for (client, task) in clients.iter().zip(tasks) {
        world.run(client, task).unwrap().unwrap();
    }
    let object = clients[0].pool.object("o").unwrap();
    let stored = world.cluster.object(&object).unwrap().omap.get(b"n").unwrap().clone();
    let value = std::str::from_utf8(&stored).unwrap().parse().unwrap();
    (value, world.executor.hash(), world.cluster.figures())
}

#[test]
fn compound_operations_are_atomic_and_one_seed_names_one_history() {
    let slow = Faults { slow_rate: 100, slow: SECOND, ..Faults::none() };
    for seed in 0..10 {
        let (value, hash, figures) = count(seed, slow, 20);
        assert_eq!(value, 60, "seed {seed}");
        assert_eq!((value, hash, figures), count(seed, slow, 20), "seed {seed}");
    }
    assert_ne!(count(1, slow, 5).1, count(2, slow, 5).1);
}

#[test]
fn a_refusal_tells_its_errno_and_reads_see_what_was_written() {
    let world = World::new(1, Faults::none());
    let client = world.client();
    let pool = client.pool.clone();
    world
        .wait(&client, async move {
            pool.create("o", true).await?;
            assert_eq!(pool.create("o", true).await.unwrap_err().errno(), Errno::EEXIST);
            pool.write_full("o", "data").await?;
            let mut read = ReadOp::new();
            read.stat().read(0, 0);
            let mut reply = pool.operate_read("o", read).await?.success()?;
            assert_eq!((reply.stat(0)?.size, reply.output(1)?), (4, bytes("data")));
            let version = reply.version;
            let mut guarded = WriteOp::new();
            guarded.assert_version(version).remove();
            pool.operate("o", guarded).await?.success()?;
            assert!(pool.stat("o").await.unwrap_err().is_not_found());
            Ok(())
        })
        .unwrap();
    assert!(world.cluster.figures().executed >= 6);
}

#[test]
fn listings_go_through_all_pgs_once() {
    let world = World::new(3, Faults::none());
    let client = world.client();
    let names: std::collections::BTreeSet<String> = (0..100).map(|n| format!("o{n}")).collect();
    for name in &names {
        world.wait(&client, client.pool.write_full(name, "x")).unwrap();
    }
    world.wait(&client, client.pool.with_namespace("other").write_full("hidden", "x")).unwrap();
    let pool = client.pool.clone();
    let listed = world.wait(&client, async move {
        let mut lister = pool.list();
        let mut names = Vec::new();
        while let Some(object) = lister.next().await? {
            names.push(object.name().to_owned());
        }
        Ok(names)
    });
    let listed = listed.unwrap();
    assert_eq!(listed.len(), names.len());
    assert_eq!(listed.into_iter().collect::<std::collections::BTreeSet<_>>(), names);
}

#[test]
fn requests_overtake_one_another_between_pgs_and_never_within_one() {
    let faults = Faults { slow_rate: 300, slow: SECOND, ..Faults::none() };
    let world = World::new(5, faults);
    let client = world.client();
    let pool = client.pool.clone();
    let appended = world.wait(&client, async move {
        let mut pending = Vec::new();
        for n in 0..200_u32 {
            pending.push(pool.append(&format!("o{}", n % 10), n.to_le_bytes().to_vec()));
        }
        for pending in pending {
            pending.await?;
        }
        Ok(())
    });
    appended.unwrap();
    for n in 0..10_u32 {
        let data = world.data(&client, &format!("o{n}")).unwrap();
        let order: Vec<u32> =
            data.chunks(4).map(|part| u32::from_le_bytes(part.try_into().unwrap())).collect();
        assert!(order.is_sorted() && order.len() == 20, "{order:?}");
    }
    assert!(world.cluster.figures().overtaken > 10, "{:?}", world.cluster.figures());
}

/// The fates of requests that their client gave up: the number that took effect at once, later, and never.
fn given_up(faults: Faults) -> (u64, u64, u64) {
    let (mut at_once, mut later, mut never) = (0, 0, 0);
    for seed in 0..20 {
        let world = World::new(seed, faults);
        let client = world.client();
        let written = world.run(&client, client.pool.write_full("o", "x")).unwrap();
        assert!(matches!(written, Err(Error::TimedOut(_))), "{written:?}");
        if world.data(&client, "o").is_some() {
            at_once += 1;
            continue;
        }
        world.executor.run_for(60 * SECOND);
        if world.data(&client, "o").is_some() { later += 1 } else { never += 1 }
    }
    (at_once, later, never)
}

#[test]
fn what_is_given_up_took_effect_or_takes_effect_later_or_never_does() {
    let timeout = Faults { op_timeout: 10 * SECOND, ghost: 20 * SECOND, ..Faults::none() };
    assert_eq!(given_up(Faults { lost_reply_rate: 1000, ..timeout }), (20, 0, 0));
    assert_eq!(given_up(Faults { late_rate: 1000, ..timeout }), (0, 20, 0));
    assert_eq!(given_up(Faults { lost_request_rate: 1000, ..timeout }), (0, 0, 20));
}

#[test]
fn a_failed_osd_delays_its_pgs_and_loses_nothing() {
    let world = World::new(7, Faults::none());
    let client = world.client();
    for n in 0..30 {
        world.wait(&client, client.pool.write_full(&format!("o{n}"), "x")).unwrap();
    }
    let before = world.executor.now();
    for osd in 0..OSDS {
        world.cluster.fail_osd(osd, 5 * SECOND);
    }
    for n in 0..30 {
        assert_eq!(world.wait(&client, client.pool.read(&format!("o{n}"), 0, 0)).unwrap(), "x");
    }
    let took = world.executor.now() - before;
    assert!(took > 5 * SECOND && took < 6 * SECOND, "{took}");
    assert!(world.cluster.figures().waited > 0);
}

#[test]
fn a_process_that_is_cut_off_is_answered_when_it_is_back() {
    let world = World::new(8, Faults::none());
    let client = world.client();
    world.cluster.cut(client.process, 5 * SECOND);
    let before = world.executor.now();
    world.wait(&client, client.pool.write_full("o", "x")).unwrap();
    assert!(world.executor.now() - before >= 5 * SECOND);
}

#[test]
fn shutting_down_fails_what_is_in_flight() {
    let world = World::new(9, Faults { latency: SECOND, ..Faults::none() });
    let client = world.client();
    let pending = client.pool.write_full("o", "x");
    assert_eq!(world.cluster.in_flight(), 1);
    client.cluster.shut_down();
    assert!(matches!(world.wait(&client, pending), Err(Error::ShutDown)));
    assert!(matches!(world.wait(&client, client.pool.stat("o")), Err(Error::ShutDown)));
}

#[test]
fn pools_are_made_and_removed_by_commands() {
    let world = World::new(10, Faults::none());
    let client = world.client();
    let cluster = client.cluster.clone();
    let made = world.wait(&client, async move {
        cluster.create_pool("new").await?;
        let pool = cluster.open_pool("new").await?;
        pool.write_full("o", "x").await?;
        assert_eq!(cluster.create_pool("new").await.unwrap_err().errno(), Errno::EEXIST);
        cluster.remove_pool("new").await?;
        let gone = pool.stat("o").await.unwrap_err();
        assert!(matches!(gone, Error::NoSuchPool(_)), "{gone:?}");
        cluster.open_pool("new").await.map(drop)
    });
    assert!(matches!(made, Err(Error::NoSuchPool(_))));
}

#[test]
fn tasks_that_the_engine_runs_belong_to_the_process() {
    let world = World::new(11, Faults::none());
    let client = world.client();
    let ran = Arc::new(Mutex::new(0));
    let own = ran.clone();
    client.cluster.engine().spawn(Box::pin(async move { *own.lock() += 1 }));
    world.executor.run_for(MILLI);
    let own = ran.clone();
    client.cluster.engine().spawn(Box::pin(async move { *own.lock() += 1 }));
    world.executor.crash(client.process);
    world.executor.run_for(MILLI);
    assert_eq!(*ran.lock(), 1);
}
