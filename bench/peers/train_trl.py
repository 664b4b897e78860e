"""The peer of bench/post_training.py: TRL's DPOTrainer or GRPOTrainer as usually started on one device: all weights, bf16 on a GPU, SDPA, fused
AdamW, no gradient checkpointing.

Usage: train_trl.py SETTINGS, the JSON object that bench/post_training.py writes. Its last line is a JSON object: seconds of each step, versions, memory."""
import json
import sys
import time

import torch
import transformers
import trl
from datasets import load_dataset

s = json.loads(sys.argv[1])
gpu = s["device"] == "cuda"
ends = []


class Clock(transformers.TrainerCallback):
    """A step begins at the end of the previous one, so that reading data and drawing answers count."""

    def now(self, *_, **__):
        if gpu:
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    on_train_begin = on_step_end = now


data = load_dataset("json", data_files=s["data"], split="train")
model = transformers.AutoModelForCausalLM.from_pretrained(s["base"], dtype=torch.bfloat16 if gpu else torch.float32, attn_implementation="sdpa")
tokenizer = transformers.AutoTokenizer.from_pretrained(s["base"])
common = dict(output_dir=s["out"], per_device_train_batch_size=s["micro"], gradient_accumulation_steps=s["batch"] // s["micro"], max_steps=s["steps"],
              learning_rate=1e-6, lr_scheduler_type="constant", adam_beta2=0.999, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused", bf16=gpu,
              gradient_checkpointing=False, torch_compile=s["mode"] == "compile", logging_steps=1, save_strategy="no", report_to="none", use_cpu=not gpu,
              disable_tqdm=True)
if s["objective"] == "dpo":
    config = trl.DPOConfig(beta=0.1, max_length=s["length"], precompute_ref_log_probs=True, **common)
    trainer = trl.DPOTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()])
else:
    def sevens(completions, **_):
        return [c.count("7") / max(1, len(c)) for c in completions]

    config = trl.GRPOConfig(num_generations=s["group"], max_completion_length=s["answer"], beta=0.0, loss_type="grpo", temperature=1.0, use_vllm=False,
                            use_transformers_continuous_batching=s["generation"] == "continuous", **common)
    trainer = trl.GRPOTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, reward_funcs=sevens, callbacks=[Clock()])
trainer.train()
log = [r for r in trainer.state.log_history if "loss" in r]
print(json.dumps({"step_s": [b - a for a, b in zip(ends, ends[1:])], "last": log[-1] if log else {}, "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else None,
                  "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}}))
