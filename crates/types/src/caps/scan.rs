//! A scanner for capability texts.

/// A position in a text. A failed match does not move it.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    rest: &'a str,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str) -> Scan<'a> {
        Scan { rest: text }
    }

    /// The remaining text.
    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    /// Whether the whole text has been read.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Matches a whole sequence or nothing.
    pub(super) fn attempt<T>(&mut self, sequence: impl FnOnce(&mut Scan<'a>) -> Option<T>) -> Option<T> {
        let mut ahead = *self;
        let taken = sequence(&mut ahead)?;
        *self = ahead;
        Some(taken)
    }

    /// Matches `word`, regardless of what follows.
    pub(super) fn literal(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    /// Matches one or more characters of a kind.
    pub(super) fn take_while1(&mut self, kind: impl Fn(char) -> bool) -> Option<&'a str> {
        let end = self.rest.find(|c| !kind(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!taken.is_empty()).then_some(taken)
    }

    /// Matches one or more white spaces.
    pub(super) fn spaces(&mut self) -> Option<()> {
        self.take_while1(|c| matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')).map(drop)
    }

    /// Matches any number of white spaces.
    pub(super) fn any_spaces(&mut self) {
        let _ = self.spaces();
    }

    /// Matches `=` or white space between a word and its value.
    pub(super) fn equals_or_spaces(&mut self) -> Option<()> {
        self.literal("=").or_else(|| self.spaces())
    }

    /// Matches a value: quoted and not empty, or of letters, digits and `_./-`.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        self.attempt(|scan| scan.quoted().filter(|text| !text.is_empty())).or_else(|| self.plain())
    }

    /// Matches a value, which may be empty if it is quoted.
    pub(super) fn value_or_empty(&mut self) -> Option<&'a str> {
        self.attempt(Scan::quoted).or_else(|| self.plain())
    }

    fn plain(&mut self) -> Option<&'a str> {
        self.take_while1(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest;
        Some(text)
    }
}
