//! The JSON objects of INFO and CONNECT, as far as a gate has to know them.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What a server says of itself. What it leaves out has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Info {
    /// Different in every process.
    pub server_id: String,
    /// What it is called.
    pub server_name: String,
    /// Its version, such as `2.9.10`.
    pub version: String,
    /// The protocol it speaks: 1 is the one there is.
    pub proto: i64,
    /// Largest payload, in bytes.
    pub max_payload: u64,
    /// Whether messages may have headers.
    pub headers: bool,
    /// Whether clients have to say who they are.
    pub auth_required: bool,
    /// Whether it speaks only TLS.
    pub tls_required: bool,
    /// Whether it speaks TLS too.
    pub tls_available: bool,
    /// The cluster it belongs to.
    pub cluster: Option<String>,
    /// Whether it has streams.
    pub jetstream: bool,
    /// Whether it asks its clients to go.
    pub ldm: bool,
}

impl Info {
    /// Reads it; an error that says what is wrong.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json).map_err(|error| format!("its INFO is not readable: {error}"))
    }

    /// Why a gate cannot use this server, if it cannot; `tls` is how it is to be spoken to.
    pub fn unfit(&self, tls: bool) -> Option<String> {
        let cluster = self.cluster.as_deref().filter(|name| !name.is_empty());
        if let Some(name) = cluster {
            return Some(format!(
                "it belongs to the cluster `{name}`: its routes would spread every message over all brokers; \
                 run brokers of a gate without a `cluster` block"
            ));
        }
        if self.proto != 1 {
            let (proto, version) = (self.proto, &self.version);
            return Some(format!(
                "it speaks protocol {proto} (version `{version}`), and this gate knows only protocol 1"
            ));
        }
        match (tls, self.tls_required, self.tls_available) {
            (false, true, _) => Some("it asks for TLS: give it as tls://host:port".to_owned()),
            (true, false, false) => {
                Some("it does not speak TLS: give it as nats://host:port".to_owned())
            }
            _ => None,
        }
    }
}

/// What a client says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// What it is called.
    pub name: Option<String>,
    /// Its user.
    pub user: Option<String>,
    /// Its public nkey, and what it has signed with it.
    pub nkey: Option<(String, String)>,
    /// Whether every operation is answered.
    pub verbose: bool,
    /// Whether it reads messages with headers.
    pub headers: bool,
    /// Whether it wants to hear of changes and knows PONG: 1; 0 is of old clients.
    pub protocol: i64,
    /// All of it, for the broker.
    all: Map<String, Value>,
}

impl Connect {
    /// Reads it.
    pub fn read(json: &[u8]) -> Option<Self> {
        let all: Map<String, Value> = serde_json::from_slice(json).ok()?;
        let text = |key: &str| all.get(key).and_then(Value::as_str).map(str::to_owned);
        let (name, user) = (text("name"), text("user"));
        let nkey = text("nkey").zip(Some(text("sig").unwrap_or_default()));
        let verbose = all.get("verbose").and_then(Value::as_bool).unwrap_or(true);
        let headers = all.get("headers").and_then(Value::as_bool).unwrap_or(false);
        let protocol = all.get("protocol").and_then(Value::as_i64).unwrap_or(0);
        Some(Self {
            name: name.filter(|name| !name.is_empty()),
            user,
            nkey,
            verbose,
            headers,
            protocol,
            all,
        })
    }

    /// Its nkey was checked: brokers are told this user in its name.
    pub fn vouch(&mut self, user: Option<&str>, password: Option<&str>) {
        for proof in ["nkey", "sig", "jwt"] {
            self.all.remove(proof);
        }
        for (key, value) in [("user", user), ("pass", password)] {
            match value {
                Some(value) => self.all.insert(key.to_owned(), json!(value)),
                None => self.all.remove(key),
            };
        }
        self.user = user.map(str::to_owned);
    }

    /// The line with which the gate connects to a broker in this client's name: with its credentials and its wishes,
    /// but for answers to every operation, which the gate gives itself.
    pub fn line(&self) -> Vec<u8> {
        let mut all = self.all.clone();
        all.insert("verbose".to_owned(), json!(false));
        all.insert("protocol".to_owned(), json!(1));
        all.remove("tls_required");
        let mut line = b"CONNECT ".to_vec();
        line.extend_from_slice(Value::Object(all).to_string().as_bytes());
        line.extend_from_slice(b"\r\n");
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nats-server 2.9.10 sends it.
    const ALONE: &str = r#"{"server_id":"NB","server_name":"NB","version":"2.9.10","proto":1,"go":"go1.19.8",
        "host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"client_id":5,"client_ip":"127.0.0.1"}"#;

    #[test]
    fn a_server_alone_is_fit_and_others_say_why_not() {
        let info = Info::read(ALONE.as_bytes()).expect("an object");
        assert_eq!((info.max_payload, info.headers, info.unfit(false)), (1 << 20, true, None));
        for (change, why) in [
            (r#""proto":2"#, "knows only protocol 1"),
            (r#""proto":1,"cluster":"east""#, "belongs to the cluster `east`"),
            (r#""proto":1,"tls_required":true"#, "asks for TLS: give it as tls://"),
        ] {
            let text = ALONE.replace(r#""proto":1"#, change);
            let told = Info::read(text.as_bytes()).expect("an object").unfit(false);
            assert!(told.as_ref().is_some_and(|told| told.contains(why)), "{told:?}");
        }
        assert!(info.unfit(true).is_some_and(|why| why.contains("does not speak TLS")));
        assert!(Info::read(b"{").is_err());
    }

    #[test]
    fn credentials_pass_and_verbosity_does_not() {
        let text = br#"{"verbose":true,"user":"u","pass":"p","name":"n","echo":false,"jwt":"x","tls_required":true}"#;
        let connect = Connect::read(text).expect("an object");
        assert!(connect.verbose && connect.protocol == 0);
        let line = String::from_utf8(connect.line()).expect("text");
        let told: Value =
            serde_json::from_str(line.strip_prefix("CONNECT ").expect(&line)).expect("an object");
        let expected = json!({ "verbose": false, "protocol": 1, "user": "u", "pass": "p", "name": "n",
                               "echo": false, "jwt": "x" });
        assert_eq!(told, expected);
        assert_eq!(Connect::read(b"[]"), None);
        assert_eq!(Connect::read(&[b'['; 4_000]), None, "however deep");
    }
}
