use super::outcome::Outcome;
use anyhow::Result;
use std::path::Path;
pub fn draw(_: &Path, _: &[Outcome]) -> Result<()> {
    Ok(())
}
