//! [`CallerService`]: asks the caller, in `call` itself.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tidegate_core::Context as RequestContext;
use tidegate_driver::{Call, context};
use tower_service::Service;

use super::future::{Asked, send};
use super::layer::{CallerLayer, Repeat};
use crate::body::GateBody;

/// A service behind a caller. Always ready: what may leave is known only when it is here.
#[derive(Clone, Debug)]
pub struct CallerService<S, R> {
    pub(super) inner: S,
    pub(super) layer: Arc<CallerLayer<R>>,
}

/// Which endpoint a request should go to, in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint(pub usize);

impl<S, R, Q, B> Service<Request<Q>> for CallerService<S, R>
where
    S: Service<Request<Q>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    R: Repeat<Q> + Send + Sync + 'static,
    Q: Send + 'static,
    B: http_body::Body + Send + 'static,
{
    type Response = Response<GateBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let context = self.layer.context(&request);
        let call = self.layer.submit(&context);
        let parent = context::parent().map(|parent| parent.as_of(self.layer.caller.now()));
        let asked = Asked { context, parent };
        Box::pin(send(Arc::clone(&self.layer), self.inner.clone(), request, asked, call))
    }
}

impl<R> CallerLayer<R> {
    /// A context in the request's extensions, else that of the request this task works for, else
    /// none in particular.
    fn context<Q>(&self, request: &Request<Q>) -> RequestContext {
        let given = request.extensions().get::<RequestContext>().copied();
        let current = given.or_else(context::current);
        let mut context = current.map_or_else(RequestContext::default, |outer| outer.inherit());
        if let Some(patience) = self.patience {
            context.deadline = context.deadline.min(self.caller.now() + patience);
        }
        context
    }

    fn submit(&self, context: &RequestContext) -> Result<Call, tidegate_core::Rejection> {
        if let Some((gate, callee)) = &self.upstream {
            let sheds = gate.input(|gate, now| {
                gate.on_call(now, *callee, context.workflow);
                gate.take_sheds(*callee)
            });
            if sheds.count > 0 {
                self.caller.input(|caller, _| caller.note_sheds(sheds));
            }
        }
        self.caller.submit(context)
    }
}
