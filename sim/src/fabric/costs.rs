//! What tasks take on a described machine.

use arrayvec::ArrayVec;
use nearfield_runtime::graph::{Collective, Direction, Graph, Op, Place, Resource, Task};
use nearfield_runtime::timeline::Timeline;
use nearfield_runtime::{Error, Result};

use super::describe::Gpu;
use super::machine::{Hop, LinkList, Machine, Node};
use super::numbers::{Positive, SizePoint, best_rate, rate_at};
use super::{Fabric, Selection};
use crate::cost::{Cost, CostModel, MAX_ROUTE};
use crate::network::{Link, LinkId, Use};

/// The cost model of a [`Fabric`] with a number of drives and compute devices.
#[derive(Debug, Clone)]
pub struct FabricCosts {
    fabric: Fabric,
    selection: Selection,
    machine: Machine,
    links: Vec<Link>,
    /// The kind of each link.
    groups: Vec<String>,
    factors: Factors,
    copy: LinkId,
    /// The processor's time, which the kernels that it runs share.
    cpu: LinkId,
    gpu_name: String,
    gpu: Gpu,
    /// The back end of each disk: its time, which reads and writes share.
    media: Vec<LinkId>,
    each: Vec<DriveLinks>,
}

#[derive(Debug, Clone, Copy)]
struct DriveLinks {
    read: LinkId,
    write: LinkId,
    /// The time of the drive, which reads, writes and flushes share: that of its disk, if no other drive is on it.
    time: LinkId,
    /// The way to the memory beside it, each direction.
    peer_read: Option<LinkId>,
    peer_write: Option<LinkId>,
    /// The time of that way, which reads and writes share.
    peer: Option<LinkId>,
}

/// Bytes of a header, which take all of a flush's time.
const SEAL_BYTES: u64 = 4096;

/// How many times as fast as described engines with fixed times are.
#[derive(Debug, Clone, Copy)]
struct Factors {
    compute: f64,
    gather: f64,
    kernel: f64,
    /// Of drives: what a lone transfer waits.
    latency: f64,
}

impl Default for Factors {
    fn default() -> Self {
        Self { compute: 1.0, gather: 1.0, kernel: 1.0, latency: 1.0 }
    }
}

type Route = ArrayVec<Use, MAX_ROUTE>;

impl FabricCosts {
    /// The part of the machine that `selection` names.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more drives or compute devices than the machine takes, and names that it does not have.
    pub fn new(fabric: &Fabric, selection: &Selection) -> Result<Self> {
        let (name, gpu) = fabric.gpu(selection.gpu.as_deref())?;
        for (count, most, key, what) in [
            (selection.drives, fabric.drive.count_max, vec!["drive", "count_max"], "drives"),
            (selection.gpus, gpu.count_max, vec!["gpus", name, "count_max"], "compute devices"),
        ] {
            if let Some(most) = most.filter(|&most| count > most) {
                let message =
                    format!("{count} {what} are more than the {most} that the machine takes");
                return Err(fabric.error(&key, &message));
            }
        }
        let mut links = LinkList::default();
        let copy = fabric.host.copy_bytes_per_second.get();
        let copy = links.add("host.copy".into(), "host.copy".into(), copy);
        let cpu = links.add("host.cpu".into(), "host.cpu".into(), 1.0);
        let drive = &fabric.drive;
        let drives = selection.drives;
        let disks = drive.disks.unwrap_or(drives).min(drives.max(1));
        let media: Vec<LinkId> = (0..disks)
            .map(|disk| {
                let capacity = drive.mixed_seconds_per_second.get();
                links.add(format!("disk{disk}.media"), "disk.media".into(), capacity)
            })
            .collect();
        let near = drive.near.as_ref();
        let peer_read = near.and_then(|near| near.peer_read_bytes_per_second);
        let peer_write = near.and_then(|near| near.peer_write_bytes_per_second);
        let peer = near.and_then(|near| near.peer_mixed_seconds_per_second);
        let each = (0..drives)
            .map(|number| {
                let mut add = |what: &str, rate: f64| {
                    links.add(format!("drive{number}.{what}"), format!("drive.{what}"), rate)
                };
                let time = if disks == drives {
                    media[number as usize]
                } else {
                    add("time", drive.mixed_seconds_per_second.get())
                };
                DriveLinks {
                    time,
                    read: add("read", best_rate(&drive.read)),
                    write: add("write", best_rate(&drive.write)),
                    peer_read: peer_read.map(|rate| add("peer.read", rate.get())),
                    peer_write: peer_write.map(|rate| add("peer.write", rate.get())),
                    peer: peer.map(|seconds| add("peer", seconds.get())),
                }
            })
            .collect();
        let machine = Machine::new(fabric, selection, &mut links)?;
        Ok(Self {
            fabric: fabric.clone(),
            selection: selection.clone(),
            machine,
            links: links.links,
            groups: links.groups,
            factors: Factors::default(),
            copy,
            cpu,
            gpu_name: name.to_owned(),
            gpu: gpu.clone(),
            media,
            each,
        })
    }

    /// The kind of each link: its name without the number of the drive or device that it belongs to.
    pub fn link_groups(&self) -> &[String] {
        &self.groups
    }

    /// What keeps an engine busy for a fixed time in `task`, apart from links, and how long: `gpu.compute`,
    /// `drive.kernel` or `host.gather`. `None` for tasks that only wait for links.
    ///
    /// # Errors
    /// As [`CostModel::cost`].
    pub fn engine(&self, graph: &Graph, task: &Task) -> Result<Option<(&'static str, f64)>> {
        let place = self.place(graph, task);
        let group = match (&task.op, place) {
            (Op::Compute { .. }, _) | (Op::Kernel { .. }, Place::Gpu(_)) => "gpu.compute",
            (Op::Kernel { bytes, .. }, Place::Local(_)) if *bytes > 0 => "drive.kernel",
            (Op::Transfer { from: Place::Gpu(_), to: Place::Host(_), bytes }, _) => {
                let gathered = if self.is_gradient(graph, task) { *bytes } else { 0 };
                return Ok(self.gather_seconds(gathered).map(|seconds| ("host.gather", seconds)));
            }
            _ => return Ok(None),
        };
        let seconds = self.work(graph, task)?.seconds;
        Ok((seconds > 0.0).then_some((group, seconds)))
    }

    /// Whether a transfer to the host carries gradients, and not block outputs.
    fn is_gradient(&self, graph: &Graph, task: &Task) -> bool {
        graph.phases()[task.phase.0 as usize] != "forward"
    }

    /// Seconds in which one thread of the host, that all compute devices share, moves a gradient on.
    fn gather_seconds(&self, bytes: u64) -> Option<f64> {
        let rate = self.fabric.host.gather_bytes_per_second?.get() * self.factors.gather;
        let devices = f64::from(self.selection.gpus.max(1));
        (bytes > 0 && !self.gpu.in_host_memory).then(|| bytes as f64 * devices / rate)
    }

    /// The part of the machine that a kind of link belongs to: both directions of a link and what they do together, or
    /// all that a drive does. Only a whole part can be replaced by a faster one.
    pub fn part(group: &str) -> &str {
        match group {
            "disk.media" | "drive.read" | "drive.write" | "drive.time" => "drive",
            peer if peer.starts_with("drive.peer") => "drive.peer",
            other => other.split(" to ").next().unwrap_or(other),
        }
    }

    /// The same machine with one part, or one kind of engine, `factor` times as fast: the part to which `group` belongs.
    #[must_use]
    pub fn faster(&self, group: &str, factor: f64) -> Self {
        let part = Self::part(group);
        let mut faster = self.clone();
        for (link, of) in faster.links.iter_mut().zip(&self.groups) {
            // Also where the unit is seconds: a disk that does two seconds' work in one is twice as fast.
            if Self::part(of) == part {
                link.capacity *= factor;
            }
        }
        if part == "drive" {
            faster.factors.latency *= factor;
        }
        let Factors { compute, gather, kernel, .. } = &mut faster.factors;
        match group {
            "gpu.compute" => *compute *= factor,
            "host.gather" => *gather *= factor,
            "drive.kernel" => *kernel *= factor,
            _ => {}
        }
        faster
    }

    /// Checks that what a run of `graph` holds at a time fits the memory of each place.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the memory's key, what is needed and what there is.
    pub fn check_memory(&self, graph: &Graph, timeline: &Timeline) -> Result<()> {
        let near = self.fabric.drive.near.as_ref().and_then(|near| near.memory_bytes);
        let gpus = (0..self.selection.gpus).map(Place::Gpu);
        for place in gpus.chain((0..self.selection.drives).map(Place::Local)) {
            let (memory, key) = match place {
                _ if self.in_host_memory(place) => continue,
                Place::Gpu(_) => {
                    (self.gpu.memory_bytes, vec!["gpus", &self.gpu_name, "memory_bytes"])
                }
                _ => (near, vec!["drive", "near", "memory_bytes"]),
            };
            let needed = timeline.peak_bytes(graph, place);
            self.fabric.fits(&key, memory, needed, &place.to_string())?;
        }
        Ok(())
    }

    /// The description that these costs come from.
    pub const fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Whether what lies in `place` lies in the host's memory on this machine.
    pub fn in_host_memory(&self, place: Place) -> bool {
        self.machine.node(place) == Node::Host
    }

    fn drive(&self, number: u32) -> Result<DriveLinks> {
        self.each.get(number as usize).copied().ok_or_else(|| {
            Error::Invalid(format!(
                "drive {number} is not among the {} of fabric {}",
                self.selection.drives, self.fabric.name
            ))
        })
    }

    /// Adds the links between two places to `route`; returns their latency.
    fn add_route(&self, from: Place, to: Place, bytes: u64, route: &mut Route) -> Result<f64> {
        let hops = self.machine.route(&self.fabric, &self.selection, from, to)?;
        for hop in hops {
            for &link in &hop.links {
                let used = Use { link, per_byte: hop.per_byte(bytes) };
                route.try_push(used).map_err(|_| {
                    let message = format!("the route from {from} to {to} has too many links");
                    self.fabric.error(&["links"], &message)
                })?;
            }
        }
        Ok(hops.iter().map(|hop: &Hop| hop.latency_seconds).sum())
    }

    fn storage(&self, direction: Direction, drive: u32, other: Place, bytes: u64) -> Result<Cost> {
        let links = self.drive(drive)?;
        let of = &self.fabric.drive;
        let medium = Place::Drive(drive);
        let (points, alone, link, peer, from, to) = match direction {
            Direction::Read => {
                (&of.read, &of.read_alone, links.read, links.peer_read, medium, other)
            }
            Direction::Write => {
                (&of.write, &of.write_alone, links.write, links.peer_write, other, medium)
            }
        };
        let size = bytes as f64;
        let rate = rate_at(points, size);
        // What a lone transfer takes longer is latency: it is hidden when others are in flight.
        let latency =
            if alone.is_empty() { 0.0 } else { size / rate_at(alone, size) - size / rate };
        let mut route = Route::new();
        route.push(Use { link, per_byte: best_rate(points) / rate });
        let disk = drive as usize % self.media.len();
        route.push(Use { link: self.media[disk], per_byte: 1.0 / rate });
        if links.time != self.media[disk] {
            route.push(Use { link: links.time, per_byte: 1.0 / rate });
        }
        if !of.host_time.is_empty() {
            route.push(Use { link: self.cpu, per_byte: 1.0 / rate_at(&of.host_time, size) });
        }
        if matches!(other, Place::Local(_)) {
            route.extend(peer.map(|link| Use { link, per_byte: 1.0 }));
            if let (Some(time), Some(peer)) = (links.peer, peer) {
                let rate = self.links[peer.0 as usize].capacity;
                route.push(Use { link: time, per_byte: 1.0 / rate });
            }
        }
        let far = self.add_route(from, to, bytes, &mut route)?;
        let latency = latency.max(0.0) / self.factors.latency;
        Ok(Cost { seconds: latency + far, bytes, route })
    }

    /// A flush waits for what is in flight on its drive, and holds up what comes after it.
    fn seal(&self, drive: u32) -> Result<Cost> {
        let link = self.drive(drive)?.time;
        let time = self.fabric.drive.seal_seconds.get();
        let per_byte = time * self.links[link.0 as usize].capacity / SEAL_BYTES as f64;
        let route = Route::from_iter([Use { link, per_byte }]);
        Ok(Cost { seconds: 0.0, bytes: SEAL_BYTES, route })
    }

    fn transfer(&self, from: Place, to: Place, bytes: u64, gradient: bool) -> Result<Cost> {
        let mut route = Route::new();
        let mut seconds = self.add_route(from, to, bytes, &mut route)?;
        if self.machine.node(from) == self.machine.node(to) {
            route.push(Use { link: self.copy, per_byte: 1.0 });
            if self.gpu.in_host_memory {
                let rate = self.fabric.host.copy_bytes_per_second.get();
                route.push(Use { link: self.cpu, per_byte: 1.0 / rate });
            }
        } else if gradient {
            seconds += self.gather_seconds(bytes).unwrap_or(0.0);
        }
        Ok(Cost { seconds, bytes, route })
    }

    /// One rank's part of a collective operation: what it sends to the next in a ring.
    fn collective(&self, graph: &Graph, task: &Task, kind: Collective, bytes: u64) -> Result<Cost> {
        let Place::Gpu(number) = self.place(graph, task) else {
            let message = "collective operations are described among compute devices only";
            return Err(self.fabric.error(&["links"], message));
        };
        let gpus = self.selection.gpus.max(1);
        let parts = match kind {
            Collective::AllReduce => 2 * (gpus - 1),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => gpus - 1,
            Collective::Broadcast => gpus,
        };
        let bytes = (bytes as f64 * f64::from(parts) / f64::from(gpus)) as u64;
        let mut route = Route::new();
        let next = Place::Gpu((number + 1) % gpus);
        let latency = self.add_route(Place::Gpu(number), next, bytes, &mut route)?;
        if route.is_empty() && bytes > 0 {
            route.push(Use { link: self.copy, per_byte: 1.0 });
        }
        Ok(Cost { seconds: latency * f64::from(parts), bytes, route })
    }

    fn place(&self, graph: &Graph, task: &Task) -> Place {
        graph.resources()[task.resource.0 as usize].place
    }

    fn kernel(&self, place: Place, name: &str, elements: u64, bytes: u64) -> Result<Cost> {
        let fabric = &self.fabric;
        let seconds = |points: &Vec<SizePoint>| bytes as f64 / rate_at(points, bytes as f64);
        let missing = |key: &[&str]| fabric.error(key, &format!("no rate of the kernel {name}"));
        match (place, &fabric.drive.near) {
            (Place::Local(_), Some(near)) => {
                if bytes == 0 {
                    let seconds = if name == "allocate" { near.allocate_seconds } else { None };
                    return Ok(Cost::fixed(seconds.map_or(0.0, Positive::get)));
                }
                let measured = near.kernels.get(name).map(seconds);
                let counted =
                    || near.pipeline?.seconds(self.selection.kernels, name, elements, bytes);
                let seconds = measured
                    .or_else(counted)
                    .ok_or_else(|| missing(&["drive", "near", "kernels", name]))?;
                let launch = near.launch_seconds.map_or(0.0, Positive::get);
                return Ok(Cost::fixed((launch + seconds) / self.factors.kernel));
            }
            (Place::Gpu(_), _) if !self.gpu.in_host_memory => {
                let key = ["gpus", &self.gpu_name, "kernels", name];
                let points = self.gpu.kernels.get(name).ok_or_else(|| missing(&key))?;
                return Ok(Cost::fixed(seconds(points) / self.factors.compute));
            }
            _ if bytes == 0 => return Ok(Cost::default()),
            _ => {}
        }
        let points =
            fabric.host.kernels.get(name).ok_or_else(|| missing(&["host", "kernels", name]))?;
        let per_byte = seconds(points) / bytes as f64;
        Ok(Cost {
            seconds: 0.0,
            bytes,
            route: Route::from_iter([Use { link: self.cpu, per_byte }]),
        })
    }

    /// What the task itself takes.
    fn work(&self, graph: &Graph, task: &Task) -> Result<Cost> {
        let forward = !self.is_gradient(graph, task);
        match task.op {
            Op::Compute { flops, bytes } => {
                let points = if forward { &self.gpu.forward } else { &self.gpu.backward };
                if flops == 0 {
                    return Ok(Cost::default());
                }
                let scores = self.gpu.score_bytes_per_second;
                let scores = scores.map_or(0.0, |rate| bytes as f64 / rate.get());
                let seconds = flops as f64 / rate_at(points, flops as f64) + scores;
                let rate = flops as f64 / seconds * self.factors.compute;
                if self.gpu.in_host_memory {
                    // The processor computes: its kernels and copies take time from the model.
                    let route = Route::from_iter([Use { link: self.cpu, per_byte: 1.0 / rate }]);
                    return Ok(Cost { seconds: 0.0, bytes: flops, route });
                }
                Ok(Cost::fixed(flops as f64 / rate))
            }
            Op::Transfer { from, to, bytes } => {
                let gradient = !forward && matches!((from, to), (Place::Gpu(_), Place::Host(_)));
                self.transfer(from, to, bytes, gradient)
            }
            Op::Storage { direction, drive, other, bytes } => {
                self.storage(direction, drive, other, bytes)
            }
            Op::Seal { drive, .. } => self.seal(drive),
            Op::Kernel { name, elements, bytes } => {
                self.kernel(self.place(graph, task), name, elements, bytes)
            }
            Op::Collective { kind, bytes, .. } => self.collective(graph, task, kind, bytes),
            Op::Send { .. } | Op::Receive { .. } => Err(Error::Invalid(format!(
                "fabric {} describes one server, and no messages between ranks",
                self.fabric.name
            ))),
            Op::Mark => Ok(Cost::default()),
        }
    }
}

impl CostModel for FabricCosts {
    fn links(&self) -> &[Link] {
        &self.links
    }

    fn lanes(&self, resource: &Resource) -> u32 {
        resource.lanes
    }

    fn cost(&self, graph: &Graph, task: &Task) -> Result<Cost> {
        let mut cost = self.work(graph, task)?;
        cost.seconds += self.fabric.host.task_seconds.map_or(0.0, Positive::get);
        Ok(cost)
    }
}
