//! What cannot be brought about over sockets: threads that meet at the wrong moment.

use std::net::{TcpListener, TcpStream};

use bytes::Bytes;
use tidegate_core::gate::GateConfig;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::*;

const NOW: Instant = Instant::ZERO;

struct Bench {
    core: Core,
    conn: Arc<Conn>,
    runtime: Runtime,
    _peer: TcpStream,
    calls: u64,
}

impl Bench {
    /// A server with one slot and one worker, and a connection.
    fn new() -> Self {
        let config = "admission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";
        let config = GateConfig::from_toml(config).expect("valid");
        let gate = Gate::new(&config, NOW, 1).expect("valid");
        let bounds = Arc::new(Bounds::for_tests(100));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("listens");
        let (stream, _) = listener.accept().expect("connected");
        stream.set_nonblocking(true).expect("can be set");
        let stream = mio::net::TcpStream::from_std(stream);
        let conn = Arc::new(Conn::new(stream, Arc::clone(&bounds)));
        let core = Core::new(gate, 1, 100, 100, bounds);
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        Self { core, conn, runtime, _peer: peer, calls: 0 }
    }

    /// A request that runs, and its call.
    fn start(&mut self) -> (RequestId, u64) {
        self.calls += 1;
        let request = Waiting {
            conn: Arc::clone(&self.conn),
            call: self.calls,
            method: 0,
            context: Context::default(),
            payload: Bytes::new(),
            arrived: NOW,
        };
        self.core.arrive(NOW, request, &mut Dirty::new());
        self.core.dispatch(NOW, &mut Dirty::new());
        let job = self.core.next_job().expect("the slot is free");
        self.core.called();
        (job.id, self.calls)
    }

    fn end(&mut self, id: RequestId) {
        self.core.finish(NOW, id, Ok(Bytes::new()), Took::all(Span::ZERO), &mut Dirty::new());
    }

    /// The caller gives up.
    fn cancel(&mut self, call: u64) -> Option<AbortHandle> {
        let id = self.conn.lock().finish(call).expect("open");
        self.core.cancel(NOW, id)
    }

    fn task(&self) -> JoinHandle<()> {
        self.runtime.spawn(std::future::pending())
    }

    /// Whether a task was told to stop.
    fn is_stopped(&self, task: JoinHandle<()>) -> bool {
        self.runtime.block_on(async {
            tokio::task::yield_now().await;
            task.is_finished()
        })
    }
}

/// A task may end before its handle is known, and another request may have its place by then.
#[test]
fn a_handle_belongs_to_its_request_not_to_its_place() {
    let mut bench = Bench::new();
    let (first, _) = bench.start();
    bench.end(first);
    let (second, call) = bench.start();
    assert_eq!(first.index(), second.index(), "the same place");
    let (own, stale) = (bench.task(), bench.task());
    assert!(bench.core.running_as(second, own.abort_handle()).is_none());
    assert!(bench.core.running_as(first, stale.abort_handle()).is_none());
    bench.cancel(call).expect("a task").abort();
    assert!(bench.is_stopped(own), "it can be stopped");
    assert!(!bench.is_stopped(stale));
}

#[test]
fn a_cancel_before_the_handle_is_known_stops_the_task() {
    let mut bench = Bench::new();
    let (id, call) = bench.start();
    assert!(bench.cancel(call).is_none(), "not yet");
    let task = bench.task();
    assert!(bench.core.running_as(id, task.abort_handle()).is_some(), "to be stopped at once");
}

/// When the time is up a task is over for its caller and for the gate, whenever it is dropped.
#[test]
fn what_is_given_up_does_not_wait_for_its_task() {
    let mut bench = Bench::new();
    let (id, _) = bench.start();
    let task = bench.task();
    assert!(bench.core.running_as(id, task.abort_handle()).is_none());
    let mut dirty = Dirty::new();
    assert_eq!(bench.core.give_up(NOW, &mut dirty).len(), 1);
    assert_eq!((bench.core.gate.running(), dirty.len(), bench.conn.lock().open()), (0, 1, 0));
    // The task ends all the same: too late to matter.
    bench.end(id);
    assert_eq!(bench.core.counts.answered, 0);
}
