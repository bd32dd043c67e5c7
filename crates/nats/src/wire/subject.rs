//! Subjects and patterns: tokens between dots; `*` stands for one token, `>` for all that follow, at least one.

/// Whether a pattern can be subscribed to.
pub fn is_pattern(text: &[u8]) -> bool {
    let mut tokens = text.split(|byte| *byte == b'.').peekable();
    while let Some(token) = tokens.next() {
        let last = tokens.peek().is_none();
        let printable = token.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        if token.is_empty() || !printable || (token == b">" && !last) {
            return false;
        }
    }
    true
}

/// Whether `subject` is one of those that `pattern` stands for.
pub fn matches(pattern: &[u8], subject: &[u8]) -> bool {
    let mut wanted = pattern.split(|byte| *byte == b'.');
    let mut given = subject.split(|byte| *byte == b'.');
    loop {
        match (wanted.next(), given.next()) {
            (Some(b">"), Some(_)) => return true,
            (Some(wanted), Some(given)) if wanted == given || wanted == b"*" => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Whether every subject of the pattern `inner` is one of `outer`.
pub fn covers(outer: &[u8], inner: &[u8]) -> bool {
    // A wildcard is a token that no other wildcard but a wider one stands for.
    matches(outer, inner) && (!inner.ends_with(b">") || outer.ends_with(b">"))
}

/// Whether some subject is one of both patterns.
pub fn overlap(one: &[u8], other: &[u8]) -> bool {
    let mut ones = one.split(|byte| *byte == b'.');
    let mut others = other.split(|byte| *byte == b'.');
    loop {
        match (ones.next(), others.next()) {
            (Some(b">"), Some(_)) | (Some(_), Some(b">")) => return true,
            (Some(a), Some(b)) if a == b || a == b"*" || b == b"*" => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_are_those_of_nats() {
        for fine in ["a", "a.b", "*", ">", "a.*.>", "a>.b", "a.b*"] {
            assert!(is_pattern(fine.as_bytes()), "{fine}");
        }
        for wrong in ["", ".", "a.", ".a", "a..b", ">.a", "a b", "a\u{7f}"] {
            assert!(!is_pattern(wrong.as_bytes()), "{wrong}");
        }
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("a", "A", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), subject.as_bytes()),
                expected,
                "{pattern} {subject}"
            );
        }
    }

    fn tokens(of: &'static str) -> impl Strategy<Value = String> {
        prop::collection::vec(of, 1..4).prop_map(|tokens| tokens.join("."))
    }

    fn pattern() -> impl Strategy<Value = String> {
        (tokens("[ab*]"), any::<bool>())
            .prop_map(|(text, open)| if open { text + ".>" } else { text })
    }

    #[test]
    fn a_pattern_covers_what_it_stands_for_whole() {
        for (outer, inner, expected) in [
            ("a.>", "a.b", true),
            ("a.>", "a.>", true),
            ("a.>", "a.*.c", true),
            ("a.*", "a.*", true),
            ("a.*", "a.>", false),
            ("a.b", "a.*", false),
            ("a.b", "a.b", true),
            (">", "a.>", true),
        ] {
            assert_eq!(covers(outer.as_bytes(), inner.as_bytes()), expected, "{outer} {inner}");
        }
    }

    proptest! {
        #[test]
        fn patterns_with_a_common_subject_overlap(one in pattern(), other in pattern(), subject in tokens("[ab]")) {
            let both = matches(one.as_bytes(), subject.as_bytes())
                && matches(other.as_bytes(), subject.as_bytes());
            prop_assert!(!both || overlap(one.as_bytes(), other.as_bytes()));
            prop_assert_eq!(
                overlap(one.as_bytes(), other.as_bytes()),
                overlap(other.as_bytes(), one.as_bytes())
            );
        }

        /// And those that overlap have one: of at most five tokens, with these patterns.
        #[test]
        fn patterns_that_overlap_have_a_common_subject(one in pattern(), other in pattern()) {
            let subjects = (1..=5u32).flat_map(|count| (0..1u32 << count).map(move |bits| {
                let token = |at| if bits >> at & 1 == 0 { "a" } else { "b" };
                (0..count).map(token).collect::<Vec<_>>().join(".")
            }));
            let both = |subject: &String| {
                matches(one.as_bytes(), subject.as_bytes()) && matches(other.as_bytes(), subject.as_bytes())
            };
            prop_assert_eq!(overlap(one.as_bytes(), other.as_bytes()), subjects.into_iter().any(|at| both(&at)));
        }
    }
}
