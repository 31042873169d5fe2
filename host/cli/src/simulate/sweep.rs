//! Combinations of values.

use anyhow::{Context, Result, bail};
use nearfield_bench::values::named;
use nearfield_techniques::offload::System;

use super::SimulateArgs;
use super::case::Case;

/// Most combinations of one call.
const MOST: usize = 100_000;

/// Keys that can be swept.
const KEYS: [&str; 11] = [
    "drives",
    "system",
    "model",
    "gpu",
    "gpus",
    "topology",
    "optimizer",
    "topk-keep",
    "batch",
    "seq",
    "overlap-update",
];

/// All combinations that `args` asks for; later keys change fastest.
pub fn cases(args: &SimulateArgs) -> Result<Vec<Case>> {
    let mut cases = vec![Case::from(args)];
    let mut swept = Vec::new();
    for sweep in &args.sweep {
        let (key, values) = sweep
            .split_once('=')
            .with_context(|| format!("--sweep {sweep:?} is not of the form KEY=VALUES"))?;
        if !KEYS.contains(&key) {
            bail!("--sweep {key}: keys are {}", KEYS.join(", "));
        }
        if swept.contains(&key) {
            bail!("--sweep {key} is given twice; give all its values at once");
        }
        swept.push(key);
        let values = expand(key, values)?;
        if cases.len() * values.len() > MOST {
            bail!("--sweep: more than {MOST} combinations");
        }
        let mut next = Vec::new();
        for case in &cases {
            for value in &values {
                let mut case = case.clone();
                set(&mut case, key, value)
                    .map_err(|error| anyhow::anyhow!("--sweep {key}={value}: {error}"))?;
                next.push(case);
            }
        }
        cases = next;
    }
    Ok(cases)
}

fn expand(key: &str, values: &str) -> Result<Vec<String>> {
    if key == "system" && values == "all" {
        let all = [System::Base, System::BasePipe, System::Su, System::SuO, System::SuOC];
        return Ok(all.iter().map(|system| system.name().to_owned()).collect());
    }
    if let Some((first, last)) = values.split_once("..") {
        let number = |text: &str| {
            text.parse::<u64>()
                .with_context(|| format!("--sweep {key}={values}: {text:?} is no whole number"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last - first >= MOST as u64 {
            bail!("--sweep {key}={values} is empty or too long");
        }
        return Ok((first..=last).map(|value| value.to_string()).collect());
    }
    Ok(values.split(',').map(|value| value.trim().to_owned()).collect())
}

fn set(case: &mut Case, key: &str, value: &str) -> Result<(), String> {
    fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
        value.parse().map_err(|_| "no number".to_owned())
    }
    match key {
        "drives" => case.drives = number(value)?,
        "system" => case.system = named(value)?,
        "model" => case.model = value.to_owned(),
        "gpus" => case.gpus = number(value)?,
        "gpu" => case.gpu = Some(value.to_owned()),
        "topology" => case.topology = value.to_owned(),
        "optimizer" => case.optimizer = named(value)?,
        "topk-keep" => case.topk_keep = number(value)?,
        "batch" => case.batch = number(value)?,
        "overlap-update" => {
            case.overlap_update = value.parse().map_err(|_| "true or false".to_owned())?;
        }
        _ => case.seq = number(value)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SimulateArgs,
    }

    fn of(words: &[&str]) -> Result<Vec<Case>> {
        let words = ["simulate", "--fabric", "x"].iter().chain(words);
        cases(&Line::try_parse_from(words).unwrap().args)
    }

    #[test]
    fn combinations_are_a_product() {
        let cases = of(&["--sweep", "drives=1..3", "--sweep", "system=base, su+o"]).unwrap();
        let found: Vec<_> = cases.iter().map(|case| (case.drives, case.system)).collect();
        let (base, su_o) = (System::Base, System::SuO);
        assert_eq!(found, [(1, base), (1, su_o), (2, base), (2, su_o), (3, base), (3, su_o)]);
        assert_eq!(of(&["--sweep", "system=all"]).unwrap().len(), 5);
    }

    #[test]
    fn wrong_sweeps_are_named() {
        let error = |sweep: &str| format!("{:#}", of(&["--sweep", sweep]).unwrap_err());
        assert!(error("drives").contains("KEY=VALUES"));
        assert!(error("drive=1").contains("keys are drives"));
        assert!(error("drives=5..2").contains("empty"));
        assert!(error("drives=1..x").contains("no whole number"));
        assert!(error("system=su,sux").contains("sux"));
        assert!(error("seq=1..99999999").contains("too long"));
    }
}
