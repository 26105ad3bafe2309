//! Finds libfaclient: in FACLIENT_LIB_DIR, else by pkg-config.

use std::env;
use std::process::Command;

fn main() {
    for name in [
        "FACLIENT_LIB_DIR",
        "PKG_CONFIG",
        "PKG_CONFIG_PATH",
        "PKG_CONFIG_LIBDIR",
        "PKG_CONFIG_SYSROOT_DIR",
    ] {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    println!("cargo:rerun-if-changed=build.rs");
    // docs.rs has no library, and links nothing.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    if let Ok(folder) = env::var("FACLIENT_LIB_DIR") {
        println!("cargo:rustc-link-search=native={}", folder);
        println!("cargo:rustc-link-lib=faclient");
        return;
    }
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let done = Command::new(&program)
        .args(["--libs", "libfaclient >= 0.1"])
        .output()
        .unwrap_or_else(|error| {
            panic!(
                "{} cannot be run ({}): install it, or set FACLIENT_LIB_DIR to libfaclient's folder",
                program, error
            )
        });
    if !done.status.success() {
        panic!(
            "pkg-config does not find libfaclient: install it, set PKG_CONFIG_PATH to the folder of \
             libfaclient.pc, or FACLIENT_LIB_DIR to that of the library. It says: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        );
    }
    for word in String::from_utf8_lossy(&done.stdout).split_whitespace() {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={}", folder);
        } else if let Some(library) = word.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={}", library);
        }
    }
}
