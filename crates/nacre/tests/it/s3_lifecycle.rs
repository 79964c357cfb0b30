//! Lifecycle: objects that are due by a bucket's rules are removed, and no others.

use crate::s3::S3;
use serde_json::Value;

#[test]
fn what_is_due_goes_and_nothing_else() {
    let s3 = S3::start_with(&["rgw_lc_debug_interval=1"]);
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/s3/lifecycle.py");
    s3.ok("/usr/bin/python3", &[suite, &s3.endpoint, &s3.access, &s3.secret]);
    let listed: Value = serde_json::from_slice(&s3.nacre(&["lc", "list"])).unwrap();
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0]["bucket"].as_str().unwrap().starts_with(":plain:"), "{listed:?}");
    assert_ne!(listed[0]["status"], "UNINITIAL", "{listed:?}");
    // An additional manual run finds nothing.
    s3.nacre(&["lc", "process", "--bucket", "plain"]);
    for bucket in ["plain", "versioned"] {
        let report: Value =
            serde_json::from_slice(&s3.nacre(&["bucket", "check", "--bucket", bucket])).unwrap();
        assert_eq!(report["num_problems"], 0, "{bucket}: {report}");
        s3.nacre(&["bucket", "rm", "--bucket", bucket, "--purge-objects"]);
    }
    let listed: Value = serde_json::from_slice(&s3.nacre(&["lc", "list"])).unwrap();
    assert_eq!(listed, serde_json::json!([]), "a bucket that is gone has rules");
}
