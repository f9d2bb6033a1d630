"""Trains the embedded model: a small Llama on the source of CPython's standard library.

    apt-get install python3-torch python3-numpy libpython3.11-stdlib && pip install tokenizers
    /usr/bin/python3 train.py --steps 2300 --out pystdlib

Data: the .py files of the installed library (PSF licence), without tests, generated tables and data modules. Whole modules, picked
by a hash of their path, are held out: one set for evaluation (eval.txt), one for calibration (calib.txt). Held-out modules that
repeat what a training module says are left out of both, and of the training.
The learning rate follows a cosine over --steps, and two runs end with the same bytes; or over --minutes of wall-clock time, so
that the run ends annealed on a machine of unknown speed, and the log states the steps that it reached.
"""
import argparse
import hashlib
import json
import math
import pathlib
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONFIG = dict(hidden=256, inter=768, layers=4, heads=4, kv_heads=2, head_dim=64, vocab=2048, context=256)
END = "<|endoftext|>"
SKIP = ("test", "tests", "idle_test", "encodings", "pydoc_data", "dist-packages", "site-packages", "__pycache__")


def read_modules(root):
    """All modules as (path, text), in an order fixed by the hash of the path."""
    modules = []
    for path in pathlib.Path(root).rglob("*.py"):
        relative = path.relative_to(root)
        if any(part in SKIP for part in relative.parts) or path.stat().st_size > 150_000:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if len(text) > 200:
            modules.append((str(relative), text))
    return sorted(modules, key=lambda m: hashlib.sha256(m[0].encode()).hexdigest())


def long_lines(text):
    return [line.strip() for line in text.split("\n") if len(line.strip()) >= 30]


def split(modules):
    """Held-out evaluation (about 150 KB) and calibration (about 150 KB) modules, and the rest.

    The library tells some things twice (chunk.py and wave.py, say): held-out modules of whose long lines more than 30 % stand in
    the training set too are dropped.
    """
    sets = {"eval": [], "calib": [], "train": []}
    for module in modules:
        for name, limit in (("eval", 150_000), ("calib", 150_000), ("train", 1 << 40)):
            if sum(len(text) for _, text in sets[name]) + len(module[1]) <= limit:
                sets[name].append(module)
                break
    known = {line for _, text in sets["train"] for line in long_lines(text)}
    for name in ("eval", "calib"):
        lines = [long_lines(text) for _, text in sets[name]]
        sets[name] = [m for m, found in zip(sets[name], lines) if sum(line in known for line in found) <= 0.3 * len(found)]
    return sets


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=CONFIG["vocab"], special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Llama(torch.nn.Module):
    """The Llama of Hugging Face, by the names of its checkpoint."""

    def __init__(self):
        super().__init__()
        c = CONFIG
        shapes = {"self_attn.q_proj": (c["heads"] * c["head_dim"], c["hidden"]),
                  "self_attn.k_proj": (c["kv_heads"] * c["head_dim"], c["hidden"]),
                  "self_attn.v_proj": (c["kv_heads"] * c["head_dim"], c["hidden"]),
                  "self_attn.o_proj": (c["hidden"], c["heads"] * c["head_dim"]),
                  "mlp.gate_proj": (c["inter"], c["hidden"]), "mlp.up_proj": (c["inter"], c["hidden"]),
                  "mlp.down_proj": (c["hidden"], c["inter"])}
        self.w = torch.nn.ParameterDict()
        self.add("model.embed_tokens.weight", torch.randn(c["vocab"], c["hidden"]) * 0.02)
        for layer in range(c["layers"]):
            for name, (rows, cols) in shapes.items():
                scale = 1 / math.sqrt(cols) / (math.sqrt(2 * c["layers"]) if name.endswith(("o_proj", "down_proj")) else 1)
                self.add(f"model.layers.{layer}.{name}.weight", torch.randn(rows, cols) * scale)
            for name in ("input_layernorm", "post_attention_layernorm"):
                self.add(f"model.layers.{layer}.{name}.weight", torch.ones(c["hidden"]))
        self.add("model.norm.weight", torch.ones(c["hidden"]))
        pair = torch.arange(c["head_dim"] // 2, dtype=torch.float64)
        angle = torch.outer(torch.arange(2048, dtype=torch.float64), 10000 ** (-2 * pair / c["head_dim"]))
        self.cos, self.sin = angle.cos(), angle.sin()

    def add(self, name, value):
        self.w[name.replace(".", "/")] = torch.nn.Parameter(value)

    def get(self, name):
        return self.w[name.replace(".", "/")]

    def forward(self, ids):
        c = CONFIG
        batch, tokens = ids.shape
        dtype = self.get("model.norm.weight").dtype
        cos, sin = self.cos[:tokens].to(dtype), self.sin[:tokens].to(dtype)
        mask = torch.full((tokens, tokens), -math.inf, dtype=dtype).triu(1)
        norm = lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w
        x = F.embedding(ids, self.get("model.embed_tokens.weight"))
        for layer in range(c["layers"]):
            p = lambda name: self.get(f"model.layers.{layer}.{name}.weight")
            heads = lambda y, n: y.view(batch, tokens, n, c["head_dim"]).transpose(1, 2)
            h = norm(x, p("input_layernorm"))
            q = rotate(heads(h @ p("self_attn.q_proj").T, c["heads"]), cos, sin)
            k = rotate(heads(h @ p("self_attn.k_proj").T, c["kv_heads"]), cos, sin)
            v = heads(h @ p("self_attn.v_proj").T, c["kv_heads"])
            k, v = (y.repeat_interleave(c["heads"] // c["kv_heads"], 1) for y in (k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(c["head_dim"]) + mask
            a = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, -1)
            x = x + a @ p("self_attn.o_proj").T
            h = norm(x, p("post_attention_layernorm"))
            x = x + (F.silu(h @ p("mlp.gate_proj").T) * (h @ p("mlp.up_proj").T)) @ p("mlp.down_proj").T
        return norm(x, self.get("model.norm.weight")) @ self.get("model.embed_tokens.weight").T


@torch.no_grad()
def evaluate(model, ids, limit=1 << 40):
    """Mean negative log-likelihood of the first `limit` tokens in windows of `context` inputs.

    A window's first input is END, the others are its own tokens but the last: every token is scored once.
    """
    context, total, count = CONFIG["context"], 0.0, 0
    for begin in range(0, min(len(ids), limit), context):
        piece = ids[begin:begin + context]
        inputs = torch.tensor(np.concatenate(([0], piece[:-1])).astype(np.int64))[None]
        total += F.cross_entropy(model(inputs)[0], torch.tensor(piece.astype(np.int64)), reduction="sum").item()
        count += len(piece)
    return total / count, count


def count_models(train, ids):
    """Mean negative log-likelihood of ids by what counting knows: a unigram (add one), and a bigram of the training tokens (absolute
    discount of 0.75, the rest by the unigram)."""
    vocab, discount = CONFIG["vocab"], 0.75
    train, ids = train.astype(np.int64), ids.astype(np.int64)
    unigram = np.bincount(train, minlength=vocab) + 1.0
    unigram /= unigram.sum()
    pairs = np.bincount(train[:-1] * vocab + train[1:], minlength=vocab * vocab).reshape(vocab, vocab)
    before, after = np.concatenate(([0], ids[:-1])), ids
    seen = np.maximum(pairs.sum(1)[before], 1)
    rest = np.where(pairs.sum(1)[before] > 0, discount * (pairs > 0).sum(1)[before] / seen, 1.0)
    bigram = np.maximum(pairs[before, after] - discount, 0) / seen + rest * unigram[after]
    return -np.log(unigram[ids]).mean(), -np.log(bigram).mean()


def save(model, tokenizer, folder):
    """A Hugging Face directory, weights rounded to bfloat16."""
    c = CONFIG
    folder.mkdir(parents=True, exist_ok=True)
    header, data = {}, b""
    for name, value in sorted(model.w.items()):
        raw = value.detach().to(torch.bfloat16).view(torch.int16).numpy().tobytes()
        header[name.replace("/", ".")] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    write = lambda name, value: (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": c["hidden"],
        "intermediate_size": c["inter"], "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"],
        "num_key_value_heads": c["kv_heads"], "head_dim": c["head_dim"], "vocab_size": c["vocab"],
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "attention_bias": False, "torch_dtype": "bfloat16"})
    write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 0})
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END,
                                    "add_bos_token": True, "clean_up_tokenization_spaces": False})
    tokenizer.save(str(folder / "tokenizer.json"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/usr/lib/python3.11")
    parser.add_argument("--out", default="pystdlib", type=pathlib.Path)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="length of the run; repeatable to the byte")
    length.add_argument("--minutes", type=float, help="length of the run by the clock")
    parser.add_argument("--batch", default=16, type=int)
    parser.add_argument("--rate", default=2e-3, type=float)
    parser.add_argument("--seed", default=20261201, type=int)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(2)  # sums are cut by thread
    torch.use_deterministic_algorithms(True)
    order = np.random.default_rng(args.seed)

    sets = split(read_modules(args.root))
    texts = {name: "".join(text for _, text in part) for name, part in sets.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("eval", "calib"):
        (args.out / f"{name}.txt").write_text(texts[name])
    tokenizer = train_tokenizer([text for _, text in sets["train"]])
    ids = {name: np.concatenate([np.array([0] + tokenizer.encode(text).ids, np.uint16) for _, text in part])
           for name, part in sets.items()}
    plain = np.array(tokenizer.encode(texts["eval"]).ids, np.uint16)
    log = open(args.out / "train.log", "w")
    say = lambda line: (print(line, flush=True), print(line, file=log, flush=True))
    for name, part in sets.items():
        say(f"{name}: {len(part)} modules, {len(texts[name].encode())} bytes, {len(ids[name])} tokens")
    unigram, bigram = count_models(ids["train"], plain)
    say(f"eval by counting: perplexity {math.exp(unigram):.2f} a token (unigram), {math.exp(bigram):.2f} (bigram)")

    model = Llama()
    say(f"parameters: {sum(p.numel() for p in model.parameters())}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.05)
    start, step, context, losses = time.time(), 0, CONFIG["context"], []
    while True:
        share = step / args.steps if args.steps else (time.time() - start) / (60 * args.minutes)
        if share >= 1:
            break
        rate = args.rate * min(1, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * share)) + 1e-5
        for group in optimizer.param_groups:
            group["lr"] = rate
        begins = order.integers(0, len(ids["train"]) - context - 1, args.batch)
        batch = torch.tensor(np.stack([ids["train"][b:b + context + 1] for b in begins]).astype(np.int64))
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % 100 == 0:
            say(f"step {step} tokens {step * args.batch * context} loss {np.mean(losses):.4f} rate {rate:.2e} "
                f"seconds {time.time() - start:.0f}")
            losses = []
        if step % 500 == 0:
            save(model, tokenizer, args.out)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    save(model, tokenizer, args.out)
    nll, count = evaluate(model, plain)
    size = len(tokenizer.decode(plain[:count].tolist()).encode())
    say(f"eval: perplexity {math.exp(nll):.4f} a token, {math.exp(nll * count / size):.4f} a byte, over {count} tokens "
        f"(windows of {context} inputs that begin with {END}, bf16 weights)")


if __name__ == "__main__":
    main()
