//! Deterministic mutation tests for decoders of external input.
//!
//! A [`Target`] names a decoder. [`Target::run`] damages valid inputs as hostile or broken senders do and requires three
//! things of the decoder: it never panics; it never allocates more than a bound in proportion to its input; and whatever
//! it accepts is encoded and decoded again unchanged. The rounds are derived from the target's name, so they are the same
//! everywhere; `--profile long` runs more of them. `make fuzz` lets libFuzzer search further, guided by coverage.
//!
//! Inputs come from the encoders (seeds) and from the crate's folder `corpus/NAME`: examples of every format that was ever
//! written, and inputs that once broke a decoder. `NACRE_CORPUS=update cargo nextest run -E 'test(fuzz)'` adds the current
//! seeds to it. An input that fails is saved in the system's folder for temporary files. The panic message contains the
//! file's name.
//!
//! A test binary that runs targets must have [`CountingAllocator`] as its global allocator.

mod alloc;
#[cfg(fuzzing)]
mod coverage;
mod mutate;

pub use alloc::CountingAllocator;

use mutate::Mutator;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that any decoder may allocate for the shortest input: for each nested list one reservation of the claimed length,
/// which serde limits to 1 MiB.
const BASE_BYTES: usize = 4 << 20;
/// Maximum number of inputs that the mutations start from.
const MOST_INPUTS: usize = 512;
/// The longest input, in bytes.
const LONGEST_INPUT: usize = 256 << 10;

/// A decoder under test.
pub struct Target<'a> {
    /// Its name, which is also the name of its folder in the corpus, and the seed of the mutations.
    pub name: &'a str,
    /// The crate's folder `corpus`.
    pub corpus: &'a Path,
    /// Valid inputs, as the current encoders write them.
    pub seeds: Vec<Vec<u8>>,
    /// Words to insert, for text formats.
    pub dictionary: &'a [&'a str],
    /// Corrects checksums, so that damage reaches the data that they protect.
    pub repair: fn(&mut [u8]),
    /// Bytes that may be allocated for each byte of input.
    pub max_alloc_per_input_byte: usize,
}

impl<'a> Target<'a> {
    /// A target without words and checksums, with 256 bytes per byte: a short record in memory for each byte.
    pub fn new(name: &'a str, corpus: &'a Path, seeds: Vec<Vec<u8>>) -> Target<'a> {
        Target { name, corpus, seeds, dictionary: &[], repair: |_| {}, max_alloc_per_input_byte: 256 }
    }

    /// Tries the corpus, the seeds and damaged forms of both. `decode` returns the decoded value, encoded again, or `None`
    /// if it rejects the input.
    ///
    /// # Panics
    ///
    /// If the decoder violates a requirement in the module's documentation, or rejects a seed.
    pub fn run(&self, decode: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        let mut inputs = self.corpus_files();
        for seed in &self.seeds {
            assert!(self.check(&decode, seed).is_some(), "{}: a seed is refused", self.name);
            if !inputs.contains(seed) {
                self.keep(seed);
                inputs.push(seed.clone());
            }
        }
        assert!(!inputs.is_empty(), "{}: nothing to start from", self.name);
        for input in &inputs {
            self.check(&decode, input);
        }
        let mut mutator = Mutator::new(self.name);
        for _ in 0..rounds() {
            let mut input = inputs[mutator.below(inputs.len())].clone();
            let other = mutator.below(inputs.len());
            mutator.mutate(&mut input, &inputs[other], self.dictionary);
            input.truncate(LONGEST_INPUT);
            (self.repair)(&mut input);
            let taken = self.check(&decode, &input);
            // Damaged inputs that are accepted reach further code when damaged again.
            if taken.is_some() && inputs.len() < MOST_INPUTS {
                inputs.push(input);
            }
        }
        #[cfg(fuzzing)]
        coverage::run(self, &inputs, &|input| {
            let mut input = input.to_vec();
            (self.repair)(&mut input);
            self.check(&decode, &input);
        });
    }

    /// Decodes one input and the encoding of the result.
    fn check(&self, decode: &impl Fn(&[u8]) -> Option<Vec<u8>>, input: &[u8]) -> Option<Vec<u8>> {
        let witness = Witness { name: self.name, input };
        let (taken, peak) = alloc::peak_allocation(|| decode(input));
        let most = BASE_BYTES + self.max_alloc_per_input_byte * input.len();
        assert!(peak <= most, "{}: {} bytes of input made it allocate {peak}", self.name, input.len());
        if let Some(written) = &taken {
            let again = Witness { name: self.name, input: written };
            let read = decode(written);
            assert!(
                read.as_ref() == Some(written),
                "{}: what was written reads as something else: {written:02x?} {read:02x?}",
                self.name
            );
            drop(again);
        }
        drop(witness);
        taken
    }

    fn folder(&self) -> PathBuf {
        self.corpus.join(self.name)
    }

    fn corpus_files(&self) -> Vec<Vec<u8>> {
        let Ok(entries) = fs::read_dir(self.folder()) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        paths.into_iter().map(read).collect()
    }

    fn keep(&self, seed: &[u8]) {
        if std::env::var_os("NACRE_CORPUS").is_some_and(|value| value == "update") {
            let path = self.folder().join(format!("{:016x}", mutate::hash(seed)));
            let written = fs::create_dir_all(self.folder()).and_then(|()| fs::write(&path, seed));
            written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
    }
}

/// Number of damaged inputs per target.
fn rounds() -> usize {
    match std::env::var("NEXTEST_PROFILE") {
        Ok(profile) if profile == "long" => 200_000,
        _ => 3_000,
    }
}

/// Saves the input that was being decoded when a panic occurred.
struct Witness<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let file = format!("nacre-fuzz-{}-{:016x}", self.name, mutate::hash(self.input));
            let path = std::env::temp_dir().join(file);
            match fs::write(&path, self.input) {
                Ok(()) => eprintln!("the input is in {}", path.display()),
                Err(error) => eprintln!("the input could not be saved ({error}): {:02x?}", self.input),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    fn target(name: &str) -> Target<'_> {
        Target::new(name, Path::new("no-such-folder"), vec![vec![3, 1, 2, 3]])
    }

    fn fails(name: &str, decode: fn(&[u8]) -> Option<Vec<u8>>) -> String {
        let failed = std::panic::catch_unwind(|| target(name).run(decode)).expect_err("the decoder is wrong");
        failed.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic of its own".into())
    }

    /// A length and as many bytes.
    fn counted(input: &[u8]) -> Option<&[u8]> {
        let (length, rest) = input.split_first()?;
        (rest.len() == usize::from(*length)).then_some(rest)
    }

    #[test]
    fn a_sound_decoder_passes() {
        target("sound").run(|input| counted(input).map(|_| input.to_vec()));
    }

    #[test]
    fn decoders_that_trust_lengths_are_found() {
        let message = fails("trusting", |input| {
            let length = usize::from(*input.first()?);
            let _ = &input[1..=length];
            Some(input.to_vec())
        });
        assert!(message.contains("out of range"), "{message}");
        let message = fails("greedy", |input| {
            let room: Vec<u8> = Vec::with_capacity(usize::from(*input.first()?) << 20);
            counted(input).map(|bytes| [&[input[0]], bytes, &room].concat())
        });
        assert!(message.contains("made it allocate"), "{message}");
    }

    #[test]
    fn decoders_that_change_what_they_read_are_found() {
        let message =
            fails("forgetful", |input| counted(input).map(|bytes| [&[input[0]], bytes, &[0]].concat()));
        assert!(message.contains("reads as something else"), "{message}");
    }
}
