//! The access log, in the format of S3's server access logs
//! (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/LogFormat.html>). A separate thread writes it, so that a slow or
//! full disk does not delay requests. Lines that do not fit into its queue are dropped and counted.

use super::signed::decoded;
use super::track::RequestRecord;
use crate::metrics::Metrics;
use http::{Method, header};
use nacre_rgw::error::{Error, Result};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;
use time::OffsetDateTime;

/// The most lines that wait to be written.
const WAITING: usize = 16_384;
/// Within this time lines reach the file, and a file that was moved away is created again.
const FLUSH: Duration = Duration::from_millis(500);
/// The most characters of a quoted field.
const MAX_FIELD: usize = 2048;

/// An open access log.
#[derive(Debug)]
pub(super) struct AccessLog {
    lines: SyncSender<String>,
    metrics: Arc<Metrics>,
}

impl AccessLog {
    /// Opens the file for appending. A new file is readable by its owner only.
    pub(super) fn open(path: &Path, metrics: Arc<Metrics>) -> Result<AccessLog> {
        let failed =
            |error| Error::Invalid(format!("can't write the access log {}: {error}", path.display()));
        let file = open(path).map_err(failed)?;
        let (lines, waiting) = mpsc::sync_channel(WAITING);
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("rgw_access_log".into())
            .spawn(move || write(&path, file, &waiting))
            .map_err(failed)?;
        Ok(AccessLog { lines, metrics })
    }

    /// Logs a request.
    pub(super) fn add(&self, record: &RequestRecord) {
        if self.lines.try_send(line(record)).is_err() && self.metrics.access_log_line_lost() == 1 {
            tracing::warn!("rgw: the access log can't keep up; requests are missing in it");
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn write(path: &PathBuf, mut file: File, lines: &mpsc::Receiver<String>) {
    let mut failed = false;
    loop {
        let first = lines.recv_timeout(FLUSH);
        if first == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        // logrotate moves files away.
        let is_there = match (std::fs::metadata(path), file.metadata()) {
            (Ok(there), Ok(open)) => (there.dev(), there.ino()) == (open.dev(), open.ino()),
            _ => false,
        };
        if !is_there && let Ok(new) = open(path) {
            file = new;
        }
        let mut out = BufWriter::new(&file);
        let written = first
            .into_iter()
            .chain(lines.try_iter().take(WAITING))
            .try_for_each(|line| out.write_all(line.as_bytes()));
        let written = written.and_then(|()| out.flush());
        if let Err(error) = &written
            && !failed
        {
            tracing::error!(path = %path.display(), %error, "rgw: the access log can't be written");
        }
        failed = written.is_err();
    }
}

/// Returns S3's name of an operation, such as `REST.PUT.OBJECT`.
fn operation(record: &RequestRecord) -> String {
    let method = record.method.as_str();
    let resource = match record.operation() {
        "PutObject" | "GetObject" | "HeadObject" | "DeleteObject" | "PostObject" => "OBJECT",
        "CopyObject" => "COPY.OBJECT",
        "UploadPart" => "PART",
        "UploadPartCopy" => "COPY.PART",
        "CreateMultipartUpload" | "ListMultipartUploads" => "UPLOADS",
        "CompleteMultipartUpload" | "AbortMultipartUpload" | "ListParts" => "UPLOAD",
        "DeleteObjects" => "MULTI_OBJECT_DELETE",
        "ListBuckets" => "SERVICE",
        "CreateBucket" | "HeadBucket" | "DeleteBucket" | "ListObjects" | "ListObjectsV2" => "BUCKET",
        _ => {
            let first =
                record.uri.query().and_then(|query| query.split(['=', '&']).next()).unwrap_or_default();
            let is_name =
                !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            return format!(
                "REST.{method}.{}",
                if is_name { first.to_ascii_uppercase() } else { "UNKNOWN".into() }
            );
        }
    };
    match resource.split_once('.') {
        Some((verb, resource)) => format!("REST.{verb}.{resource}"),
        None => format!("REST.{method}.{resource}"),
    }
}

/// Returns a field in quotes, with the characters escaped that would end the field or its line.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars().take(MAX_FIELD) {
        if c == '"' || c == '\\' || c.is_control() {
            // Writing into a String can't fail.
            let _ = write!(out, "%{:02X}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out.push('"');
    out
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn number(value: u64) -> String {
    if value == 0 { "-".to_owned() } else { value.to_string() }
}

/// Formats the line of a request.
pub(super) fn line(record: &RequestRecord) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let at = OffsetDateTime::from(record.began_at);
    let month = MONTHS[usize::from(u8::from(at.month())) - 1];
    let stamp = format!(
        "[{:02}/{month}/{}:{:02}:{:02}:{:02} +0000]",
        at.day(),
        at.year(),
        at.hour(),
        at.minute(),
        at.second()
    );
    let path = record.uri.path().trim_start_matches('/');
    let (bucket, key) = match record.bucket.as_str() {
        "" => path.split_once('/').unwrap_or((path, "")),
        in_host => (in_host, path),
    };
    let field = |name: &header::HeaderName| {
        let value = record.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.map_or_else(|| "\"-\"".to_owned(), |value| quoted(&value))
    };
    let signed = |name: &str| {
        let query = record.uri.query().unwrap_or_default();
        query.split('&').any(|field| field.split_once('=').is_some_and(|(found, _)| decoded(found) == name))
    };
    let (auth, sigv) = match record.headers.get(header::AUTHORIZATION) {
        Some(value) if value.as_bytes().starts_with(b"AWS ") => ("AuthHeader", "SigV2"),
        Some(_) => ("AuthHeader", "SigV4"),
        None if signed("X-Amz-Signature") => ("QueryString", "SigV4"),
        None if signed("Signature") => ("QueryString", "SigV2"),
        None => ("-", "-"),
    };
    let uri = quoted(&format!("{} {} HTTP/1.1", record.method, shown_uri(&record.uri)));
    let size = if record.method == Method::PUT { record.received } else { record.sent };
    let host = record.headers.get(header::HOST).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let host = host.unwrap_or_default();
    // A host with whitespace would shift the fields behind it.
    let host = if host.contains(char::is_whitespace) { "-" } else { or_dash(&host) };
    format!(
        "{} {} {stamp} {} {} {} {} {} {uri} {} {} {} {} {} {} {} {} - - {sigv} - {auth} {host} - - -\n",
        or_dash(record.owner()),
        or_dash(bucket),
        record.peer.ip(),
        or_dash(record.requester()),
        record.id,
        operation(record),
        or_dash(key),
        record.status,
        or_dash(&record.error),
        number(record.sent),
        number(size),
        record.total.as_millis(),
        record.took.as_millis(),
        field(&header::REFERER),
        field(&header::USER_AGENT),
    )
}

/// Returns the path and query without signatures and tokens, which readers of the log must not be able to use.
fn shown_uri(uri: &http::Uri) -> String {
    let Some(query) = uri.query() else { return uri.path().to_owned() };
    let secret = |field: &str| {
        let name = decoded(field.split('=').next().unwrap_or_default());
        ["x-amz-signature", "x-amz-security-token", "signature"].iter().any(|n| name.eq_ignore_ascii_case(n))
    };
    let shown: Vec<&str> = query.split('&').filter(|field| !secret(field)).collect();
    if shown.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), shown.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RequestInfo;
    use std::time::UNIX_EPOCH;

    #[test]
    fn lines_have_s3s_fields() {
        let info = Arc::new(RequestInfo::default());
        info.set_operation("GetObject", "alice");
        info.set_owner("owner");
        let mut headers = http::HeaderMap::new();
        headers.insert(header::HOST, "127.0.0.1:8000".parse().unwrap());
        headers.insert(header::USER_AGENT, "a \"tool\"".parse().unwrap());
        let record = RequestRecord {
            id: "ID".into(),
            info,
            method: Method::GET,
            uri: "/pics/a%20b?versionId=1&X-Amz-Signatur%65=00".parse().unwrap(),
            headers,
            bucket: String::new(),
            peer: "10.0.0.1:5".parse().unwrap(),
            began_at: UNIX_EPOCH + Duration::from_secs(1_549_411_238),
            status: 404,
            error: "NoSuchKey".into(),
            received: 0,
            sent: 200,
            took: Duration::from_millis(7),
            total: Duration::from_millis(9),
        };
        assert_eq!(
            line(&record),
            "owner pics [06/Feb/2019:00:00:38 +0000] 10.0.0.1 alice ID REST.GET.OBJECT a%20b \
             \"GET /pics/a%20b?versionId=1 HTTP/1.1\" 404 NoSuchKey 200 200 9 7 \"-\" \"a %22tool%22\" - - SigV4 - QueryString \
             127.0.0.1:8000 - - -\n"
        );
    }
}
