//! What tasks take on a described machine.

use arrayvec::ArrayVec;
use nearfield_runtime::graph::{Direction, Graph, Op, Place, Resource, Task};
use nearfield_runtime::{Error, Result};

use super::numbers::{Positive, SizePoint, best_rate, rate_at};
use super::{Fabric, Gpu, Selection, Uplink};
use crate::cost::{Cost, CostModel, MAX_ROUTE};
use crate::network::{Link, LinkId, Use};

/// The cost model of a [`Fabric`] with a number of drives.
#[derive(Debug, Clone)]
pub struct FabricCosts {
    fabric: Fabric,
    drives: u32,
    links: Vec<Link>,
    copy: LinkId,
    /// The processor's time, which the kernels that it runs share.
    cpu: LinkId,
    of_gpu: Gpu,
    gpu: [Option<LinkId>; 2],
    gpu_behind_uplink: bool,
    uplink: [Option<LinkId>; 2],
    /// Both directions of the uplink together.
    joint: Option<LinkId>,
    /// The back end of each disk: its time, which reads and writes share.
    media: Vec<LinkId>,
    each: Vec<DriveLinks>,
}

#[derive(Debug, Clone, Copy)]
struct DriveLinks {
    read: LinkId,
    write: LinkId,
    internal: [Option<LinkId>; 2],
}

type Route = ArrayVec<Use, MAX_ROUTE>;

/// A byte takes as much of the link as it has bytes.
const fn whole(link: LinkId) -> Use {
    Use { link, per_byte: 1.0 }
}

impl FabricCosts {
    /// The part of the machine that `selection` names.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more drives than the machine takes, and names that it does not have.
    pub fn new(fabric: &Fabric, selection: &Selection) -> Result<Self> {
        let drives = selection.drives;
        let of_gpu = fabric.gpu(selection.gpu.as_deref())?.clone();
        let topology = selection.topology.as_deref().unwrap_or("default");
        let gpu_behind_uplink = match fabric.topologies.get(topology) {
            Some(topology) => topology.gpu_behind_uplink,
            None if topology == "default" && fabric.topologies.is_empty() => false,
            None => {
                let names: Vec<&str> = fabric.topologies.keys().map(String::as_str).collect();
                let names = if names.is_empty() { "default".into() } else { names.join(", ") };
                return Err(Error::Invalid(format!(
                    "fabric {} has no topology {topology}; it has {names}",
                    fabric.name
                )));
            }
        };
        if let Some(most) = fabric.drive.count_max.filter(|&most| drives > most) {
            return Err(Error::Invalid(format!(
                "{drives} drives exceed drive.count_max of fabric {}, which is {most}",
                fabric.name
            )));
        }
        let mut links = Vec::new();
        let mut add = |name: String, capacity: f64| {
            links.push(Link { name, capacity });
            LinkId(links.len() as u32 - 1)
        };
        let copy = add("host.copy".into(), fabric.host.copy_bytes_per_second.get());
        let cpu = add("host.cpu".into(), 1.0);
        let mut optional =
            |name: &str, rate: Option<Positive>| rate.map(|rate| add(name.into(), rate.get()));
        let gpu = [
            optional("gpu.down", of_gpu.down_bytes_per_second),
            optional("gpu.up", of_gpu.up_bytes_per_second),
        ];
        let of_uplink = |rate: fn(&Uplink) -> Positive| fabric.uplink.as_ref().map(rate);
        let uplink = [
            optional("uplink.down", of_uplink(|uplink| uplink.down_bytes_per_second)),
            optional("uplink.up", of_uplink(|uplink| uplink.up_bytes_per_second)),
        ];
        let joint = fabric.uplink.as_ref().and_then(|uplink| uplink.joint_bytes_per_second);
        let joint = optional("uplink.joint", joint);
        let drive = &fabric.drive;
        let disks = drive.disks.unwrap_or(drives).min(drives.max(1));
        let media = (0..disks)
            .map(|disk| add(format!("disk{disk}.media"), drive.mixed_seconds_per_second.get()))
            .collect();
        let each = (0..drives)
            .map(|number| DriveLinks {
                read: add(format!("drive{number}.read"), best_rate(&drive.read)),
                write: add(format!("drive{number}.write"), best_rate(&drive.write)),
                internal: [
                    ("read", drive.internal_read_bytes_per_second),
                    ("write", drive.internal_write_bytes_per_second),
                ]
                .map(|(name, rate)| {
                    rate.map(|rate| add(format!("drive{number}.internal.{name}"), rate.get()))
                }),
            })
            .collect();
        Ok(Self {
            fabric: fabric.clone(),
            drives,
            links,
            copy,
            cpu,
            of_gpu,
            gpu,
            gpu_behind_uplink,
            uplink,
            joint,
            media,
            each,
        })
    }

    fn drive(&self, number: u32) -> Result<DriveLinks> {
        self.each.get(number as usize).copied().ok_or_else(|| {
            Error::Invalid(format!(
                "drive {number} is not among the {} of fabric {}",
                self.drives, self.fabric.name
            ))
        })
    }

    fn storage(&self, direction: Direction, drive: u32, other: Place, bytes: u64) -> Result<Cost> {
        let links = self.drive(drive)?;
        let of = &self.fabric.drive;
        let (points, alone, link, internal, uplink) = match direction {
            Direction::Read => {
                (&of.read, &of.read_alone, links.read, links.internal[0], self.uplink[1])
            }
            Direction::Write => {
                (&of.write, &of.write_alone, links.write, links.internal[1], self.uplink[0])
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
        if matches!(other, Place::Local(_)) {
            route.extend(internal.map(whole));
        } else {
            route.extend(uplink.map(whole));
            route.extend(self.joint.map(whole));
        }
        Ok(Cost { seconds: latency.max(0.0), bytes, route })
    }

    fn transfer(&self, from: Place, to: Place, bytes: u64) -> Result<Cost> {
        let [down, up] = self.uplink;
        let mut route = Route::new();
        let over_uplink = match (from, to) {
            (Place::Host(_), Place::Gpu(_)) => {
                route.extend(self.gpu[0].map(whole));
                self.gpu_behind_uplink.then_some(down)
            }
            (Place::Gpu(_), Place::Host(_)) => {
                route.extend(self.gpu[1].map(whole));
                self.gpu_behind_uplink.then_some(up)
            }
            (Place::Host(_), Place::Local(_)) => Some(down),
            (Place::Local(_), Place::Host(_)) => Some(up),
            (Place::Host(_), Place::Host(_)) => None,
            _ => {
                return Err(Error::Invalid(format!(
                    "fabric {} has no route from {from} to {to}",
                    self.fabric.name
                )));
            }
        };
        if let Some(direction) = over_uplink {
            route.extend(direction.map(whole));
            route.extend(self.joint.map(whole));
        }
        if route.is_empty() {
            route.push(whole(self.copy));
        }
        Ok(Cost { seconds: 0.0, bytes, route })
    }

    fn kernel(&self, place: Place, name: &str, bytes: u64) -> Result<Cost> {
        let drive = &self.fabric.drive;
        let own = &drive.kernels;
        if bytes == 0 {
            let seconds = if name == "allocate" { drive.allocate_seconds } else { None };
            return Ok(Cost::fixed(seconds.map_or(0.0, Positive::get)));
        }
        let missing = |key: &str| {
            Error::Invalid(format!("fabric {}: {key}.kernels.{name} is missing", self.fabric.name))
        };
        let seconds = |points: &Vec<SizePoint>| bytes as f64 / rate_at(points, bytes as f64);
        if matches!(place, Place::Local(_)) && !own.is_empty() {
            let points = own.get(name).ok_or_else(|| missing("drive"))?;
            let launch = drive.launch_seconds.map_or(0.0, Positive::get);
            return Ok(Cost::fixed(launch + seconds(points)));
        }
        let points = self.fabric.host.kernels.get(name).ok_or_else(|| missing("host"))?;
        let per_byte = seconds(points) / bytes as f64;
        Ok(Cost {
            seconds: 0.0,
            bytes,
            route: Route::from_iter([Use { link: self.cpu, per_byte }]),
        })
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

impl FabricCosts {
    /// What the task itself takes.
    fn work(&self, graph: &Graph, task: &Task) -> Result<Cost> {
        let unknown = |what: &str| {
            Err(Error::Invalid(format!("fabric {} does not describe {what}", self.fabric.name)))
        };
        match task.op {
            Op::Compute { flops, .. } => {
                let forward = graph.phases()[task.phase.0 as usize] == "forward";
                let gpu = &self.of_gpu;
                let points = if forward { &gpu.forward } else { &gpu.backward };
                let flops = flops as f64;
                Ok(Cost::fixed(if flops > 0.0 { flops / rate_at(points, flops) } else { 0.0 }))
            }
            Op::Transfer { from, to, bytes } => self.transfer(from, to, bytes),
            Op::Storage { direction, drive, other, bytes } => {
                self.storage(direction, drive, other, bytes)
            }
            Op::Seal { .. } => Ok(Cost::fixed(self.fabric.drive.seal_seconds.get())),
            Op::Kernel { name, bytes, .. } => {
                let place = graph.resources()[task.resource.0 as usize].place;
                self.kernel(place, name, bytes)
            }
            Op::Collective { .. } => unknown("collective operations"),
            Op::Send { .. } | Op::Receive { .. } => unknown("messages between ranks"),
            Op::Mark => Ok(Cost::default()),
        }
    }
}
