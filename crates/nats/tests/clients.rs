//! What clients of one nats-server know, they find before three.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers")]

mod support;

use std::collections::BTreeSet;

use support::{Broker, Client, Heard, World};

#[test]
fn a_subscriber_hears_publishers_of_every_broker_each_in_its_order() {
    let Some(world) = World::new(3, "") else { return };
    let mut subscriber = world.client();
    subscriber.subscribe("a.>", "7");
    subscriber.flush();
    let mut publishers: Vec<Client> = (0..6).map(|_| world.client()).collect();
    for n in 0..100 {
        for (who, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&format!("a.{who}"), &n.to_string());
        }
    }
    let mut next = [0; 6];
    for heard in subscriber.messages(600) {
        let Heard::Message { id, subject, payload, .. } = heard else { unreachable!() };
        let who: usize = subject.trim_start_matches("a.").parse().expect("a publisher");
        assert_eq!((id.as_str(), payload), ("7", next[who].to_string().into_bytes()));
        next[who] += 1;
    }
    assert_eq!(next, [100; 6]);
    let state = world.state();
    let used = |at: usize| state["brokers"][at]["published"].as_u64() == Some(200);
    assert!((0..3).all(used), "publishers are dealt evenly: {state:#}");
}

#[test]
fn requests_are_answered_whichever_brokers_they_take_and_at_once_if_nobody_is_there() {
    let Some(world) = World::new(3, "") else { return };
    let mut service = world.client();
    service.subscribe("svc", "1");
    service.flush();
    // The subscription for the answer and the request come in one go.
    let mut clients: Vec<Client> = (0..4).map(|_| world.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(format!("SUB inbox.{n}.* 1\r\nPUB svc inbox.{n}.x 1\r\n{n}\r\n"));
        let request = service.messages(1).remove(0);
        let Heard::Message { reply: Some(reply), .. } = &request else { panic!("{request:?}") };
        service.publish(reply, &format!("re {}", request.text()));
        assert_eq!(client.messages(1)[0].text(), format!("re {n}"));
        client.send(format!("PUB nobody inbox.{n}.y 0\r\n\r\n"));
        assert!(client.messages(1)[0].text().starts_with("NATS/1.0 503"));
    }
}

#[test]
fn a_queue_group_gets_each_message_once() {
    let Some(world) = World::new(3, "") else { return };
    let mut members: Vec<Client> = (0..3).map(|_| world.client()).collect();
    for member in &mut members {
        member.send("SUB work group 1\r\n");
        member.flush();
    }
    for _ in 0..3 {
        let mut publisher = world.client();
        (0..100).for_each(|n| publisher.publish("work", &n.to_string()));
        publisher.flush();
    }
    world.until("delivery", |state| state["delivered"] == 300);
    let counts: Vec<usize> = members.iter_mut().map(|member| member.flush().len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), 300);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_subscription_ends_after_as_many_as_were_asked_for_over_all_brokers() {
    let Some(world) = World::new(3, "") else { return };
    let mut subscriber = world.client();
    subscriber.send("SUB a 1\r\nUNSUB 1 5\r\nSUB a 2\r\n");
    subscriber.flush();
    for _ in 0..3 {
        let mut publisher = world.client();
        (0..4).for_each(|n| publisher.publish("a", &n.to_string()));
        publisher.flush();
    }
    world.until("delivery", |state| state["delivered"] == 17);
    let heard = subscriber.flush();
    let of = |wanted: &str| {
        let is = |heard: &&Heard| matches!(heard, Heard::Message { id, .. } if id == wanted);
        heard.iter().filter(is).count()
    };
    assert_eq!((of("1"), of("2")), (5, 12));
    subscriber.send("UNSUB 2\r\n");
    subscriber.flush();
    subscriber.publish("a", "x");
    assert_eq!(subscriber.flush(), []);
}

#[test]
fn echo_headers_and_verbosity_are_as_the_client_wants_them() {
    let Some(world) = World::new(2, "") else { return };
    let mut quiet =
        Client::connect(world.listen, "{\"verbose\":false,\"echo\":false,\"headers\":true}");
    quiet.subscribe("a", "1");
    quiet.flush();
    quiet.publish("a", "own");
    assert_eq!(quiet.flush(), []);
    let mut loud = Client::raw(world.listen);
    loud.send("CONNECT {\"verbose\":true,\"headers\":true}\r\nPING\r\n");
    assert_eq!([loud.hear(), loud.hear()], [Heard::Ok, Heard::Pong]);
    loud.send("SUB b 1\r\nHPUB a 17 19\r\nNATS/1.0\r\na:b\r\n\r\nhi\r\n");
    assert_eq!([loud.hear(), loud.hear()], [Heard::Ok, Heard::Ok]);
    assert!(quiet.messages(1)[0].text().ends_with("hi"));
}

#[test]
fn credentials_are_the_brokers_to_judge() {
    let secured = || Broker::start(&["--user", "u", "--pass", "p"]);
    let (Some(one), Some(two)) = (secured(), secured()) else { return };
    let world = World::before(vec![one, two], "");
    let mut right =
        Client::connect(world.listen, "{\"verbose\":false,\"user\":\"u\",\"pass\":\"p\"}");
    right.subscribe("a", "1");
    right.flush();
    right.publish("a", "x");
    assert_eq!(right.messages(1)[0].text(), "x");
    for options in ["{\"verbose\":false}", "{\"verbose\":false,\"user\":\"u\",\"pass\":\"q\"}"] {
        let mut wrong = Client::raw(world.listen);
        wrong.send(format!("CONNECT {options}\r\nPUB a 1\r\ny\r\nPING\r\n"));
        assert_eq!(wrong.hear(), Heard::Error("'Authorization Violation'".to_owned()));
        assert_eq!(wrong.hear(), Heard::End);
    }
    assert_eq!(right.flush(), [], "nothing of whoever may not came through");
}

#[test]
fn complaints_are_those_of_nats_server() {
    let Some(world) = World::new(1, "") else { return };
    let mut client = world.client();
    client.subscribe("a..b", "1");
    assert_eq!(client.flush(), [Heard::Error("'Invalid Subject'".to_owned())], "and it goes on");
    client.send("PUB a 1048577\r\n");
    assert_eq!(client.hear(), Heard::Error("'Maximum Payload Violation'".to_owned()));
    assert_eq!(client.hear(), Heard::End);
}

#[test]
fn brokers_of_a_cluster_and_none_at_all_are_refused_with_the_reason() {
    let args = ["--cluster", "nats://127.0.0.1:-1", "--cluster_name", "east"];
    let Some(broker) = Broker::start(&args) else { return };
    let start = |urls: &[&str]| {
        let text = format!("[nats]\nlisten='127.0.0.1:0'\nadmin='127.0.0.1:0'\nbrokers={urls:?}\n");
        let file = tidegate_nats::File::parse(&text).expect("valid");
        tidegate_nats::Gate::bind(file, |_| ()).expect_err("unfit").to_string()
    };
    let told = start(&[&broker.url]);
    assert!(told.contains("belongs to the cluster `east`") && told.contains(&broker.url), "{told}");
    let told = start(&["nats://127.0.0.1:1"]);
    assert!(told.contains("no broker is reachable") && told.contains("cannot connect"), "{told}");
    assert!(start(&[]).contains("--broker nats://host:port"));
}

#[test]
fn operators_see_who_is_there_and_may_move_them_only_with_the_token() {
    let Some(world) = World::new(2, "") else { return };
    let mut client = world.named("me");
    client.publish("a", "x");
    client.flush();
    let ask = |request: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(world.admin).expect("it listens");
        let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    assert!(ask("GET /clients").contains("\"me\""));
    assert!(ask("GET /readyz").contains("ready"));
    let metrics = ask("GET /metrics");
    let families: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(families.len() > 10 && metrics.contains("tidegate_nats_clients 1\n"), "{metrics}");
    assert!(ask("POST /move?client=1&broker=0").starts_with("HTTP/1.1 403"));
}
