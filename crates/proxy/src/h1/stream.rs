//! [`Stream`]: bytes to and from an upstream, in clear or by TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection's bytes.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    /// Large, and rare beside what it does.
    Secure(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Whether nothing has come, not even the end: only then can a free connection be used again.
    /// Asks the kernel only if it has announced something.
    pub(crate) fn is_quiet(&self) -> bool {
        let socket = match self {
            Self::Plain(stream) => stream,
            Self::Secure(stream) => stream.get_ref().0,
        };
        let mut byte = [0];
        let mut cx = Context::from_waker(Waker::noop());
        socket.poll_peek(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

/// The same for either kind.
macro_rules! either {
    ($stream:expr, $inner:ident => $done:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => {
                let $inner = Pin::new($inner);
                $done
            }
            Stream::Secure($inner) => {
                let $inner = Pin::new(&mut **$inner);
                $done
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_shutdown(cx))
    }
}
