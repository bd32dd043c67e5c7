//! Many requests on one HTTP/2 connection: how they begin, wait, are given up and end.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use support::leaks::{conserved, files_at_rest, wait_for_files};
use support::{Sidecar, Upstream, ok};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};

/// Nothing is refused however slow the machine that runs this is.
const OPEN: &str = "[proxy]\nthreads = 1\nwhen_left = 'goes-on'\n[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\n";
/// More than any window or buffer on the way.
const LARGE: usize = 8 << 20;

type Client = SendRequest<Bytes>;

/// A connection, and what tells how it has ended.
async fn connect(sidecar: &Sidecar) -> (Client, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(sidecar.handle.listen()).await.expect("somebody listens");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2 is spoken");
    (client.ready().await.expect("open"), tokio::spawn(connection))
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://a{path}")).body(()).expect("well formed")
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://a{path}")).body(()).expect("well formed")
}

async fn ask(client: &Client, path: &str) -> Result<Response<RecvStream>, h2::Error> {
    let mut client = client.clone().ready().await?;
    client.send_request(get(path), true)?.0.await
}

/// All of a body, which is taken as it comes, and its trailers.
async fn whole(body: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let (mut body, mut read) = (body, Vec::new());
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        read.extend_from_slice(&piece);
    }
    Ok((read, body.trailers().await?))
}

async fn text(response: Response<RecvStream>) -> String {
    let (body, _) = whole(response.into_body()).await.expect("a body");
    String::from_utf8(body).expect("text")
}

/// Waits and looks on threads that may block.
async fn aside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(run).await.expect("no panic")
}

#[tokio::test]
async fn who_gives_up_gives_back_what_it_held_once_that_is_answered() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Arc::new(Sidecar::start(&format!("{OPEN}count = 4\n"), &[upstream.address]));
    let (client, _) = connect(&sidecar).await;
    assert_eq!(text(ask(&client, "/").await.expect("an answer")).await, "served");
    let before = aside(files_at_rest).await;
    let mut given_up = Vec::new();
    for _ in 0..8 {
        let mut client = client.clone().ready().await.expect("open");
        given_up.push(client.send_request(get("/slow"), true).expect("sent"));
    }
    let held = Arc::clone(&sidecar);
    let full = |state: &serde_json::Value| state["running"] == 4 && state["waiting"] == 4;
    aside(move || held.wait_for("four run and four wait", full)).await;
    // Four that run and four that wait: the upstream has not answered any of them.
    for (_, stream) in &mut given_up {
        stream.send_reset(Reason::CANCEL);
    }
    let held = Arc::clone(&sidecar);
    let left = |state: &serde_json::Value| state["abandoned"] == 4 && state["waiting"] == 0;
    aside(move || held.wait_for("nobody waits, and the service works on", left)).await;
    barrier.open();
    let held = Arc::clone(&sidecar);
    aside(move || conserved(&held)).await;
    // The connection goes on, and those that were given up do not stand in its way.
    assert_eq!(text(ask(&client, "/").await.expect("an answer")).await, "served");
    drop(client);
    // Connections to the upstream are kept for others, for a while.
    aside(move || wait_for_files(before)).await;
}

#[tokio::test]
async fn answers_come_in_the_order_in_which_they_are_there() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let (client, _) = connect(&sidecar).await;
    let slow = ask(&client, "/slow");
    let quick = async {
        for _ in 0..300 {
            assert_eq!(text(ask(&client, "/").await.expect("an answer")).await, "served");
        }
        barrier.open();
    };
    let (slow, ()) = tokio::join!(slow, quick);
    assert_eq!(text(slow.expect("an answer")).await, "served");
}

#[tokio::test]
async fn large_bodies_pass_both_ways_at_once() {
    let upstream = Upstream::start(|request| {
        let sum: u64 = request.body.iter().map(|byte| u64::from(*byte)).sum();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-sum: {sum}\r\n\r\n{}",
            request.body.len(),
            "y".repeat(request.body.len())
        )
    });
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let (client, _) = connect(&sidecar).await;
    let mut calls = JoinSet::new();
    for n in 1..=4_u8 {
        let client = client.clone();
        calls.spawn(async move {
            let mut client = client.ready().await.expect("open");
            let (answer, mut stream) = client.send_request(post("/"), false).expect("sent");
            let mut left = Bytes::from(vec![n; LARGE]);
            while !left.is_empty() {
                stream.reserve_capacity(left.len());
                let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                let room = room.expect("open").expect("room").min(left.len());
                let piece = left.split_to(room);
                stream.send_data(piece, left.is_empty()).expect("taken");
            }
            let answer = answer.await.expect("an answer");
            let sum = u64::from(n) * LARGE as u64;
            assert_eq!(answer.headers()["x-sum"], HeaderValue::from(sum));
            let (body, _) = whole(answer.into_body()).await.expect("a body");
            assert!(body.len() == LARGE && body.iter().all(|byte| *byte == b'y'));
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
}

#[tokio::test]
async fn trailers_come_through_from_an_upstream_of_either_version() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                   2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n";
    let upstream = Upstream::start(move |_| chunked.to_owned());
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let (client, _) = connect(&sidecar).await;
    let answer = ask(&client, "/").await.expect("an answer");
    assert!(!answer.headers().contains_key("transfer-encoding"), "frames need none");
    assert!(answer.headers().contains_key("date"), "told by whoever passes it on");
    let (body, trailers) = whole(answer.into_body()).await.expect("a body");
    assert_eq!(
        (&body[..], trailers.expect("trailers")["x-sum"].as_bytes()),
        (&b"hi"[..], &b"7"[..])
    );

    // And from the client.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let told = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("the sidecar comes");
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2 is spoken");
        let (request, mut respond) = connection.accept().await.expect("one").expect("well formed");
        let driven = tokio::spawn(async move { while connection.accept().await.is_some() {} });
        let (body, trailers) = whole(request.into_body()).await.expect("a body");
        respond.send_response(Response::new(()), true).expect("taken");
        driven.await.expect("no panic");
        (body, trailers)
    });
    let mut file = support::file(OPEN, &[address]);
    file.proxy.upstreams = vec![format!("h2c://{address}").parse().expect("an address")];
    let second = Sidecar::with_source(file, None);
    let (mut client, _) = connect(&second).await;
    let (answer, mut stream) = client.send_request(post("/"), false).expect("sent");
    stream.send_data(Bytes::from_static(b"ho"), false).expect("taken");
    let trailers = [("x-sum".parse().expect("a name"), HeaderValue::from(8))];
    stream.send_trailers(HeaderMap::from_iter(trailers)).expect("taken");
    assert_eq!(answer.await.expect("an answer").status(), 200);
    aside(move || drop(second)).await;
    let (body, trailers) = told.await.expect("no panic");
    assert_eq!(
        (&body[..], trailers.expect("trailers")["x-sum"].as_bytes()),
        (&b"ho"[..], &b"8"[..])
    );
}

#[tokio::test]
async fn at_the_end_clients_are_told_and_what_was_asked_is_answered() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let (client, connection) = connect(&sidecar).await;
    let mut asking = client.clone();
    let (answer, _) = asking.send_request(get("/slow"), true).expect("sent");
    let handle = sidecar.handle.clone();
    let came = barrier.clone();
    aside(move || {
        while came.came() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    })
    .await;
    handle.stop();
    // Told to begin nothing more: from then on it cannot.
    let refused = loop {
        match ask(&client, "/").await {
            Ok(answer) => drop(text(answer).await),
            Err(error) => break error,
        }
    };
    assert!(
        refused.is_go_away() || refused.is_io() || refused.reason() == Some(Reason::REFUSED_STREAM),
        "{refused}"
    );
    barrier.open();
    assert_eq!(text(answer.await.expect("an answer")).await, "served");
    drop((client, asking));
    connection.await.expect("no panic").expect("it ends in good order");
    aside(move || sidecar.ended()).await;
}

/// An upload that its client breaks off must not look complete to the service.
#[tokio::test]
async fn an_upload_that_is_given_up_is_not_taken_for_whole() {
    let read = Arc::new(Mutex::new(Vec::new()));
    let (seen, (done, mut ended)) = (Arc::clone(&read), tokio::sync::mpsc::channel(1));
    let upstream = Upstream::raw(move |mut client| {
        client.head().expect("a head");
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest);
        seen.lock().unwrap().extend(rest);
        let _ = done.blocking_send(());
    });
    let sidecar = Arc::new(Sidecar::start(OPEN, &[upstream.address]));
    let (mut client, _) = connect(&sidecar).await;
    let (_answer, mut stream) = client.send_request(post("/"), false).expect("sent");
    stream.send_data(Bytes::from_static(b"half"), false).expect("taken");
    let held = Arc::clone(&sidecar);
    aside(move || held.wait_for("it is inside", |state| state["running"] == 1)).await;
    stream.send_reset(Reason::CANCEL);
    ended.recv().await.expect("the upstream's connection ends");
    let read = String::from_utf8(read.lock().unwrap().clone()).expect("text");
    assert!(read.is_empty() || read == "4\r\nhalf\r\n", "{read:?}");
    aside(move || conserved(&sidecar)).await;
}

#[tokio::test]
async fn an_answer_to_head_has_no_body_and_tells_its_length() {
    let mut upstream = Upstream::start(|_| ok("served"));
    upstream.kill();
    // In our own words, as nobody else is there.
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let (client, _) = connect(&sidecar).await;
    let told = ask(&client, "/").await.expect("an answer");
    let (status, length) = (told.status(), told.headers()["content-length"].clone());
    assert_eq!((status, &length), (502.try_into().expect("one"), &text(told).await.len().into()));
    let mut request = get("/");
    *request.method_mut() = Method::HEAD;
    let mut client = client.ready().await.expect("open");
    let answer = client.send_request(request, true).expect("sent").0.await.expect("an answer");
    assert_eq!((answer.status(), &answer.headers()["content-length"]), (status, &length));
    assert!(answer.headers().contains_key("date"));
    let (body, _) = whole(answer.into_body()).await.expect("an end");
    assert!(body.is_empty(), "{body:?}");
}

/// An upstream that breaks off within its answer: the client is told, and only of that request.
#[tokio::test]
async fn an_answer_that_breaks_off_is_reset() {
    let upstream = Upstream::raw(|mut client| {
        while let Ok(request) = client.head() {
            if request.first.contains("/half") {
                client.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
                return;
            }
            let _ = client.stream.get_mut().write_all(ok("served").as_bytes());
        }
    });
    let sidecar = Sidecar::start(OPEN, &[upstream.address]);
    let (client, _) = connect(&sidecar).await;
    // A reset overtakes what is still to be written, perhaps the head.
    let error = match ask(&client, "/half").await {
        Ok(answer) => whole(answer.into_body()).await.expect_err("not whole"),
        Err(error) => error,
    };
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    assert_eq!(text(ask(&client, "/").await.expect("an answer")).await, "served");
}

/// Begins and gives up without end (CVE-2023-44487): it is told off, and nothing of it is left.
#[tokio::test]
async fn who_only_begins_and_gives_up_is_turned_away() {
    let (barrier, upstream) = Upstream::held();
    let sidecar = Arc::new(Sidecar::start(OPEN, &[upstream.address]));
    let address = sidecar.handle.listen();
    let closed = aside(move || {
        let mut client = support::Client::connect(address);
        let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        flood.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        for id in (1..20_000_u32).step_by(2) {
            let path = b"\x82\x86\x41\x01a\x04\x05/slow";
            flood.extend([0, 0, path.len() as u8, 1, 5]);
            flood.extend(id.to_be_bytes());
            flood.extend(path);
            flood.extend([0, 0, 4, 3, 0]);
            flood.extend(id.to_be_bytes());
            flood.extend([0, 0, 0, 8]);
        }
        let sent = client.stream.get_mut().write_all(&flood);
        let mut rest = Vec::new();
        let read = client.stream.read_to_end(&mut rest);
        sent.is_err() || read.is_err() || rest.windows(9).any(|frame| frame[3..5] == [7, 0])
    })
    .await;
    assert!(closed, "it is told to go away");
    barrier.open();
    aside(move || conserved(&sidecar)).await;
}
