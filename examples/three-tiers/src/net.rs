//! Sockets: a server and a client of hyper's, and services that are functions.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Error = Box<dyn std::error::Error + Send + Sync>;

/// A service that is a function.
#[derive(Clone)]
pub(crate) struct Function<F>(pub(crate) F);

impl<F, Q, B, Fut> Service<Request<Q>> for Function<F>
where
    F: FnMut(Request<Q>) -> Fut,
    Fut: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Response<B>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

/// Serves HTTP/1.1 on a free port of this machine.
pub(crate) async fn serve<S, B>(service: S) -> io::Result<SocketAddr>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Error>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(service.clone()));
            tokio::spawn(async move {
                let server = hyper::server::conn::http1::Builder::new();
                if let Err(error) = server.serve_connection(io, service).await {
                    eprintln!("connection: {error}");
                }
            });
        }
    });
    Ok(address)
}

/// A client that opens a connection per request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub(crate) SocketAddr);

impl Service<Request<Full<Bytes>>> for Client {
    type Response = Response<Full<Bytes>>;
    type Error = Error;
    type Future = BoxFuture<Result<Self::Response, Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let address = self.0;
        Box::pin(async move {
            let io = TokioIo::new(TcpStream::connect(address).await?);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            let (parts, body) = sender.send_request(request).await?.into_parts();
            Ok(Response::from_parts(parts, Full::new(body.collect().await?.to_bytes())))
        })
    }
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", "localhost").body(Full::default());
    request.expect("a path of ours is valid")
}
