//! The tensors of a model as one flat vector, and their initial values.

use std::ops::Range;

use super::architecture::{Architecture, Family};
use super::plan::Unit;
use crate::error::Result;
use crate::random::{Purpose, Random, split};

/// Standard deviation of initial weights (GPT-2).
const INITIAL_STD: f64 = 0.02;

/// How a tensor is initialised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
}

/// What a tensor is for within its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embedding, `[vocab, hidden]`.
    Table,
    /// Position embedding, `[positions, hidden]`.
    Positions,
    /// Gain of the norm before attention.
    AttentionNorm,
    /// Its shift.
    AttentionShift,
    /// Queries, keys and values side by side (GPT-2).
    Qkv,
    /// Their bias.
    QkvBias,
    /// Queries.
    Query,
    /// Their bias.
    QueryBias,
    /// Keys.
    Key,
    /// Their bias.
    KeyBias,
    /// Values.
    Value,
    /// Their bias.
    ValueBias,
    /// Gain of the norm of each query, `[head width]`.
    QueryNorm,
    /// Gain of the norm of each key.
    KeyNorm,
    /// Attention's output.
    Out,
    /// Its bias.
    OutBias,
    /// Gain of the norm before the feed-forward layer.
    FeedForwardNorm,
    /// Its shift.
    FeedForwardShift,
    /// Gate of the feed-forward layer.
    Gate,
    /// Its bias.
    GateBias,
    /// Its widening matrix.
    Up,
    /// Its bias.
    UpBias,
    /// Its narrowing matrix.
    Down,
    /// Its bias.
    DownBias,
    /// Gain of the last norm.
    FinalNorm,
    /// Its shift.
    FinalShift,
    /// The head's own matrix, `[vocab, hidden]`.
    Head,
}

/// One named tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// transformers' name, for example `transformer.h.0.attn.c_attn.weight`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// The unit to which it belongs; the head uses a tied table as well.
    pub unit: Unit,
    /// Sizes, as transformers has them: matrices output-major (`[out, in]`), those of GPT-2 input-major (`[in, out]`).
    pub shape: Vec<u64>,
    /// Weight decay applies: matrices and embeddings yes, biases and layer norms no.
    pub decay: bool,
    /// Initial values.
    pub initial: Initial,
    /// First element in the flat vector.
    pub flat_start: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Its range of the flat vector.
    pub fn range(&self) -> Range<u64> {
        self.flat_start..self.flat_start + self.elements()
    }
}

/// A part of a tensor within a range of the flat vector.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The tensor.
    pub tensor: &'a TensorInfo,
    /// First element, from the start of the tensor.
    pub offset: u64,
    /// The same, from the start of the range.
    pub at: u64,
    /// Elements.
    pub elements: u64,
}

impl Piece<'_> {
    /// Where it lies in a slice of the range.
    pub fn span(&self) -> Range<usize> {
        self.at as usize..(self.at + self.elements) as usize
    }
}

/// Every tensor of a model in registration order, which is that of transformers' `parameters()`: embeddings, blocks, last norm, and
/// `lm_head.weight` when untied.
///
/// The flat vector is group-major: first all tensors with weight decay in registration order, then all without. So a parameter
/// group is one range, and the tensors of a block are one range in each group.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorList {
    architecture: Architecture,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors` in flat order.
    flat: Vec<usize>,
    decay_elements: u64,
    elements: u64,
}

impl TensorList {
    /// The tensors of a model.
    ///
    /// # Errors
    /// Sizes that form no model.
    pub fn new(architecture: impl Into<Architecture>) -> Result<Self> {
        let architecture = architecture.into();
        architecture.validate()?;
        let mut tensors = registration(&architecture);
        let mut flat: Vec<usize> = (0..tensors.len()).collect();
        // A stable sort: decay first, registration order within each group.
        flat.sort_by_key(|&index| !tensors[index].decay);
        let mut elements = 0;
        let mut decay_elements = 0;
        for &index in &flat {
            let tensor = &mut tensors[index];
            tensor.flat_start = elements;
            elements += tensor.elements();
            if tensor.decay {
                decay_elements = elements;
            }
        }
        Ok(Self { architecture, tensors, flat, decay_elements, elements })
    }

    /// The model.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The tensors in flat order.
    pub fn in_flat_order(&self) -> impl Iterator<Item = &TensorInfo> {
        self.flat.iter().map(|&index| &self.tensors[index])
    }

    /// The tensors that overlap elements `[first, first + elements)`, in flat order.
    pub fn overlapping(&self, first: u64, elements: u64) -> impl Iterator<Item = &TensorInfo> {
        let at = self.flat.partition_point(|&index| self.tensors[index].range().end <= first);
        self.flat[at..]
            .iter()
            .map(|&index| &self.tensors[index])
            .take_while(move |tensor| tensor.flat_start < first + elements)
    }

    /// The parts of tensors that lie in `[first, first + elements)`, in flat order, none longer than `most` elements.
    pub fn pieces(&self, first: u64, elements: u64, most: u64) -> impl Iterator<Item = Piece<'_>> {
        let end = first + elements;
        self.overlapping(first, elements).flat_map(move |tensor| {
            let (from, to) = (tensor.flat_start.max(first), tensor.range().end.min(end));
            (from..to).step_by(most as usize).map(move |at| Piece {
                tensor,
                offset: at - tensor.flat_start,
                at: at - first,
                elements: most.min(to - at),
            })
        })
    }

    /// The tensors in registration order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Elements of the flat vector: the number of parameters.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The range of the flat vector to which weight decay applies; it starts at 0.
    pub fn decay(&self) -> Range<u64> {
        0..self.decay_elements
    }

    /// The range to which it does not.
    pub fn no_decay(&self) -> Range<u64> {
        self.decay_elements..self.elements
    }

    /// Writes the initial values of elements `[first, first + out.len())` of the flat vector.
    ///
    /// Each value depends on the seed, the tensor's place in registration order and the element's place in the tensor only: pieces may be
    /// made in any order and on any thread, and give the bits of the whole.
    ///
    /// # Panics
    /// When the range does not lie in the flat vector.
    pub fn initialise(&self, seed: u64, first: u64, out: &mut [f32]) {
        let end = first + out.len() as u64;
        assert!(end <= self.elements, "range within the flat vector");
        let random = Random::new(seed, Purpose::Initial);
        let mut at = self.flat.partition_point(|&index| self.tensors[index].range().end <= first);
        let mut rest = out;
        let mut next = first;
        while !rest.is_empty() {
            let index = self.flat[at];
            let tensor = &self.tensors[index];
            let count = (tensor.range().end.min(end) - next) as usize;
            let (piece, later) = rest.split_at_mut(count);
            match tensor.initial {
                Initial::Zeros => piece.fill(0.0),
                Initial::Ones => piece.fill(1.0),
                Initial::Normal(std) => {
                    fill_normal(&random, index, next - tensor.flat_start, std, piece);
                }
            }
            rest = later;
            next += count as u64;
            at += 1;
        }
    }
}

/// Elements `[first, first + out.len())` of tensor `index`; four elements come from each counter value.
fn fill_normal(random: &Random, index: usize, first: u64, std: f64, out: &mut [f32]) {
    let mut element = first;
    let mut rest = out;
    while !rest.is_empty() {
        let skip = (element % 4) as usize;
        let count = rest.len().min(4 - skip);
        let [low, high] = split(element / 4);
        let values = random.normals([low, high, index as u32, 0]);
        let (piece, later) = rest.split_at_mut(count);
        for (to, value) in piece.iter_mut().zip(&values[skip..]) {
            *to = (value * std) as f32;
        }
        rest = later;
        element += count as u64;
    }
}

/// The tensors in registration order, `flat_start` still 0.
pub(super) fn registration(architecture: &Architecture) -> Vec<TensorInfo> {
    let mut list = Registration {
        list: Vec::with_capacity(architecture.layers as usize * 12 + 5),
        unit: Unit::Embed,
        prefix: String::new(),
        // Residual projections are scaled by the number of residual additions (GPT-2, section 2.3).
        residual: INITIAL_STD / (2.0 * f64::from(architecture.layers)).sqrt(),
    };
    match architecture.family {
        Family::Gpt2 => list.gpt2(architecture),
        _ => list.llama(architecture),
    }
    list.list
}

struct Registration {
    list: Vec<TensorInfo>,
    unit: Unit,
    prefix: String,
    /// Standard deviation of residual projections.
    residual: f64,
}

impl Registration {
    fn enter(&mut self, unit: Unit, prefix: impl Into<String>) {
        self.unit = unit;
        self.prefix = prefix.into();
    }

    fn add(&mut self, role: Role, name: &str, shape: Vec<u64>, initial: Initial) {
        let (unit, decay) = (self.unit, shape.len() > 1);
        let name = format!("{}{name}", self.prefix);
        self.list.push(TensorInfo { name, role, unit, shape, decay, initial, flat_start: 0 });
    }

    fn matrix(&mut self, role: Role, name: &str, rows: u64, columns: u64) {
        let std = if matches!(role, Role::Out | Role::Down) { self.residual } else { INITIAL_STD };
        self.add(role, &format!("{name}.weight"), vec![rows, columns], Initial::Normal(std));
    }

    fn gain(&mut self, role: Role, name: &str, width: u64) {
        self.add(role, &format!("{name}.weight"), vec![width], Initial::Ones);
    }

    fn bias(&mut self, role: Role, name: &str, width: u64, there: bool) {
        if there {
            self.add(role, &format!("{name}.bias"), vec![width], Initial::Zeros);
        }
    }

    fn gpt2(&mut self, architecture: &Architecture) {
        let hidden = u64::from(architecture.hidden);
        let vocab = u64::from(architecture.vocab);
        let wide = u64::from(architecture.feed_forward);
        self.enter(Unit::Embed, "transformer.");
        self.matrix(Role::Table, "wte", vocab, hidden);
        self.matrix(Role::Positions, "wpe", u64::from(architecture.positions), hidden);
        for layer in 0..architecture.layers {
            self.enter(Unit::Block(layer), format!("transformer.h.{layer}."));
            self.gain(Role::AttentionNorm, "ln_1", hidden);
            self.bias(Role::AttentionShift, "ln_1", hidden, true);
            self.matrix(Role::Qkv, "attn.c_attn", hidden, 3 * hidden);
            self.bias(Role::QkvBias, "attn.c_attn", 3 * hidden, true);
            self.matrix(Role::Out, "attn.c_proj", hidden, hidden);
            self.bias(Role::OutBias, "attn.c_proj", hidden, true);
            self.gain(Role::FeedForwardNorm, "ln_2", hidden);
            self.bias(Role::FeedForwardShift, "ln_2", hidden, true);
            self.matrix(Role::Up, "mlp.c_fc", hidden, wide);
            self.bias(Role::UpBias, "mlp.c_fc", wide, true);
            self.matrix(Role::Down, "mlp.c_proj", wide, hidden);
            self.bias(Role::DownBias, "mlp.c_proj", hidden, true);
        }
        self.enter(Unit::Head, "transformer.");
        self.gain(Role::FinalNorm, "ln_f", hidden);
        self.bias(Role::FinalShift, "ln_f", hidden, true);
        self.head(architecture);
    }

    fn llama(&mut self, architecture: &Architecture) {
        let hidden = u64::from(architecture.hidden);
        let wide = u64::from(architecture.feed_forward);
        let queries = u64::from(architecture.query_width());
        let keys = u64::from(architecture.key_width());
        let width = u64::from(architecture.head_width);
        self.enter(Unit::Embed, "model.");
        self.matrix(Role::Table, "embed_tokens", u64::from(architecture.vocab), hidden);
        for layer in 0..architecture.layers {
            self.enter(Unit::Block(layer), format!("model.layers.{layer}."));
            let biases = architecture.qkv_biases;
            for (role, bias, name, rows) in [
                (Role::Query, Role::QueryBias, "self_attn.q_proj", queries),
                (Role::Key, Role::KeyBias, "self_attn.k_proj", keys),
                (Role::Value, Role::ValueBias, "self_attn.v_proj", keys),
            ] {
                self.matrix(role, name, rows, hidden);
                self.bias(bias, name, rows, biases);
            }
            self.matrix(Role::Out, "self_attn.o_proj", hidden, queries);
            self.bias(Role::OutBias, "self_attn.o_proj", hidden, architecture.out_bias);
            if architecture.family == Family::Qwen3 {
                self.gain(Role::QueryNorm, "self_attn.q_norm", width);
                self.gain(Role::KeyNorm, "self_attn.k_norm", width);
            }
            let biases = architecture.feed_forward_biases;
            for (role, bias, name, rows, columns) in [
                (Role::Gate, Role::GateBias, "mlp.gate_proj", wide, hidden),
                (Role::Up, Role::UpBias, "mlp.up_proj", wide, hidden),
                (Role::Down, Role::DownBias, "mlp.down_proj", hidden, wide),
            ] {
                self.matrix(role, name, rows, columns);
                self.bias(bias, name, rows, biases);
            }
            self.gain(Role::AttentionNorm, "input_layernorm", hidden);
            self.gain(Role::FeedForwardNorm, "post_attention_layernorm", hidden);
        }
        self.enter(Unit::Head, "model.");
        self.gain(Role::FinalNorm, "norm", hidden);
        self.head(architecture);
    }

    fn head(&mut self, architecture: &Architecture) {
        if !architecture.tied {
            self.enter(Unit::Head, "");
            let (vocab, hidden) = (u64::from(architecture.vocab), u64::from(architecture.hidden));
            self.matrix(Role::Head, "lm_head", vocab, hidden);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Shape;
    use proptest::prelude::*;

    fn list(layers: u32, tied: bool) -> TensorList {
        TensorList::new(Shape { layers, hidden: 6, heads: 2, vocab: 11, seq: 5, tied }).unwrap()
    }

    fn whole(list: &TensorList, seed: u64) -> Vec<f32> {
        let mut out = vec![f32::NAN; list.elements() as usize];
        list.initialise(seed, 0, &mut out);
        out
    }

    #[test]
    fn gpt2_small_has_its_published_number_of_parameters() {
        let shape =
            Shape { layers: 12, hidden: 768, heads: 12, vocab: 50257, seq: 1024, tied: true };
        assert_eq!(TensorList::new(shape).unwrap().elements(), 124_439_808);
    }

    #[test]
    fn flat_vector_is_covered_once_group_major() {
        for tied in [true, false] {
            let list = list(2, tied);
            let order: Vec<&TensorInfo> = list.flat.iter().map(|&i| &list.tensors[i]).collect();
            let mut next = 0;
            for tensor in &order {
                assert_eq!(tensor.flat_start, next);
                let group = if tensor.decay { list.decay() } else { list.no_decay() };
                assert!(group.contains(&tensor.flat_start));
                next = tensor.range().end;
            }
            assert_eq!(next, list.elements());
            let names: Vec<&str> = order.iter().map(|t| t.name.as_str()).collect();
            assert_eq!(
                names[..4],
                [
                    "transformer.wte.weight",
                    "transformer.wpe.weight",
                    "transformer.h.0.attn.c_attn.weight",
                    "transformer.h.0.attn.c_proj.weight"
                ]
            );
            assert_eq!(names.contains(&"lm_head.weight"), !tied);
            assert_eq!(names.last(), Some(&"transformer.ln_f.bias"));
        }
    }

    #[test]
    fn initial_values_have_the_spread_of_gpt2() {
        let shape = Shape { layers: 8, hidden: 64, heads: 2, vocab: 256, seq: 64, tied: true };
        let list = TensorList::new(shape).unwrap();
        let values = whole(&list, 3);
        for tensor in list.tensors() {
            let range = tensor.range();
            let part = &values[range.start as usize..range.end as usize];
            let square: f64 = part.iter().map(|&x| f64::from(x).powi(2)).sum();
            let rms = (square / part.len() as f64).sqrt();
            let expected = match tensor.name.rsplit_once('.') {
                Some((name, "weight")) if name.contains("ln_") => 1.0,
                Some((_, "bias")) => 0.0,
                Some((name, _)) if name.ends_with("c_proj") => 0.02 / 4.0,
                _ => 0.02,
            };
            assert!((rms - expected).abs() <= expected * 0.05, "{} {rms}", tensor.name);
        }
    }

    #[test]
    fn seeds_and_tensors_differ() {
        let list = list(2, true);
        assert_ne!(whole(&list, 1), whole(&list, 2));
        let values = whole(&list, 1);
        let at = |index: usize| {
            let range = list.tensors()[index].range();
            &values[range.start as usize..range.start as usize + 8]
        };
        assert_ne!(at(0), at(1));
    }

    /// Keeps saved runs and published digests valid: these bits may not change.
    #[test]
    fn first_initial_values_are_pinned() {
        let bits: Vec<u32> =
            whole(&list(1, true), 7)[..4].iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, [1011156384, 1008223150, 3167973448, 3143035400]);
    }

    proptest! {
        #[test]
        fn any_piece_has_the_bits_of_the_whole(seed: u64, a in 0.0..1.0f64, b in 0.0..1.0f64, tied: bool) {
            let list = list(2, tied);
            let all = whole(&list, seed);
            let at = |x: f64| (x * all.len() as f64) as usize;
            let (from, to) = (at(a.min(b)), at(a.max(b)));
            let mut piece = vec![f32::NAN; to - from];
            list.initialise(seed, from as u64, &mut piece);
            prop_assert_eq!(&piece[..], &all[from..to]);
        }
    }
}
