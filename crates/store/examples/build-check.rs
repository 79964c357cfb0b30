//! Prints what is wrong with how this program's RocksDB was built; nothing and exit code 0 where all is well.

use nacre_store::BuildCheck;
use std::process::ExitCode;

fn main() -> ExitCode {
    let check = match BuildCheck::run() {
        Ok(check) => check,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    eprintln!("{check:?}");
    let complaints = check.warnings();
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
