//! The endpoint of a topic: an HTTP server, optionally with TLS, that records every event that arrives.
//!
//! A stopped sink behaves like a server that was killed: its port refuses connections, and its connections are closed in the
//! middle of requests. Recorded events are kept.

use super::history::Event;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How the sink answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// With 200.
    Takes,
    /// With 503.
    Refuses,
    /// Not at all, until the mode changes.
    Hangs,
}

struct State {
    mode: watch::Sender<Mode>,
    received: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    /// In order of arrival, whatever was answered.
    events: Vec<Event>,
    /// Requests that are not events.
    unreadable: Vec<String>,
}

pub(super) struct Sink {
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    runtime: Handle,
    state: Arc<State>,
    server: Option<AbortHandle>,
}

impl Sink {
    /// A sink that is not started. With the files of a certificate and its key, it uses TLS.
    pub(super) fn new(runtime: Handle, port: u16, certificate: Option<(&Path, &Path)>) -> Sink {
        let state = State { mode: watch::Sender::new(Mode::Takes), received: Mutex::default() };
        let tls = certificate.map(|(certificate, key)| acceptor(certificate, key));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Sink { address, tls, runtime, state: Arc::new(state), server: None }
    }

    pub(super) fn start(&mut self) {
        assert!(self.server.is_none());
        let listener = self.runtime.block_on(TcpListener::bind(self.address)).unwrap();
        let serving = serve(listener, self.tls.clone(), Arc::clone(&self.state));
        self.server = Some(self.runtime.spawn(serving).abort_handle());
    }

    pub(super) fn stop(&mut self) {
        let server = self.server.take().unwrap();
        server.abort();
        // The port is free when the task has ended.
        while !server.is_finished() {
            std::thread::yield_now();
        }
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// How many events have arrived, redeliveries included.
    pub(super) fn count(&self) -> usize {
        self.received().events.len()
    }

    /// All events that have arrived, in order.
    pub(super) fn events(&self) -> Vec<Event> {
        let received = self.received();
        assert_eq!(received.unreadable, Vec::<String>::new(), "requests that are no events");
        received.events.clone()
    }

    fn received(&self) -> std::sync::MutexGuard<'_, Received> {
        self.state.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn acceptor(certificate: &Path, key: &Path) -> TlsAcceptor {
    let certificates = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(certificates, key).unwrap();
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    // Connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((socket, _)) = accepted else { continue };
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        connections.spawn(async move {
            match tls {
                None => answer(socket, state).await,
                Some(tls) => {
                    if let Ok(socket) = tls.accept(socket).await {
                        answer(socket, state).await;
                    }
                }
            }
        });
    }
}

async fn answer(socket: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let service = service_fn(|request| receive(request, &state));
    // Errors of connections don't matter to the sink.
    _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
}

async fn receive(request: http::Request<Incoming>, state: &State) -> hyper::Result<Response<Full<Bytes>>> {
    let body = request.into_body().collect().await?.to_bytes();
    let records = serde_json::from_slice::<Value>(&body).ok().and_then(|body| {
        let records = body.get("Records")?.as_array()?;
        records.iter().map(Event::of_record).collect::<Option<Vec<_>>>()
    });
    {
        let mut received = state.received.lock().unwrap_or_else(PoisonError::into_inner);
        match records {
            Some(records) => received.events.extend(records),
            None => received.unreadable.push(String::from_utf8_lossy(&body).into_owned()),
        }
    }
    let mut mode = state.mode.subscribe();
    let hung = *mode.borrow() == Mode::Hangs;
    if hung {
        // The sender of modes lives as long as the sink.
        _ = mode.wait_for(|mode| *mode != Mode::Hangs).await;
    }
    let takes = !hung && *mode.borrow() == Mode::Takes;
    let status = if takes { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    Ok(response)
}
