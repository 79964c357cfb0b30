//! Gives the shared library its name and its symbol versions.

const MAP: &str = "librados.map";

fn main() {
    // A copy beside the build: clones that share a target folder share what this prints, and one may go.
    let map = std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join(MAP);
    if let Err(error) = std::fs::copy(MAP, &map) {
        println!("cargo::error={MAP}: {error}");
    }
    println!("cargo::rerun-if-changed={MAP}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librados.so.2");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    // Its threads outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
