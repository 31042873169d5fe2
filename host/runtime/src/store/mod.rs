//! The state store: what a drive directory holds, and how it survives anything.
//!
//! A run has one [`DriveStore`] a drive. [`create`] makes them, [`open`] finds them again and says where the run
//! stands; [`inspect`], [`verify`] and [`digest_of`] look at drives at rest.
//!
//! | file           | content                                                     | documented at |
//! |----------------|-------------------------------------------------------------|---------------|
//! | `superblock.nf`| identity and formats, written last at creation              | [`Superblock`] |
//! | `layout.nf`    | which part of the flat vector lies where                    | `superblock.rs` |
//! | `slots.nf`     | master weights and moments, one slot a part and a few spare | `slots.rs` |
//! | `gradients.nf` | gradients of the step in progress                           | `gradients.rs` |
//! | `residual.nf`  | what compression has left out, with error feedback          | `gradients.rs` |
//! | `journal.nf`   | intents and commits of the last steps                       | `journal.rs` |
//! | `lock`         | who uses the directory                                      | `lock.rs` |

mod block;
mod copy;
mod create;
mod digest;
mod drive;
mod files;
mod geometry;
mod gradients;
mod inspect;
mod journal;
mod lock;
mod open;
mod read;
mod reader;
mod recovery;
mod room;
mod slots;
mod superblock;
#[cfg(test)]
mod tests;

pub use copy::{Copied, copy_state, holds_state};
pub use create::{Creation, create};
pub use digest::StateDigest;
pub use drive::{DriveStore, Durability};
pub use files::MetadataBytes;
pub use geometry::{bytes_on_drive, spare_slots};
pub use gradients::{GradientInfo, ResidualInfo};
pub use inspect::{
    DriveReport, Finding, StateReport, check, digest, digest_of, inspect, stored_layout, verify,
};
pub use journal::{RecordKind, StepRecord};
pub use open::open;
pub use read::StoredArray;
pub use reader::StateReader;
pub use recovery::{Recovered, Redo};
pub use room::state_bytes;
pub use slots::{SlotMove, SlotState};
pub use superblock::{GradientFormat, RunId, StateSpec, Superblock};
