//! What the process is told from outside.

use std::io;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    End,
    Reload,
}

/// SIGTERM and SIGINT ask for the end, SIGHUP for a reload.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Within a runtime.
    pub(crate) fn open() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::End,
            _ = self.interrupt.recv() => Wish::End,
            _ = self.hangup.recv() => Wish::Reload,
        }
    }
}

/// Ctrl-C, where there are no other signals.
#[cfg(windows)]
#[derive(Debug)]
pub(crate) struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    pub(crate) fn open() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    pub(crate) async fn next(&mut self) -> Wish {
        self.0.recv().await;
        Wish::End
    }
}
