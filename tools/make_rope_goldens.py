"""Make tests/golden/rope/<case>/: every rope_type, and mistral and phi3, run by Hugging Face transformers in float64.

    python tools/make_rope_goldens.py [case ...]          (transformers 5.23, torch 2.15; CPU)

A case is a folder:
    config.json            as transformers writes it; config_old.json: the same model in the keys of transformers 4, if the case has it
    model.safetensors      weights exact in bfloat16
    golden.safetensors     tokens (T); whole_<n> (n, V): logits of the first n tokens in one call of a fresh model;
                           grown (T, V): generate from a prompt of PROMPT tokens, made to choose those of `tokens`; rows before PROMPT - 1 and the last are 0
                           freq_<n> (P): inverse frequencies of a text of n tokens; factor: the multiplier of cosines and sines
The original context is 16 tokens, and the lengths are below, at and above it.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/rope"
V, T, PROMPT, LENGTHS = 32, 40, 12, (7, 16, 17, 40)
SIZES = dict(pad_token_id=None, bos_token_id=None, eos_token_id=None, vocab_size=V, hidden_size=32, intermediate_size=24,
             num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
SHORT, LONG = [1.0 + 0.05 * i for i in range(8)], [1.5 + 0.75 * i for i in range(8)]


def rope(kind, theta=100.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def old(kind, key="rope_type", theta=100.0, **more):
    return dict(rope_theta=theta, rope_scaling={key: kind, **more})


YARN = dict(factor=4.0, original_max_position_embeddings=16)
LONGROPE = dict(short_factor=SHORT, long_factor=LONG)
CASES = {  # name: (config class, its arguments, the same in old keys)
    "linear": ("LlamaConfig", dict(rope_parameters=rope("linear", factor=2.5)), old("linear", "type", factor=2.5)),
    "llama3": ("LlamaConfig", dict(rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                        original_max_position_embeddings=16)), None),
    "proportional": ("LlamaConfig", dict(rope_parameters=rope("proportional", partial_rotary_factor=0.5, factor=2.0)), None),
    "dynamic": ("LlamaConfig", dict(max_position_embeddings=16, rope_parameters=rope("dynamic", factor=2.0)),
                dict(max_position_embeddings=16, **old("dynamic", "type", factor=2.0))),
    "yarn": ("Qwen2Config", dict(rope_parameters=rope("yarn", **YARN)), old("yarn", "type", **YARN)),
    "yarn_betas": ("Qwen3Config", dict(head_dim=24, rope_parameters=rope("yarn", beta_fast=4.0, beta_slow=0.5, truncate=False, **YARN)), None),
    "yarn_mscale": ("LlamaConfig", dict(rope_parameters=rope("yarn", mscale=0.707, mscale_all_dim=1.3, **YARN)), None),
    "yarn_attention": ("MistralConfig", dict(sliding_window=None, rope_parameters=rope("yarn", attention_factor=0.85, **YARN)), None),
    "yarn_factor_null": ("LlamaConfig", dict(rope_parameters=rope("yarn", factor=None, original_max_position_embeddings=16)), None),
    "yarn_gemma3": ("Gemma3TextConfig", dict(head_dim=16, num_hidden_layers=3, sliding_window=7,
                                             layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                             rope_parameters=dict(full_attention=rope("yarn", 1000.0, **YARN),
                                                                  sliding_attention=rope("default", 50.0))), None),
    "longrope": ("LlamaConfig", dict(rope_parameters=rope("longrope", original_max_position_embeddings=16, factor=4.0, **LONGROPE)),
                 dict(original_max_position_embeddings=16, **old("longrope", factor=4.0, **LONGROPE))),
    "longrope_attention": ("LlamaConfig", dict(rope_parameters=rope("longrope", original_max_position_embeddings=16, factor=2.0,
                                                                    attention_factor=1.1, **LONGROPE)), None),
    "phi3": ("Phi3Config", dict(original_max_position_embeddings=16, num_attention_heads=2, partial_rotary_factor=0.75,
                                rope_parameters=rope("longrope", short_factor=SHORT[:6], long_factor=LONG[:6], partial_rotary_factor=0.75)),
             dict(original_max_position_embeddings=16, partial_rotary_factor=0.75,
                  **old("longrope", "type", short_factor=SHORT[:6], long_factor=LONG[:6]))),
    "phi3_plain": ("Phi3Config", dict(sliding_window=9, rope_parameters=rope("default", partial_rotary_factor=0.5)), None),
    "mistral": ("MistralConfig", dict(head_dim=24, sliding_window=9, rope_parameters=rope("default", 1000.0)),
                dict(head_dim=24, sliding_window=9, rope_theta=1000.0)),
    "mistral_tied": ("MistralConfig", dict(head_dim=8, sliding_window=None, tie_word_embeddings=True,
                                           rope_parameters=rope("default", 1000.0)), None),
}


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    for name, p in sorted(model.named_parameters(), key=lambda kv: kv[0]):
        z = torch.randn(p.shape, generator=g, dtype=torch.float64)
        if p.ndim >= 2:
            z = z * (0.5 if "embed" in name else (2 if "q_proj" in name or "k_proj" in name else 1) * p.shape[-1] ** -0.5)
        elif name.endswith("bias"):
            z = 0.1 * z
        else:
            z = 0.2 * z + (0 if gemma else 1)
        p.data = z.to(torch.bfloat16).double()


def make(case):
    klass, arguments, old_keys = CASES[case]
    seed = sorted(CASES).index(case) + 1
    folder = ROOT / case
    shutil.rmtree(folder, ignore_errors=True)
    config = getattr(transformers, klass)(**(SIZES | json.loads(json.dumps(arguments))))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    fill(model, seed)
    model.to(torch.bfloat16).save_pretrained(folder)
    fresh = lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
    tokens = torch.randint(0, V, (1, T), generator=torch.Generator().manual_seed(100 + seed))
    golden = dict(tokens=tokens[0].int())
    with torch.no_grad():
        for n in LENGTHS:
            m = fresh()
            golden[f"whole_{n}"] = m(tokens[:, :n], use_cache=False).logits[0].float()
            emb = m.model.rotary_emb
            golden[f"freq_{n}"] = (emb.full_attention_inv_freq if case == "yarn_gemma3" else emb.inv_freq).float()
            factor = emb.full_attention_attention_scaling if case == "yarn_gemma3" else emb.attention_scaling
            golden["factor"] = torch.tensor([float(factor)], dtype=torch.float64)
        force = lambda ids, scores: torch.full_like(scores, -torch.inf).scatter(1, tokens[:, ids.shape[1]][:, None], 0.0)
        out = fresh().generate(tokens[:, :PROMPT], max_new_tokens=T - PROMPT, do_sample=False, use_cache=True, return_dict_in_generate=True,
                               output_logits=True, logits_processor=transformers.LogitsProcessorList([force]))
        assert torch.equal(out.sequences, tokens)
        grown = torch.cat([torch.zeros(PROMPT - 1, V), torch.cat(out.logits).float(), torch.zeros(1, V)])
        golden["grown"] = grown
        if old_keys is not None:  # In transformers, too, both spellings are the same model.
            new = json.loads((folder / "config.json").read_text())
            kept = {k: v for k, v in new.items() if k not in ("rope_parameters", "original_max_position_embeddings", "partial_rotary_factor")}
            (folder / "config_old.json").write_text(json.dumps(kept | old_keys, indent=2, sort_keys=True) + "\n")
            again = type(config)(**{k: v for k, v in (kept | json.loads(json.dumps(old_keys))).items() if k != "model_type"})
            m = transformers.AutoModelForCausalLM.from_config(again, attn_implementation="eager").double().eval()
            m.load_state_dict(fresh().state_dict())
            assert torch.equal(m(tokens, use_cache=False).logits[0].float(), golden["whole_40"]), case
    save_file({k: v.contiguous() for k, v in golden.items()}, folder / "golden.safetensors")
    for extra in folder.rglob("generation_config.json"):
        extra.unlink()
    print(case, "bytes", sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))


for name in sys.argv[1:] or CASES:
    make(name)
