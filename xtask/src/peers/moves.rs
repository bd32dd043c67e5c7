//! `cargo xtask soak nats [SECS]`: publishers that move between real brokers every second, above their agreement; in the
//! second half brokers are killed and come back, too.
//!
//! Whatever was published has to have been delivered or refused, once and in order, to each of two subscribers; of what a
//! killed broker had, no more may be missing than was told to be in doubt.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::process::{Process, free_address, scratch};
use crate::install::{self, Need};
use crate::run::{Result, cargo, root, run};

const NEEDS: &[Need] = &[Need { program: "nats-server", package: "nats-server" }];
const BROKERS: usize = 3;
const PUBLISHERS: usize = 8;
const SUBSCRIBERS: usize = 2;
/// Between two messages of a publisher: together a third more than agreed.
const PAUSE: Duration = Duration::from_millis(10);
const RATE: u32 = 600;
/// How often everybody moves, a broker is killed, and how long it is away.
const MOVES: Duration = Duration::from_secs(1);
const KILLS: Duration = Duration::from_secs(6);
const AWAY: Duration = Duration::from_secs(2);
/// Longest time for what is under way to come.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-token-of-this-soak";

/// Half of the time without kills, half with them.
pub(crate) fn soak(secs: u64) -> Result {
    install::provide(NEEDS, false)?;
    run(&mut cargo(&["build", "-q", "-p", "tidegate-cli"]))?;
    let half = Duration::from_secs(secs.div_ceil(2));
    round(half, false)?;
    round(half, true)
}

fn round(length: Duration, kills: bool) -> Result {
    let places = (0..BROKERS).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
    let mut brokers: Vec<Option<Process>> = Vec::new();
    for at in &places {
        brokers.push(Some(broker(*at)?));
    }
    let (listen, admin) = (free_address()?, free_address()?);
    let (config, token) = (scratch()?.join("soak.toml"), scratch()?.join("soak.token"));
    let urls: Vec<String> = places.iter().map(|at| format!("nats://{at}")).collect();
    let text = format!(
        "[nats]\nbrokers = {urls:?}\nadmin_token_file = '{}'\n\
         [[nats.topics]]\nsubject = \"load.*\"\nrate = {RATE}\nburst = 60\nqueue = 300\n",
        token.display()
    );
    let wrong = |error: std::io::Error| format!("cannot write: {error}");
    std::fs::write(&token, TOKEN).map_err(wrong)?;
    std::fs::write(&config, text).map_err(wrong)?;
    let mut gate = Command::new(super::process::target().join("debug/tidegate"));
    gate.current_dir(root()).args(["nats", "--listen", &listen.to_string()]);
    gate.args(["--admin", &admin.to_string(), "--config"]).arg(&config);
    let _gate = Process::start(&mut gate, listen)?;
    until(admin, "all brokers are up", |state| {
        state["brokers"].as_array().is_some_and(|all| all.iter().all(|at| at["state"] == "up"))
    })?;
    let heard = (0..SUBSCRIBERS).map(|_| Heard::start(listen)).collect::<Result<Vec<_>>>()?;
    let ends = Arc::new(AtomicBool::new(false));
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|who| {
            let ends = Arc::clone(&ends);
            thread::spawn(move || publish(listen, who, &ends))
        })
        .collect();
    let begun = Instant::now();
    let (mut next_move, mut next_kill, mut back) = (begun + MOVES, begun + KILLS, None);
    let mut killed = 0;
    while begun.elapsed() < length {
        thread::sleep(Duration::from_millis(20));
        let now = Instant::now();
        if now >= next_move {
            next_move += MOVES;
            move_all(admin)?;
        }
        if kills && now >= next_kill {
            let at = killed % BROKERS;
            if let Some(broker) = brokers[at].take() {
                broker.kill();
            }
            (back, next_kill, killed) = (Some((at, now + AWAY)), next_kill + KILLS, killed + 1);
        }
        if let Some((at, _)) = back.filter(|(_, when)| now >= *when) {
            brokers[at] = Some(broker(places[at])?);
            back = None;
        }
    }
    ends.store(true, Ordering::Relaxed);
    let mut published = 0;
    for publisher in publishers {
        published += publisher.join().map_err(|_| "a publisher panicked")??;
    }
    let number = |state: &Value, name: &str| state["topics"][0][name].as_u64().unwrap_or(0);
    let state = until(admin, "nothing waits", |state| {
        number(state, "passed") + number(state, "refused") >= published && state["moving"] == 0
    })?;
    let (passed, refused) = (number(&state, "passed"), number(&state, "refused"));
    let of = |name: &str| state[name].as_u64().unwrap_or(0);
    let doubt = of("in_doubt") + of("abandoned");
    if passed + refused != published {
        return Err(format!(
            "{published} were published, {passed} passed and {refused} were refused"
        ));
    }
    for heard in &heard {
        let end = Instant::now() + PATIENCE;
        while heard.count.load(Ordering::Relaxed) + doubt < passed && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        let count = heard.count.load(Ordering::Relaxed);
        if let Some(problem) = heard.problem.lock().map_err(|_| "a subscriber panicked")?.clone() {
            return Err(problem);
        }
        if count > passed || count + doubt < passed {
            return Err(format!("{passed} passed, {count} came, {doubt} are in doubt"));
        }
        println!(
            "{published} published = {passed} passed + {refused} refused; {count} delivered in order, {} missing of {doubt} in \
             doubt; {} moves, {killed} kills",
            passed - count,
            of("moves"),
        );
    }
    if killed == 0 && doubt > 0 {
        return Err(format!("{doubt} are in doubt, and no broker was killed"));
    }
    Ok(())
}

fn broker(at: SocketAddr) -> Result<Process> {
    let mut command = Command::new("nats-server");
    Process::start(command.args(["-a", "127.0.0.1", "-p", &at.port().to_string()]), at)
}

/// A subscriber: how much it heard, and what was wrong with that.
struct Heard {
    count: Arc<AtomicU64>,
    problem: Arc<Mutex<Option<String>>>,
}

impl Heard {
    fn start(listen: SocketAddr) -> Result<Self> {
        let mut answers = connect(listen, "SUB load.* 1\r\n")?;
        let heard = Self { count: Arc::default(), problem: Arc::default() };
        let (count, problem) = (Arc::clone(&heard.count), Arc::clone(&heard.problem));
        thread::spawn(move || {
            let mut last = [None; PUBLISHERS];
            let (mut head, mut body) = (String::new(), String::new());
            while {
                head.clear();
                answers.read_line(&mut head).is_ok_and(|count| count > 0)
            } {
                let Some(rest) = head.strip_prefix("MSG load.") else { continue };
                body.clear();
                if answers.read_line(&mut body).is_err() {
                    return;
                }
                let who = rest.split(' ').next().and_then(|who| who.parse::<usize>().ok());
                let number = body.trim().parse::<u64>().ok();
                let fits = match (who.and_then(|who| last.get_mut(who)), number) {
                    (Some(last), Some(number)) => last.replace(number) < Some(number),
                    _ => false,
                };
                if !fits && let Ok(mut problem) = problem.lock() {
                    *problem = Some(format!("{} {} came twice or late", head.trim(), body.trim()));
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(heard)
    }
}

/// Publishes until it is told to end: how many.
fn publish(listen: SocketAddr, who: usize, ends: &AtomicBool) -> Result<u64> {
    let mut answers = connect(listen, "")?;
    let lost = |error: std::io::Error| format!("publisher {who} was closed: {error}");
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let text = number.to_string();
        let text = format!("PUB load.{who} {}\r\n{text}\r\n", text.len());
        answers.get_mut().write_all(text.as_bytes()).map_err(lost)?;
        thread::sleep(PAUSE);
    }
    flush(&mut answers).map_err(lost)?;
    Ok(number)
}

fn connect(listen: SocketAddr, more: &str) -> Result<BufReader<TcpStream>> {
    let cannot = |error: std::io::Error| format!("cannot connect: {error}");
    let stream = TcpStream::connect(listen).map_err(cannot)?;
    let mut answers = BufReader::new(stream);
    let text = format!("CONNECT {{\"verbose\":false}}\r\n{more}");
    answers.get_mut().write_all(text.as_bytes()).map_err(cannot)?;
    flush(&mut answers).map_err(cannot)?;
    Ok(answers)
}

/// Everything before has been read; refusals that are told meanwhile are counted elsewhere.
fn flush(answers: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    answers.get_mut().write_all(b"PING\r\n")?;
    let mut line = String::new();
    while line != "PONG\r\n" {
        line.clear();
        if answers.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Everybody who publishes goes to the next broker; one that is on its way or whose broker is away, the next time.
fn move_all(admin: SocketAddr) -> Result {
    let clients = ask(admin, "GET", "/clients")?;
    for client in clients.as_array().into_iter().flatten() {
        if let (Some(id), Some(home), true) =
            (client["id"].as_u64(), client["broker"].as_u64(), client["publishes"] == true)
        {
            let to = (home + 1) % BROKERS as u64;
            ask(admin, "POST", &format!("/move?client={id}&broker={to}"))?;
        }
    }
    Ok(())
}

fn until(admin: SocketAddr, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let end = Instant::now() + PATIENCE;
    loop {
        let state = ask(admin, "GET", "/state")?;
        if wanted(&state) {
            return Ok(state);
        }
        if Instant::now() > end {
            return Err(format!("waited in vain until {what}: {state:#}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// What a page says; null if it is no JSON.
fn ask(admin: SocketAddr, method: &str, path: &str) -> Result<Value> {
    let cannot = |error: std::io::Error| format!("{path}: {error}");
    let mut stream = TcpStream::connect(admin).map_err(cannot)?;
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: soak\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(text.as_bytes()).map_err(cannot)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(cannot)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body).unwrap_or_default())
}
