//! The tensors of a GPT-2 model as one flat vector, and their initial values.

use std::ops::Range;

use super::shape::Shape;
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

/// One named tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// GPT-2's name, for example `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Sizes; matrices are stored input-major (`[in, out]`), as GPT-2 checkpoints have them.
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

/// Every tensor of a model in registration order (`wte`, `wpe`, `h.0.…`, …, `ln_f.…`, and `lm_head.weight` when untied).
///
/// The flat vector is group-major: first all tensors with weight decay in registration order, then all without. So a parameter
/// group is one range, and the tensors of a block are one range in each group.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorList {
    shape: Shape,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors` in flat order.
    flat: Vec<usize>,
    decay_elements: u64,
    elements: u64,
}

impl TensorList {
    /// The tensors of `shape`.
    pub fn new(shape: Shape) -> Result<Self> {
        shape.validate()?;
        let mut tensors = registration(&shape);
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
        Ok(Self { shape, tensors, flat, decay_elements, elements })
    }

    /// The model's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
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
fn registration(shape: &Shape) -> Vec<TensorInfo> {
    let hidden = u64::from(shape.hidden);
    let vocab = u64::from(shape.vocab);
    let normal = Initial::Normal(INITIAL_STD);
    // Residual projections are scaled by the number of residual additions (GPT-2, section 2.3).
    let residual = Initial::Normal(INITIAL_STD / (2.0 * f64::from(shape.layers)).sqrt());
    let mut list = Vec::with_capacity(shape.layers as usize * 12 + 5);
    let mut add = |name: String, shape: Vec<u64>, initial| {
        list.push(TensorInfo { name, decay: shape.len() > 1, shape, initial, flat_start: 0 });
    };
    add("wte.weight".into(), vec![vocab, hidden], normal);
    add("wpe.weight".into(), vec![u64::from(shape.seq), hidden], normal);
    for layer in 0..shape.layers {
        let mut add = |name: &str, shape, initial| add(format!("h.{layer}.{name}"), shape, initial);
        add("ln_1.weight", vec![hidden], Initial::Ones);
        add("ln_1.bias", vec![hidden], Initial::Zeros);
        add("attn.c_attn.weight", vec![hidden, 3 * hidden], normal);
        add("attn.c_attn.bias", vec![3 * hidden], Initial::Zeros);
        add("attn.c_proj.weight", vec![hidden, hidden], residual);
        add("attn.c_proj.bias", vec![hidden], Initial::Zeros);
        add("ln_2.weight", vec![hidden], Initial::Ones);
        add("ln_2.bias", vec![hidden], Initial::Zeros);
        add("mlp.c_fc.weight", vec![hidden, 4 * hidden], normal);
        add("mlp.c_fc.bias", vec![4 * hidden], Initial::Zeros);
        add("mlp.c_proj.weight", vec![4 * hidden, hidden], residual);
        add("mlp.c_proj.bias", vec![hidden], Initial::Zeros);
    }
    add("ln_f.weight".into(), vec![hidden], Initial::Ones);
    add("ln_f.bias".into(), vec![hidden], Initial::Zeros);
    if !shape.tied {
        add("lm_head.weight".into(), vec![vocab, hidden], normal);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
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
                ["wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight"]
            );
            assert_eq!(names.contains(&"lm_head.weight"), !tied);
            assert_eq!(names.last(), Some(&"ln_f.bias"));
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
