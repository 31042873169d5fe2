//! Whether a drive reaches a card's memory, as XRT's driver configured the card's window on the bus.

/// State of a card's window on the bus. XRT's own library reads the driver's numbers the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum P2p {
    /// The window spans the card's memory.
    Enabled,
    /// The window is small.
    Disabled,
    /// The window is to be large, but BIOS or bridges have no room for it yet.
    NoIomem,
    /// The window leads to the wrong memory.
    Broken,
    /// The platform has no window.
    Unsupported,
    /// The driver does not say, or not so that it is understood.
    Unknown,
}

impl P2p {
    /// Reads the file `p2p.u.*/config`: lines such as `bar:268435456`, in bytes. Other lines do not matter.
    pub(super) fn read(config: &str) -> Self {
        let mut values = [None; 4];
        for line in config.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let names = ["bar", "exp_bar", "rbar", "remap"];
            let Some(index) = names.iter().position(|&known| known == name.trim()) else {
                continue;
            };
            match value.trim().parse::<u64>() {
                Ok(value) => values[index] = Some(value),
                Err(_) => return Self::Unknown,
            }
        }
        if values == [None; 4] && !config.trim().is_empty() {
            return Self::Unknown;
        }
        let [bar, expected, resizable, remapped] = values;
        let Some(bar) = bar else { return Self::Unsupported };
        if resizable.is_some_and(|resizable| resizable > bar) {
            Self::NoIomem
        } else if remapped.is_some_and(|remapped| remapped > 0 && remapped != bar) {
            Self::Broken
        } else if expected == Some(bar) {
            Self::Enabled
        } else {
            Self::Disabled
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_from_the_drivers_numbers() {
        let cases = [
            ("bar:4096\nexp_bar:4096\nrbar:4096\nremap:4096\n", P2p::Enabled),
            ("bar:4096\nexp_bar:4096\n", P2p::Enabled),
            ("bar:4096\nexp_bar:4096\nrbar:256\nremap:0\n", P2p::Enabled),
            ("bar:256\nexp_bar:4096\n", P2p::Disabled),
            ("bar:256\nexp_bar:4096\nrbar:256\nremap:0\n", P2p::Disabled),
            ("bar:256\n", P2p::Disabled),
            ("bar:256\nexp_bar:4096\nrbar:4096\n", P2p::NoIomem),
            ("bar:256\nexp_bar:256\nrbar:4096\nremap:1\n", P2p::NoIomem),
            ("bar:4096\nexp_bar:4096\nrbar:4096\nremap:256\n", P2p::Broken),
            ("bar:4096\nexp_bar:8192\nremap:8192\n", P2p::Broken),
            ("exp_bar:4096\nrbar:4096\n", P2p::Unsupported),
            ("", P2p::Unsupported),
        ];
        for (config, expected) in cases {
            assert_eq!(P2p::read(config), expected, "{config:?}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_read_say_nothing_and_other_lines_do_not_matter() {
        let bad = ["bar:", "bar:0x100", "bar:256\nexp_bar:lots", "bar:-1", "bar:1\nremap:1.5"];
        for config in bad {
            assert_eq!(P2p::read(config), P2p::Unknown, "{config:?}");
        }
        let huge = format!("bar:{}9", u64::MAX);
        assert_eq!(P2p::read(&huge), P2p::Unknown);
        assert_eq!(P2p::read("hello\nnew_bar:x\n bar : 16 \r\nexp_bar:16\n::\n"), P2p::Enabled);
        assert_eq!(P2p::read("\0\u{fffd}garbage"), P2p::Unknown);
    }
}
