//! `nacre bench s3` on a served cluster.

use crate::s3::S3;
use crate::support::nacre;
use serde_json::Value;
use std::process::{Command, Output};

fn bench(s3: &S3, args: &[&str]) -> Output {
    Command::new(nacre())
        .args(["bench", "s3", "--endpoint", &s3.endpoint])
        .args(args)
        .env("AWS_ACCESS_KEY_ID", &s3.access)
        .env("AWS_SECRET_ACCESS_KEY", &s3.secret)
        .output()
        .unwrap()
}

fn records(out: &Output) -> Vec<Value> {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn number(record: &Value, name: &str) -> f64 {
    record[name].as_f64().unwrap_or_else(|| panic!("{name} in {record}"))
}

#[test]
fn bench_s3_measures_every_mode() {
    let s3 = S3::start();
    let common = ["--bucket", "load", "--size", "5K", "--threads", "4", "--duration", "1", "--json"];
    let records_of = |more: &[&str]| records(&bench(&s3, &[&common[..], more].concat()));
    let all = records_of(&["--mode", "put,list,get", "--sign-payload", "--prefix", "a b/"]);
    for mode in ["PUT", "LIST", "GET"] {
        let of: Vec<_> = all.iter().filter(|record| record["Mode"] == mode).collect();
        let (total, intervals) = of.split_last().unwrap();
        assert_eq!(total["IntervalName"], "TOTAL");
        assert_eq!(intervals[0]["IntervalName"], "0");
        assert!(number(total, "Ops") > 0.0 && number(total, "Errors") == 0.0, "{total}");
        let sum: f64 = intervals.iter().map(|record| number(record, "Ops")).sum();
        assert_eq!(sum, number(total, "Ops"), "{mode}: every operation is in one interval");
        let order = ["MinLat", "MedianLat", "NinetyFiveLat", "NinetyNineLat", "NinetyNineNineLat", "MaxLat"];
        let latencies = order.map(|name| number(total, name));
        assert!(latencies.is_sorted() && latencies[0] > 0.0, "{total}");
        assert!((0.9..60.0).contains(&number(total, "Seconds")), "{total}");
        let iops = number(total, "Ops") / number(total, "Seconds");
        assert!((number(total, "Iops") / iops - 1.0).abs() < 1e-6, "{total}");
        if mode != "LIST" {
            let mbps = iops * 5.0 / 1024.0;
            assert!((number(total, "Mbps") / mbps - 1.0).abs() < 1e-6, "{total}");
        }
    }
    // The objects that it reports as written exist, and a later run finds and removes them.
    let put = all.iter().rfind(|record| record["Mode"] == "PUT").unwrap();
    let stats =
        || -> Value { serde_json::from_slice(&s3.nacre(&["bucket", "ls", "--uid", "admin"])).unwrap() };
    assert_eq!(stats(), serde_json::json!(["load"]));
    let removed = records_of(&["--mode", "del", "--prefix", "a b/", "--duration", "60"]);
    let total = removed.last().unwrap();
    assert_eq!((&total["Mode"], &total["Ops"]), (&"DEL".into(), &put["Ops"]));

    // Operations before the measurement do not count.
    let warm = records_of(&["--mode", "put", "--prefix", "w-", "--warm-up", "1", "--slice", "1"]);
    let (total, intervals) = warm.split_last().unwrap();
    let measured = intervals.iter().filter(|record| record["WarmUp"] == false);
    let sum: f64 = measured.map(|record| number(record, "Ops")).sum();
    assert!(intervals[0]["WarmUp"] == true && sum > 0.0 && sum == number(total, "Ops"), "{warm:?}");
    assert!(number(total, "WarmUpSeconds") >= 1.0 && total["WarmUpSteady"] == false, "{total}");

    // A number of objects, twice, with text output.
    let out = bench(&s3, &["--bucket", "few", "--objects", "10", "--mode", "put,del", "--loops", "2"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for line in ["Loop: 0, Int: TOTAL", "Loop: 1, Int: TOTAL", "Mode: PUT, Ops: 10, ", "Mode: DEL, Ops: 10, "]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    // That run created it and emptied it.
    assert_eq!(stats(), serde_json::json!(["load"]));

    // Failures are reported.
    let out = bench(&s3, &["--bucket", "load", "--mode", "get", "--prefix", "none-"]);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && told.contains("GET found no objects"), "{told}");
    let wrong = Command::new(nacre())
        .args(["bench", "s3", "--endpoint", &s3.endpoint])
        .env("AWS_ACCESS_KEY_ID", &s3.access)
        .env("AWS_SECRET_ACCESS_KEY", "wrong")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && told.contains("403"), "{told}");
}
