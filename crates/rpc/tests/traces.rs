//! The traces of `testdata/traces` through a real server over a real socket: the same verdicts, at the
//! same moments, as the bare gate gives.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::{Got, Manual, Raw, until};
use tidegate_core::Instant;
use tidegate_core::testing::{Ending, Trace};
use tidegate_driver::{Clock, Names};
use tidegate_rpc::wire::{self, RequestHead};
use tidegate_rpc::{Bytes, Request, Server, asynchronous};
use tokio::sync::oneshot;

/// Requests that have started: when, and how to let them end.
type Started = Arc<Mutex<BTreeMap<usize, (Instant, Option<oneshot::Sender<()>>)>>>;

/// Plays `trace`: at each moment handlers end first, then requests arrive, and all of it is settled
/// before time goes on.
fn play(trace: &Trace) -> Vec<Option<Ending>> {
    let (clock, started) = (Manual::default(), Started::default());
    let (handler_clock, noted) = (clock.clone(), Arc::clone(&started));
    let handler = asynchronous(move |request: Request| {
        let place = u32::from_le_bytes(request.payload[..4].try_into().expect("four bytes"));
        let (end, ended) = oneshot::channel();
        let begun = (handler_clock.now(), Some(end));
        noted.lock().expect("no panic").insert(place as usize, begun);
        async move {
            ended.await.expect("the test lets it end");
            Ok(Bytes::new())
        }
    });
    let server = Server::builder()
        .gate(trace.gate.clone())
        .seed(1)
        .clock(clock.clone())
        .stamps(false)
        .bind("127.0.0.1:0", handler)
        .expect("binds");
    let mut raw = Raw::connect(server.address());
    let mut endings = vec![None; trace.arrivals.len()];
    let (mut next, mut answered, mut refused) = (0, 0, 0);
    loop {
        let arrival = trace.arrivals.get(next).map(|arrival| arrival.at);
        let mut ends: Vec<(Instant, usize)> = started
            .lock()
            .expect("no panic")
            .iter()
            .filter(|(_, (_, end))| end.is_some())
            .map(|(place, (begun, _))| (*begun + trace.arrivals[*place].service, *place))
            .collect();
        ends.sort();
        let Some(now) = ends.first().map(|(at, _)| *at).into_iter().chain(arrival).min() else {
            break;
        };
        clock.set(now);
        for (_, place) in ends.into_iter().filter(|(at, _)| *at <= now) {
            let end = started.lock().expect("no panic").get_mut(&place).and_then(|s| s.1.take());
            end.expect("it runs").send(()).expect("it listens");
            answered += 1;
            until("it has ended", || server.counts().answered == answered);
        }
        let mut bytes = Vec::new();
        while let Some(arrival) = trace.arrivals.get(next).filter(|arrival| arrival.at <= now) {
            let head = RequestHead { method: 0, context: arrival.context };
            let payload = u32::try_from(next).expect("few").to_le_bytes();
            next += 1;
            wire::write_request(&mut bytes, next as u64, &head, now, &Names::process(), &payload);
        }
        raw.stream.write_all(&bytes).expect("is read");
        until("all has started that can", || {
            // In this order: what was read is in the gate, and what the gate let in is about to begin.
            let are_read = server.counts().requests == next as u64;
            let (running, is_settled) = server.gate().read(|gate| {
                let is_full = gate.running() >= gate.slots();
                (u64::from(gate.running()), is_full || gate.backlog().waiting() == 0)
            });
            let begun = started.lock().expect("no panic").len() as u64;
            are_read && is_settled && begun == running + answered
        });
        while refused < server.counts().refused {
            if let Got::Refusal(call, rejection) = raw.get() {
                endings[call as usize - 1] = Some(Ending::Refuse(rejection.reason, now));
                refused += 1;
            }
        }
        server.gate().read(|gate| gate.invariants());
    }
    for (place, (begun, _)) in &*started.lock().expect("no panic") {
        endings[*place] = Some(Ending::Serve(*begun));
    }
    endings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_gives_the_verdicts_of_the_bare_gate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces");
    let mut played = 0;
    for file in std::fs::read_dir(folder).expect("the traces are there") {
        let path = file.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let trace = Trace::parse(&text).expect("well-formed");
        let bare = trace.play();
        let endings = tokio::task::block_in_place(|| play(&trace));
        for ((arrival, ending), bare) in trace.arrivals.iter().zip(endings).zip(bare) {
            let where_ = format!("{}, request {}", path.display(), arrival.name);
            assert_eq!(ending, Some(arrival.expected), "{where_}");
            assert_eq!(ending, bare, "{where_}");
        }
        played += 1;
    }
    assert!(played >= 4, "{played} traces");
}
