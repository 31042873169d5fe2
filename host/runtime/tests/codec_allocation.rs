//! Selection takes no memory that grows with the gradient after the selector is made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nearfield_runtime::codec::TopK;

struct Counting;

/// Bytes asked of the allocator, by any thread.
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn selection_takes_no_memory_that_grows_with_the_gradient() {
    let elements = 1_000_000_u32;
    let gradient: Vec<f32> =
        (0..elements).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 - 8e6).collect();
    let zeros = vec![0.0; gradient.len()];
    let (mut indices, mut values) = (vec![0; 400_000], vec![0.0; 400_000]);
    let mut topk = TopK::new(gradient.len(), 2).unwrap();
    let mut select = |gradient: &[f32], k: usize| {
        topk.select(gradient, k, &mut indices[..k], &mut values[..k]).unwrap();
    };
    // The threads set themselves up in the first call.
    select(&gradient, 10_000);
    let before = BYTES.load(Relaxed);
    for _ in 0..20 {
        select(&gradient, 10_000);
        select(&gradient, 400_000);
        select(&zeros, 10_000);
    }
    // The thread pool takes a small block for its queue once in many calls.
    let taken = BYTES.load(Relaxed) - before;
    assert!(taken < 32 * 1024, "{taken} bytes in 60 selections");
}
