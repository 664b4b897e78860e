"""Write tests/golden/distill: distillation computed by TRL's losses, for tests/e2e/distill_truth.py.

    python3 tools/make_distill_goldens.py tests/golden/distill       (trl 1.16, peft 0.21, transformers 5.24, torch 2.15; CPU)

The student, tokenizer, template and conversations are those of tests/golden/sft (make_sft_goldens.py), with its ids and masks. The folder holds
    teacher/        another small Llama with the same vocabulary
    truth.json      for each run its options, and loss and gradient norm of every step; for some conversations the teacher's most likely tokens

A run takes STEPS steps of BATCH conversations in the order of the file, in double precision. The divergence of whole distributions is GKDTrainer's
generalized_jsd_loss, that of the teacher's most likely tokens is ServerDistillationTrainer's, with its tail bucket or without it. On policy, a step's last answers are the
student's own most likely tokens; the two most likely ones differ by more than GAP everywhere, so that the same ones are chosen in another precision."""
import json
import os
import sys

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from trl.experimental.gkd import GKDTrainer
from trl.experimental.server_distillation.server_distillation_trainer import _add_tail_bucket, _jsd_divergence

out, base = sys.argv[1], "tests/golden/sft"
STEPS, BATCH, LR, K, TOKENS, END, GAP, SEQ = 20, 5, 3e-3, 8, 8, 1, 1e-4, 112
# name: (Lateen's options, beta, temperature, share of the labels, more)
RUNS = {
    "forward": ({}, 0.0, 1.0, 0.0, {}),
    "reverse": ({"distill.beta": 1}, 1.0, 1.0, 0.0, {}),
    "gkd": ({"distill.beta": 0.5, "distill.temperature": 2}, 0.5, 2.0, 0.0, {}),
    "labels": ({"distill.beta": 0.1, "distill.temperature": 1.5, "distill.labels": 0.3}, 0.1, 1.5, 0.3, {}),
    "lora": ({"distill.beta": 0.9}, 0.9, 1.0, 0.0, {"lora": True}),
    "words": ({}, 0.0, 1.0, 0.0, {"rest": True}),
    "words-reverse": ({"distill.beta": 1, "distill.temperature": 2}, 1.0, 2.0, 0.0, {"rest": True}),
    "words-gkd": ({"distill.beta": 0.5, "distill.labels": 0.25}, 0.5, 1.0, 0.25, {"rest": True}),
    "words-alone": ({"distill.rest": "renormalise"}, 0.0, 1.0, 0.0, {"rest": False}),
    "words-alone-gkd": ({"distill.rest": "renormalise", "distill.beta": 0.5, "distill.temperature": 2}, 0.5, 2.0, 0.0, {"rest": False}),
    "on-policy": ({"distill.beta": 0.5, "distill.on_policy": 1, "distill.tokens": TOKENS, "distill.sampling_temperature": 1e-6}, 0.5, 1.0, 0.0, {"draws": True}),
}


def make_teacher():
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=320, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=128,
                                         initializer_range=0.6, bos_token_id=0, eos_token_id=END, tie_word_embeddings=True)).to(torch.bfloat16)
    model.save_pretrained(f"{out}/teacher")
    state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, f"{out}/teacher/model.safetensors", metadata={"format": "pt"})
    for name in set(os.listdir(f"{out}/teacher")) - {"config.json", "model.safetensors"}:
        os.remove(f"{out}/teacher/{name}")
    return LlamaForCausalLM.from_pretrained(f"{out}/teacher", dtype=torch.float64, attn_implementation="eager").requires_grad_(False)


def student(more):
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
    return PeftModel.from_pretrained(model, f"{base}/adapter-all", is_trainable=True).double() if more.get("lora") else model


def words_of(logits, temperature):
    top = torch.topk(torch.log_softmax(logits / temperature, -1), K)
    return top.indices, top.values


def divergence(own, its, beta, temperature, more):
    """Sum over the rows of (n, V) logits."""
    if "rest" not in more:
        return GKDTrainer.generalized_jsd_loss(own, its, beta=beta, temperature=temperature, reduction="sum")
    ids, logp = words_of(its, temperature)
    q, all_words = torch.log_softmax(own / temperature, -1).gather(-1, ids), torch.ones_like(ids, dtype=torch.bool)
    if more["rest"]:
        p, mask = _add_tail_bucket(logp, all_words)
        return _jsd_divergence(_add_tail_bucket(q, all_words)[0], p, beta, mask).sum()
    p = logp - torch.logsumexp(logp, -1, keepdim=True)
    return _jsd_divergence(q - torch.logsumexp(q, -1, keepdim=True), p, beta, all_words).sum()


def answered(model, ids, mask):
    """The question of the last answer, with the student's most likely one; unchanged if that does not fit."""
    end = max(i for i, m in enumerate(mask) if m) + 1
    first = end
    while first > 0 and mask[first - 1]:
        first -= 1
    if first + TOKENS > SEQ:
        return ids, mask
    tokens = list(ids[:first])
    with torch.no_grad():
        while len(tokens) < first + TOKENS and (len(tokens) == first or tokens[-1] != END):
            top = torch.topk(model(torch.tensor([tokens])).logits[0, -1], 2)
            assert top.values[0] - top.values[1] > GAP, top
            tokens.append(top.indices[0].item())
    return tokens, [0] * first + [1] * (len(tokens) - first)


def run(teacher, data, beta, temperature, share, more):
    model = student(more)
    parameters = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    steps = []
    for step in range(STEPS):
        rows = [data[(step * BATCH + i) % len(data)] for i in range(BATCH)]
        rows = [answered(model, *row) for row in rows] if more.get("draws") else rows
        loss, n = 0.0, 0
        for ids, mask in rows:
            x, learnt = torch.tensor([ids[:-1]]), torch.tensor(mask[1:], dtype=torch.bool)
            own, its, labels = model(x).logits[0][learnt], teacher(x).logits[0][learnt], torch.tensor(ids[1:])[learnt]
            loss = loss + (1 - share) * divergence(own, its, beta, temperature, more) + share * F.cross_entropy(own, labels, reduction="sum")
            n += len(labels)
        (loss / n).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        opt.step()
        opt.zero_grad()
        steps.append({"loss": loss.item() / n, "grad_norm": norm.item(), "labels": n})
    return steps


def main():
    torch.set_num_threads(1)
    os.makedirs(f"{out}/teacher", exist_ok=True)
    teacher = make_teacher()
    data = [(c["ids"], c["mask"]) for c in json.load(open(f"{base}/truth.json"))["conversations"]]
    runs = []
    for name, (options, beta, temperature, share, more) in RUNS.items():
        runs.append({"name": name, "options": options, **({"words": True, "temperature": temperature} if "rest" in more else {}), **({"lora": True} if more.get("lora") else {}),
                     "steps": run(teacher, data, beta, temperature, share, more)})
        print(name, runs[-1]["steps"][0], runs[-1]["steps"][-1])
    words = []
    for ids, mask in data[:4]:
        got, logp = words_of(teacher(torch.tensor([ids])).logits[0], 1.0)
        words.append([sorted(zip(got[t - 1].tolist(), logp[t - 1].tolist())) for t in range(1, len(ids)) if mask[t]])
    with open(f"{out}/truth.json", "w") as f:
        json.dump({"batch": BATCH, "steps": STEPS, "lr": LR, "k": K, "seq": SEQ, "runs": runs, "words": words}, f, separators=(",", ":"))
        f.write("\n")


main()
