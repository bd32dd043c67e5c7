//! Paths that mean one thing: [`normalise`].
//!
//! Whoever matches a path and whoever serves it must read it alike, or `/healthz/../export` is a health check here and
//! an export there. So a path is brought to the one form that all servers agree on, and that form is both matched and
//! passed on (RFC 3986, 6.2.2):
//!
//! 1. What is encoded and need not be (letters, digits, `-._~`) is decoded, and other encodings are written in capitals.
//! 2. Segments `.` and `..` are resolved. What would leave the root is an error.
//! 3. What servers read in different ways is an error, too: an encoded slash, a backslash in either form, an encoded
//!    percent sign before two hexadecimal digits (encoded twice), encoded control characters, a percent sign without
//!    two digits behind it, dots with parameters (`..;x`, which some drop), and `..` behind an empty segment, as some
//!    make one slash of two.
//!
//! Of slashes that follow each other nothing is taken away: to some services they are part of a name.

use std::borrow::Cow;
use std::fmt;

/// Why servers would differ about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguous {
    /// It does not begin with a slash.
    Rootless,
    /// Its dots lead above the root, or behind an empty segment, or have parameters.
    Dots,
    /// A slash or backslash that may divide segments, or not.
    Slash,
    /// Encoded twice, or not encoded as RFC 3986 says.
    Percent,
    /// A control character.
    Control,
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rootless => "the path does not begin with a slash",
            Self::Dots => "the path's dots lead out of it, or may be read in two ways",
            Self::Slash => "the path has a backslash or an encoded slash",
            Self::Percent => "the path has a percent sign that is encoded or encodes nothing",
            Self::Control => "the path has a control character",
        })
    }
}

/// The path as it is to be matched and passed on; borrowed if it is so already.
pub fn normalise(path: &str) -> Result<Cow<'_, str>, Ambiguous> {
    if !path.starts_with('/') {
        return Err(Ambiguous::Rootless);
    }
    let bytes = path.as_bytes();
    if bytes.contains(&b'\\') {
        return Err(Ambiguous::Slash);
    }
    let decoded = if bytes.contains(&b'%') { decode(path)? } else { Cow::Borrowed(path) };
    // Only what begins with a dot can be one of these segments.
    if decoded.as_bytes().windows(2).any(|two| two == b"/.") {
        return resolve(&decoded).map(Cow::Owned);
    }
    Ok(decoded)
}

/// Whether a path is in its one form.
pub fn is_normal(path: &str) -> bool {
    normalise(path).is_ok_and(|normal| normal == path)
}

/// Step 1, and what of step 3 is encoded.
fn decode(path: &str) -> Result<Cow<'_, str>, Ambiguous> {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let digits = rest.as_bytes().get(at + 1..at + 3).and_then(byte);
        let Some(decodes) = digits else { return Err(Ambiguous::Percent) };
        decoded.push_str(&rest[..at]);
        let behind = &rest[at + 3..];
        match decodes {
            b'/' | b'\\' => return Err(Ambiguous::Slash),
            0..=0x1f | 0x7f => return Err(Ambiguous::Control),
            b'-' | b'.' | b'_' | b'~' => decoded.push(decodes.into()),
            _ if decodes.is_ascii_alphanumeric() => decoded.push(decodes.into()),
            _ => decoded.push_str(&rest[at..at + 3].to_ascii_uppercase()),
        }
        rest = behind;
    }
    decoded.push_str(rest);
    // Asked of the whole, as what follows may have been encoded, too.
    let mut percents = decoded.match_indices("%25").map(|(at, percent)| at + percent.len());
    if percents.any(|behind| decoded.as_bytes().get(behind..behind + 2).and_then(byte).is_some()) {
        return Err(Ambiguous::Percent);
    }
    Ok(if decoded == path { Cow::Borrowed(path) } else { Cow::Owned(decoded) })
}

/// What two hexadecimal digits stand for.
fn byte(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// Step 2 (RFC 3986, 5.2.4), and what of step 3 is about dots.
fn resolve(path: &str) -> Result<String, Ambiguous> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => {
                // An empty one is nothing to a server that makes one slash of two.
                kept.pop().filter(|above| !above.is_empty()).ok_or(Ambiguous::Dots)?;
            }
            _ if has_parameters(segment) => return Err(Ambiguous::Dots),
            _ => {
                kept.push(segment);
                continue;
            }
        }
        // What ends in a dot segment names a folder.
        if last {
            kept.push("");
        }
    }
    Ok(format!("/{}", kept.join("/")))
}

/// Whether a segment is dots to whoever drops what follows a semicolon.
fn has_parameters(segment: &str) -> bool {
    ["..", "."].iter().filter_map(|dots| segment.strip_prefix(dots)).any(|rest| {
        rest.starts_with(';') || rest.as_bytes().get(..3).is_some_and(|it| it == b"%3B")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 3986, 5.2.4 and 6.2.2.2 have the first of these.
    #[test]
    fn a_path_has_one_form() {
        for (path, normal) in [
            ("/a/b/c/./../../g", "/a/g"),
            ("/%7Euser/%41%2d%5f%2E1", "/~user/A-_.1"),
            ("/", "/"),
            ("/healthz", "/healthz"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/..", "/"),
            ("/a/%2e%2E/b", "/b"),
            ("/./a", "/a"),
            ("/.hidden/..two/...", "/.hidden/..two/..."),
            ("/a//b", "/a//b"),
            ("/a//./b", "/a//b"),
            ("/caf%c3%a9%20", "/caf%C3%A9%20"),
            ("/100%25", "/100%25"),
            ("/50%25-off", "/50%25-off"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/grpc.health.v1.Health/../expensive", "/expensive"),
        ] {
            assert_eq!(normalise(path).as_deref(), Ok(normal), "{path}");
        }
    }

    #[test]
    fn what_servers_read_in_two_ways_is_no_path() {
        for (path, why) in [
            ("", Ambiguous::Rootless),
            ("healthz", Ambiguous::Rootless),
            ("/..", Ambiguous::Dots),
            ("/a/../../b", Ambiguous::Dots),
            ("/a//../b", Ambiguous::Dots),
            ("/a/..;/b", Ambiguous::Dots),
            ("/a/.;x=1/b", Ambiguous::Dots),
            ("/a/%2e%2e%3b/b", Ambiguous::Dots),
            ("/a%2fb", Ambiguous::Slash),
            ("/a%2Fb", Ambiguous::Slash),
            ("/a\\b", Ambiguous::Slash),
            ("/a%5c..%5cb", Ambiguous::Slash),
            ("/%252e%252e/b", Ambiguous::Percent),
            ("/%25%32%65", Ambiguous::Percent),
            ("/%", Ambiguous::Percent),
            ("/%4", Ambiguous::Percent),
            ("/%zz", Ambiguous::Percent),
            ("/%+1", Ambiguous::Percent),
            ("/%é1", Ambiguous::Percent),
            ("/a%00", Ambiguous::Control),
            ("/a%0d%0ab", Ambiguous::Control),
        ] {
            assert_eq!(normalise(path), Err(why), "{path}");
        }
    }

    /// As the least careful server behind might: decodes all, as often as there is anything to decode, takes
    /// backslashes for slashes, and then resolves dots.
    fn careless(path: &str) -> Vec<String> {
        let mut bytes = path.as_bytes().to_vec();
        while let Some(at) = (0..bytes.len())
            .find(|at| bytes[*at] == b'%' && bytes.get(at + 1..at + 3).and_then(byte).is_some())
        {
            let decoded = byte(&bytes[at + 1..at + 3]).expect("found");
            bytes.splice(at..at + 3, [decoded]);
        }
        let text = String::from_utf8_lossy(&bytes).replace('\\', "/");
        let mut kept = Vec::new();
        for segment in text.split('/').filter(|segment| !segment.is_empty()) {
            match segment.split(';').next() {
                Some(".") => {}
                Some("..") => drop(kept.pop()),
                _ => kept.push(segment.to_owned()),
            }
        }
        kept
    }

    proptest! {
        /// Once is enough, and no server that decodes, resolves and divides as it likes finds another place.
        #[test]
        fn whatever_passes_leads_where_it_says(
            path in "(/|//|[a-c]|\\.|\\.\\.|;|\\\\|%|%2e|%2E|%2f|%5C|%25|%32|%61|%3b|%c3%a9|é|%00){0,12}",
        ) {
            let path = format!("/{path}");
            if let Ok(normal) = normalise(&path) {
                prop_assert_eq!(normalise(&normal), Ok(Cow::Borrowed(&*normal)));
                let plain = |path: &str| {
                    let segments = path.split('/').filter(|segment| !segment.is_empty());
                    segments.map(str::to_owned).collect::<Vec<_>>()
                };
                let decoded: Vec<String> =
                    plain(&normal).iter().map(|it| it.replace("%C3%A9", "é").replace("%3B", ";")
                        .replace("%25", "%")).collect();
                prop_assert_eq!(careless(&normal), decoded, "{}", normal);
                prop_assert_eq!(careless(&path), careless(&normal), "{}", path);
            }
        }

        #[test]
        fn no_text_makes_it_panic(path in ".{0,40}") {
            let _ = normalise(&path);
        }
    }
}
