"""Writes golden.json beside a model that train.py made: what PyTorch says in fp32, for the tests of the C++ runtime.

    python3 golden.py pystdlib
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np
import torch
from tokenizers import Tokenizer

from train import Llama, evaluate

PROMPT = "import os\n\ndef "


def load(folder):
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    model = Llama()
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16
        model.get(name).data = torch.tensor(bits.view(np.float32)).reshape(entry["shape"])
    return model


@torch.no_grad()
def main():
    folder = pathlib.Path(sys.argv[1])
    model = load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = [0] + tokenizer.encode(PROMPT).ids
    ids, margin = list(prompt), math.inf
    first = None
    for _ in range(32):
        logits = model(torch.tensor([ids]))[0, -1]
        first = logits if first is None else first
        top = logits.topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        ids.append(top.indices[0].item())
    text = np.array(tokenizer.encode((folder / "eval.txt").read_text()).ids, np.uint16)
    nll, count = evaluate(model, text, 4096)
    golden = {"prompt": PROMPT, "prompt_ids": prompt, "ids": ids[len(prompt):], "smallest_margin": margin,
              "logits": [round(x, 6) for x in first[:16].tolist()], "eval_ids": text[:64].tolist(),
              "ppl": math.exp(nll), "ppl_tokens": count, "ppl_ctx": 256, "text": tokenizer.decode(ids[len(prompt):])}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(golden["text"], margin, golden["ppl"])


main()
