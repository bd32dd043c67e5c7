//! What a connection does: it is made, then one half writes and the other reads, until either ends.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::link::{End, Link};
use crate::watch::watch;
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
    let _ = watch(SockRef::from(&stream), link.bounds.silence);
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
