//! Licence expressions, as far as Cargo manifests use them: names, `WITH`, `AND`, `OR`, brackets,
//! and the old `/` for `OR`.

/// Whether the licences named in `allowed` are enough to use something under `expression`. What
/// cannot be read is not enough.
pub(crate) fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    reader.any() == Some(true) && reader.words.is_empty()
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl<'a> Reader<'a> {
    /// `all OR all OR …`
    fn any(&mut self) -> Option<bool> {
        let mut value = self.all()?;
        while self.skip("OR") {
            value |= self.all()?;
        }
        Some(value)
    }

    /// `one AND one AND …`
    fn all(&mut self) -> Option<bool> {
        let mut value = self.one()?;
        while self.skip("AND") {
            value &= self.one()?;
        }
        Some(value)
    }

    /// A licence, perhaps with an exception, or an expression in brackets.
    fn one(&mut self) -> Option<bool> {
        if self.skip("(") {
            let value = self.any()?;
            return self.skip(")").then_some(value);
        }
        let name = self.next()?;
        if self.skip("WITH") {
            let whole = format!("{name} WITH {}", self.next()?);
            // An exception only permits more.
            return Some(self.allowed.contains(&name) || self.allowed.contains(&whole.as_str()));
        }
        Some(self.allowed.contains(&name))
    }

    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn skip(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_mean_what_they_say() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for (expression, expected) in [
            ("MIT", true),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("GPL-3.0 OR MIT AND ISC", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("GPL-3.0 WITH Classpath-exception-2.0", false),
            ("", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
        }
    }
}
