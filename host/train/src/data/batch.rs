//! Batches as a pure function of their place in the run.

use crate::random::{Purpose, Random, split};

/// Sequences of tokens, each with the token that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// `[sequences, seq + 1]`, row-major: inputs are the first `seq` of each row, targets the last `seq`.
    pub tokens: Vec<i64>,
    /// Number of sequences.
    pub sequences: u32,
}

/// Which sequences form a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    /// Seed of the run.
    pub seed: u64,
    /// Sequences in a micro-batch.
    pub sequences: u32,
    /// Tokens of a sequence.
    pub seq: u32,
}

impl BatchPlan {
    /// A training micro-batch: every sequence starts at a uniformly random token of `text`.
    ///
    /// It depends on the arguments and the seed only, so a resumed run needs no cursor. `iteration` counts skipped steps too.
    ///
    /// # Panics
    /// When `text` is not longer than a sequence; [`Corpus::load`](super::Corpus::load) has checked that.
    pub fn training(&self, text: &[u8], iteration: u64, micro_step: u32) -> Batch {
        let starts = (text.len() as u64)
            .checked_sub(u64::from(self.seq))
            .filter(|&starts| starts > 0)
            .expect("text longer than a sequence");
        let random = Random::new(self.seed, Purpose::Batch);
        let [low, high] = split(iteration);
        let rows = (0..self.sequences)
            .map(|sequence| random.below([low, high, micro_step, sequence], starts) as usize);
        self.collect(text, rows)
    }

    /// Number of sequences in an evaluation text: as many as fit one after the other, each with the token after it.
    pub fn evaluation_sequences(&self, text: &[u8]) -> u64 {
        (text.len() as u64).saturating_sub(1) / u64::from(self.seq)
    }

    /// Evaluation sequences `[first, first + self.sequences)`, fewer at the end of the text, none past it.
    pub fn evaluation(&self, text: &[u8], first: u64) -> Batch {
        let end = self.evaluation_sequences(text).min(first + u64::from(self.sequences));
        let seq = u64::from(self.seq);
        self.collect(text, (first..end).map(|index| (index * seq) as usize))
    }

    fn collect(&self, text: &[u8], starts: impl Iterator<Item = usize>) -> Batch {
        let length = self.seq as usize + 1;
        let mut tokens = Vec::with_capacity(self.sequences as usize * length);
        for start in starts {
            tokens.extend(text[start..start + length].iter().map(|&byte| i64::from(byte)));
        }
        Batch { sequences: (tokens.len() / length) as u32, tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PLAN: BatchPlan = BatchPlan { seed: 7, sequences: 4, seq: 8 };

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn batch_depends_on_its_place_only() {
        let text = text(1000);
        let batch = PLAN.training(&text, 3, 1);
        assert_eq!((batch.sequences, batch.tokens.len()), (4, 36));
        assert_eq!(batch, PLAN.training(&text, 3, 1));
        let others = [
            PLAN.training(&text, 4, 1),
            PLAN.training(&text, 3, 0),
            PLAN.training(&text, 3 + (1 << 32), 1),
            BatchPlan { seed: 8, ..PLAN }.training(&text, 3, 1),
        ];
        assert!(others.iter().all(|other| *other != batch));
    }

    #[test]
    fn a_sequence_does_not_depend_on_the_size_of_its_batch() {
        let text = text(1000);
        let sequences = 2;
        let small = BatchPlan { sequences, ..PLAN }.training(&text, 3, 1);
        assert_eq!(PLAN.training(&text, 3, 1).tokens[..18], small.tokens);
    }

    #[test]
    fn every_start_is_reached_including_the_last() {
        let text = text(12);
        let mut firsts = HashSet::new();
        for iteration in 0..100 {
            let batch = PLAN.training(&text, iteration, 0);
            for row in batch.tokens.chunks_exact(9) {
                let start = text.iter().position(|&byte| i64::from(byte) == row[0]).unwrap();
                let expected: Vec<i64> = text[start..start + 9].iter().map(|&b| b.into()).collect();
                assert_eq!(row, expected);
                firsts.insert(start);
            }
        }
        assert_eq!(firsts.len(), 4);
    }

    #[test]
    fn evaluation_walks_the_text_once() {
        let text = text(8 * 5 + 1);
        assert_eq!(PLAN.evaluation_sequences(&text), 5);
        assert_eq!(PLAN.evaluation_sequences(&text[..40]), 4);
        assert_eq!(PLAN.evaluation_sequences(&[]), 0);
        let first = PLAN.evaluation(&text, 0);
        let second = PLAN.evaluation(&text, 4);
        assert_eq!((first.sequences, second.sequences), (4, 1));
        assert_eq!(PLAN.evaluation(&text, 5).sequences, 0);
        let inputs: Vec<i64> = [first, second]
            .iter()
            .flat_map(|batch| batch.tokens.chunks_exact(9).flat_map(|row| &row[..8]))
            .copied()
            .collect();
        let expected: Vec<i64> = text[..40].iter().map(|&byte| byte.into()).collect();
        assert_eq!(inputs, expected);
    }
}
