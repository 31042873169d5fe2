//! Which ranks take part in collective operations.

use std::collections::{BTreeMap, BTreeSet};

use nearfield_runtime::graph::{Graph, Op};

/// The sets of ranks of a graph's collective operations. A set has a number from 1 on, in the order of first use; 0 is
/// for all ranks, which ASTRA-sim takes as given.
pub(super) struct Communicators {
    sets: Vec<Vec<u32>>,
    of_group: BTreeMap<u32, usize>,
}

impl Communicators {
    pub fn new(graph: &Graph) -> Self {
        let all: BTreeSet<u32> = graph.tasks().iter().map(|task| task.rank).collect();
        let mut ranks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        let mut order = Vec::new();
        for task in graph.tasks() {
            if let Op::Collective { group, .. } = task.op {
                let ranks = ranks.entry(group).or_default();
                if ranks.is_empty() {
                    order.push(group);
                }
                ranks.insert(task.rank);
            }
        }
        let mut numbers: BTreeMap<&BTreeSet<u32>, usize> = BTreeMap::from([(&all, 0)]);
        let (mut sets, mut of_group) = (Vec::new(), BTreeMap::new());
        for group in order {
            let set = &ranks[&group];
            let number = *numbers.entry(set).or_insert_with(|| {
                sets.push(set.iter().copied().collect());
                sets.len()
            });
            of_group.insert(group, number);
        }
        Self { sets, of_group }
    }

    /// The number of the ranks that take part in `group`.
    pub fn number(&self, group: u32) -> usize {
        self.of_group.get(&group).copied().unwrap_or(0)
    }
}

/// The text of the file that ASTRA-sim takes as `--comm-group-configuration`: the ranks behind each `pg_name`. `None`
/// where all ranks take part in all collective operations, so that no such file is needed.
pub fn comm_groups(graph: &Graph) -> Option<String> {
    let sets = Communicators::new(graph).sets;
    let lines: Vec<String> = sets
        .iter()
        .enumerate()
        .map(|(index, ranks)| {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!("  \"{}\": [{}]", index + 1, ranks.join(", "))
        })
        .collect();
    (!lines.is_empty()).then(|| format!("{{\n{}\n}}\n", lines.join(",\n")))
}

#[cfg(test)]
mod tests {
    use nearfield_runtime::graph::{Collective, GraphBuilder, Place};

    use super::*;

    /// Collective operations among the given ranks, in a graph of three.
    fn among(groups: &[&[u32]]) -> Graph {
        let mut builder = GraphBuilder::new();
        let link = builder.resource("link", Place::HOST, 1);
        for rank in 0..3 {
            builder.rank(rank);
            builder.task(link, Op::Mark, "begin", &[]);
        }
        for (group, ranks) in groups.iter().enumerate() {
            for &rank in *ranks {
                builder.rank(rank);
                let group = group as u32;
                let op = Op::Collective { kind: Collective::AllReduce, group, bytes: 8 };
                builder.task(link, op, "sum", &[]);
            }
        }
        builder.build().unwrap()
    }

    #[test]
    fn each_set_of_ranks_has_one_number_and_all_ranks_have_0() {
        let graph = among(&[&[2, 0], &[0, 1, 2], &[1], &[0, 2]]);
        let communicators = Communicators::new(&graph);
        assert_eq!([0, 1, 2, 3].map(|group| communicators.number(group)), [1, 0, 2, 1]);
        assert_eq!(comm_groups(&graph).unwrap(), "{\n  \"1\": [0, 2],\n  \"2\": [1]\n}\n");
    }

    #[test]
    fn no_file_is_needed_where_all_ranks_take_part() {
        assert_eq!(comm_groups(&among(&[&[0, 1, 2]])), None);
        assert_eq!(comm_groups(&among(&[])), None);
    }
}
