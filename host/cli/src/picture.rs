//! What pictures have in common.

use plotters::prelude::*;

/// Colours of the phases.
pub const FORWARD: RGBColor = RGBColor(0x4c, 0x78, 0xa8);
pub const BACKWARD: RGBColor = RGBColor(0xf5, 0x85, 0x18);
pub const UPDATE: RGBColor = RGBColor(0x54, 0xa2, 0x4b);

/// The sign of a colour in a legend.
pub fn key(colour: RGBColor) -> impl Fn((i32, i32)) -> Rectangle<(i32, i32)> {
    move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled())
}

/// The box that says what the colours mean.
macro_rules! legend {
    ($chart:expr, $corner:ident) => {
        $chart
            .configure_series_labels()
            .position(SeriesLabelPosition::$corner)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(|error| error.to_string())?
    };
}
pub(crate) use legend;
