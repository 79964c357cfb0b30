//! An object with a very large omap, written in batches and listed in pages.
//!
//! Each batch has its own history, like an object ([`batch_object`]) with one token: setting the batch writes it, removing the range
//! clears it, and each page of a listing is a read of every batch that it covers. A batch is set and removed as a whole, so a
//! page shows either everything that it covers of a batch, with one token, or nothing.

use super::{Asked, Client, ClientOutput, Token};
use crate::bounds::Bound;
use crate::history::{Action, Asker, GuaranteeViolation, History, Value, batch_object};
use crate::schedule::Nanos;
use bytes::Bytes;
use nacre_engine::Error;
use nacre_exec::Limits;
use nacre_objecter::Answer;
use nacre_types::op::{OmapValsReply, Op};
use nacre_types::{ObjectId, PoolId, encoding};

/// Entries of a batch.
pub const ENTRIES: u32 = 5_000;
/// Bytes of a key: five digits for the batch, five for the entry.
pub const KEY_BYTES: usize = 10;

/// The object that holds the batches.
pub fn object(pool: PoolId) -> ObjectId {
    ObjectId::new(pool, "", "", "m")
}

/// The position of an entry: the batch and the entry's number in it.
type Place = (u32, u32);

fn key((batch, number): Place) -> Bytes {
    format!("{batch:05}{number:05}").into()
}

fn place(key: &[u8]) -> Option<Place> {
    let text = std::str::from_utf8(key).ok().filter(|text| text.len() == KEY_BYTES)?;
    Some((text[..5].parse().ok()?, text[5..].parse().ok()?))
}

fn value(token: u64, (_, number): Place) -> Bytes {
    [token.to_le_bytes(), u64::from(number).to_le_bytes()].concat().into()
}

fn token(value: &[u8], (_, number): Place) -> Option<u64> {
    let (token, own) = value.split_first_chunk::<8>()?;
    (*own == u64::from(number).to_le_bytes()).then_some(u64::from_le_bytes(*token))
}

/// A running listing.
#[derive(Clone, Debug)]
pub(super) struct BatchListing {
    object: ObjectId,
    /// The maximum number of batches.
    batches: u32,
    /// The client that requested the current page, and when.
    asker: Asker,
    call: Nanos,
    /// The first place after the pages so far.
    from: Place,
    start_after: Bytes,
    /// Requested at the end of the run, which waits for it.
    pub(super) patient: bool,
}

/// The part of one batch that a page shows.
#[derive(Debug, PartialEq, Eq)]
struct Sight {
    batch: u32,
    token: Option<u64>,
}

/// The parts of batches that a page shows which starts at a position, and the start of the next page; `None` if there is
/// none. For each batch, everything that the page covers must be present with one token, or nothing.
fn sights(
    from: Place,
    batches: u32,
    page: &OmapValsReply,
) -> Result<(Vec<Sight>, Option<Place>), &'static str> {
    let mut entries = page.entries.iter().map(|(key, value)| {
        let place = place(key).ok_or("a key of nobody")?;
        Ok::<_, &str>((place, token(value, place).ok_or("a value of another key")?))
    });
    let mut next_entry = entries.next().transpose()?;
    let last = page.entries.last().and_then(|(key, _)| place(key));
    let end = if page.more { last.ok_or("a page without entries before others")? } else { (batches, 0) };
    let (mut sights, mut at) = (Vec::new(), from);
    while at.0 < batches && at <= end {
        let (batch, first) = at;
        let until = if page.more && batch == end.0 { end.1 + 1 } else { ENTRIES };
        let (mut token, mut count) = (None, 0);
        while let Some(((_, number), own)) = next_entry.filter(|((other, _), _)| *other == batch) {
            if number != first + count || token.is_some_and(|token| token != own) {
                return Err("a batch that is torn");
            }
            (token, count) = (Some(own), count + 1);
            next_entry = entries.next().transpose()?;
        }
        if count > 0 && count != until - first {
            return Err("a batch that is torn");
        }
        sights.push(Sight { batch, token });
        at = if until == ENTRIES { (batch + 1, 0) } else { (batch, until) };
    }
    if next_entry.is_some() {
        return Err("an entry out of place");
    }
    Ok((sights, page.more.then_some(at)))
}

impl Client {
    /// Sets a batch, or removes it.
    pub fn write_batch(
        &mut self,
        now: Nanos,
        history: &mut History,
        (pool, batch): (PoolId, u32),
        action: Action,
        out: &mut Vec<ClientOutput>,
    ) {
        let places = (0..ENTRIES).map(|number| (batch, number));
        let op = match action.token() {
            Some(token) => Op::OmapSet { entries: places.map(|at| (key(at), value(token, at))).collect() },
            None => Op::OmapRmRange { first: key((batch, 0)), last: key((batch + 1, 0)) },
        };
        self.last_number += 1;
        let number = self.last_number;
        let entry = history.begin(now, self.asker(), number, &batch_object(pool, batch), action.clone());
        let object = object(pool);
        self.asked.insert(number, Asked { object: object.clone(), action, entry, patient: false });
        self.submit(now, (object, vec![op]), Token::Asked(number));
        self.step(now, history, out, |_, _| {});
    }

    /// Starts a listing of all batches, unless one is running.
    pub fn list_batches(
        &mut self,
        now: Nanos,
        history: &mut History,
        (pool, batches): (PoolId, u32),
        patient: bool,
        out: &mut Vec<ClientOutput>,
    ) {
        if let Some(listing) = &mut self.batches {
            listing.patient |= patient;
            return;
        }
        self.batches = Some(BatchListing {
            object: object(pool),
            batches,
            asker: self.asker(),
            call: now,
            from: (0, 0),
            start_after: Bytes::new(),
            patient,
        });
        self.ask_page(now);
        self.step(now, history, out, |_, _| {});
    }

    fn ask_page(&mut self, now: Nanos) {
        let asker = self.asker();
        let Some(listing) = &mut self.batches else { return };
        (listing.asker, listing.call) = (asker, now);
        let start_after = listing.start_after.clone();
        let op = Op::OmapGetVals { start_after, filter_prefix: Bytes::new(), max: u64::MAX };
        let object = listing.object.clone();
        self.submit(now, (object, vec![op]), Token::Batches);
    }

    /// Handles a page of the listing, or the error instead of one.
    pub(super) fn on_batches(
        &mut self,
        now: Nanos,
        history: &mut History,
        result: Result<Answer, Error>,
        out: &mut Vec<ClientOutput>,
    ) -> Result<(), GuaranteeViolation> {
        let Some(mut listing) = self.batches.take() else { return Ok(()) };
        // The listing ends with its pool, with the session, or when it is refused.
        let Some(answer) = result.ok().filter(|answer| answer.reply.result >= 0) else { return Ok(()) };
        let malformed = |detail: String| GuaranteeViolation { rule: "malformed reply", detail };
        let output = answer.reply.ops.first().map(|part| part.output.clone()).unwrap_or_default();
        let page: OmapValsReply = encoding::decode(&output).map_err(|error| malformed(error.to_string()))?;
        let (sights, next) = sights(listing.from, listing.batches, &page)
            .map_err(|what| malformed(format!("{what}, from {:?} on: {page:?}", listing.from)))?;
        for Sight { batch, token } in sights {
            let value = token.map(|token| Value { tokens: vec![token], ..Value::default() });
            let object = batch_object(listing.object.pool(), batch);
            history.record_batch_read(listing.asker, &object, (listing.call, now), value);
        }
        if page.more && page.entries.len() as u64 == Limits::default().max_omap_entries_per_request {
            out.push(ClientOutput::Reached(Bound::OmapPage));
        }
        if let (Some(from), Some((last, _))) = (next, page.entries.last()) {
            (listing.from, listing.start_after) = (from, last.clone());
            self.batches = Some(listing);
            self.ask_page(now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of some batches, each batch with its token.
    fn entries(batches: &[(u32, u64)]) -> Vec<(Bytes, Bytes)> {
        let all = batches.iter().flat_map(|(batch, token)| {
            (0..ENTRIES).map(move |n| (key((*batch, n)), value(*token, (*batch, n))))
        });
        all.collect()
    }

    #[test]
    fn pages_show_whole_batches() {
        let all = entries(&[(1, 7), (3, 8)]);
        let (first, rest) = all.split_at(7_000);
        let page = OmapValsReply { entries: first.to_vec(), more: true };
        let seen = |batch, token| Sight { batch, token };
        let (shown, next) = sights((0, 0), 5, &page).unwrap();
        assert_eq!(shown, [seen(0, None), seen(1, Some(7)), seen(2, None), seen(3, Some(8))]);
        assert_eq!(next, Some((3, 2_000)));
        let page = OmapValsReply { entries: rest.to_vec(), more: false };
        let (shown, next) = sights((3, 2_000), 5, &page).unwrap();
        assert_eq!((shown, next), (vec![seen(3, Some(8)), seen(4, None)], None));
    }

    #[test]
    fn half_a_batch_is_noticed() {
        let shown = |entries: Vec<(Bytes, Bytes)>| {
            sights((0, 0), 5, &OmapValsReply { entries, more: false }).map(|_| ())
        };
        let whole = entries(&[(1, 7)]);
        assert_eq!(shown(whole.clone()), Ok(()));
        assert!(shown(whole[1..].to_vec()).is_err());
        assert!(shown(whole[..4_000].to_vec()).is_err());
        let mut other = whole.clone();
        other[9].1 = value(8, (1, 9));
        assert!(shown(other).is_err());
        let mut moved = whole;
        moved[9].1 = value(7, (1, 8));
        assert!(shown(moved).is_err());
    }
}
