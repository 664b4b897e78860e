#!/usr/bin/env python3
"""Write tests/golden/draft_head: a tiny Llama, an EAGLE-3 head trained for it, the head's logits at each step of a draft, and the numbers of accepted draft tokens for a greedy text.

usage: make_draft_head_goldens.py    (from the repository's root; needs torch and transformers)

The head is written out here from the paper (Li et al. 2025, arXiv:2503.01840) and the names of the published folders. The model is transformers' Llama with random
weights. All weights are rounded to BF16 and used in F32. expected.safetensors has tokens (N + 1), whose last one the model has not run; logits (STEPS, draft
vocabulary) and drafts (STEPS) after them; text (TEXT), the model's greedy continuation of the first N tokens; and accepted_at (MOST), how many draft tokens of each
place were accepted while that text was written with drafts of MOST tokens, of `drafted` in all."""
import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path("tests/golden/draft_head")
WIDTH, HEADS, GROUPS, DIM, FFN, LAYERS, VOCAB, DRAFT_VOCAB = 32, 4, 2, 8, 48, 8, 80, 48
TOKENS, STEPS, MOST, TEXT, EPS, THETA = 15, 5, 4, 120, 1e-5, 10000.0
TRAIN_STEPS, BATCH, LENGTH = 300, 192, 32
torch.manual_seed(11)
torch.set_num_threads(2)


def rounded(*shape, scale):
    return (torch.randn(*shape) * scale).bfloat16()


def rmsnorm(x, gain):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * gain


def rotate(x, positions):  # (N, heads, DIM)
    angles = positions[:, None].float() / THETA ** (torch.arange(0, DIM, 2).float() / DIM)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    low, high = x[..., : DIM // 2], x[..., DIM // 2 :]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def run_head(w, embedding, tokens, hidden):
    """Run rows of the head: token[p + 1] and the hidden state of p give `last` of p. (..., N), (..., N, WIDTH)"""
    layer, n = "midlayer.", tokens.shape[-1]
    positions, before = torch.arange(n), tokens.shape[:-1]
    both = torch.cat([rmsnorm(embedding[tokens], w[layer + "input_layernorm.weight"]), rmsnorm(hidden, w[layer + "hidden_norm.weight"])], -1)
    q, k, v = ((both @ w[f"{layer}self_attn.{name}_proj.weight"].T).view(*before, n, -1, DIM) for name in "qkv")
    q, k = rotate(q, positions), rotate(k, positions)
    k, v = (x.repeat_interleave(HEADS // GROUPS, -2) for x in (k, v))
    scores = torch.einsum("...qhd,...khd->...hqk", q, k) / math.sqrt(DIM)
    scores = scores.masked_fill(positions[None] > positions[:, None], -math.inf).softmax(-1)
    x = hidden + torch.einsum("...hqk,...khd->...qhd", scores, v).reshape(*before, n, -1) @ w[layer + "self_attn.o_proj.weight"].T
    y = rmsnorm(x, w[layer + "post_attention_layernorm.weight"])
    y = torch.nn.functional.silu(y @ w[layer + "mlp.gate_proj.weight"].T) * (y @ w[layer + "mlp.up_proj.weight"].T)
    return x + y @ w[layer + "mlp.down_proj.weight"].T


def logits_of(w, last):
    return rmsnorm(last, w["norm.weight"]) @ w["lm_head.weight"].T


def run_target(target, tokens, w):
    """Logits, and the fused hidden states: hidden_states[i] enters layer i."""
    out = target(tokens, output_hidden_states=True)
    states = torch.cat([out.hidden_states[i] for i in (2, LAYERS // 2, LAYERS - 3)], -1)
    return out.logits, states @ w["fc.weight"].T


def draft(w, embedding, text, fused, ids, steps):
    """Logits and tokens of `steps` draft tokens after text, whose last token has no fused hidden state."""
    tokens, hidden, logits, drafts = list(text[1:]), fused[: len(text) - 1], [], []
    for _ in range(steps):
        last = run_head(w, embedding, torch.tensor(tokens), hidden)[-1]
        logits.append(logits_of(w, last))
        drafts.append(int(ids[logits[-1].argmax()]))
        tokens.append(drafts[-1])
        hidden = torch.cat([hidden, last[None]])
    return logits, drafts


def make_target():
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=DIM, intermediate_size=FFN, num_hidden_layers=LAYERS,
                         vocab_size=VOCAB, max_position_embeddings=256, rms_norm_eps=EPS, rope_theta=THETA, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.4 if name in ("lm_head.weight", "model.embed_tokens.weight") else 0.12
            p.copy_(1 + rounded(*p.shape, scale=0.1) if p.dim() == 1 else rounded(*p.shape, scale=scale))
    model.bfloat16().save_pretrained(OUT / "target")
    (OUT / "target" / "generation_config.json").unlink(missing_ok=True)
    # The model is read again, because bfloat16() has rounded the angles of the rotation, too.
    return LlamaForCausalLM.from_pretrained(OUT / "target", dtype=torch.float32).eval()


def random_head():
    layer = "midlayer."
    weights = {"fc.weight": rounded(WIDTH, 3 * WIDTH, scale=0.1), "norm.weight": 1 + rounded(WIDTH, scale=0.1), "lm_head.weight": rounded(DRAFT_VOCAB, WIDTH, scale=0.3),
               layer + "self_attn.q_proj.weight": rounded(HEADS * DIM, 2 * WIDTH, scale=0.2), layer + "self_attn.k_proj.weight": rounded(GROUPS * DIM, 2 * WIDTH, scale=0.2),
               layer + "self_attn.v_proj.weight": rounded(GROUPS * DIM, 2 * WIDTH, scale=0.2), layer + "self_attn.o_proj.weight": rounded(WIDTH, HEADS * DIM, scale=0.2),
               layer + "mlp.gate_proj.weight": rounded(FFN, WIDTH, scale=0.2), layer + "mlp.up_proj.weight": rounded(FFN, WIDTH, scale=0.2),
               layer + "mlp.down_proj.weight": rounded(WIDTH, FFN, scale=0.2)}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"{layer}{name}.weight"] = 1 + rounded(WIDTH, scale=0.1)
    return {name: t.float() for name, t in weights.items()}


def train(target, w, ids, texts):
    """Train the head on the model's distributions of the token after the next, at the second step from its own last state (the paper's training-time test)."""
    embedding = target.model.embed_tokens.weight.detach()
    with torch.no_grad():
        out = target(texts, output_hidden_states=True)
        states = torch.cat([out.hidden_states[i] for i in (2, LAYERS // 2, LAYERS - 3)], -1)
        goal = out.logits[..., ids].softmax(-1)
    parameters = [t.requires_grad_() for t in w.values()]
    optimiser = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(TRAIN_STEPS):
        last = run_head(w, embedding, texts[:, 1:], states[:, :-1] @ w["fc.weight"].T)
        again = run_head(w, embedding, texts[:, 2:], last[:, :-1])
        loss = -(goal[:, 1:] * logits_of(w, last).log_softmax(-1)).sum(-1).mean() - 0.5 * (goal[:, 2:] * logits_of(w, again).log_softmax(-1)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"loss {loss.item():.3f}")
    return {name: t.detach().bfloat16() for name, t in w.items()}


def save_head(weights, ids):
    weights = dict(weights)
    weights["d2t"] = ids - torch.arange(DRAFT_VOCAB)
    weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
    weights["t2d"][ids] = True
    (OUT / "head").mkdir(exist_ok=True)
    save_file(weights, OUT / "head" / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
              "head_dim": DIM, "intermediate_size": FFN, "num_hidden_layers": 1, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "max_position_embeddings": 256,
              "rms_norm_eps": EPS, "rope_theta": THETA, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
              "torch_dtype": "bfloat16"}
    (OUT / "head" / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def sample(target, n):
    texts = torch.randint(3, VOCAB, (n, 1))
    while texts.shape[1] < LENGTH:
        texts = torch.cat([texts, target(texts).logits[:, -1].softmax(-1).multinomial(1)], 1)
    return texts


def write_with_drafts(target, w, ids, prompt):
    """The greedy text, TEXT tokens, and the numbers of accepted draft tokens."""
    embedding, text = target.model.embed_tokens.weight, list(prompt)
    accepted_at, drafted = [0] * MOST, 0
    text.append(int(target(torch.tensor([text])).logits[0, -1].argmax()))
    while len(text) - len(prompt) < TEXT:
        n = min(MOST, TEXT - (len(text) - len(prompt)) - 1)
        _, fused = run_target(target, torch.tensor([text]), w)
        drafts = draft(w, embedding, text, fused[0], ids, n)[1] if n > 0 else []
        best = target(torch.tensor([text + drafts])).logits[0, len(text) - 1 :].argmax(-1).tolist()
        n_accepted = 0
        while n_accepted < n and drafts[n_accepted] == best[n_accepted]:
            accepted_at[n_accepted] += 1
            n_accepted += 1
        drafted += n
        text += best[: n_accepted + 1]
    return text[len(prompt) :], accepted_at, drafted


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    target = make_target()
    with torch.no_grad():
        texts = sample(target, BATCH)
    # The most frequent tokens of the model's texts.
    ids = torch.bincount(texts.flatten(), minlength=VOCAB).argsort(descending=True)[:DRAFT_VOCAB].sort().values
    weights = train(target, random_head(), ids, texts)
    save_head(weights, ids)
    w = {name: t.float() for name, t in weights.items()}
    with torch.no_grad():
        prompt = sample(target, 1)[0, :TOKENS].tolist()
        text, accepted_at, drafted = write_with_drafts(target, w, ids, prompt)
        print(f"{drafted} drafted, accepted by place {accepted_at}, {len(set(text))} different tokens")
        _, fused = run_target(target, torch.tensor([prompt]), w)
        logits, drafts = draft(w, target.model.embed_tokens.weight, prompt + text[:1], fused[0], ids, STEPS)
    save_file({"tokens": torch.tensor(prompt + text[:1], dtype=torch.int32), "logits": torch.stack(logits), "drafts": torch.tensor(drafts, dtype=torch.int32),
               "text": torch.tensor(text, dtype=torch.int32), "accepted_at": torch.tensor(accepted_at, dtype=torch.int32),
               "drafted": torch.tensor([drafted], dtype=torch.int32)}, OUT / "expected.safetensors")


main()
