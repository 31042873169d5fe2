"""Models with random weights, made and run by transformers: what the Rust side is compared with.

make DIR    makes one model a case, with tokens, logits, loss and gradients
check DIR   loads what was saved beside each model again, and compares weights and logits
"""

import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

SIZES = dict(
    hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=80,
    vocab_size=101, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
)
GPT2 = dict(n_embd=48, n_layer=3, n_head=6, vocab_size=101, n_positions=64, bos_token_id=None, eos_token_id=None,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
CASES = {
    "gpt2": ("gpt2", GPT2),
    "gpt2-untied": ("gpt2", GPT2 | dict(tie_word_embeddings=False, activation_function="gelu", n_inner=100)),
    "llama": ("llama", SIZES),
    "llama-biases": ("llama", SIZES | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "llama-3": ("llama", SIZES | dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
    "llama-linear": ("llama", SIZES | dict(rope_parameters=dict(
        rope_type="linear", rope_theta=10000.0, factor=4.0), num_key_value_heads=6)),
    "llama-dynamic": ("llama", SIZES | dict(max_position_embeddings=20, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, factor=2.0))),
    "llama-yarn": ("llama", SIZES | dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16))),
    "mistral": ("mistral", SIZES | dict(sliding_window=7)),
    "mistral-full": ("mistral", SIZES | dict(sliding_window=None, head_dim=16, num_key_value_heads=1)),
    "qwen2": ("qwen2", SIZES | dict(tie_word_embeddings=True)),
    "qwen2-windows": ("qwen2", SIZES | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": ("qwen3", SIZES | dict(head_dim=16)),
    "qwen3-tied": ("qwen3", SIZES | dict(head_dim=8, tie_word_embeddings=True, attention_bias=True)),
}


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)


def make(root):
    for number, (name, (kind, sizes)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), attn_implementation="eager")
        with torch.no_grad():
            # Larger than any initial weights, and nothing at 0 or 1: every tensor shows in the logits.
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
        model.save_pretrained(root / name, max_shard_size="30KB" if number % 2 else "5GB")
        tokens = torch.randint(0, 101, (3, 40))
        targets = torch.randint(0, 101, (3, 40))
        targets[0, :9] = -100
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        expected = {f"gradient.{key}": value.grad for key, value in model.named_parameters()}
        expected |= dict(tokens=tokens, targets=targets, logits=logits.detach(), loss=loss.detach().reshape(1))
        save_file({key: value.contiguous() for key, value in expected.items()}, root / f"{name}.expected")


def check(root):
    for name in CASES:
        expected = load_file(root / f"{name}.expected")
        tokens = expected["tokens"]
        original = load(root / name)
        for dtype, worst in (("fp32", 0.0), ("bf16", 0.004)):
            saved = load(root / f"{name}.saved-{dtype}")
            for (key, own), (other_key, other) in zip(original.named_parameters(), saved.named_parameters()):
                assert key == other_key, (name, key, other_key)
                assert ((own - other).abs() <= worst * own.abs()).all(), (name, dtype, key)
        with torch.no_grad():
            logits = load(root / f"{name}.saved-fp32")(tokens).logits
            # Made anew from what was saved, not from what the original's config.json had.
            written = load(root / f"{name}.written")(tokens).logits
        worst = (logits - expected["logits"]).abs().max().item()
        assert worst == 0.0, (name, worst)
        worst = (written - expected["logits"]).abs().max().item()
        assert worst <= 1e-5, (name, worst)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](Path(sys.argv[2]))
