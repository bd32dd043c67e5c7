//! A sidecar, upstreams and clients on loopback sockets. Upstreams and clients are plain threads
//! that read and write bytes, so that a test sees what is on the wire.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod leaks;
pub(crate) mod streams;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tidegate_proxy::{File, Handle, Server, Source};

/// Longest time anything here may take: a bound on tests that hang, not a measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A running sidecar, ended when it is dropped.
pub(crate) struct Sidecar {
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Sidecar {
    /// Starts one before `upstreams`, configured by TOML.
    pub(crate) fn start(config: &str, upstreams: &[SocketAddr]) -> Self {
        Self::with_source(file(config, upstreams), None)
    }

    pub(crate) fn with_source(file: File, source: Option<Source>) -> Self {
        let server = Server::bind(file, source, 7).expect("it starts");
        let handle = server.handle();
        let thread = Some(thread::spawn(move || server.run()));
        Self { handle, thread }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.handle.listen())
    }

    /// A client from another address of loopback: 127.0.0.`host`.
    pub(crate) fn client_from(&self, host: u8) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let own = SocketAddr::from(([127, 0, 0, host], 0));
        socket.bind(&own.into()).expect("loopback has many addresses");
        socket.connect(&self.handle.listen().into()).expect("somebody listens");
        Client::of(socket.into())
    }

    pub(crate) fn admin(&self, path: &str) -> Reply {
        let mut client = Client::connect(self.handle.admin());
        client.send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        client.reply()
    }

    pub(crate) fn state(&self) -> serde_json::Value {
        serde_json::from_slice(&self.admin("/state").body).expect("JSON")
    }

    /// Waits until the state is as wanted.
    pub(crate) fn wait_for(&self, what: &str, is: impl Fn(&serde_json::Value) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if is(&state) {
                return;
            }
            assert!(Instant::now() < end, "{what} did not come: {state:#}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn wait_until_empty(&self) {
        self.wait_for("an empty gate", |state| state["running"] == 0 && state["waiting"] == 0);
    }

    /// Waits for its end after it was told to stop.
    pub(crate) fn ended(mut self) {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("no panic").expect("no error");
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.stop();
            self.handle.stop();
            let _ = thread.join();
        }
    }
}

pub(crate) fn file(config: &str, upstreams: &[SocketAddr]) -> File {
    let mut file = File::parse(config).unwrap_or_else(|error| panic!("{error}"));
    file.proxy.listen = "127.0.0.1:0".parse().unwrap();
    file.proxy.admin = "127.0.0.1:0".parse().unwrap();
    file.proxy.upstreams =
        upstreams.iter().map(|address| format!("http://{address}").parse().unwrap()).collect();
    file
}

/// A message as it was read, of either direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// The request or status line.
    pub(crate) first: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: BTreeMap<String, String>,
}

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        let word = self.first.split(' ').nth(1);
        word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("somebody listens");
        Self::of(stream)
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: &str) {
        self.stream.get_mut().write_all(bytes.as_bytes()).expect("it is read");
    }

    pub(crate) fn get(&mut self, path: &str, headers: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: shop\r\n{headers}\r\n"));
        self.reply()
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply(false).expect("an answer comes")
    }

    /// A message; none if the connection has ended.
    pub(crate) fn try_reply(&mut self, to_head: bool) -> io::Result<Reply> {
        let mut reply = self.head()?;
        let bodiless = to_head
            || reply.first.starts_with("HTTP/") && matches!(reply.status(), 100..=199 | 204 | 304);
        if bodiless {
            return Ok(reply);
        }
        if let Some(length) = reply.header("content-length") {
            reply.body = vec![0; length.parse().expect("a number")];
            self.stream.read_exact(&mut reply.body)?;
        } else if reply
            .header("transfer-encoding")
            .is_some_and(|coding| coding.ends_with("chunked"))
        {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).expect("a chunk's size");
                if size == 0 {
                    break;
                }
                let start = reply.body.len();
                reply.body.resize(start + size, 0);
                self.stream.read_exact(&mut reply.body[start..])?;
                self.line()?;
            }
            reply.trailers = self.fields()?;
        } else if reply.first.starts_with("HTTP/") {
            self.stream.read_to_end(&mut reply.body)?;
        }
        Ok(reply)
    }

    pub(crate) fn head(&mut self) -> io::Result<Reply> {
        let first = self.line()?;
        Ok(Reply { first, headers: self.fields()?, ..Reply::default() })
    }

    fn fields(&mut self) -> io::Result<BTreeMap<String, String>> {
        let mut fields = BTreeMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(fields) };
            fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// A service: a thread per connection.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Connections accepted so far.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Those that are open, by number.
    open: Arc<Mutex<BTreeMap<usize, TcpStream>>>,
    listener: Option<Arc<TcpListener>>,
}

impl Upstream {
    /// One whose answers for `/slow` wait until the barrier is opened.
    pub(crate) fn held() -> (Barrier, Self) {
        let barrier = Barrier::default();
        let held = barrier.clone();
        let upstream = Self::start(move |request| {
            if request.first.contains("/slow") {
                held.pass();
            }
            ok("served")
        });
        (barrier, upstream)
    }

    /// `serve` has a connection for itself.
    pub(crate) fn raw(serve: impl Fn(Client) + Send + Sync + 'static) -> Self {
        Self::raw_at("127.0.0.1:0".parse().unwrap(), serve)
    }

    pub(crate) fn raw_at(
        address: SocketAddr,
        serve: impl Fn(Client) + Send + Sync + 'static,
    ) -> Self {
        let listener = Arc::new(TcpListener::bind(address).expect("a free port"));
        listener.set_nonblocking(false).unwrap();
        let (connections, open) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(BTreeMap::new())));
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            connections: Arc::clone(&connections),
            open: Arc::clone(&open),
            listener: Some(Arc::clone(&listener)),
        };
        let serve = Arc::new(serve);
        let ended = Arc::downgrade(upstream.listener.as_ref().unwrap());
        drop(listener);
        thread::spawn(move || {
            while let Some(listener) = ended.upgrade() {
                listener.set_nonblocking(true).unwrap();
                let accepted = listener.accept();
                drop(listener);
                let Ok((stream, _)) = accepted else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                let number = connections.fetch_add(1, Ordering::SeqCst);
                open.lock().unwrap().insert(number, stream.try_clone().unwrap());
                let (serve, open) = (Arc::clone(&serve), Arc::clone(&open));
                thread::spawn(move || {
                    serve(Client::of(stream));
                    open.lock().unwrap().remove(&number);
                });
            }
        });
        upstream
    }

    /// Answers each request with what `answer` makes of it.
    pub(crate) fn start(answer: impl Fn(Reply) -> String + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), answer)
    }

    pub(crate) fn at(
        address: SocketAddr,
        answer: impl Fn(Reply) -> String + Send + Sync + 'static,
    ) -> Self {
        Self::raw_at(address, move |mut client| {
            while let Ok(request) = client.try_reply(false) {
                let answer = answer(request);
                if client.stream.get_mut().write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        })
    }

    /// As a process that is killed: all its sockets are closed.
    pub(crate) fn kill(&mut self) {
        self.listener = None;
        for stream in self.open.lock().unwrap().values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // The accepting thread lets go of the listener within a millisecond or two.
        let end = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).is_ok() {
            assert!(Instant::now() < end, "the upstream cannot be killed");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.listener = None;
    }
}

pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Holds everybody up until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Barrier(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Barrier {
    pub(crate) fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.1 += 1;
        let (_state, timeout) =
            changed.wait_timeout_while(state, PATIENCE, |(open, _)| !*open).unwrap();
        assert!(!timeout.timed_out(), "nobody opened");
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    /// How many have come.
    pub(crate) fn came(&self) -> usize {
        self.0.0.lock().unwrap().1
    }
}

/// Lets a fixed number through at a time.
#[derive(Clone)]
pub(crate) struct Workers(Arc<(Mutex<(usize, Duration)>, Condvar)>);

impl Workers {
    pub(crate) fn new(count: usize) -> Self {
        Self(Arc::new((Mutex::new((count, Duration::ZERO)), Condvar::new())))
    }

    pub(crate) fn work(&self, time: Duration) {
        let (free, changed) = &*self.0;
        let mut free_now =
            changed.wait_while(free.lock().unwrap(), |(free, _)| *free == 0).unwrap();
        free_now.0 -= 1;
        drop(free_now);
        let begun = Instant::now();
        thread::sleep(time);
        let mut free_now = free.lock().unwrap();
        free_now.0 += 1;
        free_now.1 += begun.elapsed();
        drop(free_now);
        changed.notify_one();
    }

    /// Time they have worked, all together. On a busy machine work takes longer than it should.
    pub(crate) fn worked(&self) -> Duration {
        self.0.0.lock().unwrap().1
    }
}
