//! The checks of document 004: vstart.sh, persistent bucket notifications.

use super::place::{Contract, ReferenceCluster, nothing};
use super::table::{self, Verdict};
use serde_json::Value;
use std::collections::BTreeSet;

/// The call that starts the cluster for the other lines.
pub(super) const VSTART: &str = "sudo MON=1 OSD=2 MDS=0 MGR=0 RGW=1 ../src/vstart.sh -n -X --nolockdep --bluestore \\
    -o \"rgw_bucket_persistent_notif_num_shards=1\" \\
    --bluestore-devs \"/dev/nvme7n1,/dev/nvme6n1,/dev/nvme5n1,/dev/nvme4n1,/dev/nvme3n1,/dev/nvme2n1\" \\
    -o \"bluestore_block_size=1500000000000\" -o \"rgw_max_concurrent_requests=8192\" \\
    -o \"rgw_dynamic_resharding=false\" -o \"osd_pool_default_pg_num=128\" -o \"osd_pool_default_pgp_num=128\" \\
    -o \"mon_max_pg_per_osd=32768\" -o \"mon_pg_warn_max_per_osd=32768\" -o \"osd_pool_default_pg_autoscale_mode=warn\"";

const LIST: &str = "bin/rados -c ceph.conf ls --pool default.rgw.log --namespace notif";
const AWS: &str = "aws --region=default --endpoint-url https://:8000";
const SHARDS: &str = "rgw_bucket_persistent_notif_num_shards";

/// The queues of topics whose names start with `topic`.
fn queues(place: &ReferenceCluster, topic: &str) -> BTreeSet<String> {
    let listed = place.ok(LIST);
    listed.lines().filter(|name| name.starts_with(&format!(":{topic}"))).map(str::to_owned).collect()
}

/// The names of a topic's queues.
fn shards(topic: &str, count: usize) -> BTreeSet<String> {
    (0..count).map(|n| if n == 0 { format!(":{topic}") } else { format!(":{topic}.{n}") }).collect()
}

/// Creates the document's bucket if it does not exist.
fn bucket(place: &ReferenceCluster) {
    // It may exist.
    place.run(&place.substituted(&format!("{AWS} s3 mb s3://bk000000000000")));
}

/// Sets the number of shards of new topics.
fn set_shards(place: &ReferenceCluster, count: usize) {
    let set = format!("bin/ceph -c ceph.conf config set client.rgw.8000 {SHARDS} {count}");
    place.run(&place.substituted(&set));
}

fn check_topic(place: &ReferenceCluster, output: &str, topic: &str, count: usize) {
    let made: Value = serde_json::from_str(output).unwrap();
    assert_eq!(made["TopicArn"], format!("arn:aws:sns:default::{topic}"));
    assert_eq!(queues(place, topic), shards(topic, count));
}

fn check_configuration(place: &ReferenceCluster, topic: &str) {
    let get = format!("{AWS} s3api get-bucket-notification-configuration --bucket bk000000000000");
    let found: Value = serde_json::from_str(&place.ok(&place.substituted(&get))).unwrap();
    let [configuration] = &found["TopicConfigurations"].as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!(configuration["Id"], "notif1");
    assert_eq!(configuration["TopicArn"], format!("arn:aws:sns:default::{topic}"));
    // The document names no events, so Ceph's default applies.
    let events: BTreeSet<&str> =
        configuration["Events"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(events.contains("s3:ObjectCreated:*") && events.contains("s3:ObjectRemoved:*"), "{found}");
}

pub(super) const CONTRACTS: &[Contract] = &[
    Contract { line: VSTART, before: nothing, after: check_vstart },
    Contract {
        line: "bin/rados -c ceph.conf ls --pool default.rgw.log --namespace notif",
        before: |place| {
            for name in [":otherwise", ":otherwise.1"] {
                place.ok(&format!("rados -p default.rgw.log --namespace notif put {name} ceph.conf"));
            }
            place.ok("rados -p default.rgw.log put elsewhere ceph.conf");
        },
        after: |place, output| {
            let listed: BTreeSet<&str> = output.lines().collect();
            assert_eq!(listed, BTreeSet::from([":otherwise", ":otherwise.1"]));
            place.ok("rados -p default.rgw.log --namespace notif rm :otherwise :otherwise.1");
            place.ok("rados -p default.rgw.log rm elsewhere");
        },
    },
    Contract {
        line: "bin/rados -c ceph.conf ls --pool default.rgw.log --namespace notif | grep fishtopic",
        before: |place| {
            // A persistent topic of this name, as in the document, with the default number of shards.
            set_shards(place, 11);
            let attributes = r#"'{"push-endpoint": "kafka://", "persistent": "true"}'"#;
            let create = format!("{AWS} sns create-topic --name=fishtopic --attributes={attributes}");
            place.run(&place.substituted(&create));
            set_shards(place, 1);
        },
        after: |place, output| {
            let listed: BTreeSet<String> = output.lines().map(str::to_owned).collect();
            assert_eq!(listed, table::of("004", &Verdict::Output).into_iter().collect());
            assert_eq!(listed, shards("fishtopic", 11));
            let delete = format!("{AWS} sns delete-topic --topic-arn arn:aws:sns:default::fishtopic");
            place.ok(&place.substituted(&delete));
            assert_eq!(queues(place, "fishtopic"), BTreeSet::new());
        },
    },
    Contract {
        line: "aws --region=default --endpoint-url https://:8000 sns create-topic --name=fishtopic0  \\
  --attributes='{\"push-endpoint\": \"kafka://\", \"persistent\": \"true\"}'",
        before: nothing,
        // The number from the call of vstart.sh.
        after: |place, output| check_topic(place, output, "fishtopic0", 1),
    },
    Contract {
        line: "aws --region=default --endpoint-url https://:8000 s3api put-bucket-notification-configuration \\
  --bucket bk000000000000 --notification-configuration='{\"TopicConfigurations\": [{\"Id\": \"notif1\", \"TopicArn\": \
               \"arn:aws:sns:default::fishtopic0\", \"Events\": []}]}'",
        before: bucket,
        after: |place, _| check_configuration(place, "fishtopic0"),
    },
    Contract {
        line: "bin/ceph config set client.rgw.8000 rgw_bucket_persistent_notif_num_shards 11 --conf /ceph.conf",
        before: nothing,
        after: |place, _| {
            let get =
                place.substituted(&format!("bin/ceph -c ceph.conf config get client.rgw.8000 {SHARDS}"));
            assert_eq!(place.ok(&get), "11\n");
        },
    },
    Contract {
        line: "aws --region=default --endpoint-url https://:8000 sns create-topic --name=fishtopic1  \\
  --attributes='{\"push-endpoint\": \"kafka://\", \"persistent\": \"true\"}'",
        before: nothing,
        after: |place, output| {
            check_topic(place, output, "fishtopic1", 11);
            // Existing topics keep their shards.
            assert_eq!(queues(place, "fishtopic0"), shards("fishtopic0", 1));
        },
    },
    Contract {
        line: "aws --region=default --endpoint-url https://:8000 s3api put-bucket-notification-configuration \\
  --bucket bk000000000000 --notification-configuration='{\"TopicConfigurations\": [{\"Id\": \"notif1\", \"TopicArn\": \
               \"arn:aws:sns:default::fishtopic1\", \"Events\": []}]}'",
        before: bucket,
        after: |place, _| check_configuration(place, "fishtopic1"),
    },
    Contract {
        line: "bin/radosgw-admin -c ceph.conf topic stats --topic fishtopic1",
        before: nothing,
        after: |_, output| {
            let stats: Value = serde_json::from_str(output).unwrap();
            for field in ["Reservations", "Size", "Entries"] {
                assert!(stats["Topic Stats"][field].is_u64(), "{stats}");
            }
        },
    },
];

/// Checks the result of the call: a cluster with the given options, and the files that later lines need.
fn check_vstart(place: &ReferenceCluster, said: &str) {
    assert!(said.starts_with("cluster is ready: 2 OSDs up"), "{said}");
    assert!(place.ok("bin/ceph -c ceph.conf -s").contains("osd: 2 osds: 2 up"));
    let gateway = place.substituted("client.rgw.8000");
    let keyring = std::fs::read_to_string(place.work().join("keyring")).unwrap();
    assert!(keyring.contains("[client.admin]") && keyring.contains(&format!("[{gateway}]")), "{keyring}");
    // The first two devices, and no other.
    for (osd, device) in ["nvme7n1", "nvme6n1"].into_iter().enumerate() {
        let block = std::fs::read_link(place.work().join(format!("osd/{osd}/block"))).unwrap();
        assert_eq!(block, place.home().join("dev").join(device));
    }
    assert_eq!(std::fs::metadata(place.home().join("dev/nvme5n1")).unwrap().len(), 1 << 30);
    let given = table::of("004", &Verdict::Option).into_iter().map(|line| {
        let (name, value) = line.trim_start_matches("-o ").trim_matches('"').split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    });
    let given: Vec<(String, String)> = given.collect();
    assert_eq!(given.len(), 8, "{given:?}");
    for (name, value) in given {
        let found = place.json(&format!("bin/ceph -c ceph.conf tell osd.0 config get {name}"));
        assert_eq!(found[&name], value, "{name}");
    }
    let pools = place.json("bin/ceph -c ceph.conf osd pool ls detail");
    let log = pools.as_array().unwrap().iter().find(|pool| pool["pool_name"] == "default.rgw.log").unwrap();
    assert_eq!((&log["pg_num"], &log["pg_placement_num"]), (&128.into(), &128.into()));
    // More than the default limit of PGs per OSD, each with two copies on two OSDs.
    let pgs: u64 = pools.as_array().unwrap().iter().filter_map(|pool| pool["pg_num"].as_u64()).sum();
    assert!(pgs > 250, "{pgs}");
    // Ceph does not have this option any more, and prints no message about it.
    let conf = std::fs::read_to_string(place.conf()).unwrap();
    assert!(!conf.contains("mon_pg_warn_max_per_osd"), "{conf}");
}
