"""Check that transformers loads what lt_model_save (`lateen convert`) wrote: no tensor is missing, none is unused, and the logits are the golden ones.

    python tools/check_export.py FOLDER CASE     FOLDER: the export of tests/golden/model/CASE
"""
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

folder, case = sys.argv[1:]
golden = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/model" / case
load = dict(attn_implementation="eager", dtype=torch.float32)
model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **load)
stored = load_file(golden / "golden.safetensors")
tokens = stored["tokens"].long()
expected = stored["logits"]
if "doc_start" in stored:  # The stored logits are of packed documents; compute the golden model's logits instead.
    expected = transformers.AutoModelForCausalLM.from_pretrained(golden, **load).eval()(tokens).logits
off = (model.eval()(tokens).logits - expected).abs().max().item()
bad = {key: value for key, value in info.items() if value}
print(f"{case}: {type(model).__name__}, logits off by {off:.2g}", bad or "")
sys.exit(off > 1e-4 or bool(bad))
