//! The demo and the dashboard in a real browser, headless Chromium. `TIDEGATE_PICTURES=DIR` keeps the
//! pictures for the book.

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "real processes, a real browser")]

#[path = "support/webdriver.rs"]
mod webdriver;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::Value;
use webdriver::{Browser, exchange};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A process of ours, killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// A demo, and where its page is.
fn demo(args: &[&str]) -> (Running, String) {
    let mut child = Command::new(TIDEGATE)
        .args(["demo", "--listen", "127.0.0.1:0"])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it speaks");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    (Running(child), address.unwrap_or_else(|| panic!("{line}")).to_owned())
}

fn sidecar(listen: &str, admin: &str) -> Running {
    let child = Command::new(TIDEGATE)
        .args(["proxy", "--listen", listen, "--admin", admin, "--trust", "inside"])
        .args(["--upstream", "http://127.0.0.1:9", "--log", "none"])
        .spawn()
        .expect("it starts");
    while exchange(admin, "GET", "/healthz", "", "").is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    Running(child)
}

/// A port that is free now.
fn free() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

fn keep(browser: &Browser, name: &str) {
    let Some(folder) = env::var_os("TIDEGATE_PICTURES") else { return };
    let path = PathBuf::from(folder).join(name);
    fs::write(&path, base64(&browser.picture())).expect("a folder to write to");
}

/// The bytes behind base64.
fn base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte| ALPHABET.iter().position(|known| *known == byte);
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0u32);
    for six in text.bytes().filter_map(value) {
        held = held << 6 | six as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}

/// Waits until a condition on the page's own numbers of its lanes has held for three ticks.
fn holds(browser: &Browser, what: &str, condition: &str) {
    browser.run("window.heldFor = 0; window.lastTick = ''");
    let script = format!(
        "const lane = (policy) => document.querySelector(`[data-policy=${{policy}}]`)?.dataset ?? {{}};
         const tick = document.documentElement.dataset.ticks;
         if (tick !== window.lastTick) {{
           window.lastTick = tick;
           window.heldFor = ({condition}) ? window.heldFor + 1 : 0;
         }}
         return window.heldFor >= 3;"
    );
    browser.wait(what, &script);
}

/// A topic at twice its agreement: its rate is on the line, and messages wait.
#[cfg(feature = "nats")]
#[test]
fn the_page_of_topics_shows_rates_and_delays() {
    use std::io::Write;
    let mut server = Command::new("nats-server");
    let server = server.args(["-a", "127.0.0.1", "-p", "-1"]).stderr(Stdio::piped()).spawn();
    let Ok(mut server) = server else {
        return eprintln!("skipped: there is no nats-server (apt-get install nats-server)");
    };
    let mut lines = BufReader::new(server.stderr.take().expect("piped")).lines();
    let _server = Running(server);
    let Some(browser) = Browser::start(1000, 900) else { return };
    let said = |line: &String| line.contains("Listening for client connections on");
    let line = lines.by_ref().map_while(Result::ok).find(said).expect("it starts");
    thread::spawn(move || lines.for_each(drop));
    let url = format!("nats://{}", line.rsplit(' ').next().expect("an address"));
    let (listen, admin) = (free(), free());
    let config = env::temp_dir().join(format!("tidegate-page-{}.toml", std::process::id()));
    let text = format!(
        "[nats]\nlisten = '{listen}'\nadmin = '{admin}'\nbrokers = ['{url}']\n\
         [[nats.topics]]\nname = '<b>orders</b>'\nsubject = 'orders.>'\nrate = 500\nburst = 20\nqueue = 200\n"
    );
    fs::write(&config, text).expect("a file");
    let gate = Command::new(TIDEGATE).arg("nats").arg("--config").arg(&config).spawn();
    let _gate = Running(gate.expect("it starts"));
    while exchange(&admin, "GET", "/readyz", "", "").is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    let mut publisher = std::net::TcpStream::connect(&listen).expect("it listens");
    publisher.write_all(b"CONNECT {\"verbose\":false}\r\n").expect("it reads");
    // Until the gate ends.
    thread::spawn(move || {
        while publisher.write_all(&b"PUB orders.new 1\r\nx\r\n".repeat(20)).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    browser.open(&format!("http://{admin}/topics"));
    let shown = |what| format!("return document.body.innerText.includes('{what}')");
    browser.wait("the topic, as text", &shown("<b>orders</b> (orders.>)"));
    browser.wait("its agreement", &shown("/s of 500/s, 20 at once"));
    browser.wait("refusals", "return /refused [1-9]/.test(document.body.innerText)");
    let point = "document.querySelector('polyline').getAttribute('points').split(' ')";
    browser.wait("the line moves", &format!("return {point}.length > 6"));
    // Within a tenth of the agreement, which is drawn at 1 / 1.1 of the height, however often it was asked.
    browser.wait(
        "the rate is what was agreed",
        "return /(4[5-9]|5[0-4])[0-9]\\/s of 500/.test(document.body.innerText)",
    );
    keep(&browser, "topics.png");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    fs::remove_file(config).expect("it was there");
}

#[test]
fn the_demo_convinces_at_one_look() {
    let Some(browser) = Browser::start(1360, 1120) else { return };
    let (_demo, address) = demo(&[]);
    browser.open(&format!("http://{address}/"));
    browser.wait("the first message", "return document.documentElement.dataset.ticks > 1");

    // Open collapses, tide does not: half of the capacity lies between them.
    holds(&browser, "open collapses", "lane('open').goodput < 50 && lane('open').offered > 250");
    holds(&browser, "tide holds", "lane('tide').goodput > 130");
    holds(&browser, "the important are served", "lane('tide').success_top_quarter > 0.8");
    browser.wait(
        "words beside colours",
        "return document.querySelector('[data-policy=open] .verdict').textContent.includes('collapsed')",
    );

    // Charts move.
    let points = "return document.querySelector('[data-chart=traffic]').data[0].x.length";
    let before = browser.number(points);
    browser.wait("charts move", &format!("{} > {before}", points));
    let heat =
        "return document.querySelector('[data-policy=tide] [data-chart=heat]').data[0].z.length";
    assert_eq!(browser.number(heat), 16.0);

    // The slider obeys the keyboard, and the load follows.
    browser.run("document.getElementById('load').focus()");
    let page_up = "\u{e00e}";
    browser.keys(&[page_up, page_up]);
    browser.wait(
        "the slider's value",
        "return document.getElementById('load-out').textContent === '4.0 ×'",
    );
    holds(&browser, "four times the load", "lane('open').offered > 500");
    holds(&browser, "tide holds at four times", "lane('tide').goodput > 100");
    browser.run("document.querySelector('[data-scene=calm]').click()");
    holds(&browser, "calm", "lane('open').offered < 220");
    // Open may stay down: its service still works for those who have given up.
    holds(&browser, "tide is well without overload", "lane('tide').goodput > 100");

    // Another policy, by the page's own control.
    browser.run(
        "const a = document.getElementById('a'); a.value = 'codel'; a.dispatchEvent(new Event('change'))",
    );
    browser.wait("codel", "return document.querySelector('[data-policy=codel]') !== null");
    browser.run("document.getElementById('compare').click()");
    assert_eq!(browser.run("return document.querySelectorAll('.lane:not([hidden])').length"), 1);
    browser.run("document.getElementById('compare').click()");

    // Dark, and as small as a phone: nothing sticks out.
    let paper = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.text(paper);
    browser.run("document.getElementById('theme').click()");
    assert_ne!(browser.text(paper), light);
    assert_eq!(browser.text("return document.documentElement.dataset.theme"), "dark");
    browser.screen(390, 844, true);
    browser.wait(
        "a page as wide as the screen",
        "return document.documentElement.scrollWidth <= window.innerWidth + 1",
    );
    keep(&browser, "demo-phone.png");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn pictures_for_the_book() {
    if env::var_os("TIDEGATE_PICTURES").is_none() {
        return;
    }
    let Some(browser) = Browser::start(1360, 1240) else { return };
    let (_demo, address) = demo(&["--load", "0.8"]);
    browser.open(&format!("http://{address}/"));
    browser.wait("calm", "return document.documentElement.dataset.ticks > 20");
    browser.run("document.querySelector('[data-scene=overload]').click()");
    browser.wait("overload", "return document.documentElement.dataset.ticks > 70");
    keep(&browser, "demo.png");
    let dashboard =
        browser.text("return document.querySelector('[data-policy=tide] [data-is=admin]').href");
    browser.open(&dashboard);
    thread::sleep(Duration::from_secs(40));
    keep(&browser, "dashboard.png");
}

#[test]
fn the_demo_takes_no_orders_from_other_sites() {
    let (_demo, address) = demo(&["--load", "0"]);
    let post = |headers: &str| {
        exchange(&address, "POST", "/set?load=1.5", headers, "").expect("an answer")
    };
    let (status, words) = post("origin: http://elsewhere.example\r\n");
    assert_eq!(status, 403, "{words}");
    assert_eq!(post("sec-fetch-site: cross-site\r\n").0, 403);
    let (status, words) =
        post(&format!("origin: http://{address}\r\nsec-fetch-site: same-origin\r\n"));
    let controls: Value = serde_json::from_str(&words).expect("JSON");
    assert_eq!((status, &controls["load"]), (200, &Value::from(1.5)));
    assert_eq!(exchange(&address, "POST", "/set?load=99", "", "").expect("an answer").0, 400);
    assert_eq!(exchange(&address, "GET", "/set?load=3", "", "").expect("an answer").0, 404);
}

/// The page of a sidecar: what it says is what `/state` and `/metrics` say, a stranger's words are
/// shown as words, and a restart is noticed.
#[test]
fn the_dashboard_is_true_safe_and_survives_a_restart() {
    let Some(browser) = Browser::start(1360, 1100) else { return };
    let (listen, admin) = (free(), free());
    let running = sidecar(&listen, &admin);
    // Nothing answers behind it: three requests that fail, of a workflow with a hostile name.
    let hostile = "<img src=x onerror=document.title=1>";
    for _ in 0..3 {
        let context = format!("overload-context: r=(8 7), w=\"{hostile}\"\r\n");
        let (status, _) = exchange(&listen, "GET", "/", &context, "").expect("an answer");
        assert_eq!(status, 502);
    }
    browser.open(&format!("http://{admin}/"));
    browser.wait("the dashboard", "return location.pathname === '/dashboard'");
    browser.wait(
        "the workflow",
        "return document.getElementById('workflows').textContent.includes('onerror')",
    );
    let shown = browser.text("return document.querySelector('#workflows td').textContent");
    assert_eq!(shown, hostile);
    assert_eq!(browser.run("return document.querySelectorAll('td img').length"), 0);
    assert_eq!(browser.text("return document.title"), "Tidegate dashboard");

    // The same numbers everywhere.
    let page = browser.text("return document.querySelector('#by-rank tr').textContent");
    assert_eq!(page, "8300", "rank 8: 3 arrived, 0 refused, 0 served");
    let (_, state) = exchange(&admin, "GET", "/state", "", "").expect("an answer");
    let state: Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["ranks"]["8"][0]["admitted"], 3);
    assert_eq!(state["admitted"]["critical-plus"], 3);
    let (_, metrics) = exchange(&admin, "GET", "/metrics", "", "").expect("an answer");
    assert!(metrics.contains("tidegate_admitted_total{band=\"critical-plus\"} 3\n"));
    assert!(
        metrics.contains("tidegate_finished_total{band=\"critical-plus\",outcome=\"failed\"} 3\n")
    );
    let slots = format!("{} of {}", state["running"], state["slots"]);
    assert_eq!(browser.text("return document.getElementById('slots').textContent"), slots);

    // Explain answers, also to nonsense.
    browser.run(
        "document.getElementById('user').value = 9; document.querySelector('#explain button').click()",
    );
    browser.wait(
        "an explanation",
        "return document.getElementById('explain-answer').textContent.includes('start at once')",
    );
    browser.run(
        "document.getElementById('deadline').value = 'soon'; document.querySelector('#explain button').click()",
    );
    browser.wait(
        "an objection",
        "return document.getElementById('explain-answer').textContent.includes('not allowed')",
    );
    browser.wait(
        "parameters with their meaning",
        "return document.getElementById('policy-table').textContent.includes('The one value to set')",
    );
    // Without a token nothing changes.
    browser.run("document.querySelector('[data-change=kill]').click()");
    browser.wait(
        "a refusal",
        "return document.getElementById('change-answer').textContent.includes('Not done (403)')",
    );
    assert!(browser.complaints().iter().all(|line| line.contains("403") || line.contains("400")));

    drop(running);
    browser.wait(
        "news of the end",
        "return document.getElementById('banner').textContent.includes('Connection lost')",
    );
    let _again = sidecar(&listen, &admin);
    browser.wait(
        "news of the restart",
        "return document.getElementById('banner').textContent.includes('Connected again')",
    );
    browser.wait("new numbers", "return document.querySelectorAll('#by-rank tr').length === 0");
    browser.screen(390, 844, true);
    browser.wait(
        "a page as wide as the screen",
        "return document.documentElement.scrollWidth <= window.innerWidth + 1",
    );
}

/// A site of its own, in plain asyncio: a page, its script, data, and a WebSocket. Prints its port.
const SITE: &str = r#"
import asyncio, base64, hashlib
PAGE = b'<!doctype html><title>shop</title><p id=data></p><p id=socket></p><script src=/app.js></script>'
APP = b'''
fetch('/data').then(answer => answer.text()).then(text => { data.textContent = text });
const line = new WebSocket(`ws://${location.host}/socket`);
line.onmessage = event => { socket.textContent += event.data; if (event.data === 'hello') line.send('again'); };
'''
async def answer(reader, writer):
    while True:
        try:
            head = (await reader.readuntil(b'\r\n\r\n')).decode().split('\r\n')
        except asyncio.IncompleteReadError:
            return writer.close()
        fields = dict(line.lower().split(': ', 1) for line in head[1:] if ': ' in line)
        path = head[0].split(' ')[1]
        if path == '/socket':
            key = next(line.split(': ', 1)[1] for line in head if line.lower().startswith('sec-websocket-key'))
            accept = base64.b64encode(hashlib.sha1((key + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest())
            writer.write(b'HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n'
                         b'sec-websocket-accept: ' + accept + b'\r\n\r\n\x81\x05hello')
            frame = await reader.readexactly(11)
            said = bytes(byte ^ frame[2 + n % 4] for n, byte in enumerate(frame[6:]))
            writer.write(b'\x81\x05' + said)
            await reader.read()
            return writer.close()
        body = {'/': PAGE, '/app.js': APP, '/data': b'ranked ' + fields.get('overload-context', '').encode()}
        body = body.get(path, b'')
        kind = b'text/javascript' if path == '/app.js' else b'text/html'
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s' % (kind, len(body), body))
async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"#;

/// Everything a page needs passes through a sidecar.
#[test]
fn a_page_loads_through_the_sidecar() {
    let Some(browser) = Browser::start(800, 600) else { return };
    let Ok(mut site) = Command::new("python3").args(["-c", SITE]).stdout(Stdio::piped()).spawn()
    else {
        return eprintln!("skipped: python3 is not installed");
    };
    let mut port = String::new();
    let output = site.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut port).expect("it says its port");
    let _site = Running(site);
    let (listen, admin) = (free(), free());
    let upstream = format!("http://127.0.0.1:{}", port.trim());
    let child = Command::new(TIDEGATE)
        .args(["proxy", "--listen", &listen, "--admin", &admin, "--log", "none"])
        .args(["--upstream", &upstream])
        .spawn()
        .expect("it starts");
    let _sidecar = Running(child);
    while exchange(&admin, "GET", "/healthz", "", "").is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    browser.open(&format!("http://{listen}/"));
    assert_eq!(browser.text("return document.title"), "shop");
    browser.wait(
        "data",
        "return document.querySelector('#data').textContent.startsWith('ranked r=(24')",
    );
    browser.wait(
        "both directions of a WebSocket",
        "return document.querySelector('#socket').textContent === 'helloagain'",
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let state = exchange(&admin, "GET", "/state", "", "").expect("it answers").1;
    let state: Value = serde_json::from_str(&state).expect("JSON");
    // The page, its script and the data, the request that became a WebSocket; an icon perhaps.
    let served = state["finished"]["critical"]["served"].as_u64();
    assert!((4..=5).contains(&served.expect("a number")), "{state}");
    assert_eq!((&state["running"], &state["tunnels"]), (&0.into(), &1.into()));
}
