//! Measures messages per second and CPU time per message of the messenger over loopback. Server and client have one
//! current-thread runtime each. The client keeps `DEPTH` requests of `BYTES` in flight; the server answers each with a small
//! message.
//!
//! `cargo run -p nacre-runtime --example msgr_bench -- [SECONDS] [BYTES] [DEPTH] [lossy|lossless] [crc|secure]`

use bytes::Bytes;
use nacre_common::auth::{
    Caps, Credential, RotatingKeyring, RotatingSecrets, SessionKey, TicketBody, Verifier,
};
use nacre_common::config::ConfigBuilder;
use nacre_runtime::msgr::{Conn, ConnectTarget, Dispatcher, Frame, Messenger, Policy, ResetReason};
use nacre_runtime::signal::ShutdownSignal;
use nacre_types::ids::{EntityName, OsdId};
use nacre_types::msg::Message;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Serialize, Deserialize)]
struct Request {
    number: u64,
    #[serde(with = "nacre_types::payload")]
    data: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Reply {
    number: u64,
}

impl Message for Request {
    const KIND: u16 = 60_001;
    const NAME: &'static str = "Request";
}

impl Message for Reply {
    const KIND: u16 = 60_002;
    const NAME: &'static str = "Reply";
}

struct Server;

impl Dispatcher for Server {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        match frame.decode::<Request>() {
            Ok(request) => {
                if let Err(error) = conn.send(&Reply { number: request.number }) {
                    eprintln!("reply: {error}");
                }
            }
            Err(error) => eprintln!("request: {error}"),
        }
    }
    fn on_reset(&self, _conn: &Conn, _reset: ResetReason) {}
}

struct Client {
    data: Bytes,
    done: AtomicU64,
}

impl Dispatcher for Client {
    fn on_message(&self, conn: &Conn, frame: Frame) {
        let Ok(reply) = frame.decode::<Reply>() else { return };
        self.done.fetch_add(1, Ordering::Relaxed);
        // Refused when the messenger is closing, which ends the run.
        let _ = conn.send(&Request { number: reply.number + 1, data: self.data.clone() });
    }
    fn on_reset(&self, _conn: &Conn, reset: ResetReason) {
        eprintln!("reset: {reset:?}");
    }
}

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// A thread with a current-thread runtime. Returns the CPU time that it used.
fn lane(stop: &ShutdownSignal) -> (tokio::runtime::Handle, std::thread::JoinHandle<Duration>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = runtime.handle().clone();
    let stop = stop.clone();
    let thread = std::thread::spawn(move || {
        runtime.block_on(stop.wait());
        thread_cpu()
    });
    (handle, thread)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (seconds, bytes, depth) = (number(0, 3), number(1, 4096), number(2, 16));
    let policy = if args.get(3).is_some_and(|p| p == "lossless") { Policy::Lossless } else { Policy::Lossy };
    let mode = args.get(4).map_or("crc", String::as_str);
    let stop = ShutdownSignal::new();
    let (server_lane, server_thread) = lane(&stop);
    let (client_lane, client_thread) = lane(&stop);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let keys = RotatingSecrets::generate(now, 3600)?;
    let known = RotatingKeyring::new(10);
    known.update(keys.keys().to_vec());
    let name = EntityName::client("bench");
    let ticket = keys.seal(TicketBody {
        entity: name.clone(),
        client: None,
        caps: Caps::new(),
        issued_unix: now,
        expires_unix: now + 3600,
        session_key: SessionKey::generate()?,
    })?;
    let config =
        |entity| ConfigBuilder::new(entity).set("ms_service_mode", mode).set("ms_client_mode", mode).build();
    let osd = Messenger::builder(&config(EntityName::osd(OsdId(0)))?)
        .lane(server_lane, Arc::new(Server))
        .verifier(Verifier::new().with_tickets(Arc::new(known)))
        .build()?;
    let addr = osd.bind(([127, 0, 0, 1], 0).into())?;
    let client = Arc::new(Client { data: vec![7; bytes as usize].into(), done: AtomicU64::new(0) });
    let user = Messenger::builder(&config(name)?).lane(client_lane, client.clone()).build()?;
    let main = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let started = main.block_on(async {
        let conn = user.connect(ConnectTarget {
            addr,
            entity: None,
            policy,
            lane: 0,
            credentials: Arc::new(Credential::Ticket(ticket)),
        })?;
        conn.ready().await?;
        let started = Instant::now();
        for at in 0..depth {
            conn.send(&Request { number: at << 32, data: client.data.clone() })?;
        }
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok::<_, nacre_common::Error>(started)
    })?;
    let (done, took) = (client.done.load(Ordering::Relaxed), started.elapsed());
    main.block_on(async {
        user.shutdown(Duration::from_secs(1)).await;
        osd.shutdown(Duration::from_secs(1)).await;
    });
    stop.request();
    let server = server_thread.join().expect("the server's thread");
    let client = client_thread.join().expect("the client's thread");
    let per = |cpu: Duration| cpu.as_secs_f64() * 1e6 / done as f64;
    println!(
        "{bytes} bytes, depth {depth}, {policy:?}, {mode}: {:.0} round trips/s, CPU per round trip (2 messages): \
         server {:.2} us, client {:.2} us",
        done as f64 / took.as_secs_f64(),
        per(server),
        per(client),
    );
    Ok(())
}
