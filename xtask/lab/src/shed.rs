//! A proxy as one would build it of tower's own layers: at most so many at once, the others refused.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower::{Service, ServiceBuilder, ServiceExt};

/// Serves for ever.
pub(crate) async fn serve(at: SocketAddr, to: SocketAddr, limit: usize) -> Result<(), String> {
    let listener = TcpListener::bind(at).await.map_err(|error| format!("{at}: {error}"))?;
    let stack = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(limit)
        .service_fn(move |request: Request<Incoming>| pass(to, request));
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let stack = stack.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let mut stack = stack.clone();
                async move {
                    // `load_shed` is always ready; what it sheds is an error.
                    let answer = match stack.ready().await {
                        Ok(ready) => ready.call(request).await,
                        Err(error) => Err(error),
                    };
                    Ok::<_, Infallible>(answer.unwrap_or_else(|_| refuse()))
                }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn refuse() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

async fn pass(
    to: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, tower::BoxError> {
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Response::from_parts(parts, Full::new(body)))
}
