//! The optimizer kernels beside their limit: a pass over the same arrays in place, almost without arithmetic.
//!
//! Both move 28 bytes an element (four arrays read, three written), so elements per second compare directly.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nearfield_runtime::kernels::bandwidth::{in_place_pass, pass_bytes};
use nearfield_runtime::kernels::{
    GradientRef, Isa, Moments, Scalars, Segment, WeightsOut, checksum, scan_gradient, update,
};
use nearfield_runtime::types::{HyperParameters, Optimizer};

/// Far more than the caches hold.
const ELEMENTS: usize = 50_000_000;

fn benchmarks(criterion: &mut Criterion) {
    let kind = Optimizer::Adamw;
    let hyper = HyperParameters { weight_decay: 1e-2, ..HyperParameters::default() };
    let scalars = Scalars::new(kind, &hyper, 10, 1.0);
    let segments = [Segment { elements: ELEMENTS, scalars }];
    let g: Vec<f32> = (0..ELEMENTS).map(|i| ((i * 37 % 1009) as f32 - 504.0) * 1e-5).collect();
    let mut p: Vec<f32> = g.iter().map(|g| 1.0 + g).collect();
    let (mut m, mut v) = (vec![1e-4; ELEMENTS], vec![1e-6; ELEMENTS]);
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = criterion.benchmark_group("update");
    group.sample_size(10).throughput(Throughput::Bytes(pass_bytes(ELEMENTS as u64)));
    for threads in [1, most] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("the system has threads to give");
        group.bench_function(BenchmarkId::new("in_place_pass", threads), |bencher| {
            bencher.iter(|| in_place_pass(&pool, black_box(&g), &mut p, &mut m, &mut v));
        });
        for &isa in Isa::available() {
            group.bench_function(
                BenchmarkId::new(format!("adamw_checked_{}", isa.name()), threads),
                |bencher| {
                    bencher.iter(|| {
                        let moments = Moments::Fp32 { m: Some(&mut m), v: Some(&mut v) };
                        let g = GradientRef::Fp32(black_box(&g));
                        let out = WeightsOut::None;
                        update(Some(&pool), isa, kind, &segments, g, &mut p, moments, out, 0)
                            .expect("the arrays fit")
                    });
                },
            );
        }
    }
    group.throughput(Throughput::Bytes(4 * ELEMENTS as u64));
    for &isa in Isa::available() {
        group.bench_function(format!("scan_{}", isa.name()), |bencher| {
            bencher.iter(|| scan_gradient(isa, GradientRef::Fp32(black_box(&g))));
        });
        // SAFETY: f32 has no padding, and the length is that of the vector.
        let bytes = unsafe { std::slice::from_raw_parts(g.as_ptr().cast(), 4 * g.len()) };
        group.bench_function(format!("checksum_{}", isa.name()), |bencher| {
            bencher.iter(|| checksum(isa, black_box(bytes), 0));
        });
    }
    group.finish();
}

criterion_group!(benches, benchmarks);
criterion_main!(benches);
