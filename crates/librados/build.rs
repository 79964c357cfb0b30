//! Sets the name of the shared library and its symbol versions.

const MAP: &str = "librados.map";

fn main() {
    // A copy in the build folder: clones that share a target folder share this output, and one of them may be removed.
    let map = std::path::Path::new(&std::env::var_os("OUT_DIR").unwrap_or_default()).join(MAP);
    if let Err(error) = std::fs::copy(MAP, &map) {
        println!("cargo::error={MAP}: {error}");
    }
    println!("cargo::rerun-if-changed={MAP}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librados.so.2");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    // The library's threads outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
