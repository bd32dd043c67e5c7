//! What `grpc-status` says about a service: by trailers, or in the head where there is nothing else.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::net::SocketAddr;
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use support::leaks::conserved;
use support::{Sidecar, file};
use tokio::net::TcpListener;

/// A service of gRPC over HTTP/2: of `/head/N` the head says N, of `/trailers/N` the trailers do.
fn service() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("it is ours");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let listener = TcpListener::from_std(listener).expect("it is ours");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let path = request.uri().path();
                        let (_, status) = path.rsplit_once('/').expect("a path");
                        let status = HeaderValue::try_from(status).expect("a number");
                        let mut head = Response::new(());
                        let kind = HeaderValue::from_static("application/grpc");
                        head.headers_mut().insert("content-type", kind);
                        if path.starts_with("/head") {
                            head.headers_mut().insert("grpc-status", status);
                            respond.send_response(head, true).expect("taken");
                            continue;
                        }
                        let mut body = respond.send_response(head, false).expect("taken");
                        body.send_data(Bytes::from_static(b"\0\0\0\0\0"), false).expect("taken");
                        let name = "grpc-status".parse().expect("a name");
                        body.send_trailers(HeaderMap::from_iter([(name, status)])).expect("taken");
                    }
                });
            }
        });
    });
    address
}

#[test]
fn a_refusal_or_failure_in_trailers_or_head_is_none_served() {
    let address = service();
    let config = "[proxy.health]\neject_after = 0\n[gate.admission]\npolicy = 'open'\n\
                  [gate.slots]\nslots = 'fixed'\n";
    let mut file = file(config, &[address]);
    file.proxy.upstreams = vec![format!("h2c://{address}").parse().expect("an address")];
    let sidecar = Sidecar::with_source(file, None);
    let mut client = sidecar.client();
    let grpc = "content-type: application/grpc\r\nte: trailers\r\n";
    let mut failed = 0;
    for (status, fails) in [(0, 0), (14, 1), (8, 1), (13, 1), (4, 1), (5, 0)] {
        for place in ["head", "trailers"] {
            assert_eq!(client.get(&format!("/{place}/{status}"), grpc).status(), 200);
            failed += fails;
        }
    }
    conserved(&sidecar);
    let finished = &sidecar.state()["finished"]["critical"];
    assert_eq!((&finished["served"], &finished["failed"]), (&4.into(), &failed.into()));
}
