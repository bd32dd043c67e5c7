//! Clients as they are: nats-py, in a process of its own.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::process::Command;

use support::World;

/// What a program of nats-py relies on, through a gate before three brokers. It fails by an exception. Its `flush` sends a
/// PING before a SUB that is still in its own queue, so what it has subscribed to stands after the second one.
const PROGRAM: &str = r#"
import asyncio, sys, nats
from nats.errors import NoRespondersError

async def stands(client):
    await client.flush()
    await client.flush()

async def main(url):
    errors = []
    async def on_error(error): errors.append(str(error))
    first = await nats.connect(url, error_cb=on_error, name="first")
    others = [await nats.connect(url, error_cb=on_error, name=f"other-{n}") for n in range(5)]
    everybody = [first] + others

    # Publish and subscribe, with and without headers.
    got = asyncio.Queue()
    await first.subscribe("a.*", cb=got.put)
    await stands(first)
    for n, client in enumerate(everybody):
        await client.publish(f"a.{n}", b"x" * n, headers={"n": str(n)} if n % 2 else None)
    seen = {}
    for _ in everybody:
        message = await asyncio.wait_for(got.get(), 30)
        seen[message.subject] = (len(message.data), (message.headers or {}).get("n"))
    assert seen == {f"a.{n}": (n, str(n) if n % 2 else None) for n in range(6)}, seen

    # Requests, from everybody to one; and to nobody.
    async def answer(message): await message.respond(b"re " + message.data)
    service = await first.subscribe("svc", cb=answer)
    await stands(first)
    for client in others:
        assert (await client.request("svc", b"q", timeout=30)).data == b"re q"
    try:
        await others[0].request("nobody", b"", timeout=30)
        raise AssertionError("somebody answered")
    except NoRespondersError:
        pass

    # A queue group.
    counts = [0] * 5
    done = asyncio.Event()
    def member(n):
        async def count(message):
            counts[n] += 1
            if sum(counts) == 60: done.set()
        return count
    for n, client in enumerate(others):
        await client.subscribe("work", "group", cb=member(n))
        await stands(client)
    for client in everybody:
        for _ in range(10): await client.publish("work", b"")
    await asyncio.wait_for(done.wait(), 30)
    for client in everybody: await client.flush()
    assert sum(counts) == 60, counts

    # A limit: a refusal is an error that the connection survives.
    limited = asyncio.Queue()
    await first.subscribe("slow.>", cb=limited.put)
    await stands(first)
    for n in range(40): await others[1].publish("slow.x", str(n).encode())
    await others[1].flush(30)
    numbers = [int((await asyncio.wait_for(limited.get(), 30)).data) for _ in range(10)]
    assert numbers == sorted(set(numbers)), numbers
    assert errors and all("permissions violation" in e.lower() and "topic slow.>" in e for e in errors), errors
    assert others[1].is_connected

    # Unsubscribing after a number, and draining.
    sub = await first.subscribe("n")
    await sub.unsubscribe(limit=2)
    await stands(first)
    for client in others: await client.publish("n", b"")
    await sub.next_msg(30); await sub.next_msg(30)
    for client in everybody: await client.drain()
    print("all is well")

asyncio.run(main(sys.argv[1]))
"#;

#[test]
fn a_program_of_nats_py_finds_one_server() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import nats"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: Python has no nats-py (pip install nats-py)");
    }
    let topic = "[[nats.topics]]\nsubject = 'slow.>'\nrate = 100\nburst = 3\nqueue = 10\n";
    let Some(world) = World::new(3, topic) else { return };
    let url = format!("nats://{}", world.listen);
    let output = Command::new(python).args(["-c", PROGRAM, &url]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all is well\n");
    let state = world.until("their end", |state| state["clients"] == 0);
    assert_eq!(state["in_doubt"], 0, "{state:#}");
}
