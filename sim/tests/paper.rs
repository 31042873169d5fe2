//! The testbed of the Smart-Infinity paper: what must hold of its model, whatever the rates are.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_runtime::graph::Traffic;
use nearfield_runtime::types::{DType, Optimizer};
use nearfield_sim::VirtualExecutor;
use nearfield_sim::fabric::{Fabric, FabricCosts, KernelDesign, Selection};
use nearfield_techniques::model::ModelShape;
use nearfield_techniques::offload::placement::layout;
use nearfield_techniques::offload::plan::gradient::{self, MicroStep};
use nearfield_techniques::offload::plan::update;
use nearfield_techniques::offload::{Encoder, Expansion, OffloadOptions, System, Upstream};

const SYSTEMS: [System; 4] = [System::Base, System::Su, System::SuO, System::SuOC];

/// One configuration.
#[derive(Clone)]
struct Setting {
    model: &'static str,
    gpu: &'static str,
    gpus: u32,
    topology: &'static str,
    options: OffloadOptions,
}

impl Setting {
    fn paper(system: System) -> Self {
        Self {
            model: "gpt2-4.0b",
            gpu: "a5000",
            gpus: 1,
            topology: "default",
            options: OffloadOptions {
                system,
                weights_dtype: DType::Fp16,
                upstream: Upstream::Fp32Storage,
                encoder: Encoder::Device,
                expansion: Expansion::Separate,
                gradient_overlap: false,
                pieces: 1,
                ..OffloadOptions::default()
            },
        }
    }

    /// Seconds of forward, backward and update; bytes; and that no link was overloaded.
    fn run(&self, drives: u32) -> ([f64; 3], Traffic) {
        let shape = ModelShape::named(self.model).unwrap();
        let options = OffloadOptions { tensor_parallel: self.gpus, ..self.options.clone() };
        let layout = layout(&shape.flat().unwrap(), &options, drives).unwrap();
        let units = shape.units(4, 1024, options.weights_dtype).unwrap();
        let (gradients, _) = gradient::plan(&layout, &options, &units, MicroStep::Offload).unwrap();
        let parts: Vec<usize> = (0..layout.parts.len()).collect();
        let update = update::plan(&layout, &options, &parts).unwrap();
        let fabric = Fabric::shipped("smartssd-falcon").unwrap().unwrap();
        let selection = Selection {
            drives,
            gpus: self.gpus,
            gpu: Some(self.gpu.into()),
            topology: Some(self.topology.into()),
            kernels: KernelDesign::Sequential,
        };
        let costs = FabricCosts::new(&fabric, &selection).unwrap();
        let executor = VirtualExecutor::new(costs).unwrap();
        let [first, second] = [&gradients.graph, &update.graph].map(|graph| {
            let run = executor.simulate(graph).unwrap();
            assert!(run.links.iter().all(|link| link.utilisation <= 1.0 + 1e-9));
            run
        });
        let forward = first.timeline.phases(&gradients.graph)[0].end_seconds;
        let seconds = [forward, first.timeline.seconds() - forward, second.timeline.seconds()];
        (seconds, gradients.graph.traffic() + update.graph.traffic())
    }

    fn seconds(&self, drives: u32) -> [f64; 3] {
        self.run(drives).0
    }

    fn total(&self, drives: u32) -> f64 {
        self.seconds(drives).iter().sum()
    }
}

#[test]
fn the_papers_own_breakdown_is_met() {
    // Six SmartSSDs: each phase within 15 %, totals within 10 %.
    for (system, wanted) in [
        (System::Base, [0.67, 5.6, 17.6]),
        (System::Su, [0.67, 5.3, 13.0]),
        (System::SuO, [0.67, 5.4, 12.3]),
        (System::SuOC, [0.67, 4.1, 10.8]),
    ] {
        let found = Setting::paper(system).seconds(6);
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found / wanted - 1.0).abs() < 0.15, "{system:?}: {found} {wanted}");
        }
        let ratio = found.iter().sum::<f64>() / wanted.iter().sum::<f64>();
        assert!((ratio - 1.0).abs() < 0.1, "{system:?}: {ratio}");
    }
}

#[test]
fn systems_keep_their_order_and_more_drives_never_hurt() {
    for gpu in ["a5000", "a100"] {
        let with = |system| Setting { gpu, ..Setting::paper(system) };
        let mut last = [f64::INFINITY; 4];
        for drives in 1..=10 {
            let seconds = SYSTEMS.map(|system| with(system).seconds(drives));
            let [base, su, su_o, su_o_c] = seconds.map(|phases| phases.iter().sum::<f64>());
            assert!(su_o <= su && su_o_c <= su_o, "{drives} {su} {su_o} {su_o_c}");
            if drives >= 5 {
                assert!(su < base, "{drives}: {su} {base}");
            }
            // The forward phase knows nothing of the system.
            assert!(seconds.iter().all(|phases| phases[0] == seconds[0][0]));
            // Compression pays as soon as writing gradients, and not computing, takes the time.
            assert!(seconds[3][1] <= seconds[2][1]);
            for (last, phases) in last.iter_mut().zip(seconds) {
                assert!(phases[2] <= *last * 1.01, "{drives}: {} {last}", phases[2]);
                *last = phases[2];
            }
        }
        // One drive gains nothing; the baseline stands still once the uplink is full; near storage does not.
        let update = |system, drives| with(system).seconds(drives)[2];
        assert!(update(System::Su, 1) >= update(System::Base, 1));
        assert!(update(System::Base, 10) > 0.98 * update(System::Base, 5));
        assert!(update(System::SuO, 10) < 0.6 * update(System::SuO, 5));
    }
}

#[test]
fn no_update_is_faster_than_its_links_media_and_kernels_allow() {
    let n = ModelShape::named("gpt2-4.0b").unwrap().parameters() as f64;
    for drives in [1, 3, 6, 10] {
        let each = n / f64::from(drives);
        for (system, gradient) in [(System::Su, 4.0), (System::SuO, 4.0), (System::SuOC, 0.08)] {
            let found = Setting::paper(system).seconds(drives)[2];
            // Reads of states and gradient, writes of states, on one path; weights over the uplink; the kernel.
            let peer = each * ((12.0 + gradient) / 2.2e9 + 12.0 / 1.52e9);
            let kernel = each * 7.0 / 16.0 / 300e6;
            let bound = peer.max(4.0 * n / 8e9).max(kernel);
            assert!(found >= bound, "{system:?} {drives}: {found} {bound}");
        }
        let found = Setting::paper(System::Base).seconds(drives)[2];
        assert!(found >= n * 28.0 / 8e9);
    }
}

#[test]
fn time_is_linear_in_the_model() {
    for system in SYSTEMS {
        let update = |model| {
            let setting = Setting { model, ..Setting::paper(system) };
            let parameters = ModelShape::named(model).unwrap().parameters();
            setting.seconds(6)[2] / parameters as f64
        };
        let (small, large) = (update("gpt2-4.0b"), update("gpt2-33.0b"));
        assert!((small / large - 1.0).abs() < 0.05, "{system:?}: {small} {large}");
    }
}

#[test]
fn optimizers_with_one_state_less_move_the_bytes_of_the_formula() {
    for optimizer in [Optimizer::SgdMomentum, Optimizer::Adagrad] {
        let run = |system, optimizer| {
            let mut setting = Setting::paper(system);
            setting.options.optimizer = optimizer;
            setting.run(6)
        };
        let (adam_seconds, adam) = run(System::Base, Optimizer::Adamw);
        let (seconds, bytes) = run(System::Base, optimizer);
        // 28 and 20 bytes a parameter in the update, and 4 for the gradient before it.
        let n = adam.media_write / 16;
        assert_eq!(adam.media_read + adam.media_write - 4 * n, 28 * n);
        assert_eq!(bytes.media_read + bytes.media_write - 4 * n, 20 * n);
        assert!(seconds[2] < 0.8 * adam_seconds[2]);
        let (_, near) = run(System::SuO, optimizer);
        assert_eq!((near.internal_read, near.internal_write), (12 * n, 8 * n));
        assert_eq!((near.shared_up, near.shared_down), (4 * n, 4 * n));
    }
}

#[test]
fn gpus_behind_the_uplink_slow_the_backward_phase_and_hardly_the_update() {
    let with =
        |topology, gpus| Setting { gpu: "a4000", gpus, topology, ..Setting::paper(System::SuO) };
    for gpus in [1, 2, 3] {
        let [free, congested] = ["default", "congested"].map(|name| with(name, gpus).seconds(6));
        assert!(congested[1] > free[1], "{free:?} {congested:?}");
        assert!((congested[2] / free[2] - 1.0).abs() < 0.01, "{free:?} {congested:?}");
    }
    // Two devices compute faster than one.
    assert!(with("default", 2).seconds(6)[0] < with("default", 1).seconds(6)[0]);
}

#[test]
fn keeping_less_of_the_gradient_never_takes_longer() {
    let mut last = 0.0;
    for keep in [0.001, 0.005, 0.01, 0.025, 0.05, 0.2] {
        let mut setting = Setting::paper(System::SuOC);
        setting.options.topk_keep = keep;
        let found = setting.total(10);
        assert!(found >= last, "{keep}: {found} {last}");
        last = found;
    }
}
