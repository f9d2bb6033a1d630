"""Writes golden.json beside a model that train.py made: what PyTorch says in fp64 of the stored weights, for the tests of the runtime,
and how well the model knows the held-out text.

    /usr/bin/python3 golden.py pystdlib
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch
from tokenizers import Tokenizer

import train

PROMPT = "import os\n\ndef "
NEW_TOKENS = 32
SHORT = 1024  # tokens of eval.txt for a test that should be quick


def load(folder):
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    model = train.Llama()
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16
        model.get(name).data = torch.tensor(bits.view(np.float32)).reshape(entry["shape"])
    return model.double()


@torch.no_grad()
def greedy(model, prompt):
    """New ids, the logits behind the prompt, and the smallest lead that a chosen token had over the next best."""
    ids, first, lead = list(prompt), None, math.inf
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([ids]))[0, -1]
        first = logits if first is None else first
        top = logits.topk(2)
        lead = min(lead, (top.values[0] - top.values[1]).item())
        ids.append(top.indices[0].item())
    return ids[len(prompt):], first.tolist(), lead


def main():
    folder = pathlib.Path(sys.argv[1])
    model = load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = [0] + tokenizer.encode(PROMPT).ids
    ids, logits, lead = greedy(model, prompt)
    text = (folder / "eval.txt").read_text()
    tokens = np.array(tokenizer.encode(text).ids, np.uint16)
    modules = train.split(train.read_modules(sys.argv[2] if len(sys.argv) > 2 else "/usr/lib/python3.11"))["train"]
    known = np.concatenate([np.array([0] + tokenizer.encode(module).ids, np.uint16) for _, module in modules])
    perplexities = {"model": train.evaluate(model, tokens)[0]}
    perplexities["unigram"], perplexities["bigram"] = train.count_models(known, tokens)
    per_byte = len(tokens) / len(text.encode())
    golden = {
        "prompt": PROMPT, "prompt_ids": prompt, "ids": ids, "text": tokenizer.decode(ids), "smallest_lead": lead,
        "logits": [round(x, 7) for x in logits[:16]], "argmax": int(np.argmax(logits)), "largest_logit": max(map(abs, logits)),
        "eval": {"tokens": len(tokens), "first": tokens[:64].tolist(), "last": tokens[-64:].tolist(),
                 "sum": int(tokens.astype(np.int64).sum()), "ctx": train.CONFIG["context"],
                 "short": {"tokens": SHORT, "ppl": math.exp(train.evaluate(model, tokens, SHORT)[0]),
                           "bigram_ppl": math.exp(train.count_models(known, tokens[:SHORT])[1])},
                 "token_ppl": {name: round(math.exp(nll), 4) for name, nll in perplexities.items()},
                 "byte_ppl": {name: round(math.exp(nll * per_byte), 4) for name, nll in perplexities.items()}}}
    lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    (folder / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(golden["text"], golden["eval"]["token_ppl"], golden["eval"]["byte_ppl"], sep="\n")


main()
