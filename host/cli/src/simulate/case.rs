//! One combination.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nearfield_runtime::graph::{Graph, Traffic};
use nearfield_runtime::timeline::TraceFile;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_sim::fabric::{Fabric, FabricCosts, Selection};
use nearfield_sim::{Simulation, VirtualExecutor};
use nearfield_techniques::model::ModelShape;
use nearfield_techniques::offload::placement::layout;
use nearfield_techniques::offload::plan::gradient::{self, MicroStep, UnitShape};
use nearfield_techniques::offload::plan::update;
use nearfield_techniques::offload::{OffloadOptions, Placement, System, Upstream};
use serde::Serialize;

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub model: String,
    pub gpu: Option<String>,
    pub gpus: u32,
    pub topology: String,
    pub drives: u32,
    pub system: System,
    pub optimizer: Optimizer,
    pub topk_keep: f64,
    pub batch: u64,
    pub seq: u64,
    pub dtype: DType,
    pub gradient_dtype: DType,
    pub upstream: Upstream,
    pub placement: Placement,
    pub subgroup_size: u64,
    pub pieces: u32,
}

/// What came out.
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
    pub topk_keep: f64,
    pub optimizer: Optimizer,
    pub batch: u64,
    pub seq: u64,
    pub forward_seconds: f64,
    pub backward_seconds: f64,
    pub update_seconds: f64,
    pub total_seconds: f64,
    pub bytes: Traffic,
    /// The link or engine that is busy for the largest part of the step.
    pub bottleneck: String,
    /// Links and engines with the share of the step in which they are busy, busiest first.
    pub utilisation: Vec<Busy>,
}

/// How busy one link or engine is.
#[derive(Debug, Clone, Serialize)]
pub struct Busy {
    pub name: String,
    /// Seconds of the step, at full speed.
    pub seconds: f64,
    /// Share of the step.
    pub share: f64,
}

impl Case {
    /// Names the case in errors.
    pub fn title(&self) -> String {
        format!("{} with {} drives, {}", self.model, self.drives, self.system.name())
    }

    fn options(&self) -> OffloadOptions {
        OffloadOptions {
            system: self.system,
            optimizer: self.optimizer,
            placement: self.placement,
            subgroup_elements: self.subgroup_size,
            gradient_dtype: self.gradient_dtype,
            weights_dtype: self.dtype,
            upstream: self.upstream,
            topk_keep: self.topk_keep,
            error_feedback: false,
            pieces: self.pieces,
        }
    }

    fn shape(&self) -> Result<ModelShape> {
        let path = Path::new(&self.model);
        if path.is_file() {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the model {}", path.display()))?;
            return Ok(ModelShape::from_config(&self.model, &text)?);
        }
        Ok(ModelShape::named(&self.model)?)
    }

    /// Runs the graphs of one step in virtual time.
    pub fn simulate(&self, fabric: &Fabric, trace: Option<&Path>) -> Result<Outcome> {
        if self.system == System::Memory {
            bail!(
                "--system memory has no drives to simulate; use base, base-pipe, su, su+o or su+o+c"
            );
        }
        if self.batch == 0 || self.seq == 0 {
            bail!("--batch and --seq must be at least 1");
        }
        let shape = self.shape()?;
        let options = self.options();
        let layout = layout(&shape.flat()?, &options, self.drives)?;
        let units = shape.units(self.batch, self.seq, self.dtype)?;
        self.fits(fabric, &units)?;
        let (gradients, _) = gradient::plan(&layout, &options, &units, MicroStep::Offload)?;
        let parts: Vec<usize> = (0..layout.parts.len()).collect();
        let update = update::plan(&layout, &options, &parts)?;
        let selection = Selection {
            drives: self.drives,
            gpu: self.gpu.clone(),
            topology: Some(self.topology.clone()),
        };
        let executor = VirtualExecutor::new(FabricCosts::new(fabric, &selection)?)?;
        let first = executor.simulate(&gradients.graph)?;
        let second = executor.simulate(&update.graph)?;
        if let Some(path) = trace {
            let mut file = TraceFile::create(path)?;
            file.add(&gradients.graph, &first.timeline, 0.0)?;
            file.add(&update.graph, &second.timeline, first.timeline.seconds())?;
            file.finish()?;
        }
        // The forward phase ends with its last computation; what follows, to the last gradient, is the backward phase.
        let forward = phase_end(&first, &gradients.graph, "forward");
        let (gradient_seconds, update_seconds) =
            (first.timeline.seconds(), second.timeline.seconds());
        let total = gradient_seconds + update_seconds;
        let runs = [(&first, &gradients.graph), (&second, &update.graph)];
        let utilisation = utilisation(&runs, total);
        Ok(Outcome {
            fabric: fabric.name.clone(),
            gpu: self
                .gpu
                .clone()
                .or_else(|| fabric.gpus.keys().next().cloned())
                .unwrap_or_default(),
            gpus: self.gpus,
            topology: self.topology.clone(),
            model: shape.name.clone(),
            parameters: shape.parameters(),
            drives: self.drives,
            system: self.system,
            topk_keep: self.topk_keep,
            optimizer: self.optimizer,
            batch: self.batch,
            seq: self.seq,
            forward_seconds: forward,
            backward_seconds: gradient_seconds - forward,
            update_seconds,
            total_seconds: total,
            bytes: gradients.graph.traffic() + update.graph.traffic(),
            bottleneck: utilisation.first().map(|busy| busy.name.clone()).unwrap_or_default(),
            utilisation,
        })
    }

    /// Checks that what is on the compute device at a time fits its memory.
    fn fits(&self, fabric: &Fabric, units: &[UnitShape]) -> Result<()> {
        let Some(memory) = fabric.gpu(self.gpu.as_deref())?.memory_bytes else { return Ok(()) };
        // Two units' weights, the gradients of one, and inputs and outputs of both.
        let weights = units.iter().map(|unit| unit.weight_elements).max().unwrap_or(0);
        let outputs = units.iter().map(|unit| unit.output_bytes).max().unwrap_or(0);
        let needed = 3 * weights * self.dtype.bytes() + 4 * outputs;
        if needed as f64 > memory.get() {
            bail!(
                "{:.1} GB of weights and activations do not fit the {:.1} GB of the GPU; use a smaller --batch or --seq",
                needed as f64 / 1e9,
                memory.get() / 1e9
            );
        }
        Ok(())
    }
}

fn phase_end(simulation: &Simulation, graph: &Graph, name: &str) -> f64 {
    let phases = simulation.timeline.phases(graph);
    phases.iter().find(|phase| phase.name == name).map_or(0.0, |phase| phase.end_seconds)
}

/// Links by what they carried over what they could have carried, and engines by the time in which they had a task.
fn utilisation(runs: &[(&Simulation, &Graph)], total: f64) -> Vec<Busy> {
    let mut busy: Vec<Busy> = Vec::new();
    let mut add = |name: &str, seconds: f64| {
        match busy.iter_mut().find(|other| other.name == name) {
            Some(other) => other.seconds += seconds,
            None => busy.push(Busy { name: name.to_owned(), seconds, share: 0.0 }),
        };
    };
    for (simulation, graph) in runs {
        let seconds = simulation.timeline.seconds();
        for link in &simulation.links {
            add(&link.name, link.utilisation * seconds);
        }
        for used in simulation.timeline.utilisation(graph) {
            // Engines that only wait for links would always be as busy as those.
            if used.name.ends_with(".compute") || used.name.ends_with(".kernel") {
                add(&used.name, used.busy_seconds);
            }
        }
    }
    for one in &mut busy {
        one.share = if total > 0.0 { one.seconds / total } else { 0.0 };
    }
    busy.retain(|one| one.seconds > 0.0);
    busy.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    busy
}
