//! The server's process: started, measured, ended.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use tidegate_core::Span;
use tidegate_core::gate::GateConfig;

use super::super::Error;
use super::serve::Work;

/// Keeps this thread, and those it starts, on one core. Where that cannot be had the scheduler decides.
pub(super) fn pin(core: usize) {
    #[cfg(target_os = "linux")]
    {
        use nix::sched::{CpuSet, sched_setaffinity};
        use nix::unistd::Pid;
        let mut cores = CpuSet::new();
        if cores.set(core).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &cores);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

/// A server that runs. It ends when this is dropped.
pub(super) struct Process {
    child: Child,
    /// Closing it is how the server is told to end.
    stdin: Option<ChildStdin>,
    pub(super) address: SocketAddr,
}

impl Process {
    pub(super) fn start(gate: &GateConfig, work: Work, core: usize) -> Result<Self, Error> {
        let failed = |what: &str| Error::Failed(format!("the server did not start: {what}"));
        let program = std::env::current_exe().map_err(|error| failed(&error.to_string()))?;
        let work = match work {
            Work::Spin => "spin",
            Work::None => "none",
            Work::Kv => "kv",
        };
        let mut child = Command::new(program)
            .args(["bench", "rpc-server", "--work", work, "--core", &core.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error.to_string()))?;
        let mut stdin = child.stdin.take().ok_or_else(|| failed("no stdin"))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("no stdout"))?;
        let mut line = String::new();
        let told = write!(stdin, "{}\n.\n", gate.to_toml())
            .and_then(|()| stdin.flush())
            .and_then(|()| BufReader::new(stdout).read_line(&mut line));
        told.map_err(|error| failed(&error.to_string()))?;
        let address = line.trim().parse().map_err(|_| failed("it told no address"))?;
        Ok(Self { child, stdin: Some(stdin), address })
    }

    /// Time it has spent on cores.
    pub(super) fn cpu(&self) -> Span {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Span::from_nanos(nanos.sum())
    }

    /// Memory it has in use, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}
