//! Output of OSDs' commands, compared field by field with recordings of Ceph 16.2 (`tests/recordings`).

use super::cluster::TestCluster;
use bytes::Bytes;
use nacre_types::ids::OsdId;
use serde_json::{Value, json};
use std::path::Path;

/// Fields of Nacre that Ceph does not have.
const OURS: [&str; 2] = ["objectstore", "incarnation"];

/// Adds fields that only one side has to `differences`, at every level. Of lists only the first entries are compared.
fn compare(path: &str, recorded: &Value, ours: &Value, differences: &mut Vec<String>) {
    match (recorded, ours) {
        (Value::Object(recorded), Value::Object(ours)) => {
            for (key, value) in recorded {
                match ours.get(key) {
                    Some(found) => compare(&format!("{path}/{key}"), value, found, differences),
                    None => differences.push(format!("{path}/{key} is missing")),
                }
            }
            let extra =
                ours.keys().filter(|key| !recorded.contains_key(*key) && !OURS.contains(&key.as_str()));
            differences.extend(extra.map(|key| format!("{path}/{key} is no field of Ceph's")));
        }
        (Value::Array(recorded), Value::Array(ours)) => {
            if let (Some(recorded), Some(ours)) = (recorded.first(), ours.first()) {
                compare(&format!("{path}[]"), recorded, ours, differences);
            }
        }
        (recorded, ours) if std::mem::discriminant(recorded) != std::mem::discriminant(ours) => {
            differences.push(format!("{path} is {ours}, Ceph's is {recorded}"));
        }
        _ => {}
    }
}

fn ask(cluster: &TestCluster, command: &Value) -> Value {
    let reply = cluster.osd(OsdId(0)).command(&command.to_string());
    assert_eq!(reply.code, 0, "{command}: {}", reply.status);
    serde_json::from_slice(&reply.output).unwrap()
}

#[test]
fn replies_have_the_fields_of_cephs() {
    let cluster = TestCluster::start(2, &[]);
    let pool = cluster.create_pool("data", 2, 1, 4);
    cluster.wait_clean(pool);
    let io = cluster.io("data");
    cluster.block_on(async {
        for i in 0..20 {
            io.write_full(&format!("o{i}"), Bytes::from_static(b"hello")).await.unwrap();
        }
    });
    let mut differences = Vec::new();
    for name in [
        "status",
        "version",
        "git_version",
        "dump_ops_in_flight",
        "dump_blocked_ops",
        "dump_historic_ops",
        "dump_historic_ops_by_duration",
        "dump_historic_slow_ops",
    ] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/recordings/{name}.json"));
        let recorded = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        compare(name, &recorded, &ask(&cluster, &json!({ "prefix": name })), &mut differences);
    }
    assert!(differences.is_empty(), "{differences:#?}");
    let history = ask(&cluster, &json!({ "prefix": "dump_historic_ops" }));
    let op = &history["ops"][0];
    let events: Vec<_> = op["type_data"]["events"].as_array().unwrap().iter().map(|e| &e["event"]).collect();
    assert_eq!(events.first().unwrap(), &"initiated");
    assert_eq!(events.last().unwrap(), &"done");
    let none = ask(&cluster, &json!({ "prefix": "dump_historic_ops", "filterstr": ["nonesuch"] }));
    assert_eq!(none["ops"], json!([]));
    let commands = ask(&cluster, &json!({ "prefix": "help" }));
    for command in commands.as_object().unwrap().keys() {
        let reply = cluster.osd(OsdId(0)).command(&json!({ "prefix": command }).to_string());
        assert!(!reply.status.starts_with("command not known"), "{command}: {}", reply.status);
    }
}
