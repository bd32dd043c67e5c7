//! The NATS client protocol as bytes: what clients send ([`client`]), what servers send ([`server`]), subjects
//! ([`subject`]), and the two JSON objects with which both introduce themselves ([`hello`]).
//!
//! Readers take the bytes there are and answer with one operation and how long it was, with nothing if
//! more bytes are needed, or with a [`Fault`], after which a connection cannot go on. They copy nothing, keep
//! nothing, and read any bytes.
//!
//! Nothing that a client wrote is passed on as it is: operations are written anew ([`mod@write`]). Two readers that
//! differ about where a line ends would let a client hide an operation from one of them in what the other
//! takes for a payload; so a carriage return within a line is a fault, though nats-server reads it.

pub mod client;
pub mod hello;
pub mod nkey;
pub mod server;
pub mod subject;
pub mod write;

use std::fmt;

/// Longest number of bytes that a length may have, as nats-server has it.
const DIGITS: usize = 9;

/// How much may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest line, in bytes, without its end.
    pub line: usize,
    /// Largest payload with its headers, in bytes.
    pub payload: usize,
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A line is longer than allowed.
    Line,
    /// A payload is larger than allowed.
    Payload,
    /// It is no operation of the protocol, or not written as one.
    Unknown,
}

impl fmt::Display for Fault {
    /// In nats-server's words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Line => "maximum control line exceeded",
            Self::Payload => "Maximum Payload Violation",
            Self::Unknown => "Unknown Protocol Operation",
        })
    }
}

/// What a reader finds at the beginning of some bytes: an operation and its length, or not all of one yet.
pub type Found<T> = Result<Option<(T, usize)>, Fault>;

/// The first line without its end, and its length with it.
fn line(bytes: &[u8], most: usize) -> Found<&[u8]> {
    let within = &bytes[..bytes.len().min(most + 2)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        return if within.len() == most + 2 { Err(Fault::Line) } else { Ok(None) };
    };
    let line = &bytes[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match (line.len() > most, line.contains(&b'\r')) {
        (true, _) => Err(Fault::Line),
        (_, true) => Err(Fault::Unknown),
        _ => Ok(Some((line, end + 1))),
    }
}

/// The first word of a line in lower case, cut to eight letters, and what follows it.
fn verb(line: &[u8]) -> ([u8; 8], &[u8]) {
    let end = line.iter().position(|byte| is_blank(*byte)).unwrap_or(line.len());
    let mut verb = [0; 8];
    for (lower, byte) in verb.iter_mut().zip(&line[..end]) {
        *lower = byte.to_ascii_lowercase();
    }
    // A longer word is none that there is.
    let verb = if end > verb.len() { [0; 8] } else { verb };
    (verb, line[end..].trim_ascii())
}

/// As [`verb`] gives it.
const fn name(text: &[u8]) -> [u8; 8] {
    let mut name = [0; 8];
    let mut at = 0;
    while at < text.len() {
        name[at] = text[at];
        at += 1;
    }
    name
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Up to five words; more are a fault.
fn words(text: &[u8]) -> Result<([&[u8]; 5], usize), Fault> {
    let mut found = [&text[..0]; 5];
    let mut count = 0;
    for word in text.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty()) {
        *found.get_mut(count).ok_or(Fault::Unknown)? = word;
        count += 1;
    }
    Ok((found, count))
}

/// A length in decimal digits.
fn length(word: &[u8]) -> Result<usize, Fault> {
    if word.is_empty() || word.len() > DIGITS || !word.iter().all(u8::is_ascii_digit) {
        return Err(Fault::Unknown);
    }
    Ok(word.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')))
}

/// A payload of `size` bytes after `start`, and where its end mark ends.
fn payload(bytes: &[u8], start: usize, size: usize) -> Found<&[u8]> {
    let end = start + size;
    match (bytes.get(end), bytes.get(end + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some((&bytes[start..end], end + 2))),
        (Some(b'\r'), None) | (None, _) => Ok(None),
        _ => Err(Fault::Unknown),
    }
}

/// A message with its body, in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body<'a> {
    /// Where to.
    pub subject: &'a [u8],
    /// Where an answer is to go.
    pub reply: Option<&'a [u8]>,
    /// How many bytes of the payload are headers; none without any.
    pub headers: Option<usize>,
    /// Headers and what they are for.
    pub payload: &'a [u8],
}

/// Reads what follows the verb of a message: subject, perhaps others' words, perhaps a reply, lengths. The second
/// word is an id if `with_id`.
fn message<'a>(
    bytes: &'a [u8],
    arguments: &'a [u8],
    start: usize,
    with_headers: bool,
    with_id: bool,
    most: usize,
) -> Found<(Body<'a>, &'a [u8])> {
    let (words, count) = words(arguments)?;
    let lengths = 1 + usize::from(with_headers);
    let least = 1 + usize::from(with_id) + lengths;
    if count != least && count != least + 1 {
        return Err(Fault::Unknown);
    }
    let id = if with_id { words[1] } else { &words[0][..0] };
    let reply = (count > least).then(|| words[1 + usize::from(with_id)]);
    let size = length(words[count - 1])?;
    let headers = if with_headers { Some(length(words[count - 2])?) } else { None };
    if headers.is_some_and(|headers| headers > size) {
        return Err(Fault::Unknown);
    }
    if size > most {
        return Err(Fault::Payload);
    }
    let body = |(payload, end)| ((Body { subject: words[0], reply, headers, payload }, id), end);
    Ok(payload(bytes, start, size)?.map(body))
}
