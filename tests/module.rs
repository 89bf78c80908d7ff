//! The module on real servers: one file a concern, all of them in one program. What one test waits for costs the others
//! no time so, and the program is linked once. `cargo test --test module acquire::` runs the tests of one file.
//!
//! `soak.rs` is a program of its own: fifty clients who do everything at once are no neighbours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod common;
#[path = "common/durable.rs"]
mod durable;

mod acl;
mod acquire;
mod aof;
mod audience;
mod boundary;
mod clients;
mod clock;
mod cluster;
mod config;
mod crowd;
mod expiry;
mod extend;
mod faults;
mod fence;
mod fence_call;
mod golden;
mod info;
mod keyspace;
mod limits;
mod memory;
mod persistence;
mod planted;
mod readme;
mod release;
mod replication;
mod restore;
mod roles;
mod routing;
mod scripts;
mod setup;
mod shared;
mod tokens;
mod wait;

/// A file that stands here and is named in no program would be skipped, and nobody would see it.
#[test]
fn each_file_belongs_to_a_program() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, program, others) in [
        ("tests", "module", &["soak"][..]),
        ("crates/client/tests/live", "main", &[]),
        ("crates/client/tests/program", "main", &[]),
    ] {
        let folder = root.join(folder);
        let named = std::fs::read_to_string(folder.join(program).with_extension("rs")).expect("the program");
        for file in std::fs::read_dir(&folder).expect("the folder of the tests") {
            let path = file.expect("a file").path();
            let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
            let ours = path.extension().is_some_and(|end| end == "rs");
            if ours && name != program && !others.contains(&name) {
                let named = named.contains(&format!("\nmod {name};\n"));
                assert!(named, "{} is in no program: name it in {program}.rs", path.display());
            }
        }
    }
}
