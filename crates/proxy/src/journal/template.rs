//! Paths without what tells one object, or one user, from the next.

/// Longest template, in characters.
const LONGEST: usize = 200;
/// Longest part of a path that is a word and not a key.
const LONGEST_WORD: usize = 32;

/// `/users/{}/orders` of `/users/4711/orders`: parts with digits in them, but for short ones such as `v2`, and parts as long as keys
/// are, count as names of objects.
pub(crate) fn template(path: &str) -> String {
    let part = |part: &str| {
        let digits = part.bytes().filter(u8::is_ascii_digit).count();
        let odd = part.contains(|c: char| c == '%' || c == '@' || c.is_control() || !c.is_ascii());
        let is_version =
            digits <= 2 && part.len() <= 4 && part.starts_with(|c: char| c.is_ascii_alphabetic());
        let is_word = digits == 0 || is_version;
        if is_word && !odd && part.len() <= LONGEST_WORD {
            part.to_owned()
        } else {
            "{}".to_owned()
        }
    };
    let parts: Vec<String> = path.split('/').map(part).collect();
    parts.join("/").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_and_numbers_are_left_out() {
        for (path, expected) in [
            ("/", "/"),
            ("/checkout/pay", "/checkout/pay"),
            ("/v2/users/4711/orders", "/v2/users/{}/orders"),
            ("/users/ann@example.com", "/users/{}"),
            ("/files/550e8400-e29b-41d4-a716-446655440000", "/files/{}"),
            ("/shop.v1.Shop/Buy", "/{}/Buy"),
            ("/a/%41", "/a/{}"),
            ("/t/abcdefabcdefabcdefabcdefabcdefabcdef", "/t/{}"),
        ] {
            assert_eq!(template(path), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_has_one(path in ".*") {
            let template = template(&path);
            prop_assert!(template.chars().count() <= LONGEST);
            prop_assert!(template.is_ascii() && !template.contains(|c: char| c.is_control()));
        }
    }
}
