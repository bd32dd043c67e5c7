//! Many connections, and connections that do much for nothing: what one client costs the others.

#![allow(clippy::disallowed_methods, reason = "real sockets, real threads, real time")]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use http::Request;
use socket2::{Domain, Socket, Type};
use support::{Client, Sidecar, Upstream, ok};

/// Refuses by its bounds alone, however slow the machine that runs this is.
const OPEN: &str = "[gate.admission]\npolicy = 'open'\n[gate.slots]\nslots = 'fixed'\ncount = 8\n";
const SLOW: &str = "GET /slow HTTP/1.1\r\nhost: a\r\n\r\n";

fn from(address: [u8; 4], sidecar: &Sidecar) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((address, 0)).into()).expect("all of 127.0.0.0/8 is ours");
    socket.connect(&sidecar.handle.listen().into()).expect("somebody listens");
    Client::of(TcpStream::from(socket))
}

fn is_closed(client: &mut Client) -> bool {
    // Reset, or at its end.
    !matches!(client.stream.read(&mut [0]), Ok(1))
}

/// Silent ones are, and those between two requests, in either version; whoever waits for an answer is not.
#[test]
fn idle_connections_make_room_for_others() {
    let (barrier, upstream) = Upstream::held();
    let config = format!("{OPEN}[proxy.connections]\nmost = 3\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let mut busy = sidecar.client();
    busy.send(SLOW);
    sidecar.wait_for("one at work", |_| barrier.came() == 1);
    let mut silent = sidecar.client();
    sidecar.wait_for("a silent one", |state| state["connections"] == 2);
    let mut idle = sidecar.client();
    assert_eq!(idle.get("/", "").text(), "served");
    let mut first = sidecar.client();
    assert_eq!(first.get("/", "").text(), "served");
    assert!(is_closed(&mut silent), "it came first");
    let mut second = sidecar.client();
    assert_eq!(second.get("/", "").text(), "served");
    assert!(is_closed(&mut idle));
    assert_eq!(sidecar.state()["connections_reclaimed"], 2);
    assert_eq!(sidecar.state()["connections_refused"], 0);
    barrier.open();
    assert_eq!(busy.reply().text(), "served");
}

#[test]
fn one_address_does_not_take_the_connections_of_others() {
    let (barrier, upstream) = Upstream::held();
    let config = format!(
        "{OPEN}[proxy.connections]\nper_address = 2\n[proxy.edge]\ntrusted = ['127.0.0.3']\n"
    );
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let (greedy, other, hop) = ([127, 0, 0, 1], [127, 0, 0, 2], [127, 0, 0, 3]);
    let mut busy = [from(greedy, &sidecar), from(greedy, &sidecar)];
    busy.iter_mut().for_each(|client| client.send(SLOW));
    sidecar.wait_for("both at work", |_| barrier.came() == 2);
    assert!(is_closed(&mut from(greedy, &sidecar)));
    assert_eq!(sidecar.state()["connections_refused"], 1);
    assert_eq!(from(other, &sidecar).get("/", "").text(), "served");
    let mut many: Vec<Client> = (0..5).map(|_| from(hop, &sidecar)).collect();
    for client in &mut many {
        assert_eq!(client.get("/", "").text(), "served", "it speaks for many");
    }
    barrier.open();
    for client in &mut busy {
        assert_eq!(client.reply().text(), "served");
    }
    // Now one of its own makes room.
    assert_eq!(from(greedy, &sidecar).get("/", "").text(), "served");
    assert_eq!(sidecar.state()["connections_reclaimed"], 1);
}

#[test]
fn tunnels_end_when_nothing_moves_and_have_a_share() {
    let upstream = Upstream::raw(|mut client| {
        let Ok(request) = client.head() else { return };
        if request.header("upgrade").is_none() {
            return client.send(&ok("served"));
        }
        client.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        );
        let mut byte = [0];
        while client.stream.read_exact(&mut byte).is_ok() {
            let _ = client.stream.get_mut().write_all(&byte);
        }
    });
    let config = format!("{OPEN}[proxy.connections]\ntunnels = 1\ntunnel_idle_timeout = '400ms'\n");
    let sidecar = Sidecar::start(&config, &[upstream.address]);
    let upgrade =
        "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    let mut client = sidecar.client();
    client.send(upgrade);
    assert_eq!(client.head().expect("an answer").status(), 101);
    sidecar.wait_for("the tunnel", |state| state["tunnels"] == 1);
    let mut next = sidecar.client();
    next.send(upgrade);
    assert_eq!(next.reply().status(), 503, "there is no room for another");
    assert_eq!(sidecar.client().get("/", "").text(), "served", "for requests there is");
    client.send("x");
    client.stream.read_exact(&mut [0]).expect("it is there");
    assert!(is_closed(&mut client), "nobody says anything more");
    sidecar.wait_for("its end", |state| state["tunnels"] == 0 && state["tunnels_idle"] == 1);
    assert_eq!(sidecar.state()["tunnels_refused"], 1);
}

/// Frames that have to be read or answered, and are no requests that a gate could refuse.
#[test]
fn floods_of_frames_that_ask_for_nothing_end_their_connection() {
    let upstream = Upstream::start(|_| ok("served"));
    let sidecar = Sidecar::start(&format!("{OPEN}[proxy]\nthreads = 1\n"), &[upstream.address]);
    let mut beside = sidecar.client();
    let frame = |kind: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, 0, 0, 0, 0, stream], payload].concat()
    };
    for (n, flood) in [
        frame(6, 0, &[0; 8]),
        frame(4, 0, &[0, 3, 0, 0, 0, 100]),
        frame(8, 0, &[0, 0, 0, 1]),
        frame(2, 1, &[0, 0, 0, 3, 7]),
    ]
    .into_iter()
    .enumerate()
    {
        let stream = TcpStream::connect(sidecar.handle.listen()).expect("somebody listens");
        stream.set_read_timeout(Some(support::PATIENCE)).expect("a socket");
        let mut client = stream.try_clone().expect("a socket");
        let mut reader = std::io::BufReader::new(stream);
        // What it is answered is read, so that nothing but the flood is in the way.
        let drain = std::thread::spawn(move || {
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
        });
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("it is read");
        client.write_all(&frame(4, 0, &[])).expect("it is read");
        let many = flood.repeat(500);
        let broken = (0..2_000).any(|_| client.write_all(&many).is_err());
        assert!(broken, "it is cut off: {n}");
        drop(client);
        drain.join().expect("no panic");
        assert_eq!(beside.get("/", "").text(), "served");
        sidecar.wait_for("it is counted", |state| state["connections_flooded"] == n + 1);
    }
}

/// Who asks and takes what it is answered is not taken for a flood: each answer is announced room for anew.
#[tokio::test]
async fn who_asks_much_is_no_flood() {
    let upstream = Upstream::start(|_| ok(&"x".repeat(2_000)));
    let sidecar = Sidecar::start(&format!("{OPEN}[proxy]\nthreads = 1\n"), &[upstream.address]);
    let stream = tokio::net::TcpStream::connect(sidecar.handle.listen()).await.expect("open");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2 is spoken");
    let driven = tokio::spawn(connection);
    for _ in 0..6_000 {
        client = client.ready().await.expect("open");
        let request = Request::get("http://shop/").body(()).expect("well formed");
        let (answer, _) = client.send_request(request, true).expect("sent");
        let mut body = answer.await.expect("an answer").into_body();
        while let Some(piece) = body.data().await {
            let piece = piece.expect("it goes on");
            // A frame of its own for each piece, as careless clients do.
            body.flow_control().release_capacity(piece.len()).expect("taken");
        }
    }
    drop((client, driven));
    tokio::task::spawn_blocking(move || {
        assert_eq!(sidecar.state()["connections_flooded"], 0);
    })
    .await
    .expect("no panic");
}
