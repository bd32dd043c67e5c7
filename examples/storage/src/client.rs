//! A client of HTTP/1.1 that keeps its connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Whatever goes wrong.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connections that are free, by host.
type Free = BTreeMap<String, Vec<SendRequest<Empty<Bytes>>>>;

/// Keeps connections. Clones are the same client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client(Arc<Mutex<Free>>);

impl Client {
    /// Status, headers and body of an answer.
    pub(crate) async fn get(
        &self,
        url: &Uri,
        headers: HeaderMap,
    ) -> Result<(StatusCode, HeaderMap, Bytes), Failure> {
        let host = url.authority().ok_or("a URL names a host")?.to_string();
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path).header("host", &host).body(Empty::new())?;
        request.headers_mut().extend(headers);
        let mut sender = match self.free(&host) {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(&host).await?;
                stream.set_nodelay(true)?;
                let (sender, connection) = handshake(TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                sender
            }
        };
        let (head, body) = sender.send_request(request).await.map(Response::into_parts)?;
        let body = body.collect().await?.to_bytes();
        self.lock().entry(host).or_default().push(sender);
        Ok((head.status, head.headers, body))
    }

    fn free(&self, host: &str) -> Option<SendRequest<Empty<Bytes>>> {
        let mut free = self.lock();
        let free = free.get_mut(host)?;
        std::iter::from_fn(|| free.pop()).find(SendRequest::is_ready)
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
