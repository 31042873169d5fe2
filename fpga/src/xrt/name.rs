//! How a card is named.

use std::fmt;
use std::str::FromStr;

/// A card: by its place in XRT's list, or by the PCI address of its user function.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CardName {
    /// Its place in XRT's list, from 0.
    Index(u32),
    /// Its address, such as `0000:04:00.1`.
    Address(String),
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Address(address) => f.write_str(address),
        }
    }
}

/// Text that names no card.
#[derive(Debug, thiserror::Error)]
#[error("a card is named by a number, or by a PCI address such as 0000:04:00.1")]
pub struct NoCardName;

impl FromStr for CardName {
    type Err = NoCardName;

    fn from_str(text: &str) -> Result<Self, NoCardName> {
        if let Ok(index) = text.parse() {
            return Ok(Self::Index(index));
        }
        let hexadecimal = |part: &str, most: usize| {
            (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        // The domain may be left out.
        let mut parts = text.rsplit(':');
        let (slot, bus, domain) = (parts.next(), parts.next(), parts.next().unwrap_or("0000"));
        let (Some(slot), Some(bus), None) = (slot, bus, parts.next()) else {
            return Err(NoCardName);
        };
        let (device, function) = slot.split_once('.').ok_or(NoCardName)?;
        let good = hexadecimal(domain, 8)
            && hexadecimal(bus, 2)
            && hexadecimal(device, 2)
            && hexadecimal(function, 1);
        if !good {
            return Err(NoCardName);
        }
        let address = format!("{domain:0>4}:{bus:0>2}:{device:0>2}.{function}");
        Ok(Self::Address(address.to_ascii_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_by_number_or_address() {
        let name = |text: &str| text.parse::<CardName>().map(|name| name.to_string()).ok();
        assert_eq!(name("3").as_deref(), Some("3"));
        assert_eq!(name("04:00.1").as_deref(), Some("0000:04:00.1"));
        assert_eq!(name("0000:AF:00.1").as_deref(), Some("0000:af:00.1"));
        for wrong in ["", "-1", "x", "04:00", "0:0:0:0.0", "0000:04:00.12", "g4:00.1", "4294967296"]
        {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }
}
