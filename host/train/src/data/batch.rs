//! Batches as a pure function of their place in the run.

use std::ops::Range;

use super::cache::DocumentTable;
use super::options::Order;
use super::shuffle::shuffled;
use crate::model::IGNORED;
use crate::random::{Purpose, Random, split};

/// Sequences of tokens, each with the token that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// `[sequences, seq]`, row-major.
    pub inputs: Vec<i64>,
    /// The token after each, -100 where it does not count.
    pub targets: Vec<i64>,
    /// Number of the document of each input, where documents share sequences.
    pub documents: Option<Vec<i64>>,
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
    /// Micro-batches of an iteration.
    pub accumulate: u32,
    /// Tokens of a sequence.
    pub seq: u32,
}

/// Where a sequence begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pick {
    /// At this token.
    Token(u64),
    /// The sequence of this number.
    Row(u64),
}

impl BatchPlan {
    /// The sequences of a training micro-batch, among `tokens` tokens or `rows` sequences.
    ///
    /// It depends on the arguments and the seed only, so a resumed run needs no cursor. `iteration` counts skipped steps too.
    pub(super) fn training(
        &self,
        order: Order,
        tokens: u64,
        rows: u64,
        iteration: u64,
        micro_step: u32,
    ) -> Vec<Pick> {
        let each = 0..self.sequences;
        if order == Order::Random {
            let starts = tokens.saturating_sub(u64::from(self.seq)).max(1);
            let random = Random::new(self.seed, Purpose::Batch);
            let [low, high] = split(iteration);
            return each
                .map(|sequence| random.below([low, high, micro_step, sequence], starts))
                .map(Pick::Token)
                .collect();
        }
        let rows = rows.max(1);
        let before = (iteration * u64::from(self.accumulate) + u64::from(micro_step))
            * u64::from(self.sequences);
        each.map(|sequence| {
            let number = before + u64::from(sequence);
            let (epoch, place) = (number / rows, number % rows);
            Pick::Row(match order {
                Order::Sequential => place,
                _ => shuffled(self.seed, epoch, place, rows),
            })
        })
        .collect()
    }

    /// An empty batch to which sequences are added.
    pub(super) fn batch(&self, documents: bool) -> Batch {
        let size = self.sequences as usize * self.seq as usize;
        Batch {
            inputs: Vec::with_capacity(size),
            targets: Vec::with_capacity(size),
            documents: documents.then(|| Vec::with_capacity(size)),
            sequences: 0,
        }
    }
}

impl Batch {
    /// Adds `tokens`, which lie at `range` of the data, as one sequence of `seq` inputs; a shorter one is padded with `padding`.
    pub(super) fn add(
        &mut self,
        tokens: &[i64],
        range: Range<u64>,
        seq: u32,
        table: &DocumentTable,
        padding: i64,
    ) {
        let seq = seq as usize;
        let inputs = tokens.len().saturating_sub(1);
        let begin = self.targets.len();
        self.inputs.extend(&tokens[..inputs]);
        self.targets.extend(&tokens[tokens.len() - inputs..]);
        self.inputs.resize(begin + seq, padding);
        self.targets.resize(begin + seq, IGNORED);
        self.sequences += 1;
        let targets = &mut self.targets[begin..];
        let first = table.starts.partition_point(|&start| start <= range.start).saturating_sub(1);
        let mut numbers = vec![0_i64; seq];
        let mut number = 0;
        for (index, &start) in table.starts.iter().enumerate().skip(first) {
            if start >= range.end {
                break;
            }
            // No document foretells the first token of the next, nor do prompts count.
            let prompt = table.prompts.get(index).copied().unwrap_or(0).max(1);
            let masked = start.max(range.start + 1)..(start + u64::from(prompt)).min(range.end);
            for target in masked {
                targets[(target - range.start - 1) as usize] = IGNORED;
            }
            if start > range.start {
                number += 1;
                let from = (start - range.start) as usize;
                if let Some(rest) = numbers.get_mut(from..) {
                    rest.fill(number);
                }
            }
        }
        if let Some(documents) = &mut self.documents {
            // Padding is a document of its own.
            numbers[inputs..].fill(number + 1);
            documents.extend(numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PLAN: BatchPlan = BatchPlan { seed: 7, sequences: 4, accumulate: 2, seq: 8 };

    fn random(plan: BatchPlan, iteration: u64, micro_step: u32) -> Vec<Pick> {
        plan.training(Order::Random, 1000, 0, iteration, micro_step)
    }

    #[test]
    fn batch_depends_on_its_place_only() {
        let picks = random(PLAN, 3, 1);
        assert_eq!(picks.len(), 4);
        assert_eq!(picks, random(PLAN, 3, 1));
        let others = [
            random(PLAN, 4, 1),
            random(PLAN, 3, 0),
            random(PLAN, 3 + (1 << 32), 1),
            random(BatchPlan { seed: 8, ..PLAN }, 3, 1),
        ];
        assert!(others.iter().all(|other| *other != picks));
    }

    #[test]
    fn a_random_sequence_does_not_depend_on_the_size_of_its_batch() {
        let small = random(BatchPlan { sequences: 2, ..PLAN }, 3, 1);
        assert_eq!(random(PLAN, 3, 1)[..2], small);
    }

    #[test]
    fn every_start_is_reached_including_the_last() {
        let mut starts = HashSet::new();
        for iteration in 0..100 {
            for pick in PLAN.training(Order::Random, 12, 0, iteration, 0) {
                let Pick::Token(start) = pick else { panic!("{pick:?}") };
                assert!(start < 4);
                starts.insert(start);
            }
        }
        assert_eq!(starts.len(), 4);
    }

    #[test]
    fn epochs_take_every_sequence_once() {
        for order in [Order::Shuffle, Order::Sequential] {
            let mut seen = Vec::new();
            for iteration in 0..3 {
                for micro_step in 0..2 {
                    for pick in PLAN.training(order, 0, 12, iteration, micro_step) {
                        let Pick::Row(row) = pick else { panic!("{pick:?}") };
                        seen.push(row);
                    }
                }
            }
            let (first, second) = seen.split_at(12);
            assert_eq!(first == second, order == Order::Sequential);
            for epoch in [first, second] {
                assert_eq!(epoch.iter().collect::<HashSet<_>>().len(), 12);
            }
        }
    }

    fn add(starts: &[u64], prompts: &[u32], range: Range<u64>, packed: bool) -> Batch {
        let mut batch = PLAN.batch(packed);
        let tokens: Vec<i64> = range.clone().map(|token| token as i64).collect();
        let table = DocumentTable { starts: starts.to_vec(), prompts: prompts.to_vec() };
        batch.add(&tokens, range, PLAN.seq, &table, 99);
        batch
    }

    #[test]
    fn a_long_text_is_inputs_and_what_follows() {
        let batch = add(&[], &[], 10..19, false);
        assert_eq!(batch.inputs, [10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(batch.targets, [11, 12, 13, 14, 15, 16, 17, 18]);
        assert_eq!((batch.documents, batch.sequences), (None, 1));
    }

    #[test]
    fn packed_documents_end_before_the_next_and_padding_does_not_count() {
        let batch = add(&[8, 13, 15], &[], 10..18, true);
        assert_eq!(batch.inputs, [10, 11, 12, 13, 14, 15, 16, 99]);
        assert_eq!(batch.targets, [11, 12, -100, 14, -100, 16, 17, -100]);
        assert_eq!(batch.documents.unwrap(), [0, 0, 0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn prompts_do_not_count() {
        let batch = add(&[10, 14], &[3, 2], 10..18, false);
        assert_eq!(batch.targets, [-100, -100, 13, -100, -100, 16, 17, -100]);
    }
}
