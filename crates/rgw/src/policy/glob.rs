//! Patterns: `*` stands for any text, `?` for any one character.
//!
//! Policies come from owners of buckets and the texts to compare from clients, so the steps of a decision are bounded. Text
//! between two `*` is searched for in linear time; if it has a `?`, every place is tried. All comparisons of a decision take
//! their steps from one [`StepBudget`]. When it is exhausted, the caller refuses the request.

use std::cell::Cell;

/// The steps that one policy's decision may take: some 1 000 patterns against a key of 1 024 bytes.
const STEPS: usize = 2 << 20;

/// The steps that a decision has left.
#[derive(Debug)]
pub(super) struct StepBudget {
    left: Cell<usize>,
    exhausted: Cell<bool>,
}

impl Default for StepBudget {
    fn default() -> StepBudget {
        StepBudget { left: Cell::new(STEPS), exhausted: Cell::new(false) }
    }
}

impl StepBudget {
    /// Whether a comparison was given up; its result does not count.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    /// Takes `steps` steps; `None` if fewer are left.
    fn take(&self, steps: usize) -> Option<()> {
        let left = self.left.get().checked_sub(steps);
        self.exhausted.set(self.exhausted.get() || left.is_none());
        self.left.set(left?);
        Some(())
    }
}

/// Whether `text` matches `pattern`. Also `false` if the budget is exhausted.
pub(super) fn matches(pattern: &str, text: &str, budget: &StepBudget) -> bool {
    compare(pattern, text, budget).unwrap_or(false)
}

/// Like [`matches`]; `None` if the budget is exhausted.
fn compare(pattern: &str, text: &str, budget: &StepBudget) -> Option<bool> {
    budget.take(1)?;
    let Some((first, rest)) = pattern.split_once('*') else {
        return Some(begins(pattern, text, budget)? == Some(text.len()));
    };
    let Some(len) = begins(first, text, budget)? else { return Some(false) };
    let mut text = &text[len..];
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The end of the text is matched first: the parts in the middle must not use it.
    let Some(end) = tail(last, text) else { return Some(false) };
    if begins(last, &text[end..], budget)?.is_none() {
        return Some(false);
    }
    text = &text[..end];
    for part in middle.split('*').filter(|part| !part.is_empty()) {
        // The first place is the best: it leaves the most text to the parts that follow.
        let Some(end) = find(part, text, budget)? else { return Some(false) };
        text = &text[end..];
    }
    Some(true)
}

/// The length of the beginning of `text` that matches `part`, in bytes; `part` has no `*`. The outer `None` means an exhausted
/// budget.
fn begins(part: &str, text: &str, budget: &StepBudget) -> Option<Option<usize>> {
    let mut rest = text.chars();
    for wanted in part.chars() {
        budget.take(1)?;
        match rest.next() {
            Some(letter) if wanted == '?' || wanted == letter => {}
            _ => return Some(None),
        }
    }
    Some(Some(text.len() - rest.as_str().len()))
}

/// The offset of the last characters of `text`, as many as `part` has.
fn tail(part: &str, text: &str) -> Option<usize> {
    // Each character of `part` matches one character of `text`.
    match part.chars().count().checked_sub(1) {
        None => Some(text.len()),
        Some(before) => text.char_indices().nth_back(before).map(|(at, _)| at),
    }
}

/// The end of the first match of `part` in `text`; `part` has no `*`. The outer `None` means an exhausted budget.
fn find(part: &str, text: &str, budget: &StepBudget) -> Option<Option<usize>> {
    if !part.contains('?') {
        // The search is Two-Way, which is linear in both lengths.
        let end = text.find(part).map(|at| at + part.len());
        budget.take(part.len() + end.unwrap_or(text.len()))?;
        return Some(end);
    }
    for (at, _) in text.char_indices() {
        // A character of `part` takes no more bytes than the one that it matches.
        if text.len() - at < part.len() {
            break;
        }
        if let Some(len) = begins(part, &text[at..], budget)? {
            return Some(Some(at + len));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(pattern: &str, text: &str) -> (bool, usize) {
        let budget = StepBudget::default();
        let matched = matches(pattern, text, &budget);
        assert!(!budget.is_exhausted());
        (matched, STEPS - budget.left.get())
    }

    /// Matches a pattern by trying everything.
    fn slow(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|at| slow(rest, &text[at..])),
            Some((wanted, rest)) => text
                .split_first()
                .is_some_and(|(c, text)| (*wanted == '?' || wanted == c) && slow(rest, text)),
        }
    }

    #[test]
    fn patterns_match_as_aws_says() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*/x*", "a/b/xyz", true),
            ("", "a", false),
            ("", "", true),
            ("**", "a", true),
            ("a*a", "a", false),
            ("*ä?", "xäö", true),
            ("*?", "", false),
        ] {
            assert_eq!(steps(pattern, text).0, expected, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_match_what_trying_everything_finds() {
        let mut seed = 7_u32;
        let mut random = |letters: &[char], max: u32| -> Vec<char> {
            let mut next = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                seed >> 16
            };
            let len = next() % (max + 1);
            (0..len).map(|_| letters[next() as usize % letters.len()]).collect()
        };
        let mut matched = 0;
        for _ in 0..20_000 {
            let (pattern, text) = (random(&['a', 'b', 'ö', '*', '?'], 7), random(&['a', 'b', 'ö'], 8));
            let (p, t): (String, String) = (pattern.iter().collect(), text.iter().collect());
            let expected = slow(&pattern, &text);
            matched += u32::from(expected);
            assert_eq!(steps(&p, &t).0, expected, "{p} {t}");
        }
        assert!(matched > 1000, "{matched}");
    }

    #[test]
    fn patterns_of_attackers_take_few_steps() {
        let text = "a".repeat(1024);
        // A matcher that backtracks takes 10^5 to 10^7 steps for these patterns.
        for pattern in [
            format!("*{}b", "a".repeat(512)),
            format!("*{}b*", "a".repeat(512)),
            format!("{}b", "a*".repeat(512)),
            format!("{}b*", "*a".repeat(1000)),
            format!("*{}*", "ab".repeat(10_000)),
        ] {
            let (matched, steps) = steps(&pattern, &text);
            assert!(!matched && steps <= pattern.len() + 2 * text.len(), "{steps} {}", &pattern[..20]);
        }
    }

    #[test]
    fn a_comparison_that_takes_too_long_is_given_up() {
        let budget = StepBudget::default();
        let (pattern, text) = (format!("*{}?b*", "a".repeat(4000)), "a".repeat(20_000));
        assert!(!matches(&pattern, &text, &budget));
        assert!(budget.is_exhausted() && budget.left.get() <= STEPS);
        // A later comparison with too few steps left is given up, too.
        assert!(!matches("aa*", &text, &StepBudget { left: Cell::new(1), exhausted: Cell::new(false) }));
    }
}
