//! Crashed processes, their requests in flight, and the blocklist.

use super::*;
use nacre_types::cls::lock::MAY_RENEW;
use serde_json::json;

/// Blocklists a session and waits for the map that contains the entry, as gateways do.
async fn fence(cluster: Cluster, session: u64) -> Result<()> {
    let addr = format!("client.{session}");
    let command = json!({ "prefix": "osd blocklist", "blocklistop": "add", "addr": addr, "expire": 3600.0 });
    cluster.command(command.to_string(), "").await?;
    cluster.refresh_map().await
}

/// A process crashes with a write in flight. Returns what is read after the fence (if `fenced`), and the final contents.
fn crash(seed: u64, fenced: bool) -> (Option<Vec<u8>>, Option<Vec<u8>>, FaultCounts) {
    let faults = Faults { ghost_rate: 1000, ghost: 20 * SECOND, map_spread: 30 * SECOND, ..Faults::none() };
    let world = World::new(seed, faults);
    let (doomed, survivor) = (world.client(), world.client());
    let pending = doomed.pool.write_full("o", "ghost");
    world.executor.crash(doomed.process);
    drop(pending);
    if fenced {
        let session = doomed.cluster.instance_id();
        world.wait(&survivor, fence(survivor.cluster.clone(), session)).unwrap();
    }
    let seen = match world.wait(&survivor, survivor.pool.read("o", 0, 0)) {
        Ok(data) => Some(data.to_vec()),
        Err(error) => {
            assert!(error.is_not_found());
            None
        }
    };
    world.executor.run_for(60 * SECOND);
    (seen, world.data(&survivor, "o"), world.cluster.figures())
}

#[test]
fn requests_of_a_crashed_process_arrive_late_unless_it_is_blocklisted() {
    let (mut late, mut before_the_fence) = (0, 0);
    for seed in 0..40 {
        let (seen, at_last, figures) = crash(seed, false);
        assert_eq!((at_last.as_deref(), figures.ghosts), (Some(&b"ghost"[..]), 1), "seed {seed}");
        late += u32::from(seen.is_none());
        // Nothing changes once the reader has seen the fence.
        let (seen, at_last, figures) = crash(seed, true);
        assert_eq!(seen, at_last, "seed {seed}");
        assert_eq!(figures.ghosts + figures.refused, 1, "seed {seed}");
        before_the_fence += u32::from(at_last.is_some());
    }
    assert!(late > 20 && before_the_fence < 20, "{late} {before_the_fence}");
}

#[test]
fn requests_of_a_crashed_process_may_be_lost_with_it() {
    let world = World::new(1, Faults::none());
    let client = world.client();
    let pending = client.pool.write_full("o", "x");
    world.executor.crash(client.process);
    drop(pending);
    world.executor.run_for(60 * SECOND);
    assert_eq!((world.data(&client, "o"), world.cluster.figures().lost_with_process), (None, 1));
}

#[test]
fn a_session_that_is_blocklisted_alive_fails_all_it_does() {
    let world = World::new(2, Faults { map_spread: SECOND, ..Faults::none() });
    let (victim, other) = (world.client(), world.client());
    let session = victim.cluster.instance_id();
    world.wait(&other, fence(other.cluster.clone(), session)).unwrap();
    // The session may not have the map yet, but the client that fenced it has contacted the PG before.
    world.wait(&other, other.pool.write_full("o", "mine")).unwrap();
    let refused = world.wait(&victim, victim.pool.write_full("o", "stale"));
    assert!(matches!(refused, Err(Error::Blocklisted)), "{refused:?}");
    world.executor.run_for(2 * SECOND);
    assert!(matches!(world.wait(&victim, victim.pool.stat("o")), Err(Error::Blocklisted)));
    assert_eq!(world.data(&other, "o").unwrap(), b"mine");
}

#[test]
fn a_pg_that_does_not_know_the_map_yet_still_serves_a_blocklisted_session() {
    let served = |seed| {
        // About the time that the fence and the victim's request take.
        let world = World::new(seed, Faults { map_spread: 6 * MILLI, ..Faults::none() });
        let (victim, other) = (world.client(), world.client());
        let session = victim.cluster.instance_id();
        world.wait(&other, fence(other.cluster.clone(), session)).unwrap();
        world.wait(&victim, victim.pool.write_full("o", "stale")).is_ok()
    };
    assert!((0..20).any(served) && !(0..20).all(served));
}

#[test]
fn a_lock_passes_on_when_its_holder_stops_renewing_it() {
    let world = World::new(3, Faults::none());
    let (holder, heir) = (world.client(), world.client());
    let take = |client: &Client, flags| {
        let term = Duration::from_secs(10);
        world.wait(client, client.pool.lock_exclusive("o", "lease", "own", "", term, flags))
    };
    take(&holder, 0).unwrap();
    assert_eq!(take(&heir, MAY_RENEW).unwrap_err().errno(), Errno::EBUSY);
    world.executor.run_for(8 * SECOND);
    take(&holder, MAY_RENEW).unwrap();
    world.executor.run_for(8 * SECOND);
    assert_eq!(take(&heir, MAY_RENEW).unwrap_err().errno(), Errno::EBUSY);
    world.executor.crash(holder.process);
    world.executor.run_for(8 * SECOND);
    take(&heir, MAY_RENEW).unwrap();
}

#[test]
fn nothing_is_carried_out_twice_wherever_a_process_crashes() {
    for polls in 1..30 {
        let world = World::new(polls, Faults::all());
        let (doomed, reader) = (world.client(), world.client());
        world.executor.crash_after(doomed.process, polls);
        let pool = doomed.pool.clone();
        let ended = world.run(&doomed, async move {
            for n in 0..10_u8 {
                // A request that was given up may have taken effect, so it is not repeated.
                match pool.append("o", vec![n]).await {
                    Ok(()) | Err(Error::TimedOut(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        world.executor.run_for(120 * SECOND);
        let data = world.data(&reader, "o").unwrap_or_default();
        let mut once = data.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), data.len(), "polls {polls}: {data:?} {ended:?}");
    }
}
