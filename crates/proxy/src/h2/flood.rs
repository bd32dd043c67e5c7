//! [`Flood`]: frames of HTTP/2 that cost us something and ask for nothing, and a client that sends too many of them.
//!
//! A PING is to be answered, SETTINGS are to be acknowledged, a WINDOW_UPDATE, a PRIORITY and an empty DATA have to be read, and
//! none of them is a request that a gate could refuse. Clients send a few per request and some for what they are
//! sent. So each takes a token out of a bucket, which fills with time and with the bytes that the client takes; who has
//! none left is cut off. Frames are only counted here, by their first nine bytes (RFC 9113, 4.1): what they say
//! is for whoever reads them.

use std::time::Duration;

use tokio::time::Instant;

/// Tokens there are at most, and at first: more than a client sends that opens as many streams as it may.
const MOST: u32 = 4_000;
/// Time that makes a token: a thousand per second, by judgement. To answer as many costs next to nothing.
const TIME: Duration = Duration::from_millis(1);
/// Bytes taken that make a token: clients announce room for every few thousand.
const BYTES: u64 = 512;
/// What a client says before its first frame.
const PREFACE: usize = 24;
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

/// What a connection may still send of them.
#[derive(Debug)]
pub(crate) struct Flood {
    tokens: u32,
    /// When time last made a token.
    since: Instant,
    /// Bytes taken that have made no token yet.
    taken: u64,
    /// Bytes until the next head of a frame.
    skip: usize,
    head: [u8; HEAD],
    /// How many of these have come.
    have: usize,
}

impl Flood {
    pub(crate) fn new(now: Instant) -> Self {
        Self { tokens: MOST, since: now, taken: 0, skip: PREFACE, head: [0; HEAD], have: 0 }
    }

    /// The client has taken so many bytes.
    pub(crate) fn on_taken(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        let made = u32::try_from(self.taken / BYTES).unwrap_or(MOST);
        self.taken %= BYTES;
        self.tokens = self.tokens.saturating_add(made).min(MOST);
    }

    /// The client has sent these bytes: whether that was not too much.
    pub(crate) fn on_sent(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        let mut paid = true;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let more = (HEAD - self.have).min(bytes.len());
            self.head[self.have..self.have + more].copy_from_slice(&bytes[..more]);
            self.have += more;
            bytes = &bytes[more..];
            if self.have == HEAD {
                self.have = 0;
                self.skip = self.length();
                if self.head[3] == HEADERS {
                    // With a request comes what goes with it.
                    self.tokens = (self.tokens + 1).min(MOST);
                }
                paid &= !self.is_idle() || self.pay(now);
            }
        }
        paid
    }

    fn length(&self) -> usize {
        self.head[..3].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    }

    /// Whether a frame brings nothing of a request.
    fn is_idle(&self) -> bool {
        match self.head[3] {
            DATA => self.length() == 0 && self.head[4] & END_STREAM == 0,
            // A client that gives up much has asked for as much; `h2` bounds what was begun only to be reset.
            HEADERS | RST_STREAM => false,
            CONTINUATION => self.length() == 0,
            _ => true,
        }
    }

    fn pay(&mut self, now: Instant) -> bool {
        if self.tokens == 0 {
            let past = now.saturating_duration_since(self.since);
            let made = u32::try_from(past.as_nanos() / TIME.as_nanos()).unwrap_or(MOST).min(MOST);
            self.since = now;
            self.tokens = made;
        }
        let pays = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const PING: [u8; HEAD + 8] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn begun(now: Instant) -> Flood {
        let mut flood = Flood::new(now);
        assert!(flood.on_sent(&[b'x'; PREFACE], now));
        flood
    }

    #[test]
    fn who_sends_more_than_it_takes_is_cut_off() {
        let now = Instant::now();
        let mut flood = begun(now);
        let pings = |flood: &mut Flood, count, now| (0..count).all(|_| flood.on_sent(&PING, now));
        assert!(pings(&mut flood, MOST, now) && !flood.on_sent(&PING, now));
        // As much as time has made room for, and as what it has taken.
        let later = now + Duration::from_secs(1);
        assert!(pings(&mut flood, 1_000, later) && !flood.on_sent(&PING, later));
        flood.on_taken(511);
        assert!(!flood.on_sent(&PING, later));
        flood.on_taken(513);
        assert!(pings(&mut flood, 2, later) && !flood.on_sent(&PING, later));
    }

    #[test]
    fn requests_cost_nothing() {
        let now = Instant::now();
        let mut flood = begun(now);
        for _ in 0..3 * MOST {
            let headers = [0, 0, 1, HEADERS, 5, 0, 0, 0, 1, 0x82];
            let data = [0, 0, 2, DATA, 0, 0, 0, 0, 1, 7, 7];
            let end = [0, 0, 0, DATA, END_STREAM, 0, 0, 0, 1];
            assert!([&headers[..], &data, &end].into_iter().all(|frame| flood.on_sent(frame, now)));
        }
    }

    proptest! {
        /// However frames come in pieces, and whatever their payloads look like.
        #[test]
        fn frames_are_found_in_pieces(
            frames in vec((0u8..12, any::<u8>(), vec(any::<u8>(), 0..20)), 0..40),
            cuts in vec(1usize..30, 1..20),
        ) {
            let now = Instant::now();
            let mut bytes = vec![b'x'; PREFACE];
            let mut idle = 0;
            for (kind, flags, payload) in &frames {
                let length = u8::try_from(payload.len()).expect("short");
                bytes.extend([0, 0, length, *kind, *flags, 0, 0, 0, 1]);
                bytes.extend(payload);
                idle += u32::from(match (*kind, payload.is_empty()) {
                    (HEADERS | RST_STREAM, _) => false,
                    (DATA, empty) => empty && flags & END_STREAM == 0,
                    (CONTINUATION, empty) => empty,
                    _ => true,
                });
            }
            let mut flood = Flood::new(now);
            let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let cut = (*cuts.next().expect("endless")).min(rest.len());
                prop_assert!(flood.on_sent(&rest[..cut], now));
                rest = &rest[cut..];
            }
            let requests = frames.iter().filter(|(kind, ..)| *kind == HEADERS).count();
            let paid = MOST - flood.tokens;
            prop_assert!(paid <= idle && idle <= paid + u32::try_from(requests).expect("few"));
        }
    }
}
