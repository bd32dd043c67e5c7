//! What becomes of the body of a request that is refused before it was read.
//!
//! Over HTTP/1.1 the next request comes behind it on the same connection, so it must be read or the
//! connection closed. A new connection costs more than a short body; a long one costs more than a
//! connection. So up to [`KEEPS`] bytes are read and forgotten, after the refusal is on its way; for more
//! the server closes. Who asks before it sends (`Expect: 100-continue`) has sent nothing, and is not
//! asked for it. Over HTTP/2 a stream can be closed alone.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Version, header};
use http_body::Body;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Bytes that are read to keep a connection.
const KEEPS: u64 = 64 * 1024;
/// How long they may take to come: a client that stalls keeps nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Forgets a request that was refused.
pub(super) fn forget<Q>(request: Request<Q>)
where
    Q: Body + Send + 'static,
{
    let one = matches!(request.version(), Version::HTTP_10 | Version::HTTP_11);
    let asks_first = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    if !one || asks_first || body.is_end_stream() || body.size_hint().lower() > KEEPS {
        return;
    }
    if let Ok(runtime) = Handle::try_current() {
        // A body that does not come in time is dropped, and the server closes.
        runtime.spawn(async { timeout(PATIENCE, read(body)).await });
    }
}

/// Reads to the end, or until it is too much.
async fn read<Q: Body>(body: Q) {
    let (mut body, mut left) = (pin!(body), KEEPS);
    while let Some(Ok(frame)) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let length = frame.data_ref().map_or(0, |data| bytes::Buf::remaining(data) as u64);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}
