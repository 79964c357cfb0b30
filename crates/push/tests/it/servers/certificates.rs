//! Certificates by openssl.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Makes `ca.crt` in `folder`, and by it the certificate `server.crt` for localhost with the key `server.key`.
pub(crate) fn make(folder: &Path) {
    let openssl = |args: &[&str]| {
        let out = Command::new("openssl").args(args).current_dir(folder).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    openssl(
        &[&new[..], &["-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt"]]
            .concat(),
    );
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    openssl(&[&new[..], &["-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr"]].concat());
    let signing = ["x509", "-req", "-days", "2", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
    openssl(&[&signing[..], &["-extfile", "names", "-in", "server.csr", "-out", "server.crt"]].concat());
}
