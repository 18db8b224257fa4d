//! Prints the public API that a rustdoc JSON file describes, one item a line.

use std::process::ExitCode;

/// Implementations that are the compiler's own affair: they change with the toolchain and bind nobody.
const UNSTABLE: [&str; 3] = ["core::marker::Freeze", "core::marker::UnsafeUnpin", "core::marker::StructuralPartialEq"];

fn main() -> ExitCode {
    let Some(json) = std::env::args_os().nth(1) else {
        eprintln!("usage: kvlease-public-api RUSTDOC.json");
        return ExitCode::from(2);
    };
    let api = match public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).build() {
        Ok(api) => api,
        Err(error) => {
            eprintln!("public API: {error}");
            return ExitCode::FAILURE;
        }
    };
    for item in api.items().map(ToString::to_string) {
        if !UNSTABLE.iter().any(|name| item.contains(name)) {
            println!("{item}");
        }
    }
    ExitCode::SUCCESS
}
