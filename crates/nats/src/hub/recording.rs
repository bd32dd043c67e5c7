//! The latest arrivals of a topic, for sizing and placing it: who sent when.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use tidegate_core::Instant;

/// Of one topic. What it keeps is bounded by `most` arrivals; publishers that they are of, by as many.
#[derive(Debug, Default)]
pub(super) struct Recording {
    arrivals: VecDeque<(Instant, u32)>,
    /// Publishers as they are written: a name of its own, and its group.
    names: Vec<String>,
    by_client: BTreeMap<u64, u32>,
}

impl Recording {
    /// A message of a client has arrived.
    pub(super) fn add(&mut self, most: usize, arrived: Instant, client: u64, group: &str) {
        if self.names.len() >= most && !self.by_client.contains_key(&client) {
            // Mostly of clients that have gone.
            *self = Self::default();
        }
        let names = &mut self.names;
        let publisher = *self.by_client.entry(client).or_insert_with(|| {
            let plain = |at: char| if at == ',' || at.is_control() { '_' } else { at };
            let group: String = group.chars().map(plain).collect();
            names.push(format!("{group}#{client},{group}"));
            names.len() as u32 - 1
        });
        while self.arrivals.len() >= most {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back((arrived, publisher));
    }

    /// As `tidegate nats place` and `tidegate limit size` read it.
    pub(super) fn text(&self) -> String {
        let mut text = "seconds,publisher,group\n".to_owned();
        let Some(first) = self.arrivals.iter().map(|(at, _)| *at).min() else { return text };
        for (at, publisher) in &self.arrivals {
            let name = &self.names[*publisher as usize];
            // Writing to a string does not fail.
            let _ = writeln!(text, "{:.6},{name}", at.since(first).as_secs_f64());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Span;

    use super::*;

    #[test]
    fn the_latest_are_kept_and_read_back() {
        let mut recording = Recording::default();
        for n in 0..10u64 {
            let at = Instant::ZERO + Span::from_millis(n);
            recording.add(4, at, n % 3, "a,b\n");
        }
        let text = recording.text();
        assert_eq!(text.lines().count(), 5);
        assert!(text.ends_with("0.003000,a_b_#0,a_b_\n"), "{text}");
        let log = crate::place::Log::read(&text).expect("it is one");
        assert_eq!((log.publishers().len(), log.messages()), (3, 4));
        // Clients that come and go.
        (0..100).for_each(|n| recording.add(4, Instant::ZERO, n, ""));
        assert!(recording.names.len() <= 4 && recording.arrivals.len() <= 4);
    }
}
