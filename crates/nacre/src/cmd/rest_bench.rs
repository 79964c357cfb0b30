//! `rest-bench`: load on an S3 gateway with the options and the output of the program that was part of Ceph until release 9.
//!
//! It measures and prints like `rados bench` ([`super::obj_bencher`]). Each operation in flight has its own connection, so the
//! number of connections and the size of an object bound the memory.

use super::obj_bencher::{
    self, BackendCallback, BackendError, BenchBackend, BenchKind, BenchPlan, LAST_RUN_OBJECT, OBJECT_PREFIX,
    RunRecord, Settings, bench_failed,
};
use super::output::Format;
use super::rados::args::{number, size};
use super::rados::{RadosFailure, out};
use super::s3_client::{
    Connection, MAX_PARSED_BODY, Payload, S3Endpoint, S3Request, S3Response, Tls, environment, region,
};
use super::session;
use super::steady::SLICE_SECONDS;
use bytes::Bytes;
use http::{Method, StatusCode};
use nacre_types::errno::Errno;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

pub(super) const USAGE: &str = include_str!("rest_bench/usage.txt");

const DEFAULT_BUCKET: &str = "rest-bench-bucket";
/// Maximum number of connections.
const MAX_CONNECTIONS: u32 = 10_000;
/// Maximum size of an object in one PUT.
const MAX_SIZE: u64 = 5 << 30;
/// Keys on a page of a listing.
const PAGE: u32 = 1000;
/// Pause of an operation after a request to slow down.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it is retried in total.
const GRACE: Duration = Duration::from_secs(10);

/// The command line.
#[derive(Debug, PartialEq)]
struct Args {
    verb: String,
    seconds: u64,
    concurrent: u32,
    op_size: u64,
    max_objects: u64,
    show_time: bool,
    no_cleanup: bool,
    run_name: Option<String>,
    prefix: Option<String>,
    seed: Option<u64>,
    format: Format,
    host: String,
    bucket: String,
    access_key: String,
    secret: String,
    https: bool,
    vhost: bool,
    agent: String,
}

impl Args {
    /// Parses the arguments. `None` if help is requested.
    fn parse(
        args: &[String],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Args>, RadosFailure> {
        let mut parsed = Args {
            verb: String::new(),
            seconds: 60,
            concurrent: 16,
            op_size: 4 << 20,
            max_objects: 0,
            show_time: false,
            no_cleanup: false,
            run_name: None,
            prefix: None,
            seed: None,
            format: Format::Plain,
            host: String::new(),
            bucket: String::new(),
            access_key: environment("AWS_ACCESS_KEY_ID").unwrap_or_default(),
            secret: environment("AWS_SECRET_ACCESS_KEY").unwrap_or_default(),
            https: false,
            vhost: false,
            agent: "rest-bench".into(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) if arg.starts_with("--") => (flag, Some(value)),
                _ => (arg.as_str(), None),
            };
            // Underscores are equivalent to dashes, as in Ceph's other options.
            let flag = if flag.starts_with("--") { flag.replace('_', "-") } else { flag.to_owned() };
            let mut value = || match inline.or_else(|| args.next().map(String::as_str)) {
                Some(value) => Ok(value),
                None => Err(RadosFailure::invalid(format!("Option {flag} requires an argument."))),
            };
            match flag.as_str() {
                "-h" | "--help" => return Ok(None),
                "--show-time" => parsed.show_time = true,
                "--no-cleanup" => parsed.no_cleanup = true,
                "--agent" => parsed.agent = value()?.to_owned(),
                "--access-key" => parsed.access_key = value()?.to_owned(),
                "--secret" => parsed.secret = value()?.to_owned(),
                "--bucket" => parsed.bucket = value()?.to_owned(),
                "--api-host" => parsed.host = value()?.to_owned(),
                "--protocol" => {
                    parsed.https = match value()?.to_ascii_lowercase().as_str() {
                        "http" => false,
                        "https" => true,
                        _ => return Err(usage("bad protocol")),
                    }
                }
                "--uri-style" => {
                    parsed.vhost = match value()?.to_ascii_lowercase().as_str() {
                        "path" => false,
                        "vhost" => true,
                        _ => return Err(usage("bad uri style")),
                    }
                }
                "-t" | "--concurrent-ios" => parsed.concurrent = number("concurrent-ios", value()?)?,
                "--seconds" => parsed.seconds = number("seconds", value()?)?,
                "-b" | "--block-size" => parsed.op_size = size("block-size", value()?)?,
                "--max-objects" => parsed.max_objects = number("max-objects", value()?)?,
                "--run-name" => parsed.run_name = Some(value()?.to_owned()),
                "--prefix" => parsed.prefix = Some(value()?.to_owned()),
                "--seed" => parsed.seed = Some(number("seed", value()?)?),
                "-f" | "--format" => {
                    let name = value()?;
                    parsed.format = Format::from_name(name)
                        .ok_or_else(|| RadosFailure::invalid(format!("unrecognized format: {name}")))?;
                }
                verb @ ("write" | "seq" | "rand" | "cleanup") if parsed.verb.is_empty() => {
                    parsed.verb = verb.to_owned();
                }
                other => return Err(usage(&format!("rest-bench: unknown argument '{other}'"))),
            }
        }
        parsed.check().map(|()| Some(parsed))
    }

    fn check(&mut self) -> Result<(), RadosFailure> {
        if self.verb.is_empty() {
            return Err(RadosFailure::new(USAGE.trim_end()));
        }
        if self.host.is_empty() {
            return Err(usage("rest-bench: api host not provided."));
        }
        if self.access_key.is_empty() || self.secret.is_empty() {
            return Err(usage("rest-bench: access key or secret was not provided"));
        }
        if self.bucket.is_empty() {
            self.bucket = DEFAULT_BUCKET.to_owned();
        }
        let is_sound = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        if !is_sound(&self.bucket) {
            return Err(RadosFailure::invalid(format!("'{}' is not a valid bucket name", self.bucket)));
        }
        if self.run_name.as_deref() == Some("") {
            self.run_name = None;
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.concurrent) {
            return Err(RadosFailure::invalid(format!("-t must be from 1 to {MAX_CONNECTIONS}")));
        }
        if !(1..=MAX_SIZE).contains(&self.op_size) {
            return Err(RadosFailure::invalid(format!("-b must be from 1 to {MAX_SIZE} bytes")));
        }
        Ok(())
    }

    fn target(&self) -> Result<S3Endpoint, String> {
        let wrong = || format!("'{}' is not HOST or HOST:PORT", self.host);
        let authority: http::uri::Authority = self.host.parse().map_err(|_| wrong())?;
        if authority.as_str().contains('@') {
            return Err(wrong());
        }
        let port = authority.port_u16().unwrap_or(if self.https { 443 } else { 80 });
        let tls = match self.https {
            true => Some(Tls::new(authority.host()).map_err(|error| format!("{error:#}"))?),
            false => None,
        };
        Ok(S3Endpoint {
            host: if self.vhost { format!("{}.{authority}", self.bucket) } else { authority.to_string() },
            connect: format!("{}:{port}", authority.host()),
            region: region(),
            access_key: self.access_key.clone(),
            secret_key: self.secret.clone(),
            session_token: environment("AWS_SESSION_TOKEN"),
            agent: Some(self.agent.clone()),
            tls,
        })
    }
}

fn usage(text: &str) -> RadosFailure {
    RadosFailure::new(format!("{text}\n{}", USAGE.trim_end()))
}

/// One connection to the bucket.
#[derive(Clone)]
struct Way {
    runtime: Handle,
    connection: Arc<Mutex<Connection<'static>>>,
    /// Prefix of paths: `/BUCKET`, or nothing if the host names the bucket.
    root: Arc<str>,
}

impl Way {
    /// Sends a request, and repeats it as long as the server asks to retry.
    async fn ask(&self, ask: S3Request<'_>, payload: &Payload) -> Result<S3Response, BackendError> {
        let doing = |why: String| format!("{} {}: {why}", ask.method, ask.path);
        let began = Instant::now();
        loop {
            let answered = self.connection.lock().await.send(ask, payload).await;
            match answered {
                Ok(answer) if answer.status.is_success() => return Ok(answer),
                Ok(answer) if answer.status == StatusCode::SERVICE_UNAVAILABLE && began.elapsed() < GRACE => {
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(answer) => {
                    let errno = match answer.status {
                        StatusCode::NOT_FOUND => Errno::ENOENT,
                        StatusCode::FORBIDDEN => Errno::EACCES,
                        StatusCode::SERVICE_UNAVAILABLE => Errno::EBUSY,
                        _ => Errno::EIO,
                    };
                    return Err(BackendError { text: doing(answer.failure()), errno });
                }
                Err(error) => {
                    return Err(BackendError { text: doing(format!("{error:#}")), errno: Errno::EIO });
                }
            }
        }
    }

    async fn object(
        &self,
        method: Method,
        name: &str,
        payload: Payload,
        keep: usize,
    ) -> Result<S3Response, BackendError> {
        let parts: Vec<_> = name.split('/').map(|part| urlencoding::encode(part).into_owned()).collect();
        let path = format!("{}/{}", self.root, parts.join("/"));
        self.ask(S3Request { method: &method, path: &path, query: "", keep }, &payload).await
    }

    /// Starts a request on an object. Passes `done` the result of `outcome` for the answer.
    fn start<T: 'static>(
        &self,
        (method, name): (Method, &str),
        payload: Payload,
        keep: usize,
        outcome: impl FnOnce(S3Response) -> T + Send + 'static,
        done: BackendCallback<T>,
    ) {
        let (way, name) = (self.clone(), name.to_owned());
        self.runtime.spawn(async move {
            let answered = way.object(method, &name, payload, keep).await;
            done(answered.map(outcome));
        });
    }

    /// The objects after `after` with names that start with `prefix`, at most one page, and whether there are more.
    fn list(&self, prefix: &str, after: &str) -> Result<(Vec<String>, bool), BackendError> {
        let encoded = |text: &str| urlencoding::encode(text).into_owned();
        let (after, prefix) = (encoded(after), encoded(prefix));
        let query =
            format!("encoding-type=url&list-type=2&max-keys={PAGE}&prefix={prefix}&start-after={after}");
        let path = if self.root.is_empty() { "/" } else { &self.root };
        let ask = S3Request { method: &Method::GET, path, query: &query, keep: MAX_PARSED_BODY };
        let text = self.runtime.block_on(self.ask(ask, &Payload::empty()))?.text();
        Ok((keys(&text), text.contains("<IsTruncated>true")))
    }
}

/// The keys of a page of a listing.
fn keys(text: &str) -> Vec<String> {
    let parts = text.split("<Key>").skip(1).filter_map(|part| part.split_once("</Key>"));
    parts.filter_map(|(key, _)| urlencoding::decode(key).ok().map(std::borrow::Cow::into_owned)).collect()
}

impl BenchBackend for Way {
    fn write(&self, _: &BenchPlan, name: &str, _: u64, data: Bytes, done: BackendCallback<()>) {
        self.start((Method::PUT, name), Payload::new(data, false), 0, drop, done);
    }

    fn read(&self, name: &str, _: u64, len: u64, done: BackendCallback<Bytes>) {
        // One more byte reveals that the object is larger than expected.
        let keep = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(1);
        self.start((Method::GET, name), Payload::empty(), keep, |answer| answer.body, done);
    }

    fn remove(&self, name: &str, done: BackendCallback<bool>) {
        // S3 does not report whether it existed.
        self.start((Method::DELETE, name), Payload::empty(), 0, |_| true, done);
    }

    fn save(&self, name: &str, data: Vec<u8>) -> Result<(), BackendError> {
        let put = self.object(Method::PUT, name, Payload::new(data.into(), true), 0);
        self.runtime.block_on(put).map(drop)
    }

    fn load(&self, name: &str) -> Result<Option<Bytes>, BackendError> {
        match self.runtime.block_on(self.object(Method::GET, name, Payload::empty(), MAX_PARSED_BODY)) {
            Ok(answer) => Ok(Some(answer.body)),
            Err(BackendError { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(failed) => Err(failed),
        }
    }
}

/// Runs the program with its arguments.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let parsed = session::parse(args).map_err(RadosFailure::new);
    let outcome = parsed.and_then(|invocation| Args::parse(&invocation.rest, environment));
    let outcome = outcome.and_then(|args| match args {
        Some(args) => run(&args),
        None => out(USAGE),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(RadosFailure { text, code }) => {
            eprintln!("{text}");
            ExitCode::from(code)
        }
    }
}

fn run(args: &Args) -> Result<(), RadosFailure> {
    let failed = |why: String| RadosFailure::new(format!("{why}\nfailed initializing benchmark"));
    // It lives as long as the program.
    let target: &'static S3Endpoint = Box::leak(Box::new(args.target().map_err(failed)?));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("can't start threads: {error}")))?;
    let root: Arc<str> = if args.vhost { Arc::from("") } else { format!("/{}", args.bucket).into() };
    let ways: Vec<Way> = (0..args.concurrent)
        .map(|_| Way {
            runtime: runtime.handle().clone(),
            connection: Arc::new(Mutex::new(Connection::new(target))),
            root: root.clone(),
        })
        .collect();
    match args.verb.as_str() {
        "cleanup" => cleanup(args, &ways),
        verb => bench(args, &ways, verb),
    }
}

fn bench(args: &Args, ways: &[Way], verb: &str) -> Result<(), RadosFailure> {
    let kind = match verb {
        "write" => BenchKind::Write,
        "seq" => BenchKind::Sequential,
        _ => BenchKind::Random,
    };
    let run = if kind == BenchKind::Write {
        let path = if args.vhost { "/".to_owned() } else { ways[0].root.to_string() };
        let made =
            ways[0].runtime.block_on(async { ways[0].connection.lock().await.make_bucket(&path).await });
        made.map_err(|error| {
            RadosFailure::new(format!(
                "ERROR: failed to create bucket: {error:#}\nfailed initializing benchmark"
            ))
        })?;
        RunRecord { object_size: args.op_size, objects: 0, pid: std::process::id(), op_size: args.op_size }
    } else {
        let run = obj_bencher::last_run(&ways[0], args.run_name.as_deref())?;
        if run.op_size != run.object_size || run.op_size > MAX_SIZE {
            eprintln!("the objects of the last run were not written by rest-bench");
            return Err(bench_failed("benchmark", Errno::EINVAL));
        }
        run
    };
    let plan = BenchPlan {
        kind,
        prefix: run.prefix(),
        op_size: run.op_size,
        ops_per_object: 1,
        object_size: run.object_size,
        objects: run.objects,
        max_objects: args.max_objects,
        concurrent: 1,
        verify: true,
        hints: false,
        seed: args.seed,
    };
    let settings = Settings {
        run_name: args.run_name.as_deref(),
        seconds: args.seconds,
        warm_up: 0,
        slice: SLICE_SECONDS,
        format: args.format,
        show_time: args.show_time,
        no_cleanup: args.no_cleanup,
    };
    obj_bencher::run(ways, plan, run, &settings)
}

fn cleanup(args: &Args, ways: &[Way]) -> Result<(), RadosFailure> {
    let Some(prefix) = &args.prefix else {
        let removed = obj_bencher::clean_up_last_run(ways, args.run_name.as_deref())?;
        return obj_bencher::print_removed(removed, args.format);
    };
    if !prefix.starts_with(OBJECT_PREFIX) {
        eprintln!("Specified --prefix invalid, it must begin with \"{OBJECT_PREFIX}\"");
        return Err(bench_failed("cleanup", Errno::EINVAL));
    }
    let (mut removed, mut after) = (0, String::new());
    loop {
        let (names, more) =
            ways[0].list(prefix, &after).map_err(|failed| failed.print_and_fail("cleanup"))?;
        let last = names.last().cloned();
        removed +=
            obj_bencher::remove_all(ways, names, None).map_err(|failed| failed.print_and_fail("cleanup"))?;
        match last.filter(|_| more) {
            Some(last) => after = last,
            None => break,
        }
    }
    obj_bencher::remove_all(ways, [LAST_RUN_OBJECT.to_owned()], Some(1))
        .map_err(|failed| failed.print_and_fail("cleanup"))?;
    obj_bencher::print_removed(Some(removed), args.format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Args>, RadosFailure> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Args::parse(&words, |_| None)
    }

    #[test]
    fn the_old_programs_command_lines_are_taken() {
        let args = parse(
            "-t 32 -b 4194304 --seconds=10 --bucket b --access-key A --secret=S --api-host h:8080 \
             --protocol http --uri_style path --no-cleanup --run-name r --seed 7 write",
        );
        let args = args.unwrap().unwrap();
        assert_eq!(
            (args.verb.as_str(), args.concurrent, args.op_size, args.seconds),
            ("write", 32, 4 << 20, 10)
        );
        assert_eq!((args.host.as_str(), args.run_name.as_deref(), args.seed), ("h:8080", Some("r"), Some(7)));
        let target = args.target().unwrap();
        assert_eq!((target.host.as_str(), target.connect.as_str()), ("h:8080", "h:8080"));
        let args = parse("seq --api-host [::1] --access-key A --secret S --protocol HTTPS --uri-style vhost");
        let args = args.unwrap().unwrap();
        assert_eq!((args.bucket.as_str(), args.concurrent, args.seconds), ("rest-bench-bucket", 16, 60));
        let target = args.target().unwrap();
        assert_eq!((target.connect.as_str(), target.tls.is_some()), ("[::1]:443", true));
        assert_eq!(target.host, "rest-bench-bucket.[::1]");
        assert!(parse("--help").unwrap().is_none());
    }

    #[test]
    fn what_is_missing_or_wrong_is_told_in_the_old_programs_words() {
        let told = |text: &str| parse(text).unwrap_err().text.lines().next().unwrap().to_owned();
        assert_eq!(told("write"), "rest-bench: api host not provided.");
        assert_eq!(
            told("write --api-host h --secret s"),
            "rest-bench: access key or secret was not provided"
        );
        assert_eq!(told("write --protocol ftp"), "bad protocol");
        assert!(told("").starts_with("usage: rest-bench [options] <write|seq|rand>"));
        assert_eq!(told("write write"), "rest-bench: unknown argument 'write'");
        let rest = "--api-host h --access-key A --secret s";
        assert_eq!(told(&format!("write -t 0 {rest}")), "-t must be from 1 to 10000");
        assert_eq!(told(&format!("write -b 6G {rest}")), "-b must be from 1 to 5368709120 bytes");
        let args = parse("write --api-host a@b --access-key A --secret s").unwrap().unwrap();
        assert!(args.target().is_err_and(|text| text.contains("'a@b' is not HOST")));
    }

    #[test]
    fn keys_are_read_from_a_listing() {
        let text = "<ListBucketResult><Contents><Key>benchmark_data_h_1_object0</Key></Contents>\
                    <Contents><Key>a%26b/c</Key></Contents></ListBucketResult>";
        assert_eq!(keys(text), ["benchmark_data_h_1_object0", "a&b/c"]);
        assert!(keys("<ListBucketResult/>").is_empty());
    }
}
