"""Distillation against TRL's losses (tests/golden/distill, tools/make_distill_goldens.py): loss and gradient norm of every step, from a teacher in the same
process, from its words in files, and on answers that the student draws; and what is refused. Standard library only; TAP on stdout.

usage: distill_truth.py LATEEN [all]      all: every run of the goldens, ranks, and all levels of recomputation"""
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from tap import Tap

lateen, everything = sys.argv[1], "all" in sys.argv[2:]
golden, sft = "tests/golden/distill", "tests/golden/sft"
truth = json.load(open(f"{golden}/truth.json"))
runs = {r["name"]: r for r in truth["runs"]}
chat = f"{sft}/chat.jsonl"
tap = Tap(700)
LOSS, NORM = 1e-5, 1e-4  # PyTorch computed in double; this computes in float.
FEW = ("reverse", "gkd", "labels", "words-gkd", "words-alone", "on-policy")


def check(name, wrong):
    tap.check(name, not wrong, wrong)


def run(*args):
    return subprocess.run([lateen, *args], capture_output=True, text=True)


def words_of(out, temperature=1.0, data=chat, *more):
    return run("align", "logprobs", data, "--model", teacher, "--out", out, "--top-k", str(truth["k"]), "--seq", str(truth["seq"]), "--temperature", str(temperature), "--chat-template", template, "--threads", "1", *more)


def train(out, name, **more):
    one = runs[name]
    source = {"distill.logprobs": f"{work}/words-{one['temperature']}"} if one.get("words") else {"distill.teacher": teacher}
    args = {"out": out, "model.init": sft, "objective.kind": "distill", "data.train": chat, "data.seq": truth["seq"], "batch.size": truth["batch"], "steps": truth["steps"], "optim.lr": truth["lr"],
            "optim.beta2": 0.999, "optim.decay": 0, "lr.schedule": "constant", "data.shuffle": "none", "threads": 1, "sample.tokens": 0, **source, **one["options"],
            **({"lora.init": f"{sft}/adapter-all"} if one.get("lora") else {}), **more}
    ranks = ("launch", "--ranks", "2") if "mesh" in args else ()
    return run(*ranks, "train", *(w for n, v in args.items() if v is not None for w in (f"--{n}", str(v))))


def lines(out, kind):
    return [x for x in map(json.loads, open(f"{out}/metrics.jsonl")) if x["kind"] == kind]


def compare(name, out):
    steps = [{**t, **d} for t, d in zip(lines(out, "train"), lines(out, "distill"))]
    if len(steps) != truth["steps"]:
        return f"{len(steps)} steps"
    for i, (want, got) in enumerate(zip(runs[name]["steps"], steps)):
        if not (math.isclose(want["loss"], got["loss"], rel_tol=LOSS) and math.isclose(want["grad_norm"], got["grad_norm"], rel_tol=NORM) and want["labels"] == got["labels"]):
            return f"step {i + 1}: {want}, not {dict((n, got[n]) for n in want)}"
    return ""


def took(done, name, out):
    return done.stderr[-500:] if done.returncode != 0 else compare(name, out)


def said(done, *wanted, code=1):
    missing = [w for w in wanted if w not in done.stderr]
    return f"{done.returncode}: {missing}: {done.stderr[-500:]}" if done.returncode != code or missing else ""


def whole(path):
    return open(path, "rb").read()


def tensors(path):
    """name -> (shape, numbers) of a file of 4-byte numbers."""
    data = whole(path)
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: (v["shape"], struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}{'f' if v['dtype'] == 'F32' else 'i'}", data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]))
            for k, v in head.items() if k != "__metadata__"}


def check_words(out):
    """The words of the first conversations are PyTorch's."""
    t = tensors(f"{out}/part-00000.safetensors")
    (rows, k), ids, logp, first = t["ids"][0], t["ids"][1], t["logprobs"][1], t["first"][1]
    for i, places in enumerate(truth["words"]):
        got = [list(zip(ids[p * k:(p + 1) * k], logp[p * k:(p + 1) * k])) for p in range(first[i], first[i + 1])]
        if len(got) != len(places) or any(a[0] != b[0] or abs(a[1] - b[1]) > 2e-5 for g, w in zip(got, places) for a, b in zip(g, w)):
            return f"conversation {i}: {[(a, b) for g, w in zip(got, places) for a, b in zip(g, w) if a[0] != b[0] or abs(a[1] - b[1]) > 2e-5]}"
    return ""


with tempfile.TemporaryDirectory() as work:
    teacher = f"{work}/teacher"
    shutil.copytree(f"{golden}/teacher", teacher)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{sft}/{name}", teacher)
    template = f"{work}/template.jinja"
    open(template, "w").write(json.load(open(f"{sft}/tokenizer_config.json"))["chat_template"])

    # The words of a teacher.
    for temperature in (1.0, 2.0):
        done = words_of(f"{work}/words-{temperature}", temperature)
        check(f"words of the teacher at temperature {temperature}", done.stderr[-500:] if done.returncode != 0 else "")
    check("are those of PyTorch", check_words(f"{work}/words-1.0"))
    parts = f"{work}/parts"
    done = words_of(parts, 1.0, chat, "--part", "8", "--batch", "3")
    os.remove(f"{parts}/logprobs.json")
    os.remove(f"{parts}/part-00001.safetensors")
    kept = os.stat(f"{parts}/part-00002.safetensors").st_mtime_ns
    refused = train(f"{work}/no", "words", **{"distill.logprobs": parts})
    again = words_of(parts, 1.0, chat, "--part", "8", "--batch", "3")
    check("a command that was stopped continues where it was", "" if again.returncode == 0 and "12 of these from an earlier start" in again.stderr and os.stat(f"{parts}/part-00002.safetensors").st_mtime_ns == kept else again.stderr[-400:])
    check("and no run begins until it is done", said(refused, "distill.logprobs", "logprobs.json is not there"))
    check("other options do not go into the same folder", said(words_of(parts, 2.0, chat, "--part", "8"), "part-00000.safetensors was made from other conversations, by another model or with other options"))

    for name in runs if everything else FEW:
        check(f"20 steps of {name} have TRL's losses", took(train(f"{work}/{name}", name), name, f"{work}/{name}"))
    check("files of several parts give the same steps", took(train(f"{work}/in-parts", "words", **{"distill.logprobs": parts, "batch.micro": 2}), "words", f"{work}/in-parts"))
    check("as do micro-batches beside a teacher", took(train(f"{work}/micro", "labels", **{"batch.micro": 2}), "labels", f"{work}/micro"))
    for level in ("selective", "full") if everything else ():
        check(f"and recomputation ({level})", took(train(f"{work}/{level}", "gkd", **{"model.recompute": level}), "gkd", f"{work}/{level}"))
    if everything:
        for zero in (0, 1, 2):
            both = train(f"{work}/ranks{zero}", "on-policy", mesh="dp=2", steps=3, **{"mesh.zero": zero, "batch.size": 4})
            one = train(f"{work}/one{zero}", "on-policy", steps=3, **{"batch.size": 4})
            losses = [[x["loss"] for x in lines(f"{work}/{o}{zero}", "train")] if d.returncode == 0 else d.stderr[-300:] for o, d in (("ranks", both), ("one", one))]
            check(f"two ranks divide the conversations (zero {zero})", "" if len(losses[0]) == 3 and all(math.isclose(a, b, rel_tol=LOSS) for a, b in zip(*losses)) else losses)

    # Answers that the student draws (on policy).
    half = {"distill.on_policy": 0.5, "distill.sampling_temperature": 1, "data.shuffle": "rows", "checkpoint.every": 7}
    straight = train(f"{work}/straight", "on-policy", **half)
    pieces = [train(f"{work}/pieces", "on-policy", steps=n, **half) for n in (7, 20)]
    check("stopped and resumed, a run on and off policy has the same bits", [x.stderr[-300:] for x in (straight, *pieces) if x.returncode != 0] or whole(f"{work}/pieces/model/model.safetensors") != whole(f"{work}/straight/model/model.safetensors"))
    told = lines(f"{work}/straight", "distill")
    share = sum(x["on_policy"] for x in told) / len(told)
    check("half of its answers are the student's", "" if 0.3 < share < 0.7 and any(0 < x["on_policy"] < 1 for x in told) and all(x["answer_tokens"] <= 8 for x in told if "answer_tokens" in x) else told)

    # Held-out conversations.
    held = train(f"{work}/held", "words", steps=2, **{"data.valid": chat, "distill.valid_logprobs": parts, "eval.every": 1})
    # At a rate of 0 the model stays as it was, and the step has the same conversations as the validation.
    live = train(f"{work}/live", "forward", steps=1, **{"data.valid": chat, "batch.size": 20, "eval.every": 1, "optim.lr": 0})
    check("held-out conversations are compared with the teacher, too", [x.stderr[-300:] for x in (held, live) if x.returncode != 0] or
          ("" if len(lines(f"{work}/held", "eval")) >= 2 and math.isclose(lines(f"{work}/live", "eval")[-1]["loss"], lines(f"{work}/live", "train")[0]["loss"], rel_tol=LOSS)
           else (lines(f"{work}/live", "eval"), lines(f"{work}/live", "train"))))

    # What is refused.
    for what, name, more, wanted in (
            ("no teacher", "forward", {"distill.teacher": None}, "give distill.teacher, a model, or distill.logprobs"), ("two teachers", "words", {"distill.teacher": teacher}, "are both given"),
            ("answers of the student without a teacher", "words", {"distill.on_policy": 0.5}, "need distill.teacher"), ("another temperature than the files'", "words", {"distill.temperature": 2}, "at temperature 1, distill.temperature is 2"),
            ("files of a validation are missing", "words", {"data.valid": chat}, "needs distill.valid_logprobs"), ("answers as long as the rows", "on-policy", {"distill.tokens": 112}, "leaves no room for a question"),
            ("an option of files", "forward", {"distill.rest": "renormalise"}, "--distill.rest renormalise has no effect: it needs distill.logprobs"), ("an option of distillation", "forward", {"objective.kind": "sft", "distill.beta": 1}, "it needs objective.kind = distill"),
            ("weights of files", "forward", {"data.train": f"{chat}:2"}, "not supported"), ("shards of tokens", "forward", {"data.train": f"{chat},data/none.bin"}, "learns from conversations"), ("fp8", "forward", {"model.fp8": "blockwise"}, "not supported"),
            ("a share of all", "forward", {"distill.labels": 1}, "distill.labels")):
        no = train(f"{work}/no", name, **more)
        check(f"refused by name: {what}", "" if no.returncode in (1, 2) and wanted in no.stderr else f"{no.returncode}: {no.stderr[-400:]}")
    other = f"{work}/other.jsonl"
    open(other, "w").write("\n".join(open(chat, encoding="utf-8").read().splitlines()[:-1] + [json.dumps({"prompt": "x", "completion": "y"})]) + "\n")
    check("other conversations than the files' are named", said(train(f"{work}/no", "words", **{"data.train": other}), "distill.logprobs: conversation 19 differs", "token "))
    check("and another number of them", said(train(f"{work}/no", "words", **{"data.train": f"{chat},{chat}"}), "has 20 conversations, the data 40"))
    data = bytearray(whole(f"{parts}/part-00001.safetensors"))
    head = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["ids"]["data_offsets"][0] + 8 + struct.unpack("<Q", data[:8])[0]
    data[head:head + 4] = struct.pack("<i", 320)
    open(f"{parts}/part-00001.safetensors", "wb").write(data)
    check("a word beyond the vocabulary is named", said(train(f"{work}/no", "words", **{"distill.logprobs": parts}), "part-00001.safetensors: 'ids' of place 0 are not rising ids below 320"))
    open(f"{parts}/part-00001.safetensors", "wb").write(data[:-5])
    check("and so is a file that was cut off", said(train(f"{work}/no", "words", **{"distill.logprobs": parts}), "part-00001.safetensors"))
    shipped = run("train", "recipes/distill.yaml", "--out", f"{work}/shipped", "--model.init", sft, "--distill.teacher", teacher, "--data.train", chat, "--data.seq", "112", "--distill.tokens", "8", "--batch.size", "4", "--steps", "2")
    check("recipes/distill.yaml", shipped.stderr[-400:] if shipped.returncode != 0 or len(lines(f"{work}/shipped", "distill")) != 2 else "")
    stranger = f"{work}/stranger"
    shutil.copytree(teacher, stranger)
    t = json.load(open(f"{stranger}/tokenizer.json"))
    piece = next(p for p, i in t["model"]["vocab"].items() if i == 40)
    t["model"]["vocab"]["☃"] = t["model"]["vocab"].pop(piece)
    t["model"]["merges"] = [m for m in t["model"]["merges"] if piece not in m]
    json.dump(t, open(f"{stranger}/tokenizer.json", "w"))
    check("a teacher with another tokenizer is refused", said(train(f"{work}/no", "forward", **{"distill.teacher": stranger}), "has another tokenizer than the student: id 40"))
    check("and one with another vocabulary", said(train(f"{work}/no", "forward", **{"distill.teacher": "tests/golden/model/llama3"}), "vocabulary of", "the student one of 320"))
sys.exit(tap.end())
