//! Limits tell strangers apart: nobody's bucket is everybody's.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Socket, Type};
use support::{Client, Sidecar, Upstream, ok};

/// A client with this address.
fn from(address: &str, sidecar: &Sidecar) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let own: IpAddr = address.parse().expect("an address");
    socket.bind(&SocketAddr::new(own, 0).into()).expect("an address of loopback");
    socket.connect(&sidecar.handle.listen().into()).expect("it listens");
    Client::of(socket.into())
}

fn one_each(each: &str) -> String {
    format!(
        "[proxy]\nuser_header = 'x-user'\nlimit_header = 'x-api-key'\n\
         [proxy.edge]\ntrusted = ['127.0.0.0/8']\n\
         [[gate.limits]]\nlimit = 'rate'\nrate = 0.001\nburst = 1.0\neach = '{each}'\n"
    )
}

/// All strangers once had one bucket, and the first of them kept out all others.
#[test]
fn one_stranger_does_not_use_up_what_others_may() {
    let upstream = Upstream::start(|_| ok("served"));
    let (ann, bob) = ("x-user: ann\r\nx-api-key: 1\r\n", "x-user: bob\r\nx-api-key: 2\r\n");
    for (each, of_an_address) in
        [("caller", true), ("address", true), ("user", false), ("header", false)]
    {
        let sidecar = Sidecar::start(&one_each(each), &[upstream.address]);
        let mut one = from("127.0.0.1", &sidecar);
        assert_eq!([ann, ann].map(|who| one.get("/", who).status()), [200, 429], "{each}");
        // Another one, or the same with another name.
        let expected = if of_an_address { 429 } else { 200 };
        assert_eq!(one.get("/", bob).status(), expected, "{each}");
        let mut other = from("127.0.0.2", &sidecar);
        let expected = if of_an_address { 200 } else { 429 };
        assert_eq!(other.get("/", ann).status(), expected, "{each}");
    }
}

/// Many names do not help: without one, users are told apart by their address.
#[test]
fn who_names_nobody_has_the_bucket_of_its_address() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start(&one_each("user"), &[upstream.address]);
    let mut one = from("127.0.0.1", &sidecar);
    assert_eq!([(); 2].map(|()| one.get("/", "").status()), [200, 429]);
    assert_eq!(from("127.0.0.2", &sidecar).get("/", "").status(), 200);
}
