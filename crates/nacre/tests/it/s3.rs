//! S3's own clients on a served cluster.

use crate::s3_programs::Client;
use crate::support::{Serve, TEST_TIMEOUT, free_port, nacre};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// A served cluster with S3, and its first user's keys.
pub(crate) struct S3 {
    pub(crate) serve: Serve,
    folder: tempfile::TempDir,
    pub(crate) endpoint: String,
    pub(crate) access: String,
    pub(crate) secret: String,
}

impl S3 {
    pub(crate) fn start() -> S3 {
        S3::start_with(&[])
    }

    /// With further options.
    pub(crate) fn start_with(more: &[&str]) -> S3 {
        let more: Vec<&str> = more.iter().flat_map(|option| ["-o", option]).collect();
        S3::start_in(tempfile::tempdir().unwrap(), &more)
    }

    /// Starts one in a folder that contains its `data` and `serve.err`, with further arguments.
    pub(crate) fn start_in(folder: tempfile::TempDir, more: &[&str]) -> S3 {
        let data = folder.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        let s3 = format!("127.0.0.1:{}", free_port());
        let listen = format!("127.0.0.1:{}", free_port());
        let options = ["osd_pool_default_pg_num=8", "rgw_gc_obj_min_wait=0", "exporter_http_port=-1"];
        let mut args = vec!["--osds", "3", "--listen", &listen, "--s3", &s3];
        args.extend(options.iter().flat_map(|option| ["-o", option]));
        args.extend(more);
        let (serve, _) = Serve::start(&data, &args);
        let endpoint = format!("http://{s3}");
        let mut s3 = S3 { serve, folder, endpoint, access: String::new(), secret: String::new() };
        let user: serde_json::Value =
            serde_json::from_slice(&s3.nacre(&["user", "info", "--uid", "admin"])).unwrap();
        let key = |name: &str| user["keys"][0][name].as_str().unwrap().to_owned();
        (s3.access, s3.secret) = (key("access_key"), key("secret_key"));
        s3
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.path().join("data/ceph.conf")
    }

    /// A path in the cluster's folder, in which programs run.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command of Nacre's, which must succeed. Returns its output.
    pub(crate) fn nacre(&self, args: &[&str]) -> Vec<u8> {
        let out = Command::new(nacre()).arg("-c").arg(self.conf()).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    /// A client with the first user's keys.
    pub(crate) fn client(&self) -> Client<'_> {
        let (access, secret) = (self.access.as_str(), self.secret.as_str());
        Client { endpoint: &self.endpoint, access, secret, folder: self.folder.path() }
    }

    /// Runs another program with the keys in its environment, which must succeed.
    pub(crate) fn ok(&self, program: &str, args: &[&str]) -> Output {
        self.client().ok(program, args)
    }

    /// A file of `len` bytes that do not repeat. Returns its path.
    pub(crate) fn file(&self, name: &str, len: usize) -> String {
        let path = self.folder.path().join(name);
        let bytes: Vec<u8> =
            (0_u64..).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).take(len).collect();
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Waits until `objects` objects are counted in a bucket: then all changes are finished.
    pub(crate) fn wait_finished(&self, bucket: &str, objects: u64) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let stats = self.nacre(&["bucket", "stats", "--bucket", bucket]);
            let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
            if stats["usage"]["rgw.main"]["num_objects"] == objects {
                return;
            }
            assert!(Instant::now() < deadline, "never finished: {stats}");
        }
    }
}

#[test]
fn boto3_finds_what_s3_promises() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/suite.py");
    let keys = ["--access-key", "OTHERSKEY", "--secret-key", "secret of the other"];
    s3.nacre(&[&["user", "create", "--uid", "other", "--display-name", "The other one"], &keys[..]].concat());
    let others = [keys[1], keys[3]];
    let args = [suite, &s3.endpoint, &s3.access, &s3.secret, others[0], others[1]];
    s3.ok("/usr/bin/python3", &args);
    // Everything that is left is removed, and nothing remains.
    for bucket in ["acls", "policies", "browsers", "objects", "conditions", "listing", "parts", "access"] {
        s3.nacre(&["bucket", "rm", "--bucket", bucket, "--purge-objects"]);
    }
    // Records that can't be read are before all others. They do not prevent collection, and are shown.
    for shard in 0..32 {
        let (shard, key) = (format!("gc.{shard}"), "\u{1}damaged of a test");
        s3.nacre(&["rados", "-p", "default.rgw.log", "-N", "gc", "setomapval", &shard, key, "x"]);
    }
    s3.nacre(&["gc", "process", "--include-all"]);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&s3.nacre(&["gc", "list"])).unwrap();
    let damaged =
        listed.iter().filter(|record| record["damaged"].is_string() && record["name"] == " of a test");
    assert_eq!((listed.len(), damaged.count()), (32, 32), "{listed:?}");
    let left = s3.nacre(&["rados", "-p", "default.rgw.buckets.data", "ls"]);
    assert_eq!(String::from_utf8_lossy(&left), "", "objects that belong to nothing");
    let left = s3.nacre(&["rados", "-p", "default.rgw.buckets.index", "ls"]);
    assert_eq!(String::from_utf8_lossy(&left), "", "indexes that belong to nothing");
}

#[test]
fn boto3_finds_what_others_suites_look_for() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/conformance.py");
    let keys = ["--access-key", "OTHERSKEY", "--secret-key", "secret of the other"];
    let other = ["user", "create", "--uid", "other", "--display-name", "The other one"];
    s3.nacre(&[&other[..], &["--email", "other@example.com"], &keys].concat());
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret, keys[1], keys[3]]);
}
