//! Callers that obey: requests leave through the client layer, which learns from the server's feedback and rejects at
//! home what would be refused.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tidegate_core::caller::CallerConfig;
use tidegate_core::{Context as RequestContext, Rank, Span};
use tidegate_driver::SharedCaller;
use tidegate_http::CallerLayer;
use tidegate_http::client::{CallerService, Once};
use tokio::sync::{mpsc, oneshot};
use tower_layer::Layer;
use tower_service::Service;

use crate::SLO;
use crate::load::Pool;

/// Processes that call, as the server sees them.
const CALLERS: usize = 4;

/// Came over the wire: noted in responses, since those of the layer's own making look the same.
#[derive(Clone, Copy)]
pub(crate) struct Wired;

type Sent = (Request<Empty<Bytes>>, oneshot::Sender<Option<Response<Empty<Bytes>>>>);

/// The client layer before the connections of a pool.
pub(crate) struct Callers(Vec<CallerService<Line, Once>>);

impl Callers {
    pub(crate) fn new(pool: &Rc<Pool>, throttle: &str) -> Self {
        let config = format!("throttle = {{ throttle = '{throttle}' }}");
        let config = CallerConfig::from_toml(&config).expect("a throttle");
        let (sender, mut sent) = mpsc::unbounded_channel::<Sent>();
        let pool = Rc::clone(pool);
        tokio::task::spawn_local(async move {
            while let Some((request, reply)) = sent.recv().await {
                let pool = Rc::clone(&pool);
                // Whoever has given up meanwhile does not wait for it.
                tokio::task::spawn_local(async move { reply.send(pool.exchange(request).await) });
            }
        });
        let caller = |seed| {
            let caller = SharedCaller::build(&config, seed).expect("valid");
            let layer = CallerLayer::new(caller).patience(Span::from(SLO)).once();
            layer.layer(Line(sender.clone()))
        };
        Self((1..=CALLERS).map(caller).collect())
    }

    /// Sends a request of this rank, or is told not to.
    pub(crate) async fn send(
        &self,
        number: usize,
        rank: Rank,
        mut request: Request<Empty<Bytes>>,
    ) -> Option<Response<()>> {
        request.extensions_mut().insert(RequestContext { rank, ..RequestContext::default() });
        let mut service = self.0[number % CALLERS].clone();
        service.call(request).await.ok().map(|response| response.map(drop))
    }
}

/// To the pool, which stays on its thread.
#[derive(Clone)]
pub(crate) struct Line(mpsc::UnboundedSender<Sent>);

impl Service<Request<Empty<Bytes>>> for Line {
    type Response = Response<Empty<Bytes>>;
    type Error = &'static str;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, &'static str>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Empty<Bytes>>) -> Self::Future {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.send((request, reply));
        Box::pin(async move {
            sent.map_err(|_| "the pool is gone")?;
            let mut response = answer.await.ok().flatten().ok_or("the connection broke")?;
            response.extensions_mut().insert(Wired);
            Ok(response)
        })
    }
}
