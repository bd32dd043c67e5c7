//! `cargo xtask tidy`: the house rules that a program can check. STYLE.md gives their reasons.
//!
//! Patterns are written in two halves, so that this file does not break its own rules.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::run::{Result, root};

/// Lines of code, blank lines and comments not counted: prose is welcome, tangles are not.
const LONGEST: usize = 700;

/// Folders of the core with one algorithm per file.
const POLICIES: &[&str] = &[
    "admission",
    "allocate",
    "limit",
    "placement",
    "retry",
    "schedule",
    "signal",
    "slots",
    "throttle",
    "workflow",
];

/// Folders that hold no sources of ours.
pub(crate) const NOT_OURS: &[&str] = &[".git", "target", "out"];

/// Marks of unfinished work.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore"),
];

/// What the core must not know.
const IMPURE: &[&str] = &[
    concat!("std::time::Inst", "ant"),
    concat!("std::time", "::{"),
    concat!("System", "Time"),
    concat!("std::thr", "ead"),
    concat!("std::n", "et"),
    concat!("std::f", "s"),
    concat!("std::i", "o"),
    concat!("std::en", "v"),
    concat!("std::proc", "ess"),
    concat!("tok", "io"),
    concat!("rand", "::"),
    concat!("getran", "dom"),
    concat!("Random", "State"),
];

/// Paths of one machine.
const MACHINE: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("/t", "mp/"),
    concat!("/m", "nt/"),
];

/// Settings that tie the project to one network's registry.
const REGISTRY: &[&str] = &[
    concat!("replace", "-with"),
    concat!("sparse", "+http"),
    concat!("index = \"", "http"),
    concat!("[sou", "rce."),
    concat!("[regis", "tries"),
];

/// The one registry a lock file may name.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Every file of the project by its path from the root, `/` between folders.
type Files = BTreeMap<String, String>;

/// Checks the working tree.
pub(crate) fn tidy() -> Result {
    let mut files = Files::new();
    collect(&root(), "", &mut files)?;
    let found = findings(&files);
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

/// Reads all text files below `folder`.
fn collect(folder: &Path, prefix: &str, files: &mut Files) -> Result {
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(cannot)?;
        if kind.is_dir() && !NOT_OURS.contains(&name.as_str()) {
            collect(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() && name != ".git" {
            // Images and other binary files have no lines to check.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                files.insert(path, text);
            }
        }
    }
    Ok(())
}

/// Everything that breaks a rule, one line each.
fn findings(files: &Files) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        let rust = path.ends_with(".rs");
        if rust {
            length(path, text, &mut found);
            forbid(path, text, UNFINISHED, "finish it or leave it out", &mut found);
        }
        if let Some(inside) = path.strip_prefix("crates/core/src/").filter(|_| rust) {
            let why = "the core has no clock, no I/O, no threads, no ambient randomness";
            forbid_in_code(path, text, IMPURE, why, &mut found);
            let policy = POLICIES.iter().any(|folder| inside.starts_with(&format!("{folder}/")));
            if policy && !text.starts_with("//!") {
                found.push(format!("{path}: begins without a word of what it is for (`//!`)"));
            }
        }
        if path.ends_with(".lock") {
            lock(path, text, &mut found);
        } else {
            machine_paths(path, text, &mut found);
            forbid(path, text, REGISTRY, "ties the project to one network", &mut found);
        }
        if path.ends_with(".md") {
            links(path, text, files, &mut found);
        }
    }
    contents(files, &mut found);
    found
}

fn length(path: &str, text: &str, found: &mut Vec<String>) {
    let code = text.lines().map(str::trim).filter(|line| is_code(line)).count();
    if code > LONGEST {
        found.push(format!("{path}: {code} lines of code, more than {LONGEST}: split it by idea"));
    }
}

fn is_code(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("//")
}

fn forbid(path: &str, text: &str, patterns: &[&str], why: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        for pattern in patterns.iter().filter(|pattern| line.contains(**pattern)) {
            found.push(format!("{path}:{number}: `{pattern}`: {why}"));
        }
    }
}

/// The same, but prose may say anything.
fn forbid_in_code(path: &str, text: &str, patterns: &[&str], why: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        let code = line.split("//").next().unwrap_or_default();
        for pattern in patterns {
            let bounded = |(at, _): (usize, &str)| {
                !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
            };
            if code.match_indices(pattern).any(bounded) {
                found.push(format!("{path}:{number}: `{pattern}`: {why}"));
            }
        }
    }
}

fn machine_paths(path: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        for pattern in MACHINE {
            // A folder of that name inside another one is no machine's root.
            let absolute = |(at, _): (usize, &str)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-})".contains(c))
            };
            if line.match_indices(pattern).any(absolute) {
                found.push(format!("{path}:{number}: `{pattern}` exists on one machine only"));
            }
        }
    }
}

fn lock(path: &str, text: &str, found: &mut Vec<String>) {
    for (number, line) in (1..).zip(text.lines()) {
        let source = line.strip_prefix("source = ").map(|source| source.trim_matches('"'));
        if source.is_some_and(|source| source != CRATES_IO) {
            found.push(format!("{path}:{number}: {line}: packages come from crates.io"));
        }
    }
}

/// Links to files must lead somewhere.
fn links(path: &str, text: &str, files: &Files, found: &mut Vec<String>) {
    for (number, target) in link_targets(text) {
        if !leads_somewhere(&resolve(path, target), files) {
            found.push(format!("{path}:{number}: the link to {target} leads nowhere"));
        }
    }
}

fn leads_somewhere(target: &str, files: &Files) -> bool {
    let folder = format!("{}/", target.trim_end_matches('/'));
    files.contains_key(target)
        || files.keys().any(|path| path.starts_with(&folder))
        // Images may be binary, and then are not among the texts.
        || root().join(target).is_file()
}

/// Every page of the book must be in its table of contents.
fn contents(files: &Files, found: &mut Vec<String>) {
    const CONTENTS: &str = "docs/README.md";
    let listed: Vec<String> = files.get(CONTENTS).map_or_else(Vec::new, |text| {
        link_targets(text).map(|(_, target)| resolve(CONTENTS, target)).collect()
    });
    for page in files.keys().filter(|path| path.starts_with("docs/") && path.ends_with(".md")) {
        if page != CONTENTS && !listed.contains(page) {
            found.push(format!("{page}: not linked from {CONTENTS}"));
        }
    }
}

/// Line numbers and targets of Markdown links to files, fragments cut off; code blocks are no
/// prose.
fn link_targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    let prose = (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    prose.flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets
            .filter(|target| !target.contains("://") && !target.starts_with('#'))
            .map(move |target| (number, target.split('#').next().unwrap_or_default()))
    })
}

/// A link's target as a path from the root.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a project of these files and a table of contents.
    fn check(files: &[(&str, &str)]) -> Vec<String> {
        findings(&files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect())
    }

    #[track_caller]
    fn assert_one(files: &[(&str, &str)], part: &str) {
        let found = check(files);
        assert!(found.len() == 1 && found[0].contains(part), "expected {part:?}, got {found:?}");
    }

    #[test]
    fn this_project_is_tidy() {
        assert_eq!(tidy(), Ok(()));
    }

    #[test]
    fn long_files_are_found_and_prose_is_free() {
        let prose = "// why\n\n".repeat(LONGEST);
        let code = "x();\n".repeat(LONGEST);
        assert_eq!(check(&[("a.rs", &format!("{prose}{code}"))]), Vec::<String>::new());
        assert_one(&[("a.rs", &format!("{code}x();\n"))], "701 lines");
    }

    #[test]
    fn unfinished_work_is_found() {
        for pattern in UNFINISHED {
            assert_one(&[("xtask/src/a.rs", &format!("fn a() {{\n{pattern}\n"))], "a.rs:2");
        }
    }

    #[test]
    fn the_core_stays_pure_but_its_prose_is_free() {
        for pattern in IMPURE {
            let (code, prose) = (format!("use {pattern};\n"), format!("// no {pattern} here\n"));
            assert_one(&[("crates/core/src/a.rs", &code)], "a.rs:1");
            assert_eq!(check(&[("crates/core/src/a.rs", &prose)]), Vec::<String>::new());
            assert_eq!(check(&[("crates/sim/src/a.rs", &code)]), Vec::<String>::new());
        }
        let other_word = concat!("self.ope", "rand", "::go();\n");
        assert_eq!(check(&[("crates/core/src/a.rs", other_word)]), Vec::<String>::new());
    }

    #[test]
    fn policies_begin_with_prose() {
        assert_one(&[("crates/core/src/schedule/new.rs", "use x;\n")], "without a word");
        assert_eq!(check(&[("crates/core/src/schedule/new.rs", "//! New.\n")]), [""; 0]);
    }

    #[test]
    fn paths_of_one_machine_are_found_and_others_are_not() {
        for pattern in MACHINE {
            assert_one(&[("a.md", &format!("see {pattern}x\n"))], "one machine");
            assert_eq!(check(&[("a.md", &format!("see docs{pattern}x\n"))]), [""; 0]);
        }
    }

    #[test]
    fn registries_are_found() {
        for pattern in REGISTRY {
            assert_one(&[(".cargo/config.toml", &format!("{pattern}x\n"))], "one network");
        }
        let fine = format!("source = \"{CRATES_IO}\"\n");
        assert_eq!(check(&[("Cargo.lock", &fine)]), [""; 0]);
        let other = "source = \"registry+https://example.com/index\"\n";
        assert_one(&[("Cargo.lock", other)], "crates.io");
    }

    #[test]
    fn pages_are_linked_and_links_lead_somewhere() {
        let contents = ("docs/README.md", "- [a](a.md#top), [web](https://example.com), [b](#b)\n");
        assert_eq!(
            check(&[contents, ("docs/a.md", "up: [x](../README.md)\n"), ("README.md", "")]),
            [""; 0]
        );
        assert_one(&[contents, ("docs/a.md", ""), ("docs/b.md", "")], "b.md: not linked");
        assert_one(&[contents], "leads nowhere");
        let code = "```text\nrow[0](no/link)\n```\n";
        assert_eq!(check(&[("README.md", code)]), [""; 0]);
    }
}
