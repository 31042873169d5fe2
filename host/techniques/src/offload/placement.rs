//! Cuts the flat parameter vector into parts and gives them to drives (Smart-Infinity, section 4.1).

use nearfield_runtime::layout::{Layout, Part, align_up};
use nearfield_runtime::{Error, Result};

use super::options::{OffloadOptions, Placement};

/// One tensor of the model as the optimizer sees it: a run of the flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRun {
    /// Its name, for messages.
    pub name: String,
    /// Number of elements.
    pub elements: u64,
    /// Parameter group; groups follow each other in the flat vector.
    pub group: u32,
}

/// The flat vector: tensors one after the other, group by group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlatModel {
    tensors: Vec<TensorRun>,
    elements: u64,
    group_ends: Vec<u64>,
}

impl FlatModel {
    /// Takes tensors in flat order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the groups are not in ascending order.
    pub fn new(tensors: Vec<TensorRun>) -> Result<Self> {
        let mut group_ends = Vec::new();
        let mut elements = 0_u64;
        for tensor in &tensors {
            let group = tensor.group as usize;
            if group + 1 < group_ends.len() {
                return Err(Error::Invalid(format!(
                    "tensor {} of group {group} comes after a later group",
                    tensor.name
                )));
            }
            group_ends.resize(group + 1, elements);
            elements += tensor.elements;
            group_ends[group] = elements;
        }
        Ok(Self { tensors, elements, group_ends })
    }

    /// A model of one anonymous tensor, for benchmarks.
    ///
    /// # Errors
    /// None for any number of elements.
    pub fn single(elements: u64) -> Result<Self> {
        Self::new(vec![TensorRun { name: "flat".into(), elements, group: 0 }])
    }

    /// Elements of the flat vector.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Tensors in flat order.
    pub fn tensors(&self) -> &[TensorRun] {
        &self.tensors
    }

    /// Number of parameter groups.
    pub fn groups(&self) -> usize {
        self.group_ends.len()
    }

    /// The runs of equal group in `[start, start + elements)`: `(group, elements)`.
    pub fn group_runs(&self, start: u64, elements: u64) -> Vec<(usize, u64)> {
        let end = start + elements;
        let mut runs = Vec::new();
        let mut group_start = 0;
        for (group, &group_end) in self.group_ends.iter().enumerate() {
            let (from, to) = (group_start.max(start), group_end.min(end));
            if to > from {
                runs.push((group, to - from));
            }
            group_start = group_end;
        }
        runs
    }
}

/// Most drives.
const DRIVES_MAX: u32 = 4096;
/// Most parts: each is some hundred bytes of graph.
const PARTS_MAX: u64 = 1_000_000;

/// The layout of `model` on `drives` drives.
///
/// # Errors
/// [`Error::Invalid`] for no drive, or options that contradict each other.
pub fn layout(model: &FlatModel, options: &OffloadOptions, drives: u32) -> Result<Layout> {
    options.validate()?;
    let drives = if options.system.on_drives() { drives } else { 1 };
    if drives == 0 {
        return Err(Error::Invalid(format!(
            "--system {} keeps its state on drives: give at least one --drive DIR",
            options.system.name()
        )));
    }
    if drives > DRIVES_MAX {
        return Err(Error::Invalid(format!("{drives} drives are more than {DRIVES_MAX}")));
    }
    let parts = model.elements() / options.subgroup_elements.max(options.align_elements());
    if parts > PARTS_MAX {
        return Err(Error::Invalid(format!(
            "--subgroup-size {} would cut {} parameters into {parts} parts; use a larger one, so that there are at \
             most {PARTS_MAX}",
            options.subgroup_elements,
            model.elements()
        )));
    }
    let align = options.align_elements();
    let shares = Shares::new(options, drives)?;
    let subgroups = match (options.placement, options.system.striped()) {
        (Placement::FlatEqual, false) => flat_equal(model.elements(), options, &shares),
        (Placement::EqualRr, false) => match shares.equal() {
            true => equal_rr(model.elements(), options, drives),
            false => weighted_rr(model.elements(), options, &shares),
        },
        (Placement::FlatEqual | Placement::EqualRr, true) => {
            let whole = Part { drive: 0, subgroup: 0, start: 0, elements: model.elements() };
            cut(whole, options)
        }
        (Placement::SubgroupRr, _) => by_tensor(model, options),
    };
    let parts = if options.system.striped() {
        subgroups.iter().flat_map(|subgroup| stripe(subgroup, align, &shares)).collect()
    } else {
        match options.placement {
            Placement::FlatEqual => subgroups,
            Placement::EqualRr if !shares.equal() => subgroups,
            Placement::SubgroupRr if !shares.equal() => shares.deal(subgroups),
            Placement::EqualRr | Placement::SubgroupRr => subgroups
                .into_iter()
                .map(|part| Part { drive: part.subgroup % drives, ..part })
                .collect(),
        }
    };
    let parts = numbered(parts, options.system.striped());
    Layout::new(model.elements(), align, drives, parts)
}

/// What part of everything each drive gets.
struct Shares {
    drives: u32,
    /// Relative to the others; empty for equal shares.
    weights: Vec<f64>,
}

impl Shares {
    fn new(options: &OffloadOptions, drives: u32) -> Result<Self> {
        let weights = options.drive_weights.clone();
        if !weights.is_empty() && weights.len() != drives as usize {
            return Err(Error::Invalid(format!(
                "{} weights were given for {drives} drives; give one for each, or none",
                weights.len()
            )));
        }
        Ok(Self { drives, weights })
    }

    /// Whether all drives get the same.
    fn equal(&self) -> bool {
        self.weights.windows(2).all(|pair| pair[0] == pair[1])
    }

    fn total(&self) -> f64 {
        self.weights.iter().sum()
    }

    /// Cuts `units` in order: how many each drive gets. Equal shares differ by at most one.
    fn of(&self, units: u64) -> Vec<u64> {
        let drives = u64::from(self.drives);
        if self.equal() {
            return (0..drives)
                .map(|drive| units / drives + u64::from(drive < units % drives))
                .collect();
        }
        let (mut before, mut given) = (0.0, 0);
        let share = |weight: &f64| {
            before += weight;
            let until = (units as f64 * before / self.total()).round() as u64;
            let share = until.min(units) - given;
            given += share;
            share
        };
        self.weights.iter().map(share).collect()
    }

    /// Deals subgroups of any length: each to the drive that is farthest from its share.
    fn deal(&self, subgroups: Vec<Part>) -> Vec<Part> {
        let mut given = vec![0_u64; self.weights.len()];
        subgroups
            .into_iter()
            .map(|part| {
                let after =
                    |drive: usize| (given[drive] + part.elements) as f64 / self.weights[drive];
                let order = (0..given.len()).min_by(|&a, &b| after(a).total_cmp(&after(b)));
                let drive = order.unwrap_or(0);
                given[drive] += part.elements;
                Part { drive: drive as u32, ..part }
            })
            .collect()
    }
}

/// Contiguous shares, each cut into subgroups. Equal shares differ by at most one alignment unit.
fn flat_equal(elements: u64, options: &OffloadOptions, shares: &Shares) -> Vec<Part> {
    let align = options.align_elements();
    let mut parts = Vec::new();
    let mut start = 0;
    for (drive, share) in (0..).zip(shares.of(elements.div_ceil(align))) {
        let end = (start + share * align).min(elements);
        parts.extend(cut(Part { drive, subgroup: 0, start, elements: end - start }, options));
        start = end;
    }
    parts
}

/// Rounds along the flat vector, in each of which every drive gets a piece as long as its share; the longest ones have at most the
/// subgroup size.
fn weighted_rr(elements: u64, options: &OffloadOptions, shares: &Shares) -> Vec<Part> {
    let align = options.align_elements();
    let units = elements.div_ceil(align);
    let longest = (options.subgroup_elements / align).max(1);
    let most = shares.weights.iter().fold(0.0_f64, |most, &weight| most.max(weight));
    let a_round = (longest as f64 * shares.total() / most).max(1.0);
    let rounds = ((units as f64 / a_round).ceil() as u64).max(1);
    let mut parts = Vec::new();
    let mut start = 0;
    for round in 0..rounds {
        let in_round = units / rounds + u64::from(round < units % rounds);
        for (drive, share) in (0..).zip(shares.of(in_round)) {
            let end = (start + share * align).min(elements);
            // Rounding may make a piece one unit too long.
            parts.extend(cut(Part { drive, subgroup: 0, start, elements: end - start }, options));
            start = end;
        }
    }
    parts
}

/// As many pieces for each drive, of lengths that differ by at most one alignment unit; dealt in turn, later.
fn equal_rr(elements: u64, options: &OffloadOptions, drives: u32) -> Vec<Part> {
    let align = options.align_elements();
    let units = elements.div_ceil(align);
    let longest = (options.subgroup_elements / align).max(1);
    let rounds = units.div_ceil(longest * u64::from(drives));
    let pieces = rounds * u64::from(drives);
    let mut parts = Vec::new();
    let mut start = 0;
    for piece in 0..pieces {
        let share = units / pieces + u64::from(piece < units % pieces);
        let end = (start + share * align).min(elements);
        if end > start {
            parts.push(Part { drive: 0, subgroup: piece as u32, start, elements: end - start });
        }
        start = end;
    }
    parts
}

/// Cuts a run into aligned pieces of at most the subgroup size, all but the last of equal length.
fn cut(run: Part, options: &OffloadOptions) -> Vec<Part> {
    let align = options.align_elements();
    let longest = (options.subgroup_elements / align * align).max(align);
    let mut parts = Vec::new();
    let mut start = run.start;
    while start < run.end() {
        let elements = longest.min(run.end() - start);
        parts.push(Part { start, elements, ..run });
        start += elements;
    }
    parts
}

/// Whole tensors until the subgroup size is reached; groups never share a subgroup.
fn by_tensor(model: &FlatModel, options: &OffloadOptions) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut start = 0;
    let mut elements = 0;
    let tensors = model.tensors();
    for (index, tensor) in tensors.iter().enumerate() {
        elements += tensor.elements;
        let ends_group = tensors.get(index + 1).is_none_or(|next| next.group != tensor.group);
        if elements >= options.subgroup_elements || ends_group {
            if elements > 0 {
                let subgroup = parts.len() as u32;
                parts.push(Part { drive: 0, subgroup, start, elements });
            }
            start += elements;
            elements = 0;
        }
    }
    parts
}

/// One part of a subgroup on each drive, in aligned shares; small subgroups leave drives out.
fn stripe(subgroup: &Part, align: u64, shares: &Shares) -> Vec<Part> {
    let equal = align_up(subgroup.elements.div_ceil(u64::from(shares.drives)), align);
    let weighted = shares.of(subgroup.elements.div_ceil(align));
    let mut parts = Vec::new();
    let mut start = subgroup.start;
    for (drive, weighted) in (0..).zip(weighted) {
        let share = if shares.equal() { equal } else { weighted * align };
        let elements = share.min(subgroup.end() - start);
        if elements > 0 {
            parts.push(Part { drive, start, elements, ..*subgroup });
        }
        start += elements;
    }
    parts
}

/// Numbers subgroups in flat order. With stripes, a part on a drive before that of the last part opens a new subgroup.
fn numbered(mut parts: Vec<Part>, striped: bool) -> Vec<Part> {
    let (mut next, mut last) = (0, None);
    for part in &mut parts {
        if last.is_some_and(|last| !striped || part.drive <= last) {
            next += 1;
        }
        last = Some(part.drive);
        part.subgroup = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use nearfield_runtime::types::DType;
    use proptest::prelude::*;

    use super::*;
    use crate::offload::System;

    fn options(system: System, placement: Placement, subgroup_elements: u64) -> OffloadOptions {
        OffloadOptions { system, placement, subgroup_elements, ..OffloadOptions::default() }
    }

    #[test]
    fn flat_equal_shares_differ_by_at_most_one_unit() {
        let model = FlatModel::single(10_000).unwrap();
        let layout =
            layout(&model, &options(System::SuO, Placement::FlatEqual, 1 << 20), 3).unwrap();
        let shares: Vec<u64> = layout.parts.iter().map(|part| part.elements).collect();
        assert_eq!(shares, [4096, 3072, 2832]);
    }

    #[test]
    fn subgroups_by_tensor_close_at_the_size_and_at_group_ends() {
        let run = |elements, group| TensorRun { name: "t".into(), elements, group };
        let model = FlatModel::new(vec![
            run(5, 0),
            run(5, 0),
            run(100, 0),
            run(3, 0),
            run(2, 1),
            run(2, 1),
        ])
        .unwrap();
        let layout = layout(&model, &options(System::Su, Placement::SubgroupRr, 10), 2).unwrap();
        let parts: Vec<_> = layout.parts.iter().map(|p| (p.elements, p.drive)).collect();
        assert_eq!(parts, [(10, 0), (100, 1), (3, 0), (4, 1)]);
    }

    #[test]
    fn stripes_put_a_part_of_each_subgroup_on_each_drive() {
        let model = FlatModel::single(20_000).unwrap();
        let layout = layout(&model, &options(System::Base, Placement::FlatEqual, 8192), 2).unwrap();
        let parts: Vec<_> =
            layout.parts.iter().map(|p| (p.subgroup, p.drive, p.elements)).collect();
        assert_eq!(
            parts,
            [(0, 0, 4096), (0, 1, 4096), (1, 0, 4096), (1, 1, 4096), (2, 0, 2048), (2, 1, 1568)]
        );
    }

    #[test]
    fn group_runs_split_at_group_ends() {
        let run = |elements, group| TensorRun { name: "t".into(), elements, group };
        let model = FlatModel::new(vec![run(10, 0), run(6, 2)]).unwrap();
        assert_eq!(model.group_runs(4, 10), [(0, 6), (2, 4)]);
        assert_eq!(model.group_runs(12, 2), [(2, 2)]);
        assert!(FlatModel::new(vec![run(1, 1), run(1, 0)]).is_err());
    }

    #[test]
    fn weights_that_are_wrong_are_refused() {
        let model = FlatModel::single(10_000).unwrap();
        let with = |drive_weights: Vec<f64>| OffloadOptions {
            drive_weights,
            ..options(System::SuO, Placement::EqualRr, 1 << 20)
        };
        let text = |weights| layout(&model, &with(weights), 2).unwrap_err().to_string();
        assert!(text(vec![1.0]).contains("1 weights were given for 2 drives"));
        assert!(text(vec![1.0, 0.0]).contains("between 0.001"));
        assert!(text(vec![1.0, f64::NAN]).contains("NaN"));
        let equal = layout(&model, &with(vec![3.0, 3.0]), 2).unwrap();
        assert_eq!(equal, layout(&model, &with(Vec::new()), 2).unwrap());
    }

    proptest! {
        #[test]
        fn weighted_layouts_are_partitions_in_which_drives_have_their_shares(
            units in 200_u64..3000,
            subgroup in 1_u64..40,
            weights in prop::collection::vec(0.2_f64..5.0, 1..6),
            system in prop::sample::select(vec![System::Base, System::SuO]),
            placement in prop::sample::select(vec![Placement::FlatEqual, Placement::EqualRr]),
        ) {
            let model = FlatModel::single(units * 1024 - 7).unwrap();
            let options = OffloadOptions {
                drive_weights: weights.clone(),
                ..options(system, placement, subgroup * 1024)
            };
            let layout = layout(&model, &options, weights.len() as u32).unwrap();
            prop_assert!(layout.parts.iter().all(|part| part.elements <= subgroup * 1024));
            let total: f64 = weights.iter().sum();
            // Each round, or subgroup, may be a unit off.
            let rounds = (units / subgroup) as f64 + 2.0;
            for (drive, weight) in weights.iter().enumerate() {
                let own: u64 = layout.on_drive(drive as u32).iter().map(|&part| layout.parts[part].elements).sum();
                let wanted = units as f64 * weight / total;
                prop_assert!((own as f64 / 1024.0 - wanted).abs() <= rounds, "{own} {wanted} {rounds}");
            }
        }

        #[test]
        fn every_layout_is_a_partition_with_bounded_aligned_parts(
            sizes in prop::collection::vec(0_u64..9000, 1..20),
            subgroup in 1_u64..20_000,
            drives in 1_u32..11,
            system in prop::sample::select(System::ALL.to_vec()),
            placement in prop::sample::select(vec![Placement::FlatEqual, Placement::EqualRr, Placement::SubgroupRr]),
            half in any::<bool>(),
        ) {
            let tensors: Vec<_> = sizes.iter().enumerate().map(|(index, &elements)| TensorRun {
                name: format!("t{index}"), elements, group: u32::from(index > sizes.len() / 2),
            }).collect();
            let model = FlatModel::new(tensors).unwrap();
            let mut options = options(system, placement, subgroup);
            if half && system != System::SuOC {
                options.gradient_dtype = DType::Fp16;
            }
            // Layout::new itself refuses anything but a partition.
            let layout = layout(&model, &options, drives).unwrap();
            prop_assert_eq!(layout.elements, sizes.iter().sum::<u64>());
            if placement != Placement::SubgroupRr {
                let bound = subgroup.max(layout.align_elements);
                prop_assert!(layout.parts.iter().all(|part| part.elements <= bound));
            }
            if placement == Placement::EqualRr && !system.striped() && system.on_drives() {
                let share = |drive| layout.on_drive(drive).iter().map(|&part| layout.padded(part)).sum::<u64>();
                let shares: Vec<u64> = (0..drives).map(share).collect();
                let pieces = layout.parts.len().div_ceil(drives as usize) as u64;
                let (most, least) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
                prop_assert!(most - least <= pieces * layout.align_elements, "{shares:?}");
            }
        }
    }
}
