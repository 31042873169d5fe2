//! Gradient codecs: exact top-k, its decoder, and error feedback (Smart-Infinity, section 4: SmartComp).
//!
//! [`TopK`] keeps the `k` elements of greatest magnitude of a subgroup's gradient as pairs of index and value,
//! sorted by index; [`scatter`] expands any range of them again. [`kept`] says how many pairs a subgroup has.
//!
//! # How the selection works
//!
//! A float's magnitude orders like its bits without the sign, as an unsigned integer. So all work is on
//! integers, exact, and the same for every instruction set and thread count:
//!
//! 1. a jittered sample bounds the k-th magnitude from below, with some margin;
//! 2. one pass over memory gathers the candidates, the few elements at or above the bound;
//! 3. a radix search over the candidates finds the k-th magnitude, and the kept pairs are written in order.
//!
//! When the bound was too high (fewer than `k` candidates) or the candidates are too many (ties, all equal, a
//! large `k`), the same search runs over the whole gradient instead: at most six passes, the same result.

mod bins;
mod candidates;
mod crew;
mod dense;
mod element;
mod feedback;
mod kept;
mod lanes;
mod pairs;
mod place;
mod read_pass;
mod sample;
mod threshold;
mod topk;

pub use element::Element;
pub use feedback::ErrorFeedback;
pub use kept::kept;
pub use pairs::{check_pairs, first_wrong_pair, pairs_in, scatter};
pub use read_pass::read_pass;
pub use topk::TopK;

#[cfg(test)]
mod tests;
