#!/usr/bin/env python3
"""Make tests/golden/objective/<case>/: objectives over the log-probabilities of a golden model, by PyTorch and transformers in float64.

    python tools/make_objective_goldens.py          (transformers 5.23, torch 2.15; CPU)

The models and batches are those of tests/golden/model/<case> (make_model_goldens.py). A case is a folder:
    golden.safetensors      weights (B, T); logprobs (B, T), 0 where the label is ignored; reference (B, T): the log-probabilities of
                            DPO's reference; weighted_loss, dpo_loss (1)
    weighted/, dpo/         a model whose weights are the gradients: of sum(weights * cross-entropy); of DPO's loss (Rafailov et al. 2023,
                            arXiv:2305.18290, equation 7; beta 0.3, row 0 chosen, row 1 rejected)
and of llama3 with a score head (AutoModelForSequenceClassification, one label, pad_token_id PAD):
    score/                  the model
    score.safetensors       tokens (2, T); ends (2): index of the last token of each row; values (2): its score of the rows cut there and padded with PAD;
                            loss (1): of Bradley and Terry, row 0 chosen
    bradley_terry/          a model whose weights are the gradients of that loss
"""
import copy
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
BETA = 0.3
PAD = 3


def logprobs(model, tokens, labels):
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none")
    return -loss.view_as(labels)


def save_gradients(model, folder):
    twin = copy.deepcopy(model)
    for mine, other in zip(twin.parameters(), model.parameters()):
        mine.data = other.grad.clone()
    twin.to(torch.float32).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def make(case):
    torch.manual_seed(7)
    source, folder = ROOT / "model" / case, ROOT / "objective" / case
    folder.mkdir(parents=True, exist_ok=True)
    batch = load_file(source / "golden.safetensors")
    assert "doc_start" not in batch
    tokens, labels = batch["tokens"].long(), batch["labels"].long()
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, attn_implementation="eager")
    weights = torch.randn(labels.shape).float()
    counted = (labels >= 0).double()
    out = {"weights": weights}

    lp = logprobs(model, tokens, labels)
    loss = -(weights.double() * lp).sum()
    loss.backward()
    save_gradients(model, folder / "weighted")
    out["logprobs"] = lp.detach().float()
    out["weighted_loss"] = loss.detach().reshape(1)

    model.zero_grad()
    reference = (lp.detach() + 0.4 * torch.randn(labels.shape, dtype=torch.float64)).mul(counted).float()
    policy = logprobs(model, tokens, labels).sum(1)
    margin = (policy[0] - policy[1]) - (reference[0].double().sum() - reference[1].double().sum())
    loss = -F.logsigmoid(BETA * margin)
    loss.backward()
    save_gradients(model, folder / "dpo")
    out["reference"] = reference
    out["dpo_loss"] = loss.detach().reshape(1)
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "golden.safetensors")
    print(case, float(out["weighted_loss"]), float(out["dpo_loss"]))


def make_score(case):
    torch.manual_seed(8)
    source, folder = ROOT / "model" / case, ROOT / "objective" / case
    tokens = load_file(source / "golden.safetensors")["tokens"].long()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        source, num_labels=1, pad_token_id=PAD, dtype=torch.float64, attn_implementation="eager"
    )
    model.score.weight.data = (0.2 * torch.randn(model.score.weight.shape)).double()
    ends = torch.tensor([tokens.shape[1] - 4, tokens.shape[1] - 1])
    tokens[tokens == PAD] = PAD + 1
    tokens[0, ends[0] + 1 :] = PAD
    values = model(input_ids=tokens, attention_mask=(tokens != PAD).long()).logits.squeeze(-1)
    loss = -F.logsigmoid(values[0] - values[1])
    loss.backward()
    save_gradients(model, folder / "bradley_terry")
    model.to(torch.float32).save_pretrained(folder / "score")
    out = {"tokens": tokens.int(), "ends": ends.int(), "values": values.detach(), "loss": loss.detach().reshape(1)}
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "score.safetensors")
    print(case, values.tolist(), float(loss))


for name in ("llama3", "gemma3"):
    make(name)
make_score("llama3")
