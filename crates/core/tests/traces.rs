//! The traces of `testdata/traces`, through the bare gate.

use std::path::Path;

use tidegate_core::testing::Trace;

#[test]
fn the_bare_gate_plays_every_trace() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "traces are missing from {}", folder.display());
    for file in files {
        check(&file);
    }
}

fn check(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let trace = Trace::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for (arrival, ending) in trace.arrivals.iter().zip(trace.play()) {
        let seen = ending.map_or("nothing".to_owned(), |ending| ending.to_string());
        assert_eq!(
            seen,
            arrival.expected.to_string(),
            "{}: request {}",
            file.display(),
            arrival.name
        );
    }
}

#[test]
fn a_bad_trace_names_the_line() {
    for (text, line) in [
        ("queue_limit = 1", 1),
        ("queue_limit = 0\n---\n", 1),
        ("queue_limit = 1\n---\n# fine\n0us a 1us 0 - - -> serve 0us\n", 4),
        ("queue_limit = 1\n---\n0us a 1us 0,0 - - -> vanish 0us\n", 3),
    ] {
        assert_eq!(Trace::parse(text).unwrap_err().line, line, "{text}");
    }
}
