//! [`spawn`]: a task that keeps the context.

use std::future::Future;

use tidegate_driver::context;
use tokio::task::JoinHandle;

/// Spawns a task that works for the same request as this one: its calls keep the rank, workflow and
/// deadline. `tokio::spawn` starts a task without a context, whose calls count as unranked.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match context::current() {
        Some(context) => tokio::spawn(context::scope(context, future)),
        None => tokio::spawn(future),
    }
}
