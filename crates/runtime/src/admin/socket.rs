//! The admin socket: commands to a daemon from the same machine, whether or not the cluster works (`ceph daemon`).
//!
//! Framing is Ceph's: the client sends a command's JSON and a zero byte. The answer is a length of four big-endian bytes and
//! that many bytes of output, preceded by `ERROR: (22) Invalid argument` if the command failed. One connection carries one
//! command, and one is served at a time. Only the daemon's user can access the socket (0600).

use super::AdminReply;
use nacre_common::config::Config;
use nacre_types::errno::Errno;
use rustix::fs::Mode;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest command.
const MAX_COMMAND: usize = 64 << 10;
/// Timeout for a silent client.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Executes a command.
pub type CommandHandler = Arc<dyn Fn(&str) -> AdminReply + Send + Sync>;

/// A listening admin socket. Dropping it ends it and removes its file.
#[derive(Debug)]
pub struct AdminSocket {
    path: PathBuf,
    /// Device and inode of the socket's file, because another daemon may have replaced it.
    file: Option<(u64, u64)>,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AdminSocket {
    /// Listens on the path in the option `admin_socket`. Without a path, or if listening fails, the daemon runs without a socket
    /// and logs that.
    pub fn start(config: &Config, run: CommandHandler) -> Option<AdminSocket> {
        let path = config.get().global.admin_socket.trim().to_owned();
        if path.is_empty() {
            return None;
        }
        let path = PathBuf::from(path);
        match Self::listen(&path, run) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no admin socket: commands by 'daemon' will not work");
                None
            }
        }
    }

    /// Listens on `path`.
    pub fn listen(path: &Path, run: CommandHandler) -> io::Result<AdminSocket> {
        let listener = match bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if UnixStream::connect(path).is_ok() {
                    return Err(error);
                }
                // A killed daemon left it behind.
                std::fs::remove_file(path)?;
                bind(path)?
            }
            bound => bound?,
        };
        let file = identity(path);
        let kept = listener.try_clone()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("admin_socket".into()).spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                match stream {
                    Ok(stream) => {
                        if let Err(error) = serve(stream, &run) {
                            tracing::debug!(%error, "admin socket");
                        }
                    }
                    Err(error) => {
                        // For instance out of descriptors. Without a pause the loop would spin.
                        tracing::warn!(%error, "admin socket");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        })?;
        Ok(AdminSocket { path: path.to_owned(), file, listener: kept, stop, thread: Some(thread) })
    }

    /// The path that it listens on.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let woken = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken)
            && thread.join().is_err()
        {
            tracing::error!("the admin socket's thread panicked");
        }
        if self.file.is_some()
            && identity(&self.path) == self.file
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "can't remove the admin socket");
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // Linux creates the file with the socket's mode, so other users can't connect at any time.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(UnixListener::from(std::os::fd::OwnedFd::from(socket)))
}

fn serve(mut stream: UnixStream, run: &CommandHandler) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(command) = read_command(&mut stream)? else { return Ok(()) };
    let reply = run(&command);
    let mut output = Vec::with_capacity(reply.output.len() + 64);
    if reply.code < 0 {
        let errno = Errno(-reply.code);
        output.extend_from_slice(format!("ERROR: ({}) {}\n", errno.0, errno.text()).as_bytes());
        output.extend_from_slice(format!("{}\n", reply.status).as_bytes());
    }
    output.extend_from_slice(&reply.output);
    let length = u32::try_from(output.len()).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(&output)
}

/// Reads up to a zero byte or the end of a line. `None` if the client closed the connection without sending anything.
fn read_command(stream: &mut UnixStream) -> io::Result<Option<String>> {
    let mut command = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(None);
        }
        let end = buffer[..read].iter().position(|byte| matches!(byte, 0 | b'\n'));
        command.extend_from_slice(&buffer[..end.unwrap_or(read)]);
        if command.len() > MAX_COMMAND {
            return Err(ErrorKind::InvalidData.into());
        }
        if end.is_some() {
            break;
        }
    }
    let text = String::from_utf8(command).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
    // Plain words are a command without parameters; "0" is the version request of the oldest protocol.
    let text = match text.trim() {
        "0" => r#"{"prefix":"version","format":"json"}"#.to_owned(),
        json if json.starts_with('{') => json.to_owned(),
        words => serde_json::json!({ "prefix": words }).to_string(),
    };
    Ok(Some(text))
}

/// Sends `json` to the daemon that listens on `path`. Returns its whole output, which starts with `ERROR:` if the command
/// failed.
pub fn send_command(path: &Path, json: &str) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(json.as_bytes())?;
    stream.write_all(&[0])?;
    let mut length = [0_u8; 4];
    stream.read_exact(&mut length)?;
    let mut output = Vec::new();
    stream.take(u64::from(u32::from_be_bytes(length))).read_to_end(&mut output)?;
    Ok(output)
}
