"""Make tests/golden/serve/shift.json: continuations of prompts with context shift, by transformers.

    build/lateen convert tests/golden/stories260k/stories260K.bin FOLDER --dtype fp32
    python tools/make_shift_goldens.py FOLDER          (transformers 5.x, torch; CPU, float64)

The model is stories260K with a context of 64 tokens. Each token is the most likely one after the remaining tokens, which are all computed again. When there are 64
tokens, llama-server's rule drops some (tools/server/server-context.cpp): with n_past = 63, n_keep at most 60, half of n_past - n_keep after the
first n_keep, or n_discard. A prompt that does not fit loses blocks of half of (context - n_keep) after these, as few as possible.
Only cases whose best two logits differ by over 1e-3 at each token are kept, so that float32 chooses the same.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT = 64
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).double().eval()
start = [1, 403, 407, 261, 378]  # "Once upon a time"


def follow(ids, n_keep, n_discard, n):
    keep = len(ids) if n_keep < 0 else n_keep
    if len(ids) >= CONTEXT:
        keep = min(keep, CONTEXT - 4)
        block = (CONTEXT - keep) // 2
        ids = ids[:keep] + ids[keep + (len(ids) - keep - block) // block * block:]
        keep = len(ids) if n_keep < 0 else n_keep
    out, margin = [], 1e9
    done = None  # Keys and values of ids[:-1]; None: the context was shifted.
    for _ in range(n):
        with torch.no_grad():
            r = model(torch.tensor([ids if done is None else ids[-1:]]), past_key_values=done, use_cache=True)
        best, done = r.logits[0, -1].topk(2), r.past_key_values
        margin = min(margin, (best.values[0] - best.values[1]).item())
        out.append(best.indices[0].item())
        ids = ids + out[-1:]
        if len(ids) == CONTEXT:
            kept = min(keep, CONTEXT - 4)
            left = CONTEXT - 1 - kept
            drop = min(n_discard, left) if n_discard > 0 else left // 2
            ids, done = ids[:kept] + ids[kept + drop:], None
    return out, margin


# A greedy text that never ends, so that ids beyond the end of text follow, too.
long = start + follow(start, 0, 0, 150)[0]
cases = []
for prompt in (start, long[:63], long[:120]):
    for n_keep, n_discard in ((1, 0), (5, 0), (5, 10), (5, 200), (-1, 0)):
        if n_keep < 0 and len(prompt) > 60:
            continue
        out, margin = follow(prompt, n_keep, n_discard, 100)
        print(len(prompt), n_keep, n_discard, margin)
        if margin > 1e-3:
            cases.append({"prompt": prompt, "n_keep": n_keep, "n_discard": n_discard, "tokens": out})
with open(ROOT / "tests/golden/serve/shift.json", "w") as f:
    f.write("[" + ",\n ".join(json.dumps(c) for c in cases) + "]\n")
