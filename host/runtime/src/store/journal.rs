//! `journal.nf`: what the run was about to do, and what it had done.

use serde::Serialize;

use super::block::{self, Block, Fields, Magic, Take};
use super::geometry::JOURNAL_RECORDS;
use super::superblock::RunId;
use crate::error::{Error, Result};
use crate::types::HyperParameters;

const JOURNAL_MAGIC: Magic = *b"NFJRNL\0\0";

/// Parameter groups that a record can hold.
pub const GROUPS_MAX: usize = 16;
/// Bytes of trainer state that a record can hold.
pub const BLOB_BYTES_MAX: usize = 2048;

/// What a journal record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordKind {
    /// The run was created; step 0.
    Begin,
    /// The gradients of the step are durable and its update is about to begin.
    Intent,
    /// The update of the step is complete on every drive.
    Commit,
    /// The iteration had an overflow; no update took place.
    Skip,
    /// The intent before it does not count: it had not reached every drive.
    Void,
}

const KINDS: [RecordKind; 5] =
    [RecordKind::Begin, RecordKind::Intent, RecordKind::Commit, RecordKind::Skip, RecordKind::Void];

/// What the trainer records of one iteration; every drive gets the same.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// Training iterations done when this one is complete; counts skipped ones too.
    pub iteration: u64,
    /// Optimizer step: the one that begins (intent), or the last one done (skip).
    pub step: u64,
    /// What each gradient element is multiplied by: unscaling and clipping in one.
    pub unscale: f32,
    /// Hyper-parameters of each parameter group; at most 16.
    pub groups: Vec<HyperParameters>,
    /// State of the trainer **after** this iteration; at most 2048 bytes.
    pub blob: Vec<u8>,
}

/// A record of the journal: one sealed block.
///
/// The journal is a ring of 64 records; the record of sequence number s lies at place s mod 64. Every event is
/// written to **all** drives with the same sequence number and content, flushed, before the next event begins on any
/// drive. So at any moment the newest records of two drives differ by at most one, which is what recovery
/// (see `recovery.rs`) builds on, and which unmasks a drive put back from an older copy.
///
/// - `Intent` of t: written after the gradients of t are flushed on that drive, before the first slot of t is
///   written on any drive. It carries all that a restart needs to do the update again.
/// - `Commit` of t: written when every drive has made all headers of t durable.
/// - `Skip`: an iteration whose gradients overflowed; carries the trainer's state.
/// - `Void`: written by recovery over an intent that not every drive has.
///
/// The ring never has gaps: behind the newest record s lie s-1, s-2 … s-62. Only the oldest place, the one that
/// is overwritten next, may hold a torn record. Anything else is damage.
///
/// Body: run id 16, kind u8, sequence u64, iteration u64, step u64, unscale f32 bits u32, groups u32 (each lr, beta1,
/// beta2, eps, weight_decay f64), blob bytes u32, blob. The stamp of the block is the sequence number plus 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Record {
    pub run: RunId,
    pub kind: RecordKind,
    pub sequence: u64,
    pub content: StepRecord,
}

impl StepRecord {
    /// Checks the bounds of the format.
    pub(crate) fn check(&self) -> Result<()> {
        if self.groups.len() > GROUPS_MAX || self.blob.len() > BLOB_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "a journal record holds {GROUPS_MAX} parameter groups and {BLOB_BYTES_MAX} bytes of trainer state, not {} and {}",
                self.groups.len(),
                self.blob.len()
            )));
        }
        Ok(())
    }
}

impl Record {
    pub fn encode(&self, out: &mut [u8]) {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(KINDS.len()) as u8;
        let content = &self.content;
        let mut body = Fields::default();
        body.bytes(&self.run.0).u8(kind).u64(self.sequence);
        body.u64(content.iteration).u64(content.step).u32(content.unscale.to_bits());
        body.u32(content.groups.len() as u32);
        for group in &content.groups {
            body.f64(group.lr)
                .f64(group.beta1)
                .f64(group.beta2)
                .f64(group.eps)
                .f64(group.weight_decay);
        }
        body.u32(content.blob.len() as u32).bytes(&content.blob);
        block::encode(&JOURNAL_MAGIC, self.sequence + 1, &body.0, out);
    }

    fn from_body(body: &[u8]) -> Option<Self> {
        let mut take = Take(body);
        let run = RunId(take.id()?);
        let kind = *KINDS.get(take.u8()? as usize)?;
        let sequence = take.u64()?;
        let (iteration, step) = (take.u64()?, take.u64()?);
        let unscale = f32::from_bits(take.u32()?);
        let groups = (0..take.u32()?.min(GROUPS_MAX as u32))
            .map(|_| {
                Some(HyperParameters {
                    lr: take.f64()?,
                    beta1: take.f64()?,
                    beta2: take.f64()?,
                    eps: take.f64()?,
                    weight_decay: take.f64()?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        let bytes = take.u32()? as usize;
        let blob = take.bytes(bytes)?.to_vec();
        take.end()?;
        Some(Self {
            run,
            kind,
            sequence,
            content: StepRecord { iteration, step, unscale, groups, blob },
        })
    }

    /// Same kind, number and content, bit for bit (a NaN equals itself).
    pub fn same(&self, other: &Self) -> bool {
        let mut blocks = [[0; block::BLOCK_BYTES]; 2];
        self.encode(&mut blocks[0]);
        other.encode(&mut blocks[1]);
        blocks[0] == blocks[1]
    }
}

/// What is wrong with a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalFault {
    /// Place in the ring.
    pub place: u64,
    pub expected: u64,
    pub found: u64,
}

/// A journal as read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Journal {
    /// Whole records, oldest first, without gaps.
    pub records: Vec<Record>,
    /// Whether the place that is written next holds a torn record: a crash cut it short.
    pub torn: bool,
}

/// Reads the ring; `blocks` are its records in the order of their places.
///
/// A damaged place is a fault even where a torn one would be allowed, for no crash leaves it.
pub(crate) fn scan(run: RunId, blocks: &[&[u8]]) -> Result<Journal, JournalFault> {
    let mut found = Vec::with_capacity(blocks.len());
    for (place, bytes) in blocks.iter().enumerate() {
        let fault = |expected, found| JournalFault { place: place as u64, expected, found };
        found.push(match block::decode(&JOURNAL_MAGIC, bytes) {
            Block::Empty => None,
            Block::Torn => Some(None),
            Block::Damaged { expected, found } => return Err(fault(expected, found)),
            Block::Valid { stamp, body } => match Record::from_body(&body) {
                Some(record)
                    if record.sequence % JOURNAL_RECORDS == place as u64
                        && record.sequence + 1 == stamp
                        && record.run == run =>
                {
                    Some(Some(record))
                }
                _ => return Err(fault(stamp, block::sum(&[bytes]))),
            },
        });
    }
    let newest = found.iter().flatten().flatten().map(|record| record.sequence).max();
    let next = newest.map_or(0, |sequence| sequence + 1);
    let torn = matches!(found.get((next % JOURNAL_RECORDS) as usize), Some(Some(None)));
    let mut records = Vec::new();
    for back in (1..JOURNAL_RECORDS).rev() {
        let place = (next + JOURNAL_RECORDS - back) % JOURNAL_RECORDS;
        let expected = next.checked_sub(back);
        let there = found[place as usize].take();
        let fault =
            JournalFault { place, expected: expected.map_or(0, |sequence| sequence + 1), found: 0 };
        match (expected, there) {
            (None, None) => {}
            (Some(sequence), Some(Some(record))) if record.sequence == sequence => {
                records.push(record)
            }
            _ => return Err(fault),
        }
    }
    // The oldest place: empty, torn, or the record that is overwritten next.
    if let Some(Some(record)) = found[(next % JOURNAL_RECORDS) as usize].take() {
        if record.sequence + JOURNAL_RECORDS != next {
            return Err(JournalFault {
                place: next % JOURNAL_RECORDS,
                expected: next,
                found: record.sequence + 1,
            });
        }
        records.insert(0, record);
    }
    Ok(Journal { records, torn })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId([8; 16]);

    fn record(sequence: u64) -> Record {
        Record {
            run: RUN,
            kind: if sequence == 0 { RecordKind::Begin } else { RecordKind::Intent },
            sequence,
            content: StepRecord {
                iteration: sequence + 5,
                step: sequence,
                unscale: 0.25,
                groups: vec![HyperParameters::default(); GROUPS_MAX],
                blob: vec![7; BLOB_BYTES_MAX],
            },
        }
    }

    fn ring(newest: u64) -> Vec<Vec<u8>> {
        let mut ring = vec![vec![0; block::BLOCK_BYTES]; JOURNAL_RECORDS as usize];
        for sequence in 0..=newest {
            record(sequence).encode(&mut ring[(sequence % JOURNAL_RECORDS) as usize]);
        }
        ring
    }

    fn read(ring: &[Vec<u8>]) -> Result<Journal, JournalFault> {
        scan(RUN, &ring.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    #[test]
    fn ring_returns_its_records_oldest_first() {
        assert_eq!(read(&vec![vec![0; 4096]; 64]).unwrap().records, vec![]);
        for newest in [0, 1, 62, 63, 64, 200] {
            let journal = read(&ring(newest)).unwrap();
            let expected: Vec<Record> = (newest.saturating_sub(63)..=newest).map(record).collect();
            assert_eq!(journal.records, expected);
            assert!(!journal.torn);
        }
    }

    #[test]
    fn only_the_place_written_next_may_be_torn() {
        for newest in [3_u64, 100] {
            for place in 0..JOURNAL_RECORDS {
                let mut ring = ring(newest);
                let next = (newest + 1) % JOURNAL_RECORDS;
                let mut new = vec![0; 4096];
                record(newest + 1 + 64 * 7).encode(&mut new);
                ring[place as usize][..512].copy_from_slice(&new[..512]);
                if place == next {
                    record(newest + 1).encode(&mut new);
                    ring[place as usize][..512].copy_from_slice(&new[..512]);
                }
                let result = read(&ring);
                let unused = newest < place && place != next && newest < 63;
                match result {
                    Ok(journal) => {
                        // The newest record itself reads as the one being written, with the one before it as newest.
                        let last = journal.records.last().unwrap().sequence;
                        assert!(
                            journal.torn && (place == next || place == newest % 64),
                            "place {place}"
                        );
                        assert_eq!(last, if place == next { newest } else { newest - 1 });
                    }
                    Err(fault) => {
                        assert!(place != next && place != newest % 64, "place {place} {unused}");
                        assert_eq!(fault.place, place);
                    }
                }
            }
        }
    }

    #[test]
    fn flipped_bits_and_misplaced_records_are_faults() {
        let whole = ring(70);
        for place in [0, 5, 6, 7, 63] {
            for bit in (0..4096 * 8).step_by(11) {
                let mut ring = whole.clone();
                ring[place][bit / 8] ^= 1 << (bit % 8);
                assert_eq!(read(&ring).unwrap_err().place, place as u64, "bit {bit}");
            }
        }
        let mut swapped = whole.clone();
        swapped.swap(1, 2);
        assert!(read(&swapped).is_err());
        let mut stale = whole.clone();
        record(3).encode(&mut stale[3]);
        assert_eq!(read(&stale).unwrap_err().place, 3);
        assert!(
            scan(RunId([1; 16]), &whole.iter().map(Vec::as_slice).collect::<Vec<_>>()).is_err()
        );
    }

    #[test]
    fn records_out_of_bounds_are_refused() {
        let mut content = record(1).content;
        assert!(content.check().is_ok());
        content.blob.push(0);
        assert!(content.check().is_err());
        content.blob.clear();
        content.groups.push(HyperParameters::default());
        assert!(content.check().is_err());
    }
}
