//! Ports of loopback, each for one test process at a time.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// Above the ports that Linux gives by itself: no other socket takes one before its server does.
const FIRST: u16 = 61_000;
const COUNT: u16 = 4_500;

/// Locked files, one for each port that this process was given. The system unlocks them as the process ends.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// The first of `count` ports in a row that are free, and that no other test is given while this process runs.
pub(crate) fn free_ports(count: u16) -> u16 {
    let mut reserved = RESERVED.lock().unwrap();
    // Each process begins somewhere else, so that it finds one soon.
    let start = std::process::id().wrapping_mul(37) % u32::from(COUNT);
    for at in 0..COUNT {
        let port = FIRST + (u16::try_from(start).unwrap() + at) % COUNT;
        if port + count > FIRST + COUNT {
            continue;
        }
        let locks: Option<Vec<File>> = (port..port + count).map(reserve).collect();
        if let Some(locks) = locks {
            reserved.extend(locks);
            return port;
        }
    }
    panic!("no {count} free ports in a row from {FIRST} on");
}

/// Locks a port's file; `None` where another test, or a program, has the port.
fn reserve(port: u16) -> Option<File> {
    let user = std::env::var("USER").unwrap_or_default();
    let folder = std::env::temp_dir().join(format!("nacre-test-ports-{user}"));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(port.to_string());
    let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    file.try_lock().ok()?;
    TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(file)
}
