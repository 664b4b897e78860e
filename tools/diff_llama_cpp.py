#!/usr/bin/env python3
"""Compare the GGUF files that Lateen writes with what llama.cpp computes from them (xllamacpp, from PyPI).

    tools/diff_llama_cpp.py [--lateen build/lateen] [--family F,...] [--feature F,...]

A small random model of each family, and with one feature more, is trained for three steps, written by `lateen quantize --type f32`, and asked for the log-probabilities of the
token after 60 others by both programs: those of Lateen's 20 most likely tokens are compared. "same": they differ by less than 2e-3 (llama.cpp looks GELU up in 16 bits);
"warned": they differ or llama.cpp cannot open the file, and Lateen said so. Anything else is a fault. `tests/unit/model/test_gguf_readers.c` holds the results.
"""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import urllib.request

V, N = 1024, 60
CLASS = dict(gpt2="GPT2LMHeadModel", llama="LlamaForCausalLM", qwen2="Qwen2ForCausalLM", qwen3="Qwen3ForCausalLM", gemma2="Gemma2ForCausalLM", gemma3_text="Gemma3ForCausalLM",
             apertus="ApertusForCausalLM", mixtral="MixtralForCausalLM", mistral="MistralForCausalLM", phi3="Phi3ForCausalLM", olmo2="Olmo2ForCausalLM", smollm3="SmolLM3ForCausalLM",
             granite="GraniteForCausalLM", qwen3_moe="Qwen3MoeForCausalLM", gpt_oss="GptOssForCausalLM")
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
ROPE = {"linear": dict(rope_type="linear", factor=4.0),
        "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
        "yarn": YARN, "yarn_betas": dict(YARN, beta_fast=8.0, beta_slow=0.5), "yarn_attention": dict(YARN, attention_factor=1.0),
        "longrope": dict(rope_type="longrope", factor=4.0, original_max_position_embeddings=30)}
# llama.cpp takes a program's whole context, not the text's length, for longrope's choice, and rounds the range of gpt-oss' yarn, whose own is not rounded.
KNOWN = {("gpt_oss", "yarn"), ("gpt_oss", "yarn_attention"), ("gpt_oss", "yarn_betas")}


def base(family):
    if family == "gpt2":
        return dict(vocab_size=V, n_embd=128, n_layer=2, n_head=4, n_positions=300, layer_norm_epsilon=1e-5)
    c = dict(vocab_size=V, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=300, rms_norm_eps=1e-5,
             tie_word_embeddings=family.startswith("gemma"), rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    more = {"mistral": dict(sliding_window=None), "phi3": dict(sliding_window=None), "mixtral": dict(sliding_window=None, num_local_experts=4, num_experts_per_tok=2),
            "qwen3": dict(head_dim=32), "qwen3_moe": dict(head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True),
            "gpt_oss": dict(head_dim=64, num_local_experts=4, num_experts_per_tok=2, sliding_window=40),
            "gemma2": dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=40, final_logit_softcapping=30.0, attn_logit_softcapping=50.0),
            "gemma3_text": dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=40, sliding_window_pattern=2)}
    c.update(more.get(family, {}))
    if family == "gemma3_text":
        c["rope_theta"] = c.pop("rope_parameters")["rope_theta"]
    return c


def features(family):
    """Pairs of a name and a config.json."""
    yield "none", base(family)
    yield "other_tie", dict(base(family), tie_word_embeddings=not base(family).get("tie_word_embeddings", True))
    if family == "gpt2":
        return
    yield "attention_bias", dict(base(family), attention_bias=family != "gpt_oss")
    yield "mlp_bias", dict(base(family), mlp_bias=True)
    yield "head_dim", dict(base(family), head_dim=48)
    windows = {"qwen2": dict(use_sliding_window=True, max_window_layers=0), "qwen3": dict(use_sliding_window=True, max_window_layers=0), "qwen3_moe": dict(use_sliding_window=True),
               "mistral": {}, "mixtral": {}, "phi3": {}}
    if family in windows:
        yield "window", dict(base(family), sliding_window=10, **windows[family])
    for name, scaling in ROPE.items():
        c, scaling = base(family), dict(scaling)
        pairs = (c.get("head_dim") or 32) // 2
        if name == "longrope":
            scaling.update(short_factor=[1.0 + 0.1 * i for i in range(pairs)], long_factor=[1.2 + 0.7 * i for i in range(pairs)])
        if family == "gpt_oss" and "yarn" in name:
            scaling["truncate"] = False
        if family == "phi3" and name == "longrope":
            c["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
            del scaling["factor"]
        if family == "gemma3_text":
            c["rope_scaling"] = scaling
        elif family != "phi3" or name == "longrope":
            c["rope_parameters"] = dict(rope_theta=10000.0, **scaling)
        else:
            continue
        yield name, c


ASK = dict(n_predict=1, n_probs=20, temperature=1.0, seed=1)
# In a process of its own: it prints to stderr as it likes.
THEIRS = """import json, sys, xllamacpp as x
p = x.CommonParams(); p.model.path = sys.argv[1]; p.n_ctx = 256; p.n_parallel = 1; p.warmup = False; p.n_gpu_layers = 0
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
r = x.Server(p).handle_completions(json.loads(sys.argv[2]))
r = r if isinstance(r, dict) else json.loads(r)
c = r.get("completion_probabilities") or r["choices"][0]["logprobs"]["content"]
print(json.dumps({t["id"]: t["logprob"] for t in c[0]["top_logprobs"]}), flush=True)
import os; os._exit(0)
"""


def ours(lateen, model, ids):
    p = subprocess.Popen([lateen, "serve", "--model", model, "--port", "0", "--dtype", "fp32"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if found := re.search(r"http://\S+:\d+", line):
            break
    r = json.load(urllib.request.urlopen(urllib.request.Request(found.group() + "/completion", json.dumps(dict(ASK, prompt=ids)).encode(), {"Content-Type": "application/json"})))
    p.terminate()
    p.communicate()
    return {t["id"]: t["logprob"] for t in r["completion_probabilities"][0]["top_logprobs"]}


def compare(lateen, folder, family, config):
    """The result, and what it says."""
    (folder / "config.json").write_text(json.dumps(dict(config, architectures=[CLASS[family]], model_type=family, initializer_range=0.08, bos_token_id=0, eos_token_id=0, pad_token_id=0)))
    made = subprocess.run([lateen, "train", "--model.config", folder / "config.json", "--data.train", "tests/golden/train/tokens", "--data.tokenizer", "tests/golden/data/demo_tokenizer.json",
                           "--data.seq", "16", "--batch.size", "2", "--steps", "3", "--optim.lr", "0.04", "--lr.warmup", "0", "--optim.clip", "0", "--out", folder / "run"], capture_output=True, text=True)
    if made.returncode:
        return "no model", made.stderr.split("\n")[-2]
    written = subprocess.run([lateen, "quantize", folder / "run/model", folder / "m.gguf", "--type", "f32"], capture_output=True, text=True)
    if written.returncode:
        return "refused", written.stderr.split("\n")[-2]
    warned = "llama.cpp" in written.stderr
    ids = random.Random(1).choices(range(V), k=N)
    mine, again = (ours(lateen, folder / name, ids) for name in ("run/model", "m.gguf"))
    run = subprocess.run([sys.executable, "-c", THEIRS, folder / "m.gguf", json.dumps(dict(ASK, prompt=ids, n_probs=V, top_k=0, top_p=1.0, min_p=0.0, samplers=[]))], capture_output=True, text=True)
    opened = run.returncode == 0 and run.stdout.startswith("{")
    theirs = json.loads(run.stdout) if opened else {}
    off = max((abs(x - theirs[str(i)]) for i, x in mine.items()), default=0) if opened else float("inf")
    own = max(abs(x - again.get(i, -1e9)) for i, x in mine.items())
    why = "" if opened else " ".join(re.findall(r"error loading model: (.*)", run.stderr)[:1])
    same = off < 2e-3
    result = "OWN FILE" if own > 1e-3 else "same" if same and not warned else "WARNED WITHOUT NEED" if same else "warned" if warned else "DIFFERS" if opened else "NOT OPENED"
    return result, f"{off:.2g} {why}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lateen", default="build/lateen")
    p.add_argument("--family", default=",".join(CLASS))
    p.add_argument("--feature", default="")
    o = p.parse_args()
    bad = 0
    for family in o.family.split(","):
        for name, config in features(family):
            if o.feature and name not in o.feature.split(","):
                continue
            with tempfile.TemporaryDirectory() as folder:
                result, text = compare(o.lateen, pathlib.Path(folder), family, config)
            if (family, name) in KNOWN and result == "DIFFERS":
                result = "known"
            bad += result not in ("same", "warned", "refused", "known")
            print(f"{family:12} {name:15} {result:20} {text[:120]}", flush=True)
    print(f"{bad} faults")
    sys.exit(bad > 0)


main()
