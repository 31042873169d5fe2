//! The digest of a state: the same whatever the drives, the placement or the system that made it.

use crate::error::{Error, Result};
use crate::types::{Optimizer, Variable};

/// Builds the digest of a state piece by piece.
///
/// The digest is the first 16 bytes, in hexadecimal, of BLAKE3 over: optimizer step (u64), elements N (u64), and for
/// each stored variable in the order `param`, `exp_avg`, `exp_avg_sq`: the length of its name (u64), its name, and its own
/// BLAKE3 (32 bytes) over its N elements as little-endian fp32 (widened, where they are stored in fewer bits) in flat order,
/// without padding. Integers are
/// little-endian. Number of drives, subgroup size, placement, padding and gradients do not enter, so a state in memory and
/// a state on any set of drives have the same digest when they are the same state.
///
/// ```
/// use nearfield_runtime::store::StateDigest;
/// use nearfield_runtime::types::{Optimizer, Variable};
///
/// let mut whole = StateDigest::new(3, 4, Optimizer::SgdMomentum);
/// whole.add(Variable::Param, &[1.0, 2.0, 3.0, 4.0]);
/// whole.add(Variable::ExpAvg, &[0.0; 4]);
///
/// let mut pieces = StateDigest::new(3, 4, Optimizer::SgdMomentum);
/// pieces.add(Variable::ExpAvg, &[0.0; 3]);
/// pieces.add(Variable::Param, &[1.0]);
/// pieces.add(Variable::Param, &[2.0, 3.0, 4.0]);
/// pieces.add(Variable::ExpAvg, &[0.0]);
/// assert_eq!(whole.finish()?, pieces.finish()?);
/// # Ok::<(), nearfield_runtime::Error>(())
/// ```
pub struct StateDigest {
    step: u64,
    elements: u64,
    variables: Vec<(Variable, blake3::Hasher, u64)>,
    stray: Option<Variable>,
}

impl StateDigest {
    /// Begins the digest of a state of `elements` elements after optimizer step `step`.
    pub fn new(step: u64, elements: u64, optimizer: Optimizer) -> Self {
        let variables = optimizer
            .variables()
            .iter()
            .map(|&variable| (variable, blake3::Hasher::new(), 0))
            .collect();
        Self { step, elements, variables, stray: None }
    }

    /// Adds the next elements of a variable, in flat order; variables may take turns.
    pub fn add(&mut self, variable: Variable, elements: &[f32]) {
        // Also says that the variable was named at all when it has no elements.
        self.add_bytes(variable, &[]);
        // Converting a tile at a time keeps the digest the same on a big-endian machine.
        let mut tile = [0; 4096];
        if elements.is_empty() {
            self.add_bytes(variable, &[]);
        }
        for chunk in elements.chunks(tile.len() / 4) {
            for (bytes, element) in tile.chunks_exact_mut(4).zip(chunk) {
                bytes.copy_from_slice(&element.to_le_bytes());
            }
            self.add_bytes(variable, &tile[..chunk.len() * 4]);
        }
    }

    /// [`Self::add`] for elements that are little-endian fp32 bytes already.
    pub fn add_bytes(&mut self, variable: Variable, bytes: &[u8]) {
        match self.variables.iter_mut().find(|(stored, ..)| *stored == variable) {
            Some((_, hasher, count)) => {
                hasher.update(bytes);
                *count += bytes.len() as u64;
            }
            None => self.stray = Some(variable),
        }
    }

    /// The digest: 32 hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a variable did not get all of its elements, or one was given that the optimizer lacks.
    pub fn finish(self) -> Result<String> {
        if let Some(stray) = self.stray {
            return Err(Error::Invalid(format!(
                "state digest: this optimizer stores no {}",
                stray.name()
            )));
        }
        let mut whole = blake3::Hasher::new();
        whole.update(&self.step.to_le_bytes());
        whole.update(&self.elements.to_le_bytes());
        for (variable, hasher, bytes) in &self.variables {
            if *bytes != self.elements * 4 {
                return Err(Error::Invalid(format!(
                    "state digest: {} has {bytes} bytes where {} elements have {}",
                    variable.name(),
                    self.elements,
                    self.elements * 4
                )));
            }
            let name = variable.name();
            whole.update(&(name.len() as u64).to_le_bytes());
            whole.update(name.as_bytes());
            whole.update(hasher.finalize().as_bytes());
        }
        Ok(whole.finalize().as_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(step: u64, param: &[f32], moment: &[f32]) -> String {
        let mut digest = StateDigest::new(step, param.len() as u64, Optimizer::SgdMomentum);
        digest.add(Variable::Param, param);
        digest.add(Variable::ExpAvg, moment);
        digest.finish().unwrap()
    }

    #[test]
    fn digest_depends_on_step_and_every_element() {
        let base = digest(1, &[1.0, 2.0], &[0.0, 0.0]);
        assert_eq!(base.len(), 32);
        assert_eq!(base, digest(1, &[1.0, 2.0], &[0.0, 0.0]));
        for other in [
            digest(2, &[1.0, 2.0], &[0.0, 0.0]),
            digest(1, &[2.0, 1.0], &[0.0, 0.0]),
            digest(1, &[1.0, 2.0], &[0.0, -0.0]),
            digest(1, &[0.0, 0.0], &[1.0, 2.0]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn digest_of_an_incomplete_state_is_refused() {
        let mut short = StateDigest::new(1, 2, Optimizer::SgdMomentum);
        short.add(Variable::Param, &[1.0, 2.0]);
        short.add(Variable::ExpAvg, &[1.0]);
        assert!(short.finish().unwrap_err().to_string().contains("exp_avg"));
        let mut stray = StateDigest::new(1, 0, Optimizer::SgdMomentum);
        stray.add(Variable::ExpAvgSq, &[]);
        assert!(stray.finish().unwrap_err().to_string().contains("exp_avg_sq"));
    }
}
