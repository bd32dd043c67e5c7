//! What the service says its answers cost is what limits charge, and a cheaper answer is asked for where the gate wants
//! one.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use support::{Sidecar, Upstream, ok};

/// Nothing is left after one request, unless it is given back.
const LITTLE: &str =
    "[[gate.limits]]\nlimit = 'rate'\nrate = 0.00001\nburst = 0.001\nunit = 'cpu-seconds'\n";

/// An answer with this header, or this trailer.
fn saying(header: &str, trailer: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\n{header}transfer-encoding: chunked\r\n\r\n6\r\nserved\r\n0\r\n{trailer}\r\n"
    )
}

/// However long it takes: what it has cost is what it says.
#[test]
fn a_request_is_charged_what_its_answer_says_it_cost() {
    for (config, free, dear) in [
        ("cost_header = 'x-cpu'", "x-cpu: 0\r\n", "x-cpu: 50\r\n"),
        (
            "cost_metric = 'cpu'",
            "endpoint-load-metrics: TEXT request_cost.cpu=0\r\n",
            "endpoint-load-metrics: JSON {\"request_cost\": {\"cpu\": 50}}\r\n",
        ),
    ] {
        for in_trailers in [false, true] {
            for (said, second) in [(free, 200), (dear, 429)] {
                let answer = match in_trailers {
                    false => saying(said, ""),
                    true => saying("", said),
                };
                let upstream = Upstream::start(move |_| answer.clone());
                let text = format!("[proxy]\n{config}\n{LITTLE}");
                let sidecar = Sidecar::start(&text, &[upstream.address]);
                let mut client = sidecar.client();
                assert_eq!(client.get("/", "").status(), 200);
                sidecar.wait_until_empty();
                assert_eq!(client.get("/", "").status(), second, "{said:?} {in_trailers}");
            }
        }
    }
}

/// It was once asked of the gate alone, and no service heard of it.
#[test]
fn a_degraded_request_tells_its_service() {
    let upstream =
        Upstream::start(|request| ok(request.header("overload-degrade").unwrap_or("no")));
    let claim = "overload-degrade: ?1\r\n";
    for (trust, delay, claimed, heard) in [
        ("edge", "1h", "", "no"),
        ("edge", "0s", "", "?1"),
        ("edge", "1h", claim, "no"),
        ("inside", "1h", claim, "?1"),
    ] {
        let text = format!("[proxy]\ntrust = '{trust}'\n[gate]\ndegrade_delay = '{delay}'\n");
        let sidecar = Sidecar::start(&text, &[upstream.address]);
        assert_eq!(sidecar.client().get("/", claimed).text(), heard, "{trust} {delay} {claimed}");
    }
}
