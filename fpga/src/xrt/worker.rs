//! Threads that make a card's calls.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that makes calls one after the other. A call that never comes back holds up this thread, and no other.
#[derive(Debug)]
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            for job in queue {
                job();
            }
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Makes a call, and gives what it gives; nothing when that takes longer than `limit`, or the thread has ended.
    pub fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = channel();
        let job = Box::new(move || {
            // Nobody listens any more where the limit has passed.
            let _ = answer.send(call());
        });
        self.jobs.as_ref()?.send(job).ok()?;
        answered.recv_timeout(limit).ok()
    }

    /// Waits for the thread's end, which comes when all calls have come back.
    pub fn end(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_holds_up_its_thread_only() {
        let mut worker = Worker::start("test").unwrap();
        assert_eq!(worker.call(Duration::from_secs(60), || 7), Some(7));
        let (release, released) = channel::<()>();
        let hang = move || released.recv().is_err();
        assert_eq!(worker.call(Duration::from_millis(1), hang), None);
        assert_eq!(worker.call(Duration::from_millis(1), || 8), None);
        drop(release);
        assert_eq!(worker.call(Duration::from_secs(60), || 9), Some(9));
        worker.end();
        assert_eq!(worker.call(Duration::from_secs(60), || 10), None);
    }
}
