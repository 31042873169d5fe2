//! Buffer sets: one buffer a variable and piece.

use nearfield_runtime::device::{BufferId, GradientBuffers, PairBuffers, Reach, pair_bounds_bytes};
use nearfield_runtime::layout::{Layout, align_up};
use nearfield_runtime::types::{DType, Variable};
use nearfield_runtime::{Error, Result, codec};

use crate::offload::options::OffloadOptions;
use crate::offload::plan::Pieces;

/// Arenas give out whole pages.
const PAGE_BYTES: u64 = 4096;

/// Sizes of the buffers of one set, in bytes.
#[derive(Debug, Clone)]
pub(super) struct BufferSizes {
    variables: &'static [Variable],
    /// By variable.
    state: Vec<Vec<u64>>,
    gradient: Vec<u64>,
    weights: Vec<u64>,
    /// Of indices, of values, and of the device's own notes on them.
    pairs: Option<[u64; 3]>,
    gradient_dtype: DType,
}

impl BufferSizes {
    /// Buffers for the longest part of `drive`, cut as the handler hands them over.
    pub fn for_drive(layout: &Layout, options: &OffloadOptions, drive: u32) -> Self {
        Self::new(&Pieces::new(layout, options, drive).capacities(), layout, options)
    }

    /// Buffers for one part of `elements` padded elements, in one piece.
    pub fn for_part(elements: u64, layout: &Layout, options: &OffloadOptions) -> Self {
        Self::new(&[elements], layout, options)
    }

    fn new(capacities: &[u64], layout: &Layout, options: &OffloadOptions) -> Self {
        let longest: u64 = capacities.iter().sum();
        let gradient_dtype = options.gradient_dtype;
        let times = |width: u64| -> Vec<u64> {
            capacities.iter().map(|&elements| elements * width).collect()
        };
        let variables = options.optimizer.variables();
        let copy = options.emits_weights().then(|| options.weights_dtype.bytes());
        Self {
            variables,
            state: variables.iter().map(|&v| times(options.variable_bytes(v))).collect(),
            gradient: if options.holds_dense_gradient() {
                times(gradient_dtype.bytes())
            } else {
                Vec::new()
            },
            weights: copy.map(times).unwrap_or_default(),
            pairs: options.compressed().then(|| {
                let longest = align_up(longest, layout.align_elements);
                let bytes = 4 * codec::kept(options.topk_keep, longest);
                [bytes, bytes, pair_bounds_bytes(longest)]
            }),
            gradient_dtype,
        }
    }

    fn all(&self) -> impl Iterator<Item = u64> + '_ {
        self.state
            .iter()
            .flatten()
            .copied()
            .chain(self.gradient.iter().copied())
            .chain(self.weights.iter().copied())
            .chain(self.pairs.iter().flatten().copied())
    }

    /// Bytes of an arena that holds one set.
    pub fn arena_bytes(&self) -> u64 {
        self.all().map(|bytes| align_up(bytes, PAGE_BYTES)).sum()
    }
}

/// The buffers of one set.
#[derive(Debug, Clone)]
pub(super) struct BufferSet {
    variables: &'static [Variable],
    state: Vec<Vec<BufferId>>,
    gradient: Vec<BufferId>,
    weights: Vec<BufferId>,
    pairs: Option<PairBuffers>,
    gradient_dtype: DType,
}

impl BufferSet {
    /// Allocates every buffer of `sizes`.
    pub fn allocate(
        sizes: &BufferSizes,
        allocate: &mut dyn FnMut(u64, Reach) -> Result<BufferId>,
    ) -> Result<Self> {
        let mut each = |sizes: &[u64], reach| -> Result<Vec<BufferId>> {
            sizes.iter().map(|&bytes| allocate(bytes, reach)).collect()
        };
        let state = sizes.state.iter().map(|sizes| each(sizes, Reach::Drive));
        let state = state.collect::<Result<Vec<_>>>()?;
        let gradient = each(&sizes.gradient, Reach::Drive)?;
        let weights = each(&sizes.weights, Reach::Kernels)?;
        let pairs = match sizes.pairs {
            Some([indices, values, bounds]) => Some(PairBuffers {
                indices: allocate(indices, Reach::Drive)?,
                values: allocate(values, Reach::Drive)?,
                bounds: allocate(bounds, Reach::Kernels)?,
            }),
            None => None,
        };
        Ok(Self {
            variables: sizes.variables,
            state,
            gradient,
            weights,
            pairs,
            gradient_dtype: sizes.gradient_dtype,
        })
    }

    /// Every buffer, for freeing.
    pub fn all(&self) -> Vec<BufferId> {
        let state = self.state.iter().flatten();
        let pairs = self.pairs.map(|pairs| [pairs.indices, pairs.values, pairs.bounds]);
        let pairs = pairs.iter().flatten();
        state.chain(&self.gradient).chain(&self.weights).chain(pairs).copied().collect()
    }

    /// The buffer of a variable's piece.
    pub fn of(&self, variable: Variable, piece: u32) -> Result<BufferId> {
        let missing =
            || Error::Invalid(format!("no buffer for piece {piece} of {}", variable.name()));
        if variable == Variable::Gradient {
            return self.gradient.get(piece as usize).copied().ok_or_else(missing);
        }
        let index =
            self.variables.iter().position(|&other| other == variable).ok_or_else(missing)?;
        self.state[index].get(piece as usize).copied().ok_or_else(missing)
    }

    /// The same, `None` for a variable that the optimizer does not keep.
    pub fn optional(&self, variable: Variable, piece: u32) -> Result<Option<BufferId>> {
        if self.variables.contains(&variable) {
            self.of(variable, piece).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The buffer that holds a piece's weights in the working format.
    pub fn weights(&self, piece: u32) -> Option<BufferId> {
        self.weights.get(piece as usize).copied()
    }

    /// Buffers of kept pairs.
    pub fn pairs(&self) -> Result<PairBuffers> {
        self.pairs.ok_or_else(|| Error::Invalid("no buffers for kept pairs".into()))
    }

    /// Where the update of a piece finds its gradient.
    pub fn gradient(&self, piece: u32) -> Result<GradientBuffers> {
        Ok(GradientBuffers::Dense(self.of(Variable::Gradient, piece)?, self.gradient_dtype))
    }
}
