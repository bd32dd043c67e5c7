//! The vectors of `testdata/wire`: what is left of an arrow reads as what is right of it.

use std::path::Path;

use tidegate_core::Instant;
use tidegate_http::wire::{self, Malformed, Names};

fn play(file: &str, rewrite: impl Fn(&[u8]) -> Result<String, Malformed>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/wire").join(file);
    let text = std::fs::read_to_string(&path).expect("the vectors are there");
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let mut played = 0;
    for (number, line) in lines {
        let (field, expected) = line.split_once("-> ").expect("an arrow on every line");
        let written = rewrite(field.as_bytes()).unwrap_or_else(|error| {
            assert_eq!(error, Malformed);
            "malformed".to_owned()
        });
        assert_eq!(written, expected, "{file}:{}: {field}", number + 1);
        // What we write is read as what it says.
        if expected != "malformed" {
            assert_eq!(rewrite(expected.as_bytes()).as_deref(), Ok(expected));
        }
        played += 1;
    }
    assert!(played > 10, "{file} has {played} vectors");
}

fn text(value: http::HeaderValue) -> String {
    value.to_str().expect("printable").to_owned()
}

#[test]
fn contexts() {
    let now = Instant::from_nanos(77);
    let names = Names::default();
    play("context.txt", |field| {
        let context = wire::read_context(field, now, &names)?;
        Ok(text(wire::write_context(&context, now, &names)))
    });
}

#[test]
fn feedback() {
    play("feedback.txt", |field| {
        let message = wire::read_feedback(field)?;
        Ok(wire::write_feedback(&message.feedback, message.rejection.as_ref())
            .map_or(String::new(), text))
    });
}
