//! Sidecars in a row: whose a call is, and what comes back up.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use support::{Barrier, Client, Reply, Sidecar, Upstream, Workers, ok};
use tidegate_proxy::Source;

/// However slow the machine is that runs this, nothing is refused.
const OPEN: &str = "[gate.admission]\npolicy = 'open'\n";

/// A service behind a sidecar that calls another one for each request, by the sidecar, and answers what it
/// is answered. Of the request it copies some fields, and knows nothing else of us.
struct Hop {
    sidecar: Sidecar,
    _service: Upstream,
}

impl Hop {
    fn start(proxy: &str, rest: &str, next: &[SocketAddr], copied: &[&'static str]) -> Self {
        let out = Arc::new(OnceLock::new());
        let (known, copied) = (Arc::clone(&out), copied.to_vec());
        let service = Upstream::start(move |request| {
            let kept: String = copied
                .iter()
                .filter_map(|name| Some(format!("{name}: {}\r\n", request.header(name)?)))
                .collect();
            let path = request.first.split(' ').nth(1).unwrap_or("/");
            let answer = Client::connect(*known.get().expect("it has started")).get(path, &kept);
            plain(&answer)
        });
        let sidecar = start(proxy, rest, service.address, next);
        out.set(sidecar.handle.egress("next").expect("it is there")).expect("once");
        Self { sidecar, _service: service }
    }

    fn listen(&self) -> SocketAddr {
        self.sidecar.handle.listen()
    }

    fn egress(&self) -> serde_json::Value {
        self.sidecar.state()["egress"][0].clone()
    }
}

/// A sidecar with a way out to `next`; `proxy` is of its first block, `rest` comes behind the way out's.
fn start(proxy: &str, rest: &str, service: SocketAddr, next: &[SocketAddr]) -> Sidecar {
    let next: Vec<String> = next.iter().map(|next| format!("'http://{next}'")).collect();
    let next = next.join(", ");
    let config = format!(
        "[proxy]\nthreads = 2\n{proxy}\n[[proxy.egress]]\nname = 'next'\n\
         listen = '127.0.0.1:0'\nupstreams = [{next}]\n{rest}"
    );
    Sidecar::start(&config, &[service])
}

/// The status and text of an answer and nothing else, as a service has it that knows nothing of us.
fn plain(answer: &Reply) -> String {
    let (status, text) = (answer.status(), answer.text());
    format!("HTTP/1.1 {status} So\r\ncontent-length: {}\r\n\r\n{text}", text.len())
}

/// The end of a graph: remembers what it was asked.
fn leaf() -> (Arc<Mutex<Vec<Reply>>>, Upstream) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&asked);
    let upstream = Upstream::start(move |request| {
        list.lock().unwrap().push(request);
        ok("leaf")
    });
    (asked, upstream)
}

const CONTEXT: &str = "overload-context: r=(7 3), w=\"shop\", d=20000, a=1\r\n";

/// What a context says of rank and workflow, and the milliseconds that are left.
fn told(request: &Reply) -> (String, Option<f64>) {
    let context = request.header("overload-context").expect("a context");
    let of = |key: &str| {
        let mut parts = context.split(", ");
        parts.find_map(|part| part.strip_prefix(key)).map(str::to_owned)
    };
    let left = of("d=").map(|left| left.parse().expect("milliseconds"));
    let parts = ["r=", "w=", "a="].map(|key| of(key).unwrap_or_default());
    (parts.join(" "), left)
}

#[test]
fn a_call_has_rank_workflow_attempt_and_what_is_left_of_the_time_by_whatever_is_copied() {
    for (field, copied) in [
        ("overload-context", &["overload-context"][..]),
        ("traceparent", &["traceparent"]),
        ("x-request-id", &["x-request-id"]),
        ("traceparent", &["x-request-id", "traceparent"]),
    ] {
        let (asked, leaf) = leaf();
        // Two hops: ids that a request lacks are made at each.
        let second = Hop::start("trust = 'inside'", OPEN, &[leaf.address], copied);
        let first = Hop::start("trust = 'inside'", OPEN, &[second.listen()], copied);
        let reply = Client::connect(first.listen()).get("/", CONTEXT);
        assert_eq!((reply.status(), reply.text().as_str()), (200, "leaf"));
        let asked = asked.lock().unwrap();
        let (said, left) = told(&asked[0]);
        assert_eq!(said, "(7 3) \"shop\" 1", "{field}");
        assert!(left.is_some_and(|left| left < 20_000.0), "{left:?}: time has passed");
        for hop in [first, second] {
            assert_eq!(hop.egress()["matched"][field], 1, "{}", hop.egress());
            assert_eq!(hop.egress()["unranked"], 0);
            hop.sidecar.wait_for("nothing inside", |state| state["inside"] == 0);
        }
    }
}

#[test]
fn a_service_that_copies_nothing_works_and_is_counted() {
    let (asked, leaf) = leaf();
    let hop = Hop::start("trust = 'inside'", OPEN, &[leaf.address], &[]);
    let mut client = Client::connect(hop.listen());
    for _ in 0..3 {
        assert_eq!(client.get("/", CONTEXT).status(), 200);
    }
    assert_eq!(hop.egress()["unranked"], 3);
    let (said, left) = told(&asked.lock().unwrap()[0]);
    assert!(said.starts_with("(24 ") && left.is_none(), "{said} {left:?}");
}

/// Whoever guesses or learns the trace of an important request gets neither its rank nor in its way.
#[test]
fn at_an_edge_a_strangers_ids_are_replaced() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let ids = format!("traceparent: {trace}\r\ntracestate: a=b\r\nx-request-id: mine\r\n");
    let trace_of = |request: &Reply| request.header("traceparent").unwrap()[3..35].to_owned();
    for (proxy, kept) in [
        ("trust = 'edge'", false),
        ("trust = 'edge'\ntrust_traces = true", true),
        ("trust = 'inside'", true),
    ] {
        let (asked, leaf) = leaf();
        let copied = ["traceparent", "tracestate", "x-request-id"];
        let hop = Hop::start(proxy, OPEN, &[leaf.address], &copied);
        assert_eq!(Client::connect(hop.listen()).get("/", &ids).status(), 200);
        assert_eq!(hop.egress()["matched"]["traceparent"], 1);
        let asked = asked.lock().unwrap();
        assert_eq!(trace_of(&asked[0]) == trace[3..35], kept, "{proxy}");
        assert_eq!(asked[0].header("tracestate").is_some(), kept);
        assert_eq!(asked[0].header("x-request-id") == Some("mine"), kept);
    }
}

/// Of requests that share an id the least important counts, while it is inside, and afterwards no more.
#[test]
fn who_shares_a_trace_has_the_least_rank_of_all_that_have_it() {
    let (asked, leaf) = leaf();
    let barrier = Barrier::default();
    let (held, out) = (barrier.clone(), Arc::new(OnceLock::<SocketAddr>::new()));
    let known = Arc::clone(&out);
    let service = Upstream::start(move |request| {
        if request.first.contains("/slow") {
            held.pass();
        } else {
            let trace = format!("traceparent: {}\r\n", request.header("traceparent").unwrap());
            Client::connect(*known.get().unwrap()).get("/", &trace);
        }
        ok("served")
    });
    let rest = format!("{OPEN}[gate.slots]\nslots = 'fixed'\ncount = 2000\n");
    let sidecar = start("trust = 'inside'", &rest, service.address, &[leaf.address]);
    out.set(sidecar.handle.egress("next").unwrap()).unwrap();
    let ask = |path: &str, rank: &str| {
        let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
        let mut client = sidecar.client();
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\noverload-context: r=({rank})\r\n");
        client.send(&format!("{head}{trace}\r\n"));
        client
    };
    assert_eq!(ask("/", "3 1").reply().status(), 200);
    let mut slow: Vec<_> = (0..200).map(|n| ask("/slow", &format!("{} 1", 10 + n % 50))).collect();
    sidecar.wait_for("all of them inside", |state| state["inside"] == 200);
    assert_eq!(ask("/", "3 1").reply().status(), 200);
    barrier.open();
    slow.iter_mut().for_each(|client| assert_eq!(client.reply().status(), 200));
    sidecar.wait_for("nobody inside", |state| state["inside"] == 0);
    assert_eq!(ask("/", "3 1").reply().status(), 200);
    let ranks: Vec<_> = asked.lock().unwrap().iter().map(|it| told(it).0).collect();
    assert_eq!(ranks, ["(3 1)  ", "(59 1)  ", "(3 1)  "]);
}

/// As it was before there was a way out.
#[test]
fn without_a_way_out_requests_pass_as_they_came() {
    let (asked, leaf) = leaf();
    let sidecar = Sidecar::start(&format!("[proxy]\n{OPEN}"), &[leaf.address]);
    assert_eq!(sidecar.client().get("/", "").status(), 200);
    assert_eq!(sidecar.client().get("/", "x-request-id: a\r\n").status(), 200);
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|request| request.header("traceparent").is_none()), "{asked:?}");
    assert_eq!(asked[0].header("x-request-id"), None);
    assert_eq!(asked[1].header("x-request-id"), Some("a"));
    assert_eq!(sidecar.state().get("egress"), None);
    assert!(!sidecar.admin("/metrics").text().contains("egress"));
}

/// A replica that refuses with the words of a gate, and how often it was asked.
fn refusing(then: &'static str, field: &'static str) -> (Arc<Mutex<Vec<Reply>>>, Upstream) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&asked);
    let upstream = Upstream::start(move |request| {
        list.lock().unwrap().push(request);
        format!(
            "HTTP/1.1 503 Full\r\n{field}: v=1, i=\"2\", why=full, then={then}\r\n\
             content-length: 5\r\n\r\nfull\n"
        )
    });
    (asked, upstream)
}

/// Sends straight to the way out, as the service does.
fn call(sidecar: &Sidecar, request: &str) -> Reply {
    let mut client = Client::connect(sidecar.handle.egress("next").unwrap());
    client.send(request);
    client.reply()
}

fn get() -> String {
    "GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()
}

fn post(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn what_one_replica_refused_another_serves_at_once_with_its_body() {
    let (refused, full) = refusing("elsewhere", "overload-feedback");
    let (served, idle) = leaf();
    let next = [full.address, idle.address];
    let retry = "[proxy.egress.caller.retry]\nattempts = 3\nshare = 1.0\n";
    let sidecar = start("", &format!("{retry}{OPEN}"), idle.address, &next);
    for n in 0..40 {
        let body = format!("order {n}");
        for request in [get(), post(&body)] {
            assert_eq!(call(&sidecar, &request).status(), 200, "{n}");
        }
        assert_eq!(served.lock().unwrap().last().unwrap().text(), body);
    }
    let retries = refused.lock().unwrap().len();
    assert!(retries > 0, "the full one was never asked");
    let egress = sidecar.state()["egress"][0].clone();
    assert_eq!(egress["retries"], retries, "{egress}");
    assert_eq!(egress["refused"], 0);
    let attempts = served.lock().unwrap().iter().filter(|it| told(it).0.ends_with(" 1")).count();
    assert_eq!(attempts, retries, "a second attempt says that it is one");
}

/// Its service may have kept it, and is told so.
#[test]
fn what_is_too_long_to_be_kept_is_sent_once() {
    let (refused, full) = refusing("elsewhere", "overload-feedback");
    let (again, other) = refusing("elsewhere", "overload-feedback");
    let next = [full.address, other.address];
    let sidecar = start("", &format!("keep_body = 10\n{OPEN}"), full.address, &next);
    for (body, sent) in [("ten bytes.", 3), ("eleven byte", 1)] {
        let asked = || refused.lock().unwrap().len() + again.lock().unwrap().len();
        let before = asked();
        let reply = call(&sidecar, &post(body));
        let word = reply.header("overload-feedback").unwrap();
        let then = if sent == 1 { "elsewhere" } else { "never" };
        assert_eq!((asked() - before, word), (sent, &*format!("why=full, then={then}")), "{body}");
    }
}

#[test]
fn nothing_else_is_sent_twice() {
    for (then, field) in
        [("never", "overload-feedback"), ("later", "overload-feedback"), ("elsewhere", "x-other")]
    {
        let (refused, one) = refusing(then, field);
        let (again, two) = refusing(then, field);
        let sidecar = start("", OPEN, one.address, &[one.address, two.address]);
        for request in [get(), post("an order"), get(), post("an order")] {
            let reply = call(&sidecar, &request);
            assert_eq!((reply.status(), reply.text().as_str()), (503, "full\n"));
        }
        let asked = refused.lock().unwrap().len() + again.lock().unwrap().len();
        assert_eq!(asked, 4, "{then} {field}");
        let egress = sidecar.state()["egress"][0].clone();
        assert_eq!((egress["retries"].clone(), egress["refused"].clone()), (0.into(), 4.into()));
    }
}

#[test]
fn a_budget_that_is_spent_says_never() {
    let (one, two) =
        (refusing("elsewhere", "overload-feedback"), refusing("elsewhere", "overload-feedback"));
    let retry = "[proxy.egress.caller.retry]\nshare = 0.0\nreserve = 3\n";
    let next = [one.1.address, two.1.address];
    let sidecar = start("", &format!("{retry}{OPEN}"), one.1.address, &next);
    let words: Vec<_> = (0..6)
        .map(|_| call(&sidecar, &get()).header("overload-feedback").unwrap().to_owned())
        .collect();
    assert_eq!(words, ["why=full, then=never"; 6]);
    let asked = one.0.lock().unwrap().len() + two.0.lock().unwrap().len();
    assert_eq!(asked, 6 + 3, "each once, and three retries in all");
}

/// A service that answers 500 because it was refused says nothing of it; its sidecar does.
#[test]
fn dont_retry_goes_up_three_hops_without_a_word_of_the_services() {
    let (asked, full) = refusing("never", "overload-feedback");
    let inside = "trust = 'inside'";
    let third = Hop::start(inside, OPEN, &[full.address], &["traceparent"]);
    let second = Hop::start(inside, OPEN, &[third.listen()], &["traceparent"]);
    let first = Hop::start(inside, OPEN, &[second.listen(), second.listen()], &["traceparent"]);
    let reply = Client::connect(first.listen()).get("/", CONTEXT);
    assert_eq!(reply.status(), 503);
    let word = reply.header("overload-feedback").expect("a word");
    assert!(word.contains("why=full, then=never"), "{word}");
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[test]
fn a_process_that_is_killed_costs_its_own_calls_and_leaves_nothing_behind() {
    let (_, leaf) = leaf();
    let second = Hop::start("trust = 'inside'", OPEN, &[leaf.address], &["traceparent"]);
    let first = Hop::start("trust = 'inside'", OPEN, &[second.listen()], &["traceparent"]);
    let mut client = Client::connect(first.listen());
    assert_eq!(client.get("/", CONTEXT).status(), 200);
    drop(second);
    for _ in 0..3 {
        assert_eq!(client.get("/", CONTEXT).status(), 502);
    }
    assert!(first.egress()["failures"]["connect"].as_u64() >= Some(1), "{}", first.egress());
    first.sidecar.wait_until_empty();
    first.sidecar.wait_for("nobody inside", |state| state["inside"] == 0);
}

/// A service whose gate always says the same.
fn saying(feedback: &'static str) -> (Arc<Mutex<Vec<Reply>>>, Upstream) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&asked);
    let upstream = Upstream::start(move |request| {
        let mut list = list.lock().unwrap();
        list.push(request);
        let sequence = list.len();
        format!(
            "HTTP/1.1 200 OK\r\noverload-feedback: i=\"9\", v={sequence}, {feedback}\r\n\
             content-length: 4\r\n\r\nleaf"
        )
    });
    (asked, upstream)
}

/// Refusals of a sidecar for this reason.
fn refused(state: &serde_json::Value, reason: &str) -> u64 {
    let bands = state["refused"].as_object().expect("bands");
    bands.values().filter_map(|band| band[reason].as_u64()).sum()
}

#[test]
fn a_request_that_will_be_refused_three_hops_down_is_refused_at_the_entry() {
    let (asked, third) = saying("l=(20 65535), x=60000");
    // Each speaks for those before it.
    let inside = "trust = 'inside'\ngateways = ['127.0.0.0/8']";
    let second = Hop::start(inside, OPEN, &[third.address], &["traceparent"]);
    let first = Hop::start(inside, OPEN, &[second.listen()], &["traceparent"]);
    let mut client = Client::connect(first.listen());
    let mut ask = |rank: u8, workflow: &str| {
        client.get("/", &format!("overload-context: r=({rank} 1), w=\"{workflow}\"\r\n")).status()
    };
    // The first is told below; from then on it is known above.
    assert_eq!(ask(40, "shop"), 200);
    assert_eq!(ask(40, "shop"), 503);
    assert_eq!(ask(10, "shop"), 200);
    assert_eq!(ask(40, "mail"), 200, "nobody knows whether it goes there");
    assert_eq!(asked.lock().unwrap().len(), 3);
    assert_eq!(refused(&first.sidecar.state(), "downstream"), 1);
    assert_eq!(refused(&second.sidecar.state(), "downstream"), 0);
    // What was refused in its name is reported with the next call.
    let told = second_context(&asked.lock().unwrap());
    assert!(told.contains("s=("), "{told}");
}

fn second_context(asked: &[Reply]) -> String {
    asked[1].header("overload-context").expect("a context").to_owned()
}

/// The third process has one worker, and all three divide what there is by workflow. Nobody between
/// knows anything but its neighbours.
#[test]
fn rates_go_up_three_processes_until_the_entry_refuses_what_the_third_cannot_do() {
    let rates = "[gate.admission]\npolicy = 'open'\n[gate.workflow]\nhold = '20ms'\n\
                 [gate.slots]\nslots = 'fixed'\ncount = 64\n";
    let narrow = rates.replace("count = 64", "count = 1");
    let workers = Workers::new(1);
    let worker = workers.clone();
    let service = Upstream::start(move |_| {
        worker.work(Duration::from_millis(10));
        ok("done")
    });
    let inside = "trust = 'inside'";
    let third =
        Sidecar::start(&format!("[proxy]\nthreads = 1\n{inside}\n{narrow}"), &[service.address]);
    let second = Hop::start(inside, rates, &[third.handle.listen()], &["traceparent"]);
    let first = Hop::start(inside, rates, &[second.listen()], &["traceparent"]);
    let (entry, over) = (first.listen(), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let mut client = Client::connect(entry);
                while !over.load(Ordering::SeqCst) {
                    client.get("/", "overload-context: w=\"shop\", c=\"web\"\r\n");
                }
            })
        })
        .collect();
    first.sidecar.wait_for("refusals by rate at the entry", |state| {
        refused(state, "rate") + refused(state, "infeasible") >= 20
    });
    over.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().expect("no panic"));
}

/// What the second process did for a request, without what it waited for the third, comes back with the answer.
#[test]
fn progress_adds_up_on_the_way_back() {
    let (asked, third) = saying("e=7000000, k=9000000");
    let hop = Hop::start("trust = 'inside'", OPEN, &[third.address], &["traceparent"]);
    let reply = Client::connect(hop.listen()).get("/", CONTEXT);
    let word = reply.header("overload-feedback").expect("a word").to_owned();
    let of = |key: &str| -> u64 {
        let part = word.split(", ").find_map(|part| part.strip_prefix(key));
        part.unwrap_or_else(|| panic!("{key} in {word}")).parse().expect("microseconds")
    };
    // Seven seconds were told below; how long this process itself took is between nothing and the patience of tests.
    let longest = u64::try_from(support::PATIENCE.as_micros()).unwrap();
    assert!((7_000_001..7_000_000 + longest).contains(&of("e=")), "{word}");
    assert!((9_000_001..9_000_000 + longest).contains(&of("k=")), "{word}");
    let context = asked.lock().unwrap()[0].header("overload-context").unwrap().to_owned();
    assert!(context.contains("e="), "how far it has come goes along: {context}");
}

/// Whatever decides at the callee and whatever holds back at the caller: each request gets one answer, something
/// is served, and nothing is left over.
#[test]
fn every_admission_goes_with_every_throttle() {
    let admissions = [
        "policy = 'tide'\nobjective = '20ms'",
        "policy = 'breakwater'",
        "policy = 'dagor'",
        "policy = 'codel'",
        "policy = 'seda'",
        "policy = 'open'",
    ];
    let throttles =
        ["open", "credit", "cursor", "adaptive", "seda", "window", "rate\nrate = 200.0"];
    for (n, admission) in admissions.iter().enumerate() {
        let workers = Workers::new(1);
        let worker = workers.clone();
        let service = Upstream::start(move |_| {
            worker.work(Duration::from_millis(2));
            ok("done")
        });
        let gate = format!(
            "[gate.slots]\nslots = 'fixed'\ncount = 2\n[gate]\nqueue_limit = 4\n\
             [gate.admission]\n{admission}\n"
        );
        let config = format!("[proxy]\nthreads = 1\ntrust = 'inside'\n{gate}");
        let callee = Sidecar::start(&config, &[service.address]);
        for (m, throttle) in throttles.iter().enumerate() {
            let (kind, rest) = throttle.split_once('\n').unwrap_or((throttle, ""));
            let rest = format!(
                "[proxy.egress.caller]\nhold_time = '10ms'\n[proxy.egress.caller.throttle]\nthrottle = '{kind}'\n{rest}\n{OPEN}"
            );
            let next = [callee.handle.listen()];
            let caller = Hop::start("trust = 'inside'", &rest, &next, &["traceparent"]);
            let entry = caller.listen();
            let clients = (0..6).map(|client| {
                thread::spawn(move || {
                    let mut connection = Client::connect(entry);
                    let rank = format!("overload-context: r=({} {m}), d=5000\r\n", client * 10 + n);
                    (0..6).map(|_| connection.get("/", &rank).status()).collect::<Vec<_>>()
                })
            });
            let statuses: Vec<u16> = clients
                .collect::<Vec<_>>()
                .into_iter()
                .flat_map(|client| client.join().expect("no panic"))
                .collect();
            let pair = format!("{admission} and {kind}: {statuses:?}");
            assert_eq!(statuses.len(), 36);
            assert!(statuses.iter().all(|it| matches!(it, 200 | 429 | 503 | 504)), "{pair}");
            assert!(statuses.contains(&200), "{pair}");
            caller.sidecar.wait_until_empty();
            caller.sidecar.wait_for("nobody inside", |state| state["inside"] == 0);
            let egress = caller.egress();
            assert_eq!(egress["matched"]["traceparent"], 36, "{pair}");
        }
        callee.wait_until_empty();
    }
}

/// A process that is told to end takes no more requests, but calls of those inside still go out.
#[test]
fn what_is_inside_makes_its_calls_to_the_end() {
    let (asked, leaf) = leaf();
    let (barrier, out) = (Barrier::default(), Arc::new(OnceLock::<SocketAddr>::new()));
    let (held, known) = (barrier.clone(), Arc::clone(&out));
    let service = Upstream::start(move |request| {
        held.pass();
        let trace = format!("traceparent: {}\r\n", request.header("traceparent").unwrap());
        plain(&Client::connect(*known.get().unwrap()).get("/", &trace))
    });
    let sidecar = start("trust = 'inside'", OPEN, service.address, &[leaf.address]);
    out.set(sidecar.handle.egress("next").unwrap()).unwrap();
    let mut client = sidecar.client();
    client.send(&format!("GET / HTTP/1.1\r\nhost: a\r\n{CONTEXT}\r\n"));
    sidecar.wait_for("the request inside", |state| state["inside"] == 1);
    sidecar.handle.stop();
    sidecar.wait_for("the end to begin", |state| state["draining"] == true);
    barrier.open();
    assert_eq!(
        (client.reply().status(), told(&asked.lock().unwrap()[0]).0),
        (200, "(7 3) \"shop\" 1".to_owned())
    );
    sidecar.ended();
}

#[test]
fn a_reload_changes_what_is_called_but_no_listener() {
    let ((one, old), (two, new)) = (leaf(), leaf());
    let text = |name: &str, next: SocketAddr| {
        format!(
            "[proxy]\n[[proxy.egress]]\nname = '{name}'\nlisten = '127.0.0.1:0'\n\
             upstreams = ['http://{next}']\n{OPEN}"
        )
    };
    let next = Arc::new(Mutex::new(text("next", old.address)));
    let (read, service) = (Arc::clone(&next), old.address);
    let source = Source::new(move || Ok(support::file(&read.lock().unwrap(), &[service])));
    let file = support::file(&text("next", old.address), &[service]);
    let sidecar = Sidecar::with_source(file, Some(source));
    assert_eq!(call(&sidecar, &get()).status(), 200);
    *next.lock().unwrap() = text("next", new.address);
    sidecar.handle.reload().expect("it is right");
    assert_eq!(call(&sidecar, &get()).status(), 200);
    assert_eq!((one.lock().unwrap().len(), two.lock().unwrap().len()), (1, 1));
    // Another name is another listener, which needs a restart.
    *next.lock().unwrap() = text("other", old.address);
    sidecar.handle.reload().expect("it is right");
    assert_eq!(call(&sidecar, &get()).status(), 200);
    assert_eq!((one.lock().unwrap().len(), two.lock().unwrap().len()), (1, 2));
}

/// The time that is left is told in the words that others understand.
#[test]
fn deadlines_travel_in_all_words_and_only_grow_shorter() {
    let (asked, leaf) = leaf();
    let rest = format!("deadline_header = 'x-left-ms'\n{OPEN}");
    let copied = ["traceparent", "x-envoy-expected-rq-timeout-ms", "content-type", "grpc-timeout"];
    let hop = Hop::start("trust = 'inside'", &rest, &[leaf.address], &copied);
    let mut client = Client::connect(hop.listen());
    for (own, left) in [
        ("", 20_000.0),
        ("x-envoy-expected-rq-timeout-ms: 9000\r\n", 9_000.0),
        ("x-envoy-expected-rq-timeout-ms: 90000\r\n", 20_000.0),
        ("content-type: application/grpc\r\ngrpc-timeout: 7S\r\n", 7_000.0),
    ] {
        client.get("/", &format!("{CONTEXT}{own}"));
        let asked = asked.lock().unwrap();
        let request = asked.last().unwrap();
        let told = told(request).1.expect("a deadline");
        assert!(told < left && told > left - 5_000.0, "{told} of {left}");
        let millis = |name: &str| -> Option<f64> { request.header(name)?.parse().ok() };
        assert_eq!(millis("x-left-ms"), Some(told.floor()), "{own}");
        if own.starts_with("x-envoy") {
            assert_eq!(millis("x-envoy-expected-rq-timeout-ms"), Some(told.floor()));
        }
        if own.starts_with("content-type") {
            let text = request.header("grpc-timeout").expect("a timeout");
            let micros: f64 = text.strip_suffix('u').expect("microseconds").parse().unwrap();
            assert!(micros / 1000.0 <= told, "{text} {told}");
        }
    }
}

/// Neither the entry nor what is between waits longer than the deadline for a process that hangs, and a third way
/// is not blocked by it.
#[test]
fn a_process_that_is_paused_costs_no_more_than_the_deadline() {
    let paused = Upstream::raw(|mut client| while client.try_reply(false).is_ok() {});
    let second = Hop::start("trust = 'inside'", OPEN, &[paused.address], &["traceparent"]);
    let first = Hop::start("trust = 'inside'", OPEN, &[second.listen()], &["traceparent"]);
    let reply = Client::connect(first.listen()).get("/", "overload-context: d=300\r\n");
    assert_eq!(reply.status(), 504);
    for hop in [&first, &second] {
        hop.sidecar.wait_until_empty();
        hop.sidecar.wait_for("nobody inside", |state| state["inside"] == 0);
    }
    assert_eq!(second.egress()["failures"]["late"], 1, "{}", second.egress());
}

/// A workflow for each request: the tables of names and rates are full, and everything is served.
#[test]
fn more_workflows_than_there_is_room_for_are_served_without_a_name() {
    let (asked, leaf) = leaf();
    let rest = format!("{OPEN}[gate.workflow]\n");
    let hop = Hop::start("trust = 'inside'", &rest, &[leaf.address], &["traceparent"]);
    let mut client = Client::connect(hop.listen());
    for n in 0..1_100 {
        let head = format!("overload-context: r=(7 3), w=\"w{n}\"\r\n");
        assert_eq!(client.get("/", &head).status(), 200);
    }
    let asked = asked.lock().unwrap();
    assert_eq!(told(&asked[500]).0, "(7 3) \"w500\" ", "one peer may name half of them");
    assert_eq!(told(&asked[1_099]).0, "(7 3)  ");
}

/// Its service goes on, and calls with the rank of the request, not as nobody; once its time is up the calls are refused.
#[test]
fn calls_for_a_client_that_has_left_are_still_its_calls() {
    let (asked, leaf) = leaf();
    let (barrier, out) = (Barrier::default(), Arc::new(OnceLock::<SocketAddr>::new()));
    let (held, known) = (barrier.clone(), Arc::clone(&out));
    let (say, hear) = std::sync::mpsc::channel();
    let say = Mutex::new(say);
    let service = Upstream::start(move |request| {
        held.pass();
        let trace = format!("traceparent: {}\r\n", request.header("traceparent").unwrap());
        let answer = Client::connect(*known.get().unwrap()).get("/", &trace);
        say.lock().unwrap().send(answer.status()).unwrap();
        ok("served")
    });
    let rest = format!("{OPEN}[gate.slots]\nslots = 'fixed'\ncount = 10\n");
    let sidecar = start("trust = 'inside'", &rest, service.address, &[leaf.address]);
    out.set(sidecar.handle.egress("next").unwrap()).unwrap();
    let mut leaving = sidecar.client();
    leaving.send(&format!("GET / HTTP/1.1\r\nhost: a\r\n{CONTEXT}\r\n"));
    let mut late = sidecar.client();
    late.send("GET / HTTP/1.1\r\nhost: a\r\noverload-context: r=(9 3), d=50\r\n\r\n");
    assert_eq!(late.reply().status(), 504);
    sidecar.wait_for("the other one", |state| state["inside"] == 1);
    drop(leaving);
    sidecar.wait_for("nobody inside", |state| state["inside"] == 0);
    barrier.open();
    let mut statuses: Vec<u16> = (0..2).map(|_| hear.recv().unwrap()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 504]);
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(told(&asked[0]).0, "(7 3) \"shop\" 1");
    assert_eq!(sidecar.state()["egress"][0]["rejected"], 1);
}

#[test]
fn a_service_may_lower_the_rank_of_a_call_and_keeps_its_time() {
    let (asked, leaf) = leaf();
    let out = Arc::new(OnceLock::<SocketAddr>::new());
    let known = Arc::clone(&out);
    let service = Upstream::start(move |request| {
        let trace = request.header("traceparent").unwrap();
        let fields = format!("traceparent: {trace}\r\noverload-context: r=(50 3), w=\"log\"\r\n");
        plain(&Client::connect(*known.get().unwrap()).get("/", &fields))
    });
    let sidecar = start("trust = 'inside'", OPEN, service.address, &[leaf.address]);
    out.set(sidecar.handle.egress("next").unwrap()).unwrap();
    assert_eq!(sidecar.client().get("/", CONTEXT).status(), 200);
    let (said, left) = told(&asked.lock().unwrap()[0]);
    assert_eq!(said, "(50 3) \"log\" 1");
    assert!(left.is_some_and(|left| left < 20_000.0), "{left:?}");
}

#[test]
fn what_batch_work_calls_can_wait_too() {
    let (asked, leaf) = leaf();
    let hop = Hop::start("trust = 'inside'\nbatch = true", OPEN, &[leaf.address], &[]);
    assert_eq!(Client::connect(hop.listen()).get("/", CONTEXT).status(), 200);
    let (said, _) = told(&asked.lock().unwrap()[0]);
    assert!(said.starts_with("(40 "), "{said}");
}
