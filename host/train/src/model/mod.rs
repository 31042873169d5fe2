//! Models that stream through the compute device unit by unit.

mod architecture;
mod device;
mod documents;
mod math;
mod plan;
#[cfg(test)]
mod reference;
mod rope;
mod shape;
mod tensors;
mod unit;

pub(crate) use architecture::LAYERS_MAX;
pub use architecture::{Activation, Architecture, Family, Rope, RopeScaling, Windows};
pub use device::{parse_device, read_out};
pub use documents::Documents;
pub(crate) use math::IGNORED;
pub use nearfield_techniques::offload::WeightSource;
pub use plan::{Unit, UnitPlan};
pub use shape::Shape;
pub use tensors::{Initial, Role, TensorInfo, TensorList};
pub use unit::{GradientSink, Model, TiedGradient, Tokens, UnitWeights};
