//! Heads: of a request as it is written, of an answer as it is read.

use std::io::Write;
use std::mem::MaybeUninit;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;

use super::Malformed;
use super::body::{Point, Rest};

/// Most bytes, and most fields, of an answer's head.
const MOST_HEAD: (usize, usize) = (256 * 1024, 128);

/// How a request's body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes are to follow.
    Bytes(u64),
    Chunks,
}

/// Writes the head of a request, with the length of its body as the body itself tells it: what the
/// client's fields say about that is not passed on.
pub(super) fn write<B: Body>(request: &Request<B>, output: &mut BytesMut) -> Framing {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    output.reserve(64 + path.len() + 48 * request.headers().len());
    output.put_slice(request.method().as_str().as_bytes());
    output.put_slice(b" ");
    output.put_slice(path.as_bytes());
    output.put_slice(b" HTTP/1.1\r\n");
    let mut told = false;
    for (name, value) in request.headers() {
        if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
            told = true;
            continue;
        }
        output.put_slice(name.as_str().as_bytes());
        output.put_slice(b": ");
        output.put_slice(value.as_bytes());
        output.put_slice(b"\r\n");
    }
    let body = request.body();
    let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    // Of a method that has a body, its absence is told too (RFC 9110, 8.6).
    let expected = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
    match length {
        Some(0) if !told && !expected => {}
        Some(length) => drop(write!(output.writer(), "content-length: {length}\r\n")),
        None => output.put_slice(b"transfer-encoding: chunked\r\n"),
    }
    output.put_slice(b"\r\n");
    length.map_or(Framing::Chunks, Framing::Bytes)
}

/// What of a request decides how its answer is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// Whether it was HEAD, whose answer tells the length of a body that does not come.
    pub(super) head: bool,
    /// Whether another protocol may follow.
    pub(super) upgrade: bool,
}

/// An answer up to its body.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) response: Response<()>,
    pub(super) rest: Rest,
    /// Whether the connection can carry another request afterwards.
    pub(super) keeps: bool,
}

/// Takes the head of an answer out of `input`, and those of 1xx before it; none if it has not come
/// whole. What the coding was is not passed on: the body comes without it.
pub(super) fn read(input: &mut BytesMut, asked: Asked) -> Result<Option<Head>, Malformed> {
    loop {
        let Some(head) = read_one(input, asked)? else { return Ok(None) };
        let status = head.response.status();
        if !status.is_informational() || asked.upgrade && status == StatusCode::SWITCHING_PROTOCOLS
        {
            return Ok(Some(head));
        }
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Malformed("it switches protocols unasked"));
        }
    }
}

fn read_one(input: &mut BytesMut, asked: Asked) -> Result<Option<Head>, Malformed> {
    match input.first() {
        Some(b'H') => {}
        // The parser would skip empty lines before it.
        Some(_) => return Err(WRONG_HEAD),
        None => return Ok(None),
    }
    let mut fields = [const { MaybeUninit::uninit() }; MOST_HEAD.1];
    let mut parsed = httparse::Response::new(&mut []);
    let parser = ParserConfig::default();
    let length = match parser.parse_response_with_uninit_headers(&mut parsed, input, &mut fields) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if input.len() < MOST_HEAD.0 => return Ok(None),
        Ok(Status::Partial) => return Err(Malformed("its head has no end")),
        Err(_) => return Err(WRONG_HEAD),
    };
    // All values are pieces of one copy, which keeps them from holding the whole buffer.
    let bytes = Bytes::copy_from_slice(&input[..length]);
    let cut = |value: &[u8]| {
        let begin = value.as_ptr() as usize - input.as_ptr() as usize;
        bytes.slice(begin..begin + value.len())
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(Malformed("its status is no number from 100 to 999"))?;
    let newer = parsed.version == Some(1);
    let mut response = Response::new(());
    *response.status_mut() = status;
    let usual = status.canonical_reason();
    if let Some(reason) = parsed.reason.filter(|reason| usual.is_none_or(|usual| usual != *reason))
    {
        // What no reason can be, none is.
        let reason = ReasonPhrase::try_from(reason.as_bytes()).ok();
        reason.and_then(|reason| response.extensions_mut().insert(reason));
    }
    let headers = response.headers_mut();
    headers.reserve(parsed.headers.len());
    let mut facts = Facts { keeps: newer, ..Facts::default() };
    for parsed in parsed.headers {
        let (name, value) = field(parsed, cut(parsed.value))?;
        if name == TRANSFER_ENCODING {
            facts.transfer_encoding(&value);
            continue;
        }
        if name == CONTENT_LENGTH {
            if facts.content_length(&value)? {
                // Said before, and not to be said twice.
                continue;
            }
        } else if name == CONNECTION && facts.connection(&value) {
            continue;
        }
        headers.append(name, value);
    }
    let rest = facts.rest(status, newer, asked)?;
    if facts.coded {
        // Of two that contradict each other the coding is right (RFC 9112, 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    input.advance(length);
    let keeps = facts.keeps && rest != Rest::ToTheEnd && !(facts.coded && facts.length.is_some());
    Ok(Some(Head { response, rest, keeps }))
}

/// A field that was parsed, with its value as bytes of their own.
pub(super) fn field(
    parsed: &httparse::Header<'_>,
    value: Bytes,
) -> Result<(HeaderName, HeaderValue), Malformed> {
    let name = HeaderName::from_bytes(parsed.name.as_bytes());
    let value = HeaderValue::from_maybe_shared(value);
    Ok((name.map_err(|_| WRONG_FIELD)?, value.map_err(|_| WRONG_FIELD)?))
}

const WRONG_HEAD: Malformed = Malformed("its head is wrong, or has too many fields");
const WRONG_FIELD: Malformed = Malformed("one of its fields is wrong");

/// What the fields say about the length of the answer and the end of the connection.
#[derive(Debug, Default)]
struct Facts {
    length: Option<u64>,
    /// Whether there is any transfer coding, and whether it is chunks and nothing else.
    coded: bool,
    chunked: bool,
    keeps: bool,
}

impl Facts {
    fn transfer_encoding(&mut self, value: &HeaderValue) {
        self.chunked = !self.coded && value.as_bytes().eq_ignore_ascii_case(b"chunked");
        self.coded = true;
    }

    /// Whether the same was said before.
    fn content_length(&mut self, value: &HeaderValue) -> Result<bool, Malformed> {
        let digits = value.as_bytes();
        // Longer ones do not fit, or begin with zeros.
        let valid = (1..=19).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        if !valid {
            return Err(Malformed("its length is no number"));
        }
        let length = digits.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0'));
        match self.length.replace(length) {
            None => Ok(false),
            Some(before) if before == length => Ok(true),
            Some(_) => Err(Malformed("it has two lengths")),
        }
    }

    /// Whether that is all it says: nothing that others have to know.
    fn connection(&mut self, value: &HeaderValue) -> bool {
        let mut all = true;
        for option in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.keeps = false;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keeps = true;
            } else {
                all = false;
            }
        }
        all
    }

    fn rest(&self, status: StatusCode, newer: bool, asked: Asked) -> Result<Rest, Malformed> {
        let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if asked.head || status.is_informational() || bodiless {
            return Ok(Rest::Nothing);
        }
        match (self.coded, self.length) {
            (true, _) if !newer => Err(Malformed("HTTP/1.0 has no transfer codings")),
            (true, _) if self.chunked => Ok(Rest::Chunks(Point::Head)),
            // Passed on, it would be coded, and nobody would be told.
            (true, _) => Err(Malformed("of transfer codings only chunked is understood")),
            (false, None) => Ok(Rest::ToTheEnd),
            (false, Some(0)) => Ok(Rest::Nothing),
            (false, Some(length)) => Ok(Rest::Bytes(length)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upload::Upload;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn parse(text: &str, asked: Asked) -> Result<Option<Head>, Malformed> {
        read(&mut BytesMut::from(text), asked)
    }

    fn answer(fields: &str) -> Head {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        parse(&text, Asked::default()).expect("well formed").expect("whole")
    }

    #[test]
    fn where_an_answer_ends() {
        for (fields, rest, keeps) in [
            ("content-length: 5\r\n", Rest::Bytes(5), true),
            ("content-length: 0\r\n", Rest::Nothing, true),
            ("content-length: 5\r\nContent-Length: 5\r\n", Rest::Bytes(5), true),
            ("Transfer-Encoding: chunked\r\n", Rest::Chunks(Point::Head), true),
            ("transfer-encoding: Chunked\r\n", Rest::Chunks(Point::Head), true),
            (
                "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
                Rest::Chunks(Point::Head),
                false,
            ),
            ("", Rest::ToTheEnd, false),
            ("content-length: 5\r\nconnection: close\r\n", Rest::Bytes(5), false),
        ] {
            let head = answer(fields);
            assert_eq!((head.rest, head.keeps), (rest, keeps), "{fields}");
            let headers = head.response.headers();
            assert!(headers.get(TRANSFER_ENCODING).is_none());
            let told = headers.get_all(CONTENT_LENGTH).iter().count();
            assert_eq!(told, usize::from(!fields.contains("ransfer") && fields.contains("ength")));
        }
        let head = Asked { head: true, upgrade: false };
        for (text, asked) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", head),
            ("HTTP/1.1 204 No Content\r\n\r\n", Asked::default()),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", Asked::default()),
        ] {
            let head = parse(text, asked).expect("well formed").expect("whole");
            assert_eq!((head.rest, head.keeps), (Rest::Nothing, true), "{text}");
        }
        let old = "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n";
        for (end, keeps) in [("\r\n", false), ("connection: Keep-Alive\r\n\r\n", true)] {
            let head = parse(&format!("{old}{end}"), Asked::default());
            assert_eq!(head.expect("well formed").expect("whole").keeps, keeps);
        }
    }

    /// Which fields are of one connection is to be known where they are removed.
    #[test]
    fn what_is_said_about_the_connection_stays_if_it_names_a_field() {
        for (said, keeps, stays) in
            [("close", false, false), ("Keep-Alive", true, false), ("x-hop, close", false, true)]
        {
            let head = answer(&format!("content-length: 0\r\nconnection: {said}\r\n"));
            let left = head.response.headers().contains_key(CONNECTION);
            assert_eq!((head.keeps, left), (keeps, stays), "{said}");
        }
    }

    #[test]
    fn what_is_unclear_is_an_error() {
        for wrong in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ncontent-length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\na : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/3.0 200 OK\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            let result = parse(wrong, Asked::default());
            assert!(result.is_err(), "{wrong:?}: {result:?}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEAD.1 + 1));
        assert!(parse(&many, Asked::default()).is_err());
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MOST_HEAD.0));
        assert!(parse(&endless, Asked::default()).is_err());
    }

    #[test]
    fn a_head_is_taken_once_it_is_whole_and_the_rest_stays() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n\
            HTTP/1.1 299 Fine\r\nset-cookie: a\r\nset-cookie: b\r\n\r\nbody";
        let whole = text.len() - "body".len();
        for length in 0..whole {
            let early = parse(&text[..length], Asked::default());
            assert!(early.expect("well formed").is_none(), "{length}");
        }
        let mut input = BytesMut::from(text);
        let Head { response, .. } = read(&mut input, Asked::default()).unwrap().expect("whole");
        let status = StatusCode::from_u16(299).unwrap();
        assert_eq!((response.status(), response.headers().len()), (status, 2));
        assert_eq!(response.extensions().get::<ReasonPhrase>().unwrap().as_bytes(), b"Fine");
        assert_eq!(&input[..], b"body");
        let upgrade = Asked { head: false, upgrade: true };
        let switched = parse("HTTP/1.1 101 Switching Protocols\r\nupgrade: ws\r\n\r\n", upgrade);
        assert_eq!(switched.unwrap().unwrap().rest, Rest::Nothing);
    }

    const GOOD: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";

    proptest! {
        /// Whatever is read was there whole, and what is read of a part was not needed.
        #[test]
        fn no_bytes_make_it_panic_or_guess(
            slips in vec((0..GOOD.len(), any::<u8>()), 0..5),
            length in 0..GOOD.len(),
        ) {
            let mut any = GOOD.to_vec();
            slips.into_iter().for_each(|(at, byte)| any[at] = byte);
            let part = read(&mut BytesMut::from(&any[..length]), Asked::default());
            let whole = read(&mut BytesMut::from(&any[..]), Asked::default());
            match (part, whole) {
                (Ok(Some(part)), Ok(Some(whole))) => prop_assert_eq!(part.rest, whole.rest),
                (Ok(Some(part)), other) => prop_assert!(false, "{part:?}, then {other:?}"),
                (Err(part), whole) => prop_assert!(whole.is_err(), "{part}, then {whole:?}"),
                (Ok(None), _) => {}
            }
        }
    }

    fn written(request: &Request<Upload>) -> (String, Framing) {
        let mut output = BytesMut::new();
        let framing = write(request, &mut output);
        (String::from_utf8(output.to_vec()).expect("text"), framing)
    }

    #[test]
    fn a_request_tells_the_length_of_its_body_and_nothing_else() {
        let request =
            |method: &str| Request::builder().method(method).uri("/a?b").header("host", "shop");
        let (text, framing) = written(&request("GET").body(Upload::empty()).unwrap());
        assert_eq!(
            (&*text, framing),
            ("GET /a?b HTTP/1.1\r\nhost: shop\r\n\r\n", Framing::Bytes(0))
        );
        let (text, _) = written(&request("POST").body(Upload::empty()).unwrap());
        assert!(text.ends_with("\r\ncontent-length: 0\r\n\r\n"), "{text}");
        let lying =
            request("GET").header("content-length", "7").header("transfer-encoding", "chunked");
        let (text, _) = written(&lying.body(Upload::empty()).unwrap());
        assert_eq!(text, "GET /a?b HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n");
    }
}
