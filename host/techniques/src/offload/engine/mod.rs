//! The offload technique for real: drives, devices, buffers, and the work behind its graphs.

mod ahead;
mod blueprint;
mod budget;
mod buffers;
mod gradient_work;
mod gradients;
mod memory_state;
mod paging;
mod setup;
mod state_io;
mod update_work;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearfield_runtime::device::{BufferBank, CpuKernels, Kernels, NearStorageDevice, SpeedLimits};
use nearfield_runtime::exec::Executor;
use nearfield_runtime::graph::{Graph, Traffic};
use nearfield_runtime::io::{IoEngine, IoOptions, IoStats};
use nearfield_runtime::kernels::Isa;
use nearfield_runtime::layout::Layout;
use nearfield_runtime::memory::{HostVector, Region};
use nearfield_runtime::store::{DriveStore, Durability, StepRecord};
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;
use rayon::ThreadPool;

pub use blueprint::Blueprint;
pub use budget::MemoryBudget;
pub use gradient_work::ModelWork;
pub use paging::WeightSource;
pub use setup::InitialState;

use super::options::OffloadOptions;
use super::placement::FlatModel;
use super::plan::Plan;
use super::plan::gradient::{MicroStep, UnitShape};
use ahead::WrittenAhead;
use buffers::BufferSet;
use gradients::{Compression, Staging};
use memory_state::MemoryState;
use paging::Pager;
use update_work::{Begin, UpdateWork};

/// What stands beside each drive.
#[derive(Debug, Clone)]
pub enum DeviceChoice {
    /// The host's CPU at full speed.
    Software,
    /// The host's memory and drives at limited speed, with kernels of choice.
    Emulated {
        /// What computes; `None` for the CPU's kernels.
        kernels: Option<Arc<dyn Kernels>>,
        /// Limits of each drive.
        limits: SpeedLimits,
        /// Bytes a second, each way, of the link shared by all drives.
        shared: Option<u64>,
    },
    /// Devices of another kind.
    Attached(Arc<dyn DeviceSource>),
}

/// Where devices come from that this crate does not know.
pub trait DeviceSource: Send + Sync + std::fmt::Debug {
    /// The device beside a drive, whose directory is given, and whose requests go through `engine`.
    ///
    /// # Errors
    /// Whatever keeps it from working.
    fn attach(
        &self,
        drive: u32,
        directory: &std::path::Path,
        engine: &Arc<IoEngine>,
    ) -> Result<Box<dyn NearStorageDevice>>;
}

/// Everything that an engine is built from.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The technique's options.
    pub options: OffloadOptions,
    /// One directory a drive; empty for [`super::System::Memory`].
    pub drives: Vec<PathBuf>,
    /// Storage I/O.
    pub io: IoOptions,
    /// What a step survives.
    pub durability: Durability,
    /// What stands beside each drive.
    pub device: DeviceChoice,
    /// Threads of kernels and codec.
    pub threads: usize,
    /// Whether to lock transfer memory, where the system allows it.
    pub lock_memory: bool,
    /// Units of the model, in forward order; they decide how gradients are staged.
    pub units: Vec<UnitShape>,
}

/// One drive with its store, its device and that device's buffers.
struct DriveUnit {
    store: DriveStore,
    device: Box<dyn NearStorageDevice>,
    /// The set that tasklets use; with the naive handler there is one only during a tasklet.
    buffers: Mutex<Option<Arc<BufferSet>>>,
    /// Host memory for master weights on their way up.
    weight_reads: [Mutex<Region>; 2],
    /// The same for residuals on their way down, where there are any.
    residual_writes: Option<Mutex<Region>>,
}

/// Buffers of the baselines in host memory: by set and drive.
struct HostBuffers {
    bank: BufferBank,
    sets: Vec<Vec<Arc<BufferSet>>>,
}

impl HostBuffers {
    fn set(&self, set: u32, drive: u32) -> Result<&Arc<BufferSet>> {
        self.sets.get(set as usize).and_then(|drives| drives.get(drive as usize)).ok_or_else(|| {
            Error::Invalid(format!("there is no buffer set {set} for drive {drive}"))
        })
    }
}

/// State on drives (or in memory), and everything that moves it.
pub struct OffloadEngine {
    options: OffloadOptions,
    model: FlatModel,
    blueprint: Blueprint,
    isa: Isa,
    pool: Arc<ThreadPool>,
    executor: Arc<dyn Executor + Send + Sync>,
    weights: Arc<HostVector>,
    scratch: Mutex<Vec<u16>>,
    drives: Vec<DriveUnit>,
    host: Option<HostBuffers>,
    memory: Option<MemoryState>,
    staging_bank: Option<BufferBank>,
    staging: Option<Staging>,
    compression: Option<Compression>,
    /// What lies on drives and comes to host memory only while it is needed.
    pager: Option<Pager>,
    /// Bytes of each unit's output.
    output_bytes: Vec<u64>,
    /// Optimizer steps done.
    step: u64,
    /// The update of the next step, where it was written ahead.
    ahead: Option<WrittenAhead>,
    /// Whether working weights in host memory may be those of an update that does not count.
    stale_weights: AtomicBool,
}

impl OffloadEngine {
    /// Runs the graphs of later steps with `executor`; without it, threads run them in real time.
    pub fn set_executor(&mut self, executor: Arc<dyn Executor + Send + Sync>) {
        self.executor = executor;
    }

    /// The technique's options.
    pub fn options(&self) -> &OffloadOptions {
        &self.options
    }

    /// What was known of the run before anything was made.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Which part of the flat vector lies where.
    pub fn layout(&self) -> &Layout {
        &self.blueprint.layout
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Memory held for the whole run, by purpose.
    pub fn budget(&self) -> &MemoryBudget {
        &self.blueprint.budget
    }

    /// The working weights in host memory, in the working format and flat order; empty where units read the master weights from the
    /// drives.
    pub fn weights(&self) -> &Arc<HostVector> {
        &self.weights
    }

    /// The graph of one micro-step, with the meaning of its tasks.
    pub fn gradient_plan(&self, step: MicroStep) -> &Plan {
        self.blueprint.gradient(step)
    }

    /// The graph of the update, where nothing was written ahead.
    pub fn update_graph(&self) -> &Graph {
        &self.blueprint.update.graph
    }

    /// Data bytes that one step moves, from its graphs.
    pub fn predicted_step_traffic(&self) -> Traffic {
        self.gradient_plan(MicroStep::Offload).graph.traffic() + self.update_graph().traffic()
    }

    /// The CPU's kernels, on the engine's threads.
    fn kernels(&self) -> CpuKernels {
        CpuKernels { isa: self.isa, pool: Some(Arc::clone(&self.pool)) }
    }

    /// Data bytes moved so far by devices. Creation, resume and digests do not count.
    pub fn traffic(&self) -> Traffic {
        self.drives.iter().map(|unit| unit.device.traffic()).sum()
    }

    /// The same for each drive.
    pub fn traffic_by_drive(&self) -> Vec<Traffic> {
        self.drives.iter().map(|unit| unit.device.traffic()).collect()
    }

    /// Bytes of headers and journal records written so far.
    pub fn metadata_bytes(&self) -> u64 {
        self.drives.iter().map(|unit| unit.store.metadata_bytes().written).sum()
    }

    /// What the drives' engines did so far, everything included.
    pub fn io_stats(&self) -> IoStats {
        self.drives.iter().fold(IoStats::default(), |sum, unit| {
            let stats = unit.store.engine().stats();
            IoStats {
                bytes_read: sum.bytes_read + stats.bytes_read,
                bytes_written: sum.bytes_written + stats.bytes_written,
                transfers: sum.transfers + stats.transfers,
                flushes: sum.flushes + stats.flushes,
            }
        })
    }

    /// Largest number of bytes of local memory used on any one device, and allocations on all of them.
    pub fn local_memory(&self) -> (u64, u64) {
        self.drives.iter().fold((0, 0), |(peak, allocations), unit| {
            let usage = unit.device.local_memory();
            (peak.max(usage.peak_bytes), allocations + usage.allocations)
        })
    }

    /// What the devices are and how storage is reached, for reports.
    pub fn describe(&self) -> String {
        match self.drives.first() {
            Some(unit) => {
                let device = unit.device.describe();
                format!("{} x {} over {}", self.drives.len(), device.kind, device.storage_backend)
            }
            None => "host memory".to_owned(),
        }
    }

    /// Runs the update of the next step. The gradients of all parts must have been written.
    ///
    /// `record.step` must be [`OffloadEngine::step`] + 1; it carries the hyper-parameters of each group,
    /// the combined unscale, and the trainer's state after this iteration.
    ///
    /// # Errors
    /// What the drives report. The state on the drives then continues at this step or at the one before:
    /// open it again with [`OffloadEngine::resume`].
    pub fn update(&mut self, record: &StepRecord) -> Result<Timeline> {
        self.check_follows(record)?;
        self.ahead = None;
        let plan = &self.blueprint.update;
        let work = UpdateWork::new(self, plan, record, Begin::Intent);
        let timeline = self.executor.run(&plan.graph, &work)?;
        self.step = record.step;
        // All of them were written.
        self.weights_are_new();
        Ok(timeline)
    }

    /// Says that working weights in host memory are about to change, for an update that may not count.
    fn weights_are_stale(&self) {
        self.stale_weights.store(true, Ordering::Release);
    }

    fn weights_are_new(&self) {
        self.stale_weights.store(false, Ordering::Release);
    }

    /// Reads working weights back from the drives where those in host memory may be of an update that did not count.
    fn refresh_weights(&self) -> Result<()> {
        if self.stale_weights.load(Ordering::Acquire) {
            self.load_weights()?;
            self.weights_are_new();
        }
        Ok(())
    }

    fn check_follows(&self, record: &StepRecord) -> Result<()> {
        if record.step == self.step + 1 && record.groups.len() >= self.model.groups() {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "an update of step {} with {} parameter groups cannot follow step {} of {} groups",
            record.step,
            record.groups.len(),
            self.step,
            self.model.groups()
        )))
    }

    /// Records an iteration without update (overflow): only the trainer's state changes.
    ///
    /// # Errors
    /// What the drives report.
    pub fn skip(&mut self, record: &StepRecord) -> Result<()> {
        for unit in &self.drives {
            unit.store.skip(record)?;
        }
        self.ahead = None;
        self.refresh_weights()?;
        self.reload_residuals()
    }

    fn drive(&self, drive: u32) -> &DriveUnit {
        &self.drives[drive as usize]
    }

    fn staging_bank(&self) -> Result<&BufferBank> {
        self.staging_bank
            .as_ref()
            .ok_or_else(|| Error::Invalid("gradients stay in memory in this run".into()))
    }

    fn with_scratch<T>(
        &self,
        elements: u64,
        work: impl FnOnce(&mut [u16]) -> Result<T>,
    ) -> Result<T> {
        let mut scratch = self.scratch.lock();
        let wanted = if self.options.weights_dtype.bytes() == 2 { elements as usize } else { 0 };
        if scratch.len() < wanted {
            scratch.resize(wanted, 0);
        }
        work(&mut scratch[..wanted])
    }

    /// Master weights become working weights from element `first` on.
    fn publish_f32(&self, first: u64, master: &[f32]) -> Result<()> {
        let dtype = self.options.weights_dtype;
        let width = dtype.bytes() as usize;
        self.weights.fill(first * width as u64, master.len() * width, |done, target| {
            let from = done / width;
            update_work::round_into(dtype, &master[from..from + target.len() / width], target);
            Ok(())
        })
    }

    /// Bits of the working format become working weights from element `first` on.
    fn publish_bits(&self, first: u64, bits: &[u16]) -> Result<()> {
        self.weights.fill(first * 2, bits.len() * 2, |done, target| {
            for (bytes, value) in target.chunks_exact_mut(2).zip(&bits[done / 2..]) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        })
    }
}

impl std::fmt::Debug for OffloadEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OffloadEngine({}, {})", self.options.system.name(), self.describe())
    }
}
