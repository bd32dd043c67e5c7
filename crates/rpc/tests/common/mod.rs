//! What the tests share: a client of bare frames, and waiting for something to become true.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tidegate_core::gate::GateConfig;
use tidegate_core::{Context, Feedback, Instant, Rejection, Span};
use tidegate_driver::{Clock, Names};
use tidegate_rpc::wire::{self, Frame, Goodbye, Kind, Limits, RequestHead};
use tidegate_rpc::{Handler, Request, blocking};

/// A clock that stands still until it is set.
#[derive(Clone, Debug, Default)]
pub struct Manual(Arc<AtomicU64>);

impl Manual {
    pub fn set(&self, now: Instant) {
        self.0.store(now.since(Instant::ZERO).as_nanos(), Ordering::SeqCst);
    }

    pub fn go_on(&self, span: Span) {
        self.0.fetch_add(span.as_nanos(), Ordering::SeqCst);
    }
}

impl Clock for Manual {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// Nothing is controlled; `count` at once.
pub fn open(count: u32) -> GateConfig {
    let text = format!(
        "admission = {{ policy = 'open' }}\nslots = {{ slots = 'fixed', count = {count} }}"
    );
    GateConfig::from_toml(&text).expect("valid")
}

/// Credits as usual, with an objective so long that a busy machine does not count as overload.
pub fn patient() -> GateConfig {
    let text = "admission = { policy = 'tide', objective = '100s' }\n\
                slots = { slots = 'fixed', count = 1 }";
    GateConfig::from_toml(text).expect("valid")
}

/// A handler that returns what it got. Requests that `holds` is true of tell that they run, and run until they
/// are let go.
pub fn held(holds: fn(&Request) -> bool) -> (impl Handler, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (enter, entered) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let left = Mutex::new(left);
    let handler = blocking(move |request: Request| {
        if holds(&request) {
            enter.send(()).expect("the test listens");
            left.lock().expect("no panic").recv().expect("the test lets go");
        }
        Ok(request.payload)
    });
    (handler, entered, leave)
}

/// Waits until something is true. How long it takes depends on the machine, whether it happens does
/// not.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("never: {what}");
}

/// A client that sends what it likes.
pub struct Raw {
    pub stream: TcpStream,
    bytes: Vec<u8>,
    call: u64,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Answer(u64, Vec<u8>),
    Refusal(u64, Rejection),
    Failure(u64, u32),
    Feedback(Feedback),
    Goodbye(Goodbye),
    End,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("can be set");
        Self { stream, bytes: Vec::new(), call: 0 }
    }

    pub fn send(&mut self, payload: &[u8]) -> u64 {
        self.send_as(&Context::default(), 0, payload)
    }

    pub fn send_as(&mut self, context: &Context, method: u32, payload: &[u8]) -> u64 {
        let mut bytes = Vec::new();
        let call = self.frame(&mut bytes, context, method, payload);
        self.write(&bytes);
        call
    }

    /// Appends a request without sending it.
    pub fn frame(
        &mut self,
        bytes: &mut Vec<u8>,
        context: &Context,
        method: u32,
        payload: &[u8],
    ) -> u64 {
        self.call += 1;
        let head = RequestHead { method, context: *context };
        wire::write_request(bytes, self.call, &head, Instant::ZERO, &Names::process(), payload);
        self.call
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("is read");
    }

    /// The next frame.
    pub fn get(&mut self) -> Got {
        self.get_with_feedback().0
    }

    pub fn get_with_feedback(&mut self) -> (Got, Option<Feedback>) {
        loop {
            let limits = Limits::default();
            if let Some((frame, length)) = Frame::read(&self.bytes, &limits).expect("well-formed") {
                let feedback = wire::read_feedback(frame.fields).expect("well-formed");
                let got = match frame.kind.expect("known") {
                    Kind::Answer => Got::Answer(frame.call, frame.payload.to_vec()),
                    Kind::Refusal => {
                        Got::Refusal(frame.call, wire::read_rejection(frame.fields).expect("told"))
                    }
                    Kind::Failure => {
                        let failure = wire::read_failure(frame.fields, frame.payload);
                        Got::Failure(frame.call, failure.expect("told").code)
                    }
                    Kind::Feedback => Got::Feedback(feedback.expect("told")),
                    Kind::Goodbye => Got::Goodbye(wire::read_goodbye(frame.fields).expect("told")),
                    other => panic!("a server sent {other:?}"),
                };
                self.bytes.drain(..length);
                return (got, feedback);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return (Got::End, None),
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    return (Got::End, None);
                }
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
