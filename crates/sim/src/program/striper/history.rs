//! The operations on striped objects, and the conditions for each read.
//!
//! Data consists of cells of eight bytes, each of which names the operation that wrote it. An operation on several pieces is
//! visible in parts while it runs, so objects are not linearizable as a whole. For each cell:
//!
//! - The cell that is read was written there by an operation on this object. No other operation that overwrites or cuts off
//!   the cell was started after that one was answered, and answered before the read was started.
//! - If nothing is read, no write that was answered before had written the cell, unless the cell may have been cut off since
//!   that write was started. An absent object may have been removed since each write that was answered.
//! - An append has one position, and no other append overlaps it unless something was cut off.
//! - Operations of a process that died are not visible after the answer to a removal that was started after its death.

use crate::history::GuaranteeViolation;
use crate::schedule::Nanos;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a cell.
pub(super) const CELL: u64 = 8;
/// Bits of a cell for its index in its operation.
const INDEX_BITS: u32 = 20;

/// An operation's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(u64);

impl Number {
    /// The content of a cell of the operation, which is not 0.
    pub(super) fn cell(self, index: u64) -> u64 {
        (self.0 + 1) << INDEX_BITS | index
    }
}

/// A change, sizes and positions in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Writes data at a position.
    Write(u64, u64),
    /// Truncates the object to nothing, then writes.
    WriteFull(u64),
    /// Appends data.
    Append(u64),
    /// Changes the size.
    Truncate(u64),
    /// Removes the object.
    Remove,
}

/// The effect of an operation that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The operation took effect.
    Done,
    /// It had no effect.
    Nothing,
    /// It may take effect at any time.
    Unknown,
}

/// An operation.
#[derive(Clone, Debug)]
struct Entry {
    place: usize,
    object: u64,
    kind: Kind,
    begin: Nanos,
    /// When it was answered, and its outcome.
    end: Option<(Nanos, Outcome)>,
    /// When its process died before the answer.
    died: Option<Nanos>,
    /// The position at which an append was seen.
    seen_at: Option<u64>,
}

impl Entry {
    /// When it was answered with success.
    fn done(&self) -> Option<Nanos> {
        self.end.filter(|(_, outcome)| *outcome == Outcome::Done).map(|(at, _)| at)
    }

    fn may_have_effect(&self) -> bool {
        self.end.is_none_or(|(_, outcome)| outcome != Outcome::Nothing)
    }

    /// Whether it may take effect after `since`.
    fn may_follow(&self, since: Nanos) -> bool {
        self.may_have_effect() && self.done().is_none_or(|end| end > since)
    }

    fn len(&self) -> u64 {
        match self.kind {
            Kind::Write(_, len) | Kind::WriteFull(len) | Kind::Append(len) => len,
            Kind::Truncate(_) | Kind::Remove => 0,
        }
    }

    /// The cells that it writes, if they are known.
    fn cells(&self) -> Option<Range<u64>> {
        let from = match self.kind {
            Kind::Write(at, _) => at,
            Kind::WriteFull(_) => 0,
            Kind::Append(_) => self.seen_at?,
            Kind::Truncate(_) | Kind::Remove => return None,
        };
        Some(from..from + self.len())
    }

    /// Whether it cuts a cell off.
    fn cuts(&self, cell: u64) -> bool {
        match self.kind {
            Kind::Truncate(len) => cell >= len,
            Kind::Remove | Kind::WriteFull(_) => true,
            Kind::Write(..) | Kind::Append(_) => false,
        }
    }

    fn overwrites(&self, cell: u64) -> bool {
        self.cuts(cell) || self.cells().is_some_and(|cells| cells.contains(&cell))
    }
}

/// A read that was answered.
struct Read<'a> {
    begin: Nanos,
    end: Nanos,
    object: u64,
    /// The requested cells.
    range: Range<u64>,
    /// The data; `None` if the object did not exist.
    data: Option<&'a [u8]>,
}

impl Read<'_> {
    /// The content of a cell; 0 if there is none.
    fn cell(&self, cell: u64) -> u64 {
        let at = ((cell - self.range.start) * CELL) as usize;
        let bytes = self.data.and_then(|data| data.get(at..)).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The cells that are not 0, with their contents.
    fn cells(&self) -> impl Iterator<Item = (u64, u64)> {
        let chunks = self.data.unwrap_or_default().chunks_exact(CELL as usize);
        let words = chunks.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
        (self.range.start..).zip(words).filter(|(_, word)| *word != 0)
    }

    fn is_whole(&self) -> bool {
        self.range.start == 0 && self.range.end >= 1 << INDEX_BITS
    }
}

/// All operations, and the first broken guarantee.
#[derive(Default)]
pub(super) struct History {
    entries: Vec<Entry>,
    /// Operations by object.
    of: BTreeMap<u64, Vec<usize>>,
    /// The time of the last event.
    now: Nanos,
    reads: u64,
    /// Processes that died.
    deaths: u64,
    /// Tasks are to end.
    pub(super) finishing: bool,
    /// The first broken guarantee.
    pub(super) broken: Option<GuaranteeViolation>,
}

impl History {
    /// Reports a broken guarantee.
    pub(super) fn broken(&mut self, rule: &'static str, detail: String) {
        self.broken.get_or_insert(GuaranteeViolation { rule, detail });
    }

    /// The number of operations, as a text.
    pub(super) fn describe(&self) -> String {
        let done = self.entries.iter().filter(|entry| entry.done().is_some()).count();
        let waiting = self.entries.iter().filter(|entry| entry.end.is_none() && entry.died.is_none()).count();
        format!(
            "striper: {} changes, {done} done, {waiting} under way, {} reads, {} processes died",
            self.entries.len(),
            self.reads,
            self.deaths
        )
    }

    /// Records the start of an operation.
    pub(super) fn begin(&mut self, now: Nanos, place: usize, object: u64, kind: Kind) -> Number {
        self.now = now;
        let at = self.entries.len();
        self.entries.push(Entry { place, object, kind, begin: now, end: None, died: None, seen_at: None });
        self.of.entry(object).or_default().push(at);
        Number(at as u64)
    }

    /// Records the answer to an operation.
    pub(super) fn end(&mut self, now: Nanos, number: Number, outcome: Outcome) {
        self.now = now;
        self.entries[number.0 as usize].end = Some((now, outcome));
    }

    /// The process at this place has died.
    pub(super) fn process_died(&mut self, place: usize) {
        self.deaths += 1;
        let now = self.now;
        for entry in self.entries.iter_mut().filter(|entry| entry.place == place && entry.end.is_none()) {
            entry.died.get_or_insert(now);
        }
    }

    /// Checks a read of `len` cells at a position.
    pub(super) fn read(
        &mut self,
        (begin, end): (Nanos, Nanos),
        object: u64,
        (from, len): (u64, u64),
        data: Option<&[u8]>,
    ) {
        self.now = end;
        self.reads += 1;
        let read = Read { begin, end, object, range: from..from + len, data };
        if let Err((rule, detail)) = self.judge(&read) {
            let detail = format!("striped{object}, asked at {begin} ns, answered at {end} ns: {detail}");
            self.broken(rule, detail);
        }
    }

    /// Checks the pieces that are left after all objects were removed.
    pub(super) fn check_leftover_pieces(&mut self, pieces: &[String]) {
        let failed = |entry: &Entry| entry.end.is_none_or(|(_, outcome)| outcome == Outcome::Unknown);
        // A client that died or gave up may leave a piece that is not found until it is written again.
        if !pieces.is_empty() && self.deaths == 0 && !self.entries.iter().any(failed) {
            self.broken("pieces of a striped object are left", format!("{pieces:?}"));
        }
    }

    fn entries_of(&self, object: u64) -> impl Iterator<Item = (usize, &Entry)> {
        self.of.get(&object).into_iter().flatten().map(|at| (*at, &self.entries[*at]))
    }

    fn judge(&mut self, read: &Read<'_>) -> Result<(), (&'static str, String)> {
        let unaligned = read.data.is_some_and(|data| !data.len().is_multiple_of(CELL as usize));
        if unaligned {
            return Err(("a striped object has a size that nobody gave it", String::new()));
        }
        // Consecutive cells belong to one operation.
        let mut over = (usize::MAX, Vec::new());
        for (cell, word) in read.cells() {
            let (number, index) = ((word >> INDEX_BITS).wrapping_sub(1) as usize, word % (1 << INDEX_BITS));
            self.place_cell(read, cell, number, index)?;
            if over.0 != number {
                over = (number, self.certainly_over(read, number));
            }
            if let Some(entry) =
                over.1.iter().map(|at| &self.entries[*at]).find(|entry| entry.overwrites(cell))
            {
                let writer = &self.entries[number];
                return Err((
                    "striped data comes back",
                    format!("cell {cell} of {writer:?} after {entry:?}"),
                ));
            }
        }
        self.judge_missing(read)
    }

    /// Checks that the operation named by a cell's content wrote there.
    fn place_cell(
        &mut self,
        read: &Read<'_>,
        cell: u64,
        number: usize,
        index: u64,
    ) -> Result<(), (&'static str, String)> {
        let Some(entry) = self.entries.get_mut(number).filter(|entry| entry.object == read.object) else {
            return Err(("a striped object has another one's data", format!("cell {cell}: {number}")));
        };
        if matches!(entry.kind, Kind::Append(_)) && entry.seen_at.is_none() {
            entry.seen_at = cell.checked_sub(index);
            let entry = self.entries[number].clone();
            self.judge_append(number, &entry)?;
        }
        let entry = &self.entries[number];
        let here = entry.cells().filter(|cells| cells.start + index == cell && cells.contains(&cell));
        if here.is_none() {
            return Err(("striped data is in another place", format!("cell {cell}, {index} of {entry:?}")));
        }
        if !entry.may_have_effect() {
            return Err(("a refused operation of the striper took effect", format!("{entry:?}")));
        }
        Ok(())
    }

    /// The position of an append is known: checks that no other append has it.
    fn judge_append(&self, number: usize, append: &Entry) -> Result<(), (&'static str, String)> {
        let Some(cells) = append.cells() else { return Ok(()) };
        let is_other_append = |at: usize, entry: &Entry| {
            at != number && matches!(entry.kind, Kind::Append(_)) && entry.seen_at.is_some()
        };
        for (_, other) in self.entries_of(append.object).filter(|(at, entry)| is_other_append(*at, entry)) {
            let Some(others) = other.cells() else { continue };
            let apart = others.end <= cells.start || cells.end <= others.start;
            let (first, last) = (other.begin.min(append.begin), other.begin.max(append.begin));
            let last = [append.done(), other.done()]
                .into_iter()
                .map(|end| end.unwrap_or(Nanos::MAX))
                .fold(last, Nanos::max);
            let cut = self.entries_of(append.object).any(|(_, entry)| {
                let cuts = !matches!(entry.kind, Kind::Write(..) | Kind::Append(_));
                cuts && entry.may_follow(first) && entry.begin < last
            });
            if !apart && !cut {
                return Err(("two appends overlap", format!("{append:?} and {other:?}")));
            }
        }
        Ok(())
    }

    /// Operations that were started after an operation was over, and answered before a read was started: where they overwrite
    /// the operation, the read must not see it.
    fn certainly_over(&self, read: &Read<'_>, number: usize) -> Vec<usize> {
        let writer = &self.entries[number];
        let is_over = |entry: &Entry| {
            let is_removal = entry.kind == Kind::Remove;
            let since = writer.done().or(writer.died.filter(|_| is_removal && writer.end.is_none()));
            since.is_some_and(|since| entry.begin > since) && entry.done().is_some_and(|end| end < read.begin)
        };
        self.entries_of(read.object)
            .filter(|(at, entry)| *at != number && is_over(entry))
            .map(|(at, _)| at)
            .collect()
    }

    /// Checks that missing data was cut off.
    fn judge_missing(&self, read: &Read<'_>) -> Result<(), (&'static str, String)> {
        let answered = |entry: &Entry| entry.done().is_some_and(|end| end < read.begin);
        for (_, writer) in
            self.entries_of(read.object).filter(|(_, entry)| answered(entry) && entry.len() > 0)
        {
            let later = |entry: &Entry| entry.begin < read.end && entry.may_follow(writer.begin);
            // From this cell on, data may have been cut off since.
            let cuts = self
                .entries_of(read.object)
                .filter(|(_, entry)| !std::ptr::eq(*entry, writer) && later(entry));
            let cut = cuts.filter_map(|(_, entry)| match entry.kind {
                Kind::Remove => Some(0),
                Kind::WriteFull(_) if read.data.is_some() => Some(0),
                Kind::Truncate(len) if read.data.is_some() => Some(len),
                _ => None,
            });
            let cut = cut.min().unwrap_or(u64::MAX);
            let lost = match writer.cells() {
                Some(cells) => {
                    let (from, to) =
                        (cells.start.max(read.range.start), cells.end.min(read.range.end).min(cut));
                    (from..to).find(|cell| read.cell(*cell) == 0)
                }
                // An append that was never seen: it exists somewhere, unless it was cut off or overwritten.
                None => {
                    let written_over = |entry: &Entry| {
                        !matches!(entry.kind, Kind::Append(_)) && !std::ptr::eq(entry, writer) && later(entry)
                    };
                    let hidden = self.entries_of(read.object).any(|(_, entry)| written_over(entry));
                    (read.is_whole() && !hidden).then_some(0)
                }
            };
            if let Some(cell) = lost {
                let size = read.data.map(|data| data.len() as u64 / CELL);
                let detail = format!("cell {cell} of {writer:?}; {size:?} cells were read");
                return Err(("an acknowledged write to a striped object is lost", detail));
            }
        }
        Ok(())
    }
}
