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
    let Some(family) = family_of(fonts) else {
        return Err("--png: no font on this machine; install one, such as DejaVu Sans".to_owned());
    };
    // What "sans-serif" means is not asked of the system: without this it is Arial, or no text at all.
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

/// Families without serifs that systems come with, the likeliest first.
#[cfg(feature = "png")]
const FAMILIES: [&str; 7] =
    ["Arial", "Helvetica", "DejaVu Sans", "Liberation Sans", "Noto Sans", "Ubuntu", "Cantarell"];

/// One of them, or else any family there is.
#[cfg(feature = "png")]
fn family_of(fonts: &resvg::usvg::fontdb::Database) -> Option<String> {
    let there: Vec<&String> =
        fonts.faces().flat_map(|face| &face.families).map(|(name, _)| name).collect();
    let known = FAMILIES.iter().find_map(|name| there.iter().find(|there| there == &name));
    known.or(there.first()).map(|name| (*name).clone())
}

/// Never called: [`AVAILABLE`] is asked first.
#[cfg(not(feature = "png"))]
pub(super) fn convert(_svg: &Path) -> Result<(), String> {
    Err("built without the feature png".to_owned())
}

#[cfg(all(test, feature = "png"))]
mod tests {
    use super::*;

    /// Text is drawn in whatever font there is: with a family that is not there nothing would be.
    #[test]
    fn text_is_drawn() {
        let mut fonts = resvg::usvg::fontdb::Database::new();
        fonts.load_system_fonts();
        if fonts.is_empty() {
            eprintln!("skipped: no font on this machine");
            return;
        }
        let folder = std::env::temp_dir().join(format!("tidegate-png-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let svg = folder.join("text.svg");
        let text = r#"<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40"
            font-family="sans-serif" font-size="20"><text x="5" y="25">load</text></svg>"#;
        std::fs::write(&svg, text).expect("written");
        convert(&svg).expect("drawn");
        let drawn =
            resvg::tiny_skia::Pixmap::load_png(svg.with_extension("png")).expect("a picture");
        std::fs::remove_dir_all(&folder).expect("ours");
        assert!(drawn.pixels().iter().any(|pixel| pixel.alpha() > 0), "nothing but background");
    }
}
