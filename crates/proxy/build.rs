//! Takes plotly.js out of the `plotly` crate, which carries it, and packs it for the dashboard. So
//! the charts need no network, no Node, and no copy of somebody else's code in this repository.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::{env, process};

use flate2::Compression;
use flate2::write::GzEncoder;

/// What stands around the library where the crate writes a page that works offline.
const BEFORE: &str = "<script type=\"text/javascript\">";
const AFTER: &str = "</script>\n";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(problem) = pack() {
        eprintln!("plotly.js cannot be packed: {problem}");
        process::exit(1);
    }
}

fn pack() -> Result<(), Box<dyn std::error::Error>> {
    let page = plotly::Plot::offline_js_sources();
    let library = page.split_once(BEFORE).ok_or("the crate writes no script")?.1;
    let library = library.split_once(AFTER).ok_or("the script has no end")?.0;
    if library.len() < 1 << 20 || !library.contains("Plotly") {
        return Err("what the crate writes is not the library".into());
    }
    let folder = env::var_os("OUT_DIR").ok_or("cargo names no folder")?;
    let file = File::create(Path::new(&folder).join("plotly.js.gz"))?;
    let mut packed = GzEncoder::new(file, Compression::new(6));
    packed.write_all(library.as_bytes())?;
    packed.finish()?;
    Ok(())
}
