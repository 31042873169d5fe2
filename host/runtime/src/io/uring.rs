//! One `io_uring`, owned by one thread that keeps it full.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use io_uring::{IoUring, Probe, opcode, types};
use parking_lot::{Mutex, RwLock};

use super::faults::Faults;
use super::job::{Block, Job, Kind, enqueue};
use crate::error::Error;
use crate::memory::Mapping;

/// `user_data` of the read that wakes the thread.
const WAKE: u64 = u64::MAX;
/// The kernel takes registered buffers of at most this size.
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// The ring's thread and the way to it.
#[derive(Debug)]
pub(super) struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    ring: IoUring,
    inbox: Mutex<Inbox>,
    wake: File,
    /// Where the kernel puts what it reads from `wake`. It is here, not with the thread, because the kernel may
    /// write to it as long as the ring exists.
    wake_counter: AtomicU64,
    registered: RwLock<Registered>,
    depth: usize,
    faults: Option<Arc<Faults>>,
}

#[derive(Debug, Default)]
struct Registered {
    /// `(address, bytes)`, by the kernel's index.
    pieces: Vec<(usize, usize)>,
    /// Keeps the addresses taken: the kernel has tied them to the pages they had at registration.
    _memory: Vec<Arc<Mapping>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "io_uring of depth {}", self.depth)
    }
}

#[derive(Debug, Default)]
struct Inbox {
    jobs: VecDeque<Arc<Job>>,
    closed: bool,
}

impl Ring {
    /// Sets up a ring and checks that the kernel offers what is needed.
    pub fn start(
        name: &str,
        queue_depth: u32,
        faults: Option<Arc<Faults>>,
    ) -> std::io::Result<Self> {
        let depth = queue_depth.clamp(1, 4096);
        let ring = IoUring::new((depth + 1).next_power_of_two())?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::ReadFixed::CODE,
            opcode::WriteFixed::CODE,
            opcode::Fsync::CODE,
        ];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return Err(std::io::Error::from_raw_os_error(libc::ENOSYS));
        }
        // SAFETY: creates a descriptor.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and belongs to nobody else.
        let wake = unsafe { File::from_raw_fd(descriptor) };
        let shared = Arc::new(Shared {
            ring,
            inbox: Mutex::default(),
            wake,
            wake_counter: AtomicU64::new(0),
            registered: RwLock::default(),
            depth: depth as usize,
            faults,
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("{name}.io"))
            .spawn(move || Worker::new(&worker).run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub fn submit(&self, job: Arc<Job>) {
        let mut inbox = self.shared.inbox.lock();
        if inbox.closed {
            drop(inbox);
            return job.cancel("the I/O engine has stopped");
        }
        inbox.jobs.push_back(job);
        drop(inbox);
        self.shared.wake();
    }

    /// Registers memory ranges, so that the kernel need not map them for each request. Once for a ring.
    pub fn register(&self, memory: Vec<Arc<Mapping>>) -> std::io::Result<()> {
        let mut pieces = Vec::new();
        for (address, bytes) in memory.iter().map(|mapping| mapping.range()) {
            for start in (0..bytes).step_by(REGISTERED_BYTES_MAX) {
                pieces.push((address + start, REGISTERED_BYTES_MAX.min(bytes - start)));
            }
        }
        let vectors: Vec<libc::iovec> = pieces
            .iter()
            .map(|&(address, bytes)| libc::iovec { iov_base: address as *mut _, iov_len: bytes })
            .collect();
        let mut registered = self.shared.registered.write();
        // SAFETY: the ranges are mapped, and stay mapped as long as the ring, which holds `memory`; requests name a
        // registered buffer only while a caller borrows memory in it.
        unsafe { self.shared.ring.submitter().register_buffers(&vectors)? };
        *registered = Registered { pieces, _memory: memory };
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.inbox.lock().closed = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by then; there is nothing more to do with it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // An eventfd refuses only when its counter is full, and then the thread is awake anyway.
        let _ = (&self.wake).write(&1_u64.to_ne_bytes());
    }

    /// Index of the registered buffer that holds the whole range.
    fn registered(&self, address: usize, length: usize) -> Option<u16> {
        let registered = self.registered.read();
        let index = registered
            .pieces
            .iter()
            .position(|&(start, bytes)| address >= start && address + length <= start + bytes)?;
        u16::try_from(index).ok()
    }
}

/// The thread's own view.
struct Worker<'a> {
    shared: &'a Shared,
    jobs: VecDeque<Arc<Job>>,
    /// Blocks to be asked for again.
    again: VecDeque<Block>,
    /// Requests in flight; `user_data` is the place.
    flying: Vec<Option<Block>>,
    free: Vec<usize>,
    /// Whether the read of the wake-up counter is in flight.
    listening: bool,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            jobs: VecDeque::new(),
            again: VecDeque::new(),
            flying: (0..shared.depth).map(|_| None).collect(),
            free: (0..shared.depth).rev().collect(),
            listening: false,
        }
    }

    fn run(&mut self) {
        loop {
            let closed = {
                let mut inbox = self.shared.inbox.lock();
                for job in inbox.jobs.drain(..) {
                    enqueue(&mut self.jobs, job);
                }
                inbox.closed
            };
            if !closed {
                self.listen();
            }
            self.fill();
            let idle = self.free.len() == self.shared.depth && !self.listening;
            // Whoever closes also wakes, so a read that is in flight comes back.
            if closed && idle && self.jobs.is_empty() && self.again.is_empty() {
                return;
            }
            match self.shared.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                    ) => {}
                Err(error) => return self.give_up(&error),
            }
            self.collect();
        }
    }

    /// Keeps a read of the wake-up counter in flight.
    fn listen(&mut self) {
        if !self.listening {
            let counter = self.shared.wake_counter.as_ptr().cast();
            let read = opcode::Read::new(types::Fd(self.shared.wake.as_raw_fd()), counter, 8);
            self.listening = self.push(&read.build().user_data(WAKE));
        }
    }

    /// Puts requests into the submission queue until the depth is reached.
    fn fill(&mut self) {
        while let Some(&place) = self.free.last() {
            let block = match self.again.pop_front() {
                Some(block) => block,
                None => match self.next_block() {
                    Some(block) => block,
                    None => return,
                },
            };
            let entry = self.entry(&block).user_data(place as u64);
            if !self.push(&entry) {
                self.again.push_front(block);
                return;
            }
            self.free.pop();
            self.flying[place] = Some(block);
        }
    }

    fn next_block(&mut self) -> Option<Block> {
        while let Some(job) = self.jobs.front() {
            let block = job.next_block();
            if job.exhausted() {
                self.jobs.pop_front();
            }
            let Some(mut block) = block else { continue };
            match self.shared.faults.as_deref().map(|faults| block.prepare(faults)) {
                Some(Err(error)) => block.fail(error),
                _ => return Some(block),
            }
        }
        None
    }

    fn entry(&self, block: &Block) -> io_uring::squeue::Entry {
        let file = types::Fd(block.job.file.raw());
        let (offset, address, length) = (block.file_offset(), block.address(), block.ask());
        let fixed = self.shared.registered(address, length);
        let length = length as u32;
        match (block.job.kind, fixed) {
            (Kind::Flush, _) => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            (Kind::Read, Some(index)) => {
                opcode::ReadFixed::new(file, address as *mut u8, length, index)
                    .offset(offset)
                    .build()
            }
            (Kind::Read, None) => {
                opcode::Read::new(file, address as *mut u8, length).offset(offset).build()
            }
            (Kind::Write, Some(index)) => {
                opcode::WriteFixed::new(file, address as *const u8, length, index)
                    .offset(offset)
                    .build()
            }
            (Kind::Write, None) => {
                opcode::Write::new(file, address as *const u8, length).offset(offset).build()
            }
        }
    }

    fn push(&self, entry: &io_uring::squeue::Entry) -> bool {
        // SAFETY: only this thread uses the submission queue. The entry's buffer is a caller's, borrowed until
        // its job has ended, or the wake-up counter, which lives as long as the ring.
        unsafe { self.shared.ring.submission_shared().push(entry).is_ok() }
    }

    fn collect(&mut self) {
        // SAFETY: only this thread uses the completion queue.
        let completions: Vec<(u64, i32)> = unsafe { self.shared.ring.completion_shared() }
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        for (place, result) in completions {
            if place == WAKE {
                self.listening = false;
                continue;
            }
            let Some(block) = self.flying.get_mut(place as usize).and_then(Option::take) else {
                continue;
            };
            self.free.push(place as usize);
            let answer = if result < 0 {
                Err(std::io::Error::from_raw_os_error(-result))
            } else {
                Ok(result as usize)
            };
            if let Some(block) = block.answered(answer, self.shared.faults.as_deref()) {
                self.again.push_back(block);
            }
        }
    }

    /// The ring itself failed, which the kernel does only for a defect: callers get an error. What is in flight
    /// may still write to callers' memory, so those calls return only when it has come back.
    fn give_up(&mut self, error: &std::io::Error) {
        tracing::error!(%error, "io_uring_enter failed; the drive cannot be used any more");
        let mut inbox = self.shared.inbox.lock();
        inbox.closed = true;
        self.jobs.append(&mut inbox.jobs);
        drop(inbox);
        for job in self.jobs.drain(..) {
            job.cancel("io_uring failed");
        }
        loop {
            for block in self.again.drain(..) {
                block.fail(Error::Cancelled("io_uring failed".into()));
            }
            if self.free.len() == self.shared.depth {
                return;
            }
            // No call can be trusted to wait any more, so look now and then.
            std::thread::sleep(std::time::Duration::from_millis(10));
            let _ = self.shared.ring.submit();
            self.collect();
        }
    }
}

/// What keeps `io_uring` from being used, in words.
pub(super) fn cause(error: &std::io::Error) -> &'static str {
    let disabled = || std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match disabled().as_deref().map(str::trim) {
            Ok("1" | "2") => "it is denied by sysctl kernel.io_uring_disabled",
            _ => "it is denied, most likely by a container's seccomp profile",
        },
        Some(libc::ENOSYS) => "this kernel does not offer it",
        Some(libc::ENOMEM) => "the limit of locked memory is too low (ulimit -l)",
        _ => "the kernel refused it",
    }
}
