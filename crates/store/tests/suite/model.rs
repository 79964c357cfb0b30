//! Random transactions on a store and on a model of a few lines; both must agree at every step, across remounts, and
//! the store's check must find nothing.

use crate::reference::{Model, any_op, difference};
use crate::stores::{Fixture, Kind, SERVICES, Services, kinds, on_every_store, pg};
use bytes::Bytes;
use nacre_sim::disk::Disk;
use nacre_types::ids::PoolId;
use nacre_types::object::ObjectId;
use nacre_types::txn::{Transaction, TxnOp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<TxnOp>),
    Flush,
    Remount,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => proptest::collection::vec(any_op(), 1..5).prop_map(Step::Apply),
        1 => Just(Step::Flush),
        1 => Just(Step::Remount),
    ]
}

fn check(store: &Fixture, model: &Model) {
    assert_eq!(difference(&**store, pg(0), model), None);
    let objects = store.statfs().unwrap().pools.get(&PoolId(3)).map_or(0, |pool| pool.objects);
    assert_eq!(objects, model.objects.len() as u64);
}

fn run(store: &mut Fixture, steps: &[Step]) {
    store.commit(&Transaction { collection: pg(0), ops: vec![TxnOp::CreateCollection] }).unwrap();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Apply(ops) => {
                let txn = Transaction { collection: pg(0), ops: ops.clone() };
                match (model.apply(&txn), store.queue_transaction(&txn, None)) {
                    (Some(next), Ok(())) => model = next,
                    (None, Err(_)) => {}
                    (wanted, got) => panic!("model took it: {}, store: {got:?}", wanted.is_some()),
                }
            }
            Step::Flush => store.flush().unwrap(),
            Step::Remount => store.remount(),
        }
        check(store, &model);
    }
    store.remount();
    check(store, &model);
}

/// Every store, BlueStore also with its data services.
fn tested() -> Vec<Box<dyn Kind>> {
    let services = (0..SERVICES).map(|way| Box::new(Services(512 << 20, way)) as Box<dyn Kind>);
    kinds(512 << 20).into_iter().chain(services).collect()
}

/// `PROPTEST_CASES` sets the number of cases.
#[test]
fn random_transactions_do_what_the_model_does() {
    let is_long = std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "long");
    let usual: u32 = if is_long { 1000 } else { 48 };
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual);
    for kind in 0..tested().len() {
        // The ways to keep data share most of their code with BlueStore as it is.
        let cases = if kind < kinds(1).len() { cases } else { cases.div_ceil(4) };
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        runner
            .run(&proptest::collection::vec(any_step(), 1..25), |steps| {
                let mut store = Fixture::new(tested().swap_remove(kind));
                run(&mut store, &steps);
                Ok(())
            })
            .unwrap();
    }
}

/// What a simulated OSD keeps its PGs in reads as any store does, and has after a crash what was flushed.
#[test]
fn the_simulators_disk_does_what_the_model_does() {
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    runner
        .run(&proptest::collection::vec(any_step(), 1..25), |steps| {
            let (mut disk, mut durable) = (Disk::default(), Model::default());
            // What each unflushed transaction leaves.
            let mut unflushed: Vec<Model> = Vec::new();
            disk.apply(Transaction { collection: pg(0), ops: vec![TxnOp::CreateCollection] }).unwrap();
            disk.flush(1);
            for (number, step) in steps.into_iter().enumerate() {
                let model = unflushed.last().unwrap_or(&durable).clone();
                match step {
                    Step::Apply(ops) => {
                        let txn = Transaction { collection: pg(0), ops };
                        match (model.apply(&txn), disk.clone().apply(txn.clone())) {
                            (Some(next), Ok(())) => {
                                disk.apply(txn).unwrap();
                                unflushed.push(next);
                            }
                            (None, Err(_)) => {}
                            // It refuses what no machine may ask for.
                            (Some(_), Err(refused)) if refused.0.contains("two entries of one version") => {}
                            (wanted, got) => panic!("model took it: {}, disk: {got:?}", wanted.is_some()),
                        }
                    }
                    Step::Flush => {
                        let count = number % (unflushed.len() + 1);
                        disk.flush(count);
                        durable = unflushed.drain(..count).next_back().unwrap_or(durable);
                    }
                    Step::Remount => {
                        let surviving = number % (unflushed.len() + 1);
                        disk.crash(surviving);
                        durable = unflushed.drain(..).take(surviving).next_back().unwrap_or(durable);
                    }
                }
                let model = unflushed.last().unwrap_or(&durable);
                prop_assert_eq!(difference(disk.visible(), pg(0), model), None);
                prop_assert_eq!(difference(disk.durable(), pg(0), &durable), None);
            }
            Ok(())
        })
        .unwrap();
}

/// A concurrent reader sees each transaction whole.
#[test]
fn readers_never_see_half_a_transaction() {
    on_every_store(256 << 20, |store| {
        let names: Vec<_> = (0..3).map(|i| ObjectId::new(PoolId(3), "", "", &format!("o{i}"))).collect();
        let write = |round: u64| {
            let data = Bytes::from(vec![round as u8; 100_000]);
            let ops = names.iter().map(|oid| TxnOp::Write {
                oid: oid.clone(),
                offset: 0,
                data: data.clone().into(),
            });
            Transaction { collection: pg(0), ops: ops.collect() }
        };
        let mut first = write(0);
        first.ops.insert(0, TxnOp::CreateCollection);
        store.commit(&first).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let store = &*store;
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                loop {
                    let last = done.load(std::sync::atomic::Ordering::Relaxed);
                    for oid in &names {
                        let data = store.read(pg(0), oid, 0, u64::MAX).unwrap();
                        assert!(data.len() == 100_000 && data.iter().all(|byte| *byte == data[0]));
                        reads += 1;
                    }
                    if last {
                        return reads;
                    }
                }
            });
            for round in 1..200 {
                store.queue_transaction(&write(round), None).unwrap();
            }
            store.flush().unwrap();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    });
}
