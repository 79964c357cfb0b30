//! The nacre binary: daemons and every command.
fn main() {}
