//! Creating and resuming runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nearfield_runtime::codec::{self, TopK};
use nearfield_runtime::device::{
    BufferBank, EmulatedDevice, Kernels, NearStorageDevice, SharedLink, SoftwareDevice,
    SoftwareOptions,
};
use nearfield_runtime::exec::ThreadedExecutor;
use nearfield_runtime::io::IoEngine;
use nearfield_runtime::kernels::Isa;
use nearfield_runtime::layout::{Layout, align_up};
use nearfield_runtime::memory::{Arena, HostVector};
use nearfield_runtime::store::{self, DriveStore, Recovered, StepRecord};
use nearfield_runtime::types::Variable;
use nearfield_runtime::{Error, Result};
use parking_lot::Mutex;

use super::budget::{residual_write_bytes, weight_read_bytes};
use super::buffers::{BufferSet, BufferSizes};
use super::gradients::{Compression, Pairs, Staging};
use super::memory_state::MemoryState;
use super::paging::Pager;
use super::update_work::{Begin, UpdateWork};
use super::{Blueprint, DeviceChoice, DriveUnit, EngineConfig, HostBuffers, OffloadEngine};
use crate::offload::options::{Encoder, Expansion, OffloadOptions};
use crate::offload::placement::FlatModel;
use crate::offload::plan::gradient::Paging;
use crate::offload::plan::update;
use crate::offload::plan::update_host::host_sets;

/// Where a new state comes from.
pub trait InitialState: Sync {
    /// Gives the elements from `first` of the flat vector on.
    ///
    /// # Errors
    /// Whatever the source reports.
    fn read(&self, variable: Variable, first: u64, out: &mut [f32]) -> Result<()>;

    /// Whether a variable is zero everywhere, so that it need not be read.
    fn is_zero(&self, variable: Variable) -> bool;
}

/// Weights, with zero moments.
impl<F: Fn(u64, &mut [f32]) -> Result<()> + Sync> InitialState for F {
    fn read(&self, _: Variable, first: u64, out: &mut [f32]) -> Result<()> {
        self(first, out)
    }

    fn is_zero(&self, variable: Variable) -> bool {
        variable != Variable::Param
    }
}

impl OffloadEngine {
    /// Creates the state of a new run from `initial`.
    ///
    /// `record` is the trainer's state before the first iteration: `step` and `iteration` 0, or those of the state it comes from.
    ///
    /// # Errors
    /// Drives that are missing, too small, in use, or hold another run (unless `overwrite`); contradictory
    /// options; memory that cannot be had.
    pub fn create(
        config: &EngineConfig,
        model: FlatModel,
        overwrite: bool,
        record: &StepRecord,
        initial: &dyn InitialState,
    ) -> Result<Self> {
        let engine = Assembly::new(config, model, None)?;
        if !config.options.system.on_drives() {
            let mut engine = engine.finish(Vec::new())?;
            engine.initialise_memory(initial)?;
            engine.step = record.step;
            return Ok(engine);
        }
        let engines = engine.start_engines(config)?;
        // A device that is not there must not cost what the drives hold.
        let devices = engine.devices(config, &engines)?;
        let spec = engine.engine.blueprint.spec().clone();
        let creation = store::create(&config.drives, engines, spec, config.durability, overwrite)?;
        engine.initialise_drives(creation.stores(), initial, record.step)?;
        let stores = creation.finish(record.clone())?;
        let units = engine.units(stores, devices)?;
        let mut engine = engine.finish(units)?;
        engine.step = record.step;
        engine.load_weights()?;
        Ok(engine)
    }

    /// Opens the state of a run, completes an update that was cut short, and fills the working weights.
    ///
    /// # Errors
    /// Drives that are missing, foreign, damaged or in use; options that differ from the run's.
    pub fn resume(config: &EngineConfig, model: FlatModel) -> Result<(Self, Recovered)> {
        // Shares of drives may have been measured when the run began: what counts is what is there.
        let weighted = !config.options.drive_weights.is_empty();
        let stored = weighted.then(|| store::stored_layout(&config.drives)).transpose()?;
        let stored = stored.filter(|layout| layout.elements == model.elements());
        let assembly = Assembly::new(config, model, stored)?;
        if !config.options.system.on_drives() {
            return Err(Error::Invalid(
                "--system memory keeps nothing that could be resumed; use a system with --drive"
                    .into(),
            ));
        }
        let engines = assembly.start_engines(config)?;
        let devices = assembly.devices(config, &engines)?;
        let spec = assembly.engine.blueprint.spec().clone();
        let (stores, recovered) =
            store::open(&config.drives, engines, Some(&spec), config.durability)?;
        let units = assembly.units(stores, devices)?;
        let mut engine = assembly.finish(units)?;
        engine.step = recovered.step;
        if let Some(redo) = &recovered.redo {
            engine.step = recovered.step - 1;
            let record = StepRecord {
                iteration: recovered.iteration,
                step: recovered.step,
                unscale: redo.unscale,
                groups: redo.groups.clone(),
                blob: recovered.blob.clone(),
            };
            let plan = update::plan(engine.layout(), &engine.options, &redo.parts)?;
            let work = UpdateWork::new(&engine, &plan, &record, Begin::Redo);
            engine.executor.run(&plan.graph, &work)?;
            engine.step = recovered.step;
        }
        engine.load_weights()?;
        engine.reload_residuals()?;
        Ok((engine, recovered))
    }
}

/// What stands beside a drive.
struct Beside {
    device: Box<dyn NearStorageDevice>,
    /// Nothing where no subgroup lies on the drive, or buffers live no longer than a tasklet.
    buffers: Option<Arc<BufferSet>>,
}

/// An engine on its way to completion.
struct Assembly {
    engine: OffloadEngine,
    staging_arena: Option<Arc<Arena>>,
    host_arena: Option<Arc<Arena>>,
    device_arenas: Vec<Arc<Arena>>,
    read_arenas: Vec<Arc<Arena>>,
    paging_arena: Option<Arc<Arena>>,
}

impl Assembly {
    fn new(config: &EngineConfig, model: FlatModel, stored: Option<Layout>) -> Result<Self> {
        let options = config.options.clone();
        if options.encoder == Encoder::Device
            || options.expansion == Expansion::Separate
            || options.tensor_parallel > 1
        {
            return Err(Error::Invalid(
                "selection on the compute device, expansion apart from the update and several compute devices can be \
                 simulated only"
                    .into(),
            ));
        }
        let drives = config.drives.len() as u32;
        let blueprint = match stored {
            Some(layout) => Blueprint::with_layout(layout, &options, &config.units)?,
            None => Blueprint::new(&options, &model, drives, &config.units)?,
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|index| format!("kernel{index}"))
            .build()
            .map_err(|error| Error::Work(Box::new(error)))?;
        let lock = config.lock_memory;
        let mut assembly = Self {
            staging_arena: None,
            host_arena: None,
            device_arenas: Vec::new(),
            read_arenas: Vec::new(),
            paging_arena: None,
            engine: OffloadEngine {
                isa: Isa::detect(),
                pool: Arc::new(pool),
                weights: Arc::new(HostVector::zeroed(blueprint.budget.weights_bytes)),
                executor: Arc::new(ThreadedExecutor::default()),
                scratch: Mutex::default(),
                drives: Vec::new(),
                host: None,
                memory: None,
                staging_bank: None,
                staging: None,
                compression: None,
                pager: None,
                output_bytes: config.units.iter().map(|unit| unit.output_bytes).collect(),
                step: 0,
                ahead: None,
                stale_weights: AtomicBool::new(false),
                model,
                blueprint,
                options,
            },
        };
        if assembly.engine.options.system.on_drives() {
            assembly.reserve(config, lock)?;
            let paging = assembly.engine.blueprint.paging.clone();
            if paging != Paging::default() {
                let (pager, arena) = Pager::new(paging, lock)?;
                assembly.engine.pager = Some(pager);
                assembly.paging_arena = Some(arena);
            }
        } else {
            let engine = &mut assembly.engine;
            let options = &engine.options;
            let state = MemoryState::new(engine.layout(), options);
            engine.memory = Some(state);
        }
        Ok(assembly)
    }

    /// Takes all memory of the run.
    fn reserve(&mut self, config: &EngineConfig, lock: bool) -> Result<()> {
        let engine = &mut self.engine;
        let Blueprint { layout, staging, budget, .. } = &engine.blueprint;
        let options = &engine.options;
        for drive in 0..layout.drives {
            // Devices of another kind bring their own memory.
            let in_host_memory = !matches!(config.device, DeviceChoice::Attached(_));
            if options.system.near_storage() && in_host_memory {
                let bytes = budget.device_local_bytes[drive as usize];
                self.device_arenas.push(Arena::new("device local memory", bytes, lock)?);
            }
            let bytes = 2 * align_up(weight_read_bytes(layout, options, drive), 4096)
                + align_up(residual_write_bytes(layout, options, drive), 4096);
            self.read_arenas.push(Arena::new("weights on their way up", bytes, lock)?);
        }
        let sets = host_sets(options.system);
        if sets > 0 {
            let arena = Arena::new("update buffers", budget.host_update_bytes, lock)?;
            let bank = BufferBank::new("host update buffers", Arc::clone(&arena));
            let sets = (0..sets)
                .map(|_| {
                    (0..layout.drives)
                        .map(|drive| {
                            let sizes = BufferSizes::for_drive(layout, options, drive);
                            BufferSet::allocate(&sizes, &mut |bytes, _| bank.allocate(bytes))
                                .map(Arc::new)
                        })
                        .collect()
                })
                .collect::<Result<Vec<Vec<Arc<BufferSet>>>>>()?;
            engine.host = Some(HostBuffers { bank, sets });
            self.host_arena = Some(arena);
        }
        let buffer_bytes = align_up(staging.elements * options.gradient_dtype.bytes(), 4096);
        let kept = codec::kept(options.topk_keep, staging.elements);
        let pair_bytes = if options.compressed() { align_up(4 * kept, 4096) } else { 0 };
        let count = u64::from(staging.buffers);
        let arena = Arena::new("gradient staging", count * (buffer_bytes + 2 * pair_bytes), lock)?;
        let bank = BufferBank::new("gradient staging", Arc::clone(&arena));
        let buffers =
            (0..count).map(|_| bank.allocate(buffer_bytes)).collect::<Result<Vec<_>>>()?;
        if options.compressed() {
            let pairs = (0..count)
                .map(|_| {
                    let (indices, values) =
                        (arena.allocate(pair_bytes)?, arena.allocate(pair_bytes)?);
                    Ok(Mutex::new(Pairs { indices, values, count: 0 }))
                })
                .collect::<Result<Vec<_>>>()?;
            let residuals = if options.error_feedback {
                (0..layout.parts.len())
                    .map(|part| Mutex::new(vec![0.0; layout.padded(part) as usize]))
                    .collect()
            } else {
                Vec::new()
            };
            let topk = Mutex::new(TopK::new(staging.elements as usize, config.threads)?);
            engine.compression = Some(Compression { topk, pairs, residuals });
        }
        engine.staging = Some(Staging { buffers });
        engine.staging_bank = Some(bank);
        self.staging_arena = Some(arena);
        Ok(())
    }

    fn start_engines(&self, config: &EngineConfig) -> Result<Vec<Arc<IoEngine>>> {
        (0..config.drives.len())
            .map(|drive| {
                let engine = IoEngine::start(&format!("drive{drive}"), &config.io)?;
                let mut arenas: Vec<&Arena> = vec![&self.read_arenas[drive]];
                arenas.extend(self.device_arenas.get(drive).map(|arena| &**arena));
                arenas.extend(self.host_arena.as_deref());
                arenas.extend(self.staging_arena.as_deref());
                arenas.extend(self.paging_arena.as_deref());
                engine.register(&arenas)?;
                Ok(engine)
            })
            .collect()
    }

    /// Writes the initial state.
    fn initialise_drives(
        &self,
        stores: &[DriveStore],
        initial: &dyn InitialState,
        step: u64,
    ) -> Result<()> {
        super::state_io::initialise(&self.engine, stores, initial, step, &self.read_arenas)
    }

    /// What stands beside each drive, with its buffers.
    fn devices(&self, config: &EngineConfig, engines: &[Arc<IoEngine>]) -> Result<Vec<Beside>> {
        let shared = match &config.device {
            DeviceChoice::Emulated { shared, .. } => SharedLink::new(*shared),
            DeviceChoice::Software | DeviceChoice::Attached(_) => SharedLink::default(),
        };
        (0..)
            .zip(engines)
            .map(|(drive, engine)| self.device(config, drive, engine, &shared))
            .collect()
    }

    fn device(
        &self,
        config: &EngineConfig,
        drive: u32,
        engine: &Arc<IoEngine>,
        shared: &SharedLink,
    ) -> Result<Beside> {
        let OffloadEngine { options, blueprint, .. } = &self.engine;
        let layout = &blueprint.layout;
        let arena = match self.device_arenas.get(drive as usize) {
            Some(arena) => Arc::clone(arena),
            None => Arena::new("device local memory", 0, false)?,
        };
        let software = |kernels| {
            let parts = SoftwareOptions { drive, arena, kernels };
            SoftwareDevice::new(Arc::clone(engine), parts)
        };
        let cpu = || -> Arc<dyn Kernels> { Arc::new(self.engine.kernels()) };
        let device: Box<dyn NearStorageDevice> = match &config.device {
            DeviceChoice::Software => Box::new(software(cpu())),
            DeviceChoice::Attached(source) => {
                source.attach(drive, &config.drives[drive as usize], engine)?
            }
            DeviceChoice::Emulated { kernels, limits, .. } => {
                let software = software(kernels.clone().unwrap_or_else(cpu));
                Box::new(EmulatedDevice::new(software, *limits, shared.clone()))
            }
        };
        let has_parts = layout.parts.iter().any(|part| part.drive == drive);
        let buffers = if keeps_buffers(options) && has_parts {
            let sizes = BufferSizes::for_drive(layout, options, drive);
            Some(Arc::new(BufferSet::allocate(&sizes, &mut |bytes, reach| {
                device.allocate(bytes, reach)
            })?))
        } else {
            None
        };
        Ok(Beside { device, buffers })
    }

    fn units(&self, stores: Vec<DriveStore>, devices: Vec<Beside>) -> Result<Vec<DriveUnit>> {
        let beside = stores.into_iter().zip(devices);
        beside.map(|(store, beside)| self.unit(store, beside)).collect()
    }

    fn unit(&self, store: DriveStore, beside: Beside) -> Result<DriveUnit> {
        let OffloadEngine { options, blueprint, .. } = &self.engine;
        let (layout, drive) = (&blueprint.layout, store.drive());
        let bytes = weight_read_bytes(layout, options, drive);
        let reads = &self.read_arenas[drive as usize];
        let weight_reads = [Mutex::new(reads.allocate(bytes)?), Mutex::new(reads.allocate(bytes)?)];
        let residual_writes = match residual_write_bytes(layout, options, drive) {
            0 => None,
            bytes => Some(Mutex::new(reads.allocate(bytes)?)),
        };
        let Beside { device, buffers } = beside;
        let buffers = Mutex::new(buffers);
        Ok(DriveUnit { store, device, buffers, weight_reads, residual_writes })
    }

    fn finish(self, drives: Vec<DriveUnit>) -> Result<OffloadEngine> {
        let mut engine = self.engine;
        if let Some(pager) = &mut engine.pager {
            pager.open_files(&drives)?;
        }
        engine.drives = drives;
        Ok(engine)
    }
}

/// Whether buffers live as long as the run; the naive handler allocates them for each tasklet.
fn keeps_buffers(options: &OffloadOptions) -> bool {
    options.system.near_storage() && options.system != crate::offload::System::Su
}
