//! Structured fields (RFC 9651): a reader of dictionaries that keeps what it was asked for, and a
//! writer.
//!
//! The reader knows the whole syntax, so that keys of a later version, whatever their type, do not
//! make a field unreadable. It allocates only for strings with escapes, and reads any bytes without
//! panic: every access is by `get` or `split`.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::digits::{push_number, push_thousandths};

/// The field does not follow the syntax, or a known key has a value that it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed field")
    }
}

impl std::error::Error for Malformed {}

/// The value of a member, parameters left out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// At most 15 digits.
    Integer(i64),
    /// In thousandths: at most 12 digits before the point and 3 behind.
    Decimal(i64),
    /// A string, or a display string.
    Text(Cow<'a, str>),
    Token(&'a str),
    List(Numbers),
    /// A type none of our keys has.
    Other,
}

impl<'a> Value<'a> {
    /// A whole number that is not negative, at most `limit`: beyond that it counts as `limit`.
    pub(crate) fn count(&self, limit: u64) -> Result<u64, Malformed> {
        match self {
            Self::Integer(n) => u64::try_from(*n).map(|n| n.min(limit)).map_err(|_| Malformed),
            _ => Err(Malformed),
        }
    }

    /// A number that is not negative, in thousandths.
    pub(crate) fn thousandths(&self) -> Result<u64, Malformed> {
        let thousandths = match self {
            Self::Integer(n) => n.saturating_mul(1000),
            Self::Decimal(n) => *n,
            _ => return Err(Malformed),
        };
        u64::try_from(thousandths).map_err(|_| Malformed)
    }

    pub(crate) fn text(self) -> Result<Cow<'a, str>, Malformed> {
        match self {
            Self::Text(text) => Ok(text),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn token(&self) -> Result<&'a str, Malformed> {
        match self {
            Self::Token(token) => Ok(token),
            _ => Err(Malformed),
        }
    }

    /// The whole numbers of an inner list.
    pub(crate) fn numbers(&self) -> Result<&[i64], Malformed> {
        match self {
            Self::List(list) => list.as_slice(),
            _ => Err(Malformed),
        }
    }
}

/// An inner list of whole numbers. Ours have at most three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    numbers: [i64; Self::MOST],
    len: usize,
    /// Something else is in the list as well.
    other: bool,
}

impl Numbers {
    const MOST: usize = 3;

    fn push(&mut self, value: &Value<'_>) {
        match (value, self.numbers.get_mut(self.len)) {
            (Value::Integer(n), Some(place)) => {
                *place = *n;
                self.len += 1;
            }
            _ => self.other = true,
        }
    }

    fn as_slice(&self) -> Result<&[i64], Malformed> {
        if self.other { Err(Malformed) } else { Ok(&self.numbers[..self.len]) }
    }
}

/// Reads a dictionary and returns the values of `keys`, in their order. Of a key that comes twice
/// the last counts; other keys are checked for syntax and forgotten.
pub(crate) fn read<'a, const N: usize>(
    field: &'a [u8],
    keys: &[&str; N],
) -> Result<[Option<Value<'a>>; N], Malformed> {
    let mut values = [const { None }; N];
    let mut reader = Reader { rest: field };
    reader.skip(b" ");
    while !reader.rest.is_empty() {
        let key = reader.key()?;
        let value = if reader.eat(b'=') { reader.member()? } else { Value::Other };
        reader.parameters()?;
        if let Some(place) = keys.iter().position(|known| *known == key) {
            values[place] = Some(value);
        }
        reader.skip(b" \t");
        if reader.rest.is_empty() {
            break;
        }
        if !reader.eat(b',') {
            return Err(Malformed);
        }
        reader.skip(b" \t");
        // A comma at the end announces a member that is not there.
        if reader.rest.is_empty() {
            return Err(Malformed);
        }
    }
    Ok(values)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*first)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let eaten = self.peek() == Some(byte);
        if eaten {
            self.rest = &self.rest[1..];
        }
        eaten
    }

    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.eat(byte) { Ok(()) } else { Err(Malformed) }
    }

    fn skip(&mut self, bytes: &[u8]) {
        self.take_while(|byte| bytes.contains(&byte));
    }

    fn take_while(&mut self, mut wanted: impl FnMut(u8) -> bool) -> &'a [u8] {
        let len = self.rest.iter().position(|byte| !wanted(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn key(&mut self) -> Result<&'a str, Malformed> {
        if !self.peek().is_some_and(|first| first.is_ascii_lowercase() || first == b'*') {
            return Err(Malformed);
        }
        ascii(self.take_while(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
        }))
    }

    /// An item or an inner list, without the parameters that follow it.
    fn member(&mut self) -> Result<Value<'a>, Malformed> {
        if !self.eat(b'(') {
            return self.bare_item();
        }
        let mut list = Numbers::default();
        loop {
            self.skip(b" ");
            if self.eat(b')') {
                return Ok(Value::List(list));
            }
            let item = self.bare_item()?;
            self.parameters()?;
            list.push(&item);
            if !matches!(self.peek(), Some(b' ' | b')')) {
                return Err(Malformed);
            }
        }
    }

    fn parameters(&mut self) -> Result<(), Malformed> {
        while self.eat(b';') {
            self.skip(b" ");
            self.key()?;
            if self.eat(b'=') {
                self.bare_item()?;
            }
        }
        Ok(())
    }

    fn bare_item(&mut self) -> Result<Value<'a>, Malformed> {
        match self.peek().ok_or(Malformed)? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'%' => self.display_string(),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => self.token(),
            b'?' => self.boolean(),
            b':' => self.bytes(),
            b'@' => self.date(),
            _ => Err(Malformed),
        }
    }

    fn number(&mut self) -> Result<Value<'a>, Malformed> {
        let sign = if self.eat(b'-') { -1 } else { 1 };
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if !self.eat(b'.') {
            return match whole.len() {
                1..=15 => Ok(Value::Integer(sign * digits(whole))),
                _ => Err(Malformed),
            };
        }
        let fraction = self.take_while(|byte| byte.is_ascii_digit());
        let scale = match fraction.len() {
            1 => 100,
            2 => 10,
            3 => 1,
            _ => return Err(Malformed),
        };
        if !(1..=12).contains(&whole.len()) {
            return Err(Malformed);
        }
        Ok(Value::Decimal(sign * (digits(whole) * 1000 + digits(fraction) * scale)))
    }

    fn string(&mut self) -> Result<Value<'a>, Malformed> {
        self.expect(b'"')?;
        let plain = self.take_while(|byte| matches!(byte, b' '..=b'~' if !b"\"\\".contains(&byte)));
        if self.eat(b'"') {
            return Ok(Value::Text(Cow::Borrowed(ascii(plain)?)));
        }
        let mut text = ascii(plain)?.to_owned();
        loop {
            match self.next()? {
                b'"' => return Ok(Value::Text(Cow::Owned(text))),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => text.push(char::from(escaped)),
                    _ => return Err(Malformed),
                },
                byte @ b' '..=b'~' => text.push(char::from(byte)),
                _ => return Err(Malformed),
            }
        }
    }

    /// `%"…"`: Unicode, everything outside of printable ASCII as `%` and two lower-case digits.
    fn display_string(&mut self) -> Result<Value<'a>, Malformed> {
        self.expect(b'%')?;
        self.expect(b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => break,
                b'%' => text.push(self.hex()? << 4 | self.hex()?),
                byte @ b' '..=b'~' => text.push(byte),
                _ => return Err(Malformed),
            }
        }
        String::from_utf8(text).map(|text| Value::Text(Cow::Owned(text))).map_err(|_| Malformed)
    }

    fn hex(&mut self) -> Result<u8, Malformed> {
        match self.next()? {
            digit @ b'0'..=b'9' => Ok(digit - b'0'),
            digit @ b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(Malformed),
        }
    }

    fn token(&mut self) -> Result<Value<'a>, Malformed> {
        let allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
        Ok(Value::Token(ascii(self.take_while(allowed))?))
    }

    fn boolean(&mut self) -> Result<Value<'a>, Malformed> {
        self.expect(b'?')?;
        match self.next()? {
            b'0' | b'1' => Ok(Value::Other),
            _ => Err(Malformed),
        }
    }

    fn bytes(&mut self) -> Result<Value<'a>, Malformed> {
        self.expect(b':')?;
        self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        self.expect(b':')?;
        Ok(Value::Other)
    }

    fn date(&mut self) -> Result<Value<'a>, Malformed> {
        self.expect(b'@')?;
        match self.number()? {
            Value::Integer(_) => Ok(Value::Other),
            _ => Err(Malformed),
        }
    }
}

fn ascii(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed)
}

/// The number that at most 15 digits write.
fn digits(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0'))
}

/// Writes a dictionary member by member.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    text: String,
}

/// The largest whole number a structured field can hold.
const LARGEST: u64 = 999_999_999_999_999;

impl Writer {
    /// Room for a usual field, so that it is allocated once.
    pub(crate) fn new() -> Self {
        Self { text: String::with_capacity(160) }
    }

    pub(crate) fn integer(&mut self, key: &str, number: u64) {
        self.key(key);
        push_number(&mut self.text, number.min(LARGEST));
    }

    /// A number in thousandths: as an integer where it is one.
    pub(crate) fn thousandths(&mut self, key: &str, thousandths: u64) {
        if thousandths.is_multiple_of(1000) {
            return self.integer(key, thousandths / 1000);
        }
        self.key(key);
        push_thousandths(&mut self.text, thousandths.min(LARGEST));
    }

    pub(crate) fn numbers(&mut self, key: &str, numbers: &[u64]) {
        self.key(key);
        self.text.push('(');
        for (place, number) in numbers.iter().enumerate() {
            self.text.push_str(if place == 0 { "" } else { " " });
            push_number(&mut self.text, (*number).min(LARGEST));
        }
        self.text.push(')');
    }

    pub(crate) fn token(&mut self, key: &str, token: &str) {
        self.key(key);
        self.text.push_str(token);
    }

    /// As a string, or as a display string where that is needed.
    pub(crate) fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        self.text.push_str(if plain { "\"" } else { "%\"" });
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' if plain => self.push(format_args!("\\{}", char::from(byte))),
                b'"' | b'%' if !plain => self.push(format_args!("%{byte:02x}")),
                b' '..=b'~' => self.text.push(char::from(byte)),
                _ => self.push(format_args!("%{byte:02x}")),
            }
        }
        self.text.push('"');
    }

    /// The field, none if nothing was written.
    pub(crate) fn finish(self) -> Option<String> {
        (!self.text.is_empty()).then_some(self.text)
    }

    fn key(&mut self, key: &str) {
        if !self.text.is_empty() {
            self.text.push_str(", ");
        }
        self.text.push_str(key);
        self.text.push('=');
    }

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(field: &str) -> Result<Option<Value<'_>>, Malformed> {
        read(field.as_bytes(), &["k"]).map(|[value]| value)
    }

    #[test]
    fn every_type_is_read() {
        let text = |text: &str| Value::Text(Cow::Owned(text.to_owned()));
        let list = |numbers: [i64; 3], len, other| Value::List(Numbers { numbers, len, other });
        for (field, value) in [
            ("k=0", Value::Integer(0)),
            ("k=-15", Value::Integer(-15)),
            ("k=999999999999999", Value::Integer(999_999_999_999_999)),
            ("k=1.5", Value::Decimal(1500)),
            ("k=-0.001", Value::Decimal(-1)),
            ("k=999999999999.999", Value::Decimal(999_999_999_999_999)),
            ("k=\"a \\\"b\\\\\"", text("a \"b\\")),
            ("k=%\"caf%c3%a9\"", text("café")),
            ("k=a/b:c;p=1;q", Value::Token("a/b:c")),
            ("k", Value::Other),
            ("k=?0", Value::Other),
            ("k=:aGVsbG8=:", Value::Other),
            ("k=@1659578233", Value::Other),
            ("k=()", list([0; 3], 0, false)),
            ("k=( 1  2;p )", list([1, 2, 0], 2, false)),
            ("k=(1 a)", list([1, 0, 0], 1, true)),
            ("k=(1 2 3 4)", list([1, 2, 3], 3, true)),
            ("  a=1,\tb=?1 , k=2;x=\"y\"  ", Value::Integer(2)),
            ("k=1, k=2", Value::Integer(2)),
        ] {
            assert_eq!(one(field), Ok(Some(value)), "{field}");
        }
        assert_eq!(one(""), Ok(None));
        assert_eq!(one("a=1"), Ok(None));
    }

    #[test]
    fn what_breaks_the_syntax_is_malformed() {
        for field in [
            "k=",
            "=1",
            "K=1",
            "k=1,",
            "k=1 2",
            "k=1;",
            "k=--1",
            "k=1.",
            "k=1.2345",
            "k=.5",
            "k=1234567890123456",
            "k=1234567890123.5",
            "k=\"a",
            "k=\"\\x\"",
            "k=\"\u{7f}\"",
            "k=%\"%C3\"",
            "k=%\"%ff\"",
            "k=%\"",
            "k=(1",
            "k=(1,2)",
            "k=((1))",
            "k=?2",
            "k=:a",
            "k=@1.5",
            "k=é",
            ",",
            "k=1;=2",
        ] {
            assert_eq!(one(field), Err(Malformed), "{field}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(field in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&field, &["k", "r"]);
        }

        /// Bytes that occur in structured fields get further into the reader.
        #[test]
        fn likely_bytes_are_read_without_panic(field in "[kr=(), ;\"%\\\\0-9.a-f:?@*-]{0,60}") {
            let _ = read(field.as_bytes(), &["k", "r"]);
        }

        #[test]
        fn what_is_written_reads_back(
            text in any::<String>(),
            integer in 0..=LARGEST,
            thousandths in 0..=LARGEST,
            numbers in proptest::collection::vec(0..=LARGEST, 0..=3),
        ) {
            let mut writer = Writer::new();
            writer.text("t", &text);
            writer.integer("i", integer);
            writer.thousandths("d", thousandths);
            writer.numbers("l", &numbers);
            writer.token("o", "later");
            let field = writer.finish().unwrap();
            let [t, i, d, l, o] = read(field.as_bytes(), &["t", "i", "d", "l", "o"]).unwrap();
            prop_assert_eq!(t.unwrap().text().unwrap(), text);
            prop_assert_eq!(i.unwrap().count(u64::MAX), Ok(integer));
            prop_assert_eq!(d.unwrap().thousandths(), Ok(thousandths));
            let numbers: Vec<i64> = numbers.into_iter().map(|n| n as i64).collect();
            let list = l.unwrap();
            prop_assert_eq!(list.numbers(), Ok(&numbers[..]));
            prop_assert_eq!(o.unwrap().token(), Ok("later"));
        }
    }
}
