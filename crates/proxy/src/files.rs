//! File descriptors: as many as the system allows, and a few that clients cannot have.
//!
//! Each connection takes one. When none is left, nobody can be accepted, nothing can be read, and an operator learns
//! nothing of it. So:
//!
//! 1. At the start the soft limit is raised to the hard one.
//! 2. The system hands out the lowest number that is free: one close to the limit says that hardly any are left. Whoever gets such
//!    a one for a client or an upstream gives it back ([`is_scarce`]), and the rest is for the admin port and for files.

use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors that are kept for the admin port and for files: a page with its events takes one for each who looks.
const KEPT: u64 = 32;
/// No number is kept from anybody where fewer would be left than this; who starts with so few means something else.
const FEWEST: u64 = 2 * KEPT;

/// The limit of the process, once it is known.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Raises the limit as far as it goes; the number of descriptors that there may be, if the system tells.
pub(crate) fn raise() -> Option<u64> {
    let limit = rlimit::increase_nofile_limit(u64::MAX).ok()?;
    LIMIT.store(limit, Ordering::Relaxed);
    Some(limit)
}

/// Whether hardly any are left, now that somebody has got this one.
#[cfg(unix)]
pub(crate) fn is_scarce(socket: &impl std::os::fd::AsRawFd) -> bool {
    let number = u64::try_from(socket.as_raw_fd()).unwrap_or(0);
    let limit = LIMIT.load(Ordering::Relaxed);
    limit > FEWEST && number >= limit - KEPT
}

/// Whether hardly any are left, now that somebody has got this one.
#[cfg(not(unix))]
pub(crate) fn is_scarce<T>(_: &T) -> bool {
    false
}
