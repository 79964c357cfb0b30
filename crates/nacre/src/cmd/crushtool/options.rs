//! The options of `crushtool`: the source for `--help`, the manual page and docs/compatibility.md.

use crate::cmd::tool_options::{Section, ToolOption, differences, options_help};

const fn full(usage: &'static str, help: &'static str) -> ToolOption {
    ToolOption::full(usage, help)
}

const NUMBER_ONLY: &str = "the value must be a number; Ceph's takes any other word as 1";
const SETS: &str = "where a map has device classes and weight sets, each class has the weight sets of the whole tree; Ceph's may \
                    leave some of a class at 0";

/// All options, by stage.
pub(crate) const OPTIONS: &[Section] = &[
    (
        "Options that are not specific to a stage.",
        &[
            full("[--infn|-i infile]", "read the crush map from infile (- for standard input)"),
            full("--verbose|-v", "report the file that was written"),
        ],
    ),
    (
        "Options for the input/build stage",
        &[
            full("--decompile|-d map", "decompile a crush map to source"),
            full("[--outfn|-o outfile]", "specify output for (de)compilation"),
            full("--compile|-c map.txt", "compile a map from source"),
            ToolOption::advisory(
                "--enable-unsafe-tunables",
                "compile with unsafe tunables",
                "no tunable is unsafe: all compile without it, as in Ceph",
            ),
            full(
                "--build --num_osds N layer1 ...",
                "build a new map, where each 'layer' is\n'name (uniform|straw2|straw|list|tree) size'",
            ),
        ],
    ),
    (
        "Options for the tunables adjustments stage",
        &[
            ToolOption::partial(
                "--set-choose-local-tries N",
                "set choose local retries before re-descent",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-choose-local-fallback-tries N",
                "set choose local retries using fallback\npermutation before re-descent",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-choose-total-tries N",
                "set choose total descent attempts",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-chooseleaf-descend-once <0|1>",
                "set chooseleaf to (not) retry the recursive descent",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-chooseleaf-vary-r <0|1>",
                "set chooseleaf to (not) vary r based on parent",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-chooseleaf-stable <0|1>",
                "set chooseleaf firstn to (not) return stable results",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-straw-calc-version <0|1>",
                "set the way in which straw lengths are computed",
                NUMBER_ONLY,
            ),
            ToolOption::partial(
                "--set-allowed-bucket-algs MASK",
                "set the bucket algorithms that may be used",
                NUMBER_ONLY,
            ),
        ],
    ),
    (
        "Options for the modifications stage",
        &[
            ToolOption::partial(
                "-i mapfn --add-item id weight name [--loc type name ...]",
                "insert an item into the hierarchy at the\ngiven location",
                SETS,
            ),
            ToolOption::partial(
                "-i mapfn --update-item id weight name [--loc type name ...]",
                "insert or move an item into the hierarchy at the\ngiven location",
                SETS,
            ),
            ToolOption::partial("-i mapfn --remove-item name", "remove the given item", SETS),
            ToolOption::partial(
                "-i mapfn --reweight-item name weight",
                "reweight a given item (and adjust ancestor\nweights as needed)",
                "as for --add-item; the weight inf is an error, Ceph's takes it for a negative weight",
            ),
            full(
                "-i mapfn --add-bucket name type [--loc type name ...]",
                "insert a bucket into the hierarchy at the given\nlocation",
            ),
            ToolOption::partial(
                "-i mapfn --move name --loc type name ...",
                "move the given item to specified location",
                "a move below the item itself is an error; Ceph's writes the map with the loop",
            ),
            full("-i mapfn --reweight", "recalculate all bucket weights"),
            full("-i mapfn --rebuild-class-roots", "rebuild the per-class shadow trees (normally a no-op)"),
            full(
                "-i mapfn --create-simple-rule name root type mode",
                "create crush rule <name> to start from <root>,\nreplicate across buckets of type <type>, using\n\
                 a choose mode of <firstn|indep>",
            ),
            full(
                "-i mapfn --create-replicated-rule name root type",
                "create crush rule <name> to start from <root>,\nreplicate across buckets of type <type>",
            ),
            full("--device-class <class>", "use device class <class> for new rule"),
            full("-i mapfn --remove-rule name", "remove the specified crush rule"),
        ],
    ),
    (
        "Options for the display/test stage",
        &[
            full(
                "-f --format",
                "the format of --dump, defaults to json-pretty\ncan be one of json, json-pretty, xml, xml-pretty,\n\
                 table, table-kv, html, html-pretty",
            ),
            full("--dump", "dump the crush map"),
            full("--tree", "print map summary as a tree"),
            full("--bucket-tree", "print bucket map summary as a tree"),
            full("--bucket-name", "specify bucket name for bucket-tree"),
            full(
                "--check [max_id]",
                "check if any item is referencing an unknown name/type\nand if rules overlap",
            ),
            full("-i mapfn --show-location id", "show location for given device id"),
            full("-i mapfn --test", "test a range of inputs on the map"),
            full("--min-x x", "first input"),
            full("--max-x x", "last input"),
            full("--x x", "the only input"),
            full("--min-rule r", "first rule"),
            full("--max-rule r", "last rule"),
            full("--rule r", "the only rule"),
            full("--ruleset rs", "rules of this ruleset only"),
            full("--num-rep n", "number of replicas"),
            full("--min-rep n", "fewest replicas (not in Ceph 16.2)"),
            full("--max-rep n", "most replicas (not in Ceph 16.2)"),
            full("--pool-id n", "specifies pool id"),
            full("--batches b", "split the CRUSH mapping into b > 1 rounds"),
            full("--weight|-w devno weight", "where weight is 0 to 1.0"),
            full(
                "--simulate",
                "simulate placements using a random\nnumber generator in place of the CRUSH\nalgorithm",
            ),
            full("--show-utilization", "show OSD usage"),
            full("--show-utilization-all", "include zero weight items"),
            full("--show-statistics", "show chi squared statistics"),
            full("--show-mappings", "show mappings"),
            full("--show-bad-mappings", "show bad mappings"),
            full("--show-choose-tries", "show choose tries histogram"),
            full(
                "--output-name name",
                "prepend the data file(s) generated during the\ntesting routine with name",
            ),
            full(
                "--output-csv",
                "export select data generated during testing routine\nto CSV files for off-line post-processing\n\
                 use --help-output for more information",
            ),
            full("--help-output", "explain the files of --output-csv"),
            full("--reclassify", "transform legacy CRUSH map buckets and rules\nby adding classes"),
            ToolOption::partial(
                "--reclassify-bucket <bucket-match> <class> <default-parent>",
                "give the items of the buckets this class and move them\nto the bucket that % names",
                "a default parent that is a device is an error; Ceph's fails an assertion",
            ),
            full("--reclassify-root <bucket-name> <class>", "give the whole tree this class"),
            ToolOption::partial(
                "--set-subtree-class <bucket-name> <class>",
                "set class for all items beneath bucket-name",
                "an unknown bucket is an error; Ceph's ignores it",
            ),
            full("--compare <otherfile>", "compare two maps using --test parameters"),
            ToolOption::refused("--mark-down-ratio", "not in the help of Ceph 16.2 and not implemented"),
            ToolOption::refused(
                "--mark-down-bucket-ratio",
                "not in the help of Ceph 16.2 and not implemented",
            ),
        ],
    ),
    (
        "Options for the output stage",
        &[full("[--outfn|-o outfile]", "specify output for modified crush map")],
    ),
];

/// What `--help` prints.
pub(in crate::cmd) fn usage() -> String {
    format!(
        "usage: crushtool ...\n\nDisplay, modify and test a crush map\n\nThere are five stages, running one after the \
         other:\n\n - input/build\n - tunables adjustments\n - modifications\n - display/test\n - output\n{}{}",
        options_help(OPTIONS),
        differences(OPTIONS)
    )
}
