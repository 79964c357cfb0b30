//! Prints the reference page of all options: `docs/options.md`.

fn main() {
    print!("{}", nacre_common::options::reference_markdown());
}
