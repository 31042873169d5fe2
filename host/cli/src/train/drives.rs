//! Shares of drives, and drives that fall behind.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use nearfield_bench::probe;
use nearfield_runtime::graph::{Direction, Graph, Op};
use nearfield_runtime::timeline::Timeline;
use serde::Serialize;

use super::args::TrainArgs;

/// Iterations from which a rate is taken.
const WINDOW: usize = 5;
/// Rates that are remembered of each drive.
const REMEMBERED: usize = 64;
/// A drive is slow that keeps less of its rate than this, while others keep more than `OTHERS`.
const SLOW: f64 = 0.5;
const OTHERS: f64 = 0.8;
/// A transfer is a stall that takes this many seconds, and so many times as long as its bytes usually do.
const STALL_SECONDS: f64 = 1.0;
const STALL_TIMES: f64 = 10.0;

/// The directories of `--drive`, and the share of each: as given, or measured with `--balance`; empty for equal ones.
pub fn shares(args: &TrainArgs) -> Result<(Vec<PathBuf>, Vec<f64>)> {
    let mut paths = Vec::new();
    let mut weights = Vec::new();
    for drive in &args.drive {
        let text = drive.to_string_lossy();
        let weighted = text.rsplit_once('=').filter(|_| !drive.is_dir());
        match weighted.and_then(|(path, weight)| Some((path, weight.parse::<f64>().ok()?))) {
            Some((path, weight)) => {
                paths.push(PathBuf::from(path));
                weights.push(Some(weight));
            }
            None => {
                paths.push(drive.clone());
                weights.push(None);
            }
        }
    }
    let given = weights.iter().flatten().count();
    if args.balance == Some(true) {
        ensure!(
            given == 0,
            "--balance measures the shares of drives; leave out the weights of --drive DIR=WEIGHT"
        );
        ensure!(!paths.is_empty(), "--balance needs drives to measure: give --drive DIR");
        // A run that goes on has its shares already.
        // A dry run makes nothing, not even files to measure with.
        let known = args.resume || args.dry_run;
        let measured = if known { vec![1.0; paths.len()] } else { measure(&paths)? };
        return Ok((paths, measured));
    }
    if given == 0 {
        return Ok((paths, Vec::new()));
    }
    if given < weights.len() {
        bail!("give a weight with each --drive DIR=WEIGHT, or with none");
    }
    Ok((paths, weights.into_iter().flatten().collect()))
}

/// Shares by what drives reach: an update reads and writes about the same number of bytes.
fn measure(paths: &[PathBuf]) -> Result<Vec<f64>> {
    let mut rates = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        let speed = probe::speed(path).with_context(|| {
            format!("--balance cannot measure drive {number} ({})", path.display())
        })?;
        let (read, write) = (speed.read_bytes_per_second, speed.write_bytes_per_second);
        let rate = 2.0 / (1.0 / read + 1.0 / write);
        eprintln!(
            "drive {number}: reads {:.2} GB/s, writes {:.2} GB/s ({})",
            read / 1e9,
            write / 1e9,
            path.display()
        );
        rates.push(rate);
    }
    let most = rates.iter().fold(0.0_f64, |most, &rate| most.max(rate));
    // Two digits: more would be noise.
    Ok(rates.into_iter().map(|rate| ((rate / most * 100.0).round() / 100.0).max(0.01)).collect())
}

/// Something that a drive did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DriveFinding {
    /// Its number.
    pub drive: u32,
    /// Iteration in which it was seen.
    pub iteration: u64,
    /// What.
    pub what: String,
}

/// Watches how fast each drive is.
#[derive(Debug, Default)]
pub struct DriveWatch {
    /// Bytes a second while busy, by drive and direction, one an iteration.
    rates: BTreeMap<(u32, bool), Vec<f64>>,
    /// Drives that are slow now.
    slow: Vec<(u32, bool)>,
    findings: Vec<DriveFinding>,
}

impl DriveWatch {
    /// Looks at the timelines of an iteration; returns what is new.
    pub fn look<'a>(
        &mut self,
        iteration: u64,
        timelines: impl Iterator<Item = (&'a Graph, &'a Timeline)>,
    ) -> Vec<DriveFinding> {
        let mut moved: BTreeMap<(u32, bool), (u64, f64)> = BTreeMap::new();
        let usual: BTreeMap<(u32, bool), f64> =
            self.rates.iter().filter_map(|(&key, rates)| Some((key, median(rates)?))).collect();
        let mut new = Vec::new();
        for (graph, timeline) in timelines {
            for (task, span) in timeline.performed(graph) {
                let Op::Storage { direction, drive, bytes, .. } = task.op else { continue };
                let seconds = span.end_seconds - span.start_seconds;
                let key = (drive, direction == Direction::Write);
                if let Some(usual) = usual.get(&key)
                    && seconds > STALL_SECONDS
                    && seconds > STALL_TIMES * bytes as f64 / usual
                {
                    let what = format!(
                        "{} stalled: {seconds:.1} s for {:.1} MB, which usually take {:.2} s",
                        verb(key.1),
                        bytes as f64 / 1e6,
                        bytes as f64 / usual
                    );
                    new.push(DriveFinding { drive, iteration, what });
                }
                let sum = moved.entry(key).or_default();
                sum.0 += bytes;
                sum.1 += seconds;
            }
        }
        for (&key, &(bytes, seconds)) in &moved {
            if seconds > 0.0 && bytes > 0 {
                let rates = self.rates.entry(key).or_default();
                rates.push(bytes as f64 / seconds);
                // The beginning is kept, to compare with, and the latest.
                if rates.len() > REMEMBERED {
                    rates.remove(REMEMBERED / 2);
                }
            }
        }
        new.extend(self.throttled(iteration));
        self.findings.extend(new.iter().cloned());
        new
    }

    /// Drives that have become slow while others have not.
    fn throttled(&mut self, iteration: u64) -> Vec<DriveFinding> {
        let mut kept: BTreeMap<(u32, bool), (f64, f64)> = BTreeMap::new();
        for (&key, rates) in &self.rates {
            let Some(split) = rates.len().checked_sub(WINDOW).filter(|&split| split >= WINDOW)
            else {
                return Vec::new();
            };
            if let (Some(now), Some(before)) = (median(&rates[split..]), median(&rates[..split])) {
                kept.insert(key, (now, before));
            }
        }
        let mut new = Vec::new();
        for (&(drive, write), &(now, before)) in &kept {
            let others = kept.iter().filter(|((other, way), _)| *other != drive && *way == write);
            let steady = others.clone().all(|(_, (now, before))| now / before > OTHERS);
            let slow = now / before < SLOW && steady;
            let known = self.slow.contains(&(drive, write));
            if slow && !known {
                let what = format!(
                    "{} at {:.2} GB/s, before at {:.2} GB/s{}: it may be hot, worn or full",
                    verb(write),
                    now / 1e9,
                    before / 1e9,
                    if others.count() > 0 { ", while other drives kept their speed" } else { "" }
                );
                new.push(DriveFinding { drive, iteration, what });
                self.slow.push((drive, write));
            } else if known && now / before > OTHERS {
                self.slow.retain(|other| *other != (drive, write));
            }
        }
        new
    }

    /// Everything that was seen.
    pub fn findings(&self) -> &[DriveFinding] {
        &self.findings
    }
}

const fn verb(write: bool) -> &'static str {
    if write { "writes" } else { "reads" }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfield_runtime::graph::{GraphBuilder, Place};
    use nearfield_runtime::timeline::Span;

    /// One write to each of two drives, with these seconds.
    fn look(watch: &mut DriveWatch, iteration: u64, seconds: [f64; 2]) -> Vec<DriveFinding> {
        let mut builder = GraphBuilder::new();
        builder.phase("update");
        for drive in 0..2 {
            let resource = builder.resource(&format!("drive{drive}.write"), Place::Drive(drive), 1);
            let (direction, other) = (Direction::Write, Place::HOST);
            let op = Op::Storage { direction, drive, other, bytes: 100_000_000 };
            builder.task(resource, op, "write", &[]);
        }
        let graph = builder.build().unwrap();
        let span = |seconds| Span::new(0.0, seconds);
        let timeline = Timeline { spans: seconds.map(span).to_vec() };
        watch.look(iteration, std::iter::once((&graph, &timeline)))
    }

    #[test]
    fn a_drive_that_slows_down_alone_is_named_once() {
        let mut watch = DriveWatch::default();
        for iteration in 0..20 {
            assert!(look(&mut watch, iteration, [0.1, 0.1]).is_empty());
        }
        let mut named = Vec::new();
        for iteration in 20..40 {
            named.extend(look(&mut watch, iteration, [0.1, 0.3]));
        }
        assert_eq!((named.len(), named[0].drive), (1, 1));
        assert!(named[0].what.contains("0.33 GB/s, before at 1.00"), "{named:?}");
        assert_eq!(watch.findings(), named);
    }

    #[test]
    fn drives_that_slow_down_together_are_no_finding() {
        let mut watch = DriveWatch::default();
        for iteration in 0..40 {
            let seconds = if iteration < 20 { 0.1 } else { 0.4 };
            assert!(look(&mut watch, iteration, [seconds; 2]).is_empty());
        }
    }

    #[test]
    fn a_stall_is_named_with_what_is_usual() {
        let mut watch = DriveWatch::default();
        for iteration in 0..3 {
            look(&mut watch, iteration, [0.1, 0.1]);
        }
        let found = look(&mut watch, 3, [2.5, 0.1]);
        assert_eq!((found.len(), found[0].drive, found[0].iteration), (1, 0, 3));
        assert!(
            found[0].what.contains("2.5 s for 100.0 MB, which usually take 0.10 s"),
            "{found:?}"
        );
    }

    #[test]
    fn weights_are_given_to_all_drives_or_none() {
        let args = |drives: &[&str]| TrainArgs {
            drive: drives.iter().map(PathBuf::from).collect(),
            ..TrainArgs::default()
        };
        let (paths, weights) = shares(&args(&["/a=2", "/b=0.5"])).unwrap();
        assert_eq!((paths, weights), (vec!["/a".into(), "/b".into()], vec![2.0, 0.5]));
        assert_eq!(shares(&args(&["/a=x", "/b"])).unwrap().1, [0.0; 0]);
        assert!(shares(&args(&["/a=2", "/b"])).is_err());
        let both = TrainArgs { balance: Some(true), ..args(&["/a=2"]) };
        assert!(shares(&both).unwrap_err().to_string().contains("--balance"));
    }
}
