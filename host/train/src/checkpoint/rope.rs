//! Rotary positions in `config.json`: `rope_parameters`, or `rope_theta` and `rope_scaling` as older files have them.

use serde_json::{Map, Value, json};

use super::config::Keys;
use crate::error::Result;
use crate::model::{Rope, RopeScaling};

/// Base of the wavelengths where a file has none.
const THETA: f64 = 10_000.0;

/// `positions`: the model's, which count as the trained length where a scaling does not name one.
pub(super) fn read(keys: &Keys<'_>, positions: u32) -> Result<Rope> {
    let none = Map::new();
    let old = keys.get("rope_scaling").and_then(Value::as_object);
    let new = keys.get("rope_parameters").and_then(Value::as_object);
    let own = Keys { path: keys.path.clone(), keys: new.or(old).unwrap_or(&none) };
    let theta = own.number("rope_theta")?.or(keys.number("rope_theta")?).unwrap_or(THETA);
    if own.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(keys.error("partial_rotary_factor is not supported".into()));
    }
    let kind = own.get("rope_type").or(own.get("type")).and_then(Value::as_str);
    let need = |key: &str| {
        let missing = || keys.error(format!("{key} of the rotary positions is missing"));
        own.number(key)?.ok_or_else(missing)
    };
    let original = match own.number("original_max_position_embeddings")? {
        Some(tokens) => tokens as u32,
        None => positions,
    };
    let scaling = match kind.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "dynamic" => RopeScaling::Dynamic { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
            original,
        },
        "yarn" => {
            let factor = match own.number("factor")? {
                Some(factor) => factor,
                None => f64::from(positions) / f64::from(original.max(1)),
            };
            RopeScaling::Yarn {
                factor,
                beta_fast: own.number("beta_fast")?.unwrap_or(32.0),
                beta_slow: own.number("beta_slow")?.unwrap_or(1.0),
                attention_factor: attention_factor(&own, factor)?,
                original,
                truncate: own.flag("truncate", true)?,
            }
        }
        other => {
            return Err(keys.error(format!(
                "rotary positions of the kind {other:?} are not known; known are default, linear, dynamic, llama3, yarn"
            )));
        }
    };
    Ok(Rope { theta, scaling })
}

/// YaRN's factor of the attention (Peng et al. 2023, equation 22): 0.1 ln(factor) + 1, where none is given.
fn attention_factor(keys: &Keys<'_>, factor: f64) -> Result<f64> {
    if let Some(given) = keys.number("attention_factor")? {
        return Ok(given);
    }
    let of = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    Ok(match (keys.number("mscale")?, keys.number("mscale_all_dim")?) {
        (Some(one), Some(all)) if one > 0.0 && all > 0.0 => of(one) / of(all),
        _ => of(1.0),
    })
}

/// As transformers reads it.
pub(super) fn write(rope: &Rope) -> Value {
    let mut keys = match rope.scaling {
        RopeScaling::None => json!({"rope_type": "default"}),
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Dynamic { factor } => json!({"rope_type": "dynamic", "factor": factor}),
        RopeScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            attention_factor,
            original,
            truncate,
        } => {
            json!({
                "rope_type": "yarn",
                "factor": factor,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "attention_factor": attention_factor,
                "original_max_position_embeddings": original,
                "truncate": truncate,
            })
        }
    };
    if let Value::Object(keys) = &mut keys {
        keys.insert("rope_theta".into(), json!(rope.theta));
    }
    keys
}

/// The scaling alone, as `rope_scaling`; `None` where there is none.
pub(super) fn write_scaling(rope: &Rope) -> Option<Value> {
    let mut keys = write(rope);
    if let Value::Object(keys) = &mut keys {
        keys.remove("rope_theta");
    }
    (rope.scaling != RopeScaling::None).then_some(keys)
}
