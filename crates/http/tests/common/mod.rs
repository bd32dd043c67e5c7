//! What the tests over sockets share: services made of functions, servers, clients.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A service that is a function.
#[derive(Clone)]
pub struct Function<F>(pub F);

impl<F, Q, B, E, Fut> Service<Request<Q>> for Function<F>
where
    F: FnMut(Request<Q>) -> Fut,
    Fut: Future<Output = Result<Response<B>, E>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = E;
    type Future = BoxFuture<Result<Response<B>, E>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

/// Serves HTTP/1.1 from a task of the current runtime.
pub async fn serve<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepts");
            let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service.clone()));
            tokio::spawn(async move {
                // Connections that clients drop end with an error, as they should.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
    address
}

/// A client that opens a connection per request.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub SocketAddr);

impl Service<Request<Full<Bytes>>> for Client {
    type Response = Response<Full<Bytes>>;
    type Error = hyper::Error;
    type Future = BoxFuture<Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let address = self.0;
        Box::pin(async move {
            let io = TokioIo::new(TcpStream::connect(address).await.expect("connects"));
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            let response = sender.send_request(request).await?;
            let (parts, body) = response.into_parts();
            Ok(Response::from_parts(parts, Full::new(body.collect().await?.to_bytes())))
        })
    }
}

pub fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "localhost").body(Full::default()).expect("valid")
}

/// Waits until something is so; that it becomes so, however slow the machine, is the test.
pub async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never became so");
}

/// The body as text.
pub async fn text<B>(body: B) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let bytes = body.collect().await.expect("whole").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}
