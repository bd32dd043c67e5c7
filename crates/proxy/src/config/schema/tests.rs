use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::*;

static SCHEMA: LazyLock<Value> = LazyLock::new(File::schema);

/// A schema as far as it is used here: what is wrong with `value`, at the first place.
fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(there) = schema.get("$ref").and_then(Value::as_str) {
        let same = SCHEMA.pointer(there.trim_start_matches('#')).ok_or(format!("{at}: {there}"))?;
        return check(same, value, at);
    }
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
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        let property = schema.get("properties").and_then(|properties| properties.get(name));
        check(property.or(others).ok_or(format!("{at} is unknown"))?, value, &at)?;
    }
    for value in value.as_array().into_iter().flatten() {
        check(&schema["items"], value, at)?;
    }
    Ok(())
}

fn value(text: &str) -> Value {
    let value: toml::Value = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(value).expect("JSON")
}

fn verdict(text: &str) -> Result<(), String> {
    check(&SCHEMA, &value(text), "")
}

/// Fields that the reader knows in a block that `begin` begins.
fn fields(begin: &str) -> Vec<String> {
    let mut fields = quoted(&format!("{begin}no_such_field = 1\n"), "unknown field");
    fields.sort();
    fields
}

fn properties(schema: &Value) -> Vec<String> {
    let properties = schema["properties"].as_object();
    let mut names: Vec<String> = properties.into_iter().flat_map(Map::keys).cloned().collect();
    names.sort();
    names
}

/// Compares a block of the schema, and all that are in it, with what the reader knows.
fn compare(place: &Place, schema: &Value, compared: &mut usize) {
    if let Some(kinds) = schema.get("oneOf").and_then(Value::as_array) {
        assert!(kinds.len() >= 2, "{place:?}");
        for kind in kinds {
            let names = kind["properties"].as_object().expect("an object");
            let (tag, name) = names
                .iter()
                .find_map(|(tag, property)| Some((tag, property.get("const")?.as_str()?)))
                .expect("its name");
            compare_fields(&place.with(&format!("{tag} = '{name}'")), kind, Some(tag), compared);
        }
        return;
    }
    compare_fields(place, schema, None, compared);
}

fn compare_fields(place: &Place, schema: &Value, tag: Option<&String>, compared: &mut usize) {
    let mut listed = properties(schema);
    listed.retain(|field| Some(field) != tag);
    let known = fields(&place.text);
    // Without parameters, or with some of another block among its own, the reader names none.
    assert!(known.is_empty() || listed == known, "{place:?}: {listed:?} {known:?}");
    *compared += usize::from(!known.is_empty());
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let items = property.get("items");
        if items.is_some_and(|items| items["type"] == "object" || items.get("oneOf").is_some()) {
            compare(&place.item(name), &property["items"], compared);
        } else if property["type"] == "object" && property.get("properties").is_some()
            || property.get("oneOf").is_some()
        {
            compare(&place.block(name), property, compared);
        }
    }
}

#[test]
fn the_schema_has_every_field_that_the_reader_knows() {
    let mut compared = 0;
    compare(&Place::default(), &SCHEMA, &mut compared);
    assert!(compared > 40, "only {compared} blocks were compared");
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
        "[gate.admission]\npolicy = 'chain'\npolicies = [{ policy = 'tides' }]\n",
        "[gate.slots]\ncount = 4\n",
        "[[gate.limits]]\nlimit = 'rate'\nunit = 'elephants'\n",
        "[[gate.limits]]\nlimit = 'quota'\n[[gate.limits.quotas]]\ncritical = { rate = 1.0 }\n",
        "[[gate.limits]]\nrate = 1.0\n",
        "[gate.workflow]\nallocator = { allocator = 'unfair' }\n",
        "[gate.workflow]\nshares = [{ weight = 1.0 }]\n",
        "[gate.signals]\ncombine = 'mean'\n",
        "[caller.breaker]\nfailures = 'many'\n",
        "[caller.hedge]\nquantiles = 0.5\n",
    ] {
        assert!(verdict(text).is_err(), "{text}");
        assert!(File::parse(text).is_err(), "{text}");
    }
}

/// Configurations of sidecars in the book: blocks marked `config`, and all of its page on the sidecar.
fn documented() -> Vec<(String, String)> {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut found = Vec::new();
    let mut folders = vec![book];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the book is there") {
            let path: PathBuf = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = if path.extension().is_some_and(|end| end == "md") {
                std::fs::read_to_string(&path).expect("pages are text")
            } else {
                continue;
            };
            let ours = path.ends_with("sidecar.md");
            let mut lines = text.lines();
            while let Some(fence) = lines.next() {
                let Some(info) = fence.strip_prefix("```") else { continue };
                let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
                // Gates for brokers have a file of their own.
                let theirs = block.contains(&"[nats]");
                if (info == "toml config" || info == "toml" && ours) && !theirs {
                    found.push((path.display().to_string(), block.join("\n") + "\n"));
                }
            }
        }
    }
    found
}

/// Every table in `value` in turn gets a field that nobody knows.
fn spoiled(value: &Value, at: &str, found: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            if !MAPS.contains(&at) {
                let mut spoiled = fields.clone();
                spoiled.insert("no_such_field".to_owned(), json!(1));
                found.push(spoiled.into());
            }
            for (name, inner) in fields {
                let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                let mut inside = Vec::new();
                spoiled(inner, &at, &mut inside);
                found.extend(inside.into_iter().map(|inner| {
                    let mut spoiled = fields.clone();
                    spoiled.insert(name.clone(), inner);
                    spoiled.into()
                }));
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                let mut inside = Vec::new();
                spoiled(item, at, &mut inside);
                found.extend(inside.into_iter().map(|inner| {
                    let mut items = items.clone();
                    items[place] = inner;
                    items.into()
                }));
            }
        }
        _ => {}
    }
}

#[test]
fn every_configuration_in_the_book_fits_and_none_with_an_unknown_field() {
    let documented = documented();
    assert!(documented.len() > 20, "only {} configurations were found", documented.len());
    let mut count = 0;
    for (page, text) in &documented {
        // What only another build has the means for is refused by this one.
        if cfg!(feature = "otel") || !text.contains("[proxy.traces]") {
            assert!(File::parse(text).is_ok(), "{page}: {:?}\n{text}", File::parse(text));
        }
        let value = value(text);
        assert_eq!(check(&SCHEMA, &value, ""), Ok(()), "{page}:\n{text}");
        let mut wrong = Vec::new();
        spoiled(&value, "", &mut wrong);
        for wrong in wrong {
            assert!(check(&SCHEMA, &wrong, "").is_err(), "{page}: {wrong:#}");
            count += 1;
        }
    }
    assert!(count > 60, "only {count} tables");
}
