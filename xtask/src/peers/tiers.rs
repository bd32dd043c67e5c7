//! Three plain services in a row, each behind a sidecar with nothing configured but the objective and whom it calls: what the entry answers
//! in time, of what the one in the middle can do. The objective of the first is that of the whole, that of the others half of it.
//!
//! A service has one worker with exponential times and a queue of its own; the one in the middle takes 5 ms, the others 4. They speak
//! HTTP or gRPC in Rust, or HTTP in Python and in Node, and copy what says for whom a call is made.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use super::process::{AROUND, Lab, PROXY, Process, free_address, on_core};
use crate::run::{Result, answers};

pub(crate) const COLUMNS: [&str; 7] =
    ["services", "load", "of_capacity", "without", "p99_ms", "refused", "errors"];

/// Milliseconds that each takes, the first first.
const MEANS: [u32; 3] = [4, 5, 4];
/// Requests per second that the one in the middle can do.
const CAPACITY: f64 = 200.0;
/// What an answer of the whole may take, in milliseconds.
const SLO_MS: u32 = 160;
const LOADS: [f64; 4] = [0.8, 1.2, 2.0, 4.0];
const SECONDS: u32 = 20;
const WARMUP: u32 = 8;

/// What the services are written in, and speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http,
    Grpc,
    Python,
    Node,
}

impl Kind {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Http, "Rust, HTTP"),
        (Self::Grpc, "Rust, gRPC"),
        (Self::Python, "Python, HTTP"),
        (Self::Node, "Node, HTTP"),
    ];

    fn way(self) -> &'static str {
        if self == Self::Grpc { "grpc" } else { "http" }
    }

    fn is_here(self) -> bool {
        match self {
            Self::Http | Self::Grpc => true,
            Self::Python => answers(&mut Command::new("python3")),
            Self::Node => answers(&mut Command::new("node")),
        }
    }

    fn command(
        self,
        lab: &Lab,
        at: SocketAddr,
        mean: u32,
        callee: Option<SocketAddr>,
    ) -> Result<Command> {
        let mut words = vec![at.to_string(), mean.to_string()];
        words.extend(callee.map(|callee| callee.to_string()));
        let script = |program: &str, name: &str, text: &str| {
            let mut command = on_core(program.as_ref(), AROUND);
            command.arg(lab.file(name, text)?);
            Ok::<_, String>(command)
        };
        let mut command = match self {
            Self::Python => script("python3", "tier.py", include_str!("tier.py"))?,
            Self::Node => script("node", "tier.js", include_str!("tier.js"))?,
            Self::Http | Self::Grpc => {
                words.insert(1, self.way().to_owned());
                let mut command = lab.own("xtask-lab", AROUND);
                command.arg("tier");
                command
            }
        };
        command.args(words);
        Ok(command)
    }
}

/// Measures every kind at every load, with sidecars and without.
pub(crate) fn compare(filter: &str) -> Result<Vec<Value>> {
    let lab = Lab::new(&[])?;
    let mut rows = Vec::new();
    for (kind, name) in Kind::ALL.into_iter().filter(|(_, name)| name.contains(filter)) {
        if !kind.is_here() {
            eprintln!("SKIPPED: {name}, which is not on this machine");
            continue;
        }
        for load in LOADS {
            let guarded = measure(&lab, kind, load, true)?;
            let bare = measure(&lab, kind, load, false)?;
            let row = json!({
                "services": name,
                "load": load,
                "of_capacity": guarded["of_capacity"],
                "without": bare["of_capacity"],
                "p99_ms": guarded["p99_ms"],
                "refused": guarded["refused"],
                "errors": guarded["errors"],
            });
            // It takes long, and what was measured should not be lost with the rest.
            eprintln!("{row}");
            rows.push(row);
        }
    }
    Ok(rows)
}

fn measure(lab: &Lab, kind: Kind, load: f64, guarded: bool) -> Result<Value> {
    let mut processes = Vec::new();
    let mut services = Vec::new();
    let mut entry = None;
    // From the last to the first: whom a service calls is there before it.
    for (place, mean) in MEANS.into_iter().enumerate().rev() {
        let way_out = match entry {
            Some(callee) if guarded => Some((free_address()?, callee)),
            _ => None,
        };
        let at = free_address()?;
        let callee = way_out.map(|(listen, _)| listen).or(entry);
        processes.push(Process::start(&mut kind.command(lab, at, mean, callee)?, at)?);
        services.push(at);
        entry = Some(at);
        if guarded {
            let objective_ms = if place == 0 { SLO_MS } else { SLO_MS / 2 };
            let (sidecar, listen) = sidecar(lab, kind, at, way_out, objective_ms)?;
            processes.push(sidecar);
            entry = Some(listen);
        }
    }
    let to = entry.ok_or("there are three")?;
    let mut words = ["through", &to.to_string(), &services[1].to_string(), kind.way()]
        .map(ToOwned::to_owned)
        .to_vec();
    words.push((load * CAPACITY).to_string());
    words.extend([SECONDS, WARMUP, SLO_MS].map(|number| number.to_string()));
    lab.measure(&words, PROXY)
}

/// A sidecar before a service, and where it listens; the service makes its calls by `way_out`, to the callee there.
fn sidecar(
    lab: &Lab,
    kind: Kind,
    service: SocketAddr,
    way_out: Option<(SocketAddr, SocketAddr)>,
    objective_ms: u32,
) -> Result<(Process, SocketAddr)> {
    let (at, admin) = (free_address()?, free_address()?);
    let scheme = if kind == Kind::Grpc { "h2c" } else { "http" };
    let egress = way_out.map_or(String::new(), |(listen, callee)| {
        format!(
            "[[proxy.egress]]\nname = \"next\"\nlisten = \"{listen}\"\nupstreams = [\"{scheme}://{callee}\"]\n\
             [proxy.egress.caller.throttle]\nthrottle = \"credit\"\n"
        )
    });
    let text = format!(
        "[proxy]\nthreads = 1\nlisten = \"{at}\"\nadmin = \"{admin}\"\ntrust = \"inside\"\n\
         upstreams = [\"{scheme}://{service}\"]\n{egress}\
         [gate.admission]\npolicy = \"tide\"\nobjective = \"{objective_ms}ms\"\n"
    );
    let file = lab.file(&format!("tidegate-{}.toml", at.port()), &text)?;
    let mut command = lab.own("tidegate", PROXY);
    command.args(["proxy", "--config"]).arg(file);
    Ok((Process::start(&mut command, at)?, at))
}
