//! How much of an answer is to come, and how it is cut out of what was read.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use httparse::Status;

use super::Malformed;
use super::head::field;

/// Most bytes of a chunk's first line, with extensions that nobody reads.
const MOST_CHUNK_HEAD: usize = 4096;
/// Most bytes, and most fields, of the trailers.
const MOST_TRAILERS: (usize, usize) = (16 * 1024, 64);

const NO_SIZE: Malformed = Malformed("a chunk has no size");

/// The rest of an answer (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// It is complete.
    Nothing,
    /// So many bytes.
    Bytes(u64),
    /// Chunks, from this point of one.
    Chunks(Point),
    /// All that comes until the upstream closes the connection.
    ToTheEnd,
}

/// A point in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// Before a chunk's size.
    Head,
    /// Within its data, so many bytes before the end.
    Data(u64),
    /// Between the data and the end of the line.
    Tail,
    /// Before the trailers, or the empty line that stands for none.
    Trailers,
}

impl Rest {
    /// The next piece in `input`; none if more is to be read first, or nothing is to come.
    pub(super) fn cut(&mut self, input: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Malformed> {
        loop {
            match self {
                Self::Nothing => return Ok(None),
                Self::ToTheEnd => return Ok(take(input, u64::MAX).map(Frame::data)),
                Self::Bytes(left) => {
                    let Some(piece) = take(input, *left) else { return Ok(None) };
                    *left -= piece.len() as u64;
                    if *left == 0 {
                        *self = Self::Nothing;
                    }
                    return Ok(Some(Frame::data(piece)));
                }
                Self::Chunks(point) => match *point {
                    // The parser takes a line without a size for one of zero.
                    Point::Head if input.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) => {
                        return Err(NO_SIZE);
                    }
                    Point::Head => match httparse::parse_chunk_size(input) {
                        Ok(Status::Complete((length, size))) => {
                            let _ = input.split_to(length);
                            *point = if size == 0 { Point::Trailers } else { Point::Data(size) };
                        }
                        Ok(Status::Partial) if input.len() < MOST_CHUNK_HEAD => return Ok(None),
                        _ => return Err(NO_SIZE),
                    },
                    Point::Data(left) => {
                        let Some(piece) = take(input, left) else { return Ok(None) };
                        let left = left - piece.len() as u64;
                        *point = if left == 0 { Point::Tail } else { Point::Data(left) };
                        return Ok(Some(Frame::data(piece)));
                    }
                    Point::Tail => match &input[..] {
                        [b'\r', b'\n', ..] => {
                            let _ = input.split_to(2);
                            *point = Point::Head;
                        }
                        [] | [b'\r'] => return Ok(None),
                        _ => return Err(Malformed("a chunk is longer than its size")),
                    },
                    Point::Trailers => {
                        let Some(trailers) = trailers(input)? else { return Ok(None) };
                        *self = Self::Nothing;
                        return Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)));
                    }
                },
            }
        }
    }

    /// The upstream has closed the connection: whether that is the end of the answer.
    pub(super) fn on_close(&mut self) -> bool {
        let over = matches!(self, Self::ToTheEnd | Self::Nothing);
        if over {
            *self = Self::Nothing;
        }
        over
    }

    pub(super) fn size_hint(self) -> SizeHint {
        match self {
            Self::Nothing => SizeHint::with_exact(0),
            Self::Bytes(left) => SizeHint::with_exact(left),
            Self::Chunks(_) | Self::ToTheEnd => SizeHint::default(),
        }
    }
}

/// Up to `most` of what is there, if anything is.
fn take(input: &mut BytesMut, most: u64) -> Option<Bytes> {
    let length = usize::try_from(most).map_or(input.len(), |most| input.len().min(most));
    (length > 0).then(|| input.split_to(length).freeze())
}

/// The trailers and the empty line behind them; none if they have not come whole.
fn trailers(input: &mut BytesMut) -> Result<Option<HeaderMap>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_TRAILERS.1];
    let (length, count) = match httparse::parse_headers(input, &mut fields) {
        Ok(Status::Complete((length, fields))) => (length, fields.len()),
        Ok(Status::Partial) if input.len() < MOST_TRAILERS.0 => return Ok(None),
        _ => return Err(Malformed("its trailers are wrong, or too many")),
    };
    let mut trailers = HeaderMap::new();
    for parsed in &fields[..count] {
        let (name, value) = field(parsed, Bytes::copy_from_slice(parsed.value))?;
        trailers.append(name, value);
    }
    let _ = input.split_to(length);
    Ok(Some(trailers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    /// Everything that is cut out, and whether that was all; `input` comes in pieces of `size`.
    fn all(
        mut rest: Rest,
        input: &[u8],
        size: usize,
    ) -> Result<(Vec<u8>, HeaderMap, bool), Malformed> {
        let (mut data, mut trailers, mut buffer) = (Vec::new(), HeaderMap::new(), BytesMut::new());
        for piece in input.chunks(size) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = rest.cut(&mut buffer)? {
                match frame.into_data() {
                    Ok(piece) => data.extend_from_slice(&piece),
                    Err(frame) => trailers = frame.into_trailers().expect("one or the other"),
                }
            }
        }
        Ok((data, trailers, rest == Rest::Nothing && buffer.is_empty()))
    }

    const CHUNKS: Rest = Rest::Chunks(Point::Head);

    #[test]
    fn a_body_is_the_same_however_it_comes() {
        let chunked = b"5;a=b\r\nhello\r\n00a\r\n, overload\r\n0\r\nx-sum: 1\r\n\r\n";
        for size in 1..=chunked.len() {
            let (data, trailers, whole) = all(CHUNKS, chunked, size).expect("well formed");
            assert_eq!((&data[..], whole), (&b"hello, overload"[..], true));
            assert_eq!((trailers.len(), trailers["x-sum"].as_bytes()), (1, &b"1"[..]));
            let (data, _, whole) = all(Rest::Bytes(7), b"hello, overload", size).expect("bytes");
            assert_eq!((&data[..], whole), (&b"hello, "[..], false), "what follows is not its own");
            let (data, _, whole) = all(Rest::ToTheEnd, b"hello", size).expect("bytes");
            assert_eq!((&data[..], whole), (&b"hello"[..], false));
        }
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for wrong in [
            &b"\r\n"[..],
            b"-1\r\n",
            b"g\r\n",
            b"fffffffffffffffff\r\n",
            b"1\r\nab\r\n",
            b"1\r\na\rb",
            b"1\na\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\na: b\x00\r\n\r\n",
        ] {
            let result = all(CHUNKS, wrong, wrong.len());
            assert!(result.is_err(), "{:?}: {result:?}", String::from_utf8_lossy(wrong));
        }
        let endless = [b"1;".to_vec(), vec![b'a'; MOST_CHUNK_HEAD]].concat();
        assert!(all(CHUNKS, &endless, 100).is_err());
        let many = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(1000)].concat();
        assert!(all(CHUNKS, &many, 100).is_err());
    }

    proptest! {
        /// Mostly what chunks are made of, so that the decoder gets somewhere.
        #[test]
        fn any_bytes_in_any_pieces_come_to_the_same(
            any in vec(prop_oneof![select(&b"0123fF;a: \r\n\r\n"[..]), any::<u8>()], 0..60),
            size in 1..5_usize,
        ) {
            prop_assert_eq!(all(CHUNKS, &any, any.len().max(1)), all(CHUNKS, &any, size));
        }
    }

    #[test]
    fn only_a_body_without_an_end_ends_with_its_connection() {
        assert!(Rest::ToTheEnd.on_close() && Rest::Nothing.on_close());
        assert!(!Rest::Bytes(1).on_close() && !Rest::Chunks(Point::Trailers).on_close());
        assert_eq!(Rest::Bytes(3).size_hint().exact(), Some(3));
        assert_eq!(Rest::ToTheEnd.size_hint().exact(), None);
    }
}
