//! The limit that an update is measured against: the same arrays, read and written in place, with no
//! arithmetic to speak of.

use rayon::prelude::*;

use super::isa::{Isa, for_each_isa};

#[inline(always)]
fn pass_body(g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    for (((&g, p), m), v) in g.iter().zip(p).zip(m).zip(v) {
        *p = if g > *p { g } else { *p };
        *m = if g > *m { g } else { *m };
        *v = if g > *v { g } else { *v };
    }
}

for_each_isa! { fn pass(g: &[f32], p: &mut [f32], m: &mut [f32], v: &mut [f32]) = pass_body }

/// Reads `g`, `p`, `m`, `v` and writes `p`, `m`, `v`, in equal shares on the threads of `pool`.
pub fn in_place_pass(
    pool: &rayon::ThreadPool,
    g: &[f32],
    p: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    let isa = Isa::detect();
    let share = p.len().div_ceil(pool.current_num_threads()).max(1);
    pool.install(|| {
        g.par_chunks(share)
            .zip(p.par_chunks_mut(share))
            .zip(m.par_chunks_mut(share))
            .zip(v.par_chunks_mut(share))
            .for_each(|(((g, p), m), v)| pass(isa, g, p, m, v));
    });
}

/// Bytes that an in-place pass over `elements` elements moves: four arrays read, three written.
pub const fn pass_bytes(elements: u64) -> u64 {
    elements * 4 * 7
}
