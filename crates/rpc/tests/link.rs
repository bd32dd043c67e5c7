//! A client whose server stalls, cannot be reached, or is not done when the client leaves.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tidegate_core::caller::CallerConfig;
use tidegate_core::{Advice, Feedback, GateId, Instant, Reason, Rejection, Span};
use tidegate_driver::Names;
use tidegate_rpc::wire::{self, Frame, Goodbye, Kind, Limits};
use tidegate_rpc::{Broken, CallError, Client, ClientBuilder};
use tokio::task::{JoinHandle, spawn_blocking};

const LONG: Duration = Duration::from_secs(60);
/// More than the sockets between two processes hold.
const HUGE: usize = 32 << 20;
const LIMITS: Limits = Limits { payload: HUGE, fields: 1024 };

/// A server that does what a test says.
struct Peer {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// What it was sent.
#[derive(Debug, PartialEq)]
enum Seen {
    Request { call: u64, left: Option<Span>, demand: u32, payload: usize },
    Other(Kind),
    End,
}

impl Peer {
    fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().expect("somebody connects");
        stream.set_read_timeout(Some(LONG)).expect("can be set");
        Self { stream, bytes: Vec::new() }
    }

    /// Reads once. False at the end.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        let count = self.stream.read(buffer).expect("something comes");
        self.bytes.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// The next frame.
    fn see(&mut self) -> Seen {
        let mut buffer = vec![0; 1 << 20];
        loop {
            if let Some((frame, length)) = Frame::read(&self.bytes, &LIMITS).expect("well-formed") {
                let seen = match frame.kind.expect("known") {
                    Kind::Request => {
                        let read =
                            wire::read_request(frame.fields, Instant::ZERO, &Names::process());
                        let context = read.expect("well-formed").context;
                        let deadline = context.deadline;
                        Seen::Request {
                            call: frame.call,
                            left: (deadline < Instant::FAR).then(|| deadline.since(Instant::ZERO)),
                            demand: context.demand,
                            payload: frame.payload.len(),
                        }
                    }
                    kind => Seen::Other(kind),
                };
                self.bytes.drain(..length);
                return seen;
            }
            if !self.read(&mut buffer) {
                return Seen::End;
            }
        }
    }

    fn tell(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.stream.write_all(&bytes).expect("is read");
    }

    fn answer(&mut self, call: u64) {
        self.tell(|out| wire::write_answer(out, call, None, b"done"));
    }

    /// Answers all requests until the client goes.
    fn serve(mut self) {
        loop {
            match self.see() {
                Seen::Request { call, .. } => self.answer(call),
                Seen::Other(_) => {}
                Seen::End => return,
            }
        }
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// A client that controls nothing and tries once.
fn client(address: SocketAddr) -> ClientBuilder {
    let text = "throttle = { throttle = 'open' }\nretry = { attempts = 1 }";
    let caller = CallerConfig::from_toml(text).expect("valid");
    Client::builder().endpoint(address).caller(caller).limits(LIMITS).out_limit(2 * HUGE)
}

type Outcome = Result<tidegate_rpc::Bytes, CallError>;

fn spawn(client: &Client, bytes: usize, patience: Duration) -> JoinHandle<Outcome> {
    let call = client.request(1, vec![0; bytes]).deadline(patience);
    tokio::spawn(call.send())
}

/// A client with one huge request under way to a peer that has read no more than its beginning.
async fn stalled(
    builder: ClientBuilder,
    listener: TcpListener,
) -> (Client, JoinHandle<Outcome>, Peer) {
    let client = builder.build().expect("valid");
    let huge = spawn(&client, HUGE, LONG);
    let accepted = spawn_blocking(move || {
        let mut peer = Peer::accept(&listener);
        assert!(peer.read(&mut [0; 16]));
        peer
    });
    (client, huge, accepted.await.expect("no panic"))
}

/// The peer takes connections and says nothing, as one that hangs, or is gone without a word.
#[tokio::test]
async fn a_server_that_says_nothing_while_calls_time_out_is_connected_to_anew() {
    let (listener, address) = listen();
    let serving = spawn_blocking(move || {
        let silent = Peer::accept(&listener);
        Peer::accept(&listener).serve();
        drop(silent);
    });
    let client = client(address).silence(Duration::from_millis(100)).build().expect("valid");
    let mut timed_out = 0;
    let answer = loop {
        match client.request(1, "").deadline(Duration::from_millis(20)).send().await {
            Ok(answer) => break answer,
            Err(CallError::TimedOut) => timed_out += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(timed_out < 3_000, "never served");
    };
    assert_eq!(answer, "done");
    assert!(timed_out > 0);
    client.close().await;
    drop(client);
    serving.await.expect("no panic");
}

/// A call whose deadline is far, on the connection that is given up, is told so.
#[tokio::test]
async fn whoever_waits_on_a_connection_that_is_given_up_is_told() {
    let (listener, address) = listen();
    let client = client(address).silence(Duration::from_millis(100)).build().expect("valid");
    let patient = spawn(&client, 0, LONG * 60);
    let mut impatient = 0;
    while !patient.is_finished() {
        let call = client.request(1, "").deadline(Duration::from_millis(20));
        assert!(call.send().await.is_err());
        impatient += 1;
        assert!(impatient < 3_000, "never told");
    }
    let told = patient.await.expect("no panic");
    let timed_out = |error: &std::io::Error| error.kind() == ErrorKind::TimedOut;
    assert!(
        matches!(&told, Err(CallError::Broken(Broken::Io(error))) if timed_out(error)),
        "{told:?}"
    );
    drop(listener);
}

/// Time spent waiting for the connection to take a request is not left of its deadline, and what was
/// given up meanwhile is never written, nor its cancellation.
#[tokio::test]
async fn a_request_becomes_bytes_when_it_is_written() {
    const STALL: Duration = Duration::from_millis(50);
    let (listener, address) = listen();
    let (client, huge, mut peer) = stalled(client(address).silence(LONG), listener).await;
    for _ in 0..20 {
        let given_up = client.request(1, "late").deadline(Duration::from_millis(1)).send().await;
        assert!(matches!(given_up, Err(CallError::TimedOut)), "{given_up:?}");
    }
    let small = spawn(&client, 5, LONG);
    // It has been queued when the next one has.
    let _ = client.request(1, "late").deadline(Duration::from_millis(1)).send().await;
    tokio::time::sleep(STALL).await;
    let seen = spawn_blocking(move || {
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.push(peer.see());
            let Some(Seen::Request { call, .. }) = seen.last() else { continue };
            let call = *call;
            peer.answer(call);
        }
        (seen, peer)
    });
    let (seen, _peer) = seen.await.expect("no panic");
    assert!(matches!(seen[0], Seen::Request { payload: HUGE, .. }), "{:?}", seen[0]);
    let Seen::Request { left: Some(left), payload: 5, .. } = seen[1] else {
        panic!("{:?}", seen[1])
    };
    assert!(left <= Span::from(LONG - STALL), "{left}");
    assert_eq!(huge.await.expect("no panic").expect("answered"), "done");
    assert_eq!(small.await.expect("no panic").expect("answered"), "done");
}

#[tokio::test]
async fn what_waits_to_be_written_is_bounded() {
    let (listener, address) = listen();
    let builder = client(address).silence(LONG).out_limit(1_000);
    let (client, _huge, _peer) = stalled(builder, listener).await;
    let mut calls: Vec<_> = (0..10).map(|_| spawn(&client, 600, LONG)).collect();
    let mut refused = 0;
    for call in calls.drain(2..) {
        match call.await.expect("no panic") {
            Err(CallError::Refused(rejection)) => {
                assert_eq!(rejection.reason, Reason::Full);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, 8);
    assert!(calls.iter().all(|call| !call.is_finished()), "these wait");
}

/// Requests without a payload take room as well.
#[tokio::test]
async fn empty_requests_that_wait_to_be_written_are_bounded() {
    let (listener, address) = listen();
    let builder = client(address).silence(LONG).out_limit(1_000);
    let (client, _huge, _peer) = stalled(builder, listener).await;
    let mut calls: Vec<_> = (0..50).map(|_| spawn(&client, 0, LONG)).collect();
    for call in calls.drain(20..) {
        let refused = call.await.expect("no panic");
        assert!(
            matches!(&refused, Err(CallError::Refused(r)) if r.reason == Reason::Full),
            "{refused:?}"
        );
    }
}

/// A server that leaves waits until its callers have closed: who waits for nothing does so at once.
#[tokio::test]
async fn a_client_closes_after_the_servers_goodbye() {
    let (listener, address) = listen();
    let client = client(address).build().expect("valid");
    let (leave, left) = mpsc::channel::<()>();
    let serving = spawn_blocking(move || {
        let mut peer = Peer::accept(&listener);
        let Seen::Request { call, .. } = peer.see() else { panic!("a request comes first") };
        peer.answer(call);
        left.recv().expect("the call was answered");
        peer.tell(|out| wire::write_goodbye(out, Goodbye::Leaving));
        assert_eq!(peer.see(), Seen::End);
    });
    client.call(1, "x").await.expect("answered");
    leave.send(()).expect("the server waits");
    serving.await.expect("no panic");
}

/// A server that takes connections and ends them, as one that has too many of them, is not asked for another with
/// every call.
#[tokio::test]
async fn who_ends_connections_unheard_is_not_stormed() {
    let (listener, address) = listen();
    let accepted = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&accepted);
    std::thread::spawn(move || {
        while listener.accept().is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let client = client(address).build().expect("valid");
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        let broken = client.call(1, "x").await;
        assert!(matches!(broken, Err(CallError::Broken(_))), "{broken:?}");
    }
    // Once per 100 ms, however long it took.
    let allowed = 2 + begun.elapsed().as_millis() / 100;
    let accepted = u128::from(accepted.load(Ordering::SeqCst));
    assert!(accepted <= allowed, "{accepted} connections, {allowed} are plenty");
}

/// Nobody says here which methods may be done twice.
#[test]
fn a_client_that_cannot_hedge_says_so() {
    let caller = CallerConfig::from_toml("hedge = {}").expect("valid elsewhere");
    let (_listener, address) = listen();
    let refused = Client::builder().endpoint(address).caller(caller).build();
    assert!(refused.expect_err("refused").to_string().contains("hedge"));
}

/// A peer that has taken no bytes for so long is given up, deadlines or not.
#[tokio::test]
async fn a_server_that_takes_nothing_is_given_up() {
    let (listener, address) = listen();
    let builder = client(address).silence(Duration::from_millis(100));
    let (client, huge, _peer) = stalled(builder, listener).await;
    let behind = client.request(1, "behind").send().await;
    for outcome in [huge.await.expect("no panic"), behind] {
        assert!(matches!(outcome, Err(CallError::Broken(Broken::Io(_)))), "{outcome:?}");
    }
}

/// Nobody answers the attempt to connect, as behind a firewall that drops it: all who wait learn it at
/// once, not one after the other.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn who_cannot_be_reached_is_not_waited_for_in_turn() {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    socket.listen(0).expect("listens");
    let address = socket.local_addr().expect("bound").as_socket().expect("an address");
    // Once its backlog is full Linux drops who comes.
    let fill = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
    let _held: Vec<TcpStream> = std::iter::from_fn(fill).take(100).collect();
    let client = client(address).silence(Duration::from_secs(1)).build().expect("valid");
    let calls: Vec<_> = (0..200).map(|_| spawn(&client, 0, LONG * 60)).collect();
    let all = async {
        for call in calls {
            let told = call.await.expect("no panic");
            let timed_out = |error: &std::io::Error| error.kind() == ErrorKind::TimedOut;
            assert!(
                matches!(&told, Err(CallError::Broken(Broken::Io(error))) if timed_out(error)),
                "{told:?}"
            );
        }
    };
    tokio::time::timeout(LONG, all).await.expect("in turn it would take two hundred seconds");
}

/// Goodbye is said at once; the call under way is answered all the same.
#[tokio::test]
async fn closing_does_not_wait_for_answers() {
    let (listener, address) = listen();
    let client = client(address).build().expect("valid");
    let (release, released) = mpsc::channel::<()>();
    let serving = spawn_blocking(move || {
        let mut peer = Peer::accept(&listener);
        let Seen::Request { call, .. } = peer.see() else { panic!("a request comes first") };
        assert_eq!(peer.see(), Seen::Other(Kind::Goodbye));
        released.recv().expect("the client has closed");
        peer.answer(call);
        assert_eq!(peer.see(), Seen::End);
    });
    let call = spawn(&client, 3, LONG);
    // On one thread: the call is queued before the goodbye.
    tokio::task::yield_now().await;
    tokio::time::timeout(LONG, client.close()).await.expect("closed while the call waits");
    release.send(()).expect("the server waits");
    assert_eq!(call.await.expect("no panic").expect("answered"), "done");
    serving.await.expect("no panic");
}

/// Calls that wait for credits are told as demand, and leave when the server gives credits unasked.
#[tokio::test]
async fn what_waits_here_is_demand_there() {
    let (listener, address) = listen();
    let text = "throttle = { throttle = 'credit' }\nhold_limit = 16\nhold_time = '60s'";
    let caller = CallerConfig::from_toml(text).expect("valid");
    let client = client(address).caller(caller).build().expect("valid");
    let calls: Vec<_> = (0..5).map(|_| spawn(&client, 0, LONG)).collect();
    let accepted = spawn_blocking(move || {
        let mut peer = Peer::accept(&listener);
        let Seen::Request { call, .. } = peer.see() else { panic!("one asks for credits") };
        (peer, call)
    });
    let (mut peer, first) = accepted.await.expect("no panic");
    for _ in 0..60_000 {
        if client.caller().read(|caller| caller.held()) == 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(client.caller().read(|caller| caller.held()), 4);
    let serving = spawn_blocking(move || {
        let mut sequence = 0;
        let mut grant = |peer: &mut Peer, window: u32| {
            sequence += 1;
            let feedback = Feedback::silent(GateId(1), sequence);
            peer.tell(|out| {
                wire::write_feedback(out, &Feedback { window: Some(window), ..feedback });
            });
        };
        let request = |peer: &mut Peer| match peer.see() {
            Seen::Request { call, demand, .. } => (call, demand),
            other => panic!("{other:?}"),
        };
        grant(&mut peer, 2);
        let (second, demand) = request(&mut peer);
        assert_eq!(demand, 3);
        grant(&mut peer, 5);
        let rest: Vec<_> = (0..3).map(|_| request(&mut peer)).collect();
        assert!(rest.iter().any(|(_, demand)| *demand == 0), "{rest:?}");
        for call in [first, second].into_iter().chain(rest.into_iter().map(|(call, _)| call)) {
            peer.answer(call);
        }
        peer
    });
    let _peer = serving.await.expect("no panic");
    for call in calls {
        assert_eq!(call.await.expect("no panic").expect("answered"), "done");
    }
}

/// Whatever a server refuses comes again only as often as the budget allows.
#[tokio::test]
async fn refusals_do_not_make_a_storm_of_retries() {
    const CALLS: usize = 200;
    let (listener, address) = listen();
    let serving = spawn_blocking(move || {
        let (mut peer, mut requests) = (Peer::accept(&listener), 0);
        loop {
            match peer.see() {
                Seen::Request { call, .. } => {
                    requests += 1;
                    let later = Advice::Later(Span::ZERO);
                    let refused = Rejection::new(Reason::Delay, 1.0, 1.0, later);
                    peer.tell(|out| wire::write_refusal(out, call, &refused, None));
                }
                Seen::Other(_) => {}
                Seen::End => return requests,
            }
        }
    });
    let text = "throttle = { throttle = 'open' }\n\
                retry = { attempts = 3, share = 0.1, reserve = 5, backoff = '0s' }";
    let caller = CallerConfig::from_toml(text).expect("valid");
    let client = client(address).caller(caller).build().expect("valid");
    for _ in 0..CALLS {
        let refused = client.call(1, "").await;
        assert!(matches!(&refused, Err(error) if error.is_refusal()), "{refused:?}");
    }
    client.close().await;
    drop(client);
    let requests = serving.await.expect("no panic");
    let most = CALLS + CALLS / 10 + 5;
    assert!((CALLS + 1..=most).contains(&requests), "{requests} requests, {most} allowed");
}
