//! Connections that have changed their protocol: bytes both ways, until nobody says anything any more.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::sleep;

/// Looks per time-out: it is exact to a quarter.
const LOOKS: u32 = 4;

/// Passes bytes both ways until both sides have ended, one breaks off, or nothing has moved for `limit`.
/// Whether it was that.
pub(crate) async fn join<A, B>(client: A, upstream: B, limit: Duration) -> bool
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let moved = Arc::new(AtomicU64::new(0));
    let mut client = Noted { stream: client, moved: Arc::clone(&moved) };
    let mut upstream = Noted { stream: upstream, moved: Arc::clone(&moved) };
    tokio::select! {
        biased;
        // Either side may break off at any time, and the other then learns of it.
        _ = copy_bidirectional(&mut client, &mut upstream) => false,
        () = still(&moved, limit) => true,
    }
}

/// Resolves once nothing has moved for `limit`.
async fn still(moved: &AtomicU64, limit: Duration) {
    let (mut last, mut looks) = (moved.load(Ordering::Relaxed), 0);
    while looks < LOOKS {
        sleep(limit / LOOKS).await;
        let now = moved.load(Ordering::Relaxed);
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
}

/// A stream whose bytes are noted, whichever way they go.
struct Noted<S> {
    stream: S,
    moved: Arc<AtomicU64>,
}

impl<S> Noted<S> {
    fn note(&self) {
        self.moved.fetch_add(1, Ordering::Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.note();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.note();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
