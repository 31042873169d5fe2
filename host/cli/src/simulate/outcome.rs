//! What came out of a combination.

use std::collections::HashMap;

use anyhow::Result;
use nearfield_runtime::graph::{Place, Traffic};
use nearfield_runtime::types::Optimizer;
use nearfield_sim::fabric::{Fabric, FabricCosts};
use nearfield_techniques::offload::System;
use serde::Serialize;

use super::case::{Case, Run, Step};

/// One line of output.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    pub fabric: String,
    pub gpu: String,
    pub gpus: u32,
    pub topology: String,
    pub model: String,
    pub parameters: u64,
    pub drives: u32,
    pub system: System,
    pub overlap_update: bool,
    pub topk_keep: f64,
    pub optimizer: Optimizer,
    pub batch: u64,
    pub seq: u64,
    pub forward_seconds: f64,
    pub backward_seconds: f64,
    pub update_seconds: f64,
    pub total_seconds: f64,
    pub bytes: Traffic,
    /// The kind of link or engine that is busy for the largest part of the step.
    pub bottleneck: String,
    /// Links and engines with the share of the step in which they are busy, busiest first.
    pub utilisation: Vec<Busy>,
    /// Bytes over each kind of link.
    pub links: Vec<Carried>,
    pub memory: Memory,
    /// Price of the machine, where the fabric has prices; the baselines need no device beside the drives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_usd: Option<f64>,
    /// What faster links and engines would do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<Relief>,
}

/// How busy one kind of link or engine is: the busiest of them.
#[derive(Debug, Clone, Serialize)]
pub struct Busy {
    pub name: String,
    /// Seconds of the step, at full speed.
    pub seconds: f64,
    /// Share of the step.
    pub share: f64,
}

/// Bytes over all links of one kind.
#[derive(Debug, Clone, Serialize)]
pub struct Carried {
    pub name: String,
    pub bytes: u64,
}

/// Most bytes held at a time, by place; of several compute devices or drives that which holds most.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    pub host_bytes: u64,
    pub gpu_bytes: u64,
    /// Memory of the device beside a drive.
    pub local_bytes: u64,
    /// State and gradients on a drive.
    pub drive_bytes: u64,
}

/// What one part of the machine holds up: both directions of a link, all of a drive, an engine.
#[derive(Debug, Clone, Serialize)]
pub struct Relief {
    /// The busiest kind of link or engine of the part.
    pub name: String,
    /// How many times as fast it would have to be for another to be the busiest; 1 where another is.
    pub times_faster: f64,
    /// Seconds of the step if it were twice as fast.
    pub twice_seconds: f64,
    /// Seconds of the step if it took no time.
    pub unlimited_seconds: f64,
}

/// Shares of the step below this are not worth a what-if.
const LEAST_SHARE: f64 = 0.02;
/// As good as no time.
const UNLIMITED: f64 = 1e6;

impl Outcome {
    /// Runs `case` on `fabric`; `what_if` asks what faster parts would do. Also returns what was run, for traces.
    pub fn of(case: &Case, fabric: &Fabric, what_if: bool) -> Result<(Self, Step, Run)> {
        let selection = case.selection();
        // First of all: a machine takes fewer drives than a graph could have.
        let costs = FabricCosts::new(fabric, &selection)?;
        let step = case.step()?;
        let run = step.run(&costs)?;
        step.check_memory(&costs, fabric, &run)?;
        let total = run.seconds();
        let utilisation = utilisation(&step, &run, &costs)?;
        let [forward_seconds, backward_seconds, update_seconds] = run.phases;
        let near = case.system.near_storage();
        let outcome = Self {
            fabric: fabric.name.clone(),
            gpu: fabric.gpu(case.gpu.as_deref())?.0.to_owned(),
            gpus: case.gpus,
            topology: case.topology.clone(),
            model: step.model.clone(),
            parameters: step.parameters,
            drives: case.drives,
            system: case.system,
            overlap_update: case.overlap_update && case.system.can_overlap_update(),
            topk_keep: case.topk_keep,
            optimizer: case.optimizer,
            batch: case.batch,
            seq: case.seq,
            forward_seconds,
            backward_seconds,
            update_seconds,
            total_seconds: total,
            bytes: step.graphs.iter().map(|graph| graph.traffic()).sum(),
            bottleneck: utilisation.first().map(|busy| busy.name.clone()).unwrap_or_default(),
            links: carried(&run, &costs),
            memory: memory(case, &step, &run, &costs)?,
            price_usd: fabric.price_usd(&selection, near),
            what_if: if what_if { reliefs(&step, &costs, &utilisation)? } else { Vec::new() },
            utilisation,
        };
        Ok((outcome, step, run))
    }

    /// The system, and whether its updates overlap with the backward pass.
    pub fn system_name(&self) -> String {
        let overlap = if self.overlap_update { ", overlapped" } else { "" };
        format!("{}{overlap}", self.system.name())
    }

    /// The phases, in the order in which they run.
    pub const fn phases(&self) -> [(&'static str, f64); 3] {
        [
            ("forward", self.forward_seconds),
            ("backward", self.backward_seconds),
            ("update", self.update_seconds),
        ]
    }
}

/// Links by what they carried over what they could have carried, and engines by the time in which they had a task.
fn utilisation(step: &Step, run: &Run, costs: &FabricCosts) -> Result<Vec<Busy>> {
    // By name, so that both halves of the step add up for each; then the busiest of each kind.
    let mut each: HashMap<(&str, &str), f64> = HashMap::new();
    let mut add = |name, group, seconds| *each.entry((name, group)).or_default() += seconds;
    for (graph, simulation) in step.graphs.iter().zip(&run.simulations) {
        let seconds = simulation.timeline.seconds();
        for (link, group) in simulation.links.iter().zip(costs.link_groups()) {
            add(&link.name, group, link.utilisation * seconds);
        }
        for task in graph.tasks() {
            if let Some((group, seconds)) = costs.engine(graph, task)? {
                let engine = &graph.resources()[task.resource.0 as usize].name;
                // One thread serves all compute devices, each of them for as long.
                add(engine, group, seconds);
            }
        }
    }
    let total = run.seconds();
    let mut busy: Vec<Busy> = Vec::new();
    for ((_, group), seconds) in each {
        match busy.iter_mut().find(|other| other.name == group) {
            Some(other) => other.seconds = other.seconds.max(seconds),
            None => busy.push(Busy { name: group.to_owned(), seconds, share: 0.0 }),
        }
    }
    for one in &mut busy {
        one.share = if total > 0.0 { one.seconds / total } else { 0.0 };
    }
    busy.retain(|one| one.seconds > 0.0);
    busy.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.name.cmp(&b.name)));
    Ok(busy)
}

fn carried(run: &Run, costs: &FabricCosts) -> Vec<Carried> {
    let mut all: Vec<Carried> = Vec::new();
    for simulation in &run.simulations {
        for (link, group) in simulation.links.iter().zip(costs.link_groups()) {
            match all.iter_mut().find(|one| one.name == *group) {
                Some(one) => one.bytes += link.bytes,
                None => all.push(Carried { name: group.clone(), bytes: link.bytes }),
            }
        }
    }
    // What the processor does is not counted in bytes.
    all.retain(|one| one.bytes > 0 && one.name != "host.cpu");
    all
}

fn memory(case: &Case, step: &Step, run: &Run, costs: &FabricCosts) -> Result<Memory> {
    let peak = |wanted: fn(u32) -> Place, count: u32| {
        let of = |place| {
            let runs = step.graphs.iter().zip(&run.simulations);
            runs.map(|(graph, run)| run.timeline.peak_bytes(graph, place)).max().unwrap_or(0)
        };
        (0..count).map(|number| of(wanted(number))).max().unwrap_or(0)
    };
    Ok(Memory {
        host_bytes: step.host_bytes(costs, run),
        gpu_bytes: peak(Place::Gpu, case.gpus),
        local_bytes: peak(Place::Local, case.drives),
        drive_bytes: step.drive_bytes()?,
    })
}

fn reliefs(step: &Step, costs: &FabricCosts, utilisation: &[Busy]) -> Result<Vec<Relief>> {
    let mut reliefs: Vec<Relief> = Vec::new();
    for busy in utilisation.iter().take_while(|busy| busy.share >= LEAST_SHARE) {
        let part = FabricCosts::part(&busy.name);
        if reliefs.iter().any(|other| FabricCosts::part(&other.name) == part) {
            continue;
        }
        let seconds =
            |factor: f64| anyhow::Ok(step.run(&costs.faster(&busy.name, factor))?.seconds());
        let next = utilisation.iter().find(|other| FabricCosts::part(&other.name) != part);
        let next = next.map_or(busy.seconds, |next| next.seconds);
        reliefs.push(Relief {
            name: busy.name.clone(),
            times_faster: (busy.seconds / next).max(1.0),
            twice_seconds: seconds(2.0)?,
            unlimited_seconds: seconds(UNLIMITED)?,
        });
    }
    Ok(reliefs)
}
