//! Times that a description of this machine predicts for the graphs of a run.

use anyhow::Result;
use nearfield_sim::VirtualExecutor;
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_techniques::offload::plan::gradient::MicroStep;
use nearfield_train::trainer::{GraphKind, Trainer};

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

/// Runs the graphs of one iteration on the machine that `fabric` describes.
pub fn predict(fabric: &str, trainer: &Trainer) -> Result<Predicted> {
    let fabric = Fabric::open(fabric)?;
    let options = trainer.options();
    let costs = FabricCosts::new(&fabric, &Selection::drives(options.drives.len() as u32))?;
    let executor = VirtualExecutor::new(costs)?;
    let mut predicted = Predicted::default();
    let mut add = |kind: GraphKind, times: f64| -> Result<()> {
        let graph = trainer.graph(kind);
        let timeline = executor.simulate(graph)?.timeline;
        for phase in timeline.phases(graph) {
            let seconds = (phase.end_seconds - phase.start_seconds) * times;
            match phase.name.as_str() {
                "forward" => predicted.forward += seconds,
                "update" => predicted.update += seconds,
                _ => predicted.backward += seconds,
            }
        }
        Ok(())
    };
    if options.accumulate > 1 {
        add(GraphKind::Gradient(MicroStep::Accumulate), f64::from(options.accumulate - 1))?;
    }
    add(GraphKind::Gradient(MicroStep::Offload), 1.0)?;
    add(GraphKind::Update, 1.0)?;
    Ok(predicted)
}
