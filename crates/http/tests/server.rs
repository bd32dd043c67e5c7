//! The server layer behind real sockets: what is served, what is refused, and what is freed.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate_core::event::Event;
use tidegate_core::gate::{Gate, GateConfig};
use tidegate_core::slots::SlotsConfig;
use tidegate_core::{Context as RequestContext, Instant, Outcome, Span};
use tidegate_driver::{SharedGate, context};
use tidegate_http::GateLayer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tower_layer::Layer;
use tower_service::Service;

// === the service under test ===

/// Answers by path: `/` at once, `/wait` when a permit is there, `/panic` never, `/stream` with
/// whatever is sent to the channel, `/fail` with a server error.
#[derive(Clone)]
struct App {
    permits: Arc<Semaphore>,
    stream: Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    gate: SharedGate,
}

/// What a handler saw when it ran.
struct Seen {
    /// How many waited behind it.
    waiting: usize,
    context: Option<RequestContext>,
}

impl App {
    fn new(slots: u32, queue_limit: usize) -> Self {
        let config =
            GateConfig { slots: SlotsConfig::fixed(slots), queue_limit, ..GateConfig::default() };
        let gate = Gate::new(&config, Instant::ZERO, 1).expect("a valid configuration");
        Self {
            permits: Arc::new(Semaphore::new(0)),
            stream: Arc::default(),
            seen: Arc::default(),
            gate: SharedGate::new(gate),
        }
    }
}

impl<B: Send + 'static> Service<Request<B>> for App {
    type Response = Response<Channel>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let app = self.clone();
        Box::pin(async move {
            let seen = Seen { waiting: app.gate.waiting(), context: context::current() };
            app.seen.lock().unwrap().push(seen);
            let mut response = Response::new(Channel::of("done"));
            match request.uri().path() {
                "/wait" => app.permits.acquire().await.expect("never closed").forget(),
                "/panic" => panic!("the handler's own"),
                "/fail" => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
                "/stream" => {
                    let receiver = app.stream.lock().unwrap().take().expect("prepared");
                    response = Response::new(Channel(receiver));
                }
                _ => {}
            }
            Ok(response)
        })
    }
}

/// A body of unknown length, fed from outside.
struct Channel(mpsc::Receiver<Bytes>);

impl Channel {
    fn of(text: &'static str) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        sender.try_send(Bytes::from(text)).expect("room for one");
        Self(receiver)
    }
}

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Serves `app` behind its gate.
async fn serve(app: &App, h2: bool) -> SocketAddr {
    serve_with(GateLayer::new(app.gate.clone()).patience(PATIENCE).layer(app.clone()), h2).await
}

/// Serves from a task of the current runtime.
async fn serve_with<S, B>(service: S, h2: bool) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
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
                let _ = if h2 {
                    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await
                } else {
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
                };
            });
        }
    });
    address
}

const PATIENCE: Span = Span::from_secs(3600);

// === clients ===

enum Client {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Client {
    async fn connect(address: SocketAddr, h2: bool) -> Self {
        let io = TokioIo::new(TcpStream::connect(address).await.expect("connects"));
        if h2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), io).await.expect("speaks HTTP/2");
            tokio::spawn(connection);
            Self::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.expect("speaks HTTP/1.1");
            tokio::spawn(connection);
            Self::Http1(sender)
        }
    }

    /// The status of the answer, none if the connection broke.
    async fn get(&mut self, path: &str) -> Option<StatusCode> {
        let request = Request::get(format!("http://localhost{path}"))
            .header("host", "localhost")
            .body(Empty::new())
            .expect("a valid request");
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.ok()?;
                sender.send_request(request).await.ok()?
            }
            Self::Http2(sender) => sender.send_request(request).await.ok()?,
        };
        let status = response.status();
        response.into_body().collect().await.ok()?;
        Some(status)
    }

    /// Sends from a task of its own.
    fn send(mut self, path: &'static str) -> tokio::task::JoinHandle<(Self, Option<StatusCode>)> {
        tokio::spawn(async move {
            let status = self.get(path).await;
            (self, status)
        })
    }
}

/// Waits until something is so; that it becomes so, however slow the machine, is the test.
async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never became so");
}

fn is_idle(gate: &SharedGate) -> bool {
    gate.running() == 0 && gate.waiting() == 0 && gate.tickets() == 0
}

// === tests ===

#[tokio::test]
async fn requests_are_served_and_see_their_context() {
    for h2 in [false, true] {
        let app = App::new(2, 10);
        let mut client = Client::connect(serve(&app, h2).await, h2).await;
        for _ in 0..3 {
            assert_eq!(client.get("/").await, Some(StatusCode::OK));
        }
        assert_eq!(client.get("/fail").await, Some(StatusCode::INTERNAL_SERVER_ERROR));
        until(|| is_idle(&app.gate)).await;
        let seen = app.seen.lock().unwrap();
        assert_eq!(seen.len(), 4);
        assert!(seen.iter().all(|seen| {
            seen.context.is_some_and(|context| context.deadline > Instant::ZERO + PATIENCE)
        }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_a_response_and_keeps_the_connection() {
    for h2 in [false, true] {
        let app = App::new(1, 1);
        let address = serve(&app, h2).await;
        let running = Client::connect(address, h2).await.send("/wait");
        until(|| app.gate.running() == 1).await;
        let waiting = Client::connect(address, h2).await.send("/wait");
        until(|| app.gate.waiting() == 1).await;
        let mut refused = Client::connect(address, h2).await;
        assert_eq!(refused.get("/").await, Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(refused.get("/").await, Some(StatusCode::SERVICE_UNAVAILABLE));
        app.permits.add_permits(2);
        assert_eq!(running.await.unwrap().1, Some(StatusCode::OK));
        assert_eq!(waiting.await.unwrap().1, Some(StatusCode::OK));
        until(|| is_idle(&app.gate)).await;
        assert_eq!(refused.get("/").await, Some(StatusCode::OK));
        assert_eq!(app.seen.lock().unwrap().len(), 3, "what was refused reached no handler");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_frees_its_place_and_its_slot() {
    for h2 in [false, true] {
        let app = App::new(1, 10);
        let address = serve(&app, h2).await;
        let running = Client::connect(address, h2).await.send("/wait");
        until(|| app.gate.running() == 1).await;
        let first = Client::connect(address, h2).await.send("/wait");
        until(|| app.gate.waiting() == 1).await;
        let second = Client::connect(address, h2).await.send("/wait");
        until(|| app.gate.waiting() == 2).await;
        // One that waits goes; then the one that runs, whose slot goes to the one left.
        first.abort();
        until(|| app.gate.waiting() == 1).await;
        assert_eq!(app.gate.running(), 1);
        running.abort();
        until(|| app.gate.waiting() == 0 && app.gate.running() == 1).await;
        app.permits.add_permits(1);
        assert_eq!(second.await.unwrap().1, Some(StatusCode::OK));
        until(|| is_idle(&app.gate)).await;
    }
}

#[tokio::test]
async fn a_handler_that_panics_frees_its_slot() {
    for h2 in [false, true] {
        let app = App::new(1, 10);
        let address = serve(&app, h2).await;
        assert_eq!(Client::connect(address, h2).await.get("/panic").await, None);
        until(|| is_idle(&app.gate)).await;
        assert_eq!(Client::connect(address, h2).await.get("/").await, Some(StatusCode::OK));
    }
}

#[tokio::test]
async fn a_slot_is_kept_to_the_last_byte() {
    let app = App::new(1, 10);
    let (sender, receiver) = mpsc::channel(1);
    *app.stream.lock().unwrap() = Some(receiver);
    let address = serve(&app, false).await;
    let streaming = Client::connect(address, false).await.send("/stream");
    sender.send(Bytes::from("first")).await.unwrap();
    sender.send(Bytes::from("second")).await.unwrap();
    assert_eq!(app.gate.running(), 1);
    let waiting = Client::connect(address, false).await.send("/");
    until(|| app.gate.waiting() == 1).await;
    drop(sender);
    assert_eq!(streaming.await.unwrap().1, Some(StatusCode::OK));
    assert_eq!(waiting.await.unwrap().1, Some(StatusCode::OK));
    until(|| is_idle(&app.gate)).await;
}

/// The proof in small: requests that lie in sockets when the first one starts stand in the gate
/// when its handler runs. Decided and run in one poll, each would find the gate empty.
#[tokio::test]
async fn what_has_reached_the_machine_stands_in_the_gate_before_a_handler_runs() {
    const CLIENTS: usize = 8;
    let app = App::new(1, 100);
    let address = serve(&app, false).await;
    let get = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // Blocking sockets, so that all requests are written while the runtime does not run.
    let mut clients: Vec<std::net::TcpStream> = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = std::net::TcpStream::connect(address).expect("connects");
        client.write_all(get).expect("room in the socket");
        let served = app.seen.lock().unwrap().len() + 1;
        until(|| app.seen.lock().unwrap().len() == served && is_idle(&app.gate)).await;
        clients.push(client);
    }
    // Long enough that no thread has just come round.
    std::thread::sleep(Duration::from_millis(2));
    app.seen.lock().unwrap().clear();
    for client in &mut clients {
        client.write_all(get).expect("room in the socket");
    }
    until(|| app.seen.lock().unwrap().len() == CLIENTS && is_idle(&app.gate)).await;
    let waiting: Vec<usize> = app.seen.lock().unwrap().iter().map(|seen| seen.waiting).collect();
    assert_eq!(waiting, (0..CLIENTS).rev().collect::<Vec<_>>());
    for mut client in clients {
        client.shutdown(std::net::Shutdown::Write).expect("open");
        tokio::task::spawn_blocking(move || client.read_to_end(&mut Vec::new()))
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn an_arrival_is_decided_in_the_call_and_undone_by_dropping_it() {
    let app = App::new(1, 1);
    let mut service = GateLayer::new(app.gate.clone()).layer(app.clone());
    let request = || Request::new(Empty::<Bytes>::new());
    let first = service.call(request());
    let second = service.call(request());
    assert_eq!((app.gate.running(), app.gate.waiting()), (1, 1));
    let refused = service.call(request()).await.expect("a refusal is a response");
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(first);
    assert_eq!((app.gate.running(), app.gate.waiting()), (1, 0));
    // Started, gone round once, and dropped before its handler runs.
    let mut second = Box::pin(second);
    assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(second);
    assert!(is_idle(&app.gate));
    assert!(app.seen.lock().unwrap().is_empty());
}

/// Answers with a body whose length is known; servers do not poll such a body to its end.
#[derive(Clone)]
struct Plain;

impl<B> Service<Request<B>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let text = if request.uri().path() == "/empty" { "" } else { "done" };
        std::future::ready(Ok(Response::new(Full::from(text))))
    }
}

/// The ends the gate has heard of since the last call.
fn outcomes(gate: &SharedGate) -> Vec<Outcome> {
    gate.input(|gate, _| {
        let ends = gate.events().drain().filter_map(|(_, event)| match event {
            Event::Finish { outcome, .. } => Some(outcome),
            _ => None,
        });
        ends.collect()
    })
}

#[tokio::test]
async fn the_gate_hears_how_requests_end() {
    for h2 in [false, true] {
        let app = App::new(1, 10);
        app.gate.input(|gate, _| gate.events().keep(true));
        let plain = GateLayer::new(app.gate.clone()).layer(Plain);
        let mut client = Client::connect(serve_with(plain, h2).await, h2).await;
        assert_eq!(client.get("/").await, Some(StatusCode::OK));
        assert_eq!(client.get("/empty").await, Some(StatusCode::OK));
        until(|| is_idle(&app.gate)).await;
        assert_eq!(outcomes(&app.gate), [Outcome::Serve, Outcome::Serve]);

        let address = serve(&app, h2).await;
        let mut client = Client::connect(address, h2).await;
        assert_eq!(client.get("/").await, Some(StatusCode::OK));
        assert_eq!(client.get("/fail").await, Some(StatusCode::INTERNAL_SERVER_ERROR));
        let gone = client.send("/wait");
        until(|| app.gate.running() == 1 && app.seen.lock().unwrap().len() == 3).await;
        gone.abort();
        until(|| is_idle(&app.gate)).await;
        assert_eq!(outcomes(&app.gate), [Outcome::Serve, Outcome::Fail, Outcome::Cancel]);
    }
}

/// Fails whenever it is called.
#[derive(Clone)]
struct Broken;

#[derive(Debug, PartialEq)]
struct Failure;

impl Service<Request<Empty<Bytes>>> for Broken {
    type Response = Response<Full<Bytes>>;
    type Error = Failure;
    type Future = std::future::Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<Empty<Bytes>>) -> Self::Future {
        std::future::ready(Err(Failure))
    }
}

#[tokio::test]
async fn an_error_stays_that_of_the_service_and_frees_the_slot() {
    let app = App::new(1, 1);
    let mut service = GateLayer::new(app.gate.clone()).layer(Broken);
    let answer = service.call(Request::new(Empty::new())).await;
    assert_eq!(answer.map(|_| ()), Err(Failure));
    assert!(is_idle(&app.gate));
    let ready = pin!(poll_fn(|cx| service.poll_ready(cx))).await;
    assert_eq!(ready, Ok(()));
}
