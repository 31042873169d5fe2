//! Values of flags and keys that are more than a number or a string.

use std::str::FromStr;

use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};

/// Parses a name the way the configuration file does, so that both accept and refuse the same words.
///
/// # Errors
/// A message with the words that are valid.
pub fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let deserializer: StrDeserializer<'_, ValueError> = text.into_deserializer();
    T::deserialize(deserializer).map_err(|error| error.to_string())
}

/// A number of bytes, written as `4096`, `4MiB`, `3.2GB` …
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "u64")]
pub struct Bytes(pub u64);

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

/// How a configuration file may write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Text(String),
}

impl TryFrom<Written> for Bytes {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            _ => {
                return Err(format!(
                    "{text:?} is not a number of bytes such as 4096, 4MiB or 3.2GB"
                ));
            }
        };
        let number: f64 = number.parse().map_err(|_| {
            format!("{text:?} is not a number of bytes such as 4096, 4MiB or 3.2GB")
        })?;
        let bytes = number * factor as f64;
        if bytes >= 1.0 && bytes < u64::MAX as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(format!("{text:?} is out of range"))
        }
    }
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
    use nearfield_techniques::offload::System;

    use super::*;

    #[test]
    fn bytes_take_decimal_and_binary_units() {
        let parse = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4MiB"), Ok(4 << 20));
        assert_eq!(parse("3.2GB"), Ok(3_200_000_000));
        assert!(parse("4 apples").is_err());
        assert!(parse("").is_err());
        assert!(parse("0").is_err());
    }

    #[test]
    fn names_are_those_of_the_configuration_file() {
        assert_eq!(named::<System>("su+o"), Ok(System::SuO));
        assert!(named::<System>("su-o").unwrap_err().contains("base-pipe"));
    }

    #[test]
    fn bytes_are_printed_with_a_unit() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(5_600_000_000), "5.60 GB");
    }
}
