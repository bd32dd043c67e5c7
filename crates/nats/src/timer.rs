//! Waking up in time. A poll's own time-out counts whole milliseconds, and an access delay may be a tenth of one;
//! Linux has a timer that is polled like a socket.

#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::{io, time::Duration};

use mio::{Registry, Token};

/// Wakes a poll.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct Timer(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Timer {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(
            &mut mio::unix::SourceFd(&fd.as_raw_fd()),
            token,
            mio::Interest::READABLE,
        )?;
        Ok(Self(fd))
    }

    /// Wakes the poll after this long; the time-out to poll with besides.
    pub(crate) fn set(&mut self, span: Duration) -> Option<Duration> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        // None at all would switch it off.
        let span = span.max(Duration::from_nanos(1));
        let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: seconds, tv_nsec: span.subsec_nanos().into() };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        match timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec) {
            Ok(_) => None,
            Err(_) => Some(span),
        }
    }
}

/// The poll's own time-out, where there is nothing finer.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    pub(crate) fn new(_registry: &Registry, _token: Token) -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn set(&mut self, span: Duration) -> Option<Duration> {
        Some(span)
    }
}
