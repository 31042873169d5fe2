"""Fine-tuning with plain PyTorch and transformers: what the command is compared with.

make DIR                       makes models, a tokenizer and data
train DIR MODEL DATA DTYPE     fine-tunes; prints a loss a step as JSON, saves to DIR/MODEL.torch
steps DIR MODEL FROM TO OUT    does steps FROM to TO of that training on tokens.npy, from the model in MODEL and, above 0, the
                               optimizer in MODEL.pt; prints the losses, saves the model to OUT and the optimizer to OUT.pt
compare ONE OTHER              prints the largest difference of their logits and weights as JSON
"""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)

STEPS, BATCH, ACCUMULATE, SEQ, RATE = 20, 2, 2, 24, 1e-3
TEXT = "The quick brown fox jumps over the lazy dog; then it sleeps. Pack my box with five dozen liquor jugs.\n"


def make(root):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    kinds = {
        "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
        "qwen3": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                      intermediate_size=64, max_position_embeddings=64),
    }
    for number, (kind, sizes) in enumerate(kinds.items()):
        torch.manual_seed(number)
        config = AutoConfig.for_model(kind, vocab_size=310, bos_token_id=None, eos_token_id=0, **sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / kind, max_shard_size="40KB")
        fast.save_pretrained(root / kind)
    tokens = fast(TEXT * 80)["input_ids"]
    numpy.save(root / "tokens.npy", numpy.array(tokens, dtype=numpy.uint16))
    numpy.array(tokens, dtype=numpy.uint32).tofile(root / "tokens.bin")
    words = TEXT.split()
    with open(root / "pairs.jsonl", "w") as lines:
        for number in range(97):
            prompt = " ".join(words[number % 7 : number % 7 + 3])
            completion = " " + " ".join(words[number % 5 : number % 5 + 1 + number % 4])
            lines.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


def rows(root, model, data):
    """Inputs and targets of each sequence, in the order of the data."""
    if data.endswith(".npy"):
        tokens = torch.from_numpy(numpy.load(root / data).astype(numpy.int64))
        for start in range(0, len(tokens) - SEQ, SEQ):
            yield tokens[start : start + SEQ], tokens[start + 1 : start + SEQ + 1]
        return
    tokenizer = AutoTokenizer.from_pretrained(root / model)
    for line in open(root / data):
        record = json.loads(line)
        prompt, completion = tokenizer(record["prompt"])["input_ids"], tokenizer(record["completion"])["input_ids"]
        tokens = prompt + completion + [tokenizer.eos_token_id]
        targets = [-100] * (len(prompt) - 1) + tokens[len(prompt) :]
        padding = SEQ - len(targets)
        yield torch.tensor(tokens[:-1] + [0] * padding), torch.tensor(targets + [-100] * padding)


def train(root, name, data, dtype):
    model = AutoModelForCausalLM.from_pretrained(root / name, dtype=getattr(torch, dtype))
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [dict(params=decay, weight_decay=0.01), dict(params=plain, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    all_rows, losses, at = list(rows(root, name, data)), [], 0
    for _ in range(STEPS):
        picked = [all_rows[(at + i) % len(all_rows)] for i in range(BATCH * ACCUMULATE)]
        at += BATCH * ACCUMULATE
        counted = sum(int((targets != -100).sum()) for _, targets in picked)
        loss = 0.0
        for first in range(0, len(picked), BATCH):
            inputs, targets = (torch.stack(side) for side in zip(*picked[first : first + BATCH]))
            logits = model(inputs).logits.float()
            part = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / counted
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    model.save_pretrained(root / f"{name}.torch")
    print(json.dumps(losses))


def steps(root, model_path, first, last, out):
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [dict(params=decay, weight_decay=0.01), dict(params=plain, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=0.5)
    if first > 0:
        optimizer.load_state_dict(torch.load(f"{model_path}.pt", weights_only=True))
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    else:
        for group in optimizer.param_groups:
            group["lr"] = RATE
    all_rows, losses = list(rows(root, None, "tokens.npy")), []
    for step in range(first, last):
        at = step * BATCH * ACCUMULATE
        picked = [all_rows[(at + i) % len(all_rows)] for i in range(BATCH * ACCUMULATE)]
        inputs, targets = (torch.stack(side) for side in zip(*picked))
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.save_pretrained(out)
    torch.save(optimizer.state_dict(), f"{out}.pt")
    print(json.dumps(losses))


def compare(one, other):
    first, second = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (one, other))
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        logits = (first(tokens).logits - second(tokens).logits).abs().max().item()
    weights = max((a - b).abs().max().item() for a, b in zip(first.parameters(), second.parameters()))
    text = AutoTokenizer.from_pretrained(other).decode(AutoTokenizer.from_pretrained(other)(TEXT)["input_ids"])
    print(json.dumps({"logits": logits, "weights": weights, "text": text == TEXT}))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "make":
        make(Path(arguments[0]))
    elif command == "train":
        train(Path(arguments[0]), *arguments[1:])
    elif command == "steps":
        steps(Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3]), arguments[4])
    else:
        compare(*arguments)
