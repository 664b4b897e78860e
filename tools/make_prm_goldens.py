"""Write tests/golden/prm: process reward models trained by TRL and PEFT, for tests/e2e/prm_truth.py.

    PYTHONPATH=TRL python3 tools/make_prm_goldens.py tests/golden/prm     (trl 1.9.2, the last with its PRM trainer, unpacked in the folder TRL; peft 0.21,
                                                                           transformers 5.24, torch 2.15; CPU)

The model, tokenizer and template are those of tests/golden/sft (make_sft_goldens.py). The folder holds
    steps.jsonl     completions in steps, each with a label
    model/          the model with a head of two labels (AutoModelForTokenClassification), where runs start
    adapter/        the start of the run prm-lora, saved by PEFT: adapters, and the head with its bias
    end/            head.safetensors: the head after the last step of the run `prm`
    truth.json      for each run its options, and loss and gradient norm of every step; for each line the ids and the values of the head at the ends of its
                    steps, log softmax of both labels: "says" of the model, also after the run `prm`; "alone": without the prompt; "chat": the prompt
                    as a message

A run takes STEPS steps of BATCH examples in the order of the file. Everything is in double precision; TRL reports losses in float."""
import json
import os
import random
import shutil
import sys

import torch
import transformers
from datasets import Dataset
from golden_adapters import starting_adapters
from safetensors.torch import save_file
from torch.utils.data import SequentialSampler
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerFast
from trl.experimental.prm import PRMConfig, PRMTrainer

out, base = sys.argv[1], "tests/golden/sft"
STEPS, BATCH, SEQ, LR, PAD = 20, 4, 96, 1e-3, "<|tool|>"
transformers.logging.set_verbosity_error()


class Trainer(PRMTrainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


def words(r, n):
    return " ".join(r.choice(["naïve", "der", "Fluss", "😀", "is", "1234", "why", "yes", "no", "Paris"]) for _ in range(n))


def lines():
    r = random.Random(7)
    for _ in range(16):
        n = r.randrange(1, 5)
        yield {"prompt": words(r, r.randrange(1, 8)), "completions": [words(r, r.randrange(1, 5)) for _ in range(n)], "labels": [r.random() < 0.6 for _ in range(n)]}


def model_of(run):
    model = AutoModelForTokenClassification.from_pretrained(f"{out}/model", dtype=torch.float64, attn_implementation="eager")
    if not run.get("lora"):
        return model
    return starting_adapters(model, f"{out}/model", f"{out}/adapter", "TOKEN_CLS")


RUNS = [
    {"name": "prm", "options": {"objective.kind": "prm"}, "trl": {}},
    {"name": "prm-separator", "options": {"objective.kind": "prm", "objective.separator": " is\n\n"}, "trl": {"step_separator": " is\n\n"}},
    {"name": "prm-lora", "lora": True, "options": {"objective.kind": "prm"}, "trl": {}},
]


def says(model, tok, rows, chat=False):
    """The values of the head at the ends of steps. chat: the prompt is a message of the user, after which the template opens an answer."""
    told = []
    for row in rows:
        got = PRMTrainer.tokenize_row(row, tok, "\n", max_length=None, max_completion_length=None, train_on_last_step_only=False, is_eval=True)
        if chat:
            alone = PRMTrainer.tokenize_row({**row, "prompt": ""}, tok, "\n", max_length=None, max_completion_length=None, train_on_last_step_only=False, is_eval=True)
            prompt = tok.apply_chat_template([{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=False)
            got = {"input_ids": prompt + alone["input_ids"][1:], "labels": [-100] * len(prompt) + alone["labels"][1:]}
        with torch.no_grad():
            logp = model(torch.tensor([got["input_ids"]])).logits[0].log_softmax(-1)
        told.append({"ids": got["input_ids"], "logps": [logp[i].tolist() for i, label in enumerate(got["labels"]) if label >= 0]})
    return told


def train(run, tok, rows):
    how = run.pop("trl")
    torch.manual_seed(0)
    model = model_of(run)
    args = PRMConfig(output_dir="/tmp/prm-goldens", per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, adam_beta1=0.9,
                     adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, max_length=SEQ, **how)
    t = Trainer(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tok)
    t.train()
    run["steps"] = [{"loss": log["loss"], "grad_norm": log["grad_norm"]} for log in t.state.log_history if "loss" in log]
    assert len(run["steps"]) == STEPS, len(run["steps"])
    if run["name"] == "prm":
        os.makedirs(f"{out}/end", exist_ok=True)
        save_file({f"score.{n}": p.detach().float().contiguous() for n, p in model.score.named_parameters()}, f"{out}/end/head.safetensors")
        run["says"] = says(model, tok, rows)
    print(run["name"], run["steps"][0], run["steps"][-1], flush=True)
    return run


def main():
    torch.set_num_threads(1)
    os.makedirs(out, exist_ok=True)
    tok = PreTrainedTokenizerFast.from_pretrained(base)
    tok.pad_token = PAD
    rows = list(lines())
    with open(f"{out}/steps.jsonl", "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    torch.manual_seed(2)
    model = AutoModelForTokenClassification.from_pretrained(base, num_labels=2, pad_token_id=tok.pad_token_id, dtype=torch.float32)
    model.score.weight.data = 0.2 * torch.randn(model.score.weight.shape)
    model.score.bias.data = torch.tensor([0.25, -0.5])
    model.to(torch.bfloat16).save_pretrained(f"{out}/model")
    model = model_of({}).eval()
    before = {"says": says(model, tok, rows), "alone": says(model, tok, [{**row, "prompt": ""} for row in rows[:4]]), "chat": says(model, tok, rows[:4], chat=True)}
    truth = {"seq": SEQ, "steps": STEPS, "batch": BATCH, "lr": LR, **before, "runs": [train(run, tok, rows) for run in RUNS]}
    with open(f"{out}/truth.json", "w") as f:
        json.dump(truth, f, separators=(",", ":"))
    shutil.rmtree("/tmp/prm-goldens", ignore_errors=True)


main()
