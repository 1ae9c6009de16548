// SPDX-License-Identifier: MIT

// Links libradixmlp_c.a: from the folder RADIXMLP_LIB_DIR, or from where pkg-config says that it is installed.
use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=RADIXMLP_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let dir = env::var("RADIXMLP_LIB_DIR").unwrap_or_else(|_| {
        let output = Command::new("pkg-config")
            .args(["--variable=libdir", "radixmlp-c"])
            .output()
            .expect("set RADIXMLP_LIB_DIR, or install pkg-config");
        assert!(output.status.success(), "pkg-config does not find radixmlp-c: set RADIXMLP_LIB_DIR or PKG_CONFIG_PATH");
        String::from_utf8(output.stdout).expect("a path in UTF-8").trim().to_owned()
    });
    // [link]
    println!("cargo:rustc-link-search=native={dir}");
    println!("cargo:rustc-link-lib=static=radixmlp_c");
    println!("cargo:rustc-link-lib=dylib=stdc++"); // the C++ runtime that it was compiled for
    // [/link]
}
