//! The kernels give the bits that NumPy gives (`oracle/optimizer.py` wrote the file they are compared with).

use nearfield_runtime::kernels::{GradientRef, Isa, Moments, Scalars, Segment, WeightsOut, update};
use nearfield_runtime::types::{HyperParameters, Optimizer};

const UNSCALE: f32 = 0.125;

/// The bits that follow the name at the start of a line.
fn words(line: &str, name: &str) -> Vec<u32> {
    let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line:?} is no line of {name}"));
    rest.split_whitespace()
        .map(|word| u32::from_str_radix(word, 16).expect("hexadecimal"))
        .collect()
}

fn floats(line: &str, name: &str) -> Vec<f32> {
    words(line, name).into_iter().map(f32::from_bits).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn three_steps_of_every_rule_equal_numpy_bit_for_bit() {
    let text = include_str!("oracle/optimizer.txt");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let cases = lines.chunks(9);
    assert_eq!(cases.len(), 8, "four rules, each with and without weight decay");
    for case in cases {
        let [head, p_line, g1, g2, g3, p_after, m_after, v_after, h_after] = case else {
            panic!("a case has nine lines, not {}", case.len());
        };
        let mut head_words = head.split(' ').skip(1);
        let name = head_words.next().expect("the rule's name");
        let weight_decay = head_words.next().expect("the decay").parse().expect("a number");
        let kind = [Optimizer::Adam, Optimizer::Adamw, Optimizer::Adagrad, Optimizer::SgdMomentum]
            .into_iter()
            .find(|kind| kind.name() == name)
            .expect("a rule of the runtime");
        let hyper = HyperParameters { lr: 2e-3, weight_decay, ..HyperParameters::default() };
        for &isa in Isa::available() {
            let mut p = floats(p_line, "p");
            let (mut m, mut v) = (vec![0.0; p.len()], vec![0.0; p.len()]);
            let mut half = vec![0; p.len()];
            for (g, step) in [g1, g2, g3].into_iter().zip(1..) {
                let scalars = Scalars::new(kind, &hyper, step, UNSCALE);
                let g = floats(g, "g");
                let segment = Segment { elements: g.len(), scalars };
                let (with_m, with_v) = (kind != Optimizer::Adagrad, kind != Optimizer::SgdMomentum);
                let moments = Moments::Fp32 {
                    m: with_m.then_some(&mut m[..]),
                    v: with_v.then_some(&mut v[..]),
                };
                let out = WeightsOut::Fp16(&mut half);
                update(None, isa, kind, &[segment], GradientRef::Fp32(&g), &mut p, moments, out, 0)
                    .expect("the arrays fit");
            }
            assert_eq!(bits(&p), words(p_after, "p"), "p of {head} on {isa:?}");
            assert_eq!(bits(&m), words(m_after, "m"), "m of {head} on {isa:?}");
            assert_eq!(bits(&v), words(v_after, "v"), "v of {head} on {isa:?}");
            let half: Vec<u32> = half.into_iter().map(u32::from).collect();
            assert_eq!(half, words(h_after, "h"), "fp16 copy of {head} on {isa:?}");
        }
    }
}
