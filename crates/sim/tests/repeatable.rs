//! A seed determines everything: the order of the seeds, the number of threads and the process have no effect.

use std::process::Command;

const SEEDS: &str = "200";

/// A hash of all messages and disks of each seed.
fn hashes(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nacre-sim"))
        .args(["--hashes", "--seeds", SEEDS])
        .args(options)
        .output()
        .expect("nacre-sim starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("hashes are text")
}

#[test]
fn seeds_give_the_same_in_any_process_order_and_number_of_threads() {
    let one_by_one = hashes(&["--jobs", "1"]);
    assert_eq!(one_by_one.lines().count().to_string(), SEEDS);
    let reversed = hashes(&["--jobs", "2", "--reversed"]);
    let differing: Vec<_> = one_by_one.lines().zip(reversed.lines()).filter(|(a, b)| a != b).collect();
    assert!(differing.is_empty(), "{differing:?}");
}
