//! Top-k selection beside one pass over the same memory, and the decoder.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nearfield_runtime::codec::{TopK, read_pass, scatter};

/// Roughly normal values of the size that gradients have.
fn gradient(elements: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..elements).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1e-3).collect()
}

fn codec(criterion: &mut Criterion) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut group = criterion.benchmark_group("codec");
    group.sample_size(10);
    for elements in [1_000_000, 10_000_000, 100_000_000] {
        let gradient = gradient(elements);
        let half: Vec<u16> = gradient.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
        let k = elements / 100;
        let (mut indices, mut values) = (vec![0; k], vec![0.0; k]);
        let mut half_values = vec![0; k];
        let mut out = vec![0.0; elements];
        let mut topk = TopK::new(elements, threads).expect("the machine has the memory");
        group.throughput(Throughput::Elements(elements as u64));
        group.bench_function(BenchmarkId::new("read_pass", elements), |bencher| {
            bencher.iter(|| read_pass(black_box(&gradient), threads).expect("threads are running"));
        });
        group.bench_function(BenchmarkId::new("top_1_percent", elements), |bencher| {
            bencher.iter(|| {
                topk.select(black_box(&gradient), k, &mut indices, &mut values)
                    .expect("the lengths fit");
            });
        });
        group.bench_function(BenchmarkId::new("top_1_percent_bf16", elements), |bencher| {
            bencher.iter(|| {
                topk.select(black_box(&half), k, &mut indices, &mut half_values)
                    .expect("the lengths fit");
            });
        });
        topk.select(&gradient, k, &mut indices, &mut values).expect("the lengths fit");
        group.bench_function(BenchmarkId::new("scatter", elements), |bencher| {
            bencher.iter(|| {
                scatter(&indices, &values, 0, black_box(&mut out)).expect("the pairs are sorted");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
