//! Faults of the cluster and the consumers while clients work, chosen at random from a seed.

use super::DEAD;
use super::sink::{Mode, Sink};
use crate::s3_faults::Gateway;
use crate::support::{Daemon, TEST_TIMEOUT, TestCluster, nacre};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const OSDS: usize = 3;

/// The kinds of faults, and their relative frequency.
const KINDS: [(Kind, u32); 7] = [
    (Kind::Gateway, 25),
    (Kind::Osd, 15),
    (Kind::Sink, 15),
    (Kind::Refusal, 10),
    (Kind::Hang, 8),
    (Kind::TopicReshard, 17),
    (Kind::BucketReshard, 10),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gateway,
    Osd,
    Sink,
    Refusal,
    Hang,
    TopicReshard,
    BucketReshard,
}

/// A fault in progress.
enum Fault {
    Gateways(Vec<usize>),
    Osd(usize),
    Sink(usize),
    Mode(usize),
    Reshard { child: Child, is_killed: bool, name: &'static str },
}

/// The targets of faults.
pub(super) struct Faults<'a> {
    cluster: &'a mut TestCluster,
    gateways: &'a mut [Gateway],
    sinks: &'a mut [Sink],
    topics: &'a [&'a str],
    buckets: &'a [&'a str],
    random: StdRng,
    /// How often each fault occurred.
    pub(super) counts: BTreeMap<String, u32>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(
        seed: u64,
        cluster: &'a mut TestCluster,
        gateways: &'a mut [Gateway],
        sinks: &'a mut [Sink],
        (topics, buckets): (&'a [&'a str], &'a [&'a str]),
    ) -> Faults<'a> {
        let random = StdRng::seed_from_u64(seed ^ 0xfa17);
        Faults { cluster, gateways, sinks, topics, buckets, random, counts: BTreeMap::new() }
    }

    /// Injects one or two faults for a while, and ends them.
    pub(super) fn inject(&mut self) {
        let count = if self.random.random_bool(0.4) { 2 } else { 1 };
        let kinds: Vec<Kind> = KINDS
            .choose_multiple_weighted(&mut self.random, count, |(_, weight)| *weight)
            .unwrap()
            .map(|(kind, _)| *kind)
            .collect();
        let mut faults = Vec::new();
        for kind in kinds {
            faults.push(self.begin(kind));
            self.pause(300);
        }
        self.pause(2500);
        faults.shuffle(&mut self.random);
        for fault in faults {
            self.end(fault);
        }
        self.pause(700);
    }

    fn pause(&mut self, most_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..most_ms)));
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    fn begin(&mut self, kind: Kind) -> Fault {
        match kind {
            Kind::Gateway => {
                let mut victims: Vec<_> = (0..self.gateways.len()).collect();
                victims.shuffle(&mut self.random);
                // Occasionally all of them.
                if self.random.random_bool(0.8) {
                    victims.truncate(1);
                }
                for at in &victims {
                    self.gateways[*at].kill();
                    self.count("gateway killed");
                }
                Fault::Gateways(victims)
            }
            Kind::Osd => {
                // One at a time: with two of three members down, writes wait.
                wait_clean(self.cluster);
                let osd = self.random.random_range(0..OSDS);
                self.cluster.kill(Daemon::Osd(osd));
                self.count("OSD killed");
                Fault::Osd(osd)
            }
            Kind::Sink => {
                let at = self.random.random_range(0..self.sinks.len());
                self.sinks[at].stop();
                self.count("sink killed");
                Fault::Sink(at)
            }
            Kind::Refusal => self.disturb_sink(Mode::Refuses, "sink refused"),
            Kind::Hang => self.disturb_sink(Mode::Hangs, "sink hung"),
            Kind::TopicReshard => {
                let topic = *self.topics.choose(&mut self.random).unwrap();
                let shards = [1, 2, 3, 7, 11, 23].choose(&mut self.random).unwrap().to_string();
                self.reshard("topic reshard", &topic_reshard(topic, &shards))
            }
            Kind::BucketReshard => {
                let bucket = *self.buckets.choose(&mut self.random).unwrap();
                let shards = self.random.random_range(1..20_u32).to_string();
                self.reshard("bucket reshard", &bucket_reshard(bucket, &shards))
            }
        }
    }

    fn disturb_sink(&mut self, mode: Mode, name: &str) -> Fault {
        let at = self.random.random_range(0..self.sinks.len());
        self.sinks[at].set_mode(mode);
        self.count(name);
        Fault::Mode(at)
    }

    /// Starts a command that reshards.
    fn reshard(&mut self, name: &'static str, args: &[&str]) -> Fault {
        let child = Command::new(nacre())
            .arg("-c")
            .arg(self.cluster.conf())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Fault::Reshard { child, is_killed: self.random.random_bool(0.33), name }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Gateways(victims) => {
                victims.into_iter().for_each(|at| self.gateways[at].start(self.cluster));
            }
            Fault::Osd(osd) => self.cluster.spawn(Daemon::Osd(osd)),
            Fault::Sink(at) => self.sinks[at].start(),
            Fault::Mode(at) => self.sinks[at].set_mode(Mode::Takes),
            Fault::Reshard { mut child, is_killed, name } => {
                if is_killed {
                    self.pause(400);
                    _ = child.kill();
                }
                // It may be refused, because one that was killed has not ended yet.
                let is_done = child.wait().unwrap().success();
                self.count(format!("{name} {}", if is_done { "done" } else { "not done" }));
            }
        }
    }

    /// Waits until the cluster is healthy, and reshards every topic and bucket once more, which must succeed now. Only the
    /// topic whose endpoint is dead may be refused: its older generations are never drained, and their number is bounded.
    pub(super) fn restore(&mut self) {
        wait_clean(self.cluster);
        for topic in self.topics {
            let accepted =
                (*topic == DEAD).then_some("has too many generations of queues that are not drained");
            retry_until_success(self.cluster, &topic_reshard(topic, "5"), accepted);
        }
        for bucket in self.buckets {
            retry_until_success(self.cluster, &bucket_reshard(bucket, "7"), None);
        }
    }
}

fn topic_reshard<'a>(topic: &'a str, shards: &'a str) -> Vec<&'a str> {
    vec!["topic", "reshard", topic, "--shards", shards]
}

fn bucket_reshard<'a>(bucket: &'a str, shards: &'a str) -> Vec<&'a str> {
    let sure = "--yes-i-really-mean-it";
    vec!["bucket", "reshard", "--bucket", bucket, "--num-shards", shards, sure]
}

/// Runs a command until it succeeds, or is refused with the text `accepted`: earlier ones may have to be ended first.
fn retry_until_success(cluster: &TestCluster, args: &[&str], accepted: Option<&str>) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let out = cluster.run(args);
        let message = String::from_utf8_lossy(&out.stderr);
        if out.status.success() || accepted.is_some_and(|accepted| message.contains(accepted)) {
            return;
        }
        assert!(Instant::now() < deadline, "{args:?}: {message}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits until all PGs are active+clean. Health may warn about the topic whose endpoint is dead.
fn wait_clean(cluster: &TestCluster) {
    cluster.wait_for("all PGs active+clean", |cluster| {
        let out = cluster.run(&["ceph", "status", "--format", "json"]);
        let Ok(status) = serde_json::from_slice::<serde_json::Value>(&out.stdout) else { return false };
        let is_up = status["osdmap"]["num_up_osds"] == OSDS;
        let states = status["pgmap"]["pgs_by_state"].as_array().cloned().unwrap_or_default();
        is_up && states.iter().all(|state| state["state_name"] == "active+clean")
    });
}
