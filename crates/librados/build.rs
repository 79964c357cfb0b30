//! Gives the shared library its name and its symbol versions.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rerun-if-changed=librados.map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librados.so.2");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={folder}/librados.map");
    // Its threads outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
