//! `radosgw-admin zone`: the pool of objects' data, chosen before the first gateway starts.

use crate::rest_bench::Bench;
use crate::s3_faults::Gateway;
use crate::support::TestCluster;
use serde_json::Value;
use std::process::Command;

#[test]
fn the_zone_names_the_pool_of_objects_data() {
    let cluster = TestCluster::start_with(3, "memstore", "[global]\nosd_pool_default_pg_num = 8");
    let zone = |words: &[&str]| -> Value {
        serde_json::from_str(&cluster.ok(&[&["zone"], words].concat())).unwrap()
    };
    let pool_of = |list: &Value| list[0]["val"]["storage_classes"]["STANDARD"]["data_pool"].clone();
    assert_eq!(pool_of(&zone(&["placement", "list"])), "default.rgw.buckets.data");
    let get = ["placement", "get", "--placement-id", "default-placement"];
    assert_eq!(zone(&get)["storage_classes"]["STANDARD"]["data_pool"], "default.rgw.buckets.data");
    let group: Value = serde_json::from_str(&cluster.ok(&[&["zonegroup"], &get[..]].concat())).unwrap();
    assert_eq!(
        group,
        serde_json::json!({"name": "default-placement", "tags": [], "storage_classes": ["STANDARD"]})
    );
    let modify =
        ["placement", "modify", "--placement-id", "default-placement", "--data-pool", ".rgw.buckets"];
    assert_eq!(pool_of(&zone(&modify)), ".rgw.buckets");
    for (option, value, told) in [
        ("--placement-id", "other", "is not configured in zonegroup placement targets"),
        ("--storage-class", "COLD", "is not defined"),
    ] {
        let mut words = vec!["zone", "placement", "modify", "--data-pool", "x", option, value];
        if option != "--placement-id" {
            words.extend(["--placement-id", "default-placement"]);
        }
        let out = cluster.run(&words);
        assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains(told), "{out:?}");
    }
    // Commands may run before the first gateway and do not fix the choice.
    let user =
        ["user", "create", "--uid", "u", "--display-name", "u", "--access-key", "AK", "--secret", "SK"];
    cluster.ok(&user);
    assert_eq!(pool_of(&zone(&["get"])["placement_pools"]), ".rgw.buckets");

    let mut gateway = Gateway::new();
    gateway.start(&cluster);
    let endpoint = gateway.endpoint();
    let bench = Bench::new(cluster.folder(), endpoint.strip_prefix("http://").unwrap(), ("AK", "SK"));
    bench.ok("-t 4 -b 6M --max-objects 4 --no-cleanup write");
    let pools = cluster.ok(&["osd", "pool", "ls"]);
    assert!(!pools.contains("default.rgw.buckets.data") && pools.contains(".rgw.buckets\n"), "{pools}");
    // Each object has a head and two tails.
    let names = cluster.ok(&["rados", "-p", ".rgw.buckets", "ls"]);
    assert!(names.lines().count() >= 8, "{names}");
    assert!(bench.ok("-t 4 seq").contains("Total reads made:     4\n"));

    // From now on objects may exist: the choice is fixed, with and without gateways.
    let mut other = modify;
    other[5] = "elsewhere";
    for _ in 0..2 {
        let out = cluster.run(&[&["zone"], &other[..]].concat());
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && told.contains("the data of its objects is in pool .rgw.buckets"),
            "{told}"
        );
        assert_eq!(pool_of(&zone(&modify)), ".rgw.buckets", "what it is already is no change");
        if bench.run("cleanup").status.success() {
            gateway.kill();
        }
    }
    let mut second = Gateway::new();
    second.start(&cluster);
    let endpoint = second.endpoint();
    let bench = Bench::new(cluster.folder(), endpoint.strip_prefix("http://").unwrap(), ("AK", "SK"));
    bench.ok("-t 1 -b 4K --max-objects 1 write");
    // An invalid storage class is refused.
    let put = Command::new("/usr/bin/aws")
        .args([
            "--endpoint-url",
            &endpoint,
            "s3api",
            "put-object",
            "--bucket",
            "rest-bench-bucket",
            "--key",
            "k",
        ])
        .args(["--storage-class", "GLACIER"])
        .env("AWS_ACCESS_KEY_ID", "AK")
        .env("AWS_SECRET_ACCESS_KEY", "SK")
        .env("AWS_DEFAULT_REGION", "default")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&put.stderr).contains("InvalidStorageClass"), "{put:?}");
}
