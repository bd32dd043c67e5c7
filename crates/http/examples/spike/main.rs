//! Does the queue live in the gate? Ways to drive one, compared with a cpu-bound inline handler at
//! twice the capacity: `docs/driving.md` tells what came out.
//!
//! ```text
//! cargo run --release -p tidegate-http --example spike -- [KEY=VALUE …]
//!   ways=layer,yield,…   runtimes=1c,1,2   protocols=h1,h2   event_interval=61
//!   rounds=3   seconds=2   load=2   extra_slots=0   work=wall|cpu|await   work_us=1000
//!   callers=ignore|credit|cursor
//! ```
//!
//! The program is the load generator; each measurement has a server process of its own. A round
//! measures the capacity, that of the same server without a gate under a saturating closed loop,
//! and then every way; a line of the table is the median over the rounds.

#![allow(clippy::disallowed_methods, reason = "a program that measures real time")]

mod callers;
mod load;
mod report;
mod serve;
mod ways;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use load::Load;
use report::Row;

/// The objective: an answer that takes longer is worth nothing.
const SLO: Duration = Duration::from_millis(50);
/// One server: everything a row of the table depends on.
#[derive(Clone, Debug)]
struct Setup {
    /// How the gate is driven; "open" is no gate, "layer" the library's own layer with deadlines,
    /// "tide" with its usual policy.
    way: String,
    /// "1c" is a current-thread runtime; a number is that many workers.
    runtime: String,
    /// "h1" or "h2".
    protocol: String,
    event_interval: u32,
    extra_slots: u32,
    /// "wall": a request spins for `work_us`. "cpu": it takes a fixed number of steps that took
    /// that long when nothing disturbed. "await": it holds one of four connections to a database for
    /// that long, and no thread.
    work: String,
    work_us: u64,
}

impl Setup {
    fn to_args(&self) -> [String; 7] {
        [
            self.way.clone(),
            self.runtime.clone(),
            self.protocol.clone(),
            self.event_interval.to_string(),
            self.extra_slots.to_string(),
            self.work.clone(),
            self.work_us.to_string(),
        ]
    }

    fn from_args(mut args: impl Iterator<Item = String>) -> Self {
        let mut next = || args.next().expect("seven arguments");
        Self {
            way: next(),
            runtime: next(),
            protocol: next(),
            event_interval: next().parse().expect("a number"),
            extra_slots: next().parse().expect("a number"),
            work: next(),
            work_us: next().parse().expect("a number"),
        }
    }

    fn workers(&self) -> u32 {
        self.runtime.trim_end_matches('c').parse().expect("a number of workers")
    }
}

/// `KEY=VALUE` arguments.
struct Options(Vec<String>);

impl Options {
    fn text(&self, key: &str, default: &str) -> String {
        let found = self.0.iter().find_map(|arg| arg.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or(default).to_owned()
    }

    fn list(&self, key: &str, default: &str) -> Vec<String> {
        self.text(key, default).split(',').map(str::to_owned).collect()
    }

    fn number<T: FromStr>(&self, key: &str, default: &str) -> T {
        let text = self.text(key, default);
        text.parse().unwrap_or_else(|_| panic!("{key}={text} is not a number"))
    }
}

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "serve").is_some() {
        return serve::run(&Setup::from_args(args));
    }
    let options = Options(args.collect());
    let seconds = Duration::from_secs_f64(options.number("seconds", "2"));
    let times: f64 = options.number("load", "2");
    // Callers with a throttle go through the client layer; others send whatever comes.
    let throttle = Some(options.text("callers", "ignore")).filter(|throttle| throttle != "ignore");
    report::heading();
    for runtime in options.list("runtimes", "1c,1,2") {
        for protocol in options.list("protocols", "h1,h2") {
            let open = Setup {
                way: "open".into(),
                runtime: runtime.clone(),
                protocol,
                event_interval: options.number("event_interval", "61"),
                extra_slots: options.number("extra_slots", "0"),
                work: options.text("work", "wall"),
                work_us: options.number("work_us", "1000"),
            };
            let ways = options.list("ways", "inline,park,starter,yield,layer");
            let mut rows: Vec<Vec<Row>> = ways.iter().map(|_| Vec::new()).collect();
            for _ in 0..options.number("rounds", "3") {
                let closed = Load::Closed { seconds };
                let capacity = measure(&open, &closed).per_second();
                let (rate, throttle) = (times * capacity, throttle.clone());
                let load = Load::Poisson { rate, seconds, throttle };
                for (way, rows) in ways.iter().zip(&mut rows) {
                    let setup = Setup { way: way.clone(), ..open.clone() };
                    rows.push(measure(&setup, &load).against(capacity));
                }
            }
            for (way, rows) in ways.iter().zip(&rows) {
                report::print(&Setup { way: way.clone(), ..open.clone() }, rows);
            }
        }
    }
}

/// Runs one server and loads it.
fn measure(setup: &Setup, load: &Load) -> Row {
    let (_server, address) = Server::start(setup);
    load::run(load, address, setup.protocol == "h2")
}

/// A server process that ends with this guard.
struct Server(Child);

impl Server {
    fn start(setup: &Setup) -> (Self, SocketAddr) {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .arg("serve")
            .args(setup.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("the server tells its address");
        (Self(child), line.trim().parse().expect("an address"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that is gone already is what we want.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
