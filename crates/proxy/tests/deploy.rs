//! What operators copy from `deploy/` and read in the book speaks of metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use tidegate_proxy::File;
use tidegate_proxy::reference::{metrics, table};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Series there are, and the labels of each.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let series = metrics().into_iter().flat_map(|metric| {
        let labels: BTreeSet<String> = metric.labels.into_iter().collect();
        let ends: &[&str] = match metric.kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        let with_bound = |end: &str| {
            let bound = (end == "_bucket").then(|| "le".to_owned());
            labels.iter().cloned().chain(bound).collect()
        };
        let name = metric.name;
        ends.iter().map(|end| (format!("{name}{end}"), with_bound(end))).collect::<Vec<_>>()
    });
    series.collect()
}

/// Labels that Prometheus adds to everything.
const GIVEN: [&str; 2] = ["instance", "job"];

/// Words of PromQL that are used: what is neither one of these, nor a series, nor a label is a slip.
const WORDS: [&str; 11] = [
    "sum",
    "min",
    "max",
    "rate",
    "increase",
    "histogram_quantile",
    "by",
    "on",
    "and",
    "or",
    "unless",
];

/// What is wrong with an expression of PromQL, as far as such expressions go here: words, brackets, labels,
/// and that counters, and only they, are asked for a rate.
fn problems(expression: &str) -> Vec<String> {
    let (known, mut found, mut open) = (known(), Vec::new(), Vec::new());
    let (mut rest, mut last) = (expression, String::new());
    // Labels that may be spoken of: those of all series in it, or of the last one within braces.
    let all: BTreeSet<&String> = known
        .iter()
        .filter(|(name, _)| expression.contains(name.as_str()))
        .flat_map(|(_, l)| l)
        .collect();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if first == '"' {
            rest = rest[1..].split_once('"').map_or("", |(_, after)| after);
            continue;
        }
        if first == '[' {
            let (range, after) = rest[1..].split_once(']').unwrap_or(("", ""));
            let fine = range == "$__rate_interval" || range.ends_with('m') || range.ends_with('h');
            let counts =
                ["_total", "_bucket", "_sum", "_count"].iter().any(|end| last.ends_with(end));
            if !fine || !counts {
                found.push(format!("{last}[{range}]"));
            }
            rest = after;
            continue;
        }
        if !is_word(first) {
            match first {
                '(' | '{' => open.push(first),
                ')' | '}' if open.pop() != Some(if first == ')' { '(' } else { '{' }) => {
                    found.push(format!("a {first} too many"));
                }
                _ => {}
            }
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        rest = &rest[end..];
        let label = word.to_owned();
        let fits = match open.last() {
            Some('{') => {
                GIVEN.contains(&word)
                    || known.get(&last).is_some_and(|labels| labels.contains(&label))
            }
            _ if word.chars().all(|c| c.is_ascii_digit()) || WORDS.contains(&word) => true,
            _ if known.contains_key(word) => {
                word.clone_into(&mut last);
                true
            }
            _ => GIVEN.contains(&word) || all.contains(&label),
        };
        if !fits {
            found.push(format!("{word} is unknown"));
        }
    }
    if !open.is_empty() {
        found.push(format!("{open:?} is not closed"));
    }
    found
}

#[test]
fn slips_in_expressions_are_found() {
    for (fine, slip) in [
        (
            "sum by (band) (rate(tidegate_refused_total[2m]))",
            "sum by (brand) (rate(tidegate_refused_total[2m]))",
        ),
        (
            "rate(tidegate_refused_total{band=\"x\"}[2m]) > 1",
            "rate(tidegate_refused_total{kind=\"x\"}[2m]) > 1",
        ),
        ("tidegate_slots > 1", "tidegate_slot > 1"),
        ("tidegate_slots > 1", "rate(tidegate_slots[2m]) > 1"),
        ("increase(tidegate_reloads_total[1h])", "increase(tidegate_reloads_total[1h]"),
        ("increase(tidegate_reloads_total[1h])", "icnrease(tidegate_reloads_total[1h])"),
    ] {
        assert_eq!(problems(fine), Vec::<String>::new());
        assert!(!problems(slip).is_empty(), "{slip}");
    }
}

/// By Prometheus' own tool where it is installed, and always by our own reading.
#[test]
fn alerts_ask_for_what_exists() {
    let alerts = text("deploy/alerts.yaml");
    let expressions: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert_eq!(expressions.len(), alerts.matches("- alert: ").count(), "one for each alert");
    for expression in expressions {
        assert_eq!(problems(expression), Vec::<String>::new(), "{expression}");
    }
    match Command::new("promtool").args(["check", "rules"]).arg(path("deploy/alerts.yaml")).output()
    {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(_) => eprintln!("skipped: promtool is not installed"),
    }
}

#[test]
fn the_dashboard_asks_in_every_panel_for_what_exists() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&text("deploy/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() > 8);
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().expect("a query");
            assert_eq!(problems(expression), Vec::<String>::new(), "{expression}");
        }
    }
}

/// The book's table is the one the code makes. `TIDEGATE_WRITE=1` writes it anew.
#[test]
fn the_reference_of_metrics_is_up_to_date() {
    const BEGIN: &str = "<!-- made from the code -->\n";
    let (page, table) = (text("docs/metrics.md"), table());
    let (before, written) = page.split_once(BEGIN).expect("a place for the table");
    if env::var_os("TIDEGATE_WRITE").is_some() {
        fs::write(path("docs/metrics.md"), format!("{before}{BEGIN}{table}")).expect("writable");
        return;
    }
    assert_eq!(written, table, "TIDEGATE_WRITE=1 cargo test -p tidegate-proxy --test deploy");
}

/// The configuration inside the Kubernetes file is one that a sidecar takes.
#[test]
fn the_configuration_for_kubernetes_is_valid() {
    let yaml = text("deploy/kubernetes.yaml");
    let (_, rest) = yaml.split_once("tidegate.toml: |\n").expect("a configuration");
    let block: String = rest
        .lines()
        .take_while(|line| line.starts_with("    ") || line.is_empty())
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    let file = File::parse(&block).unwrap_or_else(|error| panic!("{error}\n{block}"));
    assert_eq!(file.proxy.upstreams.len(), 1);
    assert_eq!(file.proxy.enforce.get(), 0);
}

/// Flags that the unit and the Kubernetes file use are those of `tidegate proxy`.
#[test]
fn the_unit_starts_the_sidecar() {
    let unit = text("deploy/tidegate.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/tidegate proxy --config "));
    assert!(unit.contains("ExecReload=/bin/kill -HUP $MAINPID"));
    let unit = text("deploy/tidegate-control.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/tidegate control --config "));
    assert!(
        unit.contains("--store file:/var/lib/tidegate/")
            && unit.contains("StateDirectory=tidegate")
    );
}
