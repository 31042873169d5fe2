//! The links of a machine with a number of drives and compute devices, and the routes over them.

use std::collections::{HashMap, VecDeque};

use nearfield_runtime::graph::Place;
use nearfield_runtime::{Error, Result};

use super::describe::LinkDescription;
use super::numbers::{SharePoint, rate_at};
use super::{Fabric, Selection};
use crate::network::{Link, LinkId};

/// A place, one of each kind that the machine has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Host,
    Gpu(u32),
    Drive(u32),
    Local(u32),
    Switch(String, u32),
}

/// The links of a machine, and the name that links share which differ only in the drive or device they belong to.
#[derive(Debug, Clone, Default)]
pub(super) struct LinkList {
    pub links: Vec<Link>,
    pub groups: Vec<String>,
}

impl LinkList {
    pub fn add(&mut self, name: String, group: String, capacity: f64) -> LinkId {
        self.links.push(Link { name, capacity });
        self.groups.push(group);
        LinkId(self.links.len() as u32 - 1)
    }
}

/// One link on a route, in the direction of the route.
#[derive(Debug, Clone)]
pub(super) struct Hop {
    /// Links of the network that it takes: this direction, and both together.
    pub links: Vec<LinkId>,
    pub latency_seconds: f64,
    efficiency: Vec<SharePoint>,
}

impl Hop {
    /// How much of the link a byte of a transfer of `bytes` takes.
    pub fn per_byte(&self, bytes: u64) -> f64 {
        if self.efficiency.is_empty() { 1.0 } else { 1.0 / rate_at(&self.efficiency, bytes as f64) }
    }
}

/// Routes between all pairs of places.
#[derive(Debug, Clone, Default)]
pub(super) struct Machine {
    edges: HashMap<Node, Vec<(Node, Hop)>>,
    routes: HashMap<(Node, Node), Vec<Hop>>,
    gpu_in_host: bool,
    near: bool,
}

impl Machine {
    /// Puts together what `selection` names, and adds its links to `links`.
    pub fn new(fabric: &Fabric, selection: &Selection, links: &mut LinkList) -> Result<Self> {
        let mut machine = Self {
            gpu_in_host: fabric.gpu(selection.gpu.as_deref())?.1.in_host_memory,
            near: fabric.drive.near.is_some(),
            ..Self::default()
        };
        let mut nodes = vec![Node::Host];
        for name in fabric.link_names(selection.topology.as_deref())? {
            machine.add(fabric, selection, name, &fabric.links[name], links, &mut nodes)?;
        }
        for node in &nodes {
            if !matches!(node, Node::Switch(..)) {
                machine.find_routes(node);
            }
        }
        Ok(machine)
    }

    fn add(
        &mut self,
        fabric: &Fabric,
        selection: &Selection,
        name: &str,
        link: &LinkDescription,
        links: &mut LinkList,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        let ends = |end: &str| ends(fabric, selection, end);
        let [from, to] = [ends(&link.between[0]), ends(&link.between[1])];
        let (Some(from), Some(to)) = (from, to) else {
            // Checked when the description was read.
            return Err(fabric.error(&["links", name, "between"], "names an unknown place"));
        };
        if from.is_empty() || to.is_empty() {
            return Ok(());
        }
        let count = from.len().max(to.len());
        let is_gpu = |end: &String| end == "gpu";
        let of_drives = |end: &String| !is_gpu(end) && per_member(fabric, end);
        if link.between.iter().any(is_gpu) && link.between.iter().any(of_drives) {
            let message = "joins places that exist once a drive with places that exist once a compute device; put a switch between";
            return Err(fabric.error(&["links", name, "between"], message));
        }
        let many = link.between.iter().any(|end| per_member(fabric, end));
        for index in 0..count {
            let [from, to] = [&from, &to].map(|ends| ends[index % ends.len()].clone());
            let title = if many { format!("{name}{index}") } else { name.to_owned() };
            let mut limit = |suffix: String, rate: Option<super::Positive>| {
                let (of_one, of_all) = (format!("{title}{suffix}"), format!("{name}{suffix}"));
                rate.map(|rate| links.add(of_one, of_all, rate.get()))
            };
            let [first, second] = &link.between;
            let forward = limit(format!(" to {second}"), link.forward_bytes_per_second);
            let backward = limit(format!(" to {first}"), link.backward_bytes_per_second);
            let joint = limit(String::new(), link.joint_bytes_per_second);
            let hop = |direction: Option<LinkId>| Hop {
                links: direction.into_iter().chain(joint).collect(),
                latency_seconds: link.latency_seconds.map_or(0.0, super::Positive::get),
                efficiency: link.efficiency.clone(),
            };
            for node in [&from, &to] {
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
            self.edges.entry(from.clone()).or_default().push((to.clone(), hop(forward)));
            self.edges.entry(to).or_default().push((from, hop(backward)));
        }
        Ok(())
    }

    /// Shortest routes from `start` to everywhere; of two as short, the one over links that come first.
    fn find_routes(&mut self, start: &Node) {
        let mut found: HashMap<Node, Vec<Hop>> = HashMap::from([(start.clone(), Vec::new())]);
        let mut queue = VecDeque::from([start.clone()]);
        while let Some(node) = queue.pop_front() {
            for (next, hop) in self.edges.get(&node).into_iter().flatten() {
                if !found.contains_key(next) {
                    let mut route = found[&node].clone();
                    route.push(hop.clone());
                    found.insert(next.clone(), route);
                    queue.push_back(next.clone());
                }
            }
        }
        self.routes.extend(found.into_iter().map(|(end, route)| ((start.clone(), end), route)));
    }

    /// Where a place of a graph is in this machine.
    pub fn node(&self, place: Place) -> Node {
        match place {
            Place::Gpu(number) if !self.gpu_in_host => Node::Gpu(number),
            Place::Local(number) if self.near => Node::Local(number),
            Place::Drive(number) => Node::Drive(number),
            _ => Node::Host,
        }
    }

    /// The links from one place to another.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the topology when there are none.
    pub fn route(
        &self,
        fabric: &Fabric,
        selection: &Selection,
        from: Place,
        to: Place,
    ) -> Result<&[Hop]> {
        let ends = (self.node(from), self.node(to));
        if ends.0 == ends.1 {
            return Ok(&[]);
        }
        self.routes.get(&ends).map(Vec::as_slice).ok_or_else(|| {
            let message = format!("no route from {from} to {to}");
            match selection.topology.as_deref().or(Some("default")) {
                Some(name) if fabric.topologies.contains_key(name) => {
                    fabric.error(&["topologies", name, "links"], &message)
                }
                _ => fabric.error(&["links"], &message),
            }
        })
    }
}

/// Places that are no switches.
const PLACES: [&str; 4] = ["host", "gpu", "drive", "local"];

/// Whether a place exists once a drive or once a compute device.
fn per_member(fabric: &Fabric, end: &str) -> bool {
    match end {
        "host" => false,
        "gpu" | "drive" | "local" => true,
        switch => fabric.switches.get(switch).is_some_and(|switch| switch.each_drive),
    }
}

/// All places called `end`.
fn ends(fabric: &Fabric, selection: &Selection, end: &str) -> Option<Vec<Node>> {
    Some(match end {
        "host" => vec![Node::Host],
        "gpu" => (0..selection.gpus).map(Node::Gpu).collect(),
        "drive" => (0..selection.drives).map(Node::Drive).collect(),
        "local" => (0..selection.drives).map(Node::Local).collect(),
        name => {
            let each = fabric.switches.get(name)?.each_drive;
            let count = if each { selection.drives } else { 1 };
            (0..count).map(|index| Node::Switch(name.to_owned(), index)).collect()
        }
    })
}

/// Refuses links to places that do not exist.
pub(super) fn check(fabric: &Fabric) -> Result<(), Error> {
    for (name, link) in &fabric.links {
        for end in &link.between {
            let known = PLACES.contains(&end.as_str()) || fabric.switches.contains_key(end);
            if !known {
                let switches: Vec<&str> = fabric.switches.keys().map(String::as_str).collect();
                let message = format!(
                    "there is no place {end:?}; places are {} and the switches ({})",
                    PLACES.join(", "),
                    switches.join(", ")
                );
                return Err(fabric.error(&["links", name, "between"], &message));
            }
        }
        if link.between[0] == link.between[1] {
            return Err(fabric.error(&["links", name, "between"], "joins a place with itself"));
        }
    }
    for name in fabric.switches.keys() {
        if PLACES.contains(&name.as_str()) {
            return Err(fabric.error(&["switches", name], "is the name of another place"));
        }
    }
    for (name, topology) in &fabric.topologies {
        for (index, link) in topology.links.iter().enumerate() {
            if topology.links[..index].contains(link) {
                let message = format!("names the link {link:?} twice");
                return Err(fabric.error(&["topologies", name, "links"], &message));
            }
            if !fabric.links.contains_key(link) {
                let links: Vec<&str> = fabric.links.keys().map(String::as_str).collect();
                let message = format!("there is no link {link:?}; links are {}", links.join(", "));
                return Err(fabric.error(&["topologies", name, "links"], &message));
            }
        }
    }
    Ok(())
}
