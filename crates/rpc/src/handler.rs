//! What a server does with a request: a [`Handler`], made of a function.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use tidegate_core::Context;

use crate::wire::Failure;

/// A request that was let in and is to be worked on.
#[derive(Clone, Debug)]
pub struct Request {
    /// The application's number of what is to be done.
    pub method: u32,
    /// What the caller sent.
    pub payload: Bytes,
    /// Rank, workflow, deadline, caller. Calls made on its behalf inherit it by themselves.
    pub context: Context,
    /// Whether a cheaper answer is asked for.
    pub degraded: bool,
}

/// What a handler gives back: the answer, or how it failed.
pub type Answer = Result<Bytes, Failure>;

/// An answer that is still being worked on.
pub type Working = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What a handler does about a request.
pub enum Reply {
    /// It is done.
    Now(Answer),
    /// It goes on as a task of the tokio runtime that the server was started in.
    Later(Working),
}

/// Serves requests, on any of the server's threads.
pub trait Handler: Send + Sync + 'static {
    /// Serves one request, or begins to.
    fn call(&self, request: Request) -> Reply;
}

/// A handler that runs to completion on a worker's thread: for work of microseconds, or work that
/// keeps a core busy.
///
/// ```
/// use tidegate_rpc::{Failure, Request, blocking};
///
/// let echo = blocking(|request: Request| Ok(request.payload));
/// let none = blocking(|_| Err(Failure::new(404, "there is nothing here")));
/// ```
pub fn blocking<F>(function: F) -> impl Handler
where
    F: Fn(Request) -> Answer + Send + Sync + 'static,
{
    Blocking(function)
}

/// A handler that waits for others: an async function, run as a task of the tokio runtime that the
/// server was started in. It holds a slot of the gate until it is done.
///
/// ```
/// use tidegate_rpc::{Request, asynchronous};
///
/// let echo = asynchronous(|request: Request| async move { Ok(request.payload) });
/// ```
pub fn asynchronous<F, T>(function: F) -> impl Handler
where
    F: Fn(Request) -> T + Send + Sync + 'static,
    T: Future<Output = Answer> + Send + 'static,
{
    Asynchronous(function)
}

struct Blocking<F>(F);

impl<F> Handler for Blocking<F>
where
    F: Fn(Request) -> Answer + Send + Sync + 'static,
{
    fn call(&self, request: Request) -> Reply {
        Reply::Now(self.0(request))
    }
}

struct Asynchronous<F>(F);

impl<F, T> Handler for Asynchronous<F>
where
    F: Fn(Request) -> T + Send + Sync + 'static,
    T: Future<Output = Answer> + Send + 'static,
{
    fn call(&self, request: Request) -> Reply {
        Reply::Later(Box::pin(self.0(request)))
    }
}
