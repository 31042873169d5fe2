//! Results as JSON lines or as aligned text.

use std::io::Write;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// Prints results: one JSON object a line, or one aligned line a field.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// Whether to print JSON.
    pub json: bool,
}

impl Output {
    /// Prints one result under its title.
    pub fn print(self, title: &str, result: &impl Serialize) -> anyhow::Result<()> {
        let value = serde_json::to_value(result).context("a result cannot be written as JSON")?;
        let text = if self.json { value.to_string() } else { lines(title, &value) };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
        Ok(())
    }
}

fn lines(title: &str, value: &Value) -> String {
    let mut text = title.to_owned();
    for (name, value) in value.as_object().into_iter().flatten() {
        let value = match value {
            Value::Number(number) if number.is_f64() => {
                format!("{:.4}", number.as_f64().unwrap_or_default())
            }
            Value::String(string) => string.clone(),
            other => other.to_string(),
        };
        text.push_str(&format!("\n  {:<28}{value:>18}", name.replace('_', " ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_aligned() {
        let value = serde_json::json!({ "seconds": 1.25, "bytes_read": 7, "kind": "read" });
        let text = lines("title", &value);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "title");
        assert!(lines[1].ends_with("1.2500") && lines[2].starts_with("  bytes read"));
        assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()));
    }
}
