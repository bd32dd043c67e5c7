//! [`Failure`]: why a request was not answered.

use std::{fmt, io};

use tidegate_core::Rejection;

use crate::places::Lack;
use crate::upload::News;

/// Why a request was not answered.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No upstream could be connected to.
    Connect(io::Error),
    /// The connection broke, or what came was not HTTP.
    Broken(io::Error),
    /// No answer in time.
    Late,
    /// The client did not send its request in time.
    Slow,
    /// The client broke off, or what it sent was not HTTP.
    Client(io::Error),
    /// There are too many requests like this that hold no slot.
    Lack(&'static str, Lack),
    /// It had to ask again for a slot, and got none.
    Refused(Box<Rejection>),
    /// Its place is no longer this process's.
    Overdue,
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Self::Refused(Box::new(rejection))
    }
}

impl Failure {
    /// What is wrong with a body that was awaited.
    pub(crate) fn of(news: News) -> Self {
        match news {
            News::Broken(error) => Self::Client(error),
            News::Lack(lack) => Self::Lack("whose bodies are not there", lack),
            News::Slow | News::Still | News::Again => Self::Slow,
        }
    }

    /// Whether it says nothing about the upstream.
    pub(crate) fn is_the_clients(&self) -> bool {
        !matches!(self, Self::Connect(_) | Self::Broken(_) | Self::Late)
    }

    /// What a client is told.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Connect(_) => "cannot connect to the upstream\n".to_owned(),
            Self::Broken(_) => "the upstream broke off\n".to_owned(),
            Self::Client(_) => "the request broke off\n".to_owned(),
            _ => format!("{self}\n"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect to the upstream: {error}"),
            Self::Broken(error) => write!(f, "the upstream broke off: {error}"),
            Self::Late => f.write_str("the upstream did not answer in time"),
            Self::Slow => f.write_str("the request did not come in time"),
            Self::Client(error) => write!(f, "the request broke off: {error}"),
            Self::Lack(what, lack) => write!(f, "too many requests {what}: {lack}"),
            Self::Refused(rejection) => rejection.fmt(f),
            Self::Overdue => f.write_str("aborted: the lease of its place is over"),
        }
    }
}
