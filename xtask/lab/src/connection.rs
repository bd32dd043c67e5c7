//! A plain HTTP/1.1 connection for loads: as little of a client as will do.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that was kept alive.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(1024) })
    }

    /// Sends a request and reads the whole answer: its status, and whether the connection stays.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> std::io::Result<(u16, bool)> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(head) = Head::read(&self.buffer)
                && self.buffer.len() >= head.length
            {
                return Ok((head.status, head.keep));
            }
        }
    }
}

impl Connection {
    /// The same, and the answer's body.
    pub(crate) async fn ask_for_body(&mut self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        self.ask(request).await?;
        let end = self.buffer.windows(4).position(|window| window == b"\r\n\r\n");
        Ok(self.buffer.split_off(end.map_or(0, |end| end + 4)))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    keep: bool,
    /// Bytes of head and body.
    length: usize,
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = text.get(9..12)?.parse().ok()?;
        let keep = !text.contains("\r\nconnection: close");
        let field = |name: &str| {
            let from = text.find(name)? + name.len();
            text[from..].split("\r\n").next()?.trim().parse::<usize>().ok()
        };
        if text.contains("\r\ntransfer-encoding: chunked") {
            let last = bytes.windows(5).position(|window| window == b"0\r\n\r\n")?;
            return Some(Self { status, keep, length: last + 5 });
        }
        let body = field("\r\ncontent-length:").unwrap_or(0);
        Some(Self { status, keep, length: end + body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(Head::read(plain), Some(Head { status: 200, keep: true, length: plain.len() }));
        let closing = b"HTTP/1.1 503 No\r\nConnection: close\r\n\r\n";
        let expected = Head { status: 503, keep: false, length: closing.len() };
        assert_eq!(Head::read(closing), Some(expected));
        let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert_eq!(Head::read(chunked).unwrap().length, chunked.len());
        assert_eq!(Head::read(b"HTTP/1.1 200 OK\r\nContent-Le"), None);
    }
}
