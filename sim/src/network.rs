//! Links that concurrent transfers share max-min fairly.
//!
//! Every transfer flows over all links of its route at one rate. Rates grow together until a link is full; the
//! transfers over that link keep their rate, the others go on growing (progressive filling). Rates change only when a
//! transfer begins or ends, and only among transfers that are connected to it over shared links.

use arrayvec::ArrayVec;
use nearfield_runtime::graph::TaskId;

use crate::cost::MAX_ROUTE;

/// Index of a link in its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Something that transfers share: one direction of a wire, a memory, the flash behind a drive.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Name in reports.
    pub name: String,
    /// What it can give in a second, in the unit that [`Use::per_byte`] counts in (bytes, or a share of its time).
    pub capacity: f64,
}

/// How much of a link each byte of a transfer takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// Which link.
    pub link: LinkId,
    /// Units of its capacity a byte: 1 where the capacity counts bytes, more where such a transfer is inefficient.
    pub per_byte: f64,
}

/// Use of a link over a whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkUse {
    /// Its name.
    pub name: String,
    /// Payload that has passed.
    pub bytes: u64,
    /// Units taken over units that it could have given, at most 1.
    pub utilisation: f64,
    /// Seconds in which something flowed.
    pub busy_seconds: f64,
}

struct LinkState {
    capacity: f64,
    /// Slots of the flows over it.
    flows: Vec<u32>,
    /// Units a second that they take since `since`.
    rate: f64,
    since: f64,
    units: f64,
    busy_seconds: f64,
    bytes: u64,
    /// Last recomputation that touched it.
    stamp: u64,
    // While rates are recomputed: what is left of the capacity, and what the flows without a rate would take of it.
    left: f64,
    demand: f64,
    open: u32,
}

impl LinkState {
    /// Brings the counters up to `now`.
    fn account(&mut self, now: f64) {
        let seconds = now - self.since;
        self.units += self.rate * seconds;
        if !self.flows.is_empty() {
            self.busy_seconds += seconds;
        }
        self.since = now;
    }
}

struct Flow {
    task: TaskId,
    route: ArrayVec<Use, MAX_ROUTE>,
    /// Bytes that are left at `since`.
    left: f64,
    rate: f64,
    since: f64,
    end: f64,
    stamp: u64,
    settled: bool,
    active: bool,
}

/// All links and the transfers over them.
pub(crate) struct Network {
    links: Vec<LinkState>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    active: Vec<u32>,
    /// Links whose flows have changed since rates were computed.
    changed: Vec<u32>,
    next_end: f64,
    stamp: u64,
    // Work space of `settle`.
    some_links: Vec<u32>,
    some_flows: Vec<u32>,
}

impl Network {
    pub fn new(links: &[Link]) -> Self {
        let state = |link: &Link| LinkState {
            capacity: link.capacity,
            flows: Vec::new(),
            rate: 0.0,
            since: 0.0,
            units: 0.0,
            busy_seconds: 0.0,
            bytes: 0,
            stamp: 0,
            left: 0.0,
            demand: 0.0,
            open: 0,
        };
        Self {
            links: links.iter().map(state).collect(),
            flows: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            changed: Vec::new(),
            next_end: f64::INFINITY,
            stamp: 0,
            some_links: Vec::new(),
            some_flows: Vec::new(),
        }
    }

    /// When the next transfer ends; valid after [`Network::settle`].
    pub fn next_end(&self) -> f64 {
        self.next_end
    }

    /// Begins a transfer. Its route must not be empty.
    pub fn begin(&mut self, now: f64, task: TaskId, bytes: u64, route: ArrayVec<Use, MAX_ROUTE>) {
        let slot = self.free.pop().unwrap_or(self.flows.len() as u32);
        for a_use in &route {
            let link = &mut self.links[a_use.link.0 as usize];
            link.account(now);
            link.flows.push(slot);
            link.bytes += bytes;
            self.changed.push(a_use.link.0);
        }
        let flow = Flow {
            task,
            route,
            left: bytes as f64,
            rate: 0.0,
            since: now,
            end: f64::INFINITY,
            stamp: 0,
            settled: false,
            active: true,
        };
        match self.flows.get_mut(slot as usize) {
            Some(place) => *place = flow,
            None => self.flows.push(flow),
        }
        self.active.push(slot);
    }

    /// Takes out the transfers that end at `now`.
    pub fn take_ended(&mut self, now: f64, ended: &mut Vec<TaskId>) {
        let mut index = 0;
        while let Some(&slot) = self.active.get(index) {
            let flow = &mut self.flows[slot as usize];
            if flow.end > now {
                index += 1;
                continue;
            }
            self.active.swap_remove(index);
            flow.active = false;
            ended.push(flow.task);
            for a_use in &flow.route {
                let link = &mut self.links[a_use.link.0 as usize];
                link.account(now);
                link.flows.retain(|&other| other != slot);
                self.changed.push(a_use.link.0);
            }
            self.free.push(slot);
        }
    }

    /// Gives every transfer that a change has reached its new rate.
    pub fn settle(&mut self, now: f64) {
        if self.changed.is_empty() {
            return;
        }
        self.collect();
        for &link in &self.some_links {
            let link = &mut self.links[link as usize];
            link.account(now);
            link.left = link.capacity;
            link.rate = 0.0;
            link.demand = 0.0;
            link.open = 0;
        }
        for &slot in &self.some_flows {
            let flow = &mut self.flows[slot as usize];
            flow.settled = false;
            for a_use in &flow.route {
                let link = &mut self.links[a_use.link.0 as usize];
                link.demand += a_use.per_byte;
                link.open += 1;
            }
        }
        let mut unsettled = self.some_flows.len();
        let mut lowest: f64 = 0.0;
        while unsettled > 0 {
            let level = |link: &LinkState| link.left / link.demand;
            let open = self.some_links.iter().map(|&link| &self.links[link as usize]);
            let least = open.filter(|link| link.open > 0).map(level).fold(f64::INFINITY, f64::min);
            // Rates only grow; what is left of a link may round to less than nothing.
            lowest = lowest.max(least);
            // Equal links fill together; they may differ in the last bits.
            let full = lowest * (1.0 + 1e-12);
            for index in 0..self.some_links.len() {
                let id = self.some_links[index] as usize;
                if self.links[id].open == 0 || level(&self.links[id]) > full {
                    continue;
                }
                for place in 0..self.links[id].flows.len() {
                    let slot = self.links[id].flows[place];
                    if !self.flows[slot as usize].settled {
                        self.settle_flow(slot, lowest, now);
                        unsettled -= 1;
                    }
                }
            }
        }
        let ends = self.active.iter().map(|&slot| self.flows[slot as usize].end);
        self.next_end = ends.fold(f64::INFINITY, f64::min);
    }

    fn settle_flow(&mut self, slot: u32, rate: f64, now: f64) {
        let flow = &mut self.flows[slot as usize];
        flow.settled = true;
        if flow.rate != rate {
            flow.left = (flow.left - flow.rate * (now - flow.since)).max(0.0);
            flow.since = now;
            flow.rate = rate;
            flow.end = now + flow.left / rate;
        }
        for a_use in &flow.route {
            let link = &mut self.links[a_use.link.0 as usize];
            link.left -= rate * a_use.per_byte;
            link.rate += rate * a_use.per_byte;
            link.demand -= a_use.per_byte;
            link.open -= 1;
        }
    }

    /// Finds the links and transfers that are connected to what has changed.
    fn collect(&mut self) {
        self.stamp += 1;
        self.some_links.clear();
        self.some_flows.clear();
        for link in self.changed.drain(..) {
            let state = &mut self.links[link as usize];
            if state.stamp != self.stamp {
                state.stamp = self.stamp;
                self.some_links.push(link);
            }
        }
        let mut next = 0;
        while let Some(&link) = self.some_links.get(next) {
            next += 1;
            for place in 0..self.links[link as usize].flows.len() {
                let slot = self.links[link as usize].flows[place];
                let flow = &mut self.flows[slot as usize];
                if flow.stamp == self.stamp {
                    continue;
                }
                flow.stamp = self.stamp;
                self.some_flows.push(slot);
                for a_use in &flow.route {
                    let other = &mut self.links[a_use.link.0 as usize];
                    if other.stamp != self.stamp {
                        other.stamp = self.stamp;
                        self.some_links.push(a_use.link.0);
                    }
                }
            }
        }
    }

    /// Use of every link over a run of `seconds`.
    pub fn usage(&mut self, links: &[Link], seconds: f64) -> Vec<LinkUse> {
        let of = |(link, state): (&Link, &mut LinkState)| {
            state.account(seconds);
            let most = state.capacity * seconds;
            LinkUse {
                name: link.name.clone(),
                bytes: state.bytes,
                utilisation: if most > 0.0 { (state.units / most).min(1.0) } else { 0.0 },
                busy_seconds: state.busy_seconds,
            }
        };
        links.iter().zip(&mut self.links).map(of).collect()
    }
}
