//! Chooses loom's primitives and the real epoch for this package's build of the crate's source.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CARGO_CFG_CROSSBEAM_LOOM");
    // Without it crossbeam-epoch would run on the atomics of `std`, unseen by loom.
    if std::env::var_os("CARGO_CFG_CROSSBEAM_LOOM").is_none() {
        println!("cargo:warning=to be built with RUSTFLAGS='--cfg crossbeam_loom': see .ci/loom");
        std::process::exit(1);
    }
    println!("cargo:rustc-cfg=kvlease_loom");
    println!("cargo:rustc-cfg=kvlease_loom_epoch");
}
