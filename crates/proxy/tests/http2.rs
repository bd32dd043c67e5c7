//! HTTP/2 and gRPC, in and out, over real sockets.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::convert::Infallible;
use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Sidecar, Upstream, file, ok};
use tokio::net::{TcpListener, TcpStream};

/// A service that speaks HTTP/2 only: answers with the body it got, and the status in trailers, as
/// gRPC does. Counts its connections.
async fn grpc_service() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let service = hyper::service::service_fn(echo);
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, connections)
}

async fn echo(
    request: Request<Incoming>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    assert_eq!(request.version(), Version::HTTP_2);
    let (head, body) = request.into_parts();
    let collected = body.collect().await.expect("the body comes");
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    for (name, told_as) in [("x-forwarded-for", "x-forwarded-for"), ("te", "x-te")] {
        if let Some(value) = head.headers.get(name) {
            trailers.insert(told_as, value.clone());
        }
    }
    let authority = head.uri.authority().expect("HTTP/2 names its host").as_str();
    trailers.insert("x-authority", HeaderValue::from_str(authority).expect("printable"));
    let body = Full::new(collected.to_bytes()).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

async fn connect(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("somebody listens");
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2 is spoken");
    tokio::spawn(connection);
    sender
}

fn call(timeout: &str, body: &[u8]) -> Request<Full<Bytes>> {
    Request::post("http://shop:8443/cart.Cart/Add")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("well formed")
}

/// Clients of HTTP/2 send cookies one by one, which servers of HTTP/1.1 need not understand.
#[tokio::test]
async fn cookies_arrive_as_one_field_over_http1() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let upstream = Upstream::raw(move |mut client| {
        let mut line = String::new();
        while client.stream.read_line(&mut line).is_ok_and(|read| read > 2) {
            kept.lock().expect("no panic").push(std::mem::take(&mut line));
        }
        client.send(&ok("served"));
    });
    let sidecar = Sidecar::start("[gate.admission]\npolicy = 'open'\n", &[upstream.address]);
    let mut client = connect(sidecar.handle.listen()).await;
    let mut request = call("20S", b"");
    for cookie in ["a=1", "b=2; c=3", "d=4"] {
        request.headers_mut().append("cookie", HeaderValue::from_static(cookie));
    }
    assert_eq!(client.send_request(request).await.expect("an answer").status(), 200);
    let seen = seen.lock().expect("no panic").clone();
    let cookies: Vec<_> = seen.iter().filter(|line| line.starts_with("cookie:")).collect();
    assert_eq!(cookies, ["cookie: a=1; b=2; c=3; d=4\r\n"]);
    tokio::task::spawn_blocking(move || drop(sidecar)).await.expect("it ends");
}

fn sidecar_before(upstream: SocketAddr) -> Sidecar {
    // Nothing is refused however slow the machine that runs this is.
    let mut file = file("[gate.admission]\npolicy = 'open'", &[upstream]);
    file.proxy.threads = 1;
    file.proxy.upstreams = vec![format!("h2c://{upstream}").parse().expect("an address")];
    Sidecar::with_source(file, None)
}

#[tokio::test]
async fn grpc_passes_with_its_trailers_on_one_connection() {
    let (address, connections) = grpc_service().await;
    let sidecar = sidecar_before(address);
    let client = connect(sidecar.handle.listen()).await;
    // One alone first, so that the others find its connection.
    for together in [1, 40] {
        let calls = (0..together).map(|n| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let message = vec![n as u8; 20_000];
                let response = client.send_request(call("20S", &message)).await.expect("an answer");
                assert_eq!(
                    (response.status().as_u16(), response.version()),
                    (200, Version::HTTP_2)
                );
                let (head, body) = response.into_parts();
                let collected = body.collect().await.expect("a body");
                let Some(trailers) = collected.trailers().cloned() else {
                    panic!("no trailers: {head:?}");
                };
                assert_eq!(collected.to_bytes(), message);
                trailers
            })
        });
        for call in calls.collect::<Vec<_>>() {
            let trailers = call.await.expect("no panic");
            let expected = [
                ("grpc-status", "0"),
                ("x-authority", "shop:8443"),
                ("x-te", "trailers"),
                ("x-forwarded-for", "127.0.0.1"),
            ];
            for (name, value) in expected {
                assert_eq!(trailers.get(name).map(HeaderValue::as_bytes), Some(value.as_bytes()));
            }
        }
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_grpc_call_whose_time_is_up_is_refused_in_its_own_words() {
    let (address, connections) = grpc_service().await;
    let sidecar = sidecar_before(address);
    let mut client = connect(sidecar.handle.listen()).await;
    let response = client.send_request(call("0n", b"late")).await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["grpc-status"], "4");
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn either_version_meets_the_other() {
    let (address, _) = grpc_service().await;
    let sidecar = sidecar_before(address);
    let reply = tokio::task::spawn_blocking(move || {
        let mut client = sidecar.client();
        client.send(
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        );
        client.reply()
    });
    assert_eq!(reply.await.expect("no panic").text(), "hi");

    let upstream = Upstream::start(|request| {
        assert_eq!(request.header("host"), Some("shop:8443"));
        ok(&format!("{} of HTTP/1.1", request.body.len()))
    });
    let sidecar = Sidecar::start("", &[upstream.address]);
    let mut client = connect(sidecar.handle.listen()).await;
    let response = client.send_request(call("20S", b"four")).await.expect("an answer");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "4 of HTTP/1.1");
    tokio::task::spawn_blocking(move || drop(sidecar)).await.expect("it ends");
}

/// A firewall forgets connections without a word to either side.
#[tokio::test]
async fn a_connection_that_has_gone_silent_is_not_used_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let silent_after = if connections.is_empty() { 1 } else { usize::MAX };
            connections.push(tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                let mut kept = Vec::new();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    if kept.len() < silent_after {
                        respond.send_response(Response::new(()), true).expect("an answer");
                    }
                    kept.push(respond);
                }
            }));
        }
    });
    let config =
        "[proxy]\nthreads = 1\nresponse_timeout = '100ms'\n[proxy.health]\neject_after = 0\n";
    let mut file = file(config, &[address]);
    file.proxy.upstreams = vec![format!("h2c://{address}").parse().expect("an address")];
    let sidecar = Sidecar::with_source(file, None);
    let statuses = tokio::task::spawn_blocking(move || {
        let mut client = sidecar.client();
        [(); 4].map(|()| client.get("/", "").status())
    });
    assert_eq!(statuses.await.expect("no panic"), [200, 504, 200, 200]);
}
