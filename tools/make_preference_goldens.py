"""Write tests/golden/preference: preference training computed by TRL and PEFT, for tests/e2e/preference_truth.py.

    python3 tools/make_preference_goldens.py tests/golden/preference       (trl 1.16, peft 0.21, transformers 5.24, torch 2.15; CPU)

The model, tokenizer and template are those of tests/golden/sft (make_sft_goldens.py). The folder holds
    pairs.jsonl     preferences: messages, whole conversations, strings; some with a margin
    labels.jsonl    single completions with a label
    reward/         the model with a score head (AutoModelForSequenceClassification, one label), where reward runs start
    reward-end/     score.safetensors: the head after the last step of `reward`
    reward-adapter/ the start of the run reward-lora, saved by PEFT: adapters and head
    truth.json      for each run its options, and loss, gradient norm and TRL's metrics of every step

A run takes STEPS steps of BATCH examples in the order of the file. Everything is in double precision, except for what TRL computes in float.
ORPO's first term is the mean over the chosen completion, as in the paper; TRL's own includes the prompt, and is replaced here."""
import json
import os
import random
import shutil
import sys

import torch
import transformers
from datasets import Dataset
from golden_adapters import starting_adapters
from peft import PeftModel
from safetensors.torch import save_file
from torch.utils.data import SequentialSampler
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

out, base = sys.argv[1], "tests/golden/sft"
STEPS, BATCH, SEQ, LR, PAD = 20, 4, 96, 1e-3, "<|tool|>"
transformers.logging.set_verbosity_error()


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def words(r, n):
    return " ".join(r.choice(["naïve", "der", "Fluss", "😀", "is", "1234", "why", "yes", "no", "Paris"]) for _ in range(n))


def pairs():
    """(the line of the file, prompt, chosen, rejected as messages, margin)."""
    r = random.Random(5)
    for i in range(16):
        prompt = [user(words(r, r.randrange(1, 8)))]
        if i % 5 == 1:
            prompt += [assistant(words(r, 3)), user(words(r, 2))]
        chosen, rejected = [assistant(words(r, r.randrange(1, 9)))], [assistant(words(r, r.randrange(1, 9)))]
        line = [{"prompt": prompt, "chosen": chosen, "rejected": rejected}, {"chosen": prompt + chosen, "rejected": prompt + rejected}][i % 2]
        if i % 4 == 2 and len(prompt) == 1:
            line = {"prompt": prompt[0]["content"], "chosen": chosen[0]["content"], "rejected": rejected[0]["content"]}
        margin = 0.25 * (i % 3)
        yield {**line, **({"margin": margin} if margin > 0 else {})}, prompt, chosen, rejected, margin


def base_model():
    return LlamaForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")


def model_of(run):
    return PeftModel.from_pretrained(base_model(), f"{base}/adapter-all", is_trainable=True).double() if run.get("lora") else base_model()


def reward_model(run):
    model = AutoModelForSequenceClassification.from_pretrained(f"{out}/reward", dtype=torch.float64, attn_implementation="eager")
    if not run.get("lora"):
        return model
    return starting_adapters(model, f"{out}/reward", f"{out}/reward-adapter", "SEQ_CLS")


def arguments(config, **more):
    return config(output_dir="/tmp/preference-goldens", per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, adam_beta1=0.9,
                  adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], bf16=False, use_cpu=True, gradient_checkpointing=False, max_length=SEQ, **more)


def sequential(trainer):
    class Sequential(trainer):
        def _get_train_sampler(self, *_):
            return SequentialSampler(self.train_dataset)
    return Sequential


class ORPO(ORPOTrainer):
    def concatenated_forward(self, model, batch):
        got = super().concatenated_forward(model, batch)
        return (*got[:4], -got[0].mean(), *got[5:])


def steps_of(trainer):
    names = ("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "kl")
    rename = {"accuracy": "rewards/accuracies", "margin": "rewards/margins"}
    steps = []
    for log in trainer.state.log_history:
        if "loss" not in log:
            continue
        log = {rename.get(k, k): v for k, v in log.items()}
        steps.append({"loss": log["loss"], "grad_norm": log["grad_norm"], **{n: log[n] for n in names if n in log}})
    assert len(steps) == STEPS, len(steps)
    return steps


RUNS = [
    {"name": "dpo", "options": {"objective.kind": "dpo", "objective.beta": 0.3}, "trl": (DPOTrainer, DPOConfig, {"beta": 0.3})},
    {"name": "dpo-lora", "lora": True, "options": {"objective.kind": "dpo", "objective.beta": 0.3}, "trl": (DPOTrainer, DPOConfig, {"beta": 0.3})},
    {"name": "dpo_robust", "options": {"objective.kind": "dpo_robust", "objective.beta": 0.3, "objective.smoothing": 0.1}, "trl": (DPOTrainer, DPOConfig, {"beta": 0.3, "loss_type": ["robust"], "label_smoothing": 0.1})},
    {"name": "dpo_norm", "options": {"objective.kind": "dpo_norm", "objective.beta": 1}, "trl": (DPOTrainer, DPOConfig, {"beta": 1.0, "loss_type": ["sigmoid_norm"]})},
    {"name": "ipo_norm", "options": {"objective.kind": "ipo_norm", "objective.beta": 0.5}, "trl": (DPOTrainer, DPOConfig, {"beta": 0.5, "loss_type": ["ipo"]})},
    {"name": "ipo-lora", "lora": True, "options": {"objective.kind": "ipo_norm", "objective.beta": 0.5}, "trl": (DPOTrainer, DPOConfig, {"beta": 0.5, "loss_type": ["ipo"]})},
    {"name": "simpo", "options": {"objective.kind": "simpo", "objective.beta": 2, "objective.margin": 0.5}, "trl": (CPOTrainer, CPOConfig, {"beta": 2.0, "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5})},
    {"name": "simpo-lora", "lora": True, "options": {"objective.kind": "simpo", "objective.beta": 2, "objective.margin": 0.5}, "trl": (CPOTrainer, CPOConfig, {"beta": 2.0, "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5})},
    {"name": "orpo", "options": {"objective.kind": "orpo", "objective.beta": 0.2}, "trl": (ORPO, ORPOConfig, {"beta": 0.2})},
    {"name": "orpo-lora", "lora": True, "options": {"objective.kind": "orpo", "objective.beta": 0.2}, "trl": (ORPO, ORPOConfig, {"beta": 0.2})},
    {"name": "kto", "data": "labels", "options": {"objective.kind": "kto", "objective.beta": 0.3, "objective.good": 1, "objective.bad": 1.5}, "trl": (KTOTrainer, KTOConfig, {"beta": 0.3, "desirable_weight": 1.0, "undesirable_weight": 1.5})},
    {"name": "kto-lora", "lora": True, "data": "labels", "options": {"objective.kind": "kto", "objective.beta": 0.3}, "trl": (KTOTrainer, KTOConfig, {"beta": 0.3})},
    {"name": "apo_zero", "data": "labels", "options": {"objective.kind": "apo_zero", "objective.beta": 0.3}, "trl": (KTOTrainer, KTOConfig, {"beta": 0.3, "loss_type": "apo_zero_unpaired"})},
    {"name": "reward-lora", "lora": True, "data": "margins", "options": {"objective.kind": "reward", "objective.center": 0.05}, "trl": (RewardTrainer, RewardConfig, {"center_rewards_coefficient": 0.05})},
    {"name": "reward", "data": "margins", "options": {"objective.kind": "reward", "objective.center": 0.05}, "trl": (RewardTrainer, RewardConfig, {"center_rewards_coefficient": 0.05})},
]


def train(run, tok, sets):
    trainer, config, how = run.pop("trl")
    torch.manual_seed(0)
    reward = trainer is RewardTrainer
    model = reward_model(run) if reward else model_of(run)
    t = sequential(trainer)(model=model, args=arguments(config, **how), train_dataset=sets[run.get("data", "pairs")], processing_class=tok)
    t.train()
    run["steps"] = steps_of(t)
    if run["name"] == "reward":
        os.makedirs(f"{out}/reward-end", exist_ok=True)
        save_file({"score.weight": model.score.weight.detach().float().contiguous()}, f"{out}/reward-end/score.safetensors")
    print(run["name"], run["steps"][0], run["steps"][-1], flush=True)
    return run


def main():
    torch.set_num_threads(1)
    tok = PreTrainedTokenizerFast.from_pretrained(base)
    tok.pad_token = PAD
    lines = list(pairs())
    with open(f"{out}/pairs.jsonl", "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line, *_ in lines))
    labels = [{"prompt": p, "completion": (c, r)[i % 2], "label": i % 2 == 0} for i, (_, p, c, r, _) in enumerate(lines)]
    labels[2]["label"] = labels[5]["label"] = False
    with open(f"{out}/labels.jsonl", "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in labels))
    rows = [{"prompt": p, "chosen": c, "rejected": r} for _, p, c, r, _ in lines]
    sets = {"pairs": Dataset.from_list(rows), "labels": Dataset.from_list(labels), "margins": Dataset.from_list([{**row, "margin": m} for row, (*_, m) in zip(rows, lines)])}

    torch.manual_seed(2)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, pad_token_id=tok.pad_token_id, dtype=torch.float32)
    model.score.weight.data = 0.2 * torch.randn(model.score.weight.shape)
    model.to(torch.bfloat16).save_pretrained(f"{out}/reward")
    truth = {"seq": SEQ, "steps": STEPS, "batch": BATCH, "lr": LR, "runs": [train(run, tok, sets) for run in RUNS]}
    with open(f"{out}/truth.json", "w") as f:
        json.dump(truth, f, separators=(",", ":"))
    shutil.rmtree("/tmp/preference-goldens", ignore_errors=True)


main()
