//! JetStream behind the gate: one broker has the streams, clients are those of nats-py.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::process::Command;

use support::{Broker, Client, Heard, World};

/// What a program relies on. Its publisher lives at another broker than the streams.
const PROGRAM: &str = r#"
import asyncio, sys, nats
from nats.js.errors import APIError

async def main(url):
    first = await nats.connect(url, name="first")
    second = await nats.connect(url, name="second")
    # They live somewhere.
    for client in (first, second):
        await client.publish("elsewhere", b"")
        await client.flush()
    for client in (first, second):
        js = client.jetstream()
        name = "S" + client.options["name"]
        await js.add_stream(name=name, subjects=[f"free.{name}.*"])
        for n in range(20):
            ack = await js.publish(f"free.{name}.x", str(n).encode(), timeout=30)
            assert (ack.stream, ack.seq) == (name, n + 1), ack
        pull = await js.pull_subscribe(f"free.{name}.*", "durable")
        got = []
        while len(got) < 20:
            for message in await pull.fetch(20 - len(got), timeout=30):
                got.append(int(message.data))
                await message.ack_sync()
        assert got == list(range(20)), got
        push = await js.subscribe(f"free.{name}.*")
        assert [int((await push.next_msg(30)).data) for _ in range(20)] == got
        bucket = await js.create_key_value(bucket="B" + name)
        await bucket.put("k", b"v")
        assert (await bucket.get("k")).value == b"v"

    # Limited: what would wait too long is refused at once.
    js = second.jetstream()
    await js.add_stream(name="LIMITED", subjects=["limited.*"])
    passed = refused = 0
    while not (passed and refused):
        try:
            # Without an answer this would be the end.
            await js.publish("limited.x", b"", timeout=60)
            passed += 1
        except APIError as error:
            assert error.code == 429 and "limited.*" in error.description, error
            refused += 1
    assert (await js.stream_info("LIMITED")).state.messages == passed
    for client in (first, second): await client.drain()
    print("all is well")

asyncio.run(main(sys.argv[1]))
"#;

const MORE: &str = "
    subjects = ['free.*.*', 'limited.*']
    patience = '100ms'
    [[nats.topics]]
    subject = 'limited.*'
    rate = 2
    burst = 3
";

/// Three brokers, of which the last has streams, in a folder that is removed at the end.
struct Streams {
    world: World,
    folder: std::path::PathBuf,
}

impl Streams {
    fn start(name: &str) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        let place = folder.display().to_string();
        let mut brokers = vec![Broker::start(&[])?, Broker::start(&[])?];
        brokers.push(Broker::start(&["-js", "-sd", &place])?);
        let at = brokers[2].url.clone();
        let more = format!("[nats.jetstream]\nbroker = '{at}'\n{MORE}");
        Some(Self { world: World::before(brokers, &more), folder })
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.world.brokers.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn streams_and_stores_of_nats_py_are_found_at_their_broker() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import nats"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: Python has no nats-py (pip install nats-py)");
    }
    let Some(streams) = Streams::start("streams") else { return };
    let url = format!("nats://{}", streams.world.listen);
    let output = Command::new(python).args(["-c", PROGRAM, &url]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all is well\n");
    let state = streams.world.until("their end", |state| state["clients"] == 0);
    assert_eq!(state["in_doubt"], 0, "{state:#}");
    assert_eq!(state["topics"][0]["brokers"][0]["rate"], 0.0, "all of it is at the other broker");
}

#[test]
fn while_their_broker_is_gone_nobody_listens() {
    let Some(mut streams) = Streams::start("gone") else { return };
    let world = &mut streams.world;
    let connect = "{\"verbose\":false,\"headers\":true,\"no_responders\":true}";
    let mut client = Client::connect(world.listen, connect);
    client.subscribe("inbox.*", "1");
    world.brokers[2].kill();
    world.until("its end", |state| state["brokers"][2]["state"] == "down");
    client.send("PUB limited.x inbox.1 0\r\n\r\n");
    let Heard::Message { subject, payload, .. } = client.messages(1).remove(0) else {
        unreachable!()
    };
    assert_eq!(subject, "inbox.1");
    assert!(payload.starts_with(b"NATS/1.0 503"), "{payload:?}");
    // The rest of the world goes on.
    client.subscribe("b", "2");
    client.publish("b", "x");
    assert_eq!(client.messages(1)[0].text(), "x");
}
