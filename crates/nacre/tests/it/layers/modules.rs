//! The graph of the top-level modules of a crate, read from its source files.
//!
//! A module uses another one if a path in its files leads from the crate's root (`crate::` or enough `super::`) into the other
//! module, or to a name that the root imports from the other module. Code below `#[cfg(test)]` does not count. Nor does what the
//! root itself defines and uses, and what expressions use without naming it, such as methods.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The graph of one crate.
#[derive(Debug, Default)]
pub(super) struct ModuleGraph {
    /// The files that cause each edge, relative to the crate's `src`, by user and used module.
    edges: BTreeMap<(String, String), BTreeSet<String>>,
    modules: BTreeSet<String>,
}

/// A file with its module, as the path from the root, and its tokens without test code.
struct Source {
    file: String,
    module: Vec<String>,
    tokens: Vec<String>,
}

impl ModuleGraph {
    /// Reads the crate with the given root file, `lib.rs` or `main.rs`.
    pub(super) fn read(root: &Path) -> ModuleGraph {
        let folder = root.parent().expect("invariant: a file is in a folder");
        let mut sources = Vec::new();
        read_sources(folder, root, Vec::new(), &mut sources);
        let modules: BTreeSet<String> = sources.iter().filter_map(|s| s.module.first().cloned()).collect();
        let imports = root_imports(&sources[0].tokens, &modules);
        let mut graph = ModuleGraph { modules, ..ModuleGraph::default() };
        for Source { file, module, tokens } in &sources {
            let Some(user) = module.first() else { continue };
            for name in names_of_root(module, tokens) {
                let used = if graph.modules.contains(name) { Some(name) } else { imports.get(name) };
                if let Some(used) = used.filter(|used| *used != user) {
                    let edge = (user.clone(), used.clone());
                    graph.edges.entry(edge).or_default().insert(file.clone());
                }
            }
        }
        graph
    }

    /// The sets of two and more modules that use each other, directly or through others of the set.
    pub(super) fn cycles(&self) -> BTreeSet<BTreeSet<&str>> {
        let reachable: BTreeMap<&str, BTreeSet<&str>> =
            self.modules.iter().map(|module| (module.as_str(), self.reachable(module))).collect();
        let component = |module: &str| {
            let of_module = reachable[module].iter();
            of_module.filter(|other| reachable[*other].contains(module)).copied().collect::<BTreeSet<_>>()
        };
        self.modules.iter().map(|module| component(module)).filter(|component| component.len() > 1).collect()
    }

    /// The edges between the modules of a cycle, one a line, with the files that cause them.
    pub(super) fn describe(&self, cycle: &BTreeSet<&str>) -> String {
        let mut text = String::new();
        for ((user, used), files) in &self.edges {
            if cycle.contains(user.as_str()) && cycle.contains(used.as_str()) {
                let files: Vec<&str> = files.iter().map(String::as_str).collect();
                text += &format!("\n    {user} -> {used}: {}", files.join(", "));
            }
        }
        text
    }

    /// The modules to which edges lead from `module`, in any number of steps.
    fn reachable(&self, module: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut next = vec![module];
        while let Some(user) = next.pop() {
            let used = self.edges.keys().filter(|(from, _)| from == user).map(|(_, to)| to.as_str());
            next.extend(used.filter(|used| found.insert(*used)).collect::<Vec<_>>());
        }
        found
    }
}

/// Reads a file and those of its modules.
fn read_sources(folder: &Path, file: &Path, module: Vec<String>, sources: &mut Vec<Source>) {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let tokens = without_tests(tokens(&text));
    let mut inner = Vec::new();
    walk(&module, &tokens, |at, path| {
        if let [word, name, end] = &tokens[at..tokens.len().min(at + 3)]
            && (word, end) == (&"mod".to_owned(), &";".to_owned())
        {
            inner.push([path, std::slice::from_ref(name)].concat());
        }
    });
    let name = file.strip_prefix(folder).expect("invariant: the file is in the crate's folder");
    sources.push(Source { file: name.display().to_string(), module, tokens });
    for module in inner {
        let path: PathBuf = folder.join(module.join("/")).with_extension("rs");
        read_sources(folder, &path, module, sources);
    }
}

/// The identifiers and the punctuation of a source text, with `::` as one token. Comments and literals are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    flatten(text.parse().expect("a source file"), &mut found);
    found
}

fn flatten(stream: TokenStream, found: &mut Vec<String>) {
    let mut after_colon = false;
    for tree in stream {
        let mut is_colon = false;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                found.push(open.to_owned());
                flatten(group.stream(), found);
                found.push(close.to_owned());
            }
            TokenTree::Ident(ident) => found.push(ident.to_string()),
            TokenTree::Punct(punct) if punct.as_char() == ':' && after_colon => {
                "::".clone_into(found.last_mut().expect("a colon"))
            }
            TokenTree::Punct(punct) => {
                is_colon = punct.as_char() == ':' && punct.spacing() == Spacing::Joint;
                found.push(punct.as_char().to_string());
            }
            TokenTree::Literal(_) => {}
        }
        after_colon = is_colon;
    }
}

/// Leaves out the items and statements below `#[cfg(test)]`.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::with_capacity(tokens.len());
    let mut rest = &tokens[..];
    while let [first, others @ ..] = rest {
        if rest.len() >= TEST.len() && rest.iter().zip(TEST).all(|(token, test)| token == test) {
            rest = &rest[TEST.len() + item_len(&rest[TEST.len()..])..];
        } else {
            kept.push(first.clone());
            rest = others;
        }
    }
    kept
}

/// The number of tokens up to the end of the first item: a semicolon, a comma or the end of a block.
fn item_len(tokens: &[String]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            // The end of what the last item is in.
            ")" | "]" | "}" if depth == 0 => return at,
            "}" if depth == 1 => return at + 1,
            ")" | "]" | "}" => depth -= 1,
            ";" | "," if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Calls `visit` with the index of each token and the path of the module that it is in, which is `module` or one in its braces.
fn walk(module: &[String], tokens: &[String], mut visit: impl FnMut(usize, &[String])) {
    let mut path = module.to_vec();
    // The depth of each module in braces.
    let mut depths = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => {
                if at >= 2 && tokens[at - 2] == "mod" {
                    path.push(tokens[at - 1].clone());
                    depths.push(depth);
                }
                depth += 1;
            }
            "}" => {
                depth -= 1;
                if depths.pop_if(|started| *started == depth).is_some() {
                    path.pop();
                }
            }
            _ => visit(at, &path),
        }
    }
}

/// The first name of each path in `tokens` that begins at the crate's root.
fn names_of_root<'a>(module: &[String], tokens: &'a [String]) -> BTreeSet<&'a String> {
    let mut names = BTreeSet::new();
    walk(module, tokens, |at, path| {
        if at > 0 && tokens[at - 1] == "::" {
            return;
        }
        let supers = tokens[at..].chunks(2).take_while(|pair| pair == &["super", "::"]).count();
        let is_root = supers > 0 && supers == path.len();
        let len = match &tokens[at..] {
            [root, colons, ..] if root == "crate" && colons == "::" => 2,
            _ if is_root => 2 * supers,
            _ => return,
        };
        names.extend(first_names(&tokens[at + len..]));
    });
    names
}

/// The name at the start of the tokens, or the first names of the paths in the braces there.
fn first_names(tokens: &[String]) -> Vec<&String> {
    if tokens.first().is_none_or(|first| first != "{") {
        return tokens.first().into_iter().collect();
    }
    let mut names = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if depth == 1 && (at == 1 || tokens[at - 1] == ",") => names.push(token),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The names that the root imports from its modules, each with the module.
fn root_imports(tokens: &[String], modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut imports = BTreeMap::new();
    let starts = tokens.iter().enumerate().filter(|(_, token)| *token == "use");
    for (at, _) in starts {
        let tree = &tokens[at + 1..];
        let relative = tree.len() > 2 && ["crate", "self"].contains(&tree[0].as_str());
        let tree = if relative { &tree[2..] } else { tree };
        let end = tree.iter().position(|token| token == ";").unwrap_or(tree.len());
        let Some(module) = tree.first().filter(|first| modules.contains(*first)) else { continue };
        for (at, name) in tree[..end].iter().enumerate().skip(1) {
            assert!(name != "*", "the root imports everything from {module}");
            // A name that is not the last of its path or is renamed is imported under another one.
            let is_last = tree.get(at + 1).is_none_or(|next| [",", "}", ";"].contains(&next.as_str()));
            if is_last && name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                imports.insert(name.clone(), module.clone());
            }
        }
    }
    imports
}
