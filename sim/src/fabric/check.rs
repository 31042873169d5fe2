//! What must hold of a description beyond its syntax.

use nearfield_runtime::Result;

use super::numbers::Point;
use super::{Fabric, machine};

/// Checks curves, counts, links and topologies.
pub(super) fn check(fabric: &Fabric) -> Result<()> {
    let drive = &fabric.drive;
    curve(fabric, &["drive", "read"], &drive.read, true)?;
    curve(fabric, &["drive", "write"], &drive.write, true)?;
    curve(fabric, &["drive", "read_alone"], &drive.read_alone, false)?;
    curve(fabric, &["drive", "write_alone"], &drive.write_alone, false)?;
    curve(fabric, &["drive", "host_time"], &drive.host_time, false)?;
    for (name, points) in &fabric.host.kernels {
        curve(fabric, &["host", "kernels", name], points, true)?;
    }
    for (kernel, points) in drive.near.iter().flat_map(|near| &near.kernels) {
        curve(fabric, &["drive", "near", "kernels", kernel], points, true)?;
    }
    for (name, gpu) in &fabric.gpus {
        curve(fabric, &["gpus", name, "forward"], &gpu.forward, true)?;
        curve(fabric, &["gpus", name, "backward"], &gpu.backward, true)?;
        for (kernel, points) in &gpu.kernels {
            curve(fabric, &["gpus", name, "kernels", kernel], points, true)?;
        }
        count(fabric, &["gpus", name, "count_max"], gpu.count_max)?;
    }
    for (name, link) in &fabric.links {
        let key = ["links", name, "efficiency"];
        curve(fabric, &key, &link.efficiency, false)?;
        if link.efficiency.iter().any(|point| point.share.get() > 1.0) {
            return Err(fabric.error(&key, "a share is above 1"));
        }
    }
    let near = drive.near.as_ref().and_then(|near| near.peer_mixed_seconds_per_second);
    for (key, value) in [
        (&["drive", "mixed_seconds_per_second"][..], Some(drive.mixed_seconds_per_second)),
        (&["drive", "near", "peer_mixed_seconds_per_second"], near),
    ] {
        if value.is_some_and(|value| !(1.0..=2.0).contains(&value.get())) {
            return Err(fabric.error(key, "must be between 1 and 2"));
        }
    }
    count(fabric, &["drive", "count_max"], drive.count_max)?;
    count(fabric, &["drive", "disks"], drive.disks)?;
    if fabric.gpus.is_empty() {
        return Err(fabric.error(&["gpus"], "at least one compute device is needed"));
    }
    machine::check(fabric)
}

fn curve<P: Point>(fabric: &Fabric, key: &[&str], points: &[P], needed: bool) -> Result<()> {
    if points.is_empty() && needed {
        return Err(fabric.error(key, "at least one point is needed"));
    }
    if !points.is_sorted_by(|a, b| a.size() < b.size()) {
        return Err(fabric.error(key, "sizes must ascend"));
    }
    Ok(())
}

fn count(fabric: &Fabric, key: &[&str], count: Option<u32>) -> Result<()> {
    if count == Some(0) {
        Err(fabric.error(key, "0 is too few; at least 1 is needed"))
    } else {
        Ok(())
    }
}
