//! Common programs that store files in S3: awscli, rclone, s3cmd and restic.

use crate::s3::S3;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// A real tree of files: this project's sources.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Access to a server for other programs.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) access: &'a str,
    pub(crate) secret: &'a str,
    /// The folder in which programs run and leave their files.
    pub(crate) folder: &'a Path,
}

/// The output of a program.
fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

impl Client<'_> {
    /// Runs a program with the keys in its environment, which must succeed.
    pub(crate) fn ok(&self, program: &str, args: &[&str]) -> Output {
        let out = self.run(program, args);
        assert!(out.status.success(), "{program} {args:?}: {}", text(&out));
        out
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new(program)
            .args(args)
            .current_dir(self.folder)
            .env("HOME", self.folder)
            .env("AWS_ACCESS_KEY_ID", self.access)
            .env("AWS_SECRET_ACCESS_KEY", self.secret)
            .env("AWS_DEFAULT_REGION", "us-east-1")
            .env("AWS_RETRY_MODE", "standard")
            .env("AWS_MAX_ATTEMPTS", "20")
            .env("RESTIC_PASSWORD", "secret")
            // Not all of these programs can use the certificate settings that others have.
            .env_remove("AWS_CA_BUNDLE")
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// Copies a tree in both directions. Leaves the bucket `awscli`.
    pub(crate) fn awscli(&self) {
        let endpoint = ["--endpoint-url", self.endpoint];
        let aws = |args: &[&str]| self.ok("/usr/bin/aws", &[&endpoint[..], args].concat());
        aws(&["s3", "mb", "s3://awscli"]);
        aws(&["s3", "sync", "--only-show-errors", TREE, "s3://awscli/src"]);
        aws(&["s3", "sync", "--only-show-errors", "s3://awscli/src", "back"]);
        self.ok("diff", &["-r", TREE, "back"]);
        // Nothing has changed, so nothing is copied.
        let again = aws(&["s3", "sync", TREE, "s3://awscli/src"]);
        assert_eq!(String::from_utf8_lossy(&again.stdout), "");
        aws(&["s3", "rm", "--recursive", "--only-show-errors", "s3://awscli/src/cmd"]);
    }

    /// Syncs a tree and compares it, by digests and by content. Leaves the bucket `rclone`.
    pub(crate) fn rclone(&self) {
        let remote = format!(
            ":s3,provider=Other,env_auth=true,region=us-east-1,force_path_style=true,endpoint='{}':rclone",
            self.endpoint
        );
        let patient = ["--retries", "10", "--low-level-retries", "30"];
        let rclone = |args: &[&str]| self.ok("rclone", &[&patient[..], args].concat());
        rclone(&["mkdir", &remote]);
        rclone(&["sync", TREE, &remote]);
        rclone(&["check", TREE, &remote]);
        rclone(&["check", "--download", TREE, &remote]);
    }

    /// Puts a tree and gets it. Leaves the bucket `s3cmd`.
    pub(crate) fn s3cmd(&self) {
        let host = self.endpoint.trim_start_matches("http://");
        let s3cmd = |args: &[&str]| {
            // Its own default region is US, which is not one of Amazon's.
            let fixed = ["--no-ssl", "--host", host, "--host-bucket", host];
            let keys = ["--access_key", self.access, "--secret_key", self.secret];
            let args = [&fixed[..], &keys, args].concat();
            // It exits at once when a connection is reset or refused. Other programs repeat the request then.
            for _ in 0..10 {
                let out = self.run("s3cmd", &args);
                if out.status.success() {
                    return;
                }
                let said = text(&out);
                let disconnected = ["Errno 104", "Errno 111"].iter().any(|error| said.contains(error));
                assert!(disconnected, "s3cmd {args:?}: {said}");
                std::thread::sleep(Duration::from_secs(1));
            }
            panic!("s3cmd {args:?}: no connection, ten times");
        };
        s3cmd(&["mb", "s3://s3cmd"]);
        s3cmd(&["put", "--recursive", &format!("{TREE}/"), "s3://s3cmd/src/"]);
        self.ok("mkdir", &["by-s3cmd"]);
        s3cmd(&["get", "--recursive", "--force", "s3://s3cmd/src/", "by-s3cmd/"]);
        self.ok("diff", &["-r", TREE, "by-s3cmd"]);
        s3cmd(&["del", "--recursive", "--force", "s3://s3cmd/src/cmd/"]);
    }

    /// Backs a tree up, restores some of it, and forgets a backup. Leaves the bucket `restic`.
    pub(crate) fn restic(&self) {
        let repository = format!("s3:{}/restic", self.endpoint);
        let restic = |args: &[&str]| self.ok("restic", &[&["-r", repository.as_str()], args].concat());
        let part = format!("{TREE}/cmd");
        restic(&["init"]);
        restic(&["backup", TREE]);
        restic(&["backup", &part]);
        restic(&["restore", "latest", "--target", "restored", "--path", &part]);
        self.ok("diff", &["-r", &part, &format!("restored{part}")]);
        restic(&["forget", "--keep-last", "1", "--prune"]);
        restic(&["check", "--read-data"]);
    }
}

/// The buckets that these programs leave.
pub(crate) const BUCKETS: [&str; 4] = ["awscli", "rclone", "s3cmd", "restic"];

#[test]
fn programs_keep_trees_in_buckets() {
    let s3 = S3::start();
    let client = s3.client();
    client.awscli();
    client.rclone();
    client.s3cmd();
    client.restic();
    for bucket in BUCKETS {
        s3.nacre(&["bucket", "check", "--bucket", bucket]);
    }
}
