//! A browser, driven over the WebDriver protocol: JSON over HTTP to chromedriver. What the tests need
//! of it is a few lines; a crate for it would add a hundred crates to every build of the tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A bound on tests that hang, not a measurement: a browser on a busy machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page, ended when it is dropped.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    /// What the browser leaves behind.
    folder: PathBuf,
}

impl Browser {
    /// None where Chromium or its driver is missing: `cargo xtask test` says so by name.
    pub(crate) fn start(width: u32, height: u32) -> Option<Self> {
        static BROWSERS: AtomicU32 = AtomicU32::new(0);
        let number = BROWSERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-browser-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder of its own");
        let mut driver = Command::new("chromedriver");
        let driver = driver.arg("--port=0").env("TMPDIR", &folder).stdout(Stdio::piped()).spawn();
        let Ok(mut driver) = driver else {
            eprintln!("skipped: there is no chromedriver (apt-get install chromium-driver)");
            return None;
        };
        let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
        let said = |line: &String| line.contains("started successfully on port");
        let line = lines.by_ref().map_while(Result::ok).find(said).expect("it starts");
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        thread::spawn(move || lines.for_each(drop));
        let mut browser =
            Self { driver, port: digits.parse().expect("a port"), session: String::new(), folder };
        let window = format!("--window-size={width},{height}");
        let args =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", &window];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": args }, "goog:loggingPrefs": { "browser": "ALL" },
        }}});
        let answer = browser.ask("POST", "/session", Some(&wanted));
        let session = answer["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}"));
        browser.session = format!("/session/{session}");
        Some(browser)
    }

    pub(crate) fn open(&self, url: &str) {
        self.ask("POST", &format!("{}/url", self.session), Some(&json!({ "url": url })));
    }

    /// What a function body returns in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        let call = json!({ "script": script, "args": [] });
        self.ask("POST", &format!("{}/execute/sync", self.session), Some(&call))
    }

    pub(crate) fn number(&self, script: &str) -> f64 {
        let value = self.run(script);
        value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(f64::NAN)
    }

    pub(crate) fn text(&self, script: &str) -> String {
        self.run(script).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a function body returns true.
    pub(crate) fn wait(&self, what: &str, script: &str) {
        let end = Instant::now() + PATIENCE;
        while self.run(script) != json!(true) {
            let state = self.run("return document.body.innerText.slice(0, 1500)");
            assert!(Instant::now() < end, "{what} did not come; the page says {state}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Presses keys as a user would, with whatever has the focus.
    pub(crate) fn keys(&self, keys: &[&str]) {
        let press = keys.iter().flat_map(|key| {
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let actions = json!({ "actions": [
            { "type": "key", "id": "keyboard", "actions": press.collect::<Vec<_>>() },
        ]});
        self.ask("POST", &format!("{}/actions", self.session), Some(&actions));
    }

    /// As a screen of this size.
    pub(crate) fn screen(&self, width: u32, height: u32, mobile: bool) {
        let params =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        let call = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": params });
        self.ask("POST", &format!("{}/goog/cdp/execute", self.session), Some(&call));
    }

    /// A picture of the screen, as PNG in base64.
    pub(crate) fn picture(&self) -> String {
        let picture = self.ask("GET", &format!("{}/screenshot", self.session), None);
        picture.as_str().unwrap_or_default().to_owned()
    }

    /// What the page has complained about so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let wanted = json!({ "type": "browser" });
        let log = self.ask("POST", &format!("{}/se/log", self.session), Some(&wanted));
        let entries = log.as_array().cloned().unwrap_or_default();
        let bad =
            entries.iter().filter(|entry| entry["level"] != "INFO" && entry["level"] != "DEBUG");
        bad.map(|entry| entry["message"].to_string()).collect()
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = exchange(&format!("127.0.0.1:{}", self.port), method, path, "", &body);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let mut answer: Value = serde_json::from_str(&answer.1).unwrap_or_default();
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{method} {path}: {value}");
        value
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !thread::panicking() {
            self.ask("DELETE", &self.session, None);
        }
        let _ = self.driver.kill().and_then(|()| self.driver.wait());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// One request over HTTP: status and body.
pub(crate) fn exchange(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut length) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().unwrap_or(0);
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
    let mut bytes = Vec::new();
    match length {
        Some(length) => reader.take(length).read_to_end(&mut bytes)?,
        None => reader.read_to_end(&mut bytes)?,
    };
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}
