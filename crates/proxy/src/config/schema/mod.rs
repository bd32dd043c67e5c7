//! The JSON Schema of the file, for editors and for tools that write configurations.
//!
//! Nothing here repeats what the reader knows: the schema is asked of it. Fields and their types come
//! from a file in which everything is set ([`FULL`]), policies and other choices from the words with
//! which the reader turns down one that does not exist. A test asks the reader for the fields of
//! every block, so that one that is missing from [`FULL`] is found.

use serde_json::{Map, Value, json};

use super::File;

/// A file with everything that the defaults leave out.
const FULL: &str = r#"
[proxy]
upstreams = ["http://127.0.0.1:3000"]
user_header = "x-user"
workflow_header = "x-tenant"
secret_file = "secret"
admin_token_file = "token"
[proxy.health]
path = "/healthz"
[proxy.tls]
cert_file = "cert.pem"
key_file = "key.pem"
upstream_ca_file = "ca.pem"
[[proxy.rules]]
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
"#;

/// Blocks of which one of several kinds is chosen: where, and by which field.
const CHOICES: [(&str, &str); 4] = [
    ("gate.admission", "policy"),
    ("gate.schedule", "order"),
    ("gate.slots", "slots"),
    ("caller.throttle", "throttle"),
];

/// What a choice needs besides its name.
const NEEDED: [(&str, &str); 1] = [("chain", "policies = [{ policy = 'open' }]\n")];

/// Fields that have to be there.
const REQUIRED: [(&str, &str); 2] = [("proxy.rules", "business"), ("proxy.spill", "upstreams")];

impl File {
    /// The JSON Schema of a file.
    pub fn schema() -> Value {
        let full = Self::parse(FULL).map(|file| as_json(&file)).unwrap_or_default();
        let mut schema = describe("", &full, &as_json(&Self::default()));
        for (of, name, block) in open_blocks() {
            schema["properties"][of]["properties"][name] = block;
        }
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
        schema["title"] = "Tidegate configuration".into();
        schema
    }
}

/// Blocks that are absent unless asked for and have many forms: the schema says that they may be there,
/// `tidegate check` what may be in them.
fn open_blocks() -> [(&'static str, &'static str, Value); 5] {
    let (limit, any) =
        (json!({ "type": "object", "required": ["limit"] }), json!({ "type": "object" }));
    [
        ("gate", "limits", json!({ "type": "array", "items": limit })),
        ("gate", "workflow", any.clone()),
        ("caller", "breaker", any.clone()),
        ("caller", "ejection", any.clone()),
        ("caller", "hedge", any),
    ]
}

fn as_json(file: &File) -> Value {
    serde_json::to_value(file).unwrap_or_default()
}

/// The schema of `value`, which stands at `path`.
fn describe(path: &str, value: &Value, default: &Value) -> Value {
    if let Some((_, tag)) = CHOICES.iter().find(|(at, _)| *at == path) {
        return choice(path, tag, default);
    }
    match value {
        Value::Object(fields) => object(path, fields, default),
        Value::Array(items) => {
            let item = items.first().map(|item| describe(path, item, &Value::Null));
            with_default(json!({ "type": "array", "items": item }), default)
        }
        Value::String(_) => match choices(path, None) {
            words if words.is_empty() => with_default(json!({ "type": "string" }), default),
            words => with_default(json!({ "enum": words }), default),
        },
        Value::Bool(_) => with_default(json!({ "type": "boolean" }), default),
        Value::Number(number) if number.is_f64() => {
            with_default(json!({ "type": "number" }), default)
        }
        _ => with_default(json!({ "type": "integer" }), default),
    }
}

fn object(path: &str, fields: &Map<String, Value>, default: &Value) -> Value {
    let property = |(name, value): (&String, &Value)| {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        (name.clone(), describe(&below, value, &default[name]))
    };
    let properties: Map<String, Value> = fields.iter().map(property).collect();
    let mut schema =
        json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let required = REQUIRED.iter().filter(|(at, _)| *at == path).map(|(_, field)| *field);
    let required: Vec<&str> = required.collect();
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// One of several kinds of block.
fn choice(path: &str, tag: &str, default: &Value) -> Value {
    let kinds: Vec<Value> = choices(path, Some(tag))
        .into_iter()
        .map(|kind| {
            let needed = NEEDED.iter().find(|(name, _)| *name == kind).map_or("", |(_, text)| text);
            let text = format!("[{path}]\n{tag} = '{kind}'\n{needed}");
            let file = File::parse(&text).map(|file| as_json(&file)).unwrap_or_default();
            let block = path.split('.').fold(&file, |value, name| &value[name]).clone();
            let mut schema = match &block {
                Value::Object(fields) => object(&format!("{path}.{kind}"), fields, &block),
                _ => json!({}),
            };
            schema["properties"][tag] = json!({ "const": kind });
            schema["required"] = json!([tag]);
            schema
        })
        .collect();
    with_default(json!({ "oneOf": kinds }), default)
}

/// The words that the reader knows for a field, or for the field `tag` of a block; none if it knows
/// others.
fn choices(path: &str, tag: Option<&str>) -> Vec<String> {
    let (block, field) = match tag {
        Some(tag) => (path, tag),
        None => path.rsplit_once('.').unwrap_or(("", path)),
    };
    let text = format!("[{block}]\n{field} = '?'\n");
    quoted(&text, "unknown variant")
}

/// What the reader says it had expected instead of something it does not know.
fn quoted(text: &str, complaint: &str) -> Vec<String> {
    let Err(error) = File::parse(text) else { return Vec::new() };
    let problem = error.problems().iter().find(|problem| problem.allowed.contains(complaint));
    let expected = problem.and_then(|problem| problem.allowed.split_once("expected"));
    let words = expected.into_iter().flat_map(|(_, words)| words.split('`').skip(1).step_by(2));
    words.map(str::to_owned).collect()
}

fn with_default(mut schema: Value, default: &Value) -> Value {
    if !default.is_null() {
        schema["default"] = default.clone();
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schema as far as it is used here: what is wrong with `value`, at the first place.
    fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        if let Some(kinds) = schema.get("oneOf").and_then(Value::as_array) {
            let fit = kinds.iter().filter(|kind| check(kind, value, at).is_ok()).count();
            return if fit == 1 { Ok(()) } else { Err(format!("{at}: {fit} kinds fit {value}")) };
        }
        if let Some(only) = schema.get("const") {
            return if only == value { Ok(()) } else { Err(format!("{at}: {value}")) };
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            return if words.contains(value) { Ok(()) } else { Err(format!("{at}: {value}")) };
        }
        let fine = match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_i64() || value.is_u64(),
            Some("number") => value.is_number(),
            _ => return Err(format!("{at}: the schema says nothing")),
        };
        if !fine {
            return Err(format!("{at}: {value} is no {}", schema["type"]));
        }
        for required in schema["required"].as_array().into_iter().flatten() {
            let name = required.as_str().unwrap_or_default();
            if value.get(name).is_none() {
                return Err(format!("{at}.{name} is missing"));
            }
        }
        for (name, value) in value.as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let property = schema["properties"].get(name).ok_or(format!("{at} is unknown"))?;
            check(property, value, &at)?;
        }
        for value in value.as_array().into_iter().flatten() {
            check(&schema["items"], value, at)?;
        }
        Ok(())
    }

    fn verdict(text: &str) -> Result<(), String> {
        let value: toml::Value = toml::from_str(text).expect("TOML");
        check(&File::schema(), &serde_json::to_value(value).expect("JSON"), "")
    }

    /// Fields that the reader knows below `path`, a block that `begin` begins.
    fn fields(begin: &str) -> Vec<String> {
        let mut fields = quoted(&format!("{begin}no_such_field = 1\n"), "unknown field");
        fields.sort();
        fields
    }

    fn properties(schema: &Value) -> Vec<String> {
        let mut names: Vec<String> =
            schema["properties"].as_object().expect("an object").keys().cloned().collect();
        names.sort();
        names
    }

    #[test]
    fn the_schema_has_every_field_that_the_reader_knows() {
        let schema = File::schema();
        let of =
            |path: &str| path.split('.').fold(&schema, |schema, name| &schema["properties"][name]);
        for path in [
            "proxy",
            "proxy.health",
            "proxy.connections",
            "proxy.tls",
            "gate",
            "caller",
            "caller.retry",
        ] {
            assert_eq!(properties(of(path)), fields(&format!("[{path}]\n")), "{path}");
        }
        let rule = &of("proxy.rules")["items"];
        assert_eq!(properties(rule), fields("[[proxy.rules]]\nbusiness = 1\n"));
        let spill = &of("proxy.spill")["items"];
        assert_eq!(properties(spill), fields("[[proxy.spill]]\nupstreams = []\n"));
        assert_eq!(fields(""), properties(&schema));
    }

    #[test]
    fn every_policy_is_in_the_schema_with_its_parameters() {
        let schema = File::schema();
        for (path, tag) in CHOICES {
            let block = path.split('.').fold(&schema, |schema, name| &schema["properties"][name]);
            let kinds = block["oneOf"].as_array().expect("several kinds");
            assert!(kinds.len() >= 2, "{path}");
            for kind in kinds {
                let name = kind["properties"][tag]["const"].as_str().expect("its name");
                let needed =
                    NEEDED.iter().find(|(needs, _)| *needs == name).map_or("", |(_, text)| text);
                let known = fields(&format!("[{path}]\n{tag} = '{name}'\n{needed}"));
                let mut listed = properties(kind);
                listed.retain(|field| field != tag);
                // A policy without parameters may say nothing about fields at all.
                assert!(known.is_empty() || listed == known, "{name}: {listed:?} {known:?}");
            }
        }
    }

    #[test]
    fn what_the_reader_takes_fits_and_what_it_turns_down_does_not() {
        for text in ["", FULL, &File::default().to_toml()] {
            assert_eq!(verdict(text), Ok(()), "{text}");
        }
        for text in [
            "[proxy]\ncolour = 'red'\n",
            "[proxy]\ntrust = 'everybody'\n",
            "[proxy]\nthreads = 'two'\n",
            "[[proxy.rules]]\npath = '/'\n",
            "[gate.admission]\npolicy = 'tides'\n",
            "[gate.admission]\npolicy = 'tide'\ntargets = 1\n",
            "[gate.slots]\ncount = 4\n",
        ] {
            assert!(verdict(text).is_err(), "{text}");
            assert!(File::parse(text).is_err(), "{text}");
        }
    }
}
