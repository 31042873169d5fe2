//! Both transfer handlers on a machine of unit costs, against timelines computed by hand.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use nearfield_runtime::Result;
use nearfield_runtime::graph::{Direction, Graph, Op, Task};
use nearfield_sim::{Cost, CostModel, Link, VirtualExecutor};
use nearfield_techniques::offload::placement::layout;
use nearfield_techniques::offload::plan::update;
use nearfield_techniques::offload::{FlatModel, OffloadOptions, System};

/// A variable is read in 1 and written in 2; an update takes 1; nothing else takes time.
struct Units;

impl CostModel for Units {
    fn links(&self) -> &[Link] {
        &[]
    }

    fn cost(&self, _: &Graph, task: &Task) -> Result<Cost> {
        Ok(Cost::fixed(match task.op {
            Op::Storage { direction: Direction::Read, .. } => 1.0,
            Op::Storage { direction: Direction::Write, .. } => 2.0,
            Op::Kernel { name: "update", .. } => 1.0,
            _ => 0.0,
        }))
    }
}

/// Start and end of each task of three tasklets on one drive, by the first words of its label.
fn timeline(system: System) -> Vec<(String, f64, f64)> {
    let options =
        OffloadOptions { system, subgroup_elements: 4096, pieces: 1, ..OffloadOptions::default() };
    let layout = layout(&FlatModel::single(3 * 4096).unwrap(), &options, 1).unwrap();
    let plan = update::plan(&layout, &options, &[0, 1, 2]).unwrap();
    let simulation = VirtualExecutor::new(Units).unwrap().simulate(&plan.graph).unwrap();
    let timed = plan.graph.tasks().iter().filter_map(|task| {
        let span = simulation.timeline.span(task.id);
        let name: Vec<&str> = task.label.split(' ').take(5).collect();
        (span.end_seconds > span.start_seconds)
            .then(|| (name.join(" "), span.start_seconds, span.end_seconds))
    });
    let mut timed: Vec<_> = timed.collect();
    timed.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.total_cmp(&b.2)));
    timed
}

fn expect(system: System, wanted: &[(&str, f64, f64)]) {
    let found = timeline(system);
    let mut wanted: Vec<_> = wanted
        .iter()
        .map(|&(name, start, end)| {
            let name = match name.split_once(' ') {
                Some(("update", tasklet)) => format!("update part {tasklet}.0"),
                Some((verb, rest)) => {
                    let (variable, tasklet) = rest.split_once(' ').unwrap();
                    format!("{verb} {variable} of subgroup {tasklet}")
                }
                None => unreachable!("two or three words"),
            };
            (name, start, end)
        })
        .collect();
    wanted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.total_cmp(&b.2)));
    assert_eq!(found, wanted);
}

#[test]
fn the_naive_handler_does_one_thing_after_the_other() {
    let mut wanted = Vec::new();
    for (tasklet, number) in ["0", "1", "2"].into_iter().zip(0_u32..) {
        let start = f64::from(11 * number);
        let mut add = |name: String, from: f64, to: f64| {
            wanted.push((name, start + from, start + to));
        };
        for (variable, at) in
            ["gradient", "param", "exp_avg", "exp_avg_sq"].into_iter().zip(0_u32..)
        {
            let at = f64::from(at);
            add(format!("read {variable} {tasklet}"), at, at + 1.0);
        }
        add(format!("update {tasklet}"), 4.0, 5.0);
        for (variable, at) in ["param", "exp_avg", "exp_avg_sq"].into_iter().zip(0_u32..) {
            let at = 5.0 + 2.0 * f64::from(at);
            add(format!("write {variable} {tasklet}"), at, at + 2.0);
        }
    }
    let wanted: Vec<_> =
        wanted.iter().map(|(name, from, to)| (name.as_str(), *from, *to)).collect();
    expect(System::Su, &wanted);
}

#[test]
fn the_optimised_handler_reads_each_variable_while_the_next_is_still_written() {
    expect(
        System::SuO,
        &[
            ("read gradient 0", 0.0, 1.0),
            ("read param 0", 1.0, 2.0),
            ("read exp_avg 0", 2.0, 3.0),
            ("read exp_avg_sq 0", 3.0, 4.0),
            ("update 0", 4.0, 5.0),
            ("write param 0", 5.0, 7.0),
            ("write exp_avg 0", 7.0, 9.0),
            ("write exp_avg_sq 0", 9.0, 11.0),
            ("read gradient 1", 5.0, 6.0),
            ("read param 1", 7.0, 8.0),
            ("read exp_avg 1", 9.0, 10.0),
            ("read exp_avg_sq 1", 11.0, 12.0),
            ("update 1", 12.0, 13.0),
            ("write param 1", 13.0, 15.0),
            ("write exp_avg 1", 15.0, 17.0),
            ("write exp_avg_sq 1", 17.0, 19.0),
            ("read gradient 2", 13.0, 14.0),
            ("read param 2", 15.0, 16.0),
            ("read exp_avg 2", 17.0, 18.0),
            ("read exp_avg_sq 2", 19.0, 20.0),
            ("update 2", 20.0, 21.0),
            ("write param 2", 21.0, 23.0),
            ("write exp_avg 2", 23.0, 25.0),
            ("write exp_avg_sq 2", 25.0, 27.0),
        ],
    );
}
