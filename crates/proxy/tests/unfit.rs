//! What cannot pass as it is, over HTTP/2: requests that are turned away, and answers of which a part stays here.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use support::leaks::conserved;
use support::{Sidecar, Upstream, ok};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_blocking;

/// Nothing is refused however slow the machine that runs this is.
const OPEN: &str = "[proxy]\nthreads = 1\n[gate.admission]\npolicy = 'open'\n";

async fn connect(sidecar: &Sidecar) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(sidecar.handle.listen()).await.expect("somebody listens");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2 is spoken");
    tokio::spawn(connection);
    client
}

/// Asks, and reads the answer to its end.
async fn ask(
    client: &SendRequest<Bytes>,
    request: Request<()>,
    body: &'static str,
) -> (StatusCode, HeaderMap, String, Option<HeaderMap>) {
    let mut client = client.clone().ready().await.expect("open");
    let (answer, mut stream) = client.send_request(request, body.is_empty()).expect("sent");
    if !body.is_empty() {
        stream.send_data(Bytes::from_static(body.as_bytes()), true).expect("taken");
    }
    let (head, mut body) = answer.await.expect("an answer").into_parts();
    let mut text = Vec::new();
    while let Some(piece) = body.data().await {
        text.extend_from_slice(&piece.expect("it goes on"));
    }
    let trailers = body.trailers().await.expect("it ends well");
    (head.status, head.headers, String::from_utf8(text).expect("text"), trailers)
}

/// How the rest of an answer is sent.
type End = fn(&mut SendStream<Bytes>);

/// A service that speaks HTTP/2 only, and answers as `answer` does.
async fn service(answer: fn(&Request<RecvStream>) -> (Response<()>, End)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2 is spoken");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (head, end) = answer(&request);
                end(&mut respond.send_response(head, false).expect("taken"));
            }
        }
    });
    address
}

fn before(upstream: SocketAddr) -> Sidecar {
    let mut file = support::file(OPEN, &[upstream]);
    file.proxy.upstreams = vec![format!("h2c://{upstream}").parse().expect("an address")];
    Sidecar::with_source(file, None)
}

/// How many requests have ended as told.
fn ended(sidecar: &Sidecar, how: &str) -> u64 {
    let finished = &sidecar.state()["finished"];
    let bands = finished.as_object().expect("bands").values();
    bands.map(|band| band[how].as_u64().unwrap_or(0)).sum()
}

/// Of two lengths, one server believes the one and the next the other.
#[tokio::test]
async fn a_request_with_two_lengths_is_turned_away() {
    let address = service(|request| {
        let told = request.headers().get_all("content-length").iter().count();
        let head = Response::builder().header("x-lengths", told).body(()).expect("well formed");
        (head, |stream| stream.send_data(Bytes::new(), true).expect("taken"))
    })
    .await;
    let sidecar = before(address);
    let client = connect(&sidecar).await;
    let with = |lengths: [&'static str; 2]| {
        let mut request = Request::post("http://shop/").body(()).expect("well formed");
        for length in lengths {
            request.headers_mut().append("content-length", HeaderValue::from_static(length));
        }
        request
    };
    let (status, headers, ..) = ask(&client, with(["5", "5"]), "12345").await;
    assert_eq!((status, &headers["x-lengths"]), (StatusCode::OK, &HeaderValue::from(1)));
    let (status, _, text, _) = ask(&client, with(["5", "05"]), "12345").await;
    assert_eq!((status, &*text), (StatusCode::BAD_REQUEST, "the request has two lengths\n"));
    // Of other numbers it is malformed (RFC 9113, 8.1.1), and nothing is answered at all.
    let mut client = client.ready().await.expect("open");
    let (answer, _stream) = client.send_request(with(["5", "6"]), false).expect("sent");
    let error = answer.await.expect_err("it is turned away");
    assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR));
    spawn_blocking(move || {
        conserved(&sidecar);
        assert_eq!(ended(&sidecar, "served"), 1);
    })
    .await
    .expect("no panic");
}

/// A proxy before a service is none that tunnels go through.
#[tokio::test]
async fn connect_is_not_served_in_either_version() {
    let upstream = Upstream::start(|_| ok("reached"));
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let client = connect(&sidecar).await;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = "shop:443".parse().expect("an authority");
    let (status, _, text, _) = ask(&client, request, "").await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED);
    assert!(text.contains("CONNECT"), "{text}");
    spawn_blocking(move || {
        let mut client = sidecar.client();
        client.send("CONNECT shop:443 HTTP/1.1\r\nhost: shop:443\r\n\r\n");
        let reply = client.reply();
        assert_eq!((reply.status(), reply.text()), (501, text));
        conserved(&sidecar);
    })
    .await
    .expect("no panic");
    assert_eq!(upstream.connections.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// Some servers say by an empty frame that nothing follows a head that nothing can follow.
#[tokio::test]
async fn an_answer_that_has_no_body_is_whole_with_its_head() {
    let address = service(|request| {
        let status = match request.uri().path() {
            "/204" => StatusCode::NO_CONTENT,
            "/304" => StatusCode::NOT_MODIFIED,
            _ => StatusCode::OK,
        };
        let head = Response::builder().status(status).header("x-kept", "1");
        (head.body(()).expect("well formed"), |stream| {
            stream.send_data(Bytes::new(), true).expect("taken");
        })
    })
    .await;
    let sidecar = before(address);
    let client = connect(&sidecar).await;
    let asked = [(Method::HEAD, "/", 200), (Method::GET, "/204", 204), (Method::GET, "/304", 304)];
    for (method, path, status) in asked {
        for _ in 0..10 {
            let request = Request::builder().method(method.clone());
            let request = request.uri(format!("http://shop{path}")).body(()).expect("well formed");
            let (answered, headers, text, _) = ask(&client, request, "").await;
            assert_eq!((answered.as_u16(), &*text), (status, ""));
            assert_eq!(headers["x-kept"], "1");
        }
    }
    spawn_blocking(move || {
        conserved(&sidecar);
        assert_eq!((ended(&sidecar, "served"), ended(&sidecar, "cancelled")), (30, 0));
    })
    .await
    .expect("no panic");
}

/// What is meant for one connection is not passed on, and no reason to lose an answer.
#[tokio::test]
async fn trailers_lose_what_is_meant_for_one_connection() {
    let upstream = Upstream::start(|_| {
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\
         keep-alive: timeout=5\r\nupgrade: h2c\r\nte: gzip\r\nx-sum: 7\r\n\r\n"
            .to_owned()
    });
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let client = connect(&sidecar).await;
    let request = Request::get("http://shop/").body(()).expect("well formed");
    let (status, _, text, trailers) = ask(&client, request, "").await;
    assert_eq!((status, &*text), (StatusCode::OK, "hi"));
    let trailers = trailers.expect("trailers");
    assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &HeaderValue::from(7)));
    spawn_blocking(move || drop(sidecar)).await.expect("it ends");
}
