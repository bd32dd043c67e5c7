//! An agreement holds over all brokers, whoever publishes where.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use serde_json::Value;
use support::{Client, Heard, World};

const TOPIC: &str = "
    [[nats.topics]]
    subject = 'orders.>'
    rate = 500
    burst = 30
    queue = 100
";

/// What the gate itself counts must be within the agreement: by moments of tokens, and by departures but for
/// the lag that it tells.
fn within(topic: &Value) {
    let number = |name: &str| topic[name].as_f64().expect(name);
    let (rate, burst) = (number("rate"), number("burst"));
    let most = burst + rate * number("between_s") + 1e-3;
    assert!(number("passed") <= most, "more than {most}: {topic:#}");
    assert!(number("beyond") <= rate * number("lag_ms") / 1e3 + 1e-3, "{topic:#}");
}

#[test]
fn six_publishers_at_three_brokers_share_one_agreement() {
    let Some(world) = World::new(3, TOPIC) else { return };
    let mut subscriber = world.client();
    subscriber.subscribe(">", "1");
    subscriber.flush();
    let mut publishers: Vec<Client> = (0..6).map(|_| world.client()).collect();
    for n in 0..200 {
        for (who, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&format!("orders.{who}"), &n.to_string());
        }
    }
    let mut told = 0;
    for publisher in &mut publishers {
        // A PING is answered while messages wait.
        let heard = publisher.flush();
        let about = |heard: &Heard| {
            matches!(heard, Heard::Error(text)
            if text.starts_with("'Permissions Violation for Publish to \"orders.>\"") && text.contains("refused"))
        };
        assert!(heard.iter().all(about), "{heard:?}");
        told += heard.len();
    }
    assert!(told >= 3, "some heard of it");
    let done = |state: &Value| {
        let topic = &state["topics"][0];
        let ended = |name: &str| topic[name].as_u64().unwrap_or(0);
        ended("waiting") == 0 && ended("passed") + ended("refused") == 1_200
    };
    let state = world.until("all messages", done);
    let topic = &state["topics"][0];
    within(topic);
    let passed = topic["passed"].as_u64().expect("a number") as usize;
    assert!(passed >= 300 && topic["refused"].as_u64() > Some(0), "{topic:#}");
    // What passed came, in order.
    let mut last = [-1; 6];
    for heard in subscriber.messages(passed) {
        let Heard::Message { subject, payload, .. } = heard else { unreachable!() };
        let who: usize = subject.trim_start_matches("orders.").parse().expect("a publisher");
        let n: i32 = String::from_utf8_lossy(&payload).parse().expect("a number");
        assert!(n > last[who], "{who}: {n} after {}", last[who]);
        last[who] = n;
    }
}

#[test]
fn what_fits_no_topic_passes_and_overtakes_what_waits() {
    let Some(world) = World::new(1, "[[nats.topics]]\nsubject = 'slow'\nrate = 0.01\nburst = 1\n")
    else {
        return;
    };
    let mut client = world.client();
    client.subscribe(">", "1");
    client.flush();
    client.publish("slow", "1");
    client.publish("fast", "2");
    assert_eq!(client.messages(1)[0].text(), "2");
    assert_eq!(world.state()["topics"][0]["waiting"], 1);
}

#[test]
fn a_program_that_publishes_flushes_and_ends_is_as_good_as_its_word() {
    let Some(world) = World::new(2, TOPIC) else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("orders.>", "1");
    subscriber.flush();
    let mut publisher = world.client();
    (0..80).for_each(|n| publisher.publish("orders.x", &n.to_string()));
    publisher.flush();
    drop(publisher);
    let heard: Vec<String> = subscriber.messages(80).iter().map(Heard::text).collect();
    assert_eq!(heard, (0..80).map(|n| n.to_string()).collect::<Vec<_>>());
    let state = world.until("its end", |state| state["clients"] == 1);
    within(&state["topics"][0]);
}

#[test]
fn a_request_that_is_refused_is_answered_so() {
    let topic = "[[nats.topics]]\nsubject = 'svc'\nrate = 0.01\nburst = 1\nqueue = 1\n";
    let Some(world) = World::new(1, topic) else { return };
    let mut client = world.client();
    client.subscribe("inbox.*", "1");
    client.send("PUB svc inbox.1 0\r\n\r\nPUB svc inbox.2 0\r\n\r\n");
    let heard = client.messages(1).remove(0);
    let Heard::Message { subject, payload, .. } = heard else { unreachable!() };
    assert_eq!(subject, "inbox.2");
    assert!(String::from_utf8_lossy(&payload).starts_with("NATS/1.0 429 "));
}

#[test]
fn the_important_wait_and_the_others_are_refused() {
    let more = "
        [[nats.topics]]
        subject = 'a'
        rate = 0.01
        burst = 1
        queue = 3
        [[nats.publishers]]
        name = 'vip'
        business = 1
    ";
    let Some(world) = World::new(1, more) else { return };
    let (mut low, mut high) = (world.named("low"), world.named("vip"));
    (0..3).for_each(|_| low.publish("a", "x"));
    assert_eq!(low.flush(), []);
    (0..3).for_each(|_| high.publish("a", "x"));
    assert_eq!(high.flush(), []);
    // It hears of the first at once and of the rest within a second.
    let told = [low.hear(), low.hear()];
    assert!(told.iter().all(|heard| matches!(heard, Heard::Error(_))), "{told:?}");
    assert_eq!(world.state()["topics"][0]["refused"], 3);
}

#[test]
fn another_rate_holds_from_its_reload_on() {
    let Some(world) = World::new(2, "[[nats.topics]]\nsubject = 'a'\nrate = 0.01\nburst = 2\n")
    else {
        return;
    };
    let mut client = world.client();
    client.subscribe("a", "1");
    client.publish("a", "x");
    client.flush();
    let urls: Vec<&String> = world.brokers.iter().map(|broker| &broker.url).collect();
    let text = |topic: &str| format!("[nats]\nbrokers = {urls:?}\n[[nats.topics]]\n{topic}\n");
    let file = |topic: &str| tidegate_nats::File::parse(&text(topic)).expect("valid");
    let told = world
        .handle
        .reload(file("subject = 'b'\nrate = 1000\nburst = 2"))
        .expect_err("another topic");
    assert!(told.contains("subjects of topics"), "{told}");
    world.handle.reload(file("subject = 'a'\nrate = 1000\nburst = 2")).expect("the same topic");
    assert_eq!(client.messages(1)[0].text(), "x");
}
