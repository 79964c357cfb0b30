//! Reading a capability text from left to right.

/// A place in a text. What does not match leaves it where it was.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    rest: &'a str,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str) -> Scan<'a> {
        Scan { rest: text }
    }

    /// What is left.
    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    /// Whether nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes a sequence whole or not at all.
    pub(super) fn attempt<T>(&mut self, sequence: impl FnOnce(&mut Scan<'a>) -> Option<T>) -> Option<T> {
        let mut ahead = *self;
        let taken = sequence(&mut ahead)?;
        *self = ahead;
        Some(taken)
    }

    /// Takes `word`; what follows may be anything.
    pub(super) fn word(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    /// Takes one or more characters of a kind.
    pub(super) fn run(&mut self, kind: impl Fn(char) -> bool) -> Option<&'a str> {
        let end = self.rest.find(|c| !kind(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!taken.is_empty()).then_some(taken)
    }

    /// One or more white spaces.
    pub(super) fn spaces(&mut self) -> Option<()> {
        self.run(|c| matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')).map(drop)
    }

    /// Any number of white spaces.
    pub(super) fn any_spaces(&mut self) {
        let _ = self.spaces();
    }

    /// `=` or white space, between a word and its value.
    pub(super) fn equals_or_spaces(&mut self) -> Option<()> {
        self.word("=").or_else(|| self.spaces())
    }

    /// A value: quoted and not empty, or of letters, digits and `_./-`.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        self.attempt(|scan| scan.quoted().filter(|text| !text.is_empty())).or_else(|| self.plain())
    }

    /// A value that may be empty where it is quoted.
    pub(super) fn value_or_empty(&mut self) -> Option<&'a str> {
        self.attempt(Scan::quoted).or_else(|| self.plain())
    }

    fn plain(&mut self) -> Option<&'a str> {
        self.run(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
    }

    fn quoted(&mut self) -> Option<&'a str> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest;
        Some(text)
    }
}
