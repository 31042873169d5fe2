//! `state import`: a model and the state of its optimizer, from elsewhere to drives.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use nearfield_bench::values::named;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_train::import::Import;

use super::layout::LayoutArgs;

/// `state import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The model's directory, as Hugging Face keeps models
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// State of a torch.optim.AdamW or Adam over all parameters: .pt of its state_dict, or .safetensors. Without it, moments are
    /// zero and the run begins with its first step
    #[arg(long, value_name = "FILE")]
    optimizer: Option<PathBuf>,
    /// A drive directory for the state; give the flag once for each
    #[arg(long, required = true, value_name = "DIR")]
    drive: Vec<PathBuf>,
    /// --optimizer of the run that will go on with it: adamw, adam (L2), and without --optimizer FILE also adagrad, sgd-momentum
    #[arg(long, value_parser = named::<Optimizer>, value_name = "NAME", default_value = "adamw")]
    update_rule: Optimizer,
    /// --moment-dtype of that run
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    moment_dtype: DType,
    /// --gradient-dtype of that run
    #[arg(long, value_parser = named::<DType>, value_name = "DTYPE", default_value = "fp32")]
    gradient_dtype: DType,
    /// --topk-keep of that run, with --system su+o+c
    #[arg(long, value_name = "FRACTION", default_value_t = 0.01)]
    topk_keep: f64,
    /// --error-feedback of that run, with --system su+o+c
    #[arg(long)]
    error_feedback: bool,
    #[command(flatten)]
    layout: LayoutArgs,
}

/// Makes the state that `nearfield train --resume` goes on with.
pub fn import(args: &ImportArgs) -> Result<()> {
    let import = Import {
        model: args.model.clone(),
        optimizer_state: args.optimizer.clone(),
        optimizer: args.update_rule,
        moment_dtype: args.moment_dtype,
        gradient_dtype: args.gradient_dtype,
        topk_keep: args.topk_keep,
        error_feedback: args.error_feedback,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let found = import.run(&args.drive, &args.layout.layout())?;
    if let Some(first) = found.unused.first() {
        tracing::warn!(
            "{} tensors of the model's files are not part of it and are left out, for example {first}",
            found.unused.len()
        );
    }
    println!("imported      {} parameters after step {}", found.parameters, found.step);
    println!("state digest  {}", found.digest);
    println!(
        "Go on with nearfield train --resume --model {} --data …, and the drives and flags given here.",
        args.model.display()
    );
    Ok(())
}
