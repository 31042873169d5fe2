//! Splitting work over threads.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// The threads of a codec, or the calling thread alone.
#[derive(Debug, Clone)]
pub(super) struct Crew {
    pool: Option<Arc<ThreadPool>>,
}

/// One pool for each number of threads asked for, kept for the life of the process. Codecs of several drives
/// share them, so that they do not put more threads than asked for on the processor.
static POOLS: Mutex<Vec<Arc<ThreadPool>>> = Mutex::new(Vec::new());

impl Crew {
    /// A crew of `threads` threads; 0 means one for each processor.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the system refuses the threads.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some,
        };
        if threads == 1 {
            return Ok(Self::alone());
        }
        let mut pools = POOLS.lock();
        if let Some(pool) = pools.iter().find(|pool| pool.current_num_threads() == threads) {
            return Ok(Self { pool: Some(Arc::clone(pool)) });
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("codec-{index}"))
            .build()
            .map_err(|error| {
                Error::Invalid(format!(
                    "cannot start {threads} codec threads: {error}; use fewer threads"
                ))
            })?;
        let pool = Arc::new(pool);
        pools.push(Arc::clone(&pool));
        Ok(Self { pool: Some(pool) })
    }

    /// The calling thread alone.
    pub const fn alone() -> Self {
        Self { pool: None }
    }

    /// Runs `work`, which splits itself with [`Self::join`], on the crew.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Runs both, side by side when there are threads for it.
    pub fn join<A: Send, B: Send>(
        &self,
        left: impl FnOnce() -> A + Send,
        right: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        match &self.pool {
            Some(_) => rayon::join(left, right),
            None => (left(), right()),
        }
    }

    /// Applies `map` to runs of at most `leaf` items that cover `range`, and `merge` to neighbouring results.
    pub fn reduce<R: Send>(
        &self,
        range: Range<usize>,
        leaf: usize,
        map: &(impl Fn(Range<usize>) -> R + Sync),
        merge: &(impl Fn(R, R) -> R + Sync),
    ) -> R {
        let Some(middle) = split(range.len(), leaf).map(|half| range.start + half) else {
            return map(range);
        };
        let (left, right) = self.join(
            || self.reduce(range.start..middle, leaf, map, merge),
            || self.reduce(middle..range.end, leaf, map, merge),
        );
        merge(left, right)
    }
}

/// Where to halve `items` so that the left part is a multiple of `leaf`; none when they are one leaf.
pub(super) fn split(items: usize, leaf: usize) -> Option<usize> {
    (items > leaf).then(|| (items / 2).next_multiple_of(leaf)).filter(|&half| half < items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduction_covers_the_range_once_and_in_order() {
        for threads in [1, 2, 3] {
            let crew = Crew::new(threads).unwrap();
            for items in [0, 1, 15, 16, 17, 31, 32, 33, 1000] {
                let seen = crew.run(|| {
                    crew.reduce(0..items, 16, &|run| run.collect::<Vec<_>>(), &|mut left, right| {
                        left.extend(right);
                        left
                    })
                });
                assert_eq!(seen, (0..items).collect::<Vec<_>>(), "{threads} threads");
            }
        }
    }

    #[test]
    fn crews_of_one_size_share_their_threads() {
        let (first, second) = (Crew::new(3).unwrap(), Crew::new(3).unwrap());
        assert!(Arc::ptr_eq(&first.pool.unwrap(), &second.pool.unwrap()));
    }
}
