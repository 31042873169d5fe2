//! The flags of `nearfield train`, which are the keys of its configuration file as well.

use std::path::PathBuf;

use clap::Args;
use nearfield_runtime::io::{Backend, Direct};
use nearfield_runtime::store::Durability;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_techniques::offload::{ActivationPlace, Placement, System, Upstream, WeightsPlace};
use nearfield_train::data::{Format, Order, TokenWidth};
use nearfield_train::schedule::Shape as ScheduleKind;
use serde::{Deserialize, Serialize};

use nearfield_bench::values::{Bytes, named};

/// Where the model's computation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// A GPU when libtorch sees one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The first GPU.
    Cuda,
}

impl Compute {
    /// The name of the device.
    pub fn device(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Auto if std::path::Path::new("/dev/nvidia0").exists() => "cuda",
            Self::Cpu | Self::Auto => "cpu",
        }
    }
}

/// Which near-storage device stands beside each drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The host's CPU plays the part, at full speed.
    Software,
    /// The same at the speeds given by the limits.
    Emulated,
    /// A SmartSSD's FPGA, through XRT.
    Xrt,
    /// The host's CPU does the work, but the clock is that of the machine which --fabric describes.
    Virtual,
}

/// What computes on an emulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKernels {
    /// The CPU's kernels.
    Cpu,
    /// The sources of the FPGA's kernels, compiled for the CPU.
    Hls,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgressKind {
    /// A bar on a terminal, JSON lines elsewhere.
    Auto,
    /// A bar.
    Bar,
    /// One JSON object a line.
    Json,
    /// Nothing but warnings and the report.
    None,
}

/// Every option is a flag and, without its dashes, a key of the TOML file given with `--config`. Flags win.
#[derive(Debug, Default, Clone, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrainArgs {
    /// TOML file with any of the keys below; flags win over it
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// What to train on: text, lines of JSON (text, or prompt and completion), tokens (.bin, .npy), or a directory of such
    /// files [default: the Python sources of the .venv that `make train` sets up]
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    pub data: Option<PathBuf>,
    /// What the data is: auto (as the names end), text, jsonl, bin or npy [default: auto]
    #[arg(long, value_parser = named::<Format>, value_name = "NAME", help_heading = "Data")]
    pub data_format: Option<Format>,
    /// Width of tokens in .bin files: u16 or u32 [default: what the vocabulary needs]
    #[arg(long, value_parser = named::<TokenWidth>, value_name = "NAME", help_heading = "Data")]
    pub token_width: Option<TokenWidth>,
    /// Order of sequences: random (begin at any token), shuffle (each once in an epoch) or sequential [default: random for
    /// text and tokens, shuffle for documents]
    #[arg(long, value_parser = named::<Order>, value_name = "NAME", help_heading = "Data")]
    pub order: Option<Order>,
    /// Let documents share sequences; each token still sees its own document only [default: true]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Data")]
    pub packing: Option<bool>,
    /// Fraction of the data kept for evaluation [default: 0.05]
    #[arg(long, value_name = "FRACTION", help_heading = "Data")]
    pub eval_fraction: Option<f64>,
    /// Evaluate every so many steps, 0 for only at the end [default: 0]
    #[arg(long, value_name = "STEPS", help_heading = "Data")]
    pub eval_every: Option<u64>,
    /// Batches of one evaluation [default: 8]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub eval_batches: Option<u64>,

    /// A model to start from: a directory as Hugging Face keeps models, of the family GPT-2, Llama, Mistral, Qwen2 or Qwen3
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<PathBuf>,
    /// State of a torch.optim.AdamW or Adam over all parameters (.pt of its state_dict, or .safetensors), from which the run goes
    /// on: its moments and its number of steps
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub optimizer_state: Option<PathBuf>,
    /// The tokenizer's file [default: tokenizer.json of --model; without both, bytes are tokens]
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub tokenizer: Option<PathBuf>,
    /// Transformer blocks [default: 4]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub layers: Option<u32>,
    /// Width of the model [default: 256]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub hidden: Option<u32>,
    /// Attention heads [default: 4]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub heads: Option<u32>,
    /// Vocabulary; bytes need 256 [default: 256]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub vocab: Option<u32>,
    /// Tokens of one sequence [default: 128; with --model 1024, or all its positions]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub seq: Option<u32>,
    /// Give the output head weights of its own instead of the embedding's
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Model")]
    pub untied: Option<bool>,

    /// Steps of the whole run [default: 200]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<u64>,
    /// Sequences of one micro-batch [default: 8]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub batch: Option<u32>,
    /// Micro-batches whose gradients are added before one update [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub accumulate: Option<u32>,
    /// Number format of working weights and activations: fp32, bf16 or fp16 [default: fp32]
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", help_heading = "Training")]
    pub dtype: Option<DType>,
    /// Update rule: adamw, adam (L2), adagrad, sgd-momentum [default: adamw]
    #[arg(long, value_parser = named::<Optimizer>, value_name = "NAME", help_heading = "Training")]
    pub optimizer: Option<Optimizer>,
    /// Peak learning rate [default: 0.001; with --model 0.00005]
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    pub lr: Option<f64>,
    /// Learning rate at the end of the schedule [default: a tenth of --lr]
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    pub min_lr: Option<f64>,
    /// Learning rate over time: cosine or constant, both after the warm-up [default: cosine]
    #[arg(long, value_parser = named::<ScheduleKind>, value_name = "NAME", help_heading = "Training")]
    pub schedule: Option<ScheduleKind>,
    /// Steps of linear warm-up [default: a twentieth of --steps]
    #[arg(long, value_name = "STEPS", help_heading = "Training")]
    pub warmup: Option<u64>,
    /// Decay of the first moment, or momentum [default: 0.9]
    #[arg(long, value_name = "BETA", help_heading = "Training")]
    pub beta1: Option<f64>,
    /// Decay of the second moment [default: 0.999]
    #[arg(long, value_name = "BETA", help_heading = "Training")]
    pub beta2: Option<f64>,
    /// Added to the denominator of the update [default: 1e-8]
    #[arg(long, value_name = "EPS", help_heading = "Training")]
    pub eps: Option<f64>,
    /// Weight decay of matrices and embeddings; biases and norms have none [default: 0.01]
    #[arg(long, value_name = "LAMBDA", help_heading = "Training")]
    pub weight_decay: Option<f64>,
    /// Largest global gradient norm, 0 for no clipping [default: 1.0]
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    pub clip: Option<f64>,
    /// Fixed loss scale; 0 for a dynamic one [default: 0 with fp16, else 1]
    #[arg(long, value_name = "SCALE", help_heading = "Training")]
    pub loss_scale: Option<f64>,
    /// Where a dynamic loss scale starts [default: 65536]
    #[arg(long, value_name = "SCALE", help_heading = "Training")]
    pub initial_loss_scale: Option<f64>,
    /// Steps without overflow after which a dynamic loss scale doubles [default: 1000]
    #[arg(long, value_name = "STEPS", help_heading = "Training")]
    pub loss_scale_window: Option<u64>,
    /// Overflows, counted from the last doubling, before a dynamic loss scale is halved [default: 2]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub loss_scale_hysteresis: Option<u32>,
    /// Seed of initial weights and data order [default: 0]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u64>,
    /// Where the model computes: auto, cpu or cuda [default: auto]
    #[arg(long, value_parser = named::<Compute>, value_name = "NAME", help_heading = "Training")]
    pub compute: Option<Compute>,
    /// CPU threads of the model and of the update kernels, up to 1024; 0 for all cores [default: 0]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub threads: Option<usize>,

    /// memory, base, base-pipe, su, su+o or su+o+c [default: su+o]
    #[arg(long, value_parser = named::<System>, value_name = "SYSTEM", help_heading = "State on drives")]
    pub system: Option<System>,
    /// A drive: a directory on it, or DIR=WEIGHT for a share relative to the other drives. Give the flag once for each drive
    #[arg(long, value_name = "DIR", help_heading = "State on drives")]
    #[serde(default)]
    pub drive: Vec<PathBuf>,
    /// Measure the drives first, and give each a share as large as it is fast
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "State on drives")]
    pub balance: Option<bool>,
    /// Most elements of a subgroup, the unit that is read, updated and written [default: 40000000]
    #[arg(long, value_name = "ELEMENTS", help_heading = "State on drives")]
    pub subgroup_size: Option<u64>,
    /// equal-rr (equal pieces, dealt in turn), flat-equal (one equal share each) or subgroup-rr (whole tensors, dealt in
    /// turn) [default: equal-rr]
    #[arg(long, value_parser = named::<Placement>, value_name = "NAME", help_heading = "State on drives")]
    pub placement: Option<Placement>,
    /// How weights come back: fp16-local (working precision, from device memory) or fp32-storage (master
    /// weights, from the drive) [default: fp16-local]
    #[arg(long, value_parser = named::<Upstream>, value_name = "NAME", help_heading = "State on drives")]
    pub upstream: Option<Upstream>,
    /// Where working weights are read from: host (a copy in host memory) or drive (the master weights, unit by unit, so
    /// that a model larger than memory trains) [default: host]
    #[arg(long, value_parser = named::<WeightsPlace>, value_name = "PLACE", help_heading = "State on drives")]
    pub weights: Option<WeightsPlace>,
    /// Where the inputs of blocks wait for the backward pass: device, host or drive [default: host]
    #[arg(long, value_parser = named::<ActivationPlace>, value_name = "PLACE", help_heading = "State on drives")]
    pub activations: Option<ActivationPlace>,
    /// Number format of gradients on the drive: fp32, fp16 or bf16 [default: fp32]
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", help_heading = "State on drives")]
    pub gradient_dtype: Option<DType>,
    /// Number format of the moments on the drive: fp32, or bf16, rounded at random so that nothing is lost on average: a
    /// quarter less to read and to write in each step, a third less to keep [default: fp32]
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", help_heading = "State on drives")]
    pub moment_dtype: Option<DType>,
    /// With su+o+c: fraction of gradient elements that is kept. Index and value travel, so 0.01 moves 2 %
    /// of the dense volume [default: 0.01]
    #[arg(long, value_name = "FRACTION", help_heading = "State on drives")]
    pub topk_keep: Option<f64>,
    /// With su+o+c: add what was left out to the next gradient
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "State on drives")]
    pub error_feedback: Option<bool>,
    /// With su+o and su+o+c: update each subgroup as soon as its gradient is on its drive, during the backward pass, as if no
    /// gradient overflowed or were clipped; where one was, the update is done again. Takes twice the room for the state
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "State on drives")]
    pub overlap_update: Option<bool>,
    /// Pieces in which the overlapped handler hands a subgroup over; 1 is the paper's whole variables
    /// [default: 4]
    #[arg(long, value_name = "N", help_heading = "State on drives")]
    pub pieces: Option<u32>,
    /// What a step survives: power (flushes the drives) or process (a killed process only) [default: power]
    #[arg(long, value_parser = named::<Durability>, value_name = "NAME", help_heading = "State on drives")]
    pub durability: Option<Durability>,
    /// What stands beside each drive: software (the CPU), emulated (the CPU at limited speed), xrt (the FPGA of a
    /// SmartSSD), or virtual (the CPU, with the clock of the machine that --fabric describes) [default: software]
    #[arg(long, value_parser = named::<DeviceKind>, value_name = "NAME", help_heading = "State on drives")]
    pub device: Option<DeviceKind>,
    /// With --device xrt: the bitstream that cards are loaded with, as `make bitstream` builds it
    #[arg(long, value_name = "FILE", help_heading = "State on drives")]
    pub bitstream: Option<PathBuf>,
    /// With --device xrt: the card beside a drive, by its PCI address or its place in XRT's list; once for each --drive, in the
    /// same order [default: the card behind the same switch as the drive]
    #[arg(long, value_name = "CARD", help_heading = "State on drives")]
    #[serde(default)]
    pub card: Vec<String>,
    /// With --device xrt: seconds that a call to a card may take before the card is given up [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400), help_heading = "State on drives")]
    pub card_timeout: Option<u64>,
    /// With --device emulated: what computes, cpu (the CPU's kernels) or hls (the sources of the FPGA's kernels, compiled
    /// for the CPU; slower, the same bits) [default: cpu]
    #[arg(long, value_parser = named::<DeviceKernels>, value_name = "NAME", help_heading = "State on drives")]
    pub device_kernels: Option<DeviceKernels>,
    /// With --device emulated: bytes a second read from one drive, for example 3.2GB
    #[arg(long, value_name = "BYTES", help_heading = "State on drives")]
    pub limit_read: Option<Bytes>,
    /// With --device emulated: bytes a second written to one drive
    #[arg(long, value_name = "BYTES", help_heading = "State on drives")]
    pub limit_write: Option<Bytes>,
    /// With --device emulated: bytes a second between one drive and its device memory, both ways together
    #[arg(long, value_name = "BYTES", help_heading = "State on drives")]
    pub limit_internal: Option<Bytes>,
    /// With --device emulated: bytes a second, each way, of the link that all drives share
    #[arg(long, value_name = "BYTES", help_heading = "State on drives")]
    pub limit_shared: Option<Bytes>,

    /// Direct I/O: required, preferred or off [default: preferred]
    #[arg(long, value_parser = named::<Direct>, value_name = "NAME", help_heading = "Storage I/O")]
    pub direct: Option<Direct>,
    /// auto, uring or threads [default: auto]
    #[arg(long, value_parser = named::<Backend>, value_name = "NAME", help_heading = "Storage I/O")]
    pub io_backend: Option<Backend>,
    /// Requests in flight on each drive [default: 32]
    #[arg(long, value_name = "N", help_heading = "Storage I/O")]
    pub queue_depth: Option<u32>,
    /// Bytes of one request [default: 4MiB]
    #[arg(long, value_name = "BYTES", help_heading = "Storage I/O")]
    pub block_size: Option<Bytes>,

    /// Save the trained model to this directory, as Hugging Face keeps models
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub save: Option<PathBuf>,
    /// Number format of the saved model: fp32, bf16 or fp16 [default: --dtype]
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", help_heading = "Run")]
    pub save_dtype: Option<DType>,
    /// Most bytes of one file of the saved model [default: 5GB]
    #[arg(long, value_name = "BYTES", help_heading = "Run")]
    pub shard_size: Option<Bytes>,
    /// Directory for metrics, the picture of the run and the report [default: runs/nearfield]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Where the report is written [default: report.json in --out]
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub report: Option<PathBuf>,
    /// Description of this machine, as `nearfield calibrate` writes it: the report then has predicted times as well. With
    /// --device virtual: the machine whose clock is used, a name (smartssd-falcon, server-2026, desktop) or a file
    #[arg(long, value_name = "NAME|FILE", help_heading = "Run")]
    pub fabric: Option<String>,
    /// Compute device of the fabric, where it has several
    #[arg(long, value_name = "NAME", help_heading = "Run")]
    pub gpu: Option<String>,
    /// How the fabric is put together, where it has several ways
    #[arg(long, value_name = "NAME", help_heading = "Run")]
    pub topology: Option<String>,
    /// Write a trace of every task for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub trace: Option<PathBuf>,
    /// Say what the run would take (placement, memory, disk, bytes on each link, seconds, wear), and whether it can work; make
    /// nothing
    #[arg(long, help_heading = "Run")]
    #[serde(skip)]
    pub dry_run: bool,
    /// Rated endurance of each drive, in terabytes written: then wear is told in days as well
    #[arg(long, value_name = "TB", help_heading = "Run")]
    pub drive_tbw: Option<f64>,
    /// Continue the run whose state is on the drives
    #[arg(long, help_heading = "Run")]
    #[serde(skip)]
    pub resume: bool,
    /// Replace the state of another run on the drives
    #[arg(long, help_heading = "Run")]
    #[serde(skip)]
    pub overwrite: bool,
    /// auto, bar, json or none [default: auto]
    #[arg(long, value_parser = named::<ProgressKind>, value_name = "NAME", help_heading = "Run")]
    pub progress: Option<ProgressKind>,
    /// Tokens that the trained model writes at the end, 0 for none [default: 200; with --model 50]
    #[arg(long, value_name = "TOKENS", help_heading = "Run")]
    pub sample: Option<u64>,
    /// What it continues [default: with --model the beginning of the data]
    #[arg(long, value_name = "TEXT", help_heading = "Run")]
    pub prompt: Option<String>,
    /// Faults to inject into storage I/O, for tests
    #[arg(long, value_name = "RULES", hide = true)]
    #[serde(skip)]
    pub inject: Option<String>,
}
