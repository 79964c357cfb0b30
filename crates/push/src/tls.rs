//! TLS for HTTP and AMQP endpoints, and CA files.

use crate::{Context, unavailable};
use nacre_notify::push::PushFailure;
use nacre_topics::endpoint::HostPort;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// The largest CA file, in bytes: about five times the size of the system's complete list.
const MAX_CA_BYTES: u64 = 1 << 20;

/// The trusted CA certificates.
pub(crate) type RootCerts = RootCertStore;

/// The parameters for TLS with a server.
#[derive(Clone)]
pub(crate) struct TlsParams {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

impl TlsParams {
    /// Prepares TLS with `server`, whose certificate is verified with the file `ca_location`, with the system's
    /// certificates, or not at all.
    pub(crate) fn new(
        context: &Context,
        server: &HostPort,
        verify: bool,
        ca_location: Option<&str>,
    ) -> Result<TlsParams, PushFailure> {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unavailable(format!("TLS: {error}")))?;
        let verifier: Arc<dyn ServerCertVerifier> = if verify {
            let roots = match ca_location {
                Some(path) => Arc::new(roots_of(path, &read_ca(context, path)?)?),
                None => context.system_roots.get_or_init(|| Arc::new(system_roots())).clone(),
            };
            WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(|error| {
                unavailable(format!("no certificates to verify the endpoint's against: {error}"))
            })?
        } else {
            Arc::new(AcceptAnyCert(provider))
        };
        let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let name = ServerName::try_from(server.host.clone()).map_err(|_| {
            unavailable(format!("the host name {} is not one that TLS can verify", server.host))
        })?;
        Ok(TlsParams { connector: TlsConnector::from(Arc::new(config)), name })
    }
}

/// The content of a CA file, if the policy allows the location that its path resolves to.
pub(crate) fn read_ca(context: &Context, path: &str) -> Result<Vec<u8>, PushFailure> {
    let failed = |error: std::io::Error| unavailable(format!("ca-location {path}: {error}"));
    let resolved = fs::canonicalize(path).map_err(failed)?;
    let policy = context.policy();
    // The path of the folder may itself contain a symbolic link.
    let folder = policy.ca_folder.as_ref().and_then(|folder| fs::canonicalize(folder).ok());
    let policy = nacre_topics::endpoint::EndpointPolicy { ca_folder: folder, ..(*policy).clone() };
    policy.check_ca_location(&resolved).map_err(|error| unavailable(error.to_string()))?;
    let mut file = fs::File::open(&resolved).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(unavailable(format!("ca-location {path}: not a file")));
    }
    let mut contents = Vec::new();
    file.by_ref().take(MAX_CA_BYTES + 1).read_to_end(&mut contents).map_err(failed)?;
    if contents.len() as u64 > MAX_CA_BYTES {
        return Err(unavailable(format!("ca-location {path}: larger than {MAX_CA_BYTES} bytes")));
    }
    roots_of(path, &contents)?;
    Ok(contents)
}

fn roots_of(path: &str, contents: &[u8]) -> Result<RootCerts, PushFailure> {
    let mut roots = RootCerts::empty();
    for certificate in CertificateDer::pem_slice_iter(contents) {
        let certificate = certificate
            .map_err(|error| unavailable(format!("ca-location {path}: not in PEM format: {error}")))?;
        roots.add(certificate).map_err(|error| unavailable(format!("ca-location {path}: {error}")))?;
    }
    if roots.is_empty() {
        let name = Path::new(path).display();
        return Err(unavailable(format!("ca-location {name}: no certificate in it")));
    }
    Ok(roots)
}

fn system_roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::debug!(%error, "a certificate of the system can't be read");
    }
    let mut roots = RootCerts::empty();
    roots.add_parsable_certificates(found.certs);
    roots
}

/// Accepts any certificate. The handshake still proves that the server has the certificate's key.
#[derive(Debug)]
struct AcceptAnyCert(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCert {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
