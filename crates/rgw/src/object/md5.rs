//! MD5 of data on its way into objects, computed for many objects at a time.
//!
//! S3's ETags are MD5 digests. Each step of MD5 depends on the step before it: a core digests about 0.6 GB/s of one stream, which
//! was measured as a third of the cost of a PUT of 4 MiB. With vector instructions, a core digests as many streams in the same
//! time as a vector has lanes. A dedicated thread ([`serve`]) digests pieces of different streams together. The pieces of one
//! stream are digested in order; while some of them are waiting or being digested, the next one is received and the last one is
//! written. Short data is digested at once, by the caller.

mod lanes;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use lanes::{BLOCK, INITIAL_STATE, LANES, Md5State, compress_lanes, compress_one};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Shorter pieces are digested by the caller: sending them to the thread is not worth it.
const SHORT: usize = 64 << 10;
/// The most blocks of each piece that are digested before waiting pieces are admitted.
const TURN: usize = 1024;
/// The most pieces of a stream that are outstanding at a time.
const WAITING: usize = 4;
/// Bytes of the length at the end of the padding.
const LENGTH: usize = 8;

/// The MD5 of a stream.
pub(crate) struct Md5 {
    /// The state after the pieces that are done.
    state: Arc<Mutex<Md5State>>,
    /// Data that does not fill a block yet.
    rest: [u8; BLOCK],
    rest_len: usize,
    len: u64,
    /// Outstanding pieces; each receiver completes when its piece is digested.
    under_way: VecDeque<oneshot::Receiver<()>>,
}

/// A piece of whole blocks to be digested.
struct Job {
    /// The state of its stream.
    shared: Arc<Mutex<Md5State>>,
    /// The state while the piece is being digested.
    state: Md5State,
    data: Bytes,
    /// Bytes that are digested.
    done: usize,
    answer: oneshot::Sender<()>,
}

impl Md5 {
    /// The MD5 of an empty stream.
    pub(crate) fn new() -> Md5 {
        let state = Arc::new(Mutex::new(INITIAL_STATE));
        Md5 { state, rest: [0; BLOCK], rest_len: 0, len: 0, under_way: VecDeque::new() }
    }

    /// Adds a piece. A long piece is digested while others are received and written. Waits while too many pieces are outstanding.
    pub(crate) async fn update(&mut self, mut piece: Bytes) {
        self.wait_outstanding(WAITING - 1).await;
        self.len += piece.len() as u64;
        if self.rest_len > 0 {
            let missing = (BLOCK - self.rest_len).min(piece.len());
            self.rest[self.rest_len..][..missing].copy_from_slice(&piece.split_to(missing));
            self.rest_len += missing;
            if self.rest_len < BLOCK {
                return;
            }
            self.wait_outstanding(0).await;
            compress_one(&mut self.state.lock(), &self.rest);
            self.rest_len = 0;
        }
        let rest = piece.split_off(piece.len() / BLOCK * BLOCK);
        self.rest[..rest.len()].copy_from_slice(&rest);
        self.rest_len = rest.len();
        if piece.len() < SHORT {
            self.wait_outstanding(0).await;
            compress_one(&mut self.state.lock(), &piece);
            return;
        }
        let (answer, under_way) = oneshot::channel();
        let job = Job { shared: Arc::clone(&self.state), state: INITIAL_STATE, data: piece, done: 0, answer };
        match thread().send(job) {
            Ok(()) => self.under_way.push_back(under_way),
            // The thread could not be started, so no piece is outstanding, and this one is digested here.
            Err(refused) => compress_one(&mut self.state.lock(), &refused.0.data),
        }
    }

    /// Waits until at most `most` pieces are outstanding. Outstanding pieces are held in memory.
    pub(crate) async fn wait_outstanding(&mut self, most: usize) {
        while self.under_way.len() > most {
            if let Some(first) = self.under_way.front_mut() {
                first.await.expect("invariant: the thread answers every job");
            }
            self.under_way.pop_front();
        }
    }

    /// Returns the digest of all pieces.
    pub(crate) async fn finish(mut self) -> [u8; 16] {
        self.wait_outstanding(0).await;
        // Padding: a 1 bit, then zeros up to the end of a block, whose last bytes are the number of bits (RFC 1321, 3.1 and 3.2).
        let mut end = [0; 2 * BLOCK];
        end[..self.rest_len].copy_from_slice(&self.rest[..self.rest_len]);
        end[self.rest_len] = 0x80;
        let blocks = (self.rest_len + 1 + LENGTH).div_ceil(BLOCK);
        let bits = self.len.wrapping_mul(8).to_le_bytes();
        end[blocks * BLOCK - LENGTH..blocks * BLOCK].copy_from_slice(&bits);
        let mut state = *self.state.lock();
        compress_one(&mut state, &end[..blocks * BLOCK]);
        let mut digest = [0; 16];
        for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

/// Returns the sender to the thread, which lives as long as the process.
fn thread() -> &'static Sender<Job> {
    static THREAD: OnceLock<Sender<Job>> = OnceLock::new();
    THREAD.get_or_init(|| {
        // The channel needs no bound: a stream waits before it adds a piece while too many of its pieces are outstanding.
        let (sender, receiver) = crossbeam_channel::unbounded();
        let made = std::thread::Builder::new().name("rgw-md5".into()).spawn(move || serve(&receiver));
        if let Err(error) = made {
            tracing::warn!(%error, "rgw: no thread for digests; they are made by those who need them");
        }
        sender
    })
}

/// How long a batch waits for pieces of other streams if recent batches had several streams.
const COMPANY: Duration = Duration::from_millis(1);
/// The most streams that a batch waits for: as many as the vectors of most processors have lanes.
const COMPANIONS: usize = 8;

/// How much the priority of this thread is lowered, in the units of nice(2). If other threads want the processor, pieces
/// accumulate meanwhile, and digesting them together costs little more than digesting one. If not, each piece is digested at
/// once.
const NICE: i32 = 10;

/// Digests pieces, as many at a time as there are lanes.
fn serve(jobs: &Receiver<Job>) {
    // This changes the priority of this thread only.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "rgw: digests are as urgent as all else");
    }
    let mut active: Vec<Job> = Vec::with_capacity(LANES);
    let mut waiting: VecDeque<Job> = VecDeque::new();
    // How many streams recent batches had.
    let mut expected = 0_usize;
    loop {
        if active.is_empty() && waiting.is_empty() {
            match jobs.recv() {
                Ok(job) => waiting.push_back(job),
                Err(_) => return,
            }
        }
        waiting.extend(jobs.try_iter());
        let begins = active.is_empty();
        admit(&mut active, &mut waiting);
        if begins {
            let until = Instant::now() + COMPANY;
            while active.len() < expected.min(COMPANIONS)
                && let Ok(job) = jobs.recv_deadline(until)
            {
                waiting.push_back(job);
                admit(&mut active, &mut waiting);
            }
            expected = active.len().max(expected.saturating_sub(1));
        }
        let left = active.iter().map(|job| (job.data.len() - job.done) / BLOCK).min().unwrap_or(0);
        let blocks = left.min(TURN);
        match &mut active[..] {
            [job] => compress_one(&mut job.state, &job.data[job.done..][..blocks * BLOCK]),
            // The narrowest vectors that fit: on most processors wider ones take longer.
            some if some.len() <= 4 => turn::<4>(some, blocks),
            some if some.len() <= 8 => turn::<8>(some, blocks),
            all => turn::<LANES>(all, blocks),
        }
        for job in &mut active {
            job.done += blocks * BLOCK;
        }
        for job in active.extract_if(.., |job| job.done == job.data.len()) {
            *job.shared.lock() = job.state;
            // The stream may have been dropped.
            _ = job.answer.send(());
        }
    }
}

/// Fills the free lanes with the pieces that have waited longest. A stream has at most one piece in the lanes.
fn admit(active: &mut Vec<Job>, waiting: &mut VecDeque<Job>) {
    let mut at = 0;
    while active.len() < LANES && at < waiting.len() {
        let is_next = active.iter().all(|job| !Arc::ptr_eq(&job.shared, &waiting[at].shared));
        match is_next.then(|| waiting.remove(at)).flatten() {
            Some(mut job) => {
                job.state = *job.shared.lock();
                active.push(job);
            }
            None => at += 1,
        }
    }
}

/// Digests `blocks` blocks of each of at most `N` pieces.
fn turn<const N: usize>(active: &mut [Job], blocks: usize) {
    let mut states = [[0; N]; 4];
    for (lane, job) in active.iter().enumerate() {
        for (word, value) in states.iter_mut().zip(job.state) {
            word[lane] = value;
        }
    }
    let data: [&[u8]; N] = std::array::from_fn(|lane| {
        // Lanes without a piece repeat the last one; their results are not used.
        let job = &active[lane.min(active.len() - 1)];
        &job.data[job.done..]
    });
    compress_lanes(&mut states, &data, blocks);
    for (lane, job) in active.iter_mut().enumerate() {
        job.state = states.map(|word| word[lane]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::crypto::{Checksum as _, Md5 as Reference};

    /// Data that does not repeat.
    fn data(len: usize, seed: u64) -> Bytes {
        let mut state = seed | 1;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(len).collect::<Vec<u8>>().into()
    }

    async fn digest(pieces: Vec<Bytes>) -> [u8; 16] {
        let mut md5 = Md5::new();
        for piece in pieces {
            md5.update(piece).await;
        }
        md5.finish().await
    }

    #[tokio::test]
    async fn digests_are_those_of_rfc_1321() {
        assert_eq!(digest(vec![]).await, 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e_u128.to_be_bytes());
        let alphabet = Bytes::from_static(b"abcdefghijklmnopqrstuvwxyz");
        assert_eq!(
            digest(vec![alphabet]).await,
            0xc3fc_d3d7_6192_e400_7dfb_496c_ca67_e13b_u128.to_be_bytes()
        );
        for len in (0..200).chain([SHORT - 1, SHORT, SHORT + 63, (1 << 20) + 1]) {
            let all = data(len, len as u64);
            assert_eq!(digest(vec![all.clone()]).await, Reference::checksum(&all), "{len}");
            for at in [1, 63, 64, 65, len / 2] {
                let at = at.min(len);
                let pieces = vec![all.slice(..at), all.slice(at..)];
                assert_eq!(digest(pieces).await, Reference::checksum(&all), "{len} at {at}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn streams_beside_one_another_do_not_mix() {
        let all = (0..50_u64).map(|seed| {
            tokio::spawn(async move {
                let len = SHORT + (seed as usize * 7919) % (3 * SHORT);
                let pieces: Vec<Bytes> =
                    (0..4).map(|piece| data(len + piece, seed * 4 + piece as u64)).collect();
                let whole: Vec<u8> = pieces.iter().flatten().copied().collect();
                assert_eq!(digest(pieces).await, Reference::checksum(&whole), "{seed}");
            })
        });
        for done in all.collect::<Vec<_>>() {
            done.await.unwrap();
        }
    }

    fn each_alone<const N: usize>() {
        let pieces: Vec<Bytes> = (0..N as u64).map(|lane| data(TURN * BLOCK, lane)).collect();
        let mut states = INITIAL_STATE.map(|word| [word; N]);
        let slices: [&[u8]; N] = std::array::from_fn(|lane| &pieces[lane][..]);
        compress_lanes(&mut states, &slices, TURN);
        for (lane, piece) in pieces.iter().enumerate() {
            let mut alone = INITIAL_STATE;
            compress_one(&mut alone, piece);
            assert_eq!(states.map(|word| word[lane]), alone, "{lane} of {N}");
        }
    }

    #[test]
    fn lanes_come_to_what_each_comes_to_alone() {
        each_alone::<4>();
        each_alone::<8>();
        each_alone::<LANES>();
    }
}
