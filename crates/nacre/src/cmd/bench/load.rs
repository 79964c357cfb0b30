//! The load: connections with one request in flight each, and the figures that they collect.

use crate::cmd::latency::LatencyHistogram;
use crate::cmd::s3_client::{Connection, MAX_PARSED_BODY, Payload, S3Endpoint, S3Request};
use crate::cmd::steady::WarmUp;
use anyhow::{Context, Result, bail};
use http::{Method, StatusCode};
use rand::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Keys on a page of a listing.
const PAGE: u64 = 1000;
/// Pause after a request to slow down or a failed connection.
const PAUSE: Duration = Duration::from_millis(20);
/// How long requests are retried after the end of a mode, if the server asks to slow down.
const GRACE: Duration = Duration::from_secs(10);

/// The operation that a mode measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Put,
    List,
    Get,
    Del,
}

impl Mode {
    /// The mode with this name.
    pub(super) fn from_name(name: &str) -> Option<Mode> {
        Some(match name.to_ascii_lowercase().as_str() {
            "put" | "p" => Mode::Put,
            "list" | "l" => Mode::List,
            "get" | "g" => Mode::Get,
            "del" | "delete" | "d" => Mode::Del,
            _ => return None,
        })
    }

    /// The printed name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Put => "PUT",
            Mode::List => "LIST",
            Mode::Get => "GET",
            Mode::Del => "DEL",
        }
    }
}

/// The parameters of a run.
pub(super) struct S3BenchPlan {
    pub(super) target: S3Endpoint,
    pub(super) bucket: String,
    /// Prefix of the keys.
    pub(super) prefix: String,
    pub(super) payload: Payload,
    pub(super) threads: usize,
    pub(super) duration: Duration,
    /// The maximum warm-up. Zero for none; [`Mode::Del`] has none.
    pub(super) warm_up: Duration,
    /// The length of the slices whose rates the warm-up compares.
    pub(super) slice: Duration,
    /// Maximum number of objects to write.
    pub(super) max_objects: u64,
}

/// The figures of a period.
#[derive(Debug, Default)]
pub(super) struct OpStats {
    pub(super) ops: u64,
    pub(super) bytes: u64,
    /// Requests that the server asked to retry.
    pub(super) slowdowns: u64,
    pub(super) errors: u64,
    pub(super) min: Option<Duration>,
    pub(super) max: Duration,
    pub(super) sum: Duration,
    pub(super) times: LatencyHistogram,
}

impl OpStats {
    fn add(&mut self, took: Duration, bytes: u64) {
        self.ops += 1;
        self.bytes += bytes;
        self.min = Some(self.min.map_or(took, |min| min.min(took)));
        self.max = self.max.max(took);
        self.sum += took;
        self.times.add(took);
    }
}

/// The state that all connections of a mode share.
struct Run {
    plan: Arc<S3BenchPlan>,
    mode: Mode,
    /// Number of existing objects. Not used by [`Mode::Put`].
    objects: u64,
    end: Mutex<Instant>,
    /// The next object's number.
    next: AtomicU64,
    /// Figures of the current interval, and in total.
    figures: Mutex<(OpStats, OpStats)>,
    first_error: Mutex<Option<String>>,
}

/// The outcome of a mode.
pub(super) struct ModeResult {
    pub(super) total: OpStats,
    pub(super) took: Duration,
    /// How long the warm-up was, and whether the rate was steady at its end.
    pub(super) warm_up: Option<(Duration, bool)>,
    /// Number of assigned object numbers.
    pub(super) numbers: u64,
    pub(super) first_error: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Figures are consistent whenever the lock is free.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl S3BenchPlan {
    fn path_of(&self, number: u64) -> String {
        let key = format!("{}{number:012}", self.prefix);
        // Slashes are not encoded, as in signatures.
        let parts: Vec<_> = key.split('/').map(|part| urlencoding::encode(part).into_owned()).collect();
        format!("/{}/{}", self.bucket, parts.join("/"))
    }

    fn listing(&self, after: &str) -> String {
        let prefix = urlencoding::encode(&self.prefix);
        let after = urlencoding::encode(after);
        format!("list-type=2&max-keys={PAGE}&prefix={prefix}&start-after={after}")
    }

    fn bucket_path(&self) -> String {
        format!("/{}", self.bucket)
    }

    /// Creates the bucket. Returns whether it did not exist.
    pub(super) async fn make_bucket(&self) -> Result<bool> {
        Connection::new(&self.target).make_bucket(&self.bucket_path()).await
    }

    /// Removes the bucket if it is empty.
    pub(super) async fn remove_bucket(&self) -> Result<()> {
        let path = self.bucket_path();
        let ask = S3Request { method: &Method::DELETE, path: &path, query: "", keep: 0 };
        let removed = Connection::new(&self.target).send(ask, &Payload::empty()).await?;
        if !removed.status.is_success() && !removed.text().contains("BucketNotEmpty") {
            bail!("can't remove bucket {}: {}", self.bucket, removed.failure());
        }
        Ok(())
    }

    /// Number of objects that an earlier run left: one more than the highest number that is listed.
    pub(super) async fn object_count(&self) -> Result<u64> {
        let path = self.bucket_path();
        let mut connection = Connection::new(&self.target);
        let mut last = String::new();
        loop {
            let query = self.listing(&last);
            let ask = S3Request { method: &Method::GET, path: &path, query: &query, keep: MAX_PARSED_BODY };
            let page = connection.send(ask, &Payload::empty()).await?;
            if !page.status.is_success() {
                bail!("can't list bucket {}: {}", self.bucket, page.failure());
            }
            let text = page.text();
            let key = text.rsplit_once("</Key>").and_then(|(before, _)| before.rsplit_once("<Key>"));
            match key {
                Some((_, key)) => {
                    // The prefix may contain XML escapes; the digits after it don't.
                    let digits = key.get(key.len().saturating_sub(12)..).unwrap_or_default();
                    digits.parse::<u64>().with_context(|| format!("'{key}' is not a benchmark object"))?;
                    last = format!("{}{digits}", self.prefix);
                }
                None => break,
            }
            if !text.contains("<IsTruncated>true") {
                break;
            }
        }
        Ok(last
            .strip_prefix(&self.prefix)
            .and_then(|digits| digits.parse().ok())
            .map_or(0, |last: u64| last + 1))
    }
}

/// Runs one mode until its time is over or no work is left. `each` receives the figures of every second, and whether they belong
/// to the warm-up.
pub(super) async fn run(
    plan: &Arc<S3BenchPlan>,
    mode: Mode,
    objects: u64,
    mut each: impl FnMut(OpStats, Duration, bool),
) -> ModeResult {
    let began = Instant::now();
    let limit = if mode == Mode::Del { Duration::ZERO } else { plan.warm_up };
    let mut warming = (limit > Duration::ZERO).then(|| WarmUp::new(limit));
    let run = Arc::new(Run {
        plan: Arc::clone(plan),
        mode,
        objects,
        end: Mutex::new(began + limit + plan.duration),
        next: AtomicU64::new(0),
        figures: Mutex::default(),
        first_error: Mutex::default(),
    });
    let workers = (0..plan.threads).map(|_| tokio::spawn(work(Arc::clone(&run))));
    let mut all = std::pin::pin!(futures::future::join_all(workers));
    let (mut shown, mut measured, mut warm_up) = (began, began, None);
    let (mut slice, mut slice_ops) = (began, 0);
    loop {
        let next = tokio::time::Instant::from_std(shown + Duration::from_secs(1));
        let ended = tokio::time::timeout_at(next, &mut all).await.is_ok();
        let interval = std::mem::take(&mut lock(&run.figures).0);
        let now = Instant::now();
        // A last interval without operations is not shown.
        if !ended || interval.ops > 0 || shown == began {
            slice_ops += interval.ops;
            each(interval, now - shown, warming.is_some());
        }
        shown = now;
        if ended {
            break;
        }
        if let Some(state) = &mut warming
            && now - slice >= plan.slice
        {
            let rate = slice_ops as f64 / (now - slice).as_secs_f64();
            (slice, slice_ops) = (now, 0);
            if state.add(rate, now - began) {
                warm_up = Some((now - began, state.is_steady()));
                (measured, warming) = (now, None);
                *lock(&run.end) = now + plan.duration;
                *lock(&run.figures) = <(OpStats, OpStats)>::default();
            }
        }
    }
    let total = std::mem::take(&mut lock(&run.figures).1);
    let given = run.next.load(Ordering::Relaxed);
    let numbers = match mode {
        Mode::Put => given.min(plan.max_objects),
        Mode::List | Mode::Get | Mode::Del => given.min(objects),
    };
    let first_error = lock(&run.first_error).take();
    ModeResult { total, took: measured.elapsed(), warm_up, numbers, first_error }
}

async fn work(run: Arc<Run>) {
    let plan = &*run.plan;
    let mut connection = Connection::new(&plan.target);
    let empty = Payload::empty();
    let bucket = plan.bucket_path();
    while Instant::now() < run.end() {
        let number = match run.mode {
            Mode::Put | Mode::Del => {
                let most = if run.mode == Mode::Put { plan.max_objects } else { run.objects };
                let number = run.next.fetch_add(1, Ordering::Relaxed);
                if number >= most {
                    break;
                }
                number
            }
            Mode::Get | Mode::List => rand::rng().random_range(0..run.objects.max(1)),
        };
        let path = plan.path_of(number);
        let query;
        let ask = |method, path, query| S3Request { method, path, query, keep: 0 };
        let (ask, payload) = match run.mode {
            Mode::Put => (ask(&Method::PUT, &path, ""), &plan.payload),
            Mode::Get => (ask(&Method::GET, &path, ""), &empty),
            Mode::Del => (ask(&Method::DELETE, &path, ""), &empty),
            Mode::List => {
                query = plan.listing(&format!("{}{number:012}", plan.prefix));
                (ask(&Method::GET, bucket.as_str(), query.as_str()), &empty)
            }
        };
        // An operation on an assigned object is retried until it succeeds.
        loop {
            let began = Instant::now();
            let answered = connection.send(ask, payload).await;
            let took = began.elapsed();
            match answered {
                Ok(answer) if answer.status.is_success() => {
                    let bytes = if run.mode == Mode::Put { payload.data.len() as u64 } else { answer.len };
                    let mut figures = lock(&run.figures);
                    figures.0.add(took, bytes);
                    figures.1.add(took, bytes);
                    break;
                }
                Ok(answer) if answer.status == StatusCode::SERVICE_UNAVAILABLE => {
                    let mut figures = lock(&run.figures);
                    figures.0.slowdowns += 1;
                    figures.1.slowdowns += 1;
                }
                Ok(answer) => {
                    run.failed(answer.failure());
                    break;
                }
                Err(error) => {
                    run.failed(format!("{error:#}"));
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
            if Instant::now() >= run.end() + GRACE {
                run.failed(format!("the server asked to slow down for {} s after the end", GRACE.as_secs()));
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Run {
    fn end(&self) -> Instant {
        *lock(&self.end)
    }

    fn failed(&self, why: String) {
        let mut figures = lock(&self.figures);
        figures.0.errors += 1;
        figures.1.errors += 1;
        lock(&self.first_error).get_or_insert(why);
    }
}
