"""The peer of `lateen bench train --device cuda --lora RANK`: the same step as in usual scripts with transformers and PEFT on one GPU: bf16 weights, SDPA,
LoRA beside all linear layers (or, with rank 0, the whole model), fused AdamW, gradient clipping, torch.compile or not.

Usage: train_peft_gpu.py SHAPE BATCH SEQ RANK [MODE [CHECKPOINTING]]   SHAPE  llama-1b | llama-8b   MODE  compile | eager   CHECKPOINTING  none | full
It warms up, prints "ready", then for each line "N" on standard input runs N steps and prints the median seconds of a step; at the end of its
input it prints its peak of memory, in GiB, on standard error."""
import statistics
import sys
import time

import peft
import torch
import transformers

shape, batch, seq, rank = sys.argv[1], *map(int, sys.argv[2:5])
mode = sys.argv[5] if len(sys.argv) > 5 else "compile"
checkpointing = len(sys.argv) > 6 and sys.argv[6] == "full"
SHAPES = {
    "llama-1b": dict(num_hidden_layers=16, hidden_size=2048, num_key_value_heads=8, intermediate_size=8192, head_dim=64, tie_word_embeddings=True),
    "llama-8b": dict(num_hidden_layers=32, hidden_size=4096, num_key_value_heads=8, intermediate_size=14336, head_dim=128, tie_word_embeddings=False),
}
config = transformers.LlamaConfig(num_attention_heads=32, vocab_size=128256, max_position_embeddings=8192, use_cache=False, attn_implementation="sdpa", **SHAPES[shape])
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(config)
torch.set_default_dtype(torch.float32)
if rank > 0:
    model = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0))
if checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
model.train()
learnt = [p for p in model.parameters() if p.requires_grad]
optimiser = torch.optim.AdamW(learnt, lr=1e-5, fused=True)
forward = torch.compile(model) if mode == "compile" else model
ids = torch.randint(0, config.vocab_size, (batch, seq), device="cuda")


def step():
    start = time.perf_counter()
    forward(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(learnt, 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return time.perf_counter() - start


for _ in range(3):
    step()
print("ready", flush=True)
for line in sys.stdin:
    print(statistics.median(step() for _ in range(int(line))), flush=True)
print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", torch.__version__, transformers.__version__, peft.__version__, file=sys.stderr)
