//! Writing operations.

use super::Body;

/// A client's message.
pub fn publish(out: &mut Vec<u8>, body: &Body<'_>) {
    out.extend_from_slice(if body.headers.is_some() { b"HPUB " } else { b"PUB " });
    out.extend_from_slice(body.subject);
    rest(out, body);
}

/// A server's message for the subscription `id`.
pub fn message(out: &mut Vec<u8>, id: &[u8], body: &Body<'_>) {
    out.extend_from_slice(if body.headers.is_some() { b"HMSG " } else { b"MSG " });
    out.extend_from_slice(body.subject);
    out.push(b' ');
    out.extend_from_slice(id);
    rest(out, body);
}

fn rest(out: &mut Vec<u8>, body: &Body<'_>) {
    if let Some(reply) = body.reply {
        out.push(b' ');
        out.extend_from_slice(reply);
    }
    for length in body.headers.into_iter().chain([body.payload.len()]) {
        out.push(b' ');
        number(out, length);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body.payload);
    out.extend_from_slice(b"\r\n");
}

/// A client's wish for messages.
pub fn subscribe(out: &mut Vec<u8>, pattern: &[u8], queue: Option<&[u8]>, id: &[u8]) {
    out.extend_from_slice(b"SUB ");
    out.extend_from_slice(pattern);
    for word in queue.into_iter().chain([id]) {
        out.push(b' ');
        out.extend_from_slice(word);
    }
    out.extend_from_slice(b"\r\n");
}

/// Its end, at once or after so many.
pub fn unsubscribe(out: &mut Vec<u8>, id: &[u8], max: Option<usize>) {
    out.extend_from_slice(b"UNSUB ");
    out.extend_from_slice(id);
    if let Some(max) = max {
        out.push(b' ');
        number(out, max);
    }
    out.extend_from_slice(b"\r\n");
}

/// A server's complaint. What it quotes of others must not end the line or the quotation.
pub fn error(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(b"-ERR '");
    let shown = |char: char| if char.is_control() || char == '\'' { '?' } else { char };
    out.extend_from_slice(text.chars().map(shown).collect::<String>().as_bytes());
    out.extend_from_slice(b"'\r\n");
}

fn number(out: &mut Vec<u8>, mut value: usize) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return out.extend_from_slice(&digits[first..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_cannot_end_the_line() {
        let mut out = Vec::new();
        error(&mut out, "no 'such'\r\nPING");
        assert_eq!(out, b"-ERR 'no ?such???PING'\r\n");
    }

    #[test]
    fn numbers_are_decimal() {
        for value in [0, 7, 10, 4_096, usize::MAX] {
            let mut out = Vec::new();
            number(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
