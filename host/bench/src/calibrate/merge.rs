//! Medians of descriptions that were measured several times.

use std::collections::BTreeMap;

use nearfield_sim::fabric::{Drive, Host, Positive, SizePoint, WorkPoint};

use super::positive;
use crate::values::median;

/// The median of each number of `all`, which are descriptions of the same drive; `None` without any.
pub(super) fn drives(all: &[Drive]) -> anyhow::Result<Option<Drive>> {
    let Some(first) = all.first() else { return Ok(None) };
    Ok(Some(Drive {
        read: sizes(all, |one| &one.read)?,
        write: sizes(all, |one| &one.write)?,
        read_alone: sizes(all, |one| &one.read_alone)?,
        write_alone: sizes(all, |one| &one.write_alone)?,
        host_time: sizes(all, |one| &one.host_time)?,
        mixed_seconds_per_second: number(all, |one| one.mixed_seconds_per_second)?,
        seal_seconds: number(all, |one| one.seal_seconds)?,
        ..first.clone()
    }))
}

/// The same for the host.
pub(super) fn hosts(all: &[Host]) -> anyhow::Result<Option<Host>> {
    let Some(first) = all.first() else { return Ok(None) };
    let mut kernels = BTreeMap::new();
    for name in first.kernels.keys() {
        let curve = sizes(all, |one| one.kernels.get(name).map_or(&[], Vec::as_slice))?;
        kernels.insert(name.clone(), curve);
    }
    let tasks: Vec<f64> = all.iter().filter_map(|one| Some(one.task_seconds?.get())).collect();
    Ok(Some(Host {
        copy_bytes_per_second: number(all, |one| one.copy_bytes_per_second)?,
        task_seconds: (!tasks.is_empty()).then(|| positive(median(&tasks))).transpose()?,
        kernels,
        ..first.clone()
    }))
}

/// The median of each rate of computations.
///
/// # Errors
/// Rates that are no numbers above 0.
pub fn work(all: &[Vec<WorkPoint>]) -> anyhow::Result<Vec<WorkPoint>> {
    let points = all.iter().map(Vec::len).min().unwrap_or(0);
    let point = |index: usize| {
        let rates: Vec<f64> = all.iter().map(|one| one[index].flops_per_second.get()).collect();
        Ok(WorkPoint { flops: all[0][index].flops, flops_per_second: positive(median(&rates))? })
    };
    (0..points).map(point).collect()
}

fn number<T>(all: &[T], of: impl Fn(&T) -> Positive) -> anyhow::Result<Positive> {
    positive(median(&all.iter().map(|one| of(one).get()).collect::<Vec<_>>()))
}

fn sizes<T>(all: &[T], of: impl Fn(&T) -> &[SizePoint]) -> anyhow::Result<Vec<SizePoint>> {
    let points = all.iter().map(|one| of(one).len()).min().unwrap_or(0);
    let point = |index: usize| {
        let rates: Vec<f64> = all.iter().map(|one| of(one)[index].bytes_per_second.get()).collect();
        let bytes = of(&all[0])[index].bytes;
        Ok(SizePoint { bytes, bytes_per_second: positive(median(&rates))? })
    };
    (0..points).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_is_the_median_of_its_measurements() {
        let curve = |rates: [f64; 2]| -> Vec<WorkPoint> {
            let point = |(index, rate): (usize, f64)| WorkPoint {
                flops: positive(10.0 * (index + 1) as f64).unwrap(),
                flops_per_second: positive(rate).unwrap(),
            };
            rates.into_iter().enumerate().map(point).collect()
        };
        let merged = work(&[curve([1.0, 9.0]), curve([3.0, 7.0]), curve([2.0, 8.0])]).unwrap();
        let rates: Vec<f64> = merged.iter().map(|point| point.flops_per_second.get()).collect();
        assert_eq!(rates, [2.0, 8.0]);
        assert!(drives(&[]).unwrap().is_none());
    }
}
