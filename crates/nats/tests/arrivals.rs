//! Messages conform by when each of them arrived, however late the gate acts upon them.

use tidegate_core::{Instant, Span};
use tidegate_nats::File;
use tidegate_nats::hub::{Hub, Todo};
use tidegate_nats::wire::hello::Info;

/// Three messages that come at exactly the agreed rate, while their broker has not yet said who their client is. By the
/// stamp of the last read all three would have come at once, and the last would wait for 20 ms.
#[test]
fn what_was_read_and_not_acted_upon_keeps_its_own_arrivals() {
    let text =
        "[nats]\nbrokers = ['nats://a:1']\n[[nats.topics]]\nsubject = 'a'\nrate = 100\nburst = 1\n";
    let config = File::parse(text).expect("valid").nats;
    let info = Info { proto: 1, max_payload: 100, ..Info::default() };
    let at = |millis| Instant::ZERO + Span::from_millis(millis);
    let mut hub = Hub::new(at(0), config, "T".to_owned(), vec![Ok(info)]);
    let id = hub.accept(at(90), String::new()).expect("there is room");
    hub.on_client(at(100), id, at(90), b"CONNECT {\"verbose\":false}\r\n");
    // One message in three reads, then two in one whose first byte was there before.
    hub.on_client(at(100), id, at(95), b"PUB a");
    hub.on_client(at(105), id, at(97), b" 1\r\nx");
    hub.on_client(at(110), id, at(100), b"\r\n");
    hub.on_client(at(115), id, at(110), b"PUB a 1\r\ny\r\nPUB");
    hub.on_client(at(125), id, at(120), b" a 1\r\nz\r\n");
    let mut link = None;
    while let Some(todo) = hub.todo() {
        if let Todo::Open(opened, _) = todo {
            link = Some(opened);
        }
    }
    let link = link.expect("it asks who it is");
    hub.on_link_open(at(125), link);
    hub.on_link(at(125), link, b"PONG\r\n");
    hub.dispatch(at(125));
    let topic = hub.state(at(125))["topics"][0].clone();
    assert_eq!(topic["passed"], 3, "{topic:#}");
    assert_eq!(topic["delay_ms"]["longest"], 0.0, "{topic:#}");
}
