//! Where a description comes from, so that errors can say file, line and key.

use nearfield_runtime::Error;
use toml::de::{DeTable, DeValue};

/// The text of a description and its name.
#[derive(Debug, Clone, Default)]
pub(super) struct Source {
    /// File, or name of a description that comes with the program; empty for one that was made in memory.
    pub name: String,
    pub text: String,
}

/// Two descriptions are the same whatever file they come from.
impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Source {
    /// An error about the value at `key`, whose parts are table and key names from the outside in.
    pub fn error(&self, key: &[&str], message: &str) -> Error {
        let mut place = if self.name.is_empty() {
            "fabric".to_owned()
        } else {
            format!("fabric {}", self.name)
        };
        if let Some(line) = self.line(key) {
            place += &format!(", line {line}");
        }
        Error::Invalid(format!("{place}, {}: {message}", key.join(".")))
    }

    /// The line of `key`; where the key is missing, that of the nearest table around it.
    fn line(&self, key: &[&str]) -> Option<usize> {
        let root = DeTable::parse(&self.text).ok()?;
        let mut table = root.get_ref();
        let mut start = None;
        for part in key {
            let Some((name, value)) = table.iter().find(|(name, _)| name.get_ref() == part) else {
                break;
            };
            start = Some(name.span().start);
            let DeValue::Table(inner) = value.get_ref() else { break };
            table = inner;
        }
        let before = self.text.get(..start?)?;
        Some(before.matches('\n').count() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_file_line_and_key() {
        let text = "a = 1\n[drive]\ncount_max = 4\n\n[links.up]\nbetween = [\"x\", \"y\"]\n";
        let source = Source { name: "f.toml".into(), text: text.into() };
        let line = |key: &[&str]| source.error(key, "bad").to_string();
        assert!(line(&["drive", "count_max"]).contains("f.toml, line 3, drive.count_max: bad"));
        assert!(line(&["links", "up", "between"]).contains("line 6"));
        // A missing key points to the table that lacks it.
        assert!(line(&["links", "up", "other"]).contains("line 5, links.up.other"));
        assert!(line(&["host"]).contains("f.toml, host"));
    }
}
