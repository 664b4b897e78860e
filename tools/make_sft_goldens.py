"""Write tests/golden/sft: fine-tuning computed by PyTorch, transformers and PEFT, for tests/e2e/sft_truth.py and tests/unit/model/test_lora.c.

    python3 tools/make_sft_goldens.py tests/golden/sft         (packages torch, transformers, peft, tokenizers, safetensors)

The folder is a small Llama with a tokenizer and a chat template that has {% generation %} tags, and:
    chat.jsonl      conversations in the shapes that Lateen reads
    truth.json      ids and masks of each by apply_chat_template; loss and gradient norm of every step of a full fine-tuning, and of LoRA
                    runs; all in double precision. A step sees every conversation once, and each conversation is computed separately, so a
                    packing in which one affects the next gives another loss.
    adapter-*/      the starts of the LoRA runs, saved by PEFT; adapter-*-end/ their ends; merged.safetensors,
                    merged-dora.safetensors: merge_and_unload of the first and of DoRA"""
import json
import os
import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out = sys.argv[1]
STEPS, SEQ, LR = 20, 112, 3e-3
TEMPLATE = """{{ bos_token }}{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}\
{% generation %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|end|>{% endgeneration %}\
{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
SPECIAL = ["<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
MERGED = {"all": "merged", "dora": "merged-dora"}
CALL = {"name": "add", "arguments": {"a": 2, "b": 3}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def rows():
    """(the line of the file, its messages, tools)."""
    u, a, s = (lambda t: {"role": "user", "content": t}), (lambda t: {"role": "assistant", "content": t}), (lambda t: {"role": "system", "content": t})
    def plain(*m, **more):
        return {"messages": list(m), **more}, list(m), more.get("tools")
    yield plain(u("Hi"), a("Hello!"))
    yield plain(s("Be brief."), u("2+2?"), a("4"), u("and 3+3?"), a("6, of course."))
    yield plain(u("What is the capital of France?"), a("Paris is the capital of France, on the river Seine."))
    yield plain(u("think"), {"role": "assistant", "content": "yes", "reasoning_content": "because it is so"})
    m = [u("add 2 and 3"), {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]}, {"role": "tool", "content": "5"}, a("5")]
    yield {"messages": m, "tools": json.dumps(TOOLS)}, m, TOOLS
    yield {"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "one"}, {"from": "human", "value": "b?"}, {"from": "gpt", "value": "two"}]}, [u("a?"), a("one"), u("b?"), a("two")], None
    yield {"system": "Call.", "conversations": [{"from": "human", "value": "sum"}, {"from": "function_call", "value": json.dumps(CALL)}, {"from": "observation", "value": "5"}, {"from": "gpt", "value": "It is 5."}]}, \
        [s("Call."), u("sum"), m[1], {"role": "tool", "content": "5"}, a("It is 5.")], None
    yield {"instruction": "Translate", "input": "chat", "output": "cat"}, [u("Translate\nchat"), a("cat")], None
    yield {"instruction": "Say no", "output": "no", "history": [["Say yes", "yes"]]}, [u("Say yes"), a("yes"), u("Say no"), a("no")], None
    yield {"prompt": [u("x"), a("not learnt"), u("y")], "completion": [a("learnt")]}, [u("x"), {"role": "assistant", "content": "not learnt", "weight": 0}, u("y"), a("learnt")], None
    yield {"prompt": "one two", "completion": "three"}, [u("one two"), a("three")], None
    w = [u("p"), {"role": "assistant", "content": "silent", "weight": 0}, u("q"), {"role": "assistant", "content": "spoken", "weight": 1}]
    yield {"messages": w}, w, None
    r = random.Random(3)
    for _ in range(8):
        m = []
        for _ in range(r.randrange(1, 3)):
            m += [u(" ".join(r.choice(["naïve", "der", "Fluss", "😀", "is", "1234", "why"]) for _ in range(r.randrange(1, 6)))), a(" ".join(r.choice(["ja", "the", "answer", "42", "é"]) for _ in range(r.randrange(1, 5))))]
        yield plain(*m)


def make_tokenizer(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.save(f"{out}/tokenizer.json")
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|end|>", "chat_template": TEMPLATE}, open(f"{out}/tokenizer_config.json", "w"), indent=1)
    return PreTrainedTokenizerFast.from_pretrained(out)


def encode(tok, messages, tools):
    """ids and mask; answers of weight 0 are removed from the mask by the difference of prefixes."""
    got = tok.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = list(got["input_ids"]), list(got["assistant_masks"])
    for i, m in enumerate(messages):
        if m.get("weight", 1) == 0:
            at, end = (len(tok.apply_chat_template(messages[:i + k], tools=tools, return_dict=True, add_generation_prompt=k == 0)["input_ids"]) for k in (0, 1))
            mask[at:end] = [0] * (end - at)
    return ids, mask


def best_fit_rows(lengths):
    room = []
    for n in sorted(lengths, reverse=True):
        fits = [r for r in room if r >= n]
        if fits:
            room[room.index(min(fits))] -= n
        else:
            room.append(SEQ - n)
    return len(room)


def train(model, data, clip=1.0, decay=0.0):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    steps, n = [], sum(sum(m[1:]) for _, m in data)
    for _ in range(STEPS):
        loss = 0.0
        for ids, mask in data:
            x, labels = torch.tensor([ids[:-1]]), torch.tensor(ids[1:])
            logp = torch.log_softmax(model(x).logits[0], -1)
            loss = loss - (logp[torch.arange(len(labels)), labels] * torch.tensor(mask[1:], dtype=logp.dtype)).sum()
        (loss / n).backward()
        norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], clip)
        opt.step()
        opt.zero_grad()
        steps.append({"loss": loss.item() / n, "grad_norm": norm.item()})
    return steps


def base():
    return LlamaForCausalLM.from_pretrained(out, dtype=torch.float64, attn_implementation="eager")


def store(folder):
    """An adapter in F32, with which both start."""
    path = f"{folder}/adapter_model.safetensors"
    save_file({k: v.float().contiguous() for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
    for name in os.listdir(folder):
        if name not in ("adapter_config.json", "adapter_model.safetensors"):
            os.remove(f"{folder}/{name}")
    config = json.load(open(f"{folder}/adapter_config.json"))
    config["target_modules"].sort()  # PEFT writes a set.
    json.dump(config, open(f"{folder}/adapter_config.json", "w"), indent=1)


def lora(data, name, **how):
    torch.manual_seed(1)
    model = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, base_model_name_or_path="tests/golden/sft", **how))
    start, end = f"{out}/adapter-{name}", f"{out}/adapter-{name}-end"
    for n, p in model.named_parameters():  # F32 values, so that the file has exactly the start.
        if p.requires_grad:
            p.data = p.data.float().double()
    model.save_pretrained(start)
    store(start)
    got = {"name": name, "steps": train(model, data), "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    model.save_pretrained(end)
    store(end)
    if name in MERGED:
        save_file({k: v.float().contiguous() for k, v in model.merge_and_unload().state_dict().items()}, f"{out}/{MERGED[name]}.safetensors")
    return got


def top(data, name, tied):
    """Adapters of the embedding, the output head and q_proj. The folder has PEFT's copies of the first two if the head is not tied."""
    torch.manual_seed(1)
    model = base()
    if tied:  # The file has two matrices, which transformers would not tie.
        model.lm_head.weight = model.model.embed_tokens.weight
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, base_model_name_or_path="tests/golden/sft", r=3, lora_alpha=6, target_modules=["q_proj", "embed_tokens", "lm_head"]))
    for n, p in model.named_parameters():
        if p.requires_grad:
            p.data = p.data.float().double()
    model.save_pretrained(f"{out}/adapter-{name}", save_embedding_layers=not tied)
    store(f"{out}/adapter-{name}")
    got = {"name": name, "tied": tied, "steps": train(model, data), "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad)}
    model.save_pretrained(f"{out}/adapter-{name}-end", save_embedding_layers=False)
    store(f"{out}/adapter-{name}-end")
    if not tied:
        whole = model.merge_and_unload().state_dict()
        save_file({k: whole[k].float().contiguous() for k in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight")}, f"{out}/merged-{name}.safetensors")
    return got


def main():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    lines = list(rows())
    texts = [json.dumps(line, ensure_ascii=False) for line, _, _ in lines]
    tok = make_tokenizer(texts)
    with open(f"{out}/chat.jsonl", "w", encoding="utf-8") as f:
        f.write("".join(t + "\n" for t in texts))
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tok), hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                         max_position_embeddings=128, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, initializer_range=0.1))
    model.to(torch.bfloat16).save_pretrained(out)
    for extra in ("generation_config.json",):
        if os.path.exists(f"{out}/{extra}"):
            os.remove(f"{out}/{extra}")
    data = [encode(tok, m, t) for _, m, t in lines]
    assert max(len(i) for i, _ in data) <= SEQ, max(len(i) for i, _ in data)
    truth = {"seq": SEQ, "steps": STEPS, "lr": LR, "rows": best_fit_rows([len(i) - 1 for i, _ in data]), "conversations": [{"ids": i, "mask": m} for i, m in data],
             "full": train(base(), data), "lora": [lora(data, "all", r=4, lora_alpha=8, target_modules="all-linear"),
                                                   lora(data, "rs", r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"]),
                                                   lora(data, "dora", r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"])]}
    truth["top"] = [top(data, "top", False), top(data, "top-tied", True)]
    with open(f"{out}/truth.json", "w") as f:
        json.dump(truth, f, separators=(",", ":"))
    print(truth["rows"], "rows;", truth["full"][0], truth["full"][-1], [(r["name"], r["trainable"], r["steps"][0], r["steps"][-1]) for r in truth["lora"]])


main()
