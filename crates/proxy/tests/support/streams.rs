//! A service that speaks HTTP/2.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use bytes::Bytes;
use h2::server::SendResponse;
use http::Response;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{Sidecar, file};

/// It answers `/slow` when it is told to, and everything else at once. Tells what was begun, what was reset, and what
/// ended its connections.
pub(crate) struct Streams {
    pub(crate) address: SocketAddr,
    open: watch::Sender<bool>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    begun: AtomicUsize,
    reset: AtomicUsize,
    ends: Mutex<Vec<String>>,
    /// Whoever has it holds up everything.
    busy: Mutex<()>,
}

impl Streams {
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("it is ours");
        let address = listener.local_addr().expect("bound");
        let (open, opened) = watch::channel(false);
        let seen = Arc::<Seen>::default();
        let told = Arc::clone(&seen);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::from_std(listener).expect("it is ours");
                let mut over = opened.clone();
                loop {
                    tokio::select! {
                        accepted = listener.accept() => {
                            let (stream, _) = accepted.expect("a connection");
                            tokio::spawn(serve(stream, Arc::clone(&told), opened.clone()));
                        }
                        // Nobody can open any more: its owner is gone.
                        () = async { while over.changed().await.is_ok() {} } => return,
                    }
                }
            });
        });
        Self { address, open, seen }
    }

    pub(crate) fn sidecar(&self, config: &str) -> Sidecar {
        let mut file = file(config, &[self.address]);
        file.proxy.upstreams = vec![format!("h2c://{}", self.address).parse().expect("an address")];
        Sidecar::with_source(file, None)
    }

    /// From now on everything is answered.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Until what is returned is dropped, it reads nothing.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.seen.busy.lock().unwrap()
    }

    /// Requests that were begun.
    pub(crate) fn begun(&self) -> usize {
        self.seen.begun.load(Ordering::SeqCst)
    }

    /// Requests that were taken back.
    pub(crate) fn reset(&self) -> usize {
        self.seen.reset.load(Ordering::SeqCst)
    }

    /// Why connections have ended that did not end in good order.
    pub(crate) fn ends(&self) -> Vec<String> {
        self.seen.ends.lock().unwrap().clone()
    }
}

async fn serve(stream: TcpStream, seen: Arc<Seen>, opened: watch::Receiver<bool>) {
    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
    let mut accept = async || {
        poll_fn(|cx| {
            drop(seen.busy.lock().unwrap());
            connection.poll_accept(cx)
        })
        .await
    };
    while let Some(next) = accept().await {
        match next {
            Ok((request, respond)) => {
                seen.begun.fetch_add(1, Ordering::SeqCst);
                let slow = request.uri().path() == "/slow";
                tokio::spawn(answer(respond, slow.then(|| opened.clone()), Arc::clone(&seen)));
            }
            Err(error) => return seen.ends.lock().unwrap().push(error.to_string()),
        }
    }
}

async fn answer(
    mut respond: SendResponse<Bytes>,
    hold: Option<watch::Receiver<bool>>,
    seen: Arc<Seen>,
) {
    if let Some(mut hold) = hold {
        tokio::select! {
            _ = hold.wait_for(|open| *open) => {}
            _ = poll_fn(|cx| respond.poll_reset(cx)) => {
                seen.reset.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
    }
    if let Ok(mut body) = respond.send_response(Response::new(()), false) {
        let _ = body.send_data(Bytes::from_static(b"served"), true);
    }
}
