//! Values of flags, and statistics.

use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};

/// Parses a name as the configuration file of a run spells it.
pub fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    T::deserialize(StrDeserializer::<Error>::new(text)).map_err(|error| error.to_string())
}

/// Parses a number of bytes: `4096`, `64MiB`, `1GB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let refuse = || format!("{text:?} is not a number of bytes such as 4096, 64MiB or 1GB");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(refuse()),
    };
    let number: u64 = number.parse().map_err(|_| refuse())?;
    number.checked_mul(factor).filter(|&bytes| bytes > 0).ok_or_else(refuse)
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
        for text in ["", "0", "GiB", "1 apple", "99999999999999999999", "18446744073709551615kb"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn systems_have_their_names() {
        assert_eq!(named::<System>("base-pipe"), Ok(System::BasePipe));
        assert!(named::<System>("pipe").is_err());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
