"""Reward models in reinforcement learning, and `lateen align rewards`: scores as transformers computes them (tests/golden/rl/scores.json,
tools/make_reward_goldens.py), rewards and quantiles of a reference model's completions, and a command that is killed. Standard library only; TAP on stdout.

usage: align_rewards.py LATEEN"""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

from tap import Tap

lateen = sys.argv[1]
sft, scorer = "tests/golden/sft", "tests/golden/preference/reward"
golden = json.load(open("tests/golden/rl/scores.json"))
tap = Tap(600)


def check(name, wrong):
    tap.check(name, not wrong, wrong)


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(r) + "\n" for r in rows))
    return path


def lines(path):
    return [json.loads(x) for x in open(path, encoding="utf-8")]


def command(data, out, **more):
    args = {"model": sft, "reward-model": judge, "out": out, "n": 4, "tokens": 8, "seq": 128, "threads": 1, **more}
    return [lateen, "align", "rewards", data, *(w for n, v in args.items() if v is not None for w in (f"--{n}", str(v)))]


def rewards(data, out, **more):
    return subprocess.run(command(data, out, **more), capture_output=True, text=True)


def train(out, data, **more):
    args = {"out": out, "model.init": sft, "data.train": data, "data.seq": 96, "batch.size": 8, "steps": 2, "optim.lr": 1e-3, "threads": 1, "sample.tokens": 0, **more}
    return subprocess.run([lateen, "train", *(w for n, v in args.items() for w in (f"--{n}", str(v)))], capture_output=True, text=True)


def said(run, *wanted):
    missing = [w for w in wanted if w not in run.stderr]
    return f"{run.returncode}: {missing}: {run.stderr[-500:]}" if run.returncode not in (1, 2) or missing else ""


def near(a, b):
    return abs(a - b) <= 1e-5 * max(1.0, abs(b))


with tempfile.TemporaryDirectory() as work:
    judge = f"{work}/judge"
    shutil.copytree(scorer, judge)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{sft}/{name}", judge)

    # Completions of the lines.
    given = write(f"{work}/given.jsonl", [{"prompt": g["messages"], "completion": [{"role": "assistant", "content": g["answer"]}], "topic": i} if i % 2 else {"messages": [*g["messages"], {"role": "assistant", "content": g["answer"]}], "topic": i}
                                          for i, g in enumerate(golden)])
    done = rewards(given, f"{work}/given-out.jsonl", prompts=3)
    got = lines(f"{work}/given-out.jsonl") if done.returncode == 0 else []
    check("completions of the lines have transformers' scores", done.stderr[-400:] if done.returncode != 0 else [(g["score"], x["reward"]) for g, x in zip(golden, got) if not near(x["reward"], g["score"])] or len(got) != len(golden))
    check("with the rewards of as many completions as were asked for, and further members", "" if got and all(len(x["ref_rewards"]) == 4 and x["topic"] == i and x["prompt"] == golden[i]["messages"] and "messages" not in x for i, x in enumerate(got)) else got[:1])
    check("the quantile is the share of these that are at most the reward", [x for x in got if x["quantile"] != sum(r <= x["reward"] for r in x["ref_rewards"]) / 4])
    both = rewards(given, f"{work}/sum.jsonl", rewards="model:2,ended:0.5", prompts=3)
    check("a weighted sum with another reward", both.stderr[-400:] if both.returncode != 0 else [(g["score"], x["reward"]) for g, x in zip(golden, lines(f"{work}/sum.jsonl")) if not near(x["reward"], 2 * g["score"] + 0.5)])

    for own in ({"prompt": "a", "completion": 5}, {"prompt": "a", "completion": [{"role": "user", "content": "b"}]}, {"prompt": "a", "completion": []},
                {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]}):
        done = rewards(write(f"{work}/odd.jsonl", [own]), f"{work}/odd-out.jsonl")
        check("a completion that is not a text is refused, not sampled", "" if done.returncode == 1 and "odd.jsonl:1: " in done.stderr and "is neither a string nor" in done.stderr else (own, done.stderr[-300:]))

    # A process reward model: the lowest of the probabilities that transformers gives to the
    # steps.
    subprocess.run([sys.executable, "tests/e2e/serve_steps.py", "folder", f"{work}/prm"], check=True)
    rows = [json.loads(x) for x in open("tests/golden/prm/steps.jsonl", encoding="utf-8")][:4]
    chat = json.load(open("tests/golden/prm/truth.json"))["chat"]
    stepped = write(f"{work}/stepped.jsonl", [{"prompt": [{"role": "user", "content": r["prompt"]}], "completion": [{"role": "assistant", "content": "\n".join(r["completions"])}]} for r in rows])
    done = rewards(stepped, f"{work}/stepped-out.jsonl", **{"reward-model": f"{work}/prm"})
    least = [min(math.exp(good) for _, good in c["logps"]) for c in chat]
    got = [x["reward"] for x in lines(f"{work}/stepped-out.jsonl")] if done.returncode == 0 else []
    check("a process reward model's score is that of the worst step", done.stderr[-400:] if done.returncode != 0 else [(a, b) for a, b in zip(got, least) if not near(a, b)] or len(got) != 4)

    # The same with a head of two layers, whose separator is a special token: empty lines divide
    # an answer.
    subprocess.run([sys.executable, "tests/e2e/serve_steps.py", "head_folder", f"{work}/prm-head"], check=True)
    rows = json.load(open("tests/golden/prm_head/truth.json", encoding="utf-8"))
    stepped = write(f"{work}/head.jsonl", [{"prompt": [{"role": "user", "content": r["prompt"]}], "completion": [{"role": "assistant", "content": "\n\n".join(r["steps"])}]} for r in rows])
    done = rewards(stepped, f"{work}/head-out.jsonl", **{"reward-model": f"{work}/prm-head"})
    got = [x["reward"] for x in lines(f"{work}/head-out.jsonl")] if done.returncode == 0 else []
    check("so does one whose head has two layers", done.stderr[-400:] if done.returncode != 0 else [(g, r["chat"]) for g, r in zip(got, rows) if not near(g, min(good for _, good in r["chat"]))] or len(got) != 6)

    # Sampled completions.
    asked = write(f"{work}/asked.jsonl", [{"prompt": g["messages"]} for g in golden] * 6)
    done = rewards(asked, f"{work}/asked-out.jsonl", prompts=5)
    drawn = lines(f"{work}/asked-out.jsonl") if done.returncode == 0 else []
    check("a line without a completion becomes one for each that is drawn", done.stderr[-400:] if len(drawn) != 4 * 6 * len(golden) else [x for i, x in enumerate(drawn) if x["ref_rewards"][i % 4] != x["reward"]])
    again = rewards(write(f"{work}/drawn.jsonl", drawn[:24]), f"{work}/drawn-out.jsonl")
    check("and these have the same scores as completions of lines", again.stderr[-400:] if again.returncode != 0 else [(a["reward"], b["reward"]) for a, b in zip(drawn, lines(f"{work}/drawn-out.jsonl")) if not near(a["reward"], b["reward"])])
    part = f"{work}/killed.jsonl"
    run = subprocess.Popen(command(asked, part, prompts=5), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 120
    while run.poll() is None and not os.path.exists(f"{part}.state.json") and time.time() < deadline:
        time.sleep(0.002)
    run.kill()
    run.wait()
    stopped = os.path.exists(f"{part}.part")
    other = rewards(asked, part, prompts=5, temperature=0.5) if stopped else None
    after = rewards(asked, part, prompts=5) if stopped else None
    same = os.path.exists(part) and open(part).read() == open(f"{work}/asked-out.jsonl").read()
    check("killed and started again, the file is the same", "" if same and (not stopped or "of these from an earlier start" in after.stderr) else after and after.stderr[-400:])
    check("another temperature does not continue with it", said(other, "was made from other prompts, by another model or with other options") if stopped else "")
    check("an existing file is not overwritten", said(rewards(asked, part, prompts=5), "exists already"))
    qrpo = train(f"{work}/qrpo", f"{work}/asked-out.jsonl", **{"objective.kind": "qrpo_norm", "objective.beta": 5})
    check("qrpo learns from it", "" if qrpo.returncode == 0 and "192 examples" in qrpo.stderr else qrpo.stderr[-400:])

    # In reinforcement learning.
    rl = {"objective.kind": "grpo", "rl.group": 4, "rl.tokens": 8, "rl.rewards": "model", "rl.reward_model": judge}
    learnt = train(f"{work}/grpo", asked, **rl)
    told = [x for x in lines(f"{work}/grpo/metrics.jsonl") if x["kind"] == "answers"][0] if learnt.returncode == 0 else {}
    check("grpo with a reward model", learnt.stderr[-400:] if not told else "")
    first = lines(asked)[told["line"] - 1] if told else {}
    texts = rewards(write(f"{work}/told.jsonl", [{**first, "completion": a["text"]} for a in told.get("answers", [])]), f"{work}/told-out.jsonl", rewards="model")
    check("whose answers have the model's scores", texts.stderr[-400:] if texts.returncode != 0 else [(a, x["reward"]) for a, x in zip(told["answers"], lines(f"{work}/told-out.jsonl")) if not near(a["reward"], x["reward"])])
    mixed = train(f"{work}/mixed", asked, **{**rl, "rl.rewards": "model:0.5,ended", "rl.temperature": 0.7})
    parts = [x for x in lines(f"{work}/mixed/metrics.jsonl") if x["kind"] == "answers"][0]["rewards"] if mixed.returncode == 0 else {}
    check("in a sum, at another temperature", "" if set(parts) == {"model", "ended"} else mixed.stderr[-400:])

    changed = shutil.copytree(judge, f"{work}/judge-changed")
    rl["rl.reward_model"] = changed
    judged = train(f"{work}/judged", asked, **rl)
    weights = bytearray(open(f"{changed}/model.safetensors", "rb").read())
    weights[-4] ^= 1
    open(f"{changed}/model.safetensors", "wb").write(weights)
    check("another reward model at the same path is not resumed with", judged.stderr[-400:] if judged.returncode else
          said(train(f"{work}/judged", asked, **{**rl, "steps": 20}), f"rl.reward_model: the model at {changed} has changed since the checkpoint"))

    # What is refused.
    check("no reward model", said(rewards(asked, f"{work}/no.jsonl", **{"reward-model": None}), "reward 'model' needs a reward model"))
    check("a reward model that no reward reads", said(rewards(asked, f"{work}/no.jsonl", rewards="ended"), "a reward model is given, but no reward 'model'"))
    check("unit tests, whose sandbox only training sets up", said(rewards(asked, f"{work}/no.jsonl", rewards="unit_tests", **{"reward-model": None}), "rewards 'unit_tests' and 'unit_tests_share' are for training"))
    check("a language model as a reward model", said(rewards(asked, f"{work}/no.jsonl", **{"reward-model": sft}), "is not a reward model: it has no score head"))
    check("a reward model without a tokenizer", said(rewards(asked, f"{work}/no.jsonl", **{"reward-model": scorer}), f"reward model {scorer}"))
    check("a reward model as the reference", said(rewards(asked, f"{work}/no.jsonl", model=judge), "score head of 1 value"))
    check("a temperature with weights for the sampler", said(train(f"{work}/no", asked, **{**rl, "rl.temperature": 0.7, "rl.correction": "token-truncate"}), "rl.temperature = 0.7 with rl.correction"))
    long = write(f"{work}/long.jsonl", [{"prompt": "x", "completion": "why " * 150}])
    check("an answer that the reward model cannot read", said(rewards(long, f"{work}/no.jsonl"), "tokens of the reward model, which reads 128 at most"))
sys.exit(tap.end())
