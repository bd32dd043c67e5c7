//! What we depend on: licences, duplicate versions, and how little the core needs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::run::{self, Result};
use crate::spdx;

/// Licences that ask for nothing beyond attribution.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that may come in several versions, with the reason and when it ends.
const DUPLICATES: &[(&str, &str)] = &[
    ("base64", "tonic in an example, and rcgen, which makes certificates for tests, differ"),
    ("bitflags", NAMED),
    ("darling", BUILD),
    ("darling_core", BUILD),
    ("darling_macro", BUILD),
    ("foldhash", "comes with hashbrown"),
    ("getrandom", "ring has an older one than tempfile, with which an example's code is generated"),
    (
        "hashbrown",
        "petgraph, with which an example's code is generated, and governor, a peer in a bench, have older ones",
    ),
    ("indexmap", NAMED),
    ("schemars", NAMED),
    ("syn", BUILD),
];

/// Only for the build of the dashboard, never in what is shipped.
const BUILD: &str = "plotly, which carries the dashboard's charts, and serde_with, which it uses, derive with \
                     different versions; ends when plotly follows";

/// Not even built.
const NAMED: &str = "resolved by cargo for features of serde_with that nobody asks for";

/// All that the core may depend on: everybody who uses it gets these too.
const CORE: &[&str] = &["serde", "toml"];

/// Checks the dependencies as cargo resolves them for this platform.
pub(crate) fn check() -> Result {
    let (version, _) = run::output(run::rustc().arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc -vV names no host")?;
    let args = ["metadata", "--format-version", "1", "--filter-platform", host];
    let (metadata, _) = run::output(&mut run::cargo(&args))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let found = problems(&metadata, DUPLICATES);
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

fn problems(metadata: &Value, duplicates: &[(&str, &str)]) -> Vec<String> {
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).map(|package| (text(&package["id"]), package)).collect();
    // `packages` has those of other platforms too; `resolve` has only ours.
    let resolved: Vec<&Value> = list(&metadata["resolve"]["nodes"])
        .filter_map(|node| packages.get(text(&node["id"])).copied())
        .collect();
    let mut found = Vec::new();
    if resolved.is_empty() {
        found.push("cargo metadata names no packages".to_owned());
    }
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in resolved {
        let (name, licence) = (text(&package["name"]), text(&package["license"]));
        versions.entry(name).or_default().push(text(&package["version"]));
        if !spdx::satisfied(licence, LICENCES) {
            found.push(format!("{name} has the licence {licence:?}, which is not in deps.rs"));
        }
        if name == "tidegate-core" {
            found.extend(core_problems(package));
        }
    }
    for (name, versions) in &versions {
        match (versions.len() > 1, duplicates.iter().any(|(allowed, _)| allowed == name)) {
            (true, false) => found.push(format!("{name} comes as {}", versions.join(" and "))),
            (false, true) => found.push(format!("{name} is no duplicate any more: see deps.rs")),
            _ => {}
        }
    }
    for (name, _) in duplicates {
        if !versions.contains_key(name) {
            found.push(format!("{name} is not used any more: see deps.rs"));
        }
    }
    found
}

fn core_problems(core: &Value) -> Vec<String> {
    list(&core["dependencies"])
        .filter(|dependency| dependency["kind"].is_null())
        .map(|dependency| text(&dependency["name"]))
        .filter(|name| !CORE.contains(name))
        .map(|name| format!("tidegate-core depends on {name}: see deps.rs"))
        .collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, version: &str, licence: &str, dependencies: &[&str]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|name| json!({ "name": name, "kind": null })).collect();
        json!({ "id": format!("{name}@{version}"), "name": name, "version": version,
                "license": licence, "dependencies": dependencies })
    }

    fn metadata(packages: &[Value]) -> Value {
        let nodes: Vec<_> = packages.iter().map(|p| json!({ "id": p["id"] })).collect();
        json!({ "packages": packages, "resolve": { "nodes": nodes } })
    }

    #[test]
    fn what_is_fine_passes() {
        let core = package("tidegate-core", "0.1.0", "MIT OR Apache-2.0", &["serde"]);
        let used = package("serde", "1.0.0", "MIT", &["anything"]);
        assert_eq!(problems(&metadata(&[core, used]), &[]), Vec::<String>::new());
    }

    #[test]
    fn licences_duplicates_and_a_growing_core_are_found() {
        let found = problems(
            &metadata(&[
                package("tidegate-core", "0.1.0", "MIT", &["serde", "rand"]),
                package("serde", "1.0.0", "MIT", &[]),
                package("serde", "2.0.0", "MIT", &[]),
                package("rand", "1.0.0", "GPL-3.0", &[]),
                json!({ "id": "nameless", "name": "unlicensed", "version": "1.0.0" }),
            ]),
            &[],
        );
        for part in ["depends on rand", "rand has the licence", "serde comes as 1.0.0 and 2.0.0"] {
            assert!(found.iter().any(|line| line.contains(part)), "{part}: {found:?}");
        }
        assert!(found.iter().any(|line| line.contains("unlicensed has the licence")));
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn no_answer_is_a_problem_too() {
        assert_eq!(problems(&json!({}), &[]).len(), 1);
        let stale = [("gone", "no reason")];
        assert_eq!(problems(&json!({}), &stale).len(), 2);
    }
}
