//! Order, time, crashes and pauses.

use super::*;
use crate::schedule::SECOND;
use std::collections::BTreeSet;
use std::time::Duration;

type Log = Arc<Mutex<Vec<u32>>>;

fn traced(seed: u64) -> Executor {
    Executor::new(seed, Settings { trace: true, ..Settings::default() })
}

/// Tasks that sleep, yield and log their numbers.
fn busy(seed: u64) -> (Vec<u32>, Vec<String>, u64) {
    let executor = traced(seed);
    let log = Log::default();
    for number in 0..6 {
        let env = executor.env(executor.start_process());
        let (log, own) = (log.clone(), env.clone());
        env.spawn(async move {
            for round in 0..4 {
                own.sleep(own.jitter(Duration::from_millis(5))).await;
                own.yield_now().await;
                log.lock().push(number * 10 + round);
            }
        });
    }
    executor.run_for(SECOND);
    let lines = log.lock().clone();
    (lines, executor.trace(), executor.hash())
}

#[test]
fn one_seed_names_one_history() {
    let first = busy(7);
    assert_eq!(first.0.len(), 24);
    assert_eq!(first, busy(7));
    assert_ne!(first.2, busy(8).2);
}

#[test]
fn tasks_that_are_ready_together_run_in_any_order() {
    let order = |seed| {
        let executor = Executor::new(seed, Settings::default());
        let env = executor.env(executor.start_process());
        let log = Log::default();
        for number in 0..3 {
            let log = log.clone();
            env.spawn(async move { log.lock().push(number) });
        }
        executor.run_for(SECOND);
        log.lock().clone()
    };
    let orders: BTreeSet<Vec<u32>> = (0..200).map(order).collect();
    assert_eq!(orders.len(), 6);
}

#[test]
fn a_timer_that_is_due_and_a_ready_task_come_in_either_order() {
    let order = |seed| {
        let executor = Executor::new(seed, Settings::default());
        let env = executor.env(executor.start_process());
        let log = Log::default();
        let (own, slept) = (env.clone(), log.clone());
        env.spawn(async move {
            own.sleep(Duration::ZERO).await;
            slept.lock().push(1);
        });
        let (own, worked) = (env.clone(), log.clone());
        env.spawn(async move {
            for _ in 0..40 {
                own.yield_now().await;
            }
            worked.lock().push(2);
        });
        executor.run_for(SECOND);
        log.lock().clone()
    };
    let orders: BTreeSet<Vec<u32>> = (0..200).map(order).collect();
    assert_eq!(orders, BTreeSet::from([vec![1, 2], vec![2, 1]]));
}

#[test]
fn an_hour_of_sleep_passes_at_once_and_never_early() {
    let executor = Executor::new(1, Settings::default());
    let process = executor.start_process();
    let env = executor.env(process);
    let (own, hour) = (env.clone(), Duration::from_secs(3600));
    let slept = executor.run(process, 2 * 3600 * SECOND, async move {
        let begun = own.now();
        own.sleep(hour).await;
        own.elapsed(begun)
    });
    let slept = slept.unwrap();
    assert!(slept >= hour && slept < hour + Duration::from_millis(10), "{slept:?}");
    assert!(executor.now().abs_diff(3600 * SECOND) < 2 * SECOND);
}

#[test]
fn clocks_of_processes_differ() {
    let executor = Executor::new(1, Settings::default());
    let (first, second) = (executor.start_process(), executor.start_process());
    assert_ne!(executor.env(first).now(), executor.env(second).now());
    let wall = executor.env(first).wall_ns();
    assert_eq!(wall, executor.env(second).wall_ns());
    executor.jump_wall(first, -3_600_000_000_000);
    assert_eq!(executor.env(first).wall_ns(), wall - 3_600_000_000_000);
    assert_eq!(executor.env(second).wall_ns(), executor.scheduler().wall_ns());
}

/// Counts how often it is dropped.
struct Guard(Arc<Mutex<u32>>);

impl Drop for Guard {
    fn drop(&mut self) {
        *self.0.lock() += 1;
    }
}

#[test]
fn a_crash_drops_a_process_whole_and_spares_the_others() {
    let executor = Executor::new(3, Settings::default());
    let (doomed, other) = (executor.start_process(), executor.start_process());
    let (dropped, log) = (Arc::new(Mutex::new(0)), Log::default());
    for process in [doomed, doomed, other] {
        let (env, log, guard) = (executor.env(process), log.clone(), Guard(dropped.clone()));
        executor.env(process).spawn(async move {
            let _guard = guard;
            loop {
                env.sleep(Duration::from_millis(10)).await;
                log.lock().push(process.0);
            }
        });
    }
    executor.run_for(SECOND);
    let crashes = Log::default();
    let told = crashes.clone();
    executor.scheduler().on_silence(move |process, until| {
        assert_eq!(until, None);
        told.lock().push(process.0);
    });
    executor.crash(doomed);
    executor.crash(doomed);
    assert_eq!((*dropped.lock(), crashes.lock().clone()), (2, vec![doomed.0]));
    assert!(!executor.scheduler().is_alive(doomed) && executor.scheduler().is_alive(other));
    log.lock().clear();
    // A task that an ended process spawns is dropped at once.
    let late = Guard(dropped.clone());
    executor.env(doomed).spawn(async move { drop(late) });
    assert_eq!(*dropped.lock(), 3);
    executor.run_for(SECOND);
    let heard = log.lock().clone();
    assert!(heard.len() > 50 && heard.iter().all(|process| *process == other.0));
    drop(executor);
    assert_eq!(*dropped.lock(), 4);
}

#[test]
fn a_process_can_be_crashed_after_any_poll() {
    let rounds = |polls| {
        let executor = Executor::new(5, Settings::default());
        let process = executor.start_process();
        executor.crash_after(process, polls);
        let (env, log) = (executor.env(process), Log::default());
        let rounds = log.clone();
        let ended = executor.run(process, SECOND, async move {
            for round in 0..5 {
                rounds.lock().push(round);
                env.yield_now().await;
            }
        });
        let rounds = log.lock().len() as u64;
        (ended, rounds, executor.polls(process))
    };
    for polls in 1..=5 {
        assert_eq!(rounds(polls), (Err(Stuck::Crashed), polls, polls));
    }
    assert_eq!(rounds(7), (Ok(()), 5, 6));
}

#[test]
fn a_process_can_be_crashed_at_any_step() {
    let steps = |at| {
        let executor = Executor::new(6, Settings::default());
        let process = executor.start_process();
        let (env, scheduler) = (executor.env(process), executor.scheduler().clone());
        executor.after_steps(at, move || scheduler.crash(process));
        let ended = executor.run(process, SECOND, async move {
            for _ in 0..3 {
                env.sleep(Duration::from_millis(1)).await;
            }
        });
        (ended.is_ok(), executor.steps())
    };
    // Three timers and four polls, without a crash.
    assert_eq!(steps(100), (true, 7));
    for at in 1..=7 {
        assert_eq!(steps(at), (false, at));
    }
}

#[test]
fn a_paused_process_misses_time_but_no_delivery() {
    let executor = Executor::new(9, Settings::default());
    let process = executor.start_process();
    let (env, log) = (executor.env(process), Log::default());
    let (own, ticks) = (env.clone(), log.clone());
    env.spawn(async move {
        loop {
            own.sleep(Duration::from_millis(100)).await;
            ticks.lock().push(1);
        }
    });
    executor.run_for(SECOND);
    executor.pause(process, 10 * SECOND);
    log.lock().clear();
    let heard = log.clone();
    executor.scheduler().deliver_after(process, SECOND, move || heard.lock().push(2));
    executor.run_for(9 * SECOND);
    assert!(log.lock().is_empty());
    executor.run_for(2 * SECOND);
    let log = log.lock();
    assert!(log.contains(&2) && log.contains(&1));
    // A timer that becomes due during the pause counts once.
    assert!(log.len() < 15, "{log:?}");
}

#[test]
fn nothing_reaches_a_process_that_is_gone() {
    let executor = Executor::new(2, Settings::default());
    let process = executor.start_process();
    let log = Log::default();
    let (heard, called) = (log.clone(), log.clone());
    executor.scheduler().deliver_after(process, SECOND, move || heard.lock().push(1));
    executor.scheduler().call_after(SECOND, move || called.lock().push(2));
    executor.crash(process);
    executor.run_for(2 * SECOND);
    assert_eq!(*log.lock(), [2]);
}

#[test]
fn what_can_never_complete_is_told_from_what_takes_too_long() {
    let executor = Executor::new(4, Settings::default());
    let process = executor.start_process();
    let env = executor.env(process);
    assert_eq!(executor.run(process, SECOND, std::future::pending::<()>()), Err(Stuck::Idle));
    let slow = async move {
        loop {
            env.sleep(Duration::from_millis(300)).await;
        }
    };
    assert_eq!(executor.run::<()>(process, SECOND, slow), Err(Stuck::OutOfTime));
    executor.crash(process);
    assert_eq!(executor.run(process, SECOND, async {}), Err(Stuck::Crashed));
}
