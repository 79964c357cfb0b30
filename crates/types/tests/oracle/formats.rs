//! Compares both formats with `crushtool -d`, `-c` and its re-encoding.

use super::{MAPS, generate, in_parallel, run_ok};
use nacre_crush::CrushMap;

#[test]
fn both_formats_are_crushtools() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: String| dir.path().join(name).to_str().unwrap().to_owned();
    in_parallel(MAPS, |seed| {
        let map = generate::case(seed).map;
        let (binary, text, out) =
            (path(format!("{seed}.bin")), path(format!("{seed}.txt")), path(format!("{seed}.out")));
        let encoded = map.encode();
        std::fs::write(&binary, &encoded).unwrap();
        assert!(
            CrushMap::decode(&encoded).unwrap() == map,
            "map {seed} is another after encoding and decoding"
        );

        let tries = map.tunables.choose_total_tries.to_string();
        run_ok("crushtool", &["-i", &binary, "--set-choose-total-tries", &tries, "-o", &out]);
        let again = std::fs::read(&out).unwrap();
        if again != encoded {
            let again = CrushMap::decode(&again).unwrap();
            panic!("crushtool re-encodes map {seed}\n{map:#?}\nas\n{again:#?}");
        }

        run_ok("crushtool", &["-d", &binary, "-o", &text]);
        let theirs = std::fs::read_to_string(&text).unwrap();
        let ours = map.decompile();
        if ours != theirs {
            let (a, b) = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b).unwrap_or_default();
            panic!("map {seed} decompiles to '{a}', crushtool prints '{b}'");
        }

        run_ok("crushtool", &["-c", &text, "-o", &out]);
        let compiled =
            CrushMap::compile(&theirs).unwrap_or_else(|error| panic!("map {seed}: {error}\n{theirs}"));
        let theirs = std::fs::read(&out).unwrap();
        if compiled.encode() != theirs {
            let theirs = CrushMap::decode(&theirs).unwrap();
            panic!("map {seed} compiles to\n{compiled:#?}\ncrushtool makes\n{theirs:#?}");
        }
    });
}
