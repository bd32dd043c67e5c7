//! A client of HTTP/1.1 or gRPC: one status per request, whatever it is called there.

use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::connection::Connection;

/// An empty message: not compressed, of no length.
pub(crate) const EMPTY: Bytes = Bytes::from_static(&[0; 5]);

/// One server and the connections to it that are kept.
#[derive(Debug)]
pub(crate) struct Client {
    to: SocketAddr,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Http(Mutex<Vec<Connection>>),
    Grpc(Mutex<Option<SendRequest<Full<Bytes>>>>),
}

impl Client {
    pub(crate) fn new(to: SocketAddr, grpc: bool) -> Self {
        let way = if grpc { Way::Grpc(Mutex::default()) } else { Way::Http(Mutex::default()) };
        Self { to, way }
    }

    /// The status of the answer, as HTTP has it.
    pub(crate) async fn ask(&self, path: &str, fields: &[(&str, String)]) -> io::Result<u16> {
        match &self.way {
            Way::Http(idle) => self.ask_http(idle, path, fields).await,
            Way::Grpc(channel) => {
                self.ask_grpc(channel, path, fields).await.map_err(io::Error::other)
            }
        }
    }

    async fn ask_http(
        &self,
        idle: &Mutex<Vec<Connection>>,
        path: &str,
        fields: &[(&str, String)],
    ) -> io::Result<u16> {
        let fields: String =
            fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{fields}\r\n", self.to);
        let keep = |connection| idle.lock().expect("nobody panics").push(connection);
        // A kept connection may have been closed in the meantime; then a new one is opened, once.
        let kept = idle.lock().expect("nobody panics").pop();
        if let Some(mut connection) = kept
            && let Ok((status, keeps)) = connection.ask(request.as_bytes()).await
        {
            if keeps {
                keep(connection);
            }
            return Ok(status);
        }
        let mut connection = Connection::open(self.to).await?;
        let (status, keeps) = connection.ask(request.as_bytes()).await?;
        if keeps {
            keep(connection);
        }
        Ok(status)
    }

    async fn ask_grpc(
        &self,
        channel: &Mutex<Option<SendRequest<Full<Bytes>>>>,
        path: &str,
        fields: &[(&str, String)],
    ) -> Result<u16, hyper::Error> {
        let known = channel.lock().expect("nobody panics").clone();
        let mut sender = match known.filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let Ok(stream) = TcpStream::connect(self.to).await else { return Ok(502) };
                let _ = stream.set_nodelay(true);
                let (sender, connection) =
                    handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
                tokio::spawn(connection);
                *channel.lock().expect("nobody panics") = Some(sender.clone());
                sender
            }
        };
        let mut request = Request::post(format!("http://{}{path}", self.to))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in fields {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(EMPTY)).expect("the parts are valid");
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let told = grpc_status(response.headers());
        let status = response.status();
        let trailers = response.into_body().collect().await?.trailers().and_then(grpc_status);
        Ok(match told.or(trailers) {
            _ if status != StatusCode::OK => status.as_u16(),
            Some(0) => 200,
            Some(8 | 14) => 503,
            Some(4) => 504,
            _ => 502,
        })
    }
}

fn grpc_status(fields: &HeaderMap) -> Option<u8> {
    fields.get("grpc-status")?.to_str().ok()?.parse().ok()
}
