//! What can go wrong, with refusals told apart from failures.

use std::{fmt, io};

use tidegate_core::config::ConfigError;
use tidegate_core::{Advice, Reason, Rejection};

use crate::wire::{Failure, WireError};

/// Why a server or a client did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is wrong; everything that is, at once.
    Config(ConfigError),
    /// A socket or a thread could not be had.
    Io(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a call has no answer.
#[derive(Debug)]
pub enum CallError {
    /// Turned away, here or by the callee's gate: nothing was done, and the rejection says what to do.
    Refused(Rejection),
    /// The handler failed. It may have done a part.
    Failed(Failure),
    /// The deadline passed before an answer came. It may have been done.
    TimedOut,
    /// The connection could not be had, broke, or made no sense. What was sent may have been done.
    Broken(Broken),
}

/// What happened to a connection.
#[derive(Debug)]
pub enum Broken {
    /// It could not be had, or ended.
    Io(io::Error),
    /// What came over it could not be read.
    Wire(WireError),
    /// The peer closed it.
    Closed,
    /// The request is larger than the client's limits allow.
    TooLarge,
}

impl CallError {
    /// Whether the call was turned away before anything was done for it.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(rejection) => rejection.fmt(f),
            Self::Failed(failure) => failure.fmt(f),
            Self::TimedOut => f.write_str("no answer before the deadline"),
            Self::Broken(broken) => broken.fmt(f),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Wire(error) => error.fmt(f),
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::TooLarge => f.write_str("the request is larger than the limits allow"),
        }
    }
}

impl std::error::Error for CallError {}

/// Why a request is refused whose bytes there is no room for: so many are there, and one more is too many.
pub(crate) fn full(there: usize) -> Rejection {
    Rejection::new(Reason::Full, there as f64 + 1.0, there as f64, Advice::Elsewhere)
}
