#!/usr/bin/env python3
"""Make tests/golden/serve/guides/blend.json: texts from the combined logits of two and three models, by transformers in float64.

    python tools/make_blend_goldens.py          (transformers 5.24, torch 2.15; CPU)

The served model is tests/golden/model/llama3; beside it are qwen3 (0) and mistral (1), which have as many ids. Cases of {prompt, own, models, weights,
plausibility, tokens, logprobs, law}: greedy texts by own log p + sum of weights log p_k, where p is at least plausibility of its largest value; the served
model's log-probabilities of their tokens; and the law (the distribution) of the first token at temperature 1. The cases are contrastive decoding by Li et al. and by O'Brien and
Lewis, DExperts, and proxy tuning.
"""
import json
import pathlib

import torch
import transformers

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"


@torch.no_grad()
def blended(served, beside, prompt, own, models, weights, plausibility, most):
    tokens, logprobs, law = [], [], None
    for _ in range(most):
        ids = torch.tensor([prompt + tokens])
        p, *others = (m(input_ids=ids, use_cache=False).logits[0, -1].log_softmax(-1) for m in [served] + [beside[k] for k in models])
        mixed = own * p + sum(w * q for w, q in zip(weights, others))
        mixed[p.exp() < plausibility * p.exp().max()] = -float("inf")
        law = mixed.softmax(-1).tolist() if law is None else law
        tokens.append(int(mixed.argmax()))
        logprobs.append(float(p[tokens[-1]]))
    return {"prompt": prompt, "own": own, "models": models, "weights": weights, "plausibility": plausibility, "tokens": tokens, "logprobs": logprobs, "law": law}


def main():
    torch.manual_seed(23)
    load = lambda name: transformers.AutoModelForCausalLM.from_pretrained(ROOT / "model" / name, dtype=torch.float64, attn_implementation="eager")
    served, beside = load("llama3"), [load("qwen3"), load("mistral")]
    draw = lambda n: torch.randint(3, 64, (n,)).tolist()
    cases = [blended(served, beside, draw(n), own, models, weights, plausibility, 16) for n, own, models, weights, plausibility in (
        (5, 1, [0], [-1], 0.1), (19, 1.5, [1], [-0.5], 0.2), (9, 1, [0, 1], [2, -2], 0), (30, 1, [1, 0], [1, -1], 0), (12, 0, [1], [1], 0), (7, 1, [0, 0], [3, -3], 0))]
    (ROOT / "serve/guides/blend.json").write_text(json.dumps(cases) + "\n")
    for c in cases:
        print(c["models"], c["weights"], c["tokens"], sorted(c["law"])[-3:])


main()
