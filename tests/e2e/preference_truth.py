"""Preferences against TRL and PEFT (tests/golden/preference and prm, tools/make_preference_goldens.py and make_prm_goldens.py): loss, gradient norm and
metrics of every step; and what a run keeps, refuses and reports about its data. Standard library only; TAP on stdout.

usage: preference_truth.py LATEEN [all]      all: every run of the goldens, and a run that is killed"""
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from tap import Tap

lateen, everything = sys.argv[1], "all" in sys.argv[2:]
golden, sft, steps = "tests/golden/preference", "tests/golden/sft", "tests/golden/prm"
truth = json.load(open(f"{golden}/truth.json"))
runs = {r["name"]: r for folder in (golden, steps) for r in json.load(open(f"{folder}/truth.json"))["runs"]}
tap = Tap(700)
# TRL computed in double and prints losses and metrics in float; this computes in float.
LOSS, NORM, LOGP = 1e-5, 1e-4, 1e-6
FEW = ("dpo", "ipo-lora", "simpo", "orpo-lora", "kto", "reward", "reward-lora", "prm", "prm-separator", "prm-lora")


def check(name, wrong):
    tap.check(name, not wrong, wrong)


def words_of(out, name, more):
    run = runs[name]
    data = "labels" if run.get("data") == "labels" else "pairs"
    init = f"{golden}/reward" if name.startswith("reward") else f"{steps}/model" if name.startswith("prm") else sft
    adapter = f"{golden}/reward-adapter" if name == "reward-lora" else f"{steps}/adapter" if name == "prm-lora" else f"{sft}/adapter-all"
    args = {"out": out, "model.init": init, "data.tokenizer": sft, "data.train": f"{steps}/steps.jsonl" if name.startswith("prm") else f"{golden}/{data}.jsonl", "data.seq": truth["seq"],
            "batch.size": truth["batch"], "steps": truth["steps"], "optim.lr": truth["lr"], "optim.beta2": 0.999, "optim.decay": 0, "lr.schedule": "constant", "data.shuffle": "none",
            "threads": 1, "sample.tokens": 0, **run["options"], **({"lora.init": adapter} if run.get("lora") else {}), **more}
    ranks = ("launch", "--ranks", "2") if "mesh" in args else ()
    return [lateen, *ranks, "train", *(w for n, v in args.items() if v is not None for w in (f"--{n}", str(v)))]


def train(out, name, **more):
    return subprocess.run(words_of(out, name, more), capture_output=True, text=True)


def lines(out, kind):
    return [x for x in map(json.loads, open(f"{out}/metrics.jsonl")) if x["kind"] == kind]


def near(name, want, got, scale):
    """Rewards are differences of log-probabilities, and as exact as those are."""
    if name in ("loss", "grad_norm"):
        # The loss of dpo_robust is a difference of two numbers near log 2 and passes through 0.
        return math.isclose(want, got, rel_tol=LOSS, abs_tol=LOSS / 10) if name == "loss" else math.isclose(want, got, rel_tol=NORM)
    return abs(want - got) <= LOGP * max(1.0, scale)


def compare(name, out):
    steps = [{**t, **p} for t, p in zip(lines(out, "train"), lines(out, "preference"))]
    if len(steps) != truth["steps"]:
        return f"{len(steps)} steps"
    for i, (want, got) in enumerate(zip(runs[name]["steps"], steps)):
        scale = max([abs(v) for k, v in want.items() if k.startswith("logps")] + [10.0])
        wrong = [(k, v, got.get(k)) for k, v in want.items() if (k, name) != ("kl", "apo_zero") and not (k in got and near(k, v, got[k], scale))]
        if wrong:
            return f"step {i + 1}: {wrong}"
    return ""


def whole(path):
    return open(path, "rb").read()


def scores(path, name="score.weight"):
    data = whole(path)
    n = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + n])[name]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[8 + n + begin:8 + n + end])


def said(run, *wanted, code=1):
    missing = [w for w in wanted if w not in run.stderr]
    return f"{run.returncode}: {missing}: {run.stderr[-500:]}" if run.returncode != code or missing else ""


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def reference_of(out):
    return next(f"{out}/data/{f}" for f in os.listdir(f"{out}/data") if f.startswith("reference"))


with tempfile.TemporaryDirectory() as work:
    for name in runs if everything else FEW:
        done = train(f"{work}/{name}", name)
        check(f"20 steps of {name} equal TRL's", done.stderr[-500:] if done.returncode != 0 else compare(name, f"{work}/{name}"))

    plan = subprocess.run([lateen, "plan", "--model", f"{work}/dpo", "--json"], capture_output=True, text=True)
    start = lines(f"{work}/dpo", "start")[0]["memory"]
    check("plan announces the memory that the run announces", plan.stderr if plan.returncode != 0 else [(k, v, start.get(k)) for k, v in json.loads(plan.stdout)["memory"].items() if start.get(k) != v])

    # Ranks, and runs that stop.
    for zero in (0, 1, 2) if everything else (1,):
        both = train(f"{work}/ranks{zero}", "dpo", mesh="dp=2", **{"mesh.zero": zero})
        check(f"two ranks take the same steps of dpo (zero {zero})", both.stderr[-500:] if both.returncode != 0 else compare("dpo", f"{work}/ranks{zero}"))
    both = train(f"{work}/kto2", "kto", mesh="dp=2", **{"batch.micro": 1})
    check("and of kto, whose reference point is that of both", both.stderr[-500:] if both.returncode != 0 else compare("kto", f"{work}/kto2"))
    valid = write(f"{work}/four.jsonl", whole(f"{golden}/pairs.jsonl").decode().splitlines()[:4])
    halves = [train(f"{work}/halves", "dpo", steps=n, **{"data.valid": valid, "eval.every": 4}) for n in (7, 20)]
    check("stopped and resumed, dpo has the same bits", [h.stderr[-300:] for h in halves if h.returncode != 0] or whole(f"{work}/halves/model/model.safetensors") != whole(f"{work}/dpo/model/model.safetensors"))
    os.makedirs(f"{work}/asked")
    write(f"{work}/asked/exit", [])
    asked, again = train(f"{work}/asked", "dpo"), train(f"{work}/asked", "dpo")
    check("a request to stop ends the computation of the reference, and the same command begins it again",
          [asked.stderr[-300:]] if asked.returncode != 75 or "stopped while the reference of data.train was computed" not in asked.stderr else again.stderr[-300:] if again.returncode != 0 else compare("dpo", f"{work}/asked"))
    check("the reference is computed once", ["reference of data.train" in h.stderr for h in halves] != [True, False])
    held = {x["step"]: x for x in lines(f"{work}/halves", "eval") + lines(f"{work}/halves", "preference_eval")}
    loss = {x["step"]: x["loss"] for x in lines(f"{work}/halves", "eval")}
    check("held-out pairs have the loss that they have in training", "" if math.isclose(loss[4], runs["dpo"]["steps"][4]["loss"], rel_tol=LOSS) else (loss, held))
    some = train(f"{work}/some", "kto", steps=2, **{"data.valid": f"{golden}/labels.jsonl", "eval.every": 1, "eval.rows": 4, "batch.micro": 1})
    loss = {x["step"]: x["loss"] for x in lines(f"{work}/some", "eval")} if some.returncode == 0 else {}
    again = train(f"{work}/again", "kto", steps=3, **{"data.valid": write(f"{work}/some.jsonl", whole(f"{golden}/labels.jsonl").decode().splitlines()[:4]), "eval.every": 1})
    all_of = {x["step"]: x["loss"] for x in lines(f"{work}/again", "eval")} if again.returncode == 0 else {}
    check("eval.rows takes the first, and kto's point is theirs", "" if loss and all(math.isclose(loss[s], all_of[s], rel_tol=LOSS) for s in (1, 2)) else (loss, all_of, some.stderr[-200:]))
    check("and the metrics", "" if math.isclose(held[4]["rewards/margins"], runs["dpo"]["steps"][4]["rewards/margins"], rel_tol=1e-4) else held[4])
    shutil.copytree(f"{work}/halves", f"{work}/lost")
    for f in os.listdir(f"{work}/lost/data"):
        os.remove(f"{work}/lost/data/{f}")
    check("without the reference's numbers a run does not continue", said(train(f"{work}/lost", "dpo", steps=21), "reference-", "is missing", "20 steps are done"))
    with open(reference_of(f"{work}/halves"), "r+b") as f:
        f.seek(-3, 2)
        f.write(b"\x01")
    check("nor with others", said(train(f"{work}/halves", "dpo", steps=21, **{"data.valid": valid}), "have changed since the checkpoint"))
    fresh = {"lora.rank": 4, "lora.init": None}
    straight, first = train(f"{work}/fresh", "ipo-lora", **fresh), train(f"{work}/off", "ipo-lora", steps=9, **fresh)
    os.remove(reference_of(f"{work}/off"))
    again = train(f"{work}/off", "ipo-lora", **fresh)
    check("with new adapters the reference is the model without them, at any step", [x.stderr[-300:] for x in (straight, first, again) if x.returncode != 0] or "reference of data.train" not in again.stderr
          or whole(f"{work}/off/adapter/adapter_model.safetensors") != whole(f"{work}/fresh/adapter/adapter_model.safetensors"))
    start = lines(f"{work}/fresh", "preference")[0]
    check("so that rewards begin at 0", "" if start["rewards/chosen"] == start["rewards/rejected"] == 0.0 else start)
    check("another beta is refused at resume", said(train(f"{work}/dpo", "dpo", steps=21, **{"objective.beta": 0.4}), "objective.beta was 0.3, now 0.4"))
    other = write(f"{work}/pairs.jsonl", whole(f"{golden}/pairs.jsonl").decode().splitlines()[1:])
    check("and so are other pairs", said(train(f"{work}/dpo", "dpo", steps=21, **{"data.train": other}), "data.train", "the examples have changed since the checkpoint", "--allow-change data.train"))

    # The reward model.
    config = json.load(open(f"{work}/reward/model/config.json"))
    check("a reward model is a folder of transformers", "" if config["architectures"] == ["LlamaForSequenceClassification"] and len(config["id2label"]) == 1 and config["pad_token_id"] == 5 else config)
    ends = zip(scores(f"{work}/reward/model/model.safetensors"), scores(f"{golden}/reward-end/score.safetensors"))
    check("its head ends where TRL's does", [p for p in ends if abs(p[0] - p[1]) > 2e-6])
    beside = f"{work}/reward-lora/adapter"
    config = json.load(open(f"{beside}/adapter_config.json"))
    check("adapters of a reward model keep its head, as PEFT's do", "" if config["task_type"] == "SEQ_CLS" and "score" in config["modules_to_save"] else config)
    merged = subprocess.run([lateen, "convert", beside, f"{work}/merged", "--dtype", "fp32"], capture_output=True, text=True)
    check("and bring it along when they are merged", merged.stderr if merged.returncode != 0 else scores(f"{work}/merged/model.safetensors") != scores(f"{beside}/adapter_model.safetensors", "base_model.model.score.weight"))
    parts = [train(f"{work}/parts", "reward-lora", steps=n) for n in (7, 20)]
    check("stopped and resumed, they have the same bits", [x.stderr[-300:] for x in parts if x.returncode != 0] or whole(f"{work}/parts/adapter/adapter_model.safetensors") != whole(f"{beside}/adapter_model.safetensors"))
    check("a language model does not take them", said(train(f"{work}/no", "dpo", **{"lora.init": f"{golden}/reward-adapter"}), "modules_to_save has"))
    check("it writes no text", said(subprocess.run([lateen, "generate", "--model", f"{work}/reward/model", "--prompt", "Hi"], capture_output=True, text=True), "score head of 1 value"))
    check("and is not taken for a language model", said(train(f"{work}/no", "dpo", **{"model.init": f"{golden}/reward"}), "model.init", "score head"))
    new = train(f"{work}/new", "reward", **{"model.init": sft, "steps": 3})
    check("a language model gets a head", "" if new.returncode == 0 and "score.weight" in str(whole(f"{work}/new/model/model.safetensors")[:9000]) else new.stderr[-300:])
    kept = [train(f"{work}/kept-{base}", "reward", **{"model.init": sft, "steps": 3, "lora.rank": 2, "lora.base": base}) for base in ("dtype", "as_stored")]
    check("also beside weights that stay as they are stored, whose BF16 numbers give the same losses", [x.stderr[-300:] for x in kept if x.returncode != 0]
          or [x["loss"] for x in lines(f"{work}/kept-dtype", "train")] != [x["loss"] for x in lines(f"{work}/kept-as_stored", "train")])

    # The process reward model.
    config = json.load(open(f"{work}/prm-separator/model/config.json"))
    check("a process reward model is a folder of transformers, and names the separator after a step",
          "" if config["architectures"] == ["LlamaForTokenClassification"] and len(config["id2label"]) == 2 and config["step_separator"] == " is\n\n" else config)
    for name in ("score.weight", "score.bias"):
        ends = zip(scores(f"{work}/prm/model/model.safetensors", name), scores(f"{steps}/end/head.safetensors", name))
        check(f"its {name} ends where TRL's does", [p for p in ends if abs(p[0] - p[1]) > 2e-6])
    beside = f"{work}/prm-lora/adapter"
    config = json.load(open(f"{beside}/adapter_config.json"))
    check("adapters of a process reward model keep its head, as PEFT's do", "" if config["task_type"] == "TOKEN_CLS" and "score" in config["modules_to_save"] else config)
    merged = subprocess.run([lateen, "convert", beside, f"{work}/judges", "--dtype", "fp32"], capture_output=True, text=True)
    check("and bring weight and bias along when they are merged", merged.stderr if merged.returncode != 0 else
          [n for n in ("weight", "bias") if scores(f"{work}/judges/model.safetensors", f"score.{n}") != scores(f"{beside}/adapter_model.safetensors", f"base_model.model.score.{n}")])
    one = train(f"{work}/one", "prm", **{"batch.micro": 1})
    check("a step is a mean over steps of all completions, in any number of passes", one.stderr[-300:] if one.returncode != 0 else compare("prm", f"{work}/one"))
    for mesh in ("dp=2", "tp=2") if everything else ("tp=2",):
        both = train(f"{work}/prm {mesh}", "prm", mesh=mesh)
        check(f"two ranks take the same steps ({mesh})", both.stderr[-500:] if both.returncode != 0 else compare("prm", f"{work}/prm {mesh}"))
    new = train(f"{work}/judge", "prm", **{"model.init": sft, "steps": 3, "data.valid": f"{steps}/steps.jsonl", "eval.every": 1})
    check("a language model gets a head with a bias", "" if new.returncode == 0 and "score.bias" in str(whole(f"{work}/judge/model/model.safetensors")[:9000]) else new.stderr[-300:])
    held = lines(f"{work}/judge", "preference_eval")[0] if new.returncode == 0 else {}
    check("a share of steps is judged right", "" if 0 < held.get("rewards/accuracies", 0) < 1 and 0 < held["rewards/chosen"] < 1 else held)
    check("a reward model's head is another", said(train(f"{work}/no", "prm", **{"model.init": f"{golden}/reward"}), "1 value for each text; objective.kind = prm trains 2 for each token"))
    good = whole(f"{steps}/steps.jsonl").decode().splitlines()
    user = [{"role": "user", "content": "Hi"}]
    bad = [({"prompt": "a", "completions": ["b"], "labels": []}, "they have 1 and 0 elements"), ({"prompt": "a", "completions": [], "labels": []}, "they have 0 and 0"), ({"prompt": "a", "completions": ["b"], "labels": ["+"]}, "labels[0] is neither"),
           ({"prompt": "a", "completions": [7], "labels": [True]}, "completions[0] is not a text"), ({"completions": ["b"], "labels": [True]}, "'prompt' is neither"), ({"prompt": "a", "completions": ["b"], "labels": [None]}, "no step with a label"),
           ({"prompt": "why " * 120, "completions": ["b"], "labels": [True]}, "are all of the prompt"), ({"prompt": "a", "completions": ["why " * 120], "labels": [True]}, "no step with a label ends within its 96 tokens")]
    path = write(f"{work}/steps.jsonl", good + [row for row, _ in bad] + [{"prompt": user, "completions": ["a", "b", "why " * 120], "labels": [1, None, 0]}])
    told = train(f"{work}/badsteps", "prm", steps=1, **{"data.train": path})
    check("bad lines of steps are named and left out", said(told, *(f"steps.jsonl:{len(good) + 1 + i}: " for i in range(len(bad))), *(why for _, why in bad), f"{len(good) + 1} examples", f"{len(bad)} examples left out, 1 cut", code=0))
    check("a separator belongs to steps", said(train(f"{work}/no", "dpo", **{"objective.separator": "x"}), "it needs objective.kind = prm", code=2))
    check("a long one is refused", said(train(f"{work}/no", "prm", **{"objective.separator": "x" * 64}), "objective.separator has 64 bytes", code=2))

    # Bad lines.
    good = whole(f"{golden}/pairs.jsonl").decode().splitlines()
    user, answer = [{"role": "user", "content": "Hi"}], [{"role": "assistant", "content": "Hello"}]
    bad = [("not JSON", "column"), ({"prompt": "a", "chosen": "b"}, "no member 'rejected'"), ({"prompt": "a", "chosen": "same", "rejected": "same"}, "the same text"),
           ({"chosen": "a", "rejected": "b"}, "no member 'prompt'"), ({"chosen": user + answer, "rejected": user}, "'rejected' has no message of its own"), ({"prompt": 3, "chosen": "a", "rejected": "b"}, "'prompt' is neither a string"),
           ({"prompt": "why " * 120, "chosen": "a", "rejected": "b"}, "are all of the prompt"), ({"prompt": "a", "chosen": "why " * 120 + "1", "rejected": "why " * 120 + "2"}, "the same in the 96 tokens")]
    path = write(f"{work}/bad.jsonl", good + [row for row, _ in bad] + [{"prompt": "a", "chosen": "b", "rejected": "why " * 120}])
    told = train(f"{work}/bad", "dpo", steps=1, **{"data.train": path})
    check("bad lines are named and left out, long ones are cut", said(told, *(f"bad.jsonl:{len(good) + 1 + i}: " for i in range(len(bad) + 1)), *(why for _, why in bad), "the end is cut off", f"{len(good) + 1} examples", f"{len(bad)} examples left out, 1 cut", code=0))
    check("or the first ends the run", said(train(f"{work}/no", "dpo", **{"data.train": path, "data.bad_rows": "fail"}), f"bad.jsonl:{len(good) + 1}: column"))
    path = write(f"{work}/long.jsonl", good + [{"prompt": "a", "chosen": "b", "rejected": "why " * 120}])
    check("data.too_long = fail names it", said(train(f"{work}/no", "dpo", **{"data.train": path, "data.too_long": "fail"}), f"long.jsonl:{len(good) + 1}: 'rejected' has", "of which rows hold 96"))
    check("what is judged is not cut", said(train(f"{work}/judged", "reward", steps=1, **{"data.train": path}), "'rejected' has", "the example is left out", "1 examples left out, 0 cut", code=0))
    path = write(f"{work}/labels.jsonl", [{"prompt": "a", "completion": "b", "label": "yes"}])
    check("a file without an example says so", said(train(f"{work}/no", "kto", **{"data.train": path}), "labels.jsonl:1: 'label' is neither true nor false", "no example to learn from"))
    path = write(f"{work}/quantiles.jsonl", [{"prompt": "a", "completion": w, "reward": i, "ref_rewards": [0, 1, 2, 3]} for i, w in enumerate(("b", "c", "d", "e"))])
    rank = train(f"{work}/qrpo", "kto", **{"data.train": path, "objective.kind": "qrpo_norm", "objective.beta": 5, "objective.bad": None, "objective.good": None, "steps": 12})
    losses = [x["loss"] for x in lines(f"{work}/qrpo", "train")] if rank.returncode == 0 else []
    check("qrpo learns the quantiles of rewards", "" if losses and losses[-1] < losses[0] else rank.stderr[-300:] + str(losses))

    # Options.
    for what, name, more, wanted, code in (("an option that the objective does not read", "dpo", {"objective.margin": 1}, "--objective.margin 1 has no effect: it needs objective.kind = simpo", 1),
                                           ("packing", "dpo", {"data.packing": "stream"}, "it needs objective.kind = sft", 1), ("fp8", "dpo", {"model.fp8": "blockwise"}, "objective.kind = dpo with model.fp8: not supported", 1),
                                           ("z-loss", "dpo", {"loss.z": 1e-4}, "objective.kind = dpo with loss.z: not supported", 1),
                                           ("no model", "dpo", {"model.init": None}, "no model.init", 1), ("weights of files", "dpo", {"data.train": f"{golden}/pairs.jsonl:2"}, "weights are not supported", 1),
                                           ("shards of tokens", "dpo", {"data.train": "data/none.bin"}, "learns from JSON lines", 1), ("an unknown kind", "dpo", {"objective.kind": "ppo"}, "objective.kind", 2)):
        no = train(f"{work}/no", name, **more)
        check(f"refused by name: {what}", "" if no.returncode in (1, 2) and wanted in no.stderr else f"{no.returncode}: {no.stderr[-400:]}")

    if everything:
        shipped = subprocess.run([lateen, "train", "recipes/dpo-lora.yaml", "--out", f"{work}/shipped", "--lora.init", "", "--lora.rank", "4", "--steps", "1", "--lr.warmup", "0", "--sample.tokens", "0"], capture_output=True, text=True)
        check("recipes/dpo-lora.yaml trains the model that ships with Lateen", shipped.stderr[-300:] if shipped.returncode != 0 or "44 examples" not in shipped.stderr else "")
        out, more = f"{work}/killed", {"steps": 400, "checkpoint.every": 7, "data.shuffle": "rows"}
        whole_run = train(f"{work}/calm", "kto", **more)
        run = subprocess.Popen(words_of(out, "kto", more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while run.poll() is None and not (os.path.isdir(f"{out}/checkpoints") and len(os.listdir(f"{out}/checkpoints")) > 1):
            time.sleep(0.005)
        alive = run.poll() is None
        run.send_signal(signal.SIGKILL)
        run.wait()
        after = train(out, "kto", **more)
        check("killed and resumed, kto has the same bits", whole_run.stderr[-300:] if whole_run.returncode != 0 else after.stderr[-300:] if after.returncode != 0 else not alive or whole(f"{out}/model/model.safetensors") != whole(f"{work}/calm/model/model.safetensors"))
sys.exit(tap.end())
