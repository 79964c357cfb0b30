//! The nacre binary: daemons and every command.

mod cmd;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == "crushtool" => cmd::crushtool::main(words.collect()),
        _ => {
            eprintln!("usage: nacre crushtool ...");
            ExitCode::from(2)
        }
    }
}
