//! The fallback: blocking calls from a few threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::faults::Faults;
use super::job::{Block, Job, Kind, enqueue};
use crate::error::{Error, Result};

/// More threads than this add switching, not speed.
const THREADS_MAX: u32 = 16;

/// Jobs in order of arrival, served by threads.
#[derive(Debug)]
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    faults: Option<Arc<Faults>>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    closed: bool,
}

impl ThreadPool {
    pub fn start(name: &str, queue_depth: u32, faults: Option<Arc<Faults>>) -> Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), faults });
        let mut pool = Self { shared, threads: Vec::new() };
        for index in 0..queue_depth.clamp(1, THREADS_MAX) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("{name}.io{index}"))
                .spawn(move || shared.serve())
                .map_err(|source| Error::Memory { what: "an I/O thread", bytes: 0, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub fn submit(&self, job: Arc<Job>) {
        enqueue(&mut self.shared.queue.lock().jobs, job);
        self.shared.changed.notify_all();
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been reported by then; there is nothing more to do with it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        while let Some(block) = self.next() {
            self.transfer(block);
        }
    }

    fn next(&self) -> Option<Block> {
        let mut queue = self.queue.lock();
        loop {
            while let Some(job) = queue.jobs.front() {
                let block = job.next_block();
                if job.exhausted() {
                    queue.jobs.pop_front();
                }
                if block.is_some() {
                    return block;
                }
            }
            if queue.closed {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    fn transfer(&self, mut block: Block) {
        if let Some(faults) = &self.faults
            && let Err(error) = block.prepare(faults)
        {
            return block.fail(error);
        }
        let mut open = Some(block);
        while let Some(block) = open {
            let (offset, address, length) = (block.file_offset(), block.address(), block.ask());
            let answer = match block.job.kind {
                Kind::Flush => block.job.file.flush().map(|()| 0),
                Kind::Read => {
                    // SAFETY: the caller has borrowed this buffer mutably until the job has ended, and
                    // blocks of a job are disjoint.
                    let buffer =
                        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) };
                    block.job.file.read_once(offset, buffer)
                }
                Kind::Write => {
                    // SAFETY: the caller has borrowed this buffer until the job has ended.
                    let buffer =
                        unsafe { std::slice::from_raw_parts(address as *const u8, length) };
                    block.job.file.write_once(offset, buffer)
                }
            };
            open = block.answered(answer, self.faults.as_deref());
        }
    }
}
