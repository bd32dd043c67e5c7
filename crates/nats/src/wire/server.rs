//! What servers send.

use super::{Body, Bounds, Fault, Found, line, message, name, verb};

/// An operation of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Who it is, as a JSON object; again when that changes.
    Info(&'a [u8]),
    /// A message for the subscription that the client calls `id`.
    Message {
        /// Whose it is.
        id: &'a [u8],
        /// It.
        body: Body<'a>,
        /// All of it as it came.
        raw: &'a [u8],
    },
    /// Are you there?
    Ping,
    /// I have read all before your ping.
    Pong,
    /// It was understood.
    Ok,
    /// It was not, or is not allowed: the text with its quotes.
    Error(&'a [u8]),
}

const INFO: [u8; 8] = name(b"info");
const MSG: [u8; 8] = name(b"msg");
const HMSG: [u8; 8] = name(b"hmsg");
const PING: [u8; 8] = name(b"ping");
const PONG: [u8; 8] = name(b"pong");
const OK: [u8; 8] = name(b"+ok");
const ERROR: [u8; 8] = name(b"-err");

/// Reads the first operation.
pub fn read(bytes: &[u8], bounds: Bounds) -> Found<Op<'_>> {
    let Some((line, used)) = line(bytes, bounds.line)? else { return Ok(None) };
    let (verb, rest) = verb(line);
    let op = match verb {
        MSG | HMSG => {
            let found = message(bytes, rest, used, verb == HMSG, true, bounds.payload)?;
            let whole = |((body, id), end)| (Op::Message { id, body, raw: &bytes[..end] }, end);
            return Ok(found.map(whole));
        }
        INFO => Op::Info(rest),
        PING => Op::Ping,
        PONG => Op::Pong,
        OK => Op::Ok,
        ERROR => Op::Error(rest),
        _ => return Err(Fault::Unknown),
    };
    Ok(Some((op, used)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { line: 64, payload: 100 };

    #[test]
    fn operations_of_servers_are_read() {
        let body = |reply, headers, payload| Body { subject: b"a.b", reply, headers, payload };
        let message = |body, raw| Op::Message { id: b"9", body, raw };
        let reply = b"MSG a.b 9 r 2\r\nhi\r\n";
        let headers = b"HMSG a.b 9 12 14\r\nNATS/1.0\r\n\r\nhi\r\n";
        for (text, op) in [
            (&b"INFO {\"x\":1} \r\n"[..], Op::Info(b"{\"x\":1}")),
            (reply, message(body(Some(b"r"), None, b"hi"), reply)),
            (headers, message(body(None, Some(12), b"NATS/1.0\r\n\r\nhi"), headers)),
            (b"PING\r\n", Op::Ping),
            (b"PONG\r\n", Op::Pong),
            (b"+OK\r\n", Op::Ok),
            (b"-ERR 'Stale Connection'\r\n", Op::Error(b"'Stale Connection'")),
        ] {
            assert_eq!(read(text, BOUNDS), Ok(Some((op, text.len()))));
            for cut in 0..text.len() {
                assert_eq!(read(&text[..cut], BOUNDS), Ok(None));
            }
        }
        assert_eq!(read(b"MSG a.b 2\r\nhi\r\n", BOUNDS), Err(Fault::Unknown), "no subscription");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((_, used))) = read(&bytes, BOUNDS) {
                prop_assert!(used > 0 && used <= bytes.len());
            }
        }
    }
}
