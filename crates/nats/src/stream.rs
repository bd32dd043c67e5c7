//! A connection, in clear or by TLS. NATS begins in clear: a server's INFO comes first, and TLS after it.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tidegate_driver::stamp::{Receiver, Wall};

use crate::wire::server::{self, Op};
use crate::wire::{Bounds, Fault};

/// Longest INFO that is read in clear.
const INFO: Bounds = Bounds { line: 1 << 20, payload: 0 };

/// One of them.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) tcp: TcpStream,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct Tls {
    session: Connection,
    /// How much of what is written next goes in clear: the greeting.
    clear: usize,
    /// What was read of the peer's greeting, which comes in clear; none once it is over.
    greeting: Option<Vec<u8>>,
}

impl Stream {
    /// In clear.
    pub(crate) fn new(tcp: TcpStream) -> Self {
        Self { tcp, tls: None }
    }

    /// Of a client: the first `clear` bytes go in clear.
    pub(crate) fn of_client(
        tcp: TcpStream,
        tls: Arc<ServerConfig>,
        clear: usize,
    ) -> io::Result<Self> {
        let session = ServerConnection::new(tls).map_err(io::Error::other)?;
        let tls = Tls { session: session.into(), clear, greeting: None };
        Ok(Self { tcp, tls: Some(Box::new(tls)) })
    }

    /// To a broker: nothing is written before its greeting has come.
    pub(crate) fn to_broker(
        tcp: TcpStream,
        tls: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let session = ClientConnection::new(tls, name).map_err(io::Error::other)?;
        let tls = Tls { session: session.into(), clear: 0, greeting: Some(Vec::new()) };
        Ok(Self { tcp, tls: Some(Box::new(tls)) })
    }

    /// Whether it may be written to yet.
    pub(crate) fn may_write(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.greeting.is_none())
    }

    /// Whether there is something to be written that is nobody's message.
    pub(crate) fn wants_write(&self) -> bool {
        let wants = |tls: &Tls| tls.clear == 0 && tls.session.wants_write();
        self.may_write() && self.tls.as_deref().is_some_and(wants)
    }

    /// One read into `scratch`: how many bytes came and their stamp. What they say is in `scratch` if it was said in
    /// clear, and else in `plain`: true is for that.
    pub(crate) fn read(
        &mut self,
        receiver: Option<&mut Receiver>,
        scratch: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> io::Result<(usize, Option<Wall>, bool)> {
        let (count, stamp) = match receiver {
            Some(receiver) => receiver.read(&self.tcp, scratch)?,
            None => (self.tcp.read(scratch)?, None),
        };
        let Some(tls) = &mut self.tls else { return Ok((count, stamp, false)) };
        plain.clear();
        let result = tls.take(&scratch[..count], plain);
        if result.is_err() {
            // What it is told last says why.
            let _ = tls.session.write_tls(&mut self.tcp);
        }
        result.map(|()| (count, stamp, true))
    }

    /// Writes some of `bytes`: how many are taken care of. None are while the other side has not said hello and there is
    /// more already than is kept for that.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.tcp.write(bytes) };
        if tls.clear > 0 {
            let count = self.tcp.write(&bytes[..tls.clear.min(bytes.len())])?;
            tls.clear -= count;
            return Ok(count);
        }
        while tls.session.wants_write() {
            tls.session.write_tls(&mut self.tcp)?;
        }
        let count = tls.session.writer().write(bytes)?;
        while tls.session.wants_write() {
            match tls.session.write_tls(&mut self.tcp) {
                Ok(_) => {}
                // The session keeps it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// The connection, and `rest` as it is to be written last.
    pub(crate) fn end(self, mut rest: Vec<u8>) -> (TcpStream, Vec<u8>) {
        let Some(mut tls) = self.tls else { return (self.tcp, rest) };
        let last = rest.split_off(tls.clear.min(rest.len()));
        if tls.greeting.is_none() {
            tls.session.set_buffer_limit(None);
            // Writing to memory does not fail.
            let _ = tls.session.writer().write_all(&last);
            tls.session.send_close_notify();
            while tls.session.wants_write() && tls.session.write_tls(&mut rest).is_ok() {}
        }
        (self.tcp, rest)
    }
}

impl Tls {
    /// Appends what `bytes` say to `plain`.
    fn take(&mut self, mut bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<()> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if let Some(greeting) = &mut self.greeting {
            greeting.extend_from_slice(bytes);
            match server::read(greeting, INFO) {
                Ok(Some((Op::Info(_), used))) if used == greeting.len() => {}
                Ok(None) => return Ok(()),
                // Words in clear behind the greeting are anybody's.
                Ok(Some(_)) | Err(Fault::Line | Fault::Payload | Fault::Unknown) => {
                    return Err(invalid("it does not begin with INFO alone".to_owned()));
                }
            }
            plain.append(greeting);
            self.greeting = None;
            return Ok(());
        }
        while !bytes.is_empty() {
            if self.session.read_tls(&mut bytes)? == 0 {
                break;
            }
            self.session.process_new_packets().map_err(|error| invalid(error.to_string()))?;
            match self.session.reader().read_to_end(plain) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
