//! The learning rate of each step.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How the learning rate goes on after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// It stays at the peak.
    Constant,
    /// Half a cosine wave from the peak to the minimum.
    Cosine,
}

/// A learning-rate schedule: a linear warm-up, then [`Shape`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// How it goes on after the warm-up.
    pub shape: Shape,
    /// Learning rate at the end of the warm-up.
    pub peak: f64,
    /// Learning rate at and after `total_steps` (cosine only).
    pub minimum: f64,
    /// Steps of the warm-up: step i of w runs at peak·(i+1)/w. 0 for none.
    pub warmup_steps: u64,
    /// Steps until the minimum is reached, warm-up included (cosine only).
    pub total_steps: u64,
}

impl Schedule {
    /// Checks the ranges: rates finite and not negative, minimum ≤ peak, warm-up shorter than the whole.
    pub fn validate(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if !self.peak.is_finite() || self.peak < 0.0 {
            return invalid(format!(
                "learning rate {} is not a finite number of at least 0; use --lr 3e-4, for example",
                self.peak
            ));
        }
        if !self.minimum.is_finite() || self.minimum < 0.0 || self.minimum > self.peak {
            return invalid(format!(
                "minimum learning rate {} is not between 0 and the learning rate {}; lower --min-lr or raise --lr",
                self.minimum, self.peak
            ));
        }
        if self.shape == Shape::Cosine && self.warmup_steps > self.total_steps {
            return invalid(format!(
                "the warm-up of {} steps is longer than the {} steps of the schedule; lower --warmup or raise --steps",
                self.warmup_steps, self.total_steps
            ));
        }
        Ok(())
    }

    /// Learning rate of the step that follows `steps_done` completed steps.
    pub fn rate(&self, steps_done: u64) -> f64 {
        if steps_done < self.warmup_steps {
            return self.peak * (steps_done + 1) as f64 / self.warmup_steps as f64;
        }
        match self.shape {
            Shape::Constant => self.peak,
            Shape::Cosine if steps_done >= self.total_steps => self.minimum,
            Shape::Cosine => {
                let done = (steps_done - self.warmup_steps) as f64;
                let all = (self.total_steps - self.warmup_steps) as f64;
                // libm, not the system's cosine: the rate is part of the state that a resumed run must reproduce.
                let wave = 0.5 * (1.0 + libm::cos(std::f64::consts::PI * done / all));
                self.minimum + (self.peak - self.minimum) * wave
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSINE: Schedule = Schedule {
        shape: Shape::Cosine,
        peak: 1.0,
        minimum: 0.1,
        warmup_steps: 4,
        total_steps: 24,
    };

    #[test]
    fn warm_up_is_linear_and_ends_at_the_peak() {
        let rates: Vec<f64> = (0..5).map(|step| COSINE.rate(step)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0]);
    }

    #[test]
    fn cosine_falls_from_peak_to_minimum_and_stays() {
        assert!((COSINE.rate(14) - 0.55).abs() < 1e-12);
        assert!((4..30).all(|step| COSINE.rate(step + 1) <= COSINE.rate(step)));
        assert_eq!(COSINE.rate(24), 0.1);
        assert_eq!(COSINE.rate(u64::MAX), 0.1);
    }

    #[test]
    fn constant_stays_at_the_peak() {
        let schedule = Schedule { shape: Shape::Constant, total_steps: 0, ..COSINE };
        schedule.validate().unwrap();
        assert_eq!(schedule.rate(0), 0.25);
        assert_eq!(schedule.rate(1000), 1.0);
    }

    #[test]
    fn no_warm_up_and_a_schedule_that_is_all_warm_up_are_defined() {
        let at = |warmup_steps, total_steps, step| {
            let schedule = Schedule { warmup_steps, total_steps, ..COSINE };
            schedule.validate().unwrap();
            schedule.rate(step)
        };
        assert_eq!(at(0, 10, 0), 1.0);
        assert_eq!(at(4, 4, 3), 1.0);
        assert_eq!(at(4, 4, 4), 0.1);
        assert_eq!(at(0, 0, 0), 0.1);
    }

    #[test]
    fn values_out_of_range_are_named_with_the_option_to_change() {
        let text = |schedule: Schedule| schedule.validate().unwrap_err().to_string();
        let peak = f64::NAN;
        assert!(text(Schedule { peak, ..COSINE }).contains("--lr"));
        let minimum = 2.0;
        assert!(text(Schedule { minimum, ..COSINE }).contains("--min-lr"));
        let warmup_steps = 25;
        let text = text(Schedule { warmup_steps, ..COSINE });
        assert!(text.contains("--warmup") && text.contains("25"));
    }
}
