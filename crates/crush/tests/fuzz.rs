//! Fuzz targets with damaged inputs for the decoders of both formats: see `nacre_fuzz`.

#![allow(clippy::unwrap_used)]

use nacre_crush::CrushMap;
use nacre_fuzz::{CountingAllocator, Target};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
fn crush_maps() {
    let crush = CrushMap::new_cluster("host").unwrap();
    Target::new("crush-binary", corpus(), vec![crush.encode()]).run(|input| {
        let map = CrushMap::decode(input).ok()?;
        // Accepted maps must be printable.
        map.decompile();
        Some(map.encode())
    });
    let words = [
        "host a {\n id -2\n alg straw2\n hash 0\n item osd.0 weight 1.000\n}\n",
        "device 0 osd.0 class ssd\n",
        "type 1 host\n",
        "rule r {\n id 1\n type replicated\n step take default\n step chooseleaf firstn 0 type host\n step emit\n}\n",
        "tunable choose_total_tries 50\n",
        "choose_args 0 {\n {\n bucket_id -1\n weight_set [\n [ 1.0 ]\n ]\n }\n}\n",
        "step set_chooseleaf_tries 5\n",
        "-99999999999",
        "4294967296",
        "1e99",
        "{",
        "}",
        "# ",
    ];
    let target = Target {
        dictionary: &words,
        ..Target::new("crush-text", corpus(), vec![crush.decompile().into_bytes()])
    };
    target.run(|input| {
        let map = CrushMap::compile(std::str::from_utf8(input).ok()?).ok()?;
        Some(map.decompile().into_bytes())
    });
}
