//! The end of a server: asked for, or not.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{Got, Raw, held, open, until};
use tidegate_core::caller::CallerConfig;
use tidegate_core::{Context, Reason};
use tidegate_rpc::wire::Goodbye;
use tidegate_rpc::{CallError, Client, Failure, Request, Server, asynchronous, blocking};

const LONG: Duration = Duration::from_secs(60);

/// What was accepted is finished; callers are told; nothing new is taken.
#[test]
fn stopping_finishes_what_was_let_in() {
    let (handler, entered, leave) = held(|_| true);
    let server = Server::builder().gate(open(1)).workers(2).bind("127.0.0.1:0", handler);
    let server = server.expect("binds");
    let mut raw = Raw::connect(server.address());
    let (first, second) = (raw.send(b"first"), raw.send(b"second"));
    entered.recv().expect("runs");
    let gate = server.gate();
    until("the second waits", || gate.read(|gate| gate.waiting()) == 1);
    let address = server.address();
    let stopping = std::thread::spawn(move || server.stop(LONG));
    assert_eq!(raw.get(), Got::Goodbye(Goodbye::Leaving));
    let third = raw.send(b"third");
    let Got::Refusal(call, rejection) = raw.get() else { panic!("refused") };
    assert_eq!((call, rejection.reason), (third, Reason::Draining));
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody new is taken");
    leave.send(()).expect("runs");
    assert_eq!(raw.get(), Got::Answer(first, b"first".to_vec()));
    leave.send(()).expect("runs");
    assert_eq!(raw.get(), Got::Answer(second, b"second".to_vec()));
    assert_eq!(raw.get(), Got::End);
    stopping.join().expect("stops");
}

/// What was sent before the goodbye came is ended, if only by a refusal. A peer that takes longer than
/// the server waits for it is told nothing, so this may need another try on a machine that is busy.
#[test]
fn what_crosses_the_goodbye_is_ended() {
    let refused = || {
        let server = Server::builder()
            .gate(open(1))
            .bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))
            .expect("binds");
        let mut raw = Raw::connect(server.address());
        let call = raw.send(b"before");
        assert_eq!(raw.get(), Got::Answer(call, b"before".to_vec()));
        let stopping = std::thread::spawn(move || server.stop(LONG));
        // Said while the server has nothing to do; as if we had not heard it yet:
        assert_eq!(raw.get(), Got::Goodbye(Goodbye::Leaving));
        let mut bytes = Vec::new();
        let call = raw.frame(&mut bytes, &Context::default(), 0, b"crossed");
        let _ = raw.stream.write_all(&bytes);
        let got = raw.get();
        // Our end is enough for it to be over.
        raw.hang_up();
        stopping.join().expect("stops");
        matches!(got, Got::Refusal(c, r) if c == call && r.reason == Reason::Draining)
    };
    assert!((0..10).any(|_| refused()));
}

/// When the grace is over, what waits is refused and what runs as a task is failed: all are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_grace_tells_everybody() {
    let handler = asynchronous(|_| async { std::future::pending().await });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let mut raw = Raw::connect(server.address());
    let (runs, waits) = (raw.send(b"runs"), raw.send(b"waits"));
    let gate = server.gate();
    until("one waits", || gate.read(|gate| gate.waiting()) == 1);
    let ended = tokio::task::spawn_blocking(move || {
        let mut got = Vec::new();
        loop {
            match raw.get() {
                Got::End => return got,
                other => got.push(other),
            }
        }
    });
    tokio::task::spawn_blocking(move || server.stop(Duration::ZERO)).await.expect("stops");
    let got = ended.await.expect("no panic");
    assert!(got.contains(&Got::Failure(runs, Failure::STOPPED)), "{got:?}");
    let refused = |got: &Got| matches!(got, Got::Refusal(call, r) if *call == waits && r.reason == Reason::Draining);
    assert!(got.iter().any(refused), "{got:?}");
}

/// A runtime of one thread, which is blocked by `stop`: tasks cannot be finished, and the end comes all
/// the same.
#[tokio::test]
async fn a_stop_that_blocks_the_runtime_ends() {
    let handler = asynchronous(|_| async { std::future::pending().await });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let mut raw = Raw::connect(server.address());
    let call = raw.send(b"x");
    let gate = server.gate();
    until("it runs", || gate.read(|gate| gate.running()) == 1);
    server.stop(Duration::from_millis(1));
    assert_eq!(raw.get(), Got::Goodbye(Goodbye::Leaving));
    assert_eq!(raw.get(), Got::Failure(call, Failure::STOPPED));
    assert_eq!(raw.get(), Got::End);
}

/// `close` leaves the runtime to the tasks, which are finished.
#[tokio::test]
async fn a_close_finishes_tasks_of_the_same_thread() {
    let (release, released) = tokio::sync::watch::channel(false);
    let handler = asynchronous(move |request: Request| {
        let mut released = released.clone();
        async move {
            released.wait_for(|now| *now).await.expect("not dropped");
            Ok(request.payload)
        }
    });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let client = Client::builder().endpoint(server.address()).build().expect("valid");
    let gate = server.gate();
    let call = tokio::spawn(async move { client.call(1, "x").await });
    while gate.read(|gate| gate.running()) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let closing = tokio::spawn(server.close(LONG));
    release.send(true).expect("the handler listens");
    assert_eq!(call.await.expect("no panic").expect("served"), "x");
    closing.await.expect("ends");
}

/// A handler that never returns does not keep its server from ending.
#[test]
fn a_stop_does_not_wait_for_ever() {
    let (enter, entered) = mpsc::channel();
    let handler = blocking(move |_| {
        enter.send(()).expect("the test listens");
        loop {
            std::thread::park();
        }
    });
    let server = Server::builder().gate(open(1)).bind("127.0.0.1:0", handler).expect("binds");
    let address = server.address();
    let mut raw = Raw::connect(address);
    raw.send(b"x");
    entered.recv().expect("runs");
    server.stop(Duration::ZERO);
    assert_eq!(raw.get(), Got::End);
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens");
}

/// Where the other process of the next test listens; set for that process only.
const ADDRESS: &str = "TIDEGATE_RPC_TEST_ADDRESS";

/// A server process is killed under load and another one takes its place: its callers recover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_recover_from_a_server_that_was_killed() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return serve(&address);
    }
    let (first, address) = start("127.0.0.1:0");
    let caller = CallerConfig::from_toml("retry = { attempts = 1 }").expect("valid");
    let client = Client::builder()
        .endpoint(address.parse().expect("an address"))
        .caller(caller)
        .build()
        .expect("valid");
    let (served, mut count) = tokio::sync::watch::channel(0u64);
    let served = std::sync::Arc::new(served);
    let callers: Vec<_> = (0..8)
        .map(|number: u64| {
            let (client, served) = (client.clone(), std::sync::Arc::clone(&served));
            tokio::spawn(async move {
                loop {
                    let text = number.to_string();
                    let call = client.request(1, text.clone()).deadline(Duration::from_secs(5));
                    match call.send().await {
                        Ok(answer) => {
                            assert_eq!(answer, text);
                            served.send_modify(|served| *served += 1);
                        }
                        Err(CallError::Failed(failure)) => panic!("echo does not fail: {failure}"),
                        Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            })
        })
        .collect();
    count.wait_for(|served| *served >= 100).await.expect("callers run");
    drop(first);
    let so_far = *count.borrow();
    // The port may need a moment.
    let (_second, again) = start(&address);
    assert_eq!(again, address);
    count.wait_for(|served| *served >= so_far + 100).await.expect("callers run");
    assert!(callers.iter().all(|caller| !caller.is_finished()), "none has panicked");
    callers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Another process, killed in the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("runs");
        self.0.wait().expect("can be waited for");
    }
}

/// This test again, as a server in another process, and where it listens.
fn start(address: &str) -> (Process, String) {
    let mut process = Command::new(std::env::current_exe().expect("known"))
        .args(["callers_recover_from_a_server_that_was_killed", "--exact", "--nocapture"])
        .env(ADDRESS, address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let stdout = BufReader::new(process.stdout.take().expect("piped"));
    let process = Process(process);
    // The harness may have printed the test's name on the same line.
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    let listens = lines.find_map(|line| Some(line.split_once("listens at ")?.1.to_owned()));
    (process, listens.expect("it says so"))
}

/// The other process: serves until it is killed, or nobody is left to kill it.
fn serve(address: &str) {
    let mut server = None;
    until("the port is free", || {
        server = Server::builder()
            .gate(common::patient())
            .bind(address, blocking(|request| Ok(request.payload)))
            .ok();
        server.is_some()
    });
    let server = server.expect("bound");
    println!("listens at {}", server.address());
    let _ = std::io::stdin().read_line(&mut String::new());
}
