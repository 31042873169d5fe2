//! How values and tables are printed.

use comfy_table::{Cell, CellAlignment, Table, TableComponent, presets};

/// An empty table with these columns.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    for style in [TableComponent::HorizontalLines, TableComponent::MiddleIntersections] {
        table.remove_style(style);
    }
    table
}

/// A cell for a number.
pub fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A number of bytes for people: `1.5 GB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_with_a_unit() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(5_600_000_000), "5.60 GB");
    }
}
