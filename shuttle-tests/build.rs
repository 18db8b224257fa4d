//! Chooses shuttle's primitives for this package's build of the crate's source.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=kvlease_shuttle");
}
