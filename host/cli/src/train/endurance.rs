//! How long drives last.

use serde_json::{Value, json};

/// Wear of the drive that is written to most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Endurance {
    /// Bytes written to it in each step.
    pub bytes_per_step: f64,
    /// Steps until its rating is used up; `None` without a rating.
    pub steps: Option<f64>,
    /// Days of training without pause until then; `None` where the time of a step is not known.
    pub days: Option<f64>,
}

impl Endurance {
    /// `tbw`: rated terabytes written; `seconds`: time of a step.
    pub fn new(bytes_per_step: f64, tbw: Option<f64>, seconds: Option<f64>) -> Self {
        let steps = tbw.map(|tbw| tbw * 1e12 / bytes_per_step.max(1.0));
        let days = steps.zip(seconds).map(|(steps, seconds)| steps * seconds / 86_400.0);
        Self { bytes_per_step, steps, days }
    }

    /// What a report says; `None` where it says nothing, or nothing was written.
    pub fn from_report(report: &Value) -> Option<Self> {
        let wear = &report["endurance"];
        let number = |key: &str| wear[key].as_f64();
        let bytes_per_step = number("bytes_per_step_and_drive").filter(|&bytes| bytes > 0.0)?;
        let (steps, days) = (number("steps_to_rating"), number("days_to_rating"));
        Some(Self { bytes_per_step, steps, days })
    }

    /// For reports.
    pub fn json(&self, tbw: Option<f64>) -> Value {
        json!({
            "drive_tbw": tbw,
            "bytes_per_step_and_drive": self.bytes_per_step,
            "steps_to_rating": self.steps,
            "days_to_rating": self.days,
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let bytes = crate::values::human_bytes(self.bytes_per_step as u64);
        let mut text = format!("{bytes} a step on the drive that is written most");
        if let Some(steps) = self.steps {
            text.push_str(&format!("; {steps:.0} steps until its rating is used up"));
        }
        if let Some(days) = self.days {
            text.push_str(&format!(", {days:.1} days without pause"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rating_becomes_steps_and_days() {
        let wear = Endurance::new(16e9, Some(600.0), Some(10.0));
        assert_eq!(wear.steps, Some(37_500.0));
        assert!((wear.days.unwrap() - 4.34).abs() < 0.01);
        assert!(wear.text().contains("16.00 GB") && wear.text().contains("4.3 days"));
        assert_eq!(Endurance::new(16e9, None, Some(10.0)).days, None);
        let report = json!({ "endurance": wear.json(Some(600.0)) });
        assert_eq!(Endurance::from_report(&report), Some(wear));
        let nothing = json!({ "endurance": Endurance::new(0.0, None, None).json(None) });
        assert_eq!(Endurance::from_report(&nothing), None);
        assert_eq!(Endurance::from_report(&json!({})), None);
    }
}
