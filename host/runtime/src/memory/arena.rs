//! Page-aligned arenas and the regions they give out.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::layout::align_up;

/// Regions begin and end on pages, which is what direct I/O and registration need.
const PAGE_BYTES: u64 = 4096;

/// The memory below an arena: unmapped when the last of the arena and the rings that have registered it goes. A ring
/// keeps the pages of registered memory, so other memory must not be mapped at its address while the ring lives: its
/// transfers would reach the old pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

/// Bytes of all mappings.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of all arenas that exist in this process now.
pub fn arena_bytes() -> u64 {
    MAPPED_BYTES.load(Relaxed)
}

// SAFETY: plain memory that belongs to no thread; who may touch which bytes is decided by `Region`.
unsafe impl Send for Mapping {}
// SAFETY: as above; a mapping by itself gives no access to its bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes over a range that was mapped.
    fn new(base: NonNull<u8>, bytes: usize) -> Arc<Self> {
        MAPPED_BYTES.fetch_add(bytes as u64, Relaxed);
        Arc::new(Self { base, bytes })
    }

    /// Address of the first byte, and length in bytes.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.base.as_ptr() as usize, self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.bytes as u64, Relaxed);
        // SAFETY: the range is the one mapped by `Arena::new`, and nobody is left who refers to it.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.bytes);
        }
    }
}

/// Anonymous memory of fixed size on huge pages where the system has them, present from the start.
#[derive(Debug)]
pub struct Arena {
    name: &'static str,
    mapping: Arc<Mapping>,
    bytes: u64,
    locked: bool,
    free: Mutex<FreeList>,
    allocations: AtomicU64,
}

/// Free ranges `(offset, length)` by offset, never adjacent.
#[derive(Debug)]
struct FreeList {
    ranges: Vec<(u64, u64)>,
    used: u64,
}

impl Arena {
    /// Maps `bytes` bytes, rounded up to whole pages. With `lock` the pages are locked in memory where the
    /// system allows it; see [`Arena::locked`].
    ///
    /// # Errors
    /// [`Error::Memory`] when the system refuses.
    pub fn new(name: &'static str, bytes: u64, lock: bool) -> Result<Arc<Self>> {
        let memory = |source| Error::Memory { what: name, bytes, source };
        // Half the address space cannot be had, and rounding up below it cannot overflow.
        if bytes > isize::MAX as u64 / 2 {
            return Err(memory(std::io::Error::from_raw_os_error(libc::ENOMEM)));
        }
        let bytes = align_up(bytes, PAGE_BYTES);
        let length = bytes.max(PAGE_BYTES) as usize;
        // SAFETY: a new private anonymous mapping touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let base = NonNull::new(base.cast::<u8>())
            .filter(|_| base != libc::MAP_FAILED)
            .ok_or_else(|| memory(std::io::Error::last_os_error()))?;
        let mut arena = Self {
            name,
            mapping: Mapping::new(base, length),
            bytes,
            locked: false,
            free: Mutex::new(FreeList { ranges: vec![(0, bytes)], used: 0 }),
            allocations: AtomicU64::new(0),
        };
        // SAFETY: both calls advise on the mapping just made and change no content; failure is harmless.
        let populated = unsafe {
            libc::madvise(base.as_ptr().cast(), length, libc::MADV_HUGEPAGE);
            libc::madvise(base.as_ptr().cast(), length, libc::MADV_POPULATE_WRITE) == 0
        };
        if !populated {
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ENOMEM) {
                return Err(memory(error));
            }
            for page in (0..length).step_by(PAGE_BYTES as usize) {
                // SAFETY: the byte lies in the mapping, which nothing else refers to yet.
                unsafe { base.as_ptr().add(page).write_volatile(0) };
            }
        }
        // SAFETY: locks the mapping just made.
        arena.locked = lock && unsafe { libc::mlock(base.as_ptr().cast(), length) } == 0;
        Ok(Arc::new(arena))
    }

    /// Gives out `bytes` bytes on pages of their own. Dropping the region gives them back.
    ///
    /// # Errors
    /// [`Error::LocalMemory`] when no free range is long enough.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<Region> {
        let mut free = self.free.lock();
        // Free ranges are whole pages, so one that holds `bytes` also holds them rounded up, without overflow.
        let fits = |&(_, free): &(u64, u64)| free >= bytes.max(1);
        let Some(index) = free.ranges.iter().position(fits) else {
            return Err(Error::LocalMemory {
                device: self.name.to_owned(),
                requested: bytes,
                available: free.ranges.iter().map(|range| range.1).max().unwrap_or(0),
            });
        };
        let length = align_up(bytes.max(1), PAGE_BYTES);
        let (offset, available) = free.ranges[index];
        if available == length {
            free.ranges.remove(index);
        } else {
            free.ranges[index] = (offset + length, available - length);
        }
        free.used += length;
        self.allocations.fetch_add(1, Relaxed);
        // SAFETY: `offset` lies within the mapping.
        let start = unsafe { self.mapping.base.add(offset as usize) };
        Ok(Region { arena: Arc::clone(self), offset, length, start, bytes: bytes as usize })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes given out now.
    pub fn used(&self) -> u64 {
        self.free.lock().used
    }

    /// Allocations so far.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Relaxed)
    }

    /// Whether the pages are locked in memory.
    pub fn locked(&self) -> bool {
        self.locked
    }

    /// The memory, for registration with the kernel.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    fn give_back(&self, offset: u64, length: u64) {
        let mut free = self.free.lock();
        free.used -= length;
        let index = free.ranges.partition_point(|&(start, _)| start < offset);
        free.ranges.insert(index, (offset, length));
        if index + 1 < free.ranges.len() && offset + length == free.ranges[index + 1].0 {
            free.ranges[index].1 += free.ranges.remove(index + 1).1;
        }
        if index > 0 && free.ranges[index - 1].0 + free.ranges[index - 1].1 == offset {
            free.ranges[index - 1].1 += free.ranges.remove(index).1;
        }
    }
}

/// A range of an arena, owned by one holder at a time. Dereferences to its bytes; page-aligned.
#[derive(Debug)]
pub struct Region {
    arena: Arc<Arena>,
    offset: u64,
    length: u64,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is the only owner of its range of the arena.
unsafe impl Send for Region {}
// SAFETY: shared access only reads.
unsafe impl Sync for Region {}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the arena's mapping, which `arena` keeps alive, and is owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

macro_rules! view {
    ($name:ident, $name_mut:ident, $type:ty) => {
        #[doc = concat!("The content as `", stringify!($type), "`; a remainder of bytes is left out.")]
        pub fn $name(&self) -> &[$type] {
            // SAFETY: the start is page-aligned, the length is within the region, any bits are valid.
            unsafe {
                std::slice::from_raw_parts(
                    self.start.as_ptr().cast(),
                    self.bytes / size_of::<$type>(),
                )
            }
        }

        #[doc = concat!("The content as `", stringify!($type), "`, for writing.")]
        pub fn $name_mut(&mut self) -> &mut [$type] {
            // SAFETY: as above, and `self` is borrowed mutably.
            unsafe {
                std::slice::from_raw_parts_mut(
                    self.start.as_ptr().cast(),
                    self.bytes / size_of::<$type>(),
                )
            }
        }
    };
}

impl Region {
    view!(as_f32, as_f32_mut, f32);
    view!(as_u32, as_u32_mut, u32);
    view!(as_u16, as_u16_mut, u16);
}

impl Drop for Region {
    fn drop(&mut self) {
        self.arena.give_back(self.offset, self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_disjoint_aligned_and_come_back() {
        let arena = Arena::new("test", 10 * PAGE_BYTES, false).unwrap();
        let mut first = arena.allocate(100).unwrap();
        let mut second = arena.allocate(PAGE_BYTES + 1).unwrap();
        first.fill(1);
        second.fill(2);
        assert!(first.iter().all(|&byte| byte == 1));
        assert_eq!(second.as_ptr() as usize % PAGE_BYTES as usize, 0);
        assert_eq!((first.len(), arena.used()), (100, 3 * PAGE_BYTES));
        drop(first);
        drop(second);
        assert_eq!(arena.used(), 0);
        let whole = arena.allocate(10 * PAGE_BYTES).unwrap();
        assert_eq!(whole.as_f32().len(), 10 * 1024);
        assert_eq!(arena.allocations(), 3);
    }

    #[test]
    fn an_exhausted_arena_says_what_is_left() {
        let arena = Arena::new("device memory", 2 * PAGE_BYTES, true).unwrap();
        let _held = arena.allocate(1).unwrap();
        let error = arena.allocate(2 * PAGE_BYTES).unwrap_err();
        assert!(
            matches!(error, Error::LocalMemory { available: 4096, requested: 8192, .. }),
            "{error}"
        );
    }

    #[test]
    fn sizes_beyond_the_address_space_are_errors() {
        assert!(matches!(Arena::new("test", u64::MAX, false), Err(Error::Memory { .. })));
        let arena = Arena::new("test", PAGE_BYTES, false).unwrap();
        for bytes in [u64::MAX, u64::MAX - PAGE_BYTES + 2] {
            assert!(matches!(arena.allocate(bytes), Err(Error::LocalMemory { .. })));
        }
        assert!(arena.allocate(PAGE_BYTES).is_ok());
    }

    #[test]
    fn what_is_left_is_the_longest_range() {
        let arena = Arena::new("test", 4 * PAGE_BYTES, false).unwrap();
        let mut held: Vec<_> = (0..4).map(|_| arena.allocate(PAGE_BYTES).unwrap()).collect();
        held.remove(2);
        held.remove(0);
        let error = arena.allocate(2 * PAGE_BYTES).unwrap_err();
        assert!(matches!(error, Error::LocalMemory { available: PAGE_BYTES, .. }), "{error}");
    }
}
