//! The parts of tide, and how to take each one out.

/// A part: in a file of the core, what to write in the place of what. `OUT` there is true while the part is taken out.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    from: &'static str,
    to: &'static str,
}

pub(super) const PARTS: &[Part] = &[
    Part {
        name: "what callers report to have shed",
        file: "admission/tide/mod.rs",
        from: "let sheds = if sheds.count > 0 {",
        to: "let sheds = if sheds.count > 0 && !OUT {",
    },
    Part {
        name: "leaving out what they were told since that they may send",
        file: "admission/tide/mod.rs",
        from: "if may_send && !self.lump {",
        to: "if may_send && !self.lump && !OUT {",
    },
    Part {
        name: "credits",
        file: "admission/tide/mod.rs",
        from: "out.free = Some(free);",
        to: "out.free = Some(if OUT { last } else { free });",
    },
    Part {
        name: "surplus",
        file: "admission/tide/cut.rs",
        from: "* (1.0 - followed)",
        to: "* (1.0 - followed) * if OUT { 0.0 } else { 1.0 }",
    },
    Part {
        name: "its price (as if a refusal cost a fiftieth)",
        file: "admission/tide/waits.rs",
        from: "(REFUSAL_NS + before) / service.max(1.0)",
        to: "if OUT { 0.02 } else { (REFUSAL_NS + before) / service.max(1.0) }",
    },
    Part {
        name: "bursts (as if arrivals were even)",
        file: "admission/tide/bursts.rs",
        from: "if dispersion > LEAST {",
        to: "if dispersion > LEAST && !OUT {",
    },
    Part {
        name: "sway",
        file: "admission/tide/cut.rs",
        from: "Sway::reach(self.waits.longest(), self.hears)",
        to: "Sway::reach(self.waits.longest(), self.hears) * if OUT { 0.0 } else { 1.0 }",
    },
    Part {
        name: "the longest wait learned (0.7 instead)",
        file: "admission/tide/mod.rs",
        from: "if self.is_calm() {",
        to: "if self.is_calm() || OUT {",
    },
    Part {
        name: "more time for what others worked for",
        file: "admission/tide/waits.rs",
        from: "if progress.elapsed == Span::ZERO ||",
        to: "if OUT || progress.elapsed == Span::ZERO ||",
    },
    Part {
        name: "pushing out the less important",
        file: "admission/tide/mod.rs",
        from: "let in_time = wait <= allowed;",
        to: "let (welcome, in_time) = (welcome && !OUT, wait <= allowed);",
    },
    Part {
        name: "remembering what each caller was told",
        file: "credit/holder.rs",
        from: "let (told, either) = (self.told(since)?,",
        to: "let (told, either) = (self.told(since).filter(|_| !OUT)?,",
    },
    Part {
        name: "noise followed slowly",
        file: "admission/tide/mod.rs",
        from: "let weight = OFFERED_GAIN * heard.max(HEARD_LEAST);",
        to: "let weight = if OUT { 0.5 } else { OFFERED_GAIN * heard.max(HEARD_LEAST) };",
    },
    Part {
        name: "surge",
        file: "admission/tide/mod.rs",
        from: "self.capacity.rate() > 0.0 && self.offered.surges",
        to: "!OUT && self.capacity.rate() > 0.0 && self.offered.surges",
    },
    Part {
        name: "ebb",
        file: "admission/tide/offered.rs",
        from: "let (inside, ebb) = self.ebb(nanos, sent);",
        to: "let (inside, ebb) = self.ebb(nanos, sent);\n        let ebb = if OUT { 0.0 } else { ebb };",
    },
    Part {
        name: "telling the silent",
        file: "admission/tide/mod.rs",
        from: "if backlog.waiting() == 0 {",
        to: "if backlog.waiting() == 0 && !OUT {",
    },
    Part {
        name: "lulls",
        file: "admission/tide/round.rs",
        from: "self.lull.filter(|_| cuts)",
        to: "self.lull.filter(|_| cuts && !OUT)",
    },
    Part {
        name: "a lost capacity believed at once",
        file: "admission/tide/capacity.rs",
        from: "if less > 0.0 && less * less > SHIFT",
        to: "if !OUT && less > 0.0 && less * less > SHIFT",
    },
    Part {
        name: "messages counted as work",
        file: "admission/tide/messages.rs",
        from: "self.each = (unit * REFUSAL_NS / 2.0) as u64;",
        to: "self.each = if OUT { 0 } else { (unit * REFUSAL_NS / 2.0) as u64 };",
    },
    Part {
        name: "lots (credits decide where nobody ranks anything)",
        file: "admission/tide/lots.rs",
        from: "self.between.get().is_some_and(|between| between < longest)",
        to: "OUT || self.between.get().is_some_and(|between| between < longest)",
    },
    Part {
        name: "lots left to credits",
        file: "admission/tide/lots.rs",
        from: "&& uneven < UNEVEN * margin_resting",
        to: "&& uneven < UNEVEN * margin_resting && !OUT",
    },
    Part {
        name: "telling those who wait for a credit",
        file: "admission/tide/telling.rs",
        from: "if self.lump { cursors.free }",
        to: "if self.lump && !OUT { cursors.free }",
    },
];

impl Part {
    /// The text of its file with a switch: the part is out where `switch` is true.
    pub(super) fn switched(&self, text: &str, switch: &str) -> Result<String, String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replace(self.from, &self.to.replace("OUT", switch))),
            found => {
                Err(format!("{}: {:?} is there {found} times, not once", self.file, self.from))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root;

    #[test]
    fn every_part_is_where_the_list_says() {
        for part in PARTS {
            let file = root().join("crates/core/src").join(part.file);
            let text = std::fs::read_to_string(&file).unwrap();
            let switched = part.switched(&text, "crate::without(1)").unwrap();
            assert!(switched.len() > text.len() && !switched.contains("OUT)"), "{}", part.name);
        }
    }
}
