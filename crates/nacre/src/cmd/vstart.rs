//! `vstart.sh`: the equivalent of Ceph's script that starts a cluster for development.
//!
//! The cluster is created by `nacre serve` in the folder where the script is called, and runs in the background. Beside it are
//! `ceph.conf`, `keyring` and `bin` with the names of Ceph's tools, where commands after a call of the script expect them.
//! Numbers of daemons are in the environment, as in Ceph: `MON`, `OSD`, `RGW`.

mod args;
mod options;
mod start;

use args::VstartArgs;
use nacre_types::support_level::SupportLevel;
use std::ffi::OsString;
use std::process::ExitCode;

/// What `--help` prints.
pub(super) fn usage() -> String {
    options::usage()
}

/// The options of Ceph's script, for the page on compatibility.
pub(super) fn options() -> Vec<(&'static str, SupportLevel)> {
    options::rows()
}

/// Runs the script with the arguments after its name.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    let texts: Result<Vec<String>, OsString> = args.into_iter().map(OsString::into_string).collect();
    let outcome = match texts {
        Err(arg) => Err(anyhow::anyhow!("argument '{}' is not UTF-8", arg.to_string_lossy())),
        Ok(args) if args.iter().any(|arg| arg == "-h" || arg == "--help") => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Ok(args) => VstartArgs::parse(&args, |name| std::env::var(name).ok())
            .and_then(|request| start::start(&request)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vstart.sh: {error:#}");
            ExitCode::FAILURE
        }
    }
}
