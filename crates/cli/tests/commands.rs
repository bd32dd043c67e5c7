//! The binary as a user meets it: answers, errors and exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs `tidegate` with `input` on stdin.
fn tidegate(args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    // A command that does not read its input may have closed it.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("answers are text");
    (status.code().expect("it exits by itself"), text(stdout), text(stderr))
}

#[test]
fn help_and_version_answer_on_stdout() {
    let (code, out, err) = tidegate(&["--help"], "");
    assert_eq!((code, err.as_str()), (0, ""));
    for command in ["check", "config"] {
        assert!(out.contains(command), "{out}");
    }
    let (code, out, err) = tidegate(&["--version"], "");
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, format!("tidegate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_flags_exit_with_2_and_say_so_on_stderr() {
    for args in [&["--colour"][..], &["chekc"], &["check"], &["check", "-", "--format", "xml"], &[]]
    {
        let (code, out, err) = tidegate(args, "");
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains("Usage") || err.contains("try '--help'"), "{err}");
    }
}

#[test]
fn a_valid_file_passes() {
    let (code, out, _) = tidegate(&["check", "-"], "[gate.slots]\nslots = 'fixed'\ncount = 2\n");
    assert_eq!((code, out.as_str()), (0, "stdin is valid\n"));
    let (code, out, _) = tidegate(&["check", "-", "--format", "json"], "");
    assert_eq!(code, 0);
    assert_eq!(json(&out)["valid"], true);
}

const WRONG: &str = "
[gate]
queue_limit = 0
retry_share = 1.5
[gate.slots]
slots = 'fixed'
count = -1
[caller.retry]
attempts = 0
[proxy]
port = 80
";
const WRONG_FIELDS: [&str; 5] = [
    "gate.slots.count",
    "gate.queue_limit",
    "gate.retry_share",
    "caller.retry.attempts",
    "proxy.port",
];

#[test]
fn problems_are_told_with_their_lines_in_the_order_of_the_file() {
    let (_, _, err) = tidegate(&["check", "-"], WRONG);
    let told: Vec<&str> = err.lines().skip(1).filter_map(|line| line.split(" = ").next()).collect();
    let expected = [
        "line 3: gate.queue_limit",
        "line 4: gate.retry_share",
        "line 7: gate.slots.count",
        "line 9: caller.retry.attempts",
        "line 11: proxy.port",
    ];
    assert_eq!(told, expected, "{err}");
    let (_, out, _) = tidegate(&["check", "-", "--format", "json"], WRONG);
    assert_eq!(json(&out)["problems"][2]["line"], 7);
}

#[test]
fn a_plan_is_read_from_stdin() {
    let (_, plan, _) = tidegate(&["sim", "new"], "");
    let short = ["--set", "duration=20ms", "--set", "warmup=10ms", "--set", "policy=open"];
    let args = [&["sim", "-", "--format", "json"][..], &short].concat();
    let (code, out, err) = tidegate(&args, &plan);
    assert_eq!(code, 0, "{err}");
    assert!(out.lines().all(|line| json(line)["plan"] == "stdin"), "{out}");
}

#[test]
fn all_problems_are_told_at_once() {
    let (code, out, err) = tidegate(&["check", "-"], WRONG);
    assert_eq!((code, out.as_str()), (2, ""));
    for field in WRONG_FIELDS {
        assert!(err.contains(&format!("{field} = ")), "{field} is missing from:\n{err}");
    }
    assert!(err.contains("0 to 1"), "the allowed range is told:\n{err}");
}

#[test]
fn problems_as_json_go_to_stdout() {
    let (code, out, err) = tidegate(&["check", "-", "--format", "json"], WRONG);
    assert_eq!((code, err.as_str()), (2, ""));
    let answer = json(&out);
    assert_eq!(answer["valid"], false);
    let fields: Vec<&str> = answer["problems"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|problem| problem["field"].as_str().expect("a name"))
        .collect();
    for field in WRONG_FIELDS {
        assert!(fields.contains(&field), "{field} is missing from {fields:?}");
    }
    assert_eq!(fields.len(), WRONG_FIELDS.len());
}

#[test]
fn what_is_no_toml_or_no_file_exits_with_2() {
    let (code, _, err) = tidegate(&["check", "-"], "[gate\n");
    assert_eq!(code, 2);
    assert!(err.contains("line 1"), "{err}");
    let (code, _, err) = tidegate(&["check", "no/such/file.toml"], "");
    assert_eq!(code, 2);
    assert!(err.contains("no/such/file.toml"), "{err}");
}

#[test]
fn the_example_and_the_defaults_are_valid_and_show_the_same() {
    let (_, example, _) = tidegate(&["config", "example"], "");
    let (_, defaults, _) = tidegate(&["config", "show"], "");
    for text in [&example, &defaults] {
        assert_eq!(tidegate(&["check", "-"], text).0, 0);
        let (code, shown, _) = tidegate(&["config", "show", "-"], text);
        assert_eq!((code, shown), (0, defaults.clone()));
    }
    let (code, out, err) = tidegate(&["config", "show", "-"], WRONG);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("gate.queue_limit"), "{err}");
}

#[test]
fn quotas_above_capacity_are_told_and_not_refused() {
    let text = "
        [[gate.limits]]
        limit = 'quota'
        capacity = 10000
        quotas = [
            { workflow = 'mail', rate = 8000, burst = 80 },
            { workflow = 'calendar', rate = 5000, burst = 50 },
        ]
    ";
    let (code, out, _) = tidegate(&["check", "-"], text);
    assert_eq!(code, 0);
    assert!(out.contains("gate.limits.0: quotas sum to 13000 of a capacity of 10000"), "{out}");
    let (code, _, err) = tidegate(&["check", "-"], "[[gate.limits]]\nlimit = 'rate'\nburst = 0\n");
    assert_eq!(code, 2);
    assert!(err.contains("gate.limits.0.burst = 0 is not allowed: 1 to"), "{err}");
}

#[test]
fn a_bucket_is_sized_from_a_log() {
    // Batches of five every second, for a hundred seconds.
    let lines = (0..500).map(|n| format!("{},shop,,,100\n", n / 5));
    let log: String = std::iter::once("timestamp,workflow,business,user,service\n".to_owned())
        .chain(lines)
        .collect();
    let (code, out, _) = tidegate(&["limit", "size", "-", "--format", "json"], &log);
    assert_eq!(code, 0);
    let sizing = json(&out);
    assert_eq!((&sizing["requests"], &sizing["burst"]), (&500.into(), &5.0.into()));
    let (_, block, _) = tidegate(&["limit", "size", "-"], &log);
    assert_eq!(tidegate(&["check", "-"], &block).0, 0, "the answer is a block to copy");
    let none = ["limit", "size", "-", "--workflow", "bulk"];
    for (args, log) in [(&none[..], log.as_str()), (&none[..3], "soon\nlater\n"), (&none[..3], "")]
    {
        let (code, out, err) = tidegate(args, log);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains("stdin"), "{err}");
    }
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("one JSON object")
}

#[test]
fn the_schema_is_json_and_knows_the_policies() {
    let (code, out, _) = tidegate(&["config", "schema"], "");
    assert_eq!(code, 0);
    let schema: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let kinds = &schema["properties"]["gate"]["properties"]["admission"]["oneOf"];
    let kinds = kinds.as_array().expect("a list");
    assert!(kinds.iter().any(|kind| kind["properties"]["policy"]["const"] == "tide"), "{out}");
}

#[test]
fn a_sidecar_that_cannot_start_says_why() {
    let (code, _, err) = tidegate(&["proxy", "--listen", "127.0.0.1:0"], "");
    assert_eq!(code, 2);
    assert!(err.contains("--upstream"), "{err}");
    let (code, _, err) = tidegate(&["proxy", "--upstream", "ftp://a"], "");
    assert_eq!(code, 2);
    assert!(err.contains("not a URL of HTTP"), "{err}");
    for (flags, part) in [
        (&["--enforce", "110%"][..], "0% to 100%"),
        (&["--enforce", "10%", "--observe"], "cannot be used with"),
        (&["--log", "xml"], "text, json or none"),
        (&["--admin-token-file", "no/such/file"], "no/such/file"),
    ] {
        let start = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let args: Vec<&str> =
            start.iter().chain(&["--upstream", "http://a"]).chain(flags).copied().collect();
        let (code, _, err) = tidegate(&args, "");
        assert!(code != 0 && err.contains(part), "{flags:?}: {err}");
    }
    let wrong = "[proxy]\ntrust = 'all'\nidle_timeout = '0s'\n[gate]\nqueue_limit = 0\n";
    let (code, _, err) = tidegate(&["proxy", "--upstream", "http://a", "--config", "-"], wrong);
    assert_eq!(code, 2);
    for field in ["proxy.trust", "proxy.idle_timeout", "gate.queue_limit"] {
        assert!(err.contains(&format!("{field} = ")), "{field} is missing from:\n{err}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let args = ["proxy", "--upstream", "http://a", "--listen", &address, "--admin", "127.0.0.1:0"];
    let (code, _, err) = tidegate(&args, "");
    assert_eq!(code, 1);
    assert!(err.contains(&address), "{err}");
}

/// Starts, reloads on SIGHUP, keeps the old configuration when the new one is wrong, ends on SIGTERM.
#[cfg(unix)]
#[test]
fn a_sidecar_hears_signals() {
    use std::io::{BufRead, BufReader};

    let path = std::env::temp_dir().join(format!("tidegate-{}.toml", std::process::id()));
    let write = |text: &str| std::fs::write(&path, text).expect("a temporary file");
    write("[gate]\nqueue_limit = 7\n");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"])
        .arg(&path)
        .args(["--upstream", "http://127.0.0.1:9", "--observe"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut until = |part: &str| {
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(part)));
        line.expect("the line comes before the end").expect("text")
    };
    let pid = child.id().to_string();
    let send = |signal: &str| {
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    };
    let listening = until("listening on");
    let admin = listening.rsplit("http://").next().expect("the admin address").to_owned();
    assert!(until("objective").contains("observes"));
    // Its handlers are there when the admin port answers, as one thread does both.
    let config = |wanted: &str| {
        let mut stream = std::net::TcpStream::connect(&admin).expect("it listens");
        stream.write_all(b"GET /config HTTP/1.0\r\n\r\n").expect("it reads");
        let text = std::io::read_to_string(stream).expect("it answers");
        assert!(text.contains(wanted), "{wanted} is missing from:\n{text}");
        assert!(text.contains("enforce = \"0%\""), "flags go before the file:\n{text}");
    };
    config("queue_limit = 7");
    write("[gate]\nqueue_limit = 0\n");
    send("-HUP");
    assert!(until("the old configuration stays").contains("is not valid"));
    config("queue_limit = 7");
    write("[gate]\nqueue_limit = 9\n");
    send("-HUP");
    until("is in force");
    config("queue_limit = 9");
    // A change is seen without a signal, and one that is wrong changes nothing.
    write("[gate]\nqueue_limit = 11\n");
    until("is in force");
    config("queue_limit = 11");
    write("[gate]\nqueue_limit = 'many'\n");
    until("the old configuration stays");
    config("queue_limit = 11");
    send("-TERM");
    until("ending");
    until("ended");
    assert!(child.wait().expect("it ends").success());
    std::fs::remove_file(&path).expect("it was there");
}

/// A log there is already becomes what two commands read.
#[test]
fn a_log_of_nginx_can_be_replayed_and_sized() {
    let line = |n: u64| {
        let (minute, second) = (n / 60, n % 60);
        format!(
            "10.1.2.3 - - [09/Nov/2001:05:{minute:02}:{second:02} +0000] \"GET /pay HTTP/1.1\" 200 12 \"-\" \"curl\" 0.010\n"
        )
    };
    let log: String = (0..120).map(|n| line(n).repeat(3)).collect();
    let (code, record, err) = tidegate(&["import", "nginx", "-"], &(log + "no line of it\n"));
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("1 of 361 lines"), "{err}");
    let (code, sized, err) = tidegate(&["limit", "size", "-"], &record);
    assert_eq!(code, 0, "{err}");
    assert!(sized.contains("# 360 requests at 3.0"), "{sized}");
    let path = std::env::temp_dir().join(format!("tidegate-record-{}", std::process::id()));
    std::fs::write(&path, &record).expect("written");
    let (code, told, err) = tidegate(&["sim", "replay", &path.display().to_string()], "");
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(code, 0, "{err}");
    assert!(told.contains("tide"), "{told}");
    let (code, _, err) = tidegate(&["import", "envoy", "-"], "not one\n");
    assert!(code == 2 && err.contains("none of 1 lines"), "{err}");
}

#[test]
fn completions_and_manual_pages_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = tidegate(&["completions", shell], "");
        assert!(code == 0 && script.contains("explain") && script.contains("proxy"), "{shell}");
    }
    let folder = std::env::temp_dir().join(format!("tidegate-man-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (code, _, err) = tidegate(&["man", &folder.display().to_string()], "");
    assert_eq!(code, 0, "{err}");
    let page = std::fs::read_to_string(folder.join("tidegate-proxy.1")).expect("a page");
    assert!(page.contains("upstream") && page.contains(".TH"), "{page}");
    std::fs::remove_dir_all(&folder).expect("it is there");
    let (code, _, err) = tidegate(&["man", "/nowhere"], "");
    assert!(code == 1 && err.contains("/nowhere"), "{err}");
}
