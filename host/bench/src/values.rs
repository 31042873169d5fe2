//! Values of flags, and statistics.

use std::str::FromStr;

use nearfield_runtime::types::THREADS_MAX;
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};
use serde::{Deserialize, Serialize};

/// Parses a name the way a configuration file does, so that flags and files accept and refuse the same words.
///
/// # Errors
/// A message with the words that are valid.
pub fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    T::deserialize(StrDeserializer::<Error>::new(text)).map_err(|error| error.to_string())
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
        let refuse = || format!("{text:?} is not a number of bytes such as 4096, 4MiB or 3.2GB");
        let written = text.trim();
        let split =
            written.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(written.len());
        let (number, unit) = written.split_at(split);
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
            _ => return Err(refuse()),
        };
        // Whole numbers are exact; only a fraction goes through floating point.
        let bytes = match number.parse::<u64>() {
            Ok(number) => number.checked_mul(factor),
            Err(_) => number
                .parse::<f64>()
                .ok()
                .map(|number| number * factor as f64)
                .filter(|&bytes| bytes < u64::MAX as f64)
                .map(|bytes| bytes as u64),
        };
        bytes.filter(|&bytes| bytes > 0).map(Self).ok_or_else(refuse)
    }
}

/// [`Bytes`] for flags that hold the plain number.
///
/// # Errors
/// A message with examples of what is valid.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse::<Bytes>().map(u64::from)
}

/// Bytes that no drive can compress much, the same each time.
pub fn fill(bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7];
    }
}

/// The middle value; the mean of both for an even number of them, 0 without any.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Number of threads as a flag gives it.
///
/// # Errors
/// A message with the range.
pub fn thread_count(text: &str) -> Result<usize, String> {
    let refuse = || format!("{text:?} is not a number of threads from 0 to {THREADS_MAX}");
    text.parse().ok().filter(|&threads| threads <= THREADS_MAX).ok_or_else(refuse)
}

/// Threads to use: 0 stands for one a processor.
pub fn threads(asked: usize) -> usize {
    if asked > 0 { asked } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

#[cfg(test)]
mod tests {
    use nearfield_techniques::offload::System;

    use super::*;

    #[test]
    fn bytes_take_decimal_and_binary_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("3 gb"), Ok(3_000_000_000));
        assert_eq!(bytes("4MiB"), Ok(4 << 20));
        assert_eq!(bytes("3.2GB"), Ok(3_200_000_000));
        for text in [
            "",
            "0",
            "GiB",
            "1 apple",
            "4 apples",
            "1.2.3",
            "99999999999999999999",
            "18446744073709551615kb",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn systems_have_their_names() {
        assert_eq!(named::<System>("base-pipe"), Ok(System::BasePipe));
        assert_eq!(named::<System>("su+o"), Ok(System::SuO));
        assert!(named::<System>("pipe").is_err());
        assert!(named::<System>("su-o").unwrap_err().contains("base-pipe"));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
