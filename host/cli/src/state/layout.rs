//! How a state that is made without a run is laid out on its drives.

use clap::Args;
use nearfield_bench::values::named;
use nearfield_techniques::offload::{Placement, System};
use nearfield_train::saved::NewLayout;

/// How a state is laid out on other drives.
#[derive(Debug, Args)]
pub struct LayoutArgs {
    /// The system that will go on with it [default: su+o]
    #[arg(long, value_parser = named::<System>, value_name = "SYSTEM")]
    system: Option<System>,
    /// equal-rr, flat-equal or subgroup-rr [default: equal-rr]
    #[arg(long, value_parser = named::<Placement>, value_name = "NAME")]
    placement: Option<Placement>,
    /// Most elements of a subgroup [default: 40000000]
    #[arg(long, value_name = "ELEMENTS")]
    subgroup_size: Option<u64>,
    /// With a slot more for each subgroup, so that the run can go on with --overlap-update
    #[arg(long)]
    overlap_update: bool,
    /// Replace the state of another run on the new drives
    #[arg(long)]
    pub overwrite: bool,
}

impl LayoutArgs {
    /// Whether a layout was asked for.
    pub fn given(&self) -> bool {
        self.system.is_some()
            || self.placement.is_some()
            || self.subgroup_size.is_some()
            || self.overlap_update
    }

    /// The layout, with defaults for what was not given.
    pub fn layout(&self) -> NewLayout {
        NewLayout {
            system: self.system.unwrap_or(System::SuO),
            placement: self.placement.unwrap_or(Placement::EqualRr),
            subgroup_elements: self.subgroup_size.unwrap_or(40_000_000),
            overlap_update: self.overlap_update,
            overwrite: self.overwrite,
        }
    }
}
