//! Phases and utilisation.

use serde::Serialize;

use super::Timeline;
use crate::graph::{Graph, ResourceId};

/// When a phase ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseTime {
    /// Its name.
    pub name: String,
    /// Start of its first task, in seconds from the start of the step.
    pub start_seconds: f64,
    /// End of its last task.
    pub end_seconds: f64,
}

/// How one resource was used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceUse {
    /// Its name.
    pub name: String,
    /// Tasks that ran on it.
    pub tasks: u64,
    /// Payload bytes of these tasks.
    pub bytes: u64,
    /// Seconds in which at least one of them ran.
    pub busy_seconds: f64,
    /// `busy_seconds` over the whole time, at most 1.
    pub utilisation: f64,
    /// Payload over busy time, in 10^9 bytes a second.
    pub gb_per_second: f64,
}

impl Timeline {
    /// The phases of `graph`, in its order; phases without tasks are left out.
    pub fn phases(&self, graph: &Graph) -> Vec<PhaseTime> {
        let mut times: Vec<Option<(f64, f64)>> = vec![None; graph.phases().len()];
        for (task, span) in self.performed(graph) {
            let time = &mut times[task.phase.0 as usize];
            let (start, end) = time.unwrap_or((f64::INFINITY, 0.0));
            *time = Some((start.min(span.start_seconds), end.max(span.end_seconds)));
        }
        graph
            .phases()
            .iter()
            .zip(times)
            .filter_map(|(name, time)| {
                let (start_seconds, end_seconds) = time?;
                Some(PhaseTime { name: name.clone(), start_seconds, end_seconds })
            })
            .collect()
    }

    /// Seconds of the phases of `graph`, in its order, so that their sum is the whole time: a phase ends with its last
    /// task, and what other phases do before that is not counted again.
    pub fn phase_seconds(&self, graph: &Graph) -> Vec<(String, f64)> {
        let mut before = 0.0_f64;
        self.phases(graph)
            .into_iter()
            .map(|phase| {
                let seconds = (phase.end_seconds - before).max(0.0);
                before = before.max(phase.end_seconds);
                (phase.name, seconds)
            })
            .collect()
    }

    /// Seconds before `end_seconds` in which a task of the phase called `name` ran.
    pub fn busy_seconds(&self, graph: &Graph, name: &str, end_seconds: f64) -> f64 {
        let of_phase =
            self.performed(graph).filter(|(task, _)| graph.phases()[task.phase.0 as usize] == name);
        let intervals = of_phase
            .map(|(_, span)| (span.start_seconds, span.end_seconds.min(end_seconds)))
            .filter(|(start, end)| start < end);
        union_seconds(intervals.collect())
    }

    /// When each resource of `graph` had a task, by resource, in the order of tasks.
    fn intervals(&self, graph: &Graph) -> Vec<Vec<(f64, f64)>> {
        let mut intervals = vec![Vec::new(); graph.resources().len()];
        for (task, span) in self.performed(graph) {
            let ResourceId(index) = task.resource;
            intervals[index as usize].push((span.start_seconds, span.end_seconds));
        }
        intervals
    }

    /// Use of each resource that had a task.
    pub fn utilisation(&self, graph: &Graph) -> Vec<ResourceUse> {
        let total = self.seconds();
        let mut bytes = vec![0; graph.resources().len()];
        for (task, _) in self.performed(graph) {
            let ResourceId(index) = task.resource;
            bytes[index as usize] += task.op.bytes();
        }
        graph
            .resources()
            .iter()
            .zip(self.intervals(graph))
            .zip(bytes)
            .filter(|((_, intervals), _)| !intervals.is_empty())
            .map(|((resource, intervals), bytes)| {
                let tasks = intervals.len() as u64;
                let busy_seconds = union_seconds(intervals);
                ResourceUse {
                    name: resource.name.clone(),
                    tasks,
                    bytes,
                    busy_seconds,
                    utilisation: ratio(busy_seconds, total),
                    gb_per_second: ratio(bytes as f64 / 1e9, busy_seconds),
                }
            })
            .collect()
    }
}

/// How busy resources are over a stretch of time that several timelines may cover, in pieces of equal length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BusyOverTime {
    resources: Vec<(String, Vec<f64>)>,
    seconds: f64,
    pieces: usize,
}

impl BusyOverTime {
    /// `pieces` of `seconds` together.
    pub fn new(seconds: f64, pieces: usize) -> Self {
        Self {
            resources: Vec::new(),
            seconds: seconds.max(f64::MIN_POSITIVE),
            pieces: pieces.max(1),
        }
    }

    /// Adds a timeline that begins `offset` seconds from the start.
    pub fn add(&mut self, graph: &Graph, timeline: &Timeline, offset: f64) {
        let piece = self.seconds / self.pieces as f64;
        for (resource, intervals) in graph.resources().iter().zip(timeline.intervals(graph)) {
            if intervals.is_empty() {
                continue;
            }
            let at = self.resources.iter().position(|(name, _)| *name == resource.name);
            let at = at.unwrap_or_else(|| {
                self.resources.push((resource.name.clone(), vec![0.0; self.pieces]));
                self.resources.len() - 1
            });
            for (start, end) in union(intervals) {
                let (start, end) = (start + offset, end + offset);
                let first = ((start / piece) as usize).min(self.pieces - 1);
                let last = ((end / piece) as usize).min(self.pieces - 1);
                for index in first..=last {
                    let (from, to) = (index as f64 * piece, (index + 1) as f64 * piece);
                    let share = (end.min(to) - start.max(from)).max(0.0) / piece;
                    let busy = &mut self.resources[at].1[index];
                    *busy = (*busy + share).min(1.0);
                }
            }
        }
    }

    /// Each resource with the busy share of every piece.
    pub fn resources(&self) -> &[(String, Vec<f64>)] {
        &self.resources
    }
}

/// Disjoint intervals that cover the same.
fn union(mut intervals: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut disjoint: Vec<(f64, f64)> = Vec::new();
    for (start, end) in intervals {
        match disjoint.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => disjoint.push((start, end)),
        }
    }
    disjoint
}

/// Length of the union of intervals.
fn union_seconds(intervals: Vec<(f64, f64)>) -> f64 {
    union(intervals).into_iter().map(|(start, end)| end - start).sum()
}

fn ratio(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::Span;
    use super::*;
    use crate::graph::{GraphBuilder, MemoryClaim, Op, Place};

    #[test]
    fn overlapping_spans_count_once() {
        assert_eq!(union_seconds(vec![(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.2, 5.5)]), 4.0);
    }

    #[test]
    fn busy_pieces_follow_the_spans_of_all_timelines() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 2);
        builder.phase("forward");
        builder.task(cpu, Op::Mark, "a", &[]);
        builder.task(cpu, Op::Mark, "b", &[]);
        let graph = builder.build().unwrap();
        let span = Span::new;
        let timeline = Timeline { spans: vec![span(0.0, 1.5), span(1.0, 1.5)] };
        let mut busy = BusyOverTime::new(8.0, 8);
        busy.add(&graph, &timeline, 0.0);
        busy.add(&graph, &timeline, 4.25);
        let expected = [1.0, 0.5, 0.0, 0.0, 0.75, 0.75, 0.0, 0.0];
        assert_eq!(busy.resources(), [("cpu".to_owned(), expected.to_vec())]);
    }

    #[test]
    fn phases_utilisation_and_peak_memory_follow_the_spans() {
        let mut builder = GraphBuilder::new();
        let cpu = builder.resource("cpu", Place::HOST, 1);
        builder.phase("forward");
        let a = builder.task(cpu, Op::Mark, "a", &[]);
        builder.phase("update");
        let b = builder.task(cpu, Op::Mark, "b", &[a]);
        let claim = |bytes, from, to| MemoryClaim { place: Place::HOST, bytes, from, to };
        builder.claim(claim(10, Some(a), Some(a)));
        builder.claim(claim(7, Some(b), Some(b)));
        builder.claim(claim(1, None, None));
        let graph = builder.build().unwrap();
        let span = Span::new;
        let timeline = Timeline { spans: vec![span(0.0, 1.0), span(1.0, 4.0)] };
        let phases = timeline.phases(&graph);
        assert_eq!(phases[1].name, "update");
        assert_eq!((phases[1].start_seconds, phases[1].end_seconds), (1.0, 4.0));
        assert_eq!(timeline.busy_seconds(&graph, "update", 3.0), 2.0);
        assert_eq!(timeline.busy_seconds(&graph, "update", 1.0), 0.0);
        assert_eq!(timeline.utilisation(&graph)[0].utilisation, 1.0);
        assert_eq!(timeline.peak_bytes(&graph, Place::HOST), 11);
    }
}
