//! The whole store as processes, under load, with and without control.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

use serde_json::{Value, json};

use crate::client::{Client, Failure};

type Result<T> = std::result::Result<T, Failure>;

/// What the sidecars do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Control {
    /// Everything passes; sidecars only pass it on.
    Nothing,
    /// `tide` and credits: by rank.
    Credits,
    /// Rates along the graph: by workflow.
    Rates,
}

impl Control {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Nothing, "none"), (Self::Credits, "tide, credit"), (Self::Rates, "rates")];

    /// Gate and throttle of a sidecar before so many workers.
    fn blocks(self, workers: u32) -> (String, &'static str) {
        let open = "[gate.admission]\npolicy = 'open'\n";
        let tide = "[gate.admission]\npolicy = 'tide'\nobjective = '200ms'\n";
        let rate = "throttle = 'rate'\nrate = 1000000.0\n";
        let slots = format!("[gate.slots]\nslots = 'fixed'\ncount = {workers}\n");
        match self {
            Self::Nothing => (format!("{open}[gate.slots]\nslots = 'fixed'\ncount = 100000\n"), ""),
            Self::Credits => (format!("{tide}{slots}"), "throttle = 'credit'\n"),
            // A line at the entry leaves less of the deadline for the rest of the way.
            Self::Rates => (format!("{open}[gate.workflow]\nhold = '50ms'\n{slots}"), rate),
        }
    }
}

/// A tier: its name, workers, and mean time in milliseconds.
const TIERS: [(&str, u32, f64); 4] =
    [("front", 32, 1.0), ("auth", 8, 4.0), ("partition", 16, 2.0), ("extent", 2, 10.0)];
/// Logins per second: a small part of what `auth` can do.
const LOGINS: f64 = 100.0;

/// Measures everything for so long each, and prints a table or one JSON object per line.
pub(crate) fn show(seconds: u32, as_json: bool) -> Result<()> {
    if !as_json {
        println!("| control | reads | answered, of capacity | worked in vain | logins answered |");
        println!("|---|---|---|---|---|");
    }
    let capacity = capacity()?;
    eprintln!("{capacity:.0} reads per second can be done");
    for (control, name) in Control::ALL {
        for load in [2.0, 4.0] {
            let row = measure(control, load * capacity, capacity, seconds)?;
            if as_json {
                println!("{}", json!({ "control": name, "load": load, "row": row }));
                continue;
            }
            let percent =
                |what: &str| format!("{:.0} %", 100.0 * row[what].as_f64().unwrap_or(0.0));
            let cells = ["of_capacity", "in_vain", "logins"].map(percent);
            println!("| {name} | {load} × | {} |", cells.join(" | "));
        }
    }
    Ok(())
}

/// Reads per second that the extents can do, by themselves: timers are late, and more so on a busy machine.
fn capacity() -> Result<f64> {
    let mut store = Store::empty()?;
    let (_, workers, mean) = TIERS[3];
    let words = ["tier", "127.0.0.1:0", &workers.to_string(), &mean.to_string()];
    let at = store.run(&words.map(str::to_owned))?;
    let told = ask(&["capacity", &format!("http://{at}/read"), "8", "3"], &[])?;
    told["requests_per_s"].as_f64().ok_or_else(|| "no capacity".into())
}

/// A store of its own under so many reads per second, of which it can do `capacity`.
fn measure(control: Control, reads: f64, capacity: f64, seconds: u32) -> Result<Value> {
    let store = Store::start(control)?;
    let flows = [format!("/read={reads}"), format!("/login={LOGINS}@4")];
    // The first seconds find the rates; what they were like is not of interest here.
    store.load("3", &flows)?;
    let before = store.worked()?;
    let told = store.load(&seconds.to_string(), &flows)?;
    let worked = store.worked()? - before;
    let of = |path: &str, what: &str| told[path]["became"][what].as_f64().unwrap_or(0.0);
    let (reads, logins) = (of("/read", "answered"), of("/login", "answered"));
    Ok(json!({
        "of_capacity": reads / capacity / f64::from(seconds),
        // An answered read is worked on by three tiers, a login by two.
        "in_vain": 1.0 - (3.0 * reads + 2.0 * logins) / worked,
        "logins": logins / told["/login"]["sent"].as_f64().unwrap_or(f64::NAN),
        "became": told,
    }))
}

/// All tiers and their sidecars; ended when it is dropped.
#[derive(Debug)]
struct Store {
    processes: Vec<Child>,
    entry: String,
    tiers: Vec<String>,
    folder: PathBuf,
}

impl Store {
    fn empty() -> Result<Self> {
        let folder = env::temp_dir().join(format!("tidegate-storage-{}", process::id()));
        fs::create_dir_all(&folder)?;
        let (processes, tiers) = (Vec::new(), Vec::new());
        Ok(Self { processes, entry: String::new(), tiers, folder })
    }

    fn start(control: Control) -> Result<Self> {
        let mut store = Self::empty()?;
        // From the end to the front: whom a tier calls is there before it.
        let extent = store.tier(control, 3, &[])?;
        let partition = store.tier(control, 2, &[("extent", &extent, &["/read=/read"])])?;
        let auth = store.tier(control, 1, &[])?;
        let calls = [
            ("auth", &*auth, &["/login=/check"][..]),
            ("partition", &*partition, &["/read=/read"]),
        ];
        store.entry = store.tier(control, 0, &calls)?;
        Ok(store)
    }

    /// Starts a tier and its sidecar, and tells where that listens. Of each service called: its name,
    /// where its sidecar listens, and the routes `PATH=PATH` that call it.
    fn tier(
        &mut self,
        control: Control,
        number: usize,
        calls: &[(&str, &str, &[&str])],
    ) -> Result<String> {
        let (name, workers, mean) = TIERS[number];
        let (gate, throttle) = control.blocks(workers);
        let mut ways = String::new();
        let mut routes = Vec::new();
        for (callee, at, paths) in calls {
            let listen = free_address()?;
            ways += &format!(
                "[[proxy.egress]]\nname = '{callee}'\nlisten = '{listen}'\n\
                 upstreams = ['http://{at}']\n"
            );
            if !throttle.is_empty() {
                ways += &format!("[proxy.egress.caller.throttle]\n{throttle}");
            }
            routes.extend(paths.iter().filter_map(|path| {
                let (path, called) = path.split_once('=')?;
                Some(format!("{path}=http://{listen}{called}"))
            }));
        }
        let mut words = vec!["tier".to_owned(), "127.0.0.1:0".to_owned()];
        words.extend([workers.to_string(), mean.to_string()]);
        words.extend(routes);
        let service = self.run(&words)?;
        let (listen, admin) = (free_address()?, free_address()?);
        let file = self.folder.join(format!("{name}.toml"));
        let config = format!(
            "[proxy]\nlisten = '{listen}'\nadmin = '{admin}'\nupstreams = ['http://{service}']\n\
             trust = 'inside'\nthreads = 1\nlog = 'none'\n{ways}{gate}"
        );
        fs::write(&file, config)?;
        let program = env::current_exe()?;
        let sidecar =
            Command::new(program).arg("sidecar").arg(&file).stdin(Stdio::null()).spawn()?;
        self.processes.push(sidecar);
        self.tiers.push(service);
        // It is there once it accepts.
        while std::net::TcpStream::connect(&listen).is_err() {
            std::thread::yield_now();
        }
        Ok(listen)
    }

    /// Starts a process of ours and waits for the first line it says.
    fn run(&mut self, words: &[String]) -> Result<String> {
        let mut command = Command::new(env::current_exe()?);
        let mut child = command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("a pipe")?;
        self.processes.push(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn load(&self, seconds: &str, flows: &[String]) -> Result<Value> {
        ask(&["load", &format!("http://{}", self.entry), seconds], flows)
    }

    /// Requests that all tiers together have worked on.
    fn worked(&self) -> Result<f64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = Client::default();
        let mut sum = 0.0;
        for tier in &self.tiers {
            let url = format!("http://{tier}/worked").parse()?;
            let asked = runtime.block_on(client.get(&url, http::HeaderMap::new()));
            let (_, _, body) = asked?;
            sum += std::str::from_utf8(&body)?.parse::<f64>()?;
        }
        Ok(sum)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a process of ours says at its end.
fn ask(words: &[&str], more: &[String]) -> Result<Value> {
    let output = Command::new(env::current_exe()?).args(words).args(more).output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// An address of this machine that nobody listens at.
fn free_address() -> Result<String> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
