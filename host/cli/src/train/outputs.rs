//! Files that a run writes must not be ones that it, or another, reads.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::args::TrainArgs;

/// What a path stands for: a file that is there, or a name in a directory.
#[derive(PartialEq)]
enum Place {
    There(u64, u64),
    Name(PathBuf),
}

impl Place {
    fn of(path: &Path) -> Self {
        if let Ok(metadata) = path.metadata() {
            return Self::There(metadata.dev(), metadata.ino());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let parent = parent.canonicalize().unwrap_or_else(|_| parent.to_path_buf());
        Self::Name(parent.join(path.file_name().unwrap_or_default()))
    }
}

/// Whether two paths lead to one file, be it there or not.
pub fn same(one: &Path, other: &Path) -> bool {
    Place::of(one) == Place::of(other)
}

/// Refuses outputs that would replace an input, a file of the state, or one another.
pub fn check(args: &TrainArgs, report: &Path) -> Result<()> {
    let out = args.out();
    let mut outputs = vec![
        ("the metrics", out.join("metrics.jsonl")),
        ("the picture", out.join("run.svg")),
        ("--report", report.to_path_buf()),
    ];
    outputs.extend(args.trace.as_ref().map(|path| ("--trace", path.clone())));
    let inputs = [
        ("--data", &args.data),
        ("--config", &args.config),
        ("--tokenizer", &args.tokenizer),
        ("--optimizer-state", &args.optimizer_state),
        ("--model", &args.model),
    ];
    for (index, (name, path)) in outputs.iter().enumerate() {
        if let Some((other, _)) = outputs[..index].iter().find(|(_, other)| same(other, path)) {
            bail!("{name} is written to {}, and so is {other}; give another file", path.display());
        }
        let full = path.canonicalize();
        for (input, from) in inputs.iter().filter_map(|(name, path)| Some((name, path.as_ref()?))) {
            // A directory is read with all that is in it.
            let within =
                |full: &PathBuf| from.canonicalize().is_ok_and(|from| full.starts_with(from));
            if same(from, path) || full.as_ref().is_ok_and(within) {
                bail!(
                    "{name} would replace {}, which {input} reads; give another file",
                    path.display()
                );
            }
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        if let Some(drive) = args.drive.iter().find(|drive| same(drive, parent)) {
            bail!(
                "{name} is written to {}, in the drive directory {}; give a file elsewhere",
                path.display(),
                drive.display()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_are_inputs_or_one_another_are_named() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["text", "drive", "corpus"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::fs::write(at("corpus/a.txt"), "a").unwrap();
        std::fs::write(at("book.txt"), "a").unwrap();
        std::os::unix::fs::symlink(at("book.txt"), at("link.txt")).unwrap();
        let args = TrainArgs {
            data: Some(at("book.txt")),
            drive: vec![at("drive")],
            out: Some(at("out")),
            ..TrainArgs::default()
        };
        let error = |args: &TrainArgs, report: &Path| check(args, report).unwrap_err().to_string();
        let report = at("out/report.json");
        check(&args, &report).unwrap();
        let traced = |trace: PathBuf| TrainArgs { trace: Some(trace), ..args.clone() };
        check(&traced(at("trace.json")), &report).unwrap();
        assert!(error(&traced(at("link.txt")), &report).contains("which --data reads"));
        assert!(error(&traced(at("drive/slots.nf")), &report).contains("drive directory"));
        assert!(error(&traced(at("out/report.json")), &report).contains("and so is --report"));
        assert!(error(&args, &at("book.txt")).contains("--report would replace"));
        let corpus = TrainArgs { data: Some(at("corpus")), ..args.clone() };
        assert!(error(&corpus, &at("corpus/a.txt")).contains("which --data reads"));
        check(&corpus, &at("corpus/new.json")).unwrap();
    }
}
