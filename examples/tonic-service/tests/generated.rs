//! The generated code is what the generator makes of the `.proto` file today.
//!
//! After a change: `UPDATE=1 cargo test -p example-tonic-service --test generated`.

use std::path::Path;

#[test]
fn the_code_is_what_protox_and_tonic_make_of_the_definition() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = std::env::temp_dir().join(format!("tidegate-generated-{}", std::process::id()));
    std::fs::create_dir_all(&made).unwrap();
    let files = protox::compile([here.join("proto/shop.proto")], [here.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(&made)
        .compile_fds(files)
        .unwrap();
    let fresh = std::fs::read_to_string(made.join("shop.v1.rs")).unwrap();
    std::fs::remove_dir_all(&made).unwrap();
    let committed = here.join("src/generated/shop.v1.rs");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(committed).unwrap();
    assert!(committed == fresh, "proto/shop.proto has changed: see the head of this file");
}
