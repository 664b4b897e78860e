"""Make tests/golden/wrapped/: a tiny Gemma 3 with a vision tower, as Gemma3ForConditionalGeneration saves it, and the logits of a text.

    python tools/make_wrapped_golden.py          (transformers 5.24, torch 2.15; CPU)

    config.json            in the form of google/gemma-3-4b-it: text_config leaves out what is the class's default
    model.safetensors      weights exact in bfloat16, with the vision tower's
    golden.safetensors     tokens (T), logits (T, V) in float64
"""
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/wrapped"
V, T = 48, 20
TEXT = dict(vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=3, head_dim=4, max_position_embeddings=64, sliding_window=5, query_pre_attn_scalar=9,
            rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0), sliding_attention=dict(rope_type="default", rope_theta=10000.0)))
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=8, patch_size=4)

shutil.rmtree(ROOT, ignore_errors=True)
config = transformers.Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=1, image_token_index=V - 1, boi_token_index=V - 2, eoi_token_index=V - 3)
model = transformers.Gemma3ForConditionalGeneration(config).eval()
g = torch.Generator().manual_seed(7)
for name, p in sorted(model.named_parameters()):
    z = torch.randn(p.shape, generator=g)
    p.data = (z * (0.5 if "embed" in name else p.shape[-1] ** -0.5) if p.ndim >= 2 else 0.2 * z).to(torch.bfloat16).float()
model.to(torch.bfloat16).save_pretrained(ROOT)
(ROOT / "generation_config.json").unlink(missing_ok=True)
text = {k: v for k, v in TEXT.items() if k != "rope_parameters"} | dict(model_type="gemma3_text", rope_scaling=dict(factor=8.0, rope_type="linear"))
outer = dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", boi_token_index=V - 2, eoi_token_index=V - 3, image_token_index=V - 1, eos_token_id=[1, 6],
             initializer_range=0.02, mm_tokens_per_image=1, text_config=text, torch_dtype="bfloat16", vision_config=VISION | dict(model_type="siglip_vision_model"))
(ROOT / "config.json").write_text(json.dumps(outer, indent=2) + "\n")
again = transformers.Gemma3ForConditionalGeneration.from_pretrained(ROOT, dtype=torch.float64, attn_implementation="eager").eval()
tokens = torch.randint(0, V - 3, (1, T), generator=g)
with torch.no_grad():
    logits = again(tokens, use_cache=False).logits[0]
save_file(dict(tokens=tokens[0].int(), logits=logits.float()), ROOT / "golden.safetensors")
