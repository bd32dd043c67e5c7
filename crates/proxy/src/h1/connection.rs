//! [`Connection`]: one upstream connection, one request at a time.

use std::io::{self, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::UPGRADE;
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::Instant;

use super::body::Rest;
use super::head::{self, Asked, Framing, Head};
use super::spare;
use super::stream::Stream;
use crate::upload::Upload;

/// Bytes asked of the socket at once: most answers fit.
const READ: usize = 8 * 1024;
/// Bytes that most heads of requests fit in.
const HEAD: usize = 1024;

/// A connection that speaks HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// Read, and not yet passed on.
    input: BytesMut,
    /// To be written before more of the body is asked for.
    output: BytesMut,
    /// The body of the request, until it is written.
    upload: Option<(Upload, Framing)>,
    /// What was asked.
    asked: Asked,
    /// Whether that may be asked once more as long as nothing was heard.
    repeats: bool,
    /// What of the answer is to come.
    rest: Rest,
    /// Whether it can carry another request.
    keeps: bool,
    /// Whether it has carried one.
    used: bool,
    /// Whether the last one was HEAD.
    head: bool,
    /// When it has had its time, and carries no other request.
    until: Instant,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) error: io::Error,
    /// Whether the request may be sent once more, on a new connection: this one may just have been
    /// closed as idle, and the request changes nothing.
    pub(crate) again: bool,
    /// The request, if nothing of it was taken.
    pub(crate) unsent: Option<Box<Request<Upload>>>,
}

impl Connection {
    /// One that is used `until` then.
    pub(crate) fn new(stream: Stream, until: Instant) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
            upload: None,
            asked: Asked::default(),
            repeats: false,
            rest: Rest::Nothing,
            keeps: true,
            used: false,
            head: false,
            until,
        }
    }

    /// Whether it has had its time.
    pub(crate) fn is_old(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Whether a body may follow that none should, however late: some servers send one for HEAD all the same.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.head
    }

    /// Whether it is free and open. To be asked before a request is sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_free() && self.stream.is_quiet()
    }

    /// Whether the last request and its answer are complete, and another may follow.
    pub(crate) fn is_free(&self) -> bool {
        let written = self.output.is_empty() && self.upload.is_none();
        self.keeps && written && self.rest == Rest::Nothing && self.input.is_empty()
    }

    /// Begins a request, of which the body is taken. Its answer is then to be asked for.
    pub(crate) fn begin(&mut self, request: &mut Request<Upload>) {
        self.asked = Asked {
            head: request.method() == Method::HEAD,
            upgrade: request.headers().contains_key(UPGRADE),
        };
        self.head = self.asked.head;
        self.output.clear();
        spare::take(&mut self.output, &spare::OUTPUT, HEAD);
        let framing = head::write(request, &mut self.output);
        let bodiless = framing == Framing::Bytes(0);
        if !bodiless {
            let upload = std::mem::replace(request.body_mut(), Upload::empty());
            self.upload = Some((upload, framing));
        }
        self.repeats = self.used && bodiless && request.method().is_safe();
    }

    /// Whether something of the request's body is still to be sent.
    pub(crate) fn is_uploading(&self) -> bool {
        self.upload.is_some()
    }

    /// The head of the answer to what was begun. The body is then to be asked for, until it ends.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response<()>, Unanswered>> {
        match ready!(self.poll_head(cx)) {
            Ok(head) => {
                self.rest = head.rest;
                self.keeps &= head.keeps;
                self.used = true;
                spare::give(&mut self.input, &spare::INPUT);
                Poll::Ready(Ok(head.response))
            }
            Err(error) => {
                self.keeps = false;
                Poll::Ready(Err(Unanswered { error, again: self.repeats, unsent: None }))
            }
        }
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Head>> {
        self.poll_upload(cx)?;
        loop {
            if let Some(head) = head::read(&mut self.input, self.asked)? {
                return Poll::Ready(Ok(head));
            }
            if ready!(self.poll_read(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.repeats = false;
        }
    }

    /// The next piece of the answer's body; none at its end.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = self.poll_piece(cx);
        if let Poll::Ready(Err(_)) = frame {
            self.keeps = false;
        }
        frame.map(Result::transpose)
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        self.poll_upload(cx)?;
        loop {
            if let Some(frame) = self.rest.cut(&mut self.input)? {
                spare::give(&mut self.input, &spare::INPUT);
                return Poll::Ready(Ok(Some(frame)));
            }
            if self.rest == Rest::Nothing {
                return Poll::Ready(Ok(None));
            }
            if ready!(self.poll_read(cx))? == 0 {
                let over = self.rest.on_close();
                let result = if over { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
                return Poll::Ready(result);
            }
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.rest.size_hint()
    }

    /// What is left once another protocol is spoken: the stream, and what was already read of it.
    pub(crate) fn into_parts(self) -> (Stream, BytesMut) {
        (self.stream, self.input)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        spare::take(&mut self.input, &spare::INPUT, READ);
        let read = pin!(self.stream.read_buf(&mut self.input)).poll(cx);
        spare::give(&mut self.input, &spare::INPUT);
        read
    }

    /// Writes as much of the request as there is and as the upstream takes. An error is the body's
    /// own: an upstream that reads no more may have answered all the same, which reading tells.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            while !self.output.is_empty() {
                match Pin::new(&mut self.stream).poll_write(cx, &self.output) {
                    Poll::Ready(Ok(written @ 1..)) => self.output.advance(written),
                    Poll::Ready(_) => {
                        self.keeps = false;
                        self.output.clear();
                        self.upload = None;
                    }
                    Poll::Pending => return Ok(()),
                }
            }
            spare::give(&mut self.output, &spare::OUTPUT);
            let next = match &mut self.upload {
                Some((upload, _)) => Pin::new(upload).poll_frame(cx),
                None => Poll::Pending,
            };
            let (Poll::Ready(frame), Some((_, framing))) = (next, &mut self.upload) else {
                // TLS may have kept something; what goes wrong with it, reading tells as well.
                let _ = Pin::new(&mut self.stream).poll_flush(cx);
                return Ok(());
            };
            let frame = frame.transpose().map_err(io::Error::other)?;
            spare::take(&mut self.output, &spare::OUTPUT, 0);
            if framing.write(frame, &mut self.output)? {
                self.upload = None;
            }
        }
    }
}

impl Framing {
    /// Writes a piece of a body, or its end; true once it is complete. A body that is not as long
    /// as announced would make the rest of it, or what follows, a request of its own.
    fn write(&mut self, frame: Option<Frame<Bytes>>, output: &mut BytesMut) -> io::Result<bool> {
        let wrong = || io::Error::other("the request's body is not as long as announced");
        let frame = frame.map(Frame::into_data);
        match (self, frame) {
            (Self::Bytes(left), Some(Ok(data))) => {
                *left = left.checked_sub(data.len() as u64).ok_or_else(wrong)?;
                output.put(data);
                Ok(*left == 0)
            }
            (Self::Bytes(_), Some(Err(_trailers))) => Ok(false),
            (Self::Bytes(left), None) => {
                if *left == 0 {
                    Ok(true)
                } else {
                    Err(wrong())
                }
            }
            (Self::Chunks, Some(Ok(data))) => {
                // An empty one would be the end.
                if !data.is_empty() {
                    let _ = write!(output.writer(), "{:x}\r\n", data.len());
                    output.put(data);
                    output.put_slice(b"\r\n");
                }
                Ok(false)
            }
            (Self::Chunks, Some(Err(frame))) => {
                output.put_slice(b"0\r\n");
                for (name, value) in frame.into_trailers().iter().flatten() {
                    output.put_slice(name.as_str().as_bytes());
                    output.put_slice(b": ");
                    output.put_slice(value.as_bytes());
                    output.put_slice(b"\r\n");
                }
                output.put_slice(b"\r\n");
                Ok(true)
            }
            (Self::Chunks, None) => {
                output.put_slice(b"0\r\n\r\n");
                Ok(true)
            }
        }
    }
}
