//! `nearfield train`.

mod args;
mod cards;
mod config;
mod drives;
mod dry_run;
mod endurance;
mod metrics;
mod outputs;
mod picture;
mod predict;
mod report;

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nearfield_runtime::timeline::{BusyOverTime, ResourceUse, TraceFile};
use nearfield_train::checkpoint::Writer;
use nearfield_train::data::Vocabulary;
use nearfield_train::generate::GenerateOptions;
use nearfield_train::trainer::{IterationReport, ModelSource, TrainOptions, Trainer};

pub use args::{Compute, TrainArgs};
use args::{DeviceKind, ProgressKind};
use drives::DriveWatch;
pub use endurance::Endurance;
pub use metrics::Line;
use metrics::Metrics;
pub use outputs::same;
pub use picture::svg as run_picture;

use crate::values::human_bytes;

/// Shown below the list of flags.
pub const AFTER_HELP: &str = "\
Examples:
  nearfield train --data book.txt --drive /mnt/nvme0/run --drive /mnt/nvme1/run --steps 1000
  nearfield train --config train.toml --resume

Exit codes: 0 done, 1 failed or refused, 2 flags that cannot be read, 130 stopped by Ctrl-C after a step (continue with --resume).";

/// Trains; returns the exit code.
pub fn run(args: TrainArgs) -> Result<ExitCode> {
    let args = args.with_file()?;
    let options = config::resolve(&args)?;
    if args.dry_run {
        return dry_run::run(&args, &options);
    }
    let out = args.out();
    let report_path = args.report.clone().unwrap_or_else(|| out.join("report.json"));
    outputs::check(&args, &report_path)?;
    if let Some((target, save)) = args.save_options() {
        Writer::check(target, save.replace)?;
    }
    std::fs::create_dir_all(&out).with_context(|| {
        format!("cannot make the directory {} for results (--out)", out.display())
    })?;
    if let Some(parent) = report_path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| {
            format!("cannot make the directory {} for the report (--report)", parent.display())
        })?;
    }
    if report_path.is_dir() {
        bail!("--report {} is a directory; give a file", report_path.display());
    }
    if let Some(path) = &args.trace {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if path.is_dir() || parent.is_some_and(|parent| !parent.is_dir()) {
            bail!(
                "--trace {} cannot be written: give a file in a directory that is there",
                path.display()
            );
        }
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the process at once; the state survives that too.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        // SAFETY: the handler makes one system call, which is allowed in a signal handler.
        unsafe { signal_hook::low_level::register(signal, say_that_it_stops)? };
    }
    let machine = predict::executor(&args, options.drives.len())?;
    let mut trainer = open(options)?;
    warn_of_idle_drives(&trainer);
    // What is there is kept until the run is certain.
    let create_trace = |path: &PathBuf| {
        TraceFile::create(path)
            .with_context(|| format!("--trace {} cannot be written", path.display()))
    };
    let trace = args.trace.as_ref().map(create_trace).transpose()?;
    let mut predicted = None;
    let virtual_time = args.device == Some(DeviceKind::Virtual);
    if let Some(machine) = machine {
        if virtual_time {
            predict::check_memory(&machine, &trainer)?;
            trainer.run_in_virtual_time(Arc::new(machine));
        } else {
            let accumulate = trainer.options().accumulate;
            let blueprint = trainer.engine().blueprint();
            predicted = Some(predict::predict(&machine, accumulate, blueprint)?);
        }
    }
    let bar = progress_bar(&args, &trainer);
    if bar.is_some() || args.progress == Some(ProgressKind::None) {
        announce(&trainer);
    }
    // A run that starts from the state of another program has no lines yet.
    let continued = if args.resume { trainer.iteration() } else { 0 };
    let metrics = Metrics::open(&out.join("metrics.jsonl"), continued, trainer.last_loss())?;
    let mut run = Run {
        json: bar.is_none() && args.progress != Some(ProgressKind::None),
        eval_every: args.eval_every.unwrap_or(0),
        resumed_at: trainer.iteration(),
        trainer,
        bar,
        metrics,
        trace,
        begin: Instant::now(),
        virtual_time,
        usage: Vec::new(),
        busy: BusyOverTime::default(),
        watch: DriveWatch::default(),
    };
    let traffic = run.trainer.engine().traffic();
    let metadata = run.trainer.engine().metadata_bytes();
    let by_drive = run.trainer.engine().traffic_by_drive();
    run.train(&interrupted)?;
    if let Some(bar) = run.bar.take() {
        bar.finish_and_clear();
    }
    if let Some(trace) = run.trace.take() {
        trace.finish()?;
    }
    let stopped = run.trainer.iteration() < run.trainer.options().iterations;
    if let (Some((target, save)), false) = (args.save_options(), stopped) {
        run.trainer.save(target, &save)?;
    }
    let measured = run.trainer.engine().traffic() - traffic;
    let ending = report::Ending {
        lines: run.metrics.lines(),
        resumed_at: run.resumed_at,
        measured,
        metadata_bytes: run.trainer.engine().metadata_bytes() - metadata,
        most_written: run
            .trainer
            .engine()
            .traffic_by_drive()
            .into_iter()
            .zip(by_drive)
            .map(|(now, then)| (now - then).media_write)
            .max()
            .unwrap_or(0),
        drive_tbw: args.drive_tbw,
        usage: &run.usage,
        busy: &run.busy,
        drives: run.watch.findings(),
        interrupted: stopped,
        predicted,
        virtual_machine: if virtual_time { args.fabric.as_deref() } else { None },
    };
    let report = report::build(&run.trainer, &ending)?;
    report::write(&report_path, &report)?;
    let system = run.trainer.options().offload.system.name();
    let title = format!("{} parameters, {system}", run.trainer.parameters());
    picture::draw(&out.join("run.svg"), run.metrics.lines(), &title)?;
    run.conclude(&args, &report, &report_path, &out, stopped, &interrupted)?;
    Ok(if stopped { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// A run in progress.
struct Run {
    trainer: Trainer,
    bar: Option<ProgressBar>,
    json: bool,
    eval_every: u64,
    resumed_at: u64,
    metrics: Metrics,
    trace: Option<TraceFile>,
    begin: Instant,
    /// Whether seconds are those of a machine that is described.
    virtual_time: bool,
    usage: Vec<ResourceUse>,
    /// The same over the time of the last iteration.
    busy: BusyOverTime,
    watch: DriveWatch,
}

impl Run {
    fn train(&mut self, interrupted: &AtomicBool) -> Result<()> {
        let last = self.trainer.options().iterations;
        let mut virtual_seconds = 0.0;
        while self.trainer.iteration() < last && !interrupted.load(Relaxed) {
            let start = match self.virtual_time {
                true => virtual_seconds,
                false => self.begin.elapsed().as_secs_f64(),
            };
            let report = self.trainer.step()?;
            virtual_seconds += report.seconds;
            let mut line = Line::from(&report);
            let due = self.eval_every > 0 && report.iteration.is_multiple_of(self.eval_every);
            if due || report.iteration == last {
                line.eval_loss = self.trainer.evaluate()?.map(metrics::finite);
            }
            self.usage = usage(&self.trainer, &report);
            if !self.virtual_time {
                self.watch_drives(&report);
            }
            if report.iteration == last || interrupted.load(Relaxed) {
                self.busy = busy(&self.trainer, &report);
            }
            if let Some(trace) = &mut self.trace {
                for (kind, offset, timeline) in &report.timelines {
                    trace.add(self.trainer.graph(*kind), timeline, start + offset)?;
                }
            }
            self.show(&line)?;
            self.metrics.push(line)?;
        }
        Ok(())
    }

    /// Says which drive has fallen behind.
    fn watch_drives(&mut self, report: &IterationReport) {
        let Self { watch, trainer, bar, .. } = self;
        let timelines = report.timelines.iter();
        let timelines = timelines.map(|(kind, _, timeline)| (trainer.graph(*kind), timeline));
        for finding in watch.look(report.iteration, timelines) {
            let path = trainer.options().drives[finding.drive as usize].display();
            let text = format!(
                "iteration {}: drive {} ({path}) {}",
                finding.iteration, finding.drive, finding.what
            );
            match bar {
                Some(bar) => bar.println(text),
                None => tracing::warn!("{text}"),
            }
        }
    }

    fn show(&self, line: &Line) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.set_position(line.iteration);
            bar.set_message(format!(
                "loss {:.4}  {:.0} tokens/s  forward {:.0} backward {:.0} update {:.0} ms{}",
                line.loss,
                line.tokens_per_second,
                line.forward_seconds * 1e3,
                line.backward_seconds * 1e3,
                line.update_seconds * 1e3,
                if line.skipped { "  (skipped: overflow)" } else { "" }
            ));
            if let Some(loss) = line.eval_loss {
                bar.println(format!("iteration {}: evaluation loss {loss:.4}", line.iteration));
            }
        } else if self.json {
            println!("{}", serde_json::to_string(line)?);
        }
        Ok(())
    }

    /// What people want to know at the end: on the output, or beside it where that carries JSON lines.
    fn conclude(
        &self,
        args: &TrainArgs,
        report: &serde_json::Value,
        report_path: &std::path::Path,
        out: &std::path::Path,
        stopped: bool,
        interrupted: &AtomicBool,
    ) -> Result<()> {
        let mut text = format!("{}\n\n", report::tables(report, &self.usage));
        let lines = self.metrics.lines();
        if let (Some(first), Some(last)) = (lines.first(), lines.last()) {
            writeln!(
                text,
                "loss          {} -> {} over {} iterations",
                loss_text(first.loss),
                loss_text(last.loss),
                last.iteration
            )?;
        }
        if let Some(loss) = lines.iter().rev().find_map(|line| line.eval_loss) {
            writeln!(text, "evaluation    {}", loss_text(loss))?;
        }
        let mut own = lines.iter().filter(|line| line.iteration > self.resumed_at).peekable();
        if own.peek().is_none() {
            writeln!(
                text,
                "nothing done  the run had {} iterations already; give more --steps to continue it",
                self.resumed_at
            )?;
        } else if own.all(|line| line.skipped) {
            writeln!(
                text,
                "warning       every iteration was skipped, because its gradients overflowed: nothing was \
                 trained; lower --lr or --loss-scale, or check the data"
            )?;
        }
        let digest = report["state_digest"].as_str().unwrap_or_default();
        writeln!(text, "state digest  {digest}")?;
        if !stopped {
            self.sample(args, &mut text, interrupted)?;
        }
        if let (true, Some(fabric)) = (self.virtual_time, &args.fabric) {
            writeln!(text, "clock         virtual: all seconds are those of the fabric {fabric}")?;
        }
        if let (Some(_), Some(wear)) = (args.drive_tbw, Endurance::from_report(report)) {
            writeln!(text, "wear          {}", wear.text())?;
        }
        if let (Some(target), false) = (&args.save, stopped) {
            writeln!(text, "saved         {}", target.display())?;
        }
        writeln!(text, "report        {}", report_path.display())?;
        writeln!(text, "picture       {}", out.join("run.svg").display())?;
        if stopped {
            writeln!(
                text,
                "\nStopped after iteration {}; continue with the same command and --resume.",
                self.trainer.iteration()
            )?;
        }
        if self.json {
            eprint!("{text}");
        } else {
            print!("{text}");
        }
        Ok(())
    }
}

impl Run {
    /// What the trained model writes.
    fn sample(&self, args: &TrainArgs, text: &mut String, interrupted: &AtomicBool) -> Result<()> {
        let pretrained = matches!(self.trainer.options().model, ModelSource::Pretrained(_));
        let tokens = args.sample.unwrap_or(if pretrained { 50 } else { 200 });
        let numbers = matches!(self.trainer.vocabulary(), Vocabulary::Numbers);
        if tokens == 0 || (numbers && args.sample.is_none()) {
            return Ok(());
        }
        let tokens = u32::try_from(tokens).context("--sample is too large")?;
        let stop = || interrupted.load(Relaxed);
        let options = GenerateOptions { tokens, ..GenerateOptions::default() };
        let usual = (!pretrained).then_some("def ");
        let prompt = args.prompt.as_deref().or(usual);
        let (prompt, sample) = self.trainer.generate(prompt, &options, &stop)?;
        let sample = format!("{prompt}{sample}").replace('\n', "\n              ");
        writeln!(text, "sample        {sample}")?;
        Ok(())
    }
}

/// Opens the run; shows how far text is cut into tokens where that takes a while.
fn open(options: TrainOptions) -> Result<Trainer> {
    let bar = ProgressBar::hidden();
    if let Ok(style) = ProgressStyle::with_template(
        "cutting text into tokens {wide_bar:.cyan/dim} {bytes}/{total_bytes} {eta}",
    ) {
        bar.set_style(style);
    }
    let begin = Instant::now();
    let trainer = Trainer::with_progress(options, &mut |done, total| {
        if bar.is_hidden() && begin.elapsed().as_millis() > 500 {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let unused = trainer.unused_tensors();
    if let Some(first) = unused.first() {
        tracing::warn!(
            "{} tensors of the model's files are not part of it and are left out, for example {first}",
            unused.len()
        );
    }
    let left_out = trainer.corpus().left_out();
    if left_out.cut > 0 {
        tracing::warn!(
            "{} of {} documents are longer than --seq: {}",
            left_out.cut,
            trainer.corpus().documents(),
            match left_out.dropped {
                0 => "they are cut".to_owned(),
                dropped => format!(
                    "they are cut, and {dropped} left out whose prompt alone fills a sequence"
                ),
            }
        );
    }
    Ok(trainer)
}

/// A loss for people.
fn loss_text(loss: f64) -> String {
    if loss < f64::MAX { format!("{loss:.4}") } else { "not a number".into() }
}

/// Use of resources in one iteration; phases that share a resource are added up.
fn usage(trainer: &Trainer, report: &IterationReport) -> Vec<ResourceUse> {
    let mut total: Vec<ResourceUse> = Vec::new();
    for (kind, _, timeline) in &report.timelines {
        for used in timeline.utilisation(trainer.graph(*kind)) {
            match total.iter_mut().find(|other| other.name == used.name) {
                Some(other) => {
                    other.tasks += used.tasks;
                    other.bytes += used.bytes;
                    other.busy_seconds += used.busy_seconds;
                }
                None => total.push(used),
            }
        }
    }
    for used in &mut total {
        used.utilisation = used.busy_seconds / report.seconds.max(1e-9);
        used.gb_per_second = used.bytes as f64 / 1e9 / used.busy_seconds.max(1e-9);
    }
    total
}

/// Use of resources over the time of one iteration.
fn busy(trainer: &Trainer, report: &IterationReport) -> BusyOverTime {
    /// Pieces of the time.
    const PIECES: usize = 200;
    let mut busy = BusyOverTime::new(report.seconds, PIECES);
    for (kind, offset, timeline) in &report.timelines {
        busy.add(trainer.graph(*kind), timeline, *offset);
    }
    busy
}

fn progress_bar(args: &TrainArgs, trainer: &Trainer) -> Option<ProgressBar> {
    let wanted = match args.progress.unwrap_or(ProgressKind::Auto) {
        ProgressKind::Auto => std::io::stdout().is_terminal(),
        ProgressKind::Bar => true,
        ProgressKind::Json | ProgressKind::None => false,
    };
    wanted.then(|| {
        let bar = ProgressBar::new(trainer.options().iterations).with_position(trainer.iteration());
        // The template is a constant that the style's own test accepts; without it the default style serves.
        if let Ok(style) =
            ProgressStyle::with_template("{pos}/{len} {wide_bar:.cyan/dim} {eta} {msg}")
        {
            bar.set_style(style);
        }
        bar
    })
}

/// Says that a signal was heard, since a step may take long. Runs in a signal handler.
fn say_that_it_stops() {
    const TEXT: &str =
        "\nstopping after this step; once more to stop at once (the state survives that)\n";
    // SAFETY: writes bytes that live for ever to standard error.
    unsafe { libc::write(libc::STDERR_FILENO, TEXT.as_ptr().cast(), TEXT.len()) };
}

/// Says which drives have nothing to do.
fn warn_of_idle_drives(trainer: &Trainer) {
    let layout = trainer.engine().layout();
    for (number, path) in trainer.options().drives.iter().enumerate() {
        if layout.on_drive(number as u32).is_empty() {
            tracing::warn!(
                "drive {number} ({}) holds nothing: there are fewer parts than drives; use a smaller --subgroup-size or fewer drives",
                path.display()
            );
        }
    }
}

/// What is about to run, and what it takes.
fn announce(trainer: &Trainer) {
    let options = trainer.options();
    let budget = trainer.engine().budget();
    let corpus = trainer.corpus();
    let unit = match trainer.vocabulary() {
        Vocabulary::Bytes => "bytes of text",
        _ => "tokens",
    };
    let (files, path) = (corpus.files(), options.corpus.path.display());
    let tokens = corpus.tokens();
    println!(
        "Training {} parameters on {tokens} {unit} from {files} files ({path})",
        trainer.parameters()
    );
    if let Some(sequences) = corpus.sequences() {
        let each = u64::from(options.batch) * u64::from(options.accumulate);
        println!(
            "Data: {}{sequences} sequences of {} tokens, {:.1} epochs, order {}",
            match corpus.documents() {
                0 => String::new(),
                documents => format!("{documents} documents in "),
            },
            options.seq,
            (options.iterations * each) as f64 / sequences as f64,
            corpus.order().name()
        );
    }
    println!(
        "System {}: {}; {} parts, subgroups of at most {} elements",
        options.offload.system.name(),
        trainer.engine().describe(),
        trainer.engine().layout().parts.len(),
        options.offload.subgroup_elements
    );
    println!(
        "Memory: {} buffers, {} working weights, {} in all (fixed from here on)",
        human_bytes(budget.buffers_bytes()),
        human_bytes(budget.weights_bytes),
        human_bytes(budget.total_bytes() + trainer.accumulator_bytes())
    );
    if trainer.iteration() > 0 {
        println!("Continuing after iteration {}", trainer.iteration());
    }
}
