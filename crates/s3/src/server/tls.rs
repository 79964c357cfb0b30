//! TLS on the gateway's ports. A certificate and its key are read from files, and read again when the files change.
//!
//! An invalid certificate never replaces a valid one: new connections use the old one, and the log reports the error.
//! Existing connections keep the certificate that they began with.

use nacre_rgw::error::{Error, Result};
use parking_lot::{Mutex, RwLock};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use tokio_rustls::rustls::sign::CertifiedKey;

/// A certificate with its key, from PEM files.
#[derive(Debug)]
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    current: Arc<Current>,
    /// The stamps of the files when they were last read, successfully or not.
    read: Mutex<Option<Stamp>>,
    config: Arc<ServerConfig>,
}

/// The certificate for new connections.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

/// Identifies a state of a file: device, inode, length and modification time.
type FileStamp = (u64, u64, u64, i64, i64);
type Stamp = (FileStamp, FileStamp);

fn stamp_of(path: &Path) -> Option<FileStamp> {
    let known = std::fs::metadata(path).ok()?;
    Some((known.dev(), known.ino(), known.len(), known.mtime(), known.mtime_nsec()))
}

impl Certificate {
    /// Reads a certificate and its key. The certificates of its issuers follow it in the file, and the key may be in the
    /// same file.
    pub fn read(certificate: &Path, key: Option<&Path>) -> Result<Arc<Certificate>> {
        let key = key.unwrap_or(certificate);
        let provider = Arc::new(ring::default_provider());
        let stamp = stamp_of(certificate).zip(stamp_of(key));
        let current = Arc::new(Current(RwLock::new(Arc::new(load(certificate, key, &provider)?))));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Invalid(format!("TLS can't be used: {error}")))?;
        let resolver: Arc<dyn ResolvesServerCert> = current.clone();
        let mut config = config.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(Certificate {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current,
            read: Mutex::new(stamp),
            config: Arc::new(config),
        }))
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Reads the files again for new connections. If they can't be used, the certificate is unchanged.
    pub fn reload(&self) {
        let mut read = self.read.lock();
        self.load_again(&mut read);
    }

    fn load_again(&self, read: &mut Option<Stamp>) {
        // The stamps are taken before reading, so that files that change during it are read once more.
        *read = stamp_of(&self.certificate).zip(stamp_of(&self.key));
        let certificate = self.certificate.display();
        match load(&self.certificate, &self.key, self.config.crypto_provider()) {
            Ok(key) => {
                *self.current.0.write() = Arc::new(key);
                tracing::info!(%certificate, "rgw: the certificate was read again");
            }
            Err(error) => {
                tracing::error!(%error, "rgw: the new certificate can't be used, the old one stays");
            }
        }
    }

    fn reload_if_changed(&self) {
        let mut read = self.read.lock();
        if *read != stamp_of(&self.certificate).zip(stamp_of(&self.key)) {
            self.load_again(&mut read);
        }
    }
}

fn load(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| {
        Error::Invalid(format!("can't use {} for TLS: {error}", path.display()))
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| failed(certificate, &error))?;
    if chain.is_empty() {
        return Err(failed(certificate, &"there is no certificate in it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| failed(key, &error))
}

/// Checks every `period` whether the files have changed, as long as the certificate is in use.
pub(super) async fn reload_periodically(certificate: Weak<Certificate>, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        let Some(certificate) = certificate.upgrade() else { return };
        // Reading files blocks. A panic in the task has been reported already.
        _ = tokio::task::spawn_blocking(move || certificate.reload_if_changed()).await;
    }
}
