//! `nacre completions SHELL` and `nacre man DIR`: shell completions and manual pages, from the output of `--help` and the table
//! of cluster commands. They are not stored in the repository, so they can't be out of date.

use super::{
    backup, bench, bluestore_tool, ceph, crushtool, doctor, dplcompat, kvstore_tool, map_store, osdmaptool,
    rados, radosgw_admin, rest_bench, vstart,
};
use anyhow::{Context, Result, bail};
use nacre_types::command::{ParamKind, mon_commands};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

/// A program, as described in completions and manual pages.
struct Program {
    /// Its name on a command line.
    name: &'static str,
    /// Its purpose, in one line.
    purpose: &'static str,
    /// What `--help` prints.
    help: String,
    /// The possible commands, word by word: `osd pool create`.
    sentences: Vec<String>,
}

fn programs() -> Vec<Program> {
    let ceph_words = ceph_sentences();
    let mut nacre_words: Vec<String> = [
        "serve",
        "mon",
        "osd",
        "ceph",
        "rados",
        "gateway",
        "user",
        "key",
        "bucket",
        "gc",
        "quota",
        "usage",
        "caps",
        "object",
        "metadata",
        "lc",
        "reshard",
        "zone",
        "zonegroup",
        "backup",
        "bench s3",
        "rest-bench",
        "dplcompat",
        "crushtool",
        "osdmaptool",
        "kvstore-tool",
        "map-store",
        "bluestore-tool",
        "vstart.sh",
        "doctor",
    ]
    .map(str::to_owned)
    .into();
    nacre_words.extend(ceph_words.iter().cloned());
    nacre_words.sort_unstable();
    let program = |name, purpose, help: String, sentences| Program { name, purpose, help, sentences };
    vec![
        program("nacre", "Ceph's object layer in one binary", crate::USAGE.to_owned(), nacre_words),
        program("nacre-serve", "run a whole cluster in one process", crate::serve::help(), Vec::new()),
        program("radosgw-admin", "manage S3 users, keys and buckets", radosgw_admin::help(), Vec::new()),
        program("nacre-doctor", "check this build and this machine", doctor::USAGE.to_owned(), Vec::new()),
        program("nacre-backup", "store streams in striped volumes", backup::USAGE.to_owned(), Vec::new()),
        program("nacre-bench", "load an S3 server", bench::USAGE.to_owned(), Vec::new()),
        program("rest-bench", "load an S3 gateway", rest_bench::USAGE.to_owned(), Vec::new()),
        program("nacre-dplcompat", "store volumes of Bareos", dplcompat::USAGE.to_owned(), Vec::new()),
        program("ceph", "commands of a cluster", ceph::help(), ceph_words),
        program("rados", "objects of a cluster", rados::USAGE.to_owned(), rados::verbs()),
        program("crushtool", "CRUSH maps", crushtool::usage(), Vec::new()),
        program("nacre-map-store", "the store of the cluster's map", map_store::help(), Vec::new()),
        program("bluestore-tool", "the BlueStore of a stopped OSD", bluestore_tool::help(), Vec::new()),
        program("vstart.sh", "start a development cluster", vstart::usage(), Vec::new()),
        program("osdmaptool", "cluster maps in files", osdmaptool::usage(), Vec::new()),
        program(
            "ceph-kvstore-tool",
            "an OSD's database",
            kvstore_tool::USAGE.to_owned(),
            kvstore_tool::verbs(),
        ),
    ]
}

/// The commands that users type, with the words that may be first among their parameters.
fn ceph_sentences() -> Vec<String> {
    let mut sentences = BTreeSet::from(ceph::CLIENT_SIDE_COMMANDS.map(str::to_owned));
    let is_typed = |prefix: &str| {
        prefix != "get_command_descriptions"
            && prefix != "service beacon"
            && !prefix.starts_with("osd blacklist")
    };
    for signature in mon_commands().signatures().iter().filter(|s| is_typed(&s.prefix)) {
        let mut is_complete = true;
        for param in &signature.params {
            let (ParamKind::Choice(words) | ParamKind::Words(words)) = &param.kind else { break };
            let words = words.iter().filter(|word| !word.starts_with('-'));
            sentences.extend(words.map(|word| format!("{} {word}", signature.prefix)));
            if param.required {
                is_complete = false;
                break;
            }
        }
        if is_complete {
            sentences.insert(signature.prefix.clone());
        }
    }
    sentences.into_iter().collect()
}

/// The long options in a help text.
fn options(help: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let starts = help.match_indices("--").map(|(at, _)| at);
    let fresh = starts.filter(|at| !help[..*at].ends_with(|c: char| is_part(c)));
    let words = fresh.map(|at| help[at..].split(|c| !is_part(c)).next().unwrap_or_default());
    words.filter(|word| word.len() > 2 && !word.starts_with("---")).collect()
}

/// `nacre completions SHELL`.
pub(crate) fn completions(args: &[String]) -> Result<()> {
    let [shell] = args else { bail!("usage: nacre completions bash|zsh|fish") };
    let text = match shell.as_str() {
        "bash" => bash(),
        "zsh" => format!("#compdef nacre\nautoload -U +X bashcompinit && bashcompinit\n{}", bash()),
        "fish" => fish(),
        other => bail!("no completions for '{other}': use bash, zsh or fish"),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("can't write to standard output")
}

/// Cases of a shell's `case` over programs, each printing lines.
fn cases(lines: impl Fn(&Program) -> Vec<String>) -> String {
    let mut out = String::new();
    for program in programs().iter().filter(|program| !program.name.contains('-')) {
        let lines = lines(program);
        if !lines.is_empty() {
            let quoted: String = lines.iter().map(|line| format!(" \\\n            '{line}'")).collect();
            let _ = writeln!(out, "        {}) printf '%s\\n'{quoted} ;;", program.name);
        }
    }
    out
}

fn bash() -> String {
    let sentences = cases(|program| program.sentences.clone());
    let options = cases(|program| options(&program.help).into_iter().map(str::to_owned).collect());
    format!(
        r#"# Completion of nacre, and of Ceph's names for it, made by `nacre completions`.

_nacre_sentences() {{
    case $1 in
{sentences}    esac
}}

_nacre_options() {{
    case $1 in
{options}    esac
}}

_nacre() {{
    local program current said word skip at line rest last
    program="${{COMP_WORDS[0]##*/}}"
    current="${{COMP_WORDS[COMP_CWORD]}}"
    said='' skip=''
    for ((at = 1; at < COMP_CWORD; at++)); do
        word="${{COMP_WORDS[at]}}"
        if [[ -n $skip ]]; then
            skip=''
            continue
        fi
        case $word in
            -c|-n|-k|-m|-f|-i|-o|-p|-N|--conf|--name|--id|--user|--keyring|--cluster|--format|--pool|--namespace) skip=1 ;;
            -*) ;;
            *) said="$said$word " ;;
        esac
    done
    if [[ $program == nacre ]]; then
        case $said in
            ceph\ *|rados\ *|crushtool\ *|osdmaptool\ *)
                program="${{said%% *}}"
                said="${{said#* }}"
                ;;
        esac
    fi
    COMPREPLY=()
    if [[ $current == -* ]]; then
        while IFS= read -r line; do
            [[ $line == "$current"* ]] && COMPREPLY+=("$line")
        done < <(_nacre_options "$program")
        return
    fi
    last=''
    while IFS= read -r line; do
        if [[ $line == "$said$current"* ]]; then
            rest="${{line#"$said"}}"
            rest="${{rest%% *}}"
            # Sentences are sorted.
            [[ $rest != "$last" ]] && COMPREPLY+=("$rest")
            last="$rest"
        fi
    done < <(_nacre_sentences "$program")
}}

complete -o default -F _nacre nacre
# Ceph's names only where they are ours.
for _nacre_name in ceph rados crushtool osdmaptool; do
    case "$(readlink -f "$(command -v "$_nacre_name")" 2>/dev/null)" in
        */nacre) complete -o default -F _nacre "$_nacre_name" ;;
    esac
done
unset _nacre_name
"#
    )
}

fn fish() -> String {
    let mut out = String::from(
        r#"# Completion of nacre, and of Ceph's names for it, made by `nacre completions`.

function __nacre_at
    set -l words
    set -l skip 0
    for word in (commandline -opc)[2..]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $word
            case -c -n -k -m -f -i -o -p -N --conf --name --id --user --keyring --cluster --format --pool --namespace
                set skip 1
            case '-*'
            case '*'
                set -a words $word
        end
    end
    test "$words" = "$argv[1]"
end

"#,
    );
    let programs: Vec<Program> = programs().into_iter().filter(|p| !p.name.contains('-')).collect();
    for program in &programs {
        let name = program.name;
        let mut sentences = program.sentences.clone();
        if name == "nacre" {
            // The commands of the other programs after their names.
            for other in programs.iter().filter(|other| other.name != name) {
                sentences.extend(other.sentences.iter().map(|said| format!("{} {said}", other.name)));
            }
        }
        let mut steps: BTreeSet<(String, &str)> = BTreeSet::new();
        for sentence in &sentences {
            let words: Vec<&str> = sentence.split(' ').collect();
            steps.extend(words.iter().enumerate().map(|(at, word)| (words[..at].join(" "), *word)));
        }
        for (said, word) in steps {
            let _ = writeln!(out, "complete -c {name} -f -n '__nacre_at \"{said}\"' -a {word}");
        }
        for option in options(&program.help) {
            let _ = writeln!(out, "complete -c {name} -l {}", &option[2..]);
        }
    }
    out
}

/// `nacre man DIR`: writes the pages into DIR/man8.
pub(crate) fn man(args: &[String]) -> Result<()> {
    let [folder] = args else { bail!("usage: nacre man DIR") };
    let folder = Path::new(folder).join("man8");
    fs::create_dir_all(&folder).with_context(|| format!("can't create {}", folder.display()))?;
    for program in programs() {
        let name = page_name(program.name);
        let path = folder.join(format!("{name}.8"));
        fs::write(&path, page(&name, &program)).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

/// The name of a page. It differs from Ceph's own pages, so those remain readable.
fn page_name(program: &str) -> String {
    if program.starts_with("nacre") { program.to_owned() } else { format!("nacre-{program}") }
}

fn page(name: &str, program: &Program) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(".TH {} 8 \"\" \"nacre {version}\" \"Nacre\"\n", name.to_uppercase());
    let _ = write!(out, ".SH NAME\n{} \\- {}\n.SH DESCRIPTION\n.nf\n", roff(name), roff(program.purpose));
    for line in program.help.lines() {
        let _ = writeln!(out, "{}", roff(line));
    }
    out.push_str(".fi\n.SH SEE ALSO\n");
    let others: Vec<String> = programs()
        .iter()
        .map(|other| page_name(other.name))
        .filter(|other| other != name)
        .map(|other| format!(".BR {} (8)", roff(&other)))
        .collect();
    let _ = writeln!(out, "{}", others.join(",\n"));
    out
}

/// A line of text, escaped for roff.
fn roff(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '\\' => text.push_str("\\e"),
            '-' => text.push_str("\\-"),
            c if c.is_ascii() => text.push(c),
            c => text.push_str(&format!("\\[u{:04X}]", u32::from(c))),
        }
    }
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_help() {
        let found =
            options("  -c, --conf FILE  see --conf; --yes-i-really-mean-it, a--b -- ---- [--x|--y=N]");
        assert_eq!(found, BTreeSet::from(["--conf", "--yes-i-really-mean-it", "--x", "--y"]));
    }

    #[test]
    fn every_program_has_a_page_and_words() {
        for program in programs() {
            assert!(program.help.lines().count() > 5, "{}", program.name);
            let page = page(program.name, &program);
            assert!(page.starts_with(".TH ") && !page.contains("\n'"), "{}", program.name);
        }
        let words = ceph_sentences();
        for wanted in ["osd pool create", "osd blocklist add", "health detail", "health", "status"] {
            assert!(words.iter().any(|word| word == wanted), "{wanted}");
        }
        assert!(rados::verbs().contains(&"listomapvals".to_owned()));
        assert_eq!(roff(".a\\-'…"), "\\&.a\\e\\-'\\[u2026]");
    }
}
