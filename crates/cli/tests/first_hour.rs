//! What goes wrong in the first hour with a sidecar, and what is said about it.

#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "real processes, real sockets")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::Duration;

/// A sidecar, and its lines for the operator.
struct Running {
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("proxy")
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built");
        let lines = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, lines }
    }

    /// Reads lines until one has `part`.
    fn says(&mut self, part: &str) {
        let mut all = String::new();
        while !all.lines().next_back().unwrap_or_default().contains(part) {
            let read = self.lines.read_line(&mut all).expect("text");
            assert!(read > 0, "{part} was not said: {all}");
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("kill").success());
    }

    /// Its exit code, and what it said last.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("it ends").code(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").to_string()
}

fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Each with what has to be in the message. None of them begins to serve.
#[test]
fn what_is_wrong_with_the_flags_is_said() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = other.local_addr().expect("bound").to_string();
    let upstream = ["--upstream", "http://127.0.0.1:9"];
    let free = free();
    for (args, part) in [
        (&["--listen", "8080"][..], "such as 127.0.0.1:8080"),
        (&["--listen", ":81"], "such as 127.0.0.1:81, or 0.0.0.0:81"),
        (&["--listen", "localhost:81"], "such as 127.0.0.1:81"),
        (&["--threads", "-1"], "invalid value '-1'"),
        (&["--upsteam", "http://a"], "'--upstream'"),
        (&["--listen", &taken, "--admin", &free], "--listen gives another"),
        (&["--listen", &free, "--admin", &taken], "--admin gives another"),
        (&["--listen", "192.0.2.1:80"], "no address of this machine"),
    ] {
        let running = Running::start(&[&upstream, args].concat());
        let (code, said) = running.end();
        assert!(code == Some(2) || code == Some(1), "{args:?}: {code:?}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
    let (code, said) = Running::start(&[]).end();
    assert!(code == Some(2) && said.contains("--upstream http://host:port"), "{said}");
}

/// Of a wrong file the operator learns where and what, and the sidecar goes on with the old one.
#[test]
fn a_wrong_file_changes_nothing() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("first_hour.toml");
    let path = path.to_str().expect("text");
    fs::write(path, "[proxy]\nupstreams = ['http://127.0.0.1:9']\n").expect("writable");
    let (listen, admin) = (free(), free());
    let mut sidecar = Running::start(&["--config", path, "--listen", &listen, "--admin", &admin]);
    sidecar.says("trust edge");
    sidecar.signal("HUP");
    sidecar.says("the configuration was read again");
    fs::write(path, "[proxy]\nupstream = ['http://127.0.0.1:9']\n").expect("writable");
    sidecar.signal("HUP");
    sidecar.says("the old configuration stays");
    sidecar.says("did you mean `upstreams`?");
    fs::remove_file(path).expect("it is there");
    sidecar.signal("HUP");
    sidecar.says("No such file");
    assert!(get(&listen).starts_with("HTTP/1.0 502"), "it serves on");
}

/// A pipe is there once: whoever reads it again waits for ever, and with it all operators.
#[test]
fn a_configuration_from_a_pipe_is_read_once() {
    let (listen, admin) = (free(), free());
    let path = std::env::temp_dir().join(format!("tidegate-pipe-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let config = path.display().to_string();
    let args = ["--listen", &listen, "--admin", &admin, "--config", &config];
    let mut sidecar = Running::start(&args);
    fs::write(&path, "[proxy]\nupstreams = ['http://127.0.0.1:9']\n").expect("it is read");
    sidecar.says("trust edge");
    sidecar.signal("HUP");
    sidecar.says("there is no file to reload");
    assert!(get(&listen).contains("502"), "it serves on");
    sidecar.signal("TERM");
    sidecar.says("ended");
    // A file that becomes one is not read, either.
    fs::remove_file(&path).expect("it is there");
    fs::write(&path, "[proxy]\nupstreams = ['http://127.0.0.1:9']\n").expect("writable");
    let mut sidecar = Running::start(&args);
    sidecar.says("trust edge");
    fs::remove_file(&path).expect("it is there");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    sidecar.signal("HUP");
    sidecar.says("is no file");
    assert!(get(&listen).contains("502"), "it serves on");
    let _ = fs::remove_file(&path);
}

/// What is wrong is for people to read.
#[test]
fn a_broken_line_is_not_told_whole() {
    let long = "x".repeat(200_000);
    for text in
        [long.clone(), format!("[proxy]\nlisten = '{long}'\n"), format!("[proxy]\n{long} = 1\n")]
    {
        let path = std::env::temp_dir().join(format!("tidegate-long-{}", std::process::id()));
        fs::write(&path, text).expect("writable");
        let (code, told) = Running::start(&["--config", &path.display().to_string()]).end();
        fs::remove_file(&path).expect("it is there");
        assert_eq!(code, Some(2), "{}", &told[..told.len().min(500)]);
        assert!(told.len() < 3_000 && told.contains("200"), "{} bytes", told.len());
    }
}

/// Clients take all files that they can get, and operators are heard all the same.
#[test]
fn operators_are_heard_when_no_files_are_left() {
    let (listen, admin) = (free(), free());
    let service = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", service.local_addr().expect("bound"));
    let binary = env!("CARGO_BIN_EXE_tidegate");
    let command = format!(
        "ulimit -Sn 100; ulimit -Hn 128; exec {binary} proxy --listen {listen} --admin {admin} --upstream {url} --threads 1"
    );
    let mut child =
        Command::new("sh").args(["-c", &command]).stderr(Stdio::piped()).spawn().expect("a shell");
    let lines = BufReader::new(child.stderr.take().expect("piped"));
    let mut sidecar = Running { child, lines };
    // The soft limit is raised, to fewer than are asked for.
    sidecar.says("the system allows 128 open files");
    let clients: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&listen).expect("the kernel takes it")).collect();
    let page = |path: &str| {
        let mut stream = TcpStream::connect(&admin).expect("it listens");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("it reads");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    while !page("/metrics").contains("tidegate_connections_accepted_total 200") {}
    assert!(page("/healthz").contains("200 OK"));
    let metrics = page("/metrics");
    let failures = metrics.lines().find(|line| line.starts_with("tidegate_accept_failures_total"));
    assert_eq!(failures, Some("tidegate_accept_failures_total 0"));
    sidecar.signal("TERM");
    sidecar.says("ending");
    drop(clients);
    sidecar.says("ended");
}

/// An upstream that is not there is the first thing that goes wrong.
#[test]
fn an_upstream_that_does_not_answer_is_named() {
    let (listen, admin, upstream) = (free(), free(), free());
    let url = format!("http://{upstream}");
    let args = ["--listen", &listen, "--admin", &admin, "--upstream", &url];
    let mut sidecar = Running::start(&args);
    sidecar.says("trust edge");
    let answer = get(&listen);
    assert!(answer.contains("502") && answer.contains("cannot connect"), "{answer}");
    sidecar.says(&format!("{url} has not answered a request yet"));
    let service = TcpListener::bind(&upstream).expect("it was free");
    thread::spawn(move || {
        for mut stream in service.incoming().flatten() {
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    });
    assert!(get(&listen).ends_with("ok"));
    sidecar.says(&format!("{url} answers requests"));
}

/// The first Ctrl-C lets what is inside finish, the second does not.
#[test]
fn a_second_ctrl_c_ends_at_once() {
    let (listen, admin) = (free(), free());
    let service = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", service.local_addr().expect("bound"));
    let args = ["--listen", &listen, "--admin", &admin, "--upstream", &url];
    let mut sidecar = Running::start(&args);
    sidecar.says("trust edge");
    let client = thread::spawn(move || get(&listen));
    let mut inside = service.accept().expect("the request comes").0;
    let _ = inside.read(&mut [0; 1000]);
    sidecar.signal("INT");
    sidecar.says("ending: 1 request inside");
    thread::sleep(Duration::from_millis(100));
    sidecar.signal("INT");
    let (code, said) = sidecar.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("1 request did not finish in time"), "{said}");
    assert_eq!(client.join().expect("no panic"), "", "it was cut off");
}
