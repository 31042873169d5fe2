//! Loss scaling, and the one scalar by which the update kernels multiply every gradient element they read.
//!
//! The rules are those of Smart-Infinity's training iteration (dynamic loss scale with hysteresis, clipping by the global norm).
//! Gradients on storage are never rewritten: unscaling and clipping are folded into [`combined_unscale`].

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Consecutive overflows after which a static scale gives up: nothing in the run would change what comes next.
const STATIC_OVERFLOWS_MAX: u32 = 16;

/// How the loss scale is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossScale {
    /// Always this value. 1 for fp32 and bf16.
    Static(f64),
    /// Grows and shrinks with what the gradients bear; for fp16.
    Dynamic(DynamicScale),
}

/// Parameters of the dynamic loss scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicScale {
    /// Scale of the first iteration.
    pub initial: f64,
    /// Overflows that are needed before the scale is halved; growth restores the count.
    pub hysteresis: u32,
    /// Iterations without overflow after which the scale doubles.
    pub window: u64,
    /// Smallest scale; the run ends when it would have to go lower.
    pub floor: f64,
}

impl Default for DynamicScale {
    fn default() -> Self {
        Self { initial: 65536.0, hysteresis: 2, window: 1000, floor: 1.0 }
    }
}

/// Largest loss scale: 2^120, far below the end of fp32.
const LARGEST: f64 = 1.329_227_995_784_916e36;

impl LossScale {
    /// Checks that scales are finite and positive, and counts at least 1.
    pub fn validate(&self) -> Result<()> {
        let positive = |value: f64, name: &str| {
            if value > 0.0 && value <= LARGEST {
                return Ok(());
            }
            Err(Error::Invalid(format!(
                "{name} {value} is not above 0 and at most 2^120; use a power of two such as 65536"
            )))
        };
        match *self {
            Self::Static(scale) => positive(scale, "loss scale"),
            Self::Dynamic(dynamic) => {
                positive(dynamic.initial, "initial loss scale")?;
                positive(dynamic.floor, "smallest loss scale")?;
                if dynamic.floor > dynamic.initial {
                    return Err(Error::Invalid(format!(
                        "smallest loss scale {} is above the initial loss scale {}; lower the smallest one",
                        dynamic.floor, dynamic.initial
                    )));
                }
                if dynamic.window == 0 || dynamic.hysteresis == 0 {
                    return Err(Error::Invalid(
                        "window and hysteresis of the dynamic loss scale must be at least 1".into(),
                    ));
                }
                Ok(())
            }
        }
    }
}

/// What a [`Scaler`] must remember to continue exactly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalerState {
    /// The current scale.
    pub scale: f64,
    /// Overflows left before the scale is halved, this one included.
    pub hysteresis: u32,
    /// Iterations done, skipped ones included.
    pub iteration: u64,
    /// The last iteration that overflowed; -1 for none.
    pub last_overflow: i64,
    /// Overflows since the last iteration without one.
    pub overflows_in_a_row: u32,
}

/// The loss scale of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaler {
    rule: LossScale,
    state: ScalerState,
}

impl Scaler {
    /// The scaler of a new run.
    pub fn new(rule: LossScale) -> Result<Self> {
        rule.validate()?;
        let (scale, hysteresis) = match rule {
            LossScale::Static(scale) => (scale, 1),
            LossScale::Dynamic(dynamic) => (dynamic.initial, dynamic.hysteresis),
        };
        let state = ScalerState {
            scale,
            hysteresis,
            iteration: 0,
            last_overflow: -1,
            overflows_in_a_row: 0,
        };
        Ok(Self { rule, state })
    }

    /// The scaler of a resumed run. A static scale is taken from `rule`, so that it can be changed between runs.
    pub fn restore(rule: LossScale, mut state: ScalerState) -> Result<Self> {
        rule.validate()?;
        if let LossScale::Static(scale) = rule {
            state.scale = scale;
        }
        let last_is_past =
            state.last_overflow >= -1 && state.last_overflow < state.iteration as i64;
        if !(state.scale.is_finite() && state.scale > 0.0 && state.hysteresis > 0 && last_is_past) {
            return Err(Error::Invalid(format!(
                "the saved loss-scale state {state:?} is not possible; it was changed or belongs to another program"
            )));
        }
        Ok(Self { rule, state })
    }

    /// The factor by which this iteration's loss is multiplied before the backward pass.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// What to save.
    pub fn state(&self) -> ScalerState {
        self.state
    }

    /// Ends an iteration. `overflow`: a gradient element was infinite or not a number, and the step is skipped.
    ///
    /// Call it after [`combined_unscale`] was taken with this iteration's scale. Fails with [`Error::Diverged`], and leaves the
    /// state as it was, when a halving is due at the floor (dynamic) or after 16 overflows in a row (static).
    pub fn update(&mut self, overflow: bool) -> Result<()> {
        let mut next = self.state;
        next.overflows_in_a_row =
            if overflow { next.overflows_in_a_row.saturating_add(1) } else { 0 };
        match self.rule {
            LossScale::Static(_) if next.overflows_in_a_row >= STATIC_OVERFLOWS_MAX => {
                return Err(self.diverged(format!(
                    "gradients were infinite or not a number in {STATIC_OVERFLOWS_MAX} iterations in a row"
                )));
            }
            LossScale::Static(_) => {}
            LossScale::Dynamic(dynamic) if overflow => {
                if dynamic.hysteresis == 1 || next.hysteresis == 1 {
                    if next.scale <= dynamic.floor {
                        return Err(self.diverged(format!(
                            "gradients are infinite or not a number at the smallest loss scale {}",
                            dynamic.floor
                        )));
                    }
                    next.scale = (next.scale / 2.0).max(dynamic.floor);
                } else {
                    next.hysteresis -= 1;
                }
            }
            LossScale::Dynamic(dynamic) => {
                let since_overflow = next.iteration as i64 - next.last_overflow;
                if (since_overflow as u64).is_multiple_of(dynamic.window) {
                    next.hysteresis = dynamic.hysteresis;
                    next.scale *= 2.0;
                }
            }
        }
        if overflow {
            next.last_overflow = next.iteration as i64;
        }
        next.iteration += 1;
        self.state = next;
        Ok(())
    }

    fn diverged(&self, what: String) -> Error {
        Error::Diverged {
            iteration: self.state.iteration,
            what,
            remedy: "the state is kept as it was; lower --lr, lengthen --warmup, set --clip, or check the data",
        }
    }
}

/// The scalar that unscales and clips: `1 / (scale·max(1, clip))`, `clip = (norm/scale + 1e-6)/max_norm`.
///
/// `norm` is the Euclidean norm of the whole gradient as it is stored, still multiplied by `scale`. `max_norm` 0 turns clipping
/// off. Computed in f64 and rounded once.
pub fn combined_unscale(scale: f64, norm: f64, max_norm: f64) -> f32 {
    let clip = if max_norm > 0.0 { (norm / scale + 1e-6) / max_norm } else { 1.0 };
    (1.0 / (scale * clip.max(1.0))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dynamic() -> Scaler {
        Scaler::new(LossScale::Dynamic(DynamicScale::default())).unwrap()
    }

    #[test]
    fn first_overflow_consumes_hysteresis_and_the_second_halves() {
        let mut scaler = dynamic();
        scaler.update(true).unwrap();
        assert_eq!((scaler.scale(), scaler.state().hysteresis), (65536.0, 1));
        scaler.update(true).unwrap();
        assert_eq!((scaler.scale(), scaler.state().hysteresis), (32768.0, 1));
        scaler.update(true).unwrap();
        assert_eq!(scaler.scale(), 16384.0);
    }

    #[test]
    fn hysteresis_is_restored_by_growth_only() {
        let mut scaler = dynamic();
        scaler.update(true).unwrap();
        scaler.update(false).unwrap();
        assert_eq!(scaler.state().hysteresis, 1);
        (0..998).for_each(|_| scaler.update(false).unwrap());
        assert_eq!((scaler.scale(), scaler.state().hysteresis), (65536.0, 1));
        scaler.update(false).unwrap();
        assert_eq!((scaler.scale(), scaler.state().hysteresis), (131072.0, 2));
    }

    #[test]
    fn scale_doubles_at_iteration_999_then_every_1000() {
        let mut scaler = dynamic();
        (0..999).for_each(|_| scaler.update(false).unwrap());
        assert_eq!(scaler.scale(), 65536.0);
        scaler.update(false).unwrap();
        assert_eq!(scaler.scale(), 131072.0);
        (0..999).for_each(|_| scaler.update(false).unwrap());
        assert_eq!(scaler.scale(), 131072.0);
        scaler.update(false).unwrap();
        assert_eq!(scaler.scale(), 262144.0);
    }

    #[test]
    fn overflow_restarts_the_window() {
        let mut scaler = dynamic();
        (0..500).for_each(|_| scaler.update(false).unwrap());
        scaler.update(true).unwrap();
        (0..999).for_each(|_| scaler.update(false).unwrap());
        assert_eq!(scaler.scale(), 65536.0);
        scaler.update(false).unwrap();
        assert_eq!(scaler.scale(), 131072.0);
    }

    #[test]
    fn hysteresis_1_halves_at_once() {
        let rule = DynamicScale { hysteresis: 1, ..DynamicScale::default() };
        let mut scaler = Scaler::new(LossScale::Dynamic(rule)).unwrap();
        scaler.update(true).unwrap();
        assert_eq!(scaler.scale(), 32768.0);
    }

    #[test]
    fn halving_due_at_the_floor_ends_the_run_and_keeps_the_state() {
        let mut scaler = dynamic();
        // One overflow for the hysteresis, sixteen halvings from 2^16 to 1.
        (0..17).for_each(|_| scaler.update(true).unwrap());
        assert_eq!(scaler.scale(), 1.0);
        let before = scaler.state();
        let error = scaler.update(true).unwrap_err();
        assert!(matches!(error, Error::Diverged { iteration: 17, .. }));
        assert!(error.to_string().contains("--lr"));
        assert_eq!(scaler.state(), before);
    }

    #[test]
    fn halving_stops_at_a_floor_that_is_not_a_power_of_two() {
        let rule =
            DynamicScale { initial: 4.0, hysteresis: 1, floor: 3.0, ..DynamicScale::default() };
        let mut scaler = Scaler::new(LossScale::Dynamic(rule)).unwrap();
        scaler.update(true).unwrap();
        assert_eq!(scaler.scale(), 3.0);
        assert!(scaler.update(true).is_err());
    }

    #[test]
    fn overflow_at_the_floor_with_hysteresis_left_only_consumes_it() {
        let rule = DynamicScale { initial: 1.0, ..DynamicScale::default() };
        let mut scaler = Scaler::new(LossScale::Dynamic(rule)).unwrap();
        scaler.update(true).unwrap();
        assert_eq!((scaler.scale(), scaler.state().hysteresis), (1.0, 1));
        assert!(scaler.update(true).is_err());
    }

    #[test]
    fn static_scale_never_moves_and_gives_up_after_16_overflows_in_a_row() {
        let mut scaler = Scaler::new(LossScale::Static(8.0)).unwrap();
        (0..3000).for_each(|_| scaler.update(false).unwrap());
        (0..15).for_each(|_| scaler.update(true).unwrap());
        scaler.update(false).unwrap();
        (0..15).for_each(|_| scaler.update(true).unwrap());
        assert_eq!(scaler.scale(), 8.0);
        assert!(matches!(scaler.update(true), Err(Error::Diverged { .. })));
    }

    #[test]
    fn unscale_inverts_the_scale_and_clips_to_the_norm() {
        assert_eq!(combined_unscale(1024.0, 3.0 * 1024.0, 0.0), 1.0 / 1024.0);
        assert_eq!(combined_unscale(1024.0, 0.5 * 1024.0, 1.0), 1.0 / 1024.0);
        let clipped = combined_unscale(1024.0, 4.0 * 1024.0, 2.0);
        let expected = 1.0 / (1024.0 * ((4.0 + 1e-6) / 2.0));
        assert_eq!(clipped, expected as f32);
        assert_eq!(combined_unscale(2.0, 0.0, 1.0), 0.5);
    }

    #[test]
    fn impossible_parameters_and_states_are_rejected() {
        assert!(Scaler::new(LossScale::Static(0.0)).is_err());
        assert!(Scaler::new(LossScale::Static(f64::INFINITY)).is_err());
        let rule = DynamicScale { window: 0, ..DynamicScale::default() };
        assert!(Scaler::new(LossScale::Dynamic(rule)).is_err());
        let mut state = dynamic().state();
        state.last_overflow = 5;
        let rule = LossScale::Dynamic(DynamicScale::default());
        assert!(Scaler::restore(rule, state).is_err());
    }

    proptest! {
        /// The rule as it is written, followed literally, beside the scaler; saved and restored at every step.
        #[test]
        fn scaler_follows_the_written_rule_across_restarts(
            overflows in proptest::collection::vec(proptest::bool::weighted(0.3), 0..200),
            hysteresis in 1u32..4, window in 1u64..8,
        ) {
            let rule = DynamicScale { initial: 256.0, hysteresis, window, floor: 1.0 };
            let mut scaler = Scaler::new(LossScale::Dynamic(rule)).unwrap();
            let (mut scale, mut hys, mut last) = (256.0f64, hysteresis, -1i64);
            for (it, &overflow) in overflows.iter().enumerate() {
                let it = it as i64;
                let mut ends = false;
                if overflow {
                    if hysteresis == 1 || hys == 1 {
                        ends = scale == 1.0;
                        scale = (scale / 2.0).max(1.0);
                    } else {
                        hys -= 1;
                    }
                    last = it;
                } else if (it - last) % window as i64 == 0 {
                    hys = hysteresis;
                    scale *= 2.0;
                }
                prop_assert_eq!(scaler.update(overflow).is_err(), ends);
                if ends {
                    return Ok(());
                }
                let text = serde_json::to_string(&scaler.state()).unwrap();
                scaler = Scaler::restore(scaler.rule, serde_json::from_str(&text).unwrap()).unwrap();
                prop_assert_eq!((scaler.scale(), scaler.state().hysteresis), (scale, hys));
            }
        }
    }
}
