//! Objects with versions, and object lock.

use crate::s3::S3;
use serde_json::Value;

#[test]
fn versions_are_kept_hidden_and_removed() {
    let s3 = S3::start();
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/versions.py");
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret]);
    for bucket in ["versions", "properties", "suspended", "paging", "locks", "late"] {
        let report: Value =
            serde_json::from_slice(&s3.nacre(&["bucket", "check", "--bucket", bucket])).unwrap();
        assert_eq!(report["num_problems"], 0, "{bucket}: {report}");
        s3.nacre(&["bucket", "rm", "--bucket", bucket, "--purge-objects"]);
    }
    // Nothing remains.
    s3.nacre(&["gc", "process", "--include-all"]);
    for pool in ["default.rgw.buckets.data", "default.rgw.buckets.index"] {
        let left = s3.nacre(&["rados", "-p", pool, "ls"]);
        assert_eq!(String::from_utf8_lossy(&left), "", "{pool}: objects that belong to nothing");
    }
}
