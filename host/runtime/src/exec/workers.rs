//! Threads that outlive a run.
//!
//! A thread that has computed before has warm caches: the allocator's, and those of math libraries, which keep buffers
//! for each thread. With new threads in each step, the first operations of a step took twice their time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// A piece of work that may borrow.
pub(super) type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A named thread for each name and lane that was ever asked for.
#[derive(Debug, Default)]
pub(super) struct Workers {
    threads: HashMap<(String, u32), Worker>,
}

#[derive(Debug)]
struct Worker {
    /// `None` once the thread is to end.
    jobs: Option<Sender<Job<'static>>>,
    thread: Option<JoinHandle<()>>,
}

/// Counts jobs that have not ended.
#[derive(Debug, Default)]
struct Latch {
    open: Mutex<usize>,
    ended: Condvar,
}

/// Reports the end of its job when it is dropped.
struct Ends(Arc<Latch>);

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.open.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl Workers {
    /// Runs `jobs`, each on the thread of its name and lane, and returns when all have ended. A name and lane must not
    /// occur twice. When a thread cannot be had, its job and those after it are not run, `refused` is called with the
    /// system's error, and it must make the jobs that run already end.
    pub fn run<'a>(
        &mut self,
        jobs: impl IntoIterator<Item = (&'a str, u32, Job<'a>)>,
        refused: impl FnOnce(std::io::Error),
    ) {
        /// Waits even when the caller unwinds: jobs borrow from it.
        struct Wait(Arc<Latch>);
        impl Drop for Wait {
            fn drop(&mut self) {
                let mut open = self.0.open.lock();
                while *open > 0 {
                    self.0.ended.wait(&mut open);
                }
            }
        }
        let wait = Wait(Arc::default());
        for (name, lane, job) in jobs {
            let worker = match self.worker(name, lane) {
                Ok(worker) => worker,
                Err(error) => return refused(error),
            };
            *wait.0.open.lock() += 1;
            let ends = Ends(Arc::clone(&wait.0));
            let job: Job<'a> = Box::new(move || {
                let _ends = ends;
                // Panics in tasks were caught before; a thread must not end with another one.
                let _ = catch_unwind(AssertUnwindSafe(job));
            });
            // SAFETY: only the lifetime changes. `wait` keeps this call from returning before the job has been run
            // or dropped, as both drop `ends`, so nothing that it borrows ends before it.
            let job = unsafe { std::mem::transmute::<Job<'a>, Job<'static>>(job) };
            if let Some(jobs) = &worker.jobs {
                // A thread ends only when its sender is dropped; if it were gone, the job is dropped here.
                let _ = jobs.send(job);
            }
        }
    }

    fn worker(&mut self, name: &str, lane: u32) -> std::io::Result<&Worker> {
        use std::collections::hash_map::Entry;
        match self.threads.entry((name.to_owned(), lane)) {
            Entry::Occupied(worker) => Ok(worker.into_mut()),
            Entry::Vacant(place) => {
                let (sender, jobs) = channel::<Job<'static>>();
                let thread =
                    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                        while let Ok(job) = jobs.recv() {
                            job();
                        }
                    })?;
                Ok(place.insert(Worker { jobs: Some(sender), thread: Some(thread) }))
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in self.threads.values_mut() {
            worker.jobs = None;
        }
        for worker in self.threads.values_mut() {
            if let Some(thread) = worker.thread.take() {
                // It has caught every panic.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    #[test]
    fn jobs_borrow_and_threads_are_kept() {
        let mut workers = Workers::default();
        let (count, ids) = (AtomicU32::new(0), Mutex::new(Vec::new()));
        for _ in 0..20 {
            let job = || -> Job<'_> {
                Box::new(|| {
                    count.fetch_add(1, SeqCst);
                    ids.lock().push(std::thread::current().id());
                })
            };
            let jobs = [("a", 0, job()), ("a", 1, job()), ("b", 0, job())];
            workers.run(jobs, |error| panic!("{error}"));
        }
        assert_eq!(count.load(SeqCst), 60);
        let mut ids = ids.into_inner();
        ids.sort_by_key(|id| format!("{id:?}"));
        ids.dedup();
        assert_eq!(ids.len(), 3);
    }

    #[test]
    fn a_panic_ends_its_job_only() {
        let mut workers = Workers::default();
        let done = AtomicU32::new(0);
        for _ in 0..2 {
            let jobs: [(&str, u32, Job<'_>); 2] = [
                ("a", 0, Box::new(|| panic!("a job that fails"))),
                (
                    "b",
                    0,
                    Box::new(|| {
                        done.fetch_add(1, SeqCst);
                    }),
                ),
            ];
            workers.run(jobs, |error| panic!("{error}"));
        }
        assert_eq!(done.load(SeqCst), 2);
    }
}
