//! What clients send.

use super::{Body, Bounds, Fault, Found, length, line, message, name, verb, words};

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Who it is and what it wants, as a JSON object.
    Connect(&'a [u8]),
    /// Are you there? And: have you read all before this?
    Ping,
    /// Yes.
    Pong,
    /// A message.
    Publish(Body<'a>),
    /// It wants messages.
    Subscribe {
        /// Of these subjects.
        pattern: &'a [u8],
        /// One of all that share this name gets each.
        queue: Option<&'a [u8]>,
        /// Its name for the subscription.
        id: &'a [u8],
    },
    /// It wants no more of them.
    Unsubscribe {
        /// Its name for the subscription.
        id: &'a [u8],
        /// After so many in all; at once if there is none.
        max: Option<usize>,
    },
}

const CONNECT: [u8; 8] = name(b"connect");
const PING: [u8; 8] = name(b"ping");
const PONG: [u8; 8] = name(b"pong");
const PUB: [u8; 8] = name(b"pub");
const HPUB: [u8; 8] = name(b"hpub");
const SUB: [u8; 8] = name(b"sub");
const UNSUB: [u8; 8] = name(b"unsub");

/// Reads the first operation.
pub fn read(bytes: &[u8], bounds: Bounds) -> Found<Op<'_>> {
    // Who does not even begin as an operation is not waited for.
    if bytes.first().is_some_and(|first| !b"CPHSUcphsu".contains(first)) {
        return Err(Fault::Unknown);
    }
    let Some((line, used)) = line(bytes, bounds.line)? else { return Ok(None) };
    let (verb, rest) = verb(line);
    let op = match verb {
        PING => Op::Ping,
        PONG => Op::Pong,
        CONNECT => Op::Connect(rest),
        PUB | HPUB => {
            let found = message(bytes, rest, used, verb == HPUB, false, bounds.payload)?;
            return Ok(found.map(|((body, _), end)| (Op::Publish(body), end)));
        }
        SUB => match words(rest)? {
            ([pattern, id, ..], 2) => Op::Subscribe { pattern, queue: None, id },
            ([pattern, queue, id, ..], 3) => Op::Subscribe { pattern, queue: Some(queue), id },
            _ => return Err(Fault::Unknown),
        },
        UNSUB => match words(rest)? {
            ([id, ..], 1) => Op::Unsubscribe { id, max: None },
            // As nats-server: zero is no bound.
            ([id, max, ..], 2) => {
                Op::Unsubscribe { id, max: Some(length(max)?).filter(|max| *max > 0) }
            }
            _ => return Err(Fault::Unknown),
        },
        _ => return Err(Fault::Unknown),
    };
    Ok(Some((op, used)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::write;

    const BOUNDS: Bounds = Bounds { line: 64, payload: 100 };

    fn one(bytes: &[u8]) -> Found<Op<'_>> {
        read(bytes, BOUNDS)
    }

    #[test]
    fn operations_are_read_as_nats_server_reads_them() {
        let body = |reply, headers, payload| {
            Op::Publish(Body { subject: b"a.b", reply, headers, payload })
        };
        for (text, op) in [
            (&b"PING\r\n"[..], Op::Ping),
            (b"ping \n", Op::Ping),
            (b"CONNECT {\"a\": 1}\r\n", Op::Connect(b"{\"a\": 1}")),
            (b"PUB a.b 2\r\nhi\r\n", body(None, None, b"hi")),
            (b"pub\ta.b  r\t002\r\nhi\r\n", body(Some(b"r"), None, b"hi")),
            (b"PUB a.b 0\r\n\r\n", body(None, None, b"")),
            (
                b"HPUB a.b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
                body(None, Some(12), b"NATS/1.0\r\n\r\nhi"),
            ),
            (b"HPUB a.b r 0 0\r\n\r\n", body(Some(b"r"), Some(0), b"")),
            (b"SUB x.* 7\r\n", Op::Subscribe { pattern: b"x.*", queue: None, id: b"7" }),
            (b"SUB > q 7\r\n", Op::Subscribe { pattern: b">", queue: Some(b"q"), id: b"7" }),
            (b"UNSUB 7\r\n", Op::Unsubscribe { id: b"7", max: None }),
            (b"UNSUB 7 5\r\n", Op::Unsubscribe { id: b"7", max: Some(5) }),
        ] {
            let shown = String::from_utf8_lossy(text);
            assert_eq!(one(text), Ok(Some((op, text.len()))), "{shown}");
            for cut in 0..text.len() {
                assert_eq!(one(&text[..cut]), Ok(None), "{shown} cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_operation_is_a_fault() {
        for text in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\r\n",
            b"PUBLISHED a 1\r\nx\r\n",
            b"PUB a\r\n",
            b"PUB a b c 1\r\nx\r\n",
            b"PUB a b c d e f 1\r\nx\r\n",
            b"PUB a -1\r\n",
            b"PUB a 1x\r\n",
            b"PUB a 1\r\nxx\r\n",
            b"PUB a 1\r\nx\n\r",
            b"HPUB a 5 4\r\nxxxx\r\n",
            b"HPUB a 4\r\nxxxx\r\n",
            b"SUB a\r\n",
            b"UNSUB\r\n",
            b"INFO {}\r\n",
        ] {
            assert_eq!(one(text), Err(Fault::Unknown), "{}", String::from_utf8_lossy(text));
        }
    }

    /// nats-server takes the byte before the line's end away when there was any carriage return before it: to it
    /// this is a payload of one byte, and then a message.
    #[test]
    fn a_carriage_return_within_a_line_is_a_fault() {
        assert_eq!(one(b"PUB a\r 15\nx\r\nPUB b 1\r\nyy\r\n"), Err(Fault::Unknown));
        assert_eq!(one(b"SUB a\r 1\r\n"), Err(Fault::Unknown));
    }

    #[test]
    fn a_length_of_a_gigabyte_is_refused_before_anything_is_kept() {
        assert_eq!(one(b"PUB a 999999999\r\n"), Err(Fault::Payload));
        assert_eq!(
            one(b"PUB a 9999999999\r\n"),
            Err(Fault::Unknown),
            "more digits than a length has"
        );
        assert_eq!(one(b"PUB a 101\r\n"), Err(Fault::Payload));
        assert_eq!(one(b"PUB a 100\r\n"), Ok(None));
    }

    #[test]
    fn an_endless_line_is_refused_at_its_bound() {
        let mut text = b"PUB ".to_vec();
        text.resize(64, b'a');
        assert_eq!(one(&text), Ok(None));
        text.push(b'\r');
        assert_eq!(one(&text), Ok(None), "its end may come");
        text.push(b'a');
        assert_eq!(one(&text), Err(Fault::Line));
        text.truncate(64);
        text.push(b'a');
        assert_eq!(one(&[&text[..], b"\n"].concat()), Err(Fault::Line));
    }

    /// Bytes that are nearly operations.
    fn near() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            prop::sample::select(vec![
                &b"PUB "[..],
                b"HPUB ",
                b"SUB ",
                b"UNSUB ",
                b"PING",
                b"CONNECT {}",
                b"\r\n",
                b"\n",
                b"\r",
                b" ",
                b"a",
                b"a.b ",
                b"1",
                b"12 ",
                b"999999999",
                b"\0",
                b"\xff",
            ])
            .prop_map(<[u8]>::to_vec),
            prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        /// However bytes are cut, the operations are the same.
        #[test]
        fn any_bytes_are_read_without_harm_and_alike_however_they_come(bytes in near(), cut in 0..80usize) {
            match one(&bytes) {
                Ok(Some((_, used))) => prop_assert!(used > 0 && used <= bytes.len()),
                Ok(None) => prop_assert!(bytes.len() <= 64 + 2 + 100 + 2),
                Err(_) => {}
            }
            let cut = cut.min(bytes.len());
            match one(&bytes[..cut]) {
                // What was complete stays what it was.
                Ok(Some(found)) => prop_assert_eq!(one(&bytes), Ok(Some(found))),
                Err(fault) => prop_assert_eq!(one(&bytes), Err(fault)),
                Ok(None) => {}
            }
        }

        #[test]
        fn what_is_written_reads_back(
            subject in "[a-z.*>]{1,20}",
            reply in prop::option::of("[a-z.]{1,20}"),
            headers in prop::option::of(0..50usize),
            payload in prop::collection::vec(any::<u8>(), 50..100),
        ) {
            let body = Body {
                subject: subject.as_bytes(),
                reply: reply.as_ref().map(String::as_bytes),
                headers,
                payload: &payload,
            };
            let mut bytes = Vec::new();
            write::publish(&mut bytes, &body);
            prop_assert_eq!(one(&bytes), Ok(Some((Op::Publish(body), bytes.len()))));
        }
    }
}
