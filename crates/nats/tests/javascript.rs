//! Clients as they are: nats.js, in a process of its own.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::process::Command;

use support::World;

/// What a program of nats.js relies on, through a gate before three brokers. It fails by an exception.
const PROGRAM: &str = r#"
const { connect, StringCodec, headers, ErrorCode } = require("nats");
const assert = require("assert");
const text = StringCodec();

async function main(url) {
  const names = [0, 1, 2, 3, 4, 5];
  const all = [];
  for (const n of names) all.push(await connect({ servers: url, name: `js-${n}`, timeout: 30000 }));
  const [first, ...others] = all;

  // Publish and subscribe, with and without headers, from every broker.
  const seen = new Map();
  const everything = first.subscribe("a.*", { max: 6 });
  await first.flush();
  for (const n of names) {
    const h = headers();
    h.append("n", String(n));
    all[n].publish(`a.${n}`, new Uint8Array(n), n % 2 ? { headers: h } : undefined);
  }
  for await (const m of everything) seen.set(m.subject, [m.data.length, m.headers?.get("n")]);
  for (const n of names) assert.deepStrictEqual(seen.get(`a.${n}`), [n, n % 2 ? String(n) : undefined]);

  // Requests, from everybody to one; and to nobody.
  first.subscribe("svc", { callback: (err, m) => m.respond(text.encode("re " + text.decode(m.data))) });
  await first.flush();
  for (const client of others) {
    const answer = await client.request("svc", text.encode("q"), { timeout: 30000 });
    assert.strictEqual(text.decode(answer.data), "re q");
  }
  await assert.rejects(others[0].request("nobody", undefined, { timeout: 30000 }), (e) => e.code === ErrorCode.NoResponders);

  // A queue group: each message once.
  let counted = 0;
  let enough;
  const done = new Promise((resolve) => { enough = resolve; });
  for (const client of others) {
    client.subscribe("work", { queue: "group", callback: () => { if (++counted === 60) enough(); } });
    await client.flush();
  }
  for (const client of all) for (let i = 0; i < 10; i++) client.publish("work");
  await done;
  for (const client of all) await client.flush();
  assert.strictEqual(counted, 60);

  // A limit: in order, and a refusal leaves the connection as it was.
  const got = [];
  const limited = first.subscribe("slow.>", { max: 10 });
  await first.flush();
  for (let n = 0; n < 40; n++) others[1].publish("slow.x", text.encode(String(n)));
  await others[1].flush();
  for await (const m of limited) got.push(Number(text.decode(m.data)));
  assert.deepStrictEqual(got, [...new Set(got)].sort((a, b) => a - b));
  assert.ok(!others[1].isClosed());

  // Too large a payload is an error before it is sent, as INFO says how large it may be.
  assert.throws(() => first.publish("large", new Uint8Array(first.info.max_payload + 1)));
  for (const client of all) await client.drain();
  console.log("all is well");
}
main(process.argv[1]).catch((error) => { console.error(error); process.exit(1); });
"#;

#[test]
fn a_program_of_nats_js_finds_one_server() {
    let has = Command::new("node").args(["-e", "require('nats')"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: node finds no package `nats` (npm install nats, NODE_PATH)");
    }
    let topic = "[[nats.topics]]\nsubject = 'slow.>'\nrate = 100\nburst = 3\nqueue = 10\n";
    let Some(world) = World::new(3, topic) else { return };
    let url = world.listen.to_string();
    let output = Command::new("node").args(["-e", PROGRAM, &url]).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all is well\n");
    let state = world.until("their end", |state| state["clients"] == 0);
    assert_eq!(state["in_doubt"], 0, "{state:#}");
}
