//! The hub among brokers that do as nats-server does, in a time of its own: every order of events that proptest thinks
//! of, in pieces of any size.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tidegate_core::{Instant, Span};
use tidegate_nats::File;
use tidegate_nats::hub::{ClientId, Conn, Hub, LinkId, Todo};
use tidegate_nats::wire::hello::Info;
use tidegate_nats::wire::{Body, Bounds, client, server, subject, write};

const BROKERS: usize = 3;
const PUBLISHERS: usize = 3;
const BOUNDS: Bounds = Bounds { line: 4_096, payload: 1 << 20 };

/// A connection between the hub and a broker.
#[derive(Default)]
struct Pipe {
    broker: usize,
    open: bool,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    /// What the broker has read of an operation.
    read: Vec<u8>,
    subscriptions: Vec<(Vec<u8>, Vec<u8>)>,
    /// The hub has closed it; what is under way to the broker still arrives.
    ended: bool,
}

struct World {
    hub: Hub,
    now: Instant,
    alive: [bool; BROKERS],
    pipes: BTreeMap<LinkId, Pipe>,
    probes: Vec<usize>,
    heard: BTreeMap<ClientId, Vec<u8>>,
    subscribers: Vec<ClientId>,
    publishers: Vec<ClientId>,
    /// What each publisher sends next.
    next: [u32; PUBLISHERS],
}

fn info() -> Info {
    let text =
        r#"{"server_id":"x","version":"2.9.10","proto":1,"headers":true,"max_payload":1000}"#;
    Info::read(text.as_bytes()).expect("an INFO")
}

impl World {
    fn new() -> Self {
        let text = "
            [nats]
            brokers = ['nats://a', 'nats://b', 'nats://c']
            [[nats.topics]]
            subject = 'limited.>'
            rate = 100
            burst = 6
        ";
        let config = File::parse(text).expect("valid").nats;
        let now = Instant::ZERO + Span::from_secs(1);
        let infos = (0..BROKERS).map(|_| Ok(info())).collect();
        let mut world = Self {
            hub: Hub::new(now, config, "T".to_owned(), infos),
            now,
            alive: [true; BROKERS],
            pipes: BTreeMap::new(),
            probes: Vec::new(),
            heard: BTreeMap::new(),
            subscribers: Vec::new(),
            publishers: Vec::new(),
            next: [0; PUBLISHERS],
        };
        world.subscribers = (0..2).map(|_| world.connect("SUB *.> 1\r\n")).collect();
        world.publishers = (0..PUBLISHERS).map(|_| world.connect("")).collect();
        world.settle();
        world
    }

    fn connect(&mut self, more: &str) -> ClientId {
        let id = self.hub.accept(self.now, String::new()).expect("there is room");
        self.say(id, &format!("CONNECT {{\"verbose\":false}}\r\nPING\r\n{more}PING\r\n"));
        id
    }

    fn say(&mut self, id: ClientId, text: &str) {
        self.hub.on_client(self.now, id, self.now, text.as_bytes());
        self.act();
    }

    /// What a driver does after its inputs.
    fn act(&mut self) {
        self.hub.dispatch(self.now);
        loop {
            while let Some(todo) = self.hub.todo() {
                match todo {
                    Todo::Open(id, broker) => {
                        self.pipes.insert(id, Pipe { broker, ..Pipe::default() });
                    }
                    Todo::Close(Conn::Link(id), rest) => {
                        if let Some(pipe) = self.pipes.get_mut(&id) {
                            pipe.up.extend(rest);
                            pipe.ended = true;
                        }
                    }
                    Todo::Close(Conn::Client(id), _) => panic!("client {id} was closed"),
                    Todo::Read(id) => self.hub.on_resumed(self.now, id),
                    Todo::Probe(broker) => self.probes.push(broker),
                    Todo::Say(_) => {}
                }
            }
            let Some(conn) = self.hub.dirty() else { break };
            let Some(out) = self.hub.output(conn) else { continue };
            let bytes = out.bytes().to_vec();
            match conn {
                Conn::Client(id) => self.heard.entry(id).or_default().extend(&bytes),
                Conn::Link(id) => match self.pipes.get_mut(&id) {
                    Some(pipe) if pipe.open => pipe.up.extend(&bytes),
                    _ => continue,
                },
            }
            out.wrote(bytes.len());
            self.hub.on_written(conn);
        }
    }

    /// Something happens at one connection: it opens, or up to `most` bytes arrive at either end.
    fn step(&mut self, which: usize, up: bool, most: usize) -> bool {
        let ids: Vec<LinkId> = self.pipes.keys().copied().collect();
        let Some(&id) = ids.get(which % ids.len().max(1)) else { return false };
        let pipe = self.pipes.get_mut(&id).expect("it is there");
        let broker = pipe.broker;
        if !self.alive[broker] {
            self.pipes.remove(&id);
            self.hub.on_link_gone(self.now, id);
        } else if !pipe.open {
            pipe.open = true;
            if !pipe.ended {
                self.hub.on_link_open(self.now, id);
            }
        } else if up || pipe.ended {
            let count = most.min(pipe.up.len());
            let bytes: Vec<u8> = pipe.up.drain(..count).collect();
            pipe.read.extend(bytes);
            self.serve(id);
            if self.pipes.get(&id).is_some_and(|pipe| pipe.ended && pipe.up.is_empty()) {
                self.pipes.remove(&id);
            }
        } else {
            let count = most.min(pipe.down.len());
            let bytes: Vec<u8> = pipe.down.drain(..count).collect();
            self.hub.on_link(self.now, id, &bytes);
        }
        self.act();
        true
    }

    /// A broker acts on all that it has read of one connection.
    fn serve(&mut self, id: LinkId) {
        loop {
            let pipe = self.pipes.get_mut(&id).expect("it is there");
            let read = std::mem::take(&mut pipe.read);
            let found = client::read(&read, BOUNDS).expect("the hub speaks NATS");
            let Some((op, used)) = found else {
                pipe.read = read;
                return;
            };
            match op {
                client::Op::Ping => pipe.down.extend(b"PONG\r\n"),
                client::Op::Subscribe { pattern, id, .. } => {
                    pipe.subscriptions.push((pattern.to_vec(), id.to_vec()));
                }
                client::Op::Unsubscribe { id, .. } => pipe.subscriptions.retain(|one| one.1 != id),
                client::Op::Publish(body) => {
                    let broker = pipe.broker;
                    self.route(broker, &body);
                }
                client::Op::Connect(_) | client::Op::Pong => {}
            }
            let pipe = self.pipes.get_mut(&id).expect("it is there");
            pipe.read = read[used..].to_vec();
        }
    }

    fn route(&mut self, broker: usize, body: &Body<'_>) {
        for pipe in self.pipes.values_mut().filter(|pipe| pipe.broker == broker && !pipe.ended) {
            for (pattern, id) in &pipe.subscriptions {
                if subject::matches(pattern, body.subject) {
                    let mut bytes = Vec::new();
                    write::message(&mut bytes, id, body);
                    pipe.down.extend(bytes);
                }
            }
        }
    }

    fn publish(&mut self, who: usize, limited: bool) {
        let number = self.next[who].to_string();
        self.next[who] += 1;
        let first = if limited { "limited" } else { "free" };
        let text = format!("PUB {first}.{who} {}\r\n{number}\r\n", number.len());
        self.say(self.publishers[who], &text);
    }

    fn answer_probe(&mut self) -> bool {
        let Some(broker) = self.probes.pop() else { return false };
        let answer = if self.alive[broker] { Ok(info()) } else { Err("gone".to_owned()) };
        self.hub.on_probe(self.now, broker, answer);
        self.act();
        true
    }

    /// Until nothing more happens, with all the time in the world.
    fn settle(&mut self) {
        for _ in 0..400 {
            while self.answer_probe() {}
            for which in 0..self.pipes.len() {
                self.step(which, true, usize::MAX);
                self.step(which, false, usize::MAX);
            }
            if self.rests() {
                return;
            }
            self.now += Span::from_millis(50);
            self.act();
        }
        panic!("it does not come to rest: {:#}", self.hub.state(self.now));
    }

    fn rests(&self) -> bool {
        let empty = |pipe: &Pipe| pipe.open && pipe.up.is_empty() && pipe.down.is_empty();
        if !self.pipes.values().all(empty) {
            return false;
        }
        let state = self.hub.state(self.now);
        let up = |at: usize| state["brokers"][at]["state"] == "up";
        state["moving"] == 0 && state["topics"][0]["waiting"] == 0 && (0..BROKERS).all(up)
    }

    /// What a subscriber heard of each publisher and kind, in order.
    fn messages(&self, id: ClientId) -> BTreeMap<Vec<u8>, Vec<u32>> {
        let mut all: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
        let mut bytes = &self.heard[&id][..];
        while let Some((op, used)) = server::read(bytes, BOUNDS).expect("the hub speaks NATS") {
            if let server::Op::Message { body, .. } = op {
                let number = String::from_utf8_lossy(body.payload).parse().expect("a number");
                all.entry(body.subject.to_vec()).or_default().push(number);
            }
            bytes = &bytes[used..];
        }
        all
    }
}

#[derive(Clone, Debug)]
enum Op {
    Publish(usize, bool),
    Step(usize, bool, usize),
    Move(usize, usize),
    Wait(u64),
    Probe,
    Kill(usize),
    Revive(usize),
}

fn op(deadly: bool) -> impl Strategy<Value = Op> {
    let quiet = prop_oneof![
        6 => (0..PUBLISHERS, any::<bool>()).prop_map(|(who, limited)| Op::Publish(who, limited)),
        20 => (0..64usize, any::<bool>(), prop_oneof![1..40usize, Just(usize::MAX)])
            .prop_map(|(which, up, most)| Op::Step(which, up, most)),
        2 => (0..PUBLISHERS, 0..BROKERS).prop_map(|(who, to)| Op::Move(who, to)),
        2 => (0..30u64).prop_map(Op::Wait),
        1 => Just(Op::Probe),
    ];
    if !deadly {
        return quiet.boxed();
    }
    prop_oneof![
        30 => quiet,
        1 => (0..BROKERS).prop_map(Op::Kill),
        1 => (0..BROKERS).prop_map(Op::Revive),
    ]
    .boxed()
}

fn play(ops: Vec<Op>) -> World {
    let mut world = World::new();
    for op in ops {
        match op {
            Op::Publish(who, limited) => world.publish(who, limited),
            Op::Step(which, up, most) => drop(world.step(which, up, most)),
            Op::Move(who, to) => {
                // It may be on its way already, or the broker may be down.
                let _ = world.hub.move_publisher(world.now, world.publishers[who], to);
                world.act();
            }
            Op::Wait(millis) => {
                world.now += Span::from_millis(millis);
                world.act();
            }
            Op::Probe => drop(world.answer_probe()),
            Op::Kill(broker) => world.alive[broker] = false,
            Op::Revive(broker) => world.alive[broker] = true,
        }
    }
    world.alive = [true; BROKERS];
    world.settle();
    world
}

/// A connection that is lost while a broker comes up stands for nobody's subscriptions.
#[test]
fn a_broker_opens_only_when_all_subscriptions_stand_there() {
    let mut world = World::new();
    world.alive[1] = false;
    let lost = |world: &mut World| {
        for which in 0..world.pipes.len() {
            world.step(which, true, 0);
        }
        world.answer_probe()
    };
    while lost(&mut world) {}
    assert_eq!(world.hub.state(world.now)["brokers"][1]["state"], "down");
    world.alive[1] = true;
    world.now += Span::from_secs(2);
    world.act();
    assert!(world.answer_probe(), "it is asked again");
    let fresh: Vec<LinkId> = world.pipes.keys().copied().collect();
    let fresh = fresh.into_iter().filter(|id| world.pipes[id].broker == 1).collect::<Vec<_>>();
    assert_eq!(fresh.len(), 2, "one for each subscriber");
    for id in fresh {
        world.pipes.remove(&id);
        world.hub.on_link_gone(world.now, id);
        world.act();
    }
    assert_eq!(world.hub.state(world.now)["brokers"][1]["state"], "joining");
    world.settle();
    assert_eq!(world.hub.state(world.now)["brokers"][1]["state"], "up");
}

proptest! {
    #[test]
    fn while_brokers_live_every_subscriber_hears_everything_once_and_in_order(
        ops in prop::collection::vec(op(false), 1..150),
    ) {
        let world = play(ops);
        for subscriber in &world.subscribers {
            let heard = world.messages(*subscriber);
            for who in 0..PUBLISHERS {
                let of = |first: &str| {
                    heard.get(format!("{first}.{who}").as_bytes()).cloned().unwrap_or_default()
                };
                let (limited, free) = (of("limited"), of("free"));
                prop_assert!(limited.is_sorted() && free.is_sorted(), "{limited:?} {free:?}");
                let mut all = [limited, free].concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..world.next[who]).collect::<Vec<_>>());
            }
        }
        let state = world.hub.state(world.now);
        prop_assert_eq!((&state["in_doubt"], &state["abandoned"]), (&0.into(), &0.into()));
    }

    #[test]
    fn brokers_that_die_and_return_repeat_and_reorder_nothing_and_what_is_missing_is_in_doubt(
        ops in prop::collection::vec(op(true), 1..200),
    ) {
        let world = play(ops);
        let state = world.hub.state(world.now);
        let number = |name: &str| state[name].as_u64().unwrap_or(u64::MAX);
        prop_assert_eq!(number("published"), u64::from(world.next.iter().sum::<u32>()), "all left");
        prop_assert_eq!((number("moving"), number("abandoned")), (0, 0));
        for subscriber in &world.subscribers {
            for (subject, numbers) in world.messages(*subscriber) {
                let rises = numbers.is_sorted_by(|one, other| one < other);
                prop_assert!(rises, "{}: {numbers:?}", String::from_utf8_lossy(&subject));
            }
        }
    }
}
