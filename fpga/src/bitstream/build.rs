//! Running the commands of a build, those whose results are not there yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use super::error::BitstreamError;
use super::plan::{Command, Plan, Request};
use super::tools::{Places, Tools};

/// What a build has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The bitstream.
    pub result: PathBuf,
    /// Steps that were run now.
    pub run: Vec<String>,
    /// Steps whose results were there.
    pub kept: Vec<String>,
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> BitstreamError {
    let path = path.to_owned();
    move |source| BitstreamError::Io { path, source }
}

/// Builds a bitstream for `platform`, or goes on with a build that was cut short; tells `progress` of each step.
///
/// # Errors
/// What is missing, which step has failed and where its output is, or what the file system reports.
pub fn build(
    request: &Request,
    platform: &str,
    places: &Places,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, BitstreamError> {
    let tools = Tools::find(platform, places)?;
    let mut sources: Vec<PathBuf> = fs::read_dir(&request.sources)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(io(&request.sources))?;
    sources.sort();
    let plan = Plan::new(request, &tools, &sources);
    fs::create_dir_all(plan.work()).map_err(io(plan.work()))?;
    let (settings, text) = &plan.settings;
    if fs::read_to_string(settings).ok().as_ref() != Some(text) {
        fs::write(settings, text).map_err(io(settings))?;
    }
    let mut outcome = Outcome { result: plan.result.clone(), run: Vec::new(), kept: Vec::new() };
    for command in &plan.commands {
        let stamp = stamp(command)?;
        let stamp_path = stamp_path(&plan, command);
        let done = command.output.is_file()
            && fs::read_to_string(&stamp_path).is_ok_and(|there| there == stamp);
        if done {
            progress(&format!("{}: there already", command.step));
            outcome.kept.push(command.step.clone());
            continue;
        }
        progress(&format!("{} (output in {})", command.step, log_path(&plan, command).display()));
        run(&plan, command)?;
        fs::write(&stamp_path, stamp).map_err(io(&stamp_path))?;
        outcome.run.push(command.step.clone());
    }
    Ok(outcome)
}

fn beside(plan: &Plan, command: &Command, ending: &str) -> PathBuf {
    let name = command.output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    plan.work().join(format!("{name}.{ending}"))
}

fn log_path(plan: &Plan, command: &Command) -> PathBuf {
    beside(plan, command, "log")
}

fn stamp_path(plan: &Plan, command: &Command) -> PathBuf {
    beside(plan, command, "done")
}

/// A digest of the command and of what it reads: the same as last time means the same result.
fn stamp(command: &Command) -> Result<String, BitstreamError> {
    let mut hasher = blake3::Hasher::new();
    for argument in &command.arguments {
        hasher.update(argument.as_encoded_bytes());
        hasher.update(&[0]);
    }
    for input in &command.inputs {
        let content = fs::read(input).map_err(io(input))?;
        hasher.update(&(content.len() as u64).to_le_bytes());
        hasher.update(&content);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn run(plan: &Plan, command: &Command) -> Result<(), BitstreamError> {
    // What an earlier try has left must not pass for a result.
    if command.output.exists() {
        fs::remove_file(&command.output).map_err(io(&command.output))?;
    }
    let log = log_path(plan, command);
    let file = fs::File::create(&log).map_err(io(&log))?;
    let errors = file.try_clone().map_err(io(&log))?;
    let status = process::Command::new(&command.program)
        .args(&command.arguments)
        .current_dir(plan.work())
        .stdin(process::Stdio::null())
        .stdout(file)
        .stderr(errors)
        .status()
        .map_err(|error| BitstreamError::Program {
            program: command.program.display().to_string(),
            what: error.to_string(),
        })?;
    let step = command.step.clone();
    if !status.success() {
        return Err(BitstreamError::Failed { step, status: status.to_string(), log });
    }
    if !command.output.is_file() {
        return Err(BitstreamError::NoOutput { step, output: command.output.clone() });
    }
    Ok(())
}
