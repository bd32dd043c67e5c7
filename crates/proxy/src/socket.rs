//! [`Socket`]: a client's socket, which can be looked at beside whoever reads and writes it.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Bytes that are read at once to be dropped.
const DISCARD: usize = 64 * 1024;
/// Pause between looks for an end behind bytes, where nobody tells of it.
#[cfg(not(target_os = "linux"))]
const END_LOOK: Duration = Duration::from_millis(100);

/// A socket that is read and written.
#[derive(Debug)]
pub(crate) struct Socket {
    read: Arc<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

/// The same socket, for those who only look.
#[derive(Clone, Debug)]
pub(crate) struct Look(Arc<OwnedReadHalf>);

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> (Self, Look) {
        let (read, write) = stream.into_split();
        let read = Arc::new(read);
        (Self { read: Arc::clone(&read), write }, Look(read))
    }
}

impl Look {
    /// Resolves when the client has ended its side, whatever is left to be read before that end.
    pub(crate) async fn end(&self) {
        // The only interest in the end that bytes before it do not satisfy; urgent bytes are not asked
        // for when sockets are registered.
        #[cfg(target_os = "linux")]
        let _ = self.0.ready(Interest::PRIORITY | Interest::ERROR).await;
        #[cfg(not(target_os = "linux"))]
        while self.0.ready(Interest::READABLE).await.is_ok_and(|ready| !ready.is_read_closed()) {
            tokio::time::sleep(END_LOOK).await;
        }
    }

    /// Reads to the end, at most for so long and so many bytes, which nobody needs.
    pub(crate) async fn discard(&self, (time, most): (Duration, usize)) {
        let read = async {
            let (mut piece, mut left) = (vec![0; DISCARD], most);
            while left > 0 && self.0.readable().await.is_ok() {
                match self.0.try_read(&mut piece) {
                    Ok(length @ 1..) => left = left.saturating_sub(length),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(0) | Err(_) => return,
                }
            }
        };
        // What is still to come then, nobody waits for.
        let _ = timeout(time, read).await;
    }
}

impl AsyncRead for Socket {
    /// As a stream that is not shared does it: a read that leaves room has taken all there is, and the
    /// kernel need not be asked again.
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream: &TcpStream = (*self.read).as_ref();
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let mut taken = false;
            let read = stream.try_io(Interest::READABLE, || {
                let room = buffer.remaining();
                let length = stream.try_read_buf(buffer)?;
                taken = true;
                let all = cfg!(target_os = "linux") && 0 < length && length < room;
                if all { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !taken => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}
