//! Figures as PNG, for where SVG is not shown. Behind the feature `png`: it takes some fifty crates.

use std::path::Path;

/// Whether this binary can do it.
pub(super) const AVAILABLE: bool = cfg!(feature = "png");

/// Pixels per unit of the SVG: twice as many, for screens and print.
#[cfg(feature = "png")]
const SCALE: f32 = 2.0;

/// Draws an SVG file into a PNG file of the same name beside it.
#[cfg(feature = "png")]
pub(super) fn convert(svg: &Path) -> Result<(), String> {
    use resvg::{tiny_skia, usvg};

    let name = svg.display();
    let text = std::fs::read(svg).map_err(|error| format!("cannot read {name}: {error}"))?;
    let mut options = usvg::Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    let Some(family) = sans_serif(fonts) else {
        return Err("--png: no font on this machine; install one, such as DejaVu Sans".to_owned());
    };
    fonts.set_sans_serif_family(family);
    let tree =
        usvg::Tree::from_data(&text, &options).map_err(|error| format!("{name}: {error}"))?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let mut canvas = size
        .and_then(|size| tiny_skia::Pixmap::new(size.width(), size.height()))
        .ok_or_else(|| format!("{name} is empty"))?;
    let scale = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut canvas.as_mut());
    let png = svg.with_extension("png");
    canvas.save_png(&png).map_err(|error| format!("cannot write {}: {error}", png.display()))
}

/// What `sans-serif` is to mean here. The library takes it to be Arial, and where that is not installed
/// pictures would have no words.
#[cfg(feature = "png")]
fn sans_serif(fonts: &resvg::usvg::fontdb::Database) -> Option<String> {
    let names = || fonts.faces().filter_map(|face| face.families.first()).map(|(name, _)| name);
    let known = ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans", "Noto Sans"];
    let known = known.iter().find_map(|name| names().find(|family| family == name));
    known.or_else(|| names().find(|name| name.contains("Sans"))).or_else(|| names().next()).cloned()
}

/// Never called: [`AVAILABLE`] is asked first.
#[cfg(not(feature = "png"))]
pub(super) fn convert(_svg: &Path) -> Result<(), String> {
    Err("built without the feature png".to_owned())
}
