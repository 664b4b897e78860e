#!/usr/bin/env python3
"""Make tests/golden/serve/guides/: steering vectors and beam search, by PyTorch and transformers in float64.

    python tools/make_guide_goldens.py          (transformers 5.24, torch 2.15; CPU)

The model is tests/golden/model/llama3.
    calm.safetensors, odd.safetensors   vectors direction.N; odd has only the last layer, in BF16
    steer.json      tokens; cases of {vector, scale, logprobs}: the log-probability of each token but the first, with a hook that adds
                    scale * direction.N to the output of layer N
    ../reward, ../classify  models with score heads of 1 and 3 values over 512 ids (those of stories260K's tokenizer)
    scores.json     per model rows of {ids, values, mean, last}: the values of the head at the last token; embeddings of length 1
    guidance.json   cases of {prompt, negative, scale, plausibility, tokens, logprobs}: greedy texts by classifier-free guidance, and the plain model's
                    log-probabilities of their tokens
    beam.json       cases of {prompt, width, length_penalty, early_stopping, max_tokens, eos, tokens, scores}: generate(num_beams=width,
                    num_return_sequences=width), each text up to its end, with sequences_scores
"""
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
OUT = ROOT / "serve/guides"


def steer(model, tokens):
    C, L = model.config.hidden_size, model.config.num_hidden_layers
    calm = {f"direction.{n}": torch.randn(C) for n in range(L)}
    odd = {f"direction.{L - 1}": torch.randn(1, C).bfloat16()}
    save_file(calm, OUT / "calm.safetensors")
    save_file(odd, OUT / "odd.safetensors")
    cases = []
    for name, vector, scale in (("calm", calm, 0.0), ("calm", calm, 0.5), ("calm", calm, -2.0), ("odd", odd, 1.5)):
        hooks = []
        for key, v in vector.items():
            def add(module, args, out, v=v):
                return out + scale * v.double().view(-1)
            hooks.append(model.model.layers[int(key.split(".")[1])].register_forward_hook(add))
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        for h in hooks:
            h.remove()
        lp = logits.log_softmax(-1)
        cases.append({"vector": name, "scale": scale, "logprobs": [float(lp[i, t]) for i, t in enumerate(tokens[1:])]})
    return {"tokens": tokens, "cases": cases}


def beam(model, prompt, width, penalty, early, most, eos):
    out = model.generate(torch.tensor([prompt]), num_beams=width, num_return_sequences=width, max_new_tokens=most, do_sample=False, length_penalty=penalty,
                         early_stopping=early, eos_token_id=eos, pad_token_id=0, output_scores=True, return_dict_in_generate=True)
    rows = []
    for row in out.sequences.tolist():
        new = row[len(prompt):]
        ends = [i for i, t in enumerate(new) if t in eos]
        rows.append(new[:ends[0] + 1] if ends else new[:most])
    return {"prompt": prompt, "width": width, "length_penalty": penalty, "early_stopping": early, "max_tokens": most, "eos": eos, "tokens": rows,
            "scores": [float(s) for s in out.sequences_scores]}


def guided(model, prompt, negative, scale, plausibility, most):
    out, logprobs = [], []
    for _ in range(most):
        c, u = (model(input_ids=torch.tensor([p + out]), use_cache=False).logits[0, -1].log_softmax(-1) for p in (prompt, negative or prompt[-1:]))
        mixed = u + scale * (c - u)
        if plausibility > 0:
            mixed[c.exp() < plausibility * c.exp().max()] = -float("inf")
        out.append(int(mixed.argmax()))
        logprobs.append(float(c[out[-1]]))
    return {"prompt": prompt, "negative": negative, "scale": scale, "plausibility": plausibility, "tokens": out, "logprobs": logprobs}


def judge(name, labels):
    config = transformers.LlamaConfig(vocab_size=512, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                      max_position_embeddings=512, initializer_range=0.5, pad_token_id=None, bos_token_id=1, eos_token_id=2,
                                      id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)}, num_labels=len(labels))
    folder = ROOT / "serve" / name
    transformers.LlamaForSequenceClassification(config).bfloat16().save_pretrained(folder)
    model = transformers.LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
    rows = []
    for n in (3, 11, 40):
        ids = [1] + torch.randint(3, 512, (n,)).tolist()
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        unit = lambda x: [float(v) for v in x / x.norm()]
        rows.append({"ids": ids, "values": [float(x) for x in model(torch.tensor([ids])).logits[0]], "mean": unit(hidden.mean(0)), "last": unit(hidden[-1])})
    return rows


@torch.no_grad()
def main():
    torch.manual_seed(11)
    OUT.mkdir(parents=True, exist_ok=True)
    source = ROOT / "model/llama3"
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, attn_implementation="eager")
    model.generation_config = transformers.GenerationConfig()
    V = model.config.vocab_size
    tokens = torch.randint(3, V, (20,)).tolist()
    (OUT / "steer.json").write_text(json.dumps(steer(model, tokens), indent=1) + "\n")
    cases = []
    for i, (width, penalty, early, most, n_eos) in enumerate([(2, 1.0, False, 8, 1), (3, 1.0, False, 12, 1), (4, 0.0, False, 16, 2), (4, 2.0, "never", 16, 3), (5, -1.0, False, 12, 2),
                                                               (4, 1.0, True, 16, 4), (8, 1.0, False, 20, 8), (2, 0.5, "never", 24, 2)]):
        prompt = torch.randint(3, V, (5 + i,)).tolist()
        # Endings that occur in the search: the most likely first tokens of its first texts.
        first = beam(model, prompt, width, penalty, early, most, [V - 1])
        met = [t for row in first["tokens"] for t in row[2:]]
        eos = sorted(set(met), key=lambda t: (-met.count(t), t))[:n_eos]
        cases.append(beam(model, prompt, width, penalty, early, most, eos))
    (OUT / "beam.json").write_text(json.dumps(cases) + "\n")
    scores = {"reward": judge("reward", ["LABEL_0"]), "classify": judge("classify", ["calm", "stormy", "neither"])}
    (OUT / "scores.json").write_text(json.dumps(scores) + "\n")
    draw = lambda n: torch.randint(3, V, (n,)).tolist()
    guides = [guided(model, draw(n), draw(m), scale, plausibility, 20) for n, m, scale, plausibility in ((6, 9, 1.5, 0), (18, 3, 3, 0.1), (5, 30, 0, 0), (7, 0, -1, 0), (20, 20, 10, 0.5))]
    (OUT / "guidance.json").write_text(json.dumps(guides) + "\n")
    for c in cases:
        print(c["width"], c["length_penalty"], c["early_stopping"], [len(r) for r in c["tokens"]], c["eos"], c["scores"][:3])


main()
