//! What is done to the cluster and to the consumers while clients work: chosen at random, by a seed.

use super::sink::{Mode, Sink};
use crate::s3_faults::Gateway;
use crate::support::{Daemon, TestCluster, nacre};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

const OSDS: usize = 3;

/// Everything that faults happen to.
pub(super) struct Faults<'a> {
    pub(super) cluster: &'a mut TestCluster,
    pub(super) gateways: &'a mut [Gateway],
    pub(super) sinks: &'a mut [Sink],
    pub(super) topics: &'a [&'a str],
    pub(super) buckets: &'a [&'a str],
    random: StdRng,
    /// How often each fault happened.
    pub(super) counts: BTreeMap<&'static str, u32>,
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

    /// Lets something fail for a while, and makes it whole again.
    pub(super) fn inject(&mut self) {
        let name = match self.random.random_range(0..100) {
            0..25 => self.kill_gateway(),
            25..40 => self.kill_osd(),
            40..55 => self.kill_sink(),
            55..65 => self.disturb_sink(Mode::Refuses, "sink refused"),
            65..73 => self.disturb_sink(Mode::Hangs, "sink hung"),
            73..90 => self.reshard_topic(),
            _ => self.reshard_bucket(),
        };
        *self.counts.entry(name).or_default() += 1;
        self.pause(500);
    }

    fn pause(&mut self, most_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(0..most_ms)));
    }

    fn kill_gateway(&mut self) -> &'static str {
        let at = self.random.random_range(0..self.gateways.len());
        self.gateways[at].kill();
        self.pause(2500);
        self.gateways[at].start(self.cluster);
        "gateway killed"
    }

    fn kill_osd(&mut self) -> &'static str {
        // One at a time: with two of three members gone, writes wait.
        wait_clean(self.cluster);
        let osd = self.random.random_range(0..OSDS);
        self.cluster.kill(Daemon::Osd(osd));
        self.pause(3000);
        self.cluster.spawn(Daemon::Osd(osd));
        "OSD killed"
    }

    fn kill_sink(&mut self) -> &'static str {
        let at = self.random.random_range(0..self.sinks.len());
        self.sinks[at].stop();
        self.pause(3000);
        self.sinks[at].start();
        "sink killed"
    }

    fn disturb_sink(&mut self, mode: Mode, name: &'static str) -> &'static str {
        let at = self.random.random_range(0..self.sinks.len());
        self.sinks[at].set_mode(mode);
        self.pause(3000);
        self.sinks[at].set_mode(Mode::Takes);
        name
    }

    fn reshard_topic(&mut self) -> &'static str {
        let topic = *self.topics.choose(&mut self.random).unwrap();
        let shards = [1, 2, 3, 7, 11, 23].choose(&mut self.random).unwrap().to_string();
        self.reshard(&["topic", "reshard", topic, "--shards", &shards]);
        "topic resharded"
    }

    fn reshard_bucket(&mut self) -> &'static str {
        let bucket = *self.buckets.choose(&mut self.random).unwrap();
        let shards = self.random.random_range(1..20_u32).to_string();
        let args = ["bucket", "reshard", "--bucket", bucket, "--num-shards", &shards];
        self.reshard(&[&args[..], &["--yes-i-really-mean-it"]].concat());
        "bucket resharded"
    }

    /// Runs a command that reshards; every third time it is killed at some moment. Another one may be under way still, so
    /// that it may be refused; where it has to succeed is looked at in the end.
    fn reshard(&mut self, args: &[&str]) {
        let mut child = Command::new(nacre())
            .arg("-c")
            .arg(self.cluster.conf())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if self.random.random_bool(0.33) {
            self.pause(400);
            child.kill().unwrap();
        }
        child.wait().unwrap();
    }

    /// Ends all faults, and waits until the cluster is whole.
    pub(super) fn restore(&mut self) {
        for sink in self.sinks.iter_mut() {
            sink.set_mode(Mode::Takes);
            if !sink.is_running() {
                sink.start();
            }
        }
        wait_clean(self.cluster);
    }
}

/// Waits until all PGs are active+clean. Health may warn meanwhile: of the topic whose endpoint is dead.
fn wait_clean(cluster: &TestCluster) {
    cluster.wait_for("all PGs active+clean", |cluster| {
        let out = cluster.run(&["ceph", "status", "--format", "json"]);
        let Ok(status) = serde_json::from_slice::<serde_json::Value>(&out.stdout) else { return false };
        let is_up = status["osdmap"]["num_up_osds"] == OSDS;
        let states = status["pgmap"]["pgs_by_state"].as_array().cloned().unwrap_or_default();
        is_up && states.iter().all(|state| state["state_name"] == "active+clean")
    });
}
