#!/usr/bin/env python3
"""Check that PEFT loads adapters that Lateen wrote, and merges them into the model that `lateen convert` makes of them.

    tools/check_adapter.py LATEEN BASE ADAPTER        BASE: a Hugging Face folder, ADAPTER: a PEFT folder (packages torch, transformers, peft, safetensors)"""
import glob
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

lateen, base, adapter = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
theirs = model.merge_and_unload().state_dict()
with tempfile.TemporaryDirectory() as work:
    subprocess.run([lateen, "convert", adapter, f"{work}/merged", "--base", base, "--dtype", "fp32"], check=True)
    ours = {k: v for path in glob.glob(f"{work}/merged/*.safetensors") for k, v in load_file(path).items()}
missing = sorted(k for k in set(theirs) - set(ours) if k != "lm_head.weight" and "act_fn" not in k)  # A tied head is written only once.
worst = max((float((theirs[k] - ours[k]).abs().max() / theirs[k].abs().max()), k) for k in set(theirs) & set(ours) if "act_fn" not in k and theirs[k].abs().max() > 0)
print(f"{len(ours)} tensors; missing {missing}; largest difference {worst[0]:.2g} of the largest element: {worst[1]}")
sys.exit(bool(missing) or worst[0] > 1e-6)
