//! Values that files hold as text or number: places, kernels, kinds of collective operations.

use nearfield_runtime::graph::{Collective, Place};

use super::proto::CollectiveCommType;

/// Names of kernels that graphs are made of. [`nearfield_runtime::graph::Op::Kernel`] has names of the program itself,
/// so only these can be read.
pub(super) const KERNELS: [&str; 8] =
    ["allocate", "cast", "check_pairs", "decompress", "release", "topk", "update", "update_topk"];

/// The program's own copy of a kernel's name.
pub(super) fn kernel(name: &str) -> Option<&'static str> {
    KERNELS.into_iter().find(|&known| known == name)
}

/// Reads what [`Place`] displays.
pub(super) fn place(text: &str) -> Option<Place> {
    let digits = text.find(|letter: char| letter.is_ascii_digit()).unwrap_or(text.len());
    let index = match &text[digits..] {
        "" => 0,
        number => number.parse().ok()?,
    };
    let place = match &text[..digits] {
        "host" => Place::Host(index),
        "gpu" => Place::Gpu(index),
        "drive" => Place::Drive(index),
        "local" => Place::Local(index),
        _ => return None,
    };
    // Each place has one name: neither `host0` nor `gpu01`.
    (place.to_string() == text).then_some(place)
}

/// How far a place is from where the model is computed.
pub(super) const fn distance(place: Place) -> u8 {
    match place {
        Place::Gpu(_) => 0,
        Place::Host(_) => 1,
        Place::Local(_) => 2,
        Place::Drive(_) => 3,
    }
}

/// Chakra's number for a collective operation.
pub(super) const fn comm_type(kind: Collective) -> CollectiveCommType {
    match kind {
        Collective::AllReduce => CollectiveCommType::AllReduce,
        Collective::AllGather => CollectiveCommType::AllGather,
        Collective::ReduceScatter => CollectiveCommType::ReduceScatter,
        Collective::Broadcast => CollectiveCommType::Broadcast,
        Collective::AllToAll => CollectiveCommType::AllToAll,
    }
}

/// The collective operation of Chakra's number; `None` for those that graphs do not have.
pub(super) fn collective(number: u64) -> Option<Collective> {
    let kind = CollectiveCommType::try_from(i32::try_from(number).ok()?).ok()?;
    match kind {
        CollectiveCommType::AllReduce => Some(Collective::AllReduce),
        CollectiveCommType::AllGather => Some(Collective::AllGather),
        // Blocks are parts of equal size; a graph does not tell them apart.
        CollectiveCommType::ReduceScatter | CollectiveCommType::ReduceScatterBlock => {
            Some(Collective::ReduceScatter)
        }
        CollectiveCommType::Broadcast => Some(Collective::Broadcast),
        CollectiveCommType::AllToAll => Some(Collective::AllToAll),
        CollectiveCommType::Reduce
        | CollectiveCommType::Gather
        | CollectiveCommType::Scatter
        | CollectiveCommType::Barrier => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_shown_and_in_no_other_way() {
        for index in [0, 1, 9, 10, u32::MAX] {
            for of in [Place::Host, Place::Gpu, Place::Drive, Place::Local] {
                assert_eq!(place(&of(index).to_string()), Some(of(index)));
            }
        }
        for text in ["", "7", "host0", "gpu", "gpu01", "gpu-1", "gpu1x", "tape1", "gpu4294967296"] {
            assert_eq!(place(text), None, "{text}");
        }
    }

    #[test]
    fn kinds_of_collective_operations_come_back() {
        for kind in [
            Collective::AllReduce,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::Broadcast,
            Collective::AllToAll,
        ] {
            assert_eq!(collective(comm_type(kind) as u64), Some(kind));
        }
        assert_eq!(collective(CollectiveCommType::ReduceScatterBlock as u64), collective(7));
        assert_eq!(collective(CollectiveCommType::Barrier as u64), None);
        assert_eq!(collective(u64::MAX), None);
    }
}
