//! Pages that are generated from the code are as the code says.

use crate::support::nacre;
use std::path::Path;
use std::process::Command;

#[test]
fn the_option_reference_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let generated = Command::new(nacre()).arg("option-reference").output().unwrap();
    assert!(generated.status.success());
    let generated = String::from_utf8(generated.stdout).unwrap();
    assert!(generated.contains("osd_pool_default_size"), "the reference is empty");
    assert!(written == generated, "docs/options.md is stale: run `make docs`");
}
