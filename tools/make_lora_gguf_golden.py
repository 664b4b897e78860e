"""Write tests/golden/sft/adapter-all-end.gguf and adapter-rs-end.gguf: PEFT's adapters of that folder in the format of llama.cpp's convert_lora_to_gguf.py.

    python3 tools/make_lora_gguf_golden.py tests/golden/sft          (packages gguf, safetensors, torch)

Names are those of gguf-py's tensor map; rows of B of q and k are permuted by the formula of llama.cpp's LlamaModel.permute; alpha of an rsLoRA is alpha sqrt(r)."""
import json
import math
import re
import sys

import gguf
from safetensors.torch import load_file

folder = sys.argv[1]
base = json.load(open(f"{folder}/config.json"))
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, base["num_hidden_layers"])


def permute(w, n_heads):
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


for adapter in ("adapter-all-end", "adapter-rs-end"):
    config = json.load(open(f"{folder}/{adapter}/adapter_config.json"))
    out = gguf.GGUFWriter(f"{folder}/{adapter}.gguf", "llama")
    out.add_type("adapter")
    out.add_name(adapter)
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", config["lora_alpha"] * (math.sqrt(config["r"]) if config["use_rslora"] else 1))
    for name, w in load_file(f"{folder}/{adapter}/adapter_model.safetensors").items():
        module, part = re.fullmatch(r"base_model\.model\.(.*)\.lora_([AB])\.weight", name).groups()
        if part == "B" and module.endswith(("q_proj", "k_proj")):
            w = permute(w, base["num_attention_heads" if module.endswith("q_proj") else "num_key_value_heads"])
        out.add_tensor(f"{names.get_name(module)}.weight.lora_{part.lower()}", w.contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
