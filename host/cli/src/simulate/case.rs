//! One combination.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nearfield_runtime::graph::{Graph, Place};
use nearfield_runtime::timeline::TraceFile;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_sim::fabric::{Fabric, FabricCosts, KernelDesign, Selection};
use nearfield_sim::{Simulation, VirtualExecutor, chakra};
use nearfield_techniques::model::ModelShape;
use nearfield_techniques::offload::plan::gradient::UnitShape;
use nearfield_techniques::offload::{
    ActivationPlace, Blueprint, Encoder, Expansion, FlatModel, OffloadOptions, Placement, System,
    Upstream, WeightsPlace,
};

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
    pub moment_dtype: DType,
    pub upstream: Upstream,
    pub weights: WeightsPlace,
    pub activations: ActivationPlace,
    pub placement: Placement,
    pub subgroup_size: u64,
    pub pieces: u32,
    pub overlap_update: bool,
    pub encoder: Encoder,
    pub expansion: Expansion,
    pub gradient_overlap: bool,
}

impl Default for Case {
    fn default() -> Self {
        let options = OffloadOptions::default();
        Self {
            model: "gpt2-4.0b".to_owned(),
            gpu: None,
            gpus: 1,
            topology: "default".to_owned(),
            drives: 1,
            system: options.system,
            optimizer: options.optimizer,
            topk_keep: options.topk_keep,
            batch: 4,
            seq: 1024,
            dtype: DType::Fp16,
            gradient_dtype: options.gradient_dtype,
            moment_dtype: options.moment_dtype,
            upstream: options.upstream,
            weights: options.weights,
            activations: options.activations,
            placement: options.placement,
            subgroup_size: options.subgroup_elements,
            pieces: options.pieces,
            overlap_update: options.overlap_update,
            encoder: options.encoder,
            expansion: options.expansion,
            gradient_overlap: options.gradient_overlap,
        }
    }
}

/// What is known of a model.
struct Model {
    name: String,
    flat: FlatModel,
    units: Vec<UnitShape>,
}

/// The graphs of one step: gradients, then the update.
pub struct Step {
    pub model: String,
    pub parameters: u64,
    blueprint: Blueprint,
    /// Block outputs in host memory.
    outputs_bytes: u64,
    pub graphs: [Graph; 2],
}

/// A step in virtual time.
pub struct Run {
    pub simulations: [Simulation; 2],
    /// Seconds of forward, backward with gradient offload, and update.
    pub phases: [f64; 3],
}

impl Case {
    /// Names the case in errors.
    pub fn title(&self) -> String {
        format!("{} with {} drives, {}", self.model, self.drives, self.system.name())
    }

    /// What of the fabric it uses.
    pub fn selection(&self) -> Selection {
        Selection {
            drives: self.drives,
            gpus: self.gpus,
            gpu: self.gpu.clone(),
            topology: Some(self.topology.clone()),
            kernels: match self.expansion {
                Expansion::Separate => KernelDesign::Sequential,
                Expansion::Merged => KernelDesign::Dataflow,
            },
        }
    }

    fn options(&self) -> OffloadOptions {
        OffloadOptions {
            system: self.system,
            optimizer: self.optimizer,
            placement: self.placement,
            subgroup_elements: self.subgroup_size,
            drive_weights: Vec::new(),
            gradient_dtype: self.gradient_dtype,
            weights_dtype: self.dtype,
            moment_dtype: self.moment_dtype,
            upstream: self.upstream,
            weights: self.weights,
            activations: self.activations,
            topk_keep: self.topk_keep,
            error_feedback: false,
            encoder: self.encoder,
            expansion: self.expansion,
            gradient_overlap: self.gradient_overlap,
            tensor_parallel: self.gpus,
            pieces: self.pieces,
            overlap_update: self.overlap_update && self.system.can_overlap_update(),
        }
    }

    fn model(&self) -> Result<Model> {
        if let Some(count) = self.model.strip_prefix("flat:") {
            let parameters = count.parse().ok().filter(|count| (1..=1_u64 << 50).contains(count));
            let parameters = parameters.with_context(|| {
                format!("--model {}: {count:?} is no number of parameters", self.model)
            })?;
            let flat = FlatModel::single(parameters)?;
            return Ok(Model { name: self.model.clone(), flat, units: Vec::new() });
        }
        let path = Path::new(&self.model);
        let shape = if self.model.trim_start().starts_with('{') {
            ModelShape::from_config("configuration", &self.model)?
        } else if path.is_file() {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the model {}", path.display()))?;
            ModelShape::from_config(&self.model, &text)?
        } else if self.model.contains('/') || self.model.ends_with(".json") {
            bail!("--model {}: there is no such file", path.display());
        } else {
            ModelShape::named(&self.model)?
        };
        let units = shape.units(self.batch, self.seq, self.dtype)?;
        Ok(Model { name: shape.name.clone(), flat: shape.flat()?, units })
    }

    /// Builds the graphs of one step.
    pub fn step(&self) -> Result<Step> {
        if self.system == System::Memory {
            bail!(
                "--system memory has no drives to simulate; use base, base-pipe, su, su+o or su+o+c"
            );
        }
        let numbers =
            [("--batch", self.batch), ("--seq", self.seq), ("--drives", self.drives.into())];
        for (flag, value) in numbers {
            if value == 0 {
                bail!("{flag} must be at least 1");
            }
        }
        let model = self.model()?;
        let blueprint = Blueprint::new(&self.options(), &model.flat, self.drives, &model.units)?;
        Ok(Step {
            model: model.name,
            parameters: model.flat.elements(),
            outputs_bytes: match self.activations {
                ActivationPlace::Host => blueprint.outputs_bytes,
                ActivationPlace::Device | ActivationPlace::Drive => 0,
            },
            graphs: blueprint.step_plans().map(|plan| plan.graph.clone()),
            blueprint,
        })
    }
}

impl Step {
    /// Runs the graphs in virtual time.
    pub fn run(&self, costs: &FabricCosts) -> Result<Run> {
        let executor = VirtualExecutor::new(costs.clone())?;
        let [gradients, update] = &self.graphs;
        let first = executor.simulate(gradients)?;
        let second = executor.simulate(update)?;
        // What follows the forward phase, to the last gradient, is the backward phase.
        let phases = first.timeline.phase_seconds(gradients);
        let of = |wanted: &str| -> f64 {
            phases.iter().filter(|(name, _)| name == wanted).map(|(_, seconds)| seconds).sum()
        };
        let (forward, update) = (of("forward"), of("update"));
        let backward = first.timeline.seconds() - forward - update;
        let phases = [forward, backward, update + second.timeline.seconds()];
        Ok(Run { simulations: [first, second], phases })
    }

    /// Bytes that are held in the host's memory on the machine of `costs`: for the whole run, but for what a compute
    /// device in that memory needs.
    pub fn host_bytes(&self, costs: &FabricCosts, run: &Run) -> u64 {
        let device = if costs.in_host_memory(Place::Gpu(0)) {
            let peaks = self.graphs.iter().zip(&run.simulations);
            peaks.map(|(graph, run)| run.timeline.peak_bytes(graph, Place::Gpu(0))).max()
        } else {
            None
        };
        let runtime = self.blueprint.budget.host_bytes(costs.in_host_memory(Place::Local(0)));
        runtime + self.outputs_bytes + device.unwrap_or(0)
    }

    /// Bytes that the state takes on the fullest drive.
    pub fn drive_bytes(&self) -> Result<u64> {
        /// What direct I/O needs of most drives.
        const ALIGNMENT: u64 = 4096;
        let drives = 0..self.blueprint.layout.drives;
        let bytes = drives.map(|drive| self.blueprint.drive_bytes(drive, ALIGNMENT));
        Ok(bytes.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0))
    }

    /// Checks that each place's memory holds what the step needs there.
    pub fn check_memory(&self, costs: &FabricCosts, fabric: &Fabric, run: &Run) -> Result<()> {
        for (graph, simulation) in self.graphs.iter().zip(&run.simulations) {
            costs
                .check_memory(graph, &simulation.timeline)
                .context("it does not fit; use a smaller --batch, --seq, --subgroup-size or model, or more --gpus")?;
        }
        fabric
            .check_host(self.host_bytes(costs, run))
            .context("it does not fit; use a smaller --batch, --seq, --subgroup-size or model")?;
        let bytes = self.drive_bytes()?;
        fabric.check_capacity(bytes).context("the state does not fit; use more --drives")
    }

    /// Writes the trace of a run.
    pub fn trace(&self, run: &Run, path: &Path) -> Result<()> {
        let mut file = TraceFile::create(path)?;
        let mut offset = 0.0;
        for (graph, simulation) in self.graphs.iter().zip(&run.simulations) {
            file.add(graph, &simulation.timeline, offset)?;
            offset += simulation.timeline.seconds();
        }
        Ok(file.finish()?)
    }
}

impl Step {
    /// Writes both graphs as Chakra execution traces, one file a rank; returns their paths.
    pub fn chakra(&self, run: &Run, stem: &Path) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let named = self.graphs.iter().zip(&run.simulations).zip(["gradients", "update"]);
        for ((graph, simulation), name) in named.filter(|((graph, _), _)| !graph.tasks().is_empty())
        {
            let mut stem = stem.as_os_str().to_owned();
            stem.push(format!(".{name}"));
            let path = PathBuf::from(stem);
            files.extend(chakra::write(graph, Some(&simulation.timeline), &path)?);
        }
        Ok(files)
    }
}

impl Run {
    /// Seconds of the whole step.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().sum()
    }
}
