//! GPT-2 models that stream through the compute device unit by unit.

mod device;
mod math;
mod plan;
#[cfg(test)]
mod reference;
mod shape;
mod tensors;
mod unit;

pub use device::{parse_device, read_out};
pub use plan::{Unit, UnitPlan};
pub use shape::Shape;
pub use tensors::{Initial, TensorInfo, TensorList};
pub use unit::{GradientSink, Model, TiedGradient, UnitWeights, WeightSource};
