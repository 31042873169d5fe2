//! What the look-alike plays.

/// Environment variable with the text that [`Play`] is read from.
pub const VARIABLE: &str = "NEARFIELD_LOOKALIKE";

/// A call that may have a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Opening the card.
    Open,
    /// Loading a bitstream.
    Load,
    /// Opening a kernel.
    Kernel,
    /// Allocating memory that drives do not reach.
    Allocate,
    /// Allocating memory in the window on the bus.
    Window,
    /// Copying between host and card.
    Sync,
    /// Running a kernel.
    Run,
    /// Closing the card.
    Close,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails, a run before it begins.
    Fail,
    /// The call never comes back, a run never ends.
    Hang,
    /// It takes so many milliseconds more.
    Slow(u64),
    /// A run is said to be complete, but nothing was done.
    Skip,
    /// A run ends in this state, and nothing was done.
    State(i32),
}

/// A fault at the `nth` call of its kind, from 1, of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Which card.
    pub card: u32,
    /// Which calls are counted.
    pub call: Call,
    /// Which of them.
    pub nth: u64,
    /// What happens to it.
    pub fault: Fault,
}

/// What is played: items with commas between. `cards=2` and `memory=1048576` (bytes of each bank) say what there is; faults are
/// `CARD:CALL:NTH:FAULT`, such as `0:run:3:hang`, `1:run:1:state 5`, `0:run:2:slow 1500`, `0:window:1:fail`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Play {
    /// How many cards there are.
    pub cards: u32,
    /// Bytes of each of a card's two banks.
    pub memory: usize,
    /// Faults.
    pub rules: Vec<Rule>,
}

impl Play {
    /// Reads a description; an item that is none is given back as the error.
    ///
    /// # Errors
    /// The item.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut play = Self { cards: 16, memory: 1 << 30, rules: Vec::new() };
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let read = || match item.split_once('=') {
                Some(("cards", number)) => {
                    Some(Self { cards: number.parse().ok()?, ..play.clone() })
                }
                Some(("memory", bytes)) => {
                    Some(Self { memory: bytes.parse().ok()?, ..play.clone() })
                }
                Some(_) => None,
                None => {
                    let mut rules = play.rules.clone();
                    rules.push(rule(item)?);
                    Some(Self { rules, ..play.clone() })
                }
            };
            play = read().ok_or_else(|| item.to_owned())?;
        }
        Ok(play)
    }
}

fn rule(item: &str) -> Option<Rule> {
    let [card, call, nth, fault]: [&str; 4] =
        item.split(':').collect::<Vec<_>>().try_into().ok()?;
    let call = match call {
        "open" => Call::Open,
        "load" => Call::Load,
        "kernel" => Call::Kernel,
        "allocate" => Call::Allocate,
        "window" => Call::Window,
        "sync" => Call::Sync,
        "run" => Call::Run,
        "close" => Call::Close,
        _ => return None,
    };
    let fault = match fault.split_once(' ') {
        None if fault == "fail" => Fault::Fail,
        None if fault == "hang" => Fault::Hang,
        None if fault == "skip" => Fault::Skip,
        Some(("slow", milliseconds)) => Fault::Slow(milliseconds.parse().ok()?),
        Some(("state", state)) => Fault::State(state.parse().ok()?),
        _ => return None,
    };
    Some(Rule { card: card.parse().ok()?, call, nth: nth.parse().ok()?, fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read() {
        let play = Play::parse("cards=2, memory=4096,1:run:3:state 5").unwrap();
        assert_eq!((play.cards, play.memory), (2, 4096));
        let rule = Rule { card: 1, call: Call::Run, nth: 3, fault: Fault::State(5) };
        assert_eq!(play.rules, [rule]);
        for wrong in ["cards=x", "x", "0:run:1", "0:fly:1:fail", "0:run:1:fall", "0:run:1:slow"] {
            assert_eq!(Play::parse(&format!("cards=1,{wrong}")), Err(wrong.to_owned()));
        }
    }
}
