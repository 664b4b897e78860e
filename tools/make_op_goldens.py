#!/usr/bin/env python3
"""Compute values of every op with PyTorch and Hugging Face transformers in float64, for `optest --golden`.

    build/optest --describe-golden | python3 tools/make_op_goldens.py tests/golden/ops

Reads the golden cases and their inputs, computes results and gradients (autograd) with code that is not Lateen's, and writes one JSON
file for each op. If a library computes in float32 inside, its formula is evaluated here in float64 and compared with the library's own
result. Needs torch and transformers; made with torch 2.15, transformers 5.23.
"""
import json
import math
import os
import sys
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from transformers.activations import XIELUActivation
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.mixtral import modeling_mixtral
from transformers.models.switch_transformers import modeling_switch_transformers

torch.set_default_dtype(torch.float64)


def f32(x):
    """A constant as a C float."""
    return float(np.float32(x))


def leaf(t):
    return t.detach().clone().requires_grad_(True)


def near(a, b, tolerance):
    assert torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance), (a, b)


def matmul(p, x):
    a = x["a"].T if p["trans_a"] else x["a"]
    b = x["b"].T if p["trans_b"] else x["b"]
    y = F.linear(a, b.T, x.get("bias"))
    return {"y": y}


def colsum(p, x):
    return {"y": x["y"] + x["x"].sum(0)}


def embed(p, x, table, pos_table):
    y = F.embedding(x["ids"], table) * p["scale"]
    return y + F.embedding(x["positions"], pos_table) if p["positions"] else y


def embed_fwd(p, x):
    return {"y": embed(p, x, x["table"], x.get("pos_table"))}


def embed_bwd(p, x):
    table = leaf(x["table"])
    pos = leaf(x["pos_table"]) if p["positions"] else None
    embed(p, x, table, pos).backward(x["dy"])
    out = {"dtable": x["dtable"] + table.grad}
    if p["positions"]:
        out["dpos_table"] = x["dpos_table"] + pos.grad
    return out


EPS = f32(1e-5)


def norm_input(p, x):
    return x["x"] + x["add"] if p["residual"] else x["x"]


def rmsnorm(p, x, gain):
    return F.rms_norm(x, (x.shape[-1],), p["offset"] + gain, EPS)


def rmsnorm_fwd(p, x):
    s = norm_input(p, x)
    out = {"y": rmsnorm(p, s, x["gain"]), "rstd": torch.rsqrt(s.pow(2).mean(-1) + EPS)}
    if p["residual"]:
        out["sum"] = s
    return out


def rmsnorm_bwd(p, x):
    s, gain = leaf(norm_input(p, x)), leaf(x["gain"])
    rmsnorm(p, s, gain).backward(x["dy"])
    return {"dx": s.grad, "dgain": x["dgain"] + gain.grad}


def layernorm_fwd(p, x):
    s = norm_input(p, x)
    y, mean, rstd = torch.native_layer_norm(s, (s.shape[-1],), x["gain"], x["bias"], EPS)
    out = {"y": y, "mean": mean, "rstd": rstd}
    if p["residual"]:
        out["sum"] = s
    return out


def layernorm_bwd(p, x):
    s, gain, bias = leaf(norm_input(p, x)), leaf(x["gain"]), leaf(x["bias"])
    F.layer_norm(s, (s.shape[-1],), gain, bias, EPS).backward(x["dy"])
    return {"dx": s.grad, "dgain": x["dgain"] + gain.grad, "dbias": x["dbias"] + bias.grad}


def rope(p, x):
    n = 2 * x["table"].shape[1]
    rows = x["table"][x["positions"]]  # (R, N/2, 2)
    cos = torch.cat([rows[..., 0], rows[..., 0]], -1)[None]
    sin = torch.cat([rows[..., 1], rows[..., 1]], -1)[None]
    q = x["x"][None, :, :, :n].transpose(1, 2)  # (1, H, R, N)
    y, _ = apply_rotary_pos_emb(q, q, cos, sin)
    return {"y": torch.cat([y.transpose(1, 2)[0], x["x"][:, :, n:]], -1)}


def attention(p, x, q, k, v, sinks):
    b, t, h, d = q.shape
    s = k.shape[1]
    scale = p["scale"] if p["scale"] != 0 else f32(np.float32(1) / np.sqrt(np.float32(d)))
    pos = (s - t + torch.arange(t))[:, None]
    key = torch.arange(s)[None, :]
    seen = torch.ones(b, 1, t, s, dtype=torch.bool)
    if p["causal"]:
        seen = seen & (key <= pos)
    if p["window"]:
        seen = seen & (key > pos - p["window"])
    if p["doc_start"]:
        seen = seen & (key[None, None] >= x["doc_start"][:, None, :, None])
    mask = torch.zeros(b, 1, t, s).masked_fill(~seen, -math.inf)
    if p["alibi"]:
        mask = mask + x["alibi"][None, :, None, None] * (key - pos)
    qh, kh, vh = (u.transpose(1, 2) for u in (q, k, v))
    rep = h // k.shape[2]
    logits = scale * qh @ kh.repeat_interleave(rep, 1).transpose(2, 3)
    if p["softcap"]:
        logits = p["softcap"] * torch.tanh(logits / p["softcap"])
    logits = logits + mask
    if p["sinks"]:
        module = SimpleNamespace(num_key_value_groups=rep, sinks=sinks, training=False)
        out, _ = modeling_gpt_oss.eager_attention_forward(module, qh, kh, vh, mask, scale)
        lse = torch.logsumexp(torch.cat([logits, sinks[None, :, None, None].expand(b, h, t, 1)], -1), -1)
        return out, lse
    lse = torch.logsumexp(logits, -1)
    if p["softcap"]:
        return (torch.softmax(logits, -1) @ vh.repeat_interleave(rep, 1)).transpose(1, 2), lse
    out = F.scaled_dot_product_attention(qh, kh, vh, mask, scale=scale, enable_gqa=rep > 1)
    return out.transpose(1, 2), lse


def attention_fwd(p, x):
    out, lse = attention(p, x, x["q"], x["k"], x["v"], x.get("sinks"))
    return {"out": out, "lse": lse} if p["T"] > 1 else {"out": out}


def attention_bwd(p, x):
    q, k, v = leaf(x["q"]), leaf(x["k"]), leaf(x["v"])
    sinks = leaf(x["sinks"]) if p["sinks"] else None
    out, _ = attention(p, x, q, k, v, sinks)
    out.backward(x["dout"])
    got = {"dq": q.grad, "dk": k.grad, "dv": v.grad}
    if p["sinks"]:
        got["dsinks"] = x["dsinks"] + sinks.grad
    return got


def act(p, x, params):
    kind = ["gelu_tanh", "gelu", "silu", "relu", "relu2", "xielu", "swiglu_clamped"][p["act"]]
    width = p["F"]
    a = x[:, :width]
    if kind == "swiglu_clamped":  # transformers' GptOssExperts, with the limit of tests/ops/act.c.
        gate, up = a.clamp(min=None, max=0.75), x[:, width:].clamp(min=-0.75, max=0.75)
        return (up + 1) * (gate * torch.sigmoid(gate * f32(1.702)))
    if kind == "xielu":
        module = XIELUActivation(dtype=torch.float64)
        module.eps = torch.tensor(f32(-1e-6))
        del module.alpha_p, module.alpha_n
        module.alpha_p, module.alpha_n = params[0], params[1]
        y = module._xielu_python(a)
    else:
        y = {"gelu_tanh": lambda u: F.gelu(u, approximate="tanh"), "gelu": F.gelu, "silu": F.silu, "relu": F.relu,
             "relu2": lambda u: F.relu(u).square()}[kind](a)
    return y * x[:, width:] if p["gated"] else y


def act_fwd(p, x):
    return {"y": act(p, x["x"], x.get("xielu_params"))}


def act_bwd(p, x):
    a = leaf(x["x"])
    params = leaf(x["xielu_params"]) if "xielu_params" in x else None
    act(p, a, params).backward(x["dy"])
    out = {"dx": a.grad}
    if params is not None:
        out["dxielu_params"] = x["dxielu_params"] + params.grad
    return out


def add(p, x):
    return {"y": p["alpha"] * x["a"] + p["beta"] * x["b"]}


def xent(p, x):
    logits = leaf(x["logits"])
    capped = p["softcap"] * torch.tanh(logits / p["softcap"]) if p["softcap"] else logits
    loss = F.cross_entropy(capped, x["labels"], ignore_index=-1, reduction="none")
    lse = torch.logsumexp(capped, -1)
    out = {"loss": loss, "lse": lse, "best": logits.argmax(-1)}
    if p["grad_scale"]:
        weights = x.get("weights", torch.ones(len(loss)))
        total = (weights * (loss + p["z_coef"] * lse.square()))[x["labels"] >= 0].sum() * p["grad_scale"]
        total.backward()
        out["logits"] = logits.grad
    return out


def distill(p, x):
    """The generalised Jensen-Shannon divergence by torch's kl_div, over the whole vocabulary, or over the teacher's tokens and the rest."""
    logits, beta = leaf(x["logits"]), p["beta"]
    temperature = p["scale"] or 1.0

    def capped(t):
        return p["softcap"] * torch.tanh(t / p["softcap"]) if p["softcap"] else t

    def kl(q, p):
        return F.kl_div(q, p, reduction="sum", log_target=True)

    own, losses = capped(logits), []
    for row, label in enumerate(x["labels"].tolist()):
        q = torch.log_softmax(own[row] / temperature, -1)
        if "ids" in x:
            named = x["ids"][row] >= 0
            ids, t = x["ids"][row][named], x["logp"][row][named]
            others = torch.ones(len(q), dtype=torch.bool).index_fill(0, ids, False)
            if p["normalise"]:
                q, t = torch.log_softmax(q[ids], -1), torch.log_softmax(t, -1)
            else:
                q = torch.cat([q[ids], torch.logsumexp(q[others], 0, keepdim=True)])
                t = torch.cat([t, (1 - t.exp().sum(0, keepdim=True)).clamp_min(1e-7).log()])
        else:
            t = torch.log_softmax(capped(x["teacher"][row]) / temperature, -1)
        m = torch.logaddexp(t + math.log(beta), q + math.log1p(-beta)) if 0 < beta < 1 else None
        d = kl(q, t) if beta == 0 else kl(t, q) if beta == 1 else beta * kl(m, t) + (1 - beta) * kl(m, q)
        hard = F.cross_entropy(own[row][None], torch.tensor([max(label, 0)]))
        losses.append(((1 - p["alpha"]) * d + p["alpha"] * hard) * (label >= 0))
    loss = torch.stack(losses)
    out = {"loss": loss}
    if p["grad_scale"]:
        (p["grad_scale"] * (x.get("weights", torch.ones(len(loss))) * loss).sum()).backward()
        out["logits"] = logits.grad
    return out


def choose(p, x):
    """transformers' logits warpers, then the inverse of the distribution function at the draw."""
    rows = {"id": [], "logprob": [], "rank": [], "top_id": [], "top_logprob": []}
    for row, how in zip(x["rows"].tolist(), x["how"].tolist()):
        temperature, top_k, top_p, min_p, draw, n_top = how[:6]
        out = {"id": -1, "logprob": 0.0, "rank": 0, "top_id": [-1] * 20, "top_logprob": [0.0] * 20}
        if row >= 0:
            logits = x["logits"][row]
            scores = logits[None]
            if temperature > 0:
                scores = TemperatureLogitsWarper(temperature)(None, scores)
                if top_k > 0:
                    scores = TopKLogitsWarper(int(top_k))(None, scores)
                    assert torch.isfinite(scores).sum() == min(top_k, len(logits)), "a tie at the cut"
                scores = TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
                scores = MinPLogitsWarper(min_p)(None, scores) if min_p > 0 else scores
                assert draw < 1
                below = torch.cumsum(torch.softmax(scores[0], -1), -1)
                out["id"] = int(torch.searchsorted(below, torch.tensor(draw) * below[-1], right=True))
            else:
                out["id"] = int(logits.argmax())
            if n_top >= 0:
                logprobs = torch.log_softmax(logits, -1)
                top, ids = torch.sort(logprobs, descending=True, stable=True)
                n = min(int(n_top), len(logits))
                out["logprob"] = float(logprobs[out["id"]])
                out["rank"] = int((logits > logits[out["id"]]).sum())
                out["top_id"][:n] = ids[:n].tolist()
                out["top_logprob"][:n] = top[:n].tolist()
        for name, value in out.items():
            rows[name].append(value)
    return {name: torch.tensor(value) for name, value in rows.items()}


def route(p, logits):
    """Mixtral's router (softmax, top k, divided by their sum) or switch's, and the auxiliary losses."""
    n_rows, n_experts = logits.shape
    probs = torch.softmax(logits, -1)
    weights, experts = torch.topk(probs, p["K"], -1)
    if p["normalise"]:
        weights = weights / weights.sum(-1, keepdim=True)
    counts = torch.bincount(experts.reshape(-1), minlength=n_experts)
    balance = n_experts * (counts / (n_rows * p["K"]) * probs.mean(0)).sum()
    theirs = modeling_mixtral.load_balancing_loss_func((logits,), n_experts, p["K"])
    near(balance * p["K"], theirs, 1e-5)  # transformers counts each of a row's K choices as a whole row.
    z = modeling_switch_transformers.router_z_loss_func(logits[None])
    return probs, weights, experts, torch.stack([balance, z])


def moe_route_fwd(p, x):
    probs, weights, experts, aux = route(p, x["logits"])
    order = torch.argsort(experts.reshape(-1), stable=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64),
                        torch.bincount(experts.reshape(-1), minlength=p["E"]).cumsum(0)])
    out = {"probs": probs, "weights": weights, "experts": experts, "slot_row": order, "expert_start": starts}
    if p["aux_coef"] or p["z_coef"]:
        out["aux"] = aux
    return out


def moe_route_bwd(p, x):
    logits = leaf(x["logits"])
    _, weights, _, aux = route(p, logits)
    ((weights * x["dweights"]).sum() + p["aux_coef"] * aux[0] + p["z_coef"] * aux[1]).backward()
    return {"dlogits": logits.grad}


def kept(x):
    n = int(x["expert_start"][-1])
    return x["slot_row"][:n], n


def pad_rows(y, n):
    return torch.cat([y, torch.full((n - y.shape[0], y.shape[1]), math.nan)])


def moe_gather_fwd(p, x):
    slots, n = kept(x)
    return {"y": pad_rows(x["x"][slots // p["K"]], p["R"] * p["K"])}


def moe_gather_bwd(p, x):
    slots, n = kept(x)
    a = leaf(x["x"])
    a[slots // p["K"]].backward(x["dy"][:n])
    return {"dx": a.grad}


def combine(p, x, rows, weights):
    slots, n = kept(x)
    w = weights.reshape(-1)[slots]
    return torch.zeros(p["R"], p["C"]).index_add(0, slots // p["K"], rows[:n] * w[:, None])


def moe_combine_fwd(p, x):
    return {"y": combine(p, x, x["x"], x["weights"])}


def moe_combine_bwd(p, x):
    rows, weights = leaf(x["x"]), leaf(x["weights"])
    combine(p, x, rows, weights).backward(x["dy"])
    return {"dx": pad_rows(rows.grad[: kept(x)[1]], p["R"] * p["K"]), "dweights": weights.grad}


def expert_of(x, n):
    return torch.searchsorted(x["expert_start"][1:].contiguous(), torch.arange(n), right=True)


def moe_bias_fwd(p, x):
    n = int(x["expert_start"][-1])
    y = x["y"].clone()
    y[:n] += x["bias"][expert_of(x, n)]
    return {"y": y}


def moe_bias_bwd(p, x):
    n = int(x["expert_start"][-1])
    return {"dbias": x["dbias"].index_add(0, expert_of(x, n), x["dy"][:n])}


LR, DECAY, ADAM_EPS = f32(0.01), f32(0.1), f32(1e-8)


def scaled_grad(p, x):
    return x["g"] * (p["grad_scale"] if p["grad_scale"] else 1.0)


def adamw(p, x):
    w = leaf(x["p"])
    w.grad = scaled_grad(p, x)
    opt = torch.optim.AdamW([w], lr=LR, betas=(f32(0.9), f32(0.95)), eps=ADAM_EPS, weight_decay=DECAY)
    opt.state[w] = {"step": torch.tensor(float(p["step"] - 1)), "exp_avg": x["m"].clone(), "exp_avg_sq": x["v"].clone()}
    opt.step()
    return {"p": w, "m": opt.state[w]["exp_avg"], "v": opt.state[w]["exp_avg_sq"]}


def ademamix(p, x):
    """Algorithm 1 of arXiv:2409.03137, as in Apple's and swiss-ai's code: fast EMA and second moment bias-corrected, slow EMA not."""
    b1, b2, b3, alpha, g = f32(0.9), f32(0.999), f32(0.9999), 8.0, scaled_grad(p, x)
    m1 = b1 * x["m1"] + (1 - b1) * g
    m2 = b3 * x["m2"] + (1 - b3) * g
    v = b2 * x["v"] + (1 - b2) * g * g
    denominator = v.sqrt() / math.sqrt(1 - b2 ** p["step"]) + ADAM_EPS
    update = (m1 / (1 - b1 ** p["step"]) + alpha * m2) / denominator + DECAY * x["p"]
    return {"p": x["p"] - LR * update, "m1": m1, "m2": m2, "v": v}


def lion(p, x):
    """Algorithm 2 of arXiv:2302.06675."""
    b1, b2, g = f32(0.9), f32(0.99), scaled_grad(p, x)
    update = torch.sign(torch.lerp(g, x["m"], b1))
    return {"p": x["p"] * (1 - LR * DECAY) - LR * update, "m": torch.lerp(g, x["m"], b2)}


def newton_schulz(g, steps):
    """torch.optim.Muon's iteration, which runs in bfloat16, here in float64."""
    u = g.T if g.shape[0] > g.shape[1] else g
    u = u / u.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = u @ u.T
        u = 3.4445 * u + (-4.7750 * gram + 2.0315 * gram @ gram) @ u
    u = u.T if g.shape[0] > g.shape[1] else u
    theirs = torch.optim._muon._zeropower_via_newtonschulz(g, (3.4445, -4.7750, 2.0315), steps, 1e-7)
    near(u, theirs, 0.1)
    return u


def muon(p, x):
    mu, lr, g = f32(0.95), f32(0.1), scaled_grad(p, x)
    m = mu * x["m"] + g
    u = newton_schulz(g + mu * m if p["normalise"] else m, p["step"])
    return {"p": x["p"] * (1 - lr * DECAY) - lr * 0.5 * u, "m": m}


def sumsq(p, x):
    return {"out": x["x"].square().sum().reshape(1)}


def tensor(entry, name):
    whole = name in ("ids", "positions", "labels", "rows", "doc_start", "kv_len", "slot_row", "expert_start", "experts")
    return torch.tensor(entry["data"], dtype=torch.int64 if whole else torch.float64).reshape(entry["shape"])


def number(v):
    if isinstance(v, int):
        return v
    return float(f"{v:.12g}") if math.isfinite(v) else str(v)


def main():
    folder = sys.argv[1]
    files = {}
    for record in json.load(sys.stdin):
        x = {name: tensor(entry, name) for name, entry in record["inputs"].items()}
        got = globals()[record["op"]](record["params"], x)
        want = {name: [number(v) for v in t.detach().reshape(-1).tolist()] for name, t in got.items()}
        files.setdefault(record["op"], []).append(
            {"op": record["op"], "case": record["case"], "inputs": record["inputs"], "want": want})
    os.makedirs(folder, exist_ok=True)
    for op, records in files.items():
        with open(os.path.join(folder, op + ".json"), "w") as f:
            rows = (json.dumps(r, separators=(",", ":")) for r in records)
            f.write("[\n" + ",\n".join(rows) + "\n]\n")


main()
