//! What a connection does: it is made, then one half writes and the other reads, until either ends.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::link::{End, Link};
use crate::wire::Frame;

/// Serves a connection from beginning to end.
pub(super) async fn run(link: Arc<Link>, address: SocketAddr) {
    let running = Running(link);
    let link = &running.0;
    let stream = match timeout(link.bounds.silence, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return link.ended(End::Io(error.kind())),
        Err(_) => return link.ended(End::SILENT),
    };
    // Without them it works too, only worse.
    let _ = stream.set_nodelay(true);
    let _ = watch(&stream, link.bounds.silence);
    let (read_half, write_half) = stream.into_split();
    let mut reading = pin!(read(link, read_half));
    let mut writing = pin!(write(link, write_half));
    let end = poll_fn(|cx| match reading.as_mut().poll(cx) {
        Poll::Pending => writing.as_mut().poll(cx),
        ended => ended,
    });
    link.ended(end.await);
}

/// Ends with the task, also when that goes with its runtime: the next call then connects anew.
struct Running(Arc<Link>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fail(End::Closed);
    }
}

/// Lets the kernel find out that the server is gone without a word: three questions after so long a
/// silence, and data that nobody acknowledges for twice as long. It counts in seconds.
fn watch(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let second = Duration::from_secs(1);
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(silence.max(second))
        .with_interval((silence / 3).max(second))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(2 * silence.max(second)))?;
    Ok(())
}

/// Writes whatever is to be written.
async fn write(link: &Link, mut stream: OwnedWriteHalf) -> End {
    let mut bytes = Vec::new();
    while link.fill(&mut bytes) {
        if bytes.is_empty() {
            link.wake.notified().await;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match timeout(link.bounds.silence, stream.write(rest)).await {
                Ok(Ok(0)) => return End::Closed,
                Ok(Ok(count)) => rest = &rest[count..],
                Ok(Err(error)) => return End::Io(error.kind()),
                Err(_) => return End::SILENT,
            }
        }
    }
    let _ = stream.shutdown().await;
    End::Closed
}

/// Reads and hands on what has come.
async fn read(link: &Link, mut stream: OwnedReadHalf) -> End {
    let mut bytes = BytesMut::with_capacity(16 << 10);
    loop {
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return End::Closed,
            Ok(_) => link.hear(),
            Err(error) => return End::Io(error.kind()),
        }
        let mut used = 0;
        loop {
            let frame = match Frame::read(&bytes[used..], &link.bounds.limits) {
                Ok(Some((frame, length))) => {
                    used += length;
                    link.take(&frame)
                }
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = frame {
                return End::Wire(error);
            }
        }
        bytes.advance(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_is_asked_to_find_out_who_is_gone() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        watch(&stream, Duration::from_secs(5)).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(10)));
        // The kernel knows no shorter times, which is no reason to do without.
        watch(&stream, Duration::from_millis(1)).unwrap();
    }
}
