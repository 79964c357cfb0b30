//! Converts the words of a command line to a command's JSON form.

use super::{CommandError, Owner, Param, ParamKind, Signature, Table, refused};
use serde_json::{Map, Value};

/// Maximum number of commands that an error lists (as in the `ceph` program).
const CLOSEST: usize = 10;

impl Table {
    /// Converts words such as `osd pool create p 32` to the command's JSON form, `prefix` first.
    ///
    /// Parameters may be given in order, as `--name value`, `--name=value` or `name=value`. If several commands match, the one
    /// with the longest prefix is used.
    pub fn parse_words(&self, words: &[String]) -> Result<Map<String, Value>, CommandError> {
        let mut candidates: Vec<_> =
            self.signatures().iter().filter(|signature| signature.begins(words)).collect();
        candidates.sort_by_key(|signature| std::cmp::Reverse(signature.prefix_words()));
        let mut first_error = None;
        for signature in candidates {
            match signature.parse_words(&words[signature.prefix_words()..]) {
                Ok(fields) => return Ok(fields),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let unknown = || match refused::find_by_words(words).filter(|_| self.owner == Owner::Mon) {
            Some((prefix, reason)) => CommandError::Refused { prefix, reason },
            None => CommandError::Unknown { closest: self.closest_to(&words.join(" ")) },
        };
        Err(first_error.unwrap_or_else(unknown))
    }

    /// Usage lines of the commands that share the most leading words with `text`.
    fn closest_to(&self, text: &str) -> Vec<String> {
        let shared = |signature: &Signature| {
            let pairs = signature.prefix.split(' ').zip(text.split(' '));
            pairs.take_while(|(have, given)| !given.is_empty() && have.starts_with(given)).count()
        };
        let most = self.signatures().iter().map(shared).max().unwrap_or(0);
        let nearest = self.signatures().iter().filter(|signature| most > 0 && shared(signature) == most);
        nearest.take(CLOSEST).map(|signature| signature.to_string()).collect()
    }
}

impl Signature {
    fn begins(&self, words: &[String]) -> bool {
        let prefix: Vec<_> = self.prefix.split(' ').collect();
        words.len() >= prefix.len() && prefix.iter().zip(words).all(|(have, given)| have == given)
    }

    fn parse_words(&self, words: &[String]) -> Result<Map<String, Value>, CommandError> {
        let mut fields = Map::new();
        fields.insert("prefix".into(), self.prefix.clone().into());
        let mut positional = Vec::new();
        let mut rest = words.iter();
        let mut only_positional = false;
        while let Some(word) = rest.next() {
            if word == "--" && !only_positional {
                only_positional = true;
                continue;
            }
            match self.named(word).filter(|_| !only_positional) {
                Some((param, Some(value))) => self.put(&mut fields, param, value)?,
                Some((param, None)) if param.kind == ParamKind::Bool => {
                    self.put(&mut fields, param, "true")?
                }
                Some((param, None)) => {
                    let value = rest.next().ok_or_else(|| self.invalid(format!("{word} expects a value")))?;
                    self.put(&mut fields, param, value)?;
                }
                None => positional.push(word),
            }
        }
        let mut values = positional.into_iter().peekable();
        for param in &self.params {
            if fields.contains_key(param.name) {
                continue;
            }
            match values.peek() {
                None if param.required => return Err(self.missing(param)),
                None => break,
                Some(value) => {
                    // An optional parameter that the word does not match is omitted: the word may match the next one.
                    if !param.required && param.kind.parse_value(value).is_err() && !self.is_last(param) {
                        continue;
                    }
                }
            }
            for value in values.by_ref() {
                self.put(&mut fields, param, value)?;
                if !param.repeats {
                    break;
                }
            }
        }
        match values.next() {
            Some(unused) => Err(self.invalid(format!("unused arguments: '{unused}'"))),
            None => Ok(fields),
        }
    }

    fn is_last(&self, param: &Param) -> bool {
        self.params.last().is_some_and(|last| last.name == param.name)
    }

    /// Returns the parameter of `--name`, `--name=value` or `name=value`.
    fn named<'w>(&self, word: &'w str) -> Option<(&Param, Option<&'w str>)> {
        let (dashed, bare) = match word.strip_prefix("--") {
            Some(bare) => (true, bare),
            None => (false, word),
        };
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None if dashed => (bare, None),
            None => return None,
        };
        let name = name.replace('-', "_");
        self.params.iter().find(|param| param.name == name).map(|param| (param, value))
    }

    fn put(&self, fields: &mut Map<String, Value>, param: &Param, text: &str) -> Result<(), CommandError> {
        let value = param
            .kind
            .parse_value(text)
            .map_err(|detail| self.invalid(format!("{}: {detail}", param.name)))?;
        if param.repeats {
            let list = fields.entry(param.name).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut().expect("invariant: repeated parameters hold lists").push(value);
        } else if fields.insert(param.name.to_owned(), value).is_some() {
            return Err(self.invalid(format!("{} is given twice", param.name)));
        }
        Ok(())
    }
}
