//! An HTTP server that keeps what it is sent.

use super::certificates;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ServerConfig;

/// A request that arrived whole.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What the sink answers.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) delay: Duration,
}

type Decide = Box<dyn Fn(&Received) -> Answer + Send>;

struct Shared {
    received: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    decide: Mutex<Decide>,
}

/// A sink that runs on a thread of its own.
pub(crate) struct Sink {
    shared: Arc<Shared>,
    port: u16,
    folder: Option<tempfile::TempDir>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Answer {
        Answer { status, body: Bytes::from_static(b"done"), headers: Vec::new(), delay: Duration::ZERO }
    }
}

impl Received {
    /// The value of a header that is text.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Sink {
    /// Starts a sink without TLS.
    pub(crate) fn start() -> Sink {
        Sink::start_on(0, None)
    }

    /// Starts a sink on a port, or any if it is 0.
    pub(crate) fn start_at(port: u16) -> Sink {
        Sink::start_on(port, None)
    }

    /// Starts a sink with TLS and a certificate for localhost.
    pub(crate) fn start_tls() -> Sink {
        let folder = tempfile::Builder::new().prefix("nacre-sink-").tempdir().unwrap();
        certificates::make(folder.path());
        Sink::start_on(0, Some(folder))
    }

    fn start_on(port: u16, folder: Option<tempfile::TempDir>) -> Sink {
        let decide: Decide = Box::new(|_| Answer::status(200));
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            connections: AtomicUsize::new(0),
            decide: Mutex::new(decide),
        });
        let tls = folder.as_ref().map(|folder| {
            let certificates = CertificateDer::pem_file_iter(folder.path().join("server.crt")).unwrap();
            let key = PrivateKeyDer::from_pem_file(folder.path().join("server.key")).unwrap();
            let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(certificates.map(Result::unwrap).collect(), key)
                .unwrap();
            TlsAcceptor::from(Arc::new(config))
        });
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel();
        let serving = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, tls, serving) => {}
                    _ = stopped => {}
                }
            });
        });
        Sink { shared, port, folder, stop: Some(stop), thread: Some(thread) }
    }

    /// Decides how requests are answered from now on.
    pub(crate) fn answer(&self, decide: impl Fn(&Received) -> Answer + Send + 'static) {
        *self.shared.decide.lock().unwrap() = Box::new(decide);
    }

    /// The requests so far, in the order of their ends.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `http://…` or `https://…` without a path.
    pub(crate) fn url(&self) -> String {
        match self.folder {
            Some(_) => format!("https://localhost:{}", self.port),
            None => format!("http://127.0.0.1:{}", self.port),
        }
    }

    /// The certificate that the sink's is verified against.
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.as_ref().expect("a sink with TLS").path().join("ca.crt")
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

async fn serve(listener: std::net::TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let (tls, shared) = (tls.clone(), shared.clone());
        tokio::spawn(async move {
            match tls {
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve_connection(stream, shared).await;
                    }
                }
                None => serve_connection(stream, shared).await,
            }
        });
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, shared.clone()));
    let served =
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
    // A client may go at any time.
    _ = served.await;
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(Response::new(Full::default()));
    };
    let target = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let received = Received { method: head.method, target, headers: head.headers, body: body.to_bytes() };
    let answer = (shared.decide.lock().unwrap())(&received);
    tokio::time::sleep(answer.delay).await;
    shared.received.lock().unwrap().push(received);
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(answer.body)).unwrap())
}
