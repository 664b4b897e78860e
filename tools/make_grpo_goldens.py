#!/usr/bin/env python3
"""Make tests/golden/rl/grpo.json: 12 optimiser steps of reinforcement learning by TRL's GRPOTrainer, for tests/unit/align/test_learner.c.

    python tools/make_grpo_goldens.py          (trl 1.16, torch 2.15, transformers 5.24; CPU)

The model is tests/golden/sft. TRL draws nothing: rollout_func gives it the answers of the file, so that both trainers learn from the same tokens.
The reward is 1 if an answer ends with the ending token (otherwise 0), minus half of its length divided by the limit.

prompts: ids of the questions; draws: for each call of rollout_func the answers' ids, groups in the order of the questions; cases: the options that
differ, in Lateen's names, and loss and gradient norm of each step.
"""
import json
import os
import pathlib
import random
import tempfile

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
MODEL, STEPS, GROUP, LIMIT, END = "tests/golden/sft", 12, 4, 10, 1
QUESTIONS = ["2+2?", "What is the capital of France?"]
# name: (Lateen's options, TRL's)
CASES = {
    "grpo": ({"objective.kind": "grpo"}, {"loss_type": "grpo"}),
    "dr_grpo": ({"objective.kind": "dr_grpo"}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "dapo, two passes": ({"objective.kind": "dapo", "rl.passes": "2"}, {"loss_type": "dapo", "epsilon_high": 0.28, "num_iterations": 2}),
    "grpo with a reference, three passes": ({"objective.kind": "grpo", "rl.passes": "3", "rl.kl": "0.3", "rl.kl_ratio": "true", "rl.clip_low": "0.02", "rl.clip_high": "0.03"},
                                            {"loss_type": "grpo", "beta": 0.3, "num_iterations": 3, "epsilon": 0.02, "epsilon_high": 0.03}),
    "gspo, two passes": ({"objective.kind": "gspo", "rl.passes": "2", "rl.clip_low": "0.01", "rl.clip_high": "0.02"},
                         {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 0.01, "epsilon_high": 0.02}),
    "dapo at a temperature, two passes": ({"objective.kind": "dapo", "rl.passes": "2", "rl.temperature": "0.7", "rl.kl": "0.1", "rl.kl_ratio": "true"},
                                          {"loss_type": "dapo", "epsilon_high": 0.28, "num_iterations": 2, "temperature": 0.7, "beta": 0.1}),
    "dapo without answers that were cut off": ({"objective.kind": "dapo", "rl.drop_cut": "true"}, {"loss_type": "dapo", "epsilon_high": 0.28, "mask_truncated_completions": True}),
}

r = random.Random(27)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
prompts = [tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False) for q in QUESTIONS]
draws = []
for _ in range(STEPS):
    answers = []
    for _ in range(GROUP * len(QUESTIONS)):
        n = r.randrange(1, LIMIT + 1)
        ids = [r.randrange(6, 320) for _ in range(n)]
        answers.append(ids[:-1] + [END] if n < LIMIT else ids)
    draws.append(answers)


def reward(completion_ids, **_):
    return [(ids[-1] == END) - 0.5 * len(ids) / LIMIT for ids in completion_ids]


class Recorded(GRPOTrainer):
    def compute_loss(self, *args, **more):
        loss = super().compute_loss(*args, **more)
        self.losses.append(loss.item())
        return loss


def run(options):
    calls = iter(draws)

    def rollout(asked, trainer):
        answers, own = next(calls), [prompts[QUESTIONS.index(q[0]["content"])] for q in asked]
        assert own == [p for p in prompts for _ in range(GROUP)]
        return {"prompt_ids": own, "completion_ids": answers, "logprobs": None}

    with tempfile.TemporaryDirectory() as out:
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        config = GRPOConfig(output_dir=out, per_device_train_batch_size=GROUP * len(QUESTIONS), num_generations=GROUP, max_completion_length=LIMIT, max_steps=STEPS, learning_rate=2e-3,
                            lr_scheduler_type="constant", adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0, logging_steps=1, shuffle_dataset=False, report_to=[], bf16=False, use_cpu=True,
                            save_strategy="no", gradient_checkpointing=False, disable_dropout=True, **options)
        rows = Dataset.from_list([{"prompt": [{"role": "user", "content": q}]} for q in QUESTIONS] * STEPS)
        trainer = Recorded(model=model, args=config, reward_funcs=reward, train_dataset=rows, processing_class=tokenizer, rollout_func=rollout)
        trainer.losses = []
        trainer.train()
        norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
        assert len(norms) == len(trainer.losses) == STEPS
        return [{"loss": loss, "grad_norm": norm} for loss, norm in zip(trainer.losses, norms)]


cases = [{"name": name, "options": ours, "steps": run(theirs)} for name, (ours, theirs) in CASES.items()]
for c in cases:
    print(c["name"], *[f"{s['loss']:.6g}/{s['grad_norm']:.6g}" for s in c["steps"]])
pathlib.Path("tests/golden/rl/grpo.json").write_text(json.dumps({"limit": LIMIT, "group": GROUP, "questions": QUESTIONS, "prompts": prompts, "draws": draws, "cases": cases}) + "\n")
