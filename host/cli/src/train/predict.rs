//! Times that a description of this machine predicts for the graphs of a run.

use anyhow::{Result, ensure};
use nearfield_runtime::graph::{Graph, Place};
use nearfield_sim::VirtualExecutor;
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_techniques::offload::Blueprint;
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_train::trainer::Trainer;

use super::args::{DeviceKind, TrainArgs};

/// Seconds of one iteration by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Predicted {
    /// Forward passes.
    pub forward: f64,
    /// Backward passes, gradient offload included.
    pub backward: f64,
    /// The update.
    pub update: f64,
}

/// The machine that `--fabric` describes, with the drives of the run.
pub fn executor(args: &TrainArgs, drives: usize) -> Result<Option<VirtualExecutor<FabricCosts>>> {
    let Some(fabric) = &args.fabric else {
        ensure!(
            args.device != Some(DeviceKind::Virtual),
            "--device virtual needs --fabric NAME|FILE, the machine whose clock is to be used"
        );
        return Ok(None);
    };
    let selection = Selection {
        gpu: args.gpu.clone(),
        topology: args.topology.clone(),
        ..Selection::drives(u32::try_from(drives)?)
    };
    let costs = FabricCosts::new(&Fabric::open(fabric)?, &selection)?;
    Ok(Some(VirtualExecutor::new(costs)?))
}

/// Runs the graphs of one iteration with `accumulate` micro-steps in virtual time.
pub fn predict(
    executor: &VirtualExecutor<FabricCosts>,
    accumulate: u32,
    blueprint: &Blueprint,
) -> Result<Predicted> {
    let mut predicted = Predicted::default();
    let mut add = |graph: &Graph, times: f64| -> Result<()> {
        let timeline = executor.simulate(graph)?.timeline;
        for (phase, seconds) in timeline.phase_seconds(graph) {
            let seconds = seconds * times;
            match phase.as_str() {
                "forward" => predicted.forward += seconds,
                "update" => predicted.update += seconds,
                _ => predicted.backward += seconds,
            }
        }
        Ok(())
    };
    if accumulate > 1 {
        add(&blueprint.gradient(MicroStep::Accumulate).graph, f64::from(accumulate - 1))?;
    }
    for plan in blueprint.step_plans() {
        add(&plan.graph, 1.0)?;
    }
    Ok(predicted)
}

/// Checks that the machine described holds what the run needs.
pub fn check_memory(executor: &VirtualExecutor<FabricCosts>, trainer: &Trainer) -> Result<()> {
    let costs = executor.costs();
    for plan in trainer.engine().blueprint().step_plans() {
        costs.check_memory(&plan.graph, &executor.simulate(&plan.graph)?.timeline)?;
    }
    let budget = trainer.engine().budget();
    let fabric = costs.fabric();
    let runtime = budget.host_bytes(costs.in_host_memory(Place::Local(0)));
    fabric.check_host(runtime + trainer.accumulator_bytes())?;
    for drive in &trainer.options().drives {
        let files = std::fs::read_dir(drive)?.flatten();
        let bytes = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        fabric.check_capacity(bytes)?;
    }
    Ok(())
}
