//! The JSON Schema of the file, for editors and for tools that write configurations.
//!
//! Nothing here repeats what the reader knows: the schema is asked of it. Fields and their types come
//! from a file in which everything is set ([`FULL`], [`FILLS`]), policies and other choices from the words
//! with which the reader turns down one that does not exist, and what has to be there from what it
//! misses. A test asks the reader for the fields of every block, so that one that is missing here is found.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};
use tidegate_core::config;

use super::File;

/// A file with everything that the defaults leave out; it need not make sense.
const FULL: &str = r#"
[proxy]
upstreams = ["http://127.0.0.1:3000"]
user_header = "x-user"
workflow_header = "x-tenant"
limit_header = "x-api-key"
gateways = ["10.0.0.0/8"]
cost_header = "x-cpu-seconds"
cost_metric = "cpu"
secret_file = "secret"
admin_token_file = "token"
record_file = "requests.csv"
[proxy.health]
path = "/healthz"
[proxy.traces]
collector = "http://127.0.0.1:4318"
[proxy.access_log]
file = "access.log"
[proxy.tls]
cert_file = "cert.pem"
key_file = "key.pem"
client_ca_file = "clients.pem"
upstream_ca_file = "ca.pem"
[proxy.jwt]
jwks_file = "jwks.json"
issuer = "https://login"
audience = ["shop"]
[[proxy.rules]]
name = "checkout"
method = "POST"
path = "/"
header = "x-tier"
value = "gold"
peer = "10.0.0.0/8"
business = 5
workflow = "gold"
[[proxy.spill]]
upstreams = ["http://127.0.0.1:3001"]
capacity = 1.0
[[proxy.egress]]
name = "inventory"
listen = "127.0.0.1:3101"
upstreams = ["http://127.0.0.1:3002"]
deadline_header = "x-deadline-ms"
[proxy.egress.caller.breaker]
[proxy.egress.caller.ejection]
[proxy.egress.caller.hedge]
[gate.signals]
cgroup = "/system.slice/shop.service"
[gate.signals.weights]
cpu = 1.0
[[gate.limits]]
limit = "rate"
[gate.workflow]
quantile = { q = 0.5, beta = 1.0 }
quantiles = [{ callee = 1, workflow = "a", q = 0.5, beta = 1.0 }]
shares = [{ workflow = "a" }]
[caller.breaker]
[caller.ejection]
[caller.hedge]
"#;

/// Blocks of which one of several kinds is chosen: where, and by which field.
const CHOICES: [(&str, &str); 6] = [
    ("gate.limits", "limit"),
    ("gate.admission", "policy"),
    ("gate.schedule", "order"),
    ("gate.slots", "slots"),
    ("gate.workflow.allocator", "allocator"),
    ("caller.throttle", "throttle"),
];

/// What the defaults of a choice leave out.
const FILLS: [(&str, &str); 5] = [
    ("drr", "[gate.schedule.weights]\ngold = 1\n"),
    ("chain", "policies = [{ policy = 'open' }]\n"),
    (
        "quota",
        "[gate.limits.default]\nguarantee = { rate = 1.0, burst = 1.0 }\n\
         critical_plus = { rate = 1.0, burst = 1.0 }\ncritical = { rate = 1.0, burst = 1.0 }\n\
         sheddable_plus = { rate = 1.0, burst = 1.0 }\nsheddable = { rate = 1.0, burst = 1.0 }\n\
         [[gate.limits.quotas]]\nguarantee = { rate = 1.0, burst = 1.0 }\n\
         critical_plus = { rate = 1.0, burst = 1.0 }\ncritical = { rate = 1.0, burst = 1.0 }\n\
         sheddable_plus = { rate = 1.0, burst = 1.0 }\nsheddable = { rate = 1.0, burst = 1.0 }\n",
    ),
    ("tree", "[[gate.limits.nodes]]\n"),
    ("leased", "token_file = 'file'\nnode = 'name'\n"),
];

/// Tables whose names are the user's own; their values are numbers.
const MAPS: [&str; 2] = ["gate.signals.weights", "gate.schedule.weights"];

/// What is described elsewhere in the schema: where, and there.
const SAME: [(&str, &str); 1] =
    [("gate.admission.policies", "#/properties/gate/properties/admission")];

impl File {
    /// The JSON Schema of a file.
    pub fn schema() -> Value {
        let full = as_json(FULL).unwrap_or_default();
        let fields = full.as_object().cloned().unwrap_or_default();
        let mut schema = object(&Place::default(), &fields, &as_json("").unwrap_or_default());
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
        schema["title"] = "Tidegate configuration".into();
        schema
    }
}

/// A block of a file: its path, and the text that begins it.
#[derive(Clone, Debug, Default)]
struct Place {
    path: String,
    text: String,
}

impl Place {
    fn path_to(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A block in it.
    fn block(&self, name: &str) -> Self {
        let path = self.path_to(name);
        Self { text: format!("{}[{path}]\n", self.text), path }
    }

    /// One of a list of blocks in it.
    fn item(&self, name: &str) -> Self {
        let path = self.path_to(name);
        Self { text: format!("{}[[{path}]]\n", self.text), path }
    }

    fn with(&self, line: &str) -> Self {
        Self { path: self.path.clone(), text: format!("{}{line}\n", self.text) }
    }

    /// The block itself in a whole file; the first of a list.
    fn find(&self, file: Option<Value>) -> Value {
        let mut value = file.unwrap_or_default();
        for name in self.path.split('.') {
            value = value[name].take();
            if value.is_array() {
                value = value[0].take();
            }
        }
        value
    }
}

/// What the reader makes of a text; nobody asks whether it makes sense.
fn read(text: &str) -> Result<File, config::ConfigError> {
    config::read(text, |_, _| {})
}

fn as_json(text: &str) -> Option<Value> {
    read(text).ok().and_then(|file| serde_json::to_value(&file).ok())
}

/// The schema of the field `name` of a block.
fn describe(place: &Place, name: &str, value: &Value, default: &Value) -> Value {
    let path = place.path_to(name);
    let tag = CHOICES.iter().find(|(at, _)| *at == path).map(|(_, tag)| *tag);
    let same = SAME.iter().find(|(at, _)| *at == path).map(|(_, there)| *there);
    let schema = match (value, tag, same) {
        (Value::Object(_), Some(tag), _) => choice(&place.block(name), tag),
        (Value::Object(_), ..) if MAPS.contains(&path.as_str()) => {
            json!({ "type": "object", "additionalProperties": { "type": "number" } })
        }
        (Value::Object(fields), ..) => return object(&place.block(name), fields, default),
        (Value::Array(items), ..) => {
            let items = match (items.first(), tag, same) {
                (_, _, Some(there)) => json!({ "$ref": there }),
                (_, Some(tag), _) => choice(&place.item(name), tag),
                (Some(Value::Object(fields)), ..) => {
                    object(&place.item(name), fields, &Value::Null)
                }
                (Some(item), ..) => json!({ "type": kind(item) }),
                (None, ..) => {
                    json!({ "type": expected(&place.with(&format!("{name} = [true]")).text) })
                }
            };
            json!({ "type": "array", "items": items })
        }
        (Value::String(_), ..) => {
            match quoted(&place.with(&format!("{name} = '?'")).text, "unknown variant") {
                words if words.is_empty() => json!({ "type": "string" }),
                words => json!({ "enum": words }),
            }
        }
        (value, ..) => json!({ "type": kind(value) }),
    };
    with_default(schema, default)
}

/// What the reader would have had instead of a truth in a list.
fn expected(text: &str) -> &'static str {
    let told = complaints(text, "invalid type").concat();
    let wanted = told.split_once("expected").map_or("", |(_, wanted)| wanted.trim());
    match wanted.split_whitespace().next() {
        Some("f32" | "f64") => "number",
        Some("u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64") => "integer",
        _ => "string",
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        _ => "string",
    }
}

fn object(place: &Place, fields: &Map<String, Value>, default: &Value) -> Value {
    let property = |(name, value): (&String, &Value)| {
        (name.clone(), describe(place, name, value, &default[name]))
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let mut schema =
        json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let required = required(place, fields);
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// Fields that the reader misses in a block that has none.
fn required(place: &Place, fields: &Map<String, Value>) -> Vec<String> {
    let (mut place, mut found) = (place.clone(), Vec::new());
    loop {
        let missing = quoted_after(&place.text, "missing field");
        let next = missing.into_iter().find(|name| !found.contains(name));
        let Some((name, value)) = next.and_then(|name| fields.get_key_value(&name)) else {
            return found;
        };
        place = place.with(&format!("{name} = {value}"));
        found.push(name.clone());
    }
}

/// One of several kinds of block.
fn choice(place: &Place, tag: &str) -> Value {
    let kinds = quoted(&place.with(&format!("{tag} = '?'")).text, "unknown variant");
    let kinds: Vec<Value> = kinds
        .into_iter()
        .map(|kind| {
            let place = place.with(&format!("{tag} = '{kind}'"));
            let fill = FILLS.iter().find(|(name, _)| *name == kind).map_or("", |(_, text)| text);
            let full = place.find(as_json(&format!("{}{fill}", place.text)));
            let mut fields = full.as_object().cloned().unwrap_or_default();
            fields.remove(tag);
            let mut schema = object(&place, &fields, &place.find(as_json(&place.text)));
            schema["properties"][tag] = json!({ "const": kind });
            let mut required = vec![json!(tag)];
            required.extend(schema["required"].as_array().cloned().unwrap_or_default());
            schema["required"] = required.into();
            schema
        })
        .collect();
    json!({ "oneOf": kinds })
}

/// What the reader says it had expected instead of something it does not know.
fn quoted(text: &str, complaint: &str) -> Vec<String> {
    complaints(text, complaint)
        .into_iter()
        .take(1)
        .flat_map(|told| words(&told, "expected"))
        .collect()
}

/// What the reader names in its complaints.
fn quoted_after(text: &str, complaint: &str) -> Vec<String> {
    complaints(text, complaint).into_iter().flat_map(|told| words(&told, complaint)).collect()
}

fn complaints(text: &str, complaint: &str) -> Vec<String> {
    let Err(error) = read(text) else { return Vec::new() };
    let told = error.problems().iter().map(|problem| problem.allowed.clone());
    told.filter(|told| told.contains(complaint)).collect()
}

/// Words in backquotes after `begin`.
fn words(told: &str, begin: &str) -> Vec<String> {
    let after = told.split_once(begin).map_or("", |(_, after)| after);
    after.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn with_default(mut schema: Value, default: &Value) -> Value {
    if !default.is_null() {
        schema["default"] = default.clone();
    }
    schema
}
