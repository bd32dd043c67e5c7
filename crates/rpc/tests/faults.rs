//! Bad clients, and things that go wrong: whoever misbehaves is dealt with, and others do not notice.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Got, Raw, held, open, until};
use proptest::prelude::*;
use tidegate_core::caller::CallerConfig;
use tidegate_core::gate::GateConfig;
use tidegate_core::{CallerId, Context, Rank, Reason};
use tidegate_rpc::wire::{self, Goodbye, Limits, VERSION};
use tidegate_rpc::{Bytes, CallError, Client, Request, Server, asynchronous, blocking};

fn echo() -> Server {
    let limits = Limits { payload: 4096, fields: 256 };
    Server::builder()
        .gate(open(1))
        .limits(limits)
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds")
}

/// Somebody else is served as if nothing had happened.
fn serves(server: &Server) {
    let mut raw = Raw::connect(server.address());
    let call = raw.send(b"hello");
    assert_eq!(raw.get(), Got::Answer(call, b"hello".to_vec()));
}

#[test]
fn what_cannot_be_read_ends_its_connection_and_no_other() {
    let server = echo();
    let mut bystander = Raw::connect(server.address());
    bystander.send(b"before");
    assert_eq!(bystander.get(), Got::Answer(1, b"before".to_vec()));
    let header = |length: u32, version: u8, kind: u8, fields: u16, call: u64| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([version, kind]);
        bytes.extend(fields.to_le_bytes());
        bytes.extend(call.to_le_bytes());
        bytes
    };
    let mut again = header(12, VERSION, 1, 0, 7);
    again.extend(header(12, VERSION, 1, 0, 7));
    let bad: [(&str, Vec<u8>); 6] = [
        ("garbage", b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec()),
        ("oversized", header(1 << 20, VERSION, 1, 0, 1)),
        ("too short", header(3, VERSION, 1, 0, 1)),
        ("another version", header(12, VERSION + 1, 1, 0, 1)),
        ("fields beyond the frame", header(12, VERSION, 1, 40, 1)),
        ("the same number twice", again),
    ];
    for (count, (what, bytes)) in bad.iter().enumerate() {
        let mut raw = Raw::connect(server.address());
        raw.write(bytes);
        let mut got = raw.get();
        while let Got::Answer(..) = got {
            got = raw.get();
        }
        assert_eq!(got, Got::Goodbye(Goodbye::Malformed), "{what}");
        assert_eq!(raw.get(), Got::End, "{what}");
        until(what, || server.counts().malformed == count as u64 + 1);
    }
    bystander.send(b"after");
    assert_eq!(bystander.get(), Got::Answer(2, b"after".to_vec()));
    server.gate().read(|gate| assert_eq!((gate.running(), gate.waiting()), (0, 0)));
}

proptest! {
    /// Any bytes at all, cut anywhere, leave a server that serves.
    #[test]
    fn any_bytes_leave_a_server_that_serves(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..4),
    ) {
        let server = echo();
        let mut stream = TcpStream::connect(server.address()).expect("listens");
        for chunk in &chunks {
            // It may have been closed already.
            let _ = stream.write_all(chunk);
        }
        serves(&server);
        drop(stream);
        serves(&server);
    }
}

#[test]
fn frames_may_come_byte_by_byte() {
    let server = echo();
    let mut raw = Raw::connect(server.address());
    let mut bytes = Vec::new();
    raw.frame(&mut bytes, &Context::default(), 0, b"slowly");
    raw.frame(&mut bytes, &Context::default(), 0, b"slower");
    for byte in bytes {
        raw.write(&[byte]);
    }
    assert_eq!(raw.get(), Got::Answer(1, b"slowly".to_vec()));
    assert_eq!(raw.get(), Got::Answer(2, b"slower".to_vec()));
}

/// A peer that vanished in the middle of a frame, or has nothing to say, is not kept for ever.
#[test]
fn silent_connections_are_ended() {
    let server = Server::builder()
        .gate(open(1))
        .idle(Duration::from_millis(50))
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds");
    let mut half = Raw::connect(server.address());
    half.write(&[200, 0, 0, 0, VERSION]);
    assert_eq!(half.get(), Got::Goodbye(Goodbye::Idle));
    assert_eq!(half.get(), Got::End);
}

/// A client that ignores its window is refused without asking the gate, then parted with; others are
/// served meanwhile.
#[test]
fn whoever_exceeds_window_and_free_cursor_is_refused_then_parted_with() {
    let (release, released) = tokio::sync::watch::channel(false);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
    let runtime = runtime.expect("a runtime");
    let entered = runtime.enter();
    let handler = asynchronous(move |request: Request| {
        let mut released = released.clone();
        async move {
            // Method 0 answers at once; others wait, so that requests pile up.
            if request.method > 0 {
                let _ = released.wait_for(|now| *now).await;
            }
            Ok(request.payload)
        }
    });
    // Few credits, and no rank is free.
    let gate = GateConfig::from_toml(
        "admission = { policy = 'breakwater', target = '1s', drop = '10s', per_caller = 8 }\n\
         slots = { slots = 'fixed', count = 4 }",
    );
    let server = Server::builder().gate(gate.expect("valid")).strikes(100);
    let server = server.bind("127.0.0.1:0", handler).expect("binds");
    drop(entered);
    let mut flood = Raw::connect(server.address());
    let context = Context { caller: CallerId(77), rank: Rank::LAST, ..Context::default() };
    flood.send_as(&context, 0, b"");
    let (_, feedback) = flood.get_with_feedback();
    let window = feedback.and_then(|feedback| feedback.window).expect("told");
    let mut good = Raw::connect(server.address());
    let (mut refused, mut parted) = (0, false);
    for _ in 0..window + 1000 {
        let mut bytes = Vec::new();
        flood.frame(&mut bytes, &context, 1, b"");
        // Once it was parted with, writing fails.
        if flood.stream.write_all(&bytes).is_err() {
            break;
        }
    }
    loop {
        match flood.get() {
            Got::Refusal(_, rejection) => {
                assert_eq!(rejection.reason, Reason::Credit);
                refused += 1;
            }
            Got::Goodbye(why) => {
                assert_eq!(why, Goodbye::Violation);
                parted = true;
            }
            Got::End => break,
            _ => {}
        }
    }
    // The end of the connection may overtake its last frames.
    assert!(server.counts().violations >= 100, "{:?}", server.counts());
    assert!(refused <= 100 && (parted || refused < 100), "{refused}");
    release.send(true).expect("handlers listen");
    let call = good.send(b"me");
    assert_eq!(good.get(), Got::Answer(call, b"me".to_vec()));
    let gate = server.gate();
    until("its requests are gone", || gate.read(|gate| gate.running() == 0 && gate.waiting() == 0));
}

/// Who does not take answers is not worked for any further: what the server keeps for it is bounded,
/// however many requests it had read before.
#[test]
fn a_slow_reader_costs_a_bounded_amount_of_memory() {
    const ANSWER: usize = 256 << 10;
    const REQUESTS: usize = 2_000;
    let (answer, runs) = (Bytes::from(vec![1; ANSWER]), Arc::new(AtomicU64::new(0)));
    let run = Arc::clone(&runs);
    let handler = blocking(move |request: Request| {
        if request.payload.is_empty() {
            return Ok(request.payload);
        }
        run.fetch_add(1, Ordering::SeqCst);
        Ok(answer.clone())
    });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let mut slow = Raw::connect(server.address());
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS {
        slow.frame(&mut bytes, &Context::default(), 0, b"x");
    }
    slow.write(&bytes);
    serves_anything(&server);
    // All have been read, and each is answered or refused.
    let mut last = 0;
    until("it stalls", || {
        let now = runs.load(Ordering::SeqCst);
        serves_anything(&server);
        std::thread::sleep(Duration::from_millis(100));
        std::mem::replace(&mut last, now) == now && now > 1
    });
    // Answers would be 512 MB. The kernel takes a few, then 4 MiB of them wait.
    let worked = runs.load(Ordering::SeqCst) as usize;
    assert!(worked * ANSWER < 128 << 20, "{worked} answers are kept");
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..REQUESTS {
        match slow.get() {
            Got::Answer(_, answer) => {
                assert_eq!(answer.len(), ANSWER);
                answered += 1;
            }
            Got::Refusal(_, rejection) => {
                assert_eq!(rejection.reason, Reason::Full);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(answered > 1 && refused > 1, "{answered} answered, {refused} refused");
}

/// Neither does who does not take refusals: it is not read until it does.
#[test]
fn who_takes_no_refusals_costs_a_bounded_amount_of_memory() {
    const REQUESTS: u64 = 400_000;
    let server = Server::builder().gate(open(1)).out_limit(64 << 10);
    let server = server.bind("127.0.0.1:0", blocking(|request| Ok(request.payload)));
    let server = server.expect("binds");
    server.gate().input(|gate, _| gate.drain());
    let mut slow = Raw::connect(server.address());
    // What the kernels keep is not what this is about.
    socket2::SockRef::from(&slow.stream).set_recv_buffer_size(64 << 10).expect("can be set");
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS {
        slow.frame(&mut bytes, &Context::default(), 0, b"");
    }
    slow.stream.set_nonblocking(true).expect("can be set");
    let (mut sent, mut last) = (0, 0);
    until("it is not read any further", || {
        while let Ok(count) = slow.stream.write(&bytes[sent..]) {
            sent += count;
            assert!(sent < bytes.len(), "all is read, and all refusals are kept");
        }
        std::thread::sleep(Duration::from_millis(100));
        let now = server.counts().refused;
        std::mem::replace(&mut last, now) == now && now > 1
    });
    let mut other = Raw::connect(server.address());
    other.send(b"");
    assert!(matches!(other.get(), Got::Refusal(..)), "others are read");
    slow.stream.set_nonblocking(false).expect("can be set");
    for call in 1..=last {
        assert!(matches!(slow.get(), Got::Refusal(its, _) if its == call));
    }
    // It is read again: whatever it sent has an end.
    until("the rest is refused", || server.counts().refused > last + 1);
}

/// Who has as much open as it may is read again when something has ended.
#[test]
fn who_has_too_much_open_is_read_again() {
    let server = Server::builder()
        .gate(open(1))
        .open(2)
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds");
    let mut raw = Raw::connect(server.address());
    let mut bytes = Vec::new();
    for _ in 0..200 {
        // Padded, so that they do not all fit into one read.
        raw.frame(&mut bytes, &Context::default(), 0, &[0; 1000]);
    }
    raw.write(&bytes);
    for call in 1..=200 {
        assert_eq!(raw.get(), Got::Answer(call, vec![0; 1000]));
    }
}

/// The beginnings of frames count among what is kept, and whoever exceeds the bound goes.
#[test]
fn beginnings_of_frames_are_bounded() {
    let server = Server::builder()
        .gate(open(1))
        .held(10_000)
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds");
    let mut raw = Raw::connect(server.address());
    let mut bytes = Vec::new();
    raw.frame(&mut bytes, &Context::default(), 0, &[0; 100_000]);
    let _ = raw.stream.write_all(&bytes[..50_000]);
    // Its goodbye may be lost with the connection, for what nobody read.
    match raw.get() {
        Got::Goodbye(why) => assert_eq!((why, raw.get()), (Goodbye::Violation, Got::End)),
        other => assert_eq!(other, Got::End),
    }
    serves(&server);
}

/// Who does not go on with a frame is parted with, also if a byte comes now and then.
#[test]
fn a_frame_that_trickles_in_is_not_waited_for() {
    let server = Server::builder()
        .gate(open(1))
        .frame_time(Duration::from_millis(50))
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds");
    let mut raw = Raw::connect(server.address());
    let mut bytes = Vec::new();
    raw.frame(&mut bytes, &Context::default(), 0, &[0; 200_000]);
    let mut rest = bytes.iter();
    until("it is parted with", || {
        let next = rest.next().expect("no frame takes that long");
        raw.stream.write_all(&[*next]).is_err()
    });
    serves(&server);
}

/// Beginnings of frames do not keep the payloads of others out, and the oldest of them go first.
#[test]
fn who_goes_on_is_served_whoever_does_not() {
    let server = Server::builder()
        .gate(open(1))
        .held(100_000)
        .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
        .expect("binds");
    let mut begun: Vec<(Raw, Vec<u8>)> = Vec::new();
    for _ in 0..95 {
        let mut raw = Raw::connect(server.address());
        let (mut bytes, mut rest) = (Vec::new(), Vec::new());
        raw.frame(&mut bytes, &Context::default(), 0, b"");
        raw.frame(&mut rest, &Context::default(), 0, &[7; 2000]);
        bytes.extend(rest.drain(..1000));
        raw.write(&bytes);
        // With the answer the beginning of the next frame has been read too.
        assert!(matches!(raw.get(), Got::Answer(1, _)));
        begun.push((raw, rest));
    }
    let mut other = Raw::connect(server.address());
    let call = other.send(&[1; 10_000]);
    assert_eq!(other.get(), Got::Answer(call, vec![1; 10_000]));
    let (mut newest, rest) = begun.pop().expect("many");
    newest.write(&rest);
    assert_eq!(newest.get(), Got::Answer(2, vec![7; 2000]));
    let (mut oldest, _) = begun.swap_remove(0);
    assert_eq!(oldest.get(), Got::Goodbye(Goodbye::Violation));
    assert_eq!(oldest.get(), Got::End);
}

/// Of those who do not take their answers, who has not for longest goes first.
#[test]
fn who_takes_answers_gets_them_whoever_does_not() {
    const MEGABYTE: usize = 1_000_000;
    let (answer, runs) = (Bytes::from(vec![1; MEGABYTE]), Arc::new(AtomicU64::new(0)));
    let run = Arc::clone(&runs);
    let handler = blocking(move |_: Request| {
        run.fetch_add(1, Ordering::SeqCst);
        Ok(answer.clone())
    });
    let server = Server::builder().gate(open(1)).out_limit(100 << 20).held(40 << 20);
    let server = server.bind("127.0.0.1:0", handler).expect("binds");
    // The kernel takes some of each. What is left of both is more than half of the bound.
    let [mut first, mut second] = [25, 16].map(|requests| {
        let mut raw = Raw::connect(server.address());
        socket2::SockRef::from(&raw.stream).set_recv_buffer_size(64 << 10).expect("can be set");
        let (mut bytes, before) = (Vec::new(), runs.load(Ordering::SeqCst));
        for _ in 0..requests {
            raw.frame(&mut bytes, &Context::default(), 0, b"");
        }
        raw.write(&bytes);
        until("all have run", || runs.load(Ordering::SeqCst) == before + requests);
        raw
    });
    let mut nothing = Vec::new();
    wire::write_cancel(&mut nothing, 99);
    until("the first is parted with", || first.stream.write_all(&nothing).is_err());
    for call in 1..=16 {
        assert!(matches!(second.get(), Got::Answer(its, _) if its == call));
    }
}

fn serves_anything(server: &Server) {
    let mut raw = Raw::connect(server.address());
    raw.send(b"");
    assert!(matches!(raw.get(), Got::Answer(..)));
}

/// The server has closed its side too.
fn is_closed(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("can be set");
    assert_eq!(stream.read(&mut [0; 64]).expect("an end, not silence"), 0);
}

/// The end of a connection is one event with the data before it, if nobody read meanwhile: it is seen
/// all the same.
#[test]
fn an_end_that_comes_with_data_is_seen() {
    let (handler, entered, leave) = held(|_| true);
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let goes = TcpStream::connect(server.address()).expect("listens");
    let mut busy = Raw::connect(server.address());
    until("both are accepted", || server.counts().connections == 2);
    busy.send(b"x");
    entered.recv().expect("runs");
    // The only worker is busy.
    let mut bytes = Vec::new();
    wire::write_goodbye(&mut bytes, Goodbye::Leaving);
    (&goes).write_all(&bytes).expect("is kept");
    goes.shutdown(Shutdown::Write).expect("connected");
    leave.send(()).expect("runs");
    is_closed(&goes);
}

/// A peer that has said goodbye is not waited for once nothing of it is open.
#[test]
fn a_connection_ends_after_its_goodbye() {
    let server = echo();
    let mut raw = Raw::connect(server.address());
    let call = raw.send(b"last");
    let mut bytes = Vec::new();
    wire::write_goodbye(&mut bytes, Goodbye::Leaving);
    raw.write(&bytes);
    assert_eq!(raw.get(), Got::Answer(call, b"last".to_vec()));
    assert_eq!(raw.get(), Got::End);
}

#[test]
fn a_storm_of_connections_leaves_others_served() {
    let server = echo();
    let mut steady = Raw::connect(server.address());
    let storm: Vec<TcpStream> = (0..600)
        .map(|number| {
            let stream = TcpStream::connect(server.address()).expect("listens");
            if number % 3 == 0 {
                // Says something and goes.
                let mut bytes = Vec::new();
                wire::write_goodbye(&mut bytes, Goodbye::Leaving);
                let _ = (&stream).write_all(&bytes);
            }
            stream
        })
        .collect();
    let call = steady.send(b"during");
    assert_eq!(steady.get(), Got::Answer(call, b"during".to_vec()));
    storm.iter().for_each(|stream| stream.shutdown(Shutdown::Write).expect("connected"));
    let call = steady.send(b"after");
    assert_eq!(steady.get(), Got::Answer(call, b"after".to_vec()));
    storm.iter().for_each(is_closed);
    // The rest of the storm may still wait to be accepted.
    until("all have been accepted", || server.counts().connections == 601);
}

/// A connection that ends takes its requests with it, and its slots and credits go to others.
#[test]
fn a_connection_that_breaks_gives_everything_back() {
    let (handler, entered, leave) = held(|request| request.method == 1);
    let server = Server::builder().gate(open(1)).workers(2).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let mut raw = Raw::connect(server.address());
    raw.send_as(&Context::default(), 1, b"runs");
    entered.recv().expect("runs");
    for _ in 0..5 {
        raw.send(b"waits");
    }
    let gate = server.gate();
    until("five wait", || gate.read(|gate| gate.waiting()) == 5);
    raw.hang_up();
    until("none waits", || gate.read(|gate| gate.waiting()) == 0);
    leave.send(()).expect("runs");
    serves(&server);
    // The one that ran was not wanted either.
    assert_eq!(server.counts().cancelled, 6);
}

/// A server stops and another one takes its place, while calls are made all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_survive_a_restart_and_get_their_own_answers() {
    let handler = || blocking(|request: Request| Ok(request.payload));
    let gate = || {
        let text = "admission = { policy = 'tide', objective = '100s' }\n\
                    slots = { slots = 'fixed', count = 1 }";
        GateConfig::from_toml(text).expect("valid")
    };
    let server = Server::builder().gate(gate()).bind("127.0.0.1:0", handler()).expect("binds");
    let address = server.address();
    let caller = CallerConfig::from_toml("retry = { attempts = 3, failures = true }").expect("ok");
    let client = Client::builder().endpoint(address).caller(caller).build().expect("valid");
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..8u64)
        .map(|caller| {
            let (client, stop, served) = (client.clone(), Arc::clone(&stop), Arc::clone(&served));
            tokio::spawn(async move {
                let mut number = caller << 32;
                while !stop.load(Ordering::SeqCst) {
                    number += 1;
                    let text = number.to_string();
                    match client
                        .request(1, text.clone())
                        .deadline(Duration::from_secs(30))
                        .send()
                        .await
                    {
                        // Its own answer, and no other's.
                        Ok(answer) => {
                            assert_eq!(answer, text);
                            served.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(CallError::Failed(failure)) => panic!("echo does not fail: {failure}"),
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
            })
        })
        .collect();
    let grew = |by: u64| {
        let before = served.load(Ordering::SeqCst);
        until("calls are served", || served.load(Ordering::SeqCst) >= before + by);
    };
    tokio::task::block_in_place(|| grew(100));
    tokio::task::block_in_place(|| drop(server));
    // The port may need a moment.
    let mut again = None;
    tokio::task::block_in_place(|| {
        until("the port is free", || {
            again = Server::builder().gate(gate()).bind(address, handler()).ok();
            again.is_some()
        });
        grew(100);
    });
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no panic");
    }
    client.caller().read(|caller| assert_eq!((caller.in_flight(0), caller.held()), (0, 0)));
    let again = again.expect("bound");
    let gate = again.gate();
    gate.read(|gate| {
        gate.invariants();
        assert_eq!((gate.running(), gate.waiting()), (0, 0));
    });
    client.close().await;
    tokio::task::block_in_place(|| {
        until("its credits are back", || gate.read(|gate| gate.admission().issued().is_empty()));
    });
}

/// What a server writes to a client that does not speak its language is read as an end.
#[tokio::test]
async fn a_client_of_something_else_is_told_that_the_connection_makes_no_sense() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody connects");
        let mut buffer = [0; 1024];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let caller = CallerConfig::from_toml("retry = { attempts = 1 }").expect("valid");
    let client = Client::builder().endpoint(address).caller(caller).build().expect("valid");
    let error = client.call(1, "hello").await.expect_err("it is no RPC server");
    assert!(matches!(error, CallError::Broken(_)), "{error}");
}
