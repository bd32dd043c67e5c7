//! The book cannot rot: every configuration it prints is one that `tidegate check` accepts.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidegate_core::caller::CallerConfig;
use tidegate_core::config;
use tidegate_core::entry::EntryConfig;
use tidegate_core::gate::GateConfig;

/// A fenced block of a page.
struct Block {
    page: PathBuf,
    line: usize,
    /// What follows the language: which file the block is part of.
    kind: String,
    text: String,
}

impl Block {
    fn place(&self) -> String {
        format!("{}:{}", self.page.display(), self.line)
    }
}

/// All TOML blocks of the book.
fn blocks() -> Vec<Block> {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut found = Vec::new();
    let mut folders = vec![book];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the book is there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                blocks_of(&path, &mut found);
            }
        }
    }
    found
}

fn blocks_of(page: &Path, found: &mut Vec<Block>) {
    let text = fs::read_to_string(page).expect("pages are text");
    let mut lines = (1..).zip(text.lines());
    while let Some((line, fence)) = lines.next() {
        let Some(info) = fence.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text: Vec<&str> = inside.collect();
        if let Some(kind) = info.strip_prefix("toml") {
            let (page, kind) = (page.to_owned(), kind.trim().to_owned());
            found.push(Block { page, line, kind, text: text.join("\n") + "\n" });
        }
    }
}

/// What `tidegate check` says about `text`: nothing if it is valid.
fn check(text: &str) -> Option<String> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads its input");
    let output = child.wait_with_output().expect("it ends");
    let told = || String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then(told)
}

#[test]
fn every_configuration_in_the_book_is_valid() {
    let blocks = blocks();
    let configs = blocks.iter().filter(|block| block.kind == "config").count();
    assert!(configs > 20, "only {configs} configurations were found");
    let problem = |block: &Block| match block.kind.as_str() {
        "config" => check(&block.text),
        "control" => tidegate_control::File::parse(&block.text).err().map(|e| e.to_string()),
        "caller" => CallerConfig::from_toml(&block.text).err().map(|e| e.to_string()),
        "entry" => config::read(&block.text, EntryConfig::validate).err().map(|e| e.to_string()),
        // Plans of the simulator and the like have readers of their own.
        _ => None,
    };
    let wrong = blocks.iter().filter_map(|block| Some((block.place(), problem(block)?)));
    assert_eq!(wrong.collect::<Vec<_>>(), []);
}

/// Names in the list of a reader's "unknown variant" message.
fn choices(message: &str) -> BTreeSet<String> {
    let (_, list) =
        message.split_once("expected one of").or(message.split_once("expected")).expect(message);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A policy without a block in the book fails here.
#[test]
fn every_policy_is_configured_somewhere_in_the_book() {
    let text: String = blocks().into_iter().map(|block| block.text).collect();
    let gate = |text: &str| GateConfig::from_toml(text).expect_err("no such choice").to_string();
    let caller =
        |text: &str| CallerConfig::from_toml(text).expect_err("no such choice").to_string();
    for (key, message) in [
        ("policy", gate("admission.policy = '?'")),
        ("order", gate("schedule.order = '?'")),
        ("slots", gate("slots.slots = '?'")),
        ("limit", gate("limits = [{ limit = '?' }]")),
        ("throttle", caller("throttle.throttle = '?'")),
    ] {
        let names = choices(&message);
        assert!(names.len() >= 2, "{message}");
        for name in names {
            let line = format!("{key} = \"{name}\"\n");
            assert!(text.contains(&line), "no block of the book has {line}");
        }
    }
}
