//! The server's process: started, measured, ended.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use tidegate_core::Span;
use tidegate_core::gate::GateConfig;
use tidegate_sim::dist::Service;

use super::super::Error;
use super::serve::Work;

/// Whether a core can be had. Where nobody can say, it can.
pub(super) fn has(core: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        use nix::sched::sched_getaffinity;
        use nix::unistd::Pid;
        sched_getaffinity(Pid::from_raw(0)).is_ok_and(|cores| cores.is_set(core).unwrap_or(false))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = core;
        true
    }
}

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

/// What a process has had of its core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Time it has run.
    pub(super) cpu: Span,
    /// Time it would have run, had others not been in its way: other processes, or other machines.
    pub(super) stolen: Span,
}

impl Usage {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            stolen: self.stolen.saturating_sub(before.stolen),
        }
    }
}

/// Time that other machines on the same hardware have had of a core.
fn stolen(core: usize) -> Span {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name));
    // The eighth number, in hundredths of a second.
    let ticks = line.and_then(|line| line.split_whitespace().nth(7)?.parse::<u64>().ok());
    Span::from_millis(10 * ticks.unwrap_or(0))
}

/// A server that runs. It ends when this is dropped.
pub(super) struct Process {
    child: Child,
    /// Closing it is how the server is told to end.
    stdin: Option<ChildStdin>,
    pub(super) address: SocketAddr,
    core: usize,
}

impl Process {
    pub(super) fn start(
        gate: &GateConfig,
        work: Work,
        service: &Service,
        core: usize,
    ) -> Result<Self, Error> {
        let failed = |what: &str| Error::Failed(format!("the server did not start: {what}"));
        let program = std::env::current_exe().map_err(|error| failed(&error.to_string()))?;
        let (work, longer) = match work {
            Work::Spin => ("spin", Span::ZERO),
            Work::None => ("none", Span::ZERO),
            Work::Kv => ("kv", service.mean),
        };
        let (core_text, longer) = (core.to_string(), longer.to_string());
        let mut child = Command::new(program)
            .args([
                "bench",
                "rpc-server",
                "--work",
                work,
                "--core",
                &core_text,
                "--longer",
                &longer,
            ])
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
        Ok(Self { child, stdin: Some(stdin), address, core })
    }

    /// What it has had of its core so far.
    pub(super) fn usage(&self) -> Usage {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let mut usage = Usage { cpu: Span::ZERO, stolen: stolen(self.core) };
        for task in tasks.into_iter().flatten().flatten() {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let mut nanos = text.split_whitespace().filter_map(|field| field.parse().ok());
            usage.cpu += Span::from_nanos(nanos.next().unwrap_or(0));
            usage.stolen += Span::from_nanos(nanos.next().unwrap_or(0));
        }
        usage
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
