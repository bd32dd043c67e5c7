//! What operators copy from `deploy/` and read in the book speaks of metrics that exist.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use tidegate_proxy::File;
use tidegate_proxy::reference::{metrics, table};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Everything in a text that looks like a metric of ours.
fn mentioned(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    text.split(|c| !word(c))
        .filter(|part| part.starts_with("tidegate_"))
        .map(str::to_owned)
        .collect()
}

fn known() -> BTreeSet<String> {
    let series = metrics().into_iter().flat_map(|metric| match metric.kind.as_str() {
        "histogram" => {
            ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name)).to_vec()
        }
        _ => vec![metric.name],
    });
    series.collect()
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_exist() {
    for name in ["deploy/alerts.yaml", "deploy/grafana.json"] {
        let mentioned = mentioned(&text(name));
        assert!(mentioned.len() > 5, "{name} speaks of {mentioned:?}");
        let unknown: Vec<_> = mentioned.difference(&known()).cloned().collect();
        assert_eq!(unknown, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_dashboard_is_json_with_a_query_in_every_panel() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&text("deploy/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() > 8);
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().expect("a query");
            let open = expression.matches('(').count();
            assert_eq!(open, expression.matches(')').count(), "{expression}");
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
}
