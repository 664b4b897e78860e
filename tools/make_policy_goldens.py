#!/usr/bin/env python3
"""Make tests/golden/align/policy.txt: losses of reinforcement learning and their gradients, by TRL's own code in float64.

    python tools/make_policy_goldens.py          (trl 1.16, torch 2.15; CPU)

The statements of GRPOTrainer._compute_loss between the log-probabilities and the reduction are run unchanged, and so are those of
_generate_and_score_completions that compute the weights for a mismatch with the sampler.

A case: name, ratio, surrogate, reduction, low, high, dual, cap, max_tokens, kl, kl_ratio, correction, weight_low, weight_high, completions and tokens
of the step, number of completions, loss; then for each completion: n, advantage, whether it has old; n logp, old, ref, sampler, gradients.
"""
import ast
import inspect
import pathlib
import textwrap
import types

import torch
from trl.trainer import grpo_trainer

torch.set_num_threads(1)
MAX_TOKENS, LENGTHS = 16, [5, 3, 1, 0, 4]
CORRECTIONS = [None, "token_truncate", "sequence_truncate", "token_mask", "sequence_mask"]


def parse(method):
    return ast.parse(textwrap.dedent(inspect.getsource(method)))


def compiled(body):
    return compile(ast.Module(body, []), "grpo_trainer", "exec")


body = parse(grpo_trainer.GRPOTrainer._compute_loss).body[0].body
texts = [ast.unparse(s) for s in body]
begin = next(i for i, t in enumerate(texts) if t.startswith("advantages = inputs"))
end = next(i for i, t in enumerate(texts) if t.startswith("if self.loss_type in ['grpo', 'sapo']"))
loss_code = compiled(body[begin:end + 1])
weights_code = compiled([next(n for n in ast.walk(parse(grpo_trainer.GRPOTrainer._generate_and_score_completions)) if isinstance(n, ast.If)
                              and ast.unparse(n.test) == "self.use_vllm and self.vllm_importance_sampling_correction"
                              and "per_token_logps_diff" in ast.unparse(n))])

# Our reductions: 0 mean of sequences, 1 fixed length, 2 mean of tokens, 3 sums of sequences.
# name: (TRL's loss type, ratio of sequences, CISPO, reduction, low, high, dual, cap, kl, times the ratio, correction, its range, on policy)
CASES = {
    "grpo": ("grpo", 0, 0, 0, .2, .2, 0, 0, 0, 0, 0, 0, 0, 0),
    "grpo_on_policy": ("grpo", 0, 0, 0, .2, .2, 0, 0, 0, 0, 0, 0, 0, 1),
    "grpo_kl": ("grpo", 0, 0, 0, .2, .2, 0, 0, .04, 0, 0, 0, 0, 0),
    "grpo_kl_ratio": ("grpo", 0, 0, 0, .2, .2, 0, 0, .5, 1, 0, 0, 0, 0),
    "bnpo": ("bnpo", 0, 0, 2, .2, .2, 0, 0, 0, 0, 0, 0, 0, 0),
    "dr_grpo": ("dr_grpo", 0, 0, 1, .2, .2, 0, 0, 0, 0, 0, 0, 0, 0),
    "dapo": ("dapo", 0, 0, 2, .2, .28, 0, 0, 0, 0, 0, 0, 0, 0),
    "dapo_dual": ("dapo", 0, 0, 2, .2, .28, 1.5, 0, 0, 0, 0, 0, 0, 0),
    "gspo": ("grpo", 1, 0, 0, 3e-4, 4e-4, 0, 0, 0, 0, 0, 0, 0, 0),
    "gspo_wide": ("grpo", 1, 0, 0, .3, .4, 0, 0, .1, 1, 0, 0, 0, 0),
    "gspo_weights": ("grpo", 1, 0, 0, .3, .4, 0, 0, .1, 0, 1, .2, 1.5, 0),
    "cispo": ("cispo", 0, 1, 2, 0, 0, 0, 1.25, 0, 0, 0, 0, 0, 0),
    "cispo_sequence": ("cispo", 1, 1, 2, 0, 0, 0, 1.1, .1, 1, 1, .2, 2, 0),
    "luspo": ("luspo", 1, 0, 3, .3, .4, 0, 0, 0, 0, 0, 0, 0, 0),
    "token_truncate": ("dapo", 0, 0, 2, .2, .28, 0, 0, .1, 1, 1, .25, 1.25, 0),
    "sequence_truncate": ("dapo", 0, 0, 2, .2, .28, 0, 0, 0, 0, 2, 0, 1.5, 0),
    "token_mask": ("grpo", 0, 0, 0, .2, .2, 0, 0, .1, 0, 3, .75, 1.5, 0),
    "sequence_mask": ("dr_grpo", 0, 0, 1, .2, .2, 0, 0, 0, 0, 4, .5, 1.25, 0),
}


def make(name, kind, sequence, cispo, reduction, low, high, dual, cap, kl, kl_ratio, correction, w_low, w_high, on_policy):
    rows, width = len(LENGTHS), max(LENGTHS)
    mask = (torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]).double()
    advantages = (2 * torch.randn(rows, dtype=torch.float32)).double()
    old = -(3 * torch.rand(rows, width, dtype=torch.float32) + .5)
    shifted = [(old + .4 * torch.randn(rows, width, dtype=torch.float32)).clamp(max=-.01).double() for _ in range(3)]
    logp, ref, sampler = shifted[0].requires_grad_(), shifted[1], shifted[2]
    old = old.double()
    tokens = int(mask.sum())
    args = types.SimpleNamespace(delta=dual or None, use_bias_correction_kl=bool(kl_ratio), steps_per_generation=2)
    me = types.SimpleNamespace(
        args=args, loss_type=kind, epsilon_low=low, epsilon_high=cap if cispo else high, beta=kl, off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if sequence else "token", use_vllm=correction > 0, vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=CORRECTIONS[correction], vllm_importance_sampling_clip_min=w_low, vllm_importance_sampling_clip_max=w_high,
        model=types.SimpleNamespace(training=True), current_gradient_accumulation_steps=2, max_completion_length=MAX_TOKENS,
        accelerator=types.SimpleNamespace(num_processes=1))
    inputs = {"advantages": advantages, "ref_per_token_logps": ref, "num_items_in_batch": torch.tensor(tokens + 7)}
    if not on_policy:
        inputs["old_per_token_logps"] = old
    if correction:
        scope = {"self": me, "completion_mask": mask, "tool_mask": None, "old_per_token_logps": old, "sampling_per_token_logps": sampler}
        exec(weights_code, vars(grpo_trainer) | scope, scope)
        inputs["importance_sampling_ratio"] = scope["vllm_importance_sampling_ratio"]
    scope = {"self": me, "inputs": inputs, "mask": mask, "per_token_logps": logp, "entropy_mask": None}
    exec(loss_code, vars(grpo_trainer) | scope, scope)
    scope["loss"].backward()
    # Two micro-batches, of which this is one: the step has twice its completions. TRL's bnpo divides by the tokens of each.
    numbers = [sequence, cispo, reduction, low, high, dual, cap, MAX_TOKENS if reduction == 1 else 0, kl, kl_ratio, correction, w_low, w_high, 2 * rows,
               2 * tokens if kind == "bnpo" else tokens + 7, rows, scope["loss"].item()]
    for i, n in enumerate(LENGTHS):
        numbers += [n, advantages[i].item(), 1 - on_policy]
        for x in (logp, old, ref, sampler, logp.grad):
            numbers += x[i, :n].tolist()
    return name + " " + " ".join(f"{x:.12g}" for x in numbers)


torch.manual_seed(27)
out = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/align/policy.txt"
out.write_text("\n".join(make(name, *case) for name, case in CASES.items()) + "\n")
