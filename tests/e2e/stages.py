"""Recipes with stages: pretraining, mid-training on longer rows, fine-tuning and reinforcement learning in one command, which is killed and resumes. Standard library only; TAP on stdout.

usage: stages.py LATEEN"""
import json
import os
import subprocess
import sys
import tempfile

from tap import Tap

lateen, golden = sys.argv[1], "tests/golden/sft"
tap = Tap()

# Rewards short answers; if the file KILL exists, it kills the run.
REWARD = """
import json, os, signal, sys
for line in sys.stdin:
    if os.path.exists(sys.argv[1]):
        os.remove(sys.argv[1])
        os.kill(os.getppid(), signal.SIGKILL)
    print(json.dumps({"reward": -json.loads(line)["tokens"]}), flush=True)
"""
RECIPE = """
out: {out}
device: cpu
threads: 1
model: {{layers: 1, width: 32, heads: 2, ffn: 48, max_seq: 128}}
data: {{tokenizer: {golden}, seq: 32}}
batch: {{size: 4}}
lr: {{schedule: constant, warmup: 0}}
optim: {{lr: 1e-2}}
sample: {{tokens: 0}}
stages:
  base: {{steps: 4, data.train: {work}/text}}
  mid: {{steps: {mid}, data: {{train: {work}/text, seq: 96}}}}
  sft: {work}/sft.yaml
  grpo:
    steps: 2
    data: {{train: {work}/problems.jsonl, seq: 64}}
    objective: {{kind: grpo}}
    batch: {{size: 8}}
    rl: {{tokens: 8, rewards: command, command: "exec {python} {work}/reward.py {work}/KILL"}}
"""
SFT = f"out: elsewhere\nmodel: {{{{init: other}}}}\nsteps: 3\ndata: {{{{train: {golden}/chat.jsonl, seq: 128}}}}\nbatch: {{{{size: 2}}}}\n"


def write(name, text, **values):
    with open(f"{work}/{name}", "w") as f:
        f.write(text.format(work=work, golden=golden, python=sys.executable, **values))
    return f"{work}/{name}"


def train(*args):
    return subprocess.run([lateen, "train", *args], capture_output=True, text=True)


def weights(out):
    return open(f"{out}/grpo/model/model.safetensors", "rb").read()


def finished(out):
    return [s["name"] for s in json.load(open(f"{out}/stages.json"))["finished"]]


def fails(name, done, text, status=2):
    tap.check(name, done.returncode == status and text in done.stderr, f"{done.returncode}: {done.stderr[-400:]}")


with tempfile.TemporaryDirectory() as work:
    write("text.txt", "the quick brown fox jumps over the lazy dog. " * 200)
    write("sft.yaml", SFT)
    write("problems.jsonl", '{{"prompt": "2+2?"}}\n{{"prompt": "Who?"}}\n')
    with open(f"{work}/reward.py", "w") as f:
        f.write(REWARD)
    subprocess.run([lateen, "tokenize", f"{work}/text.txt", "--tokenizer", golden, "--out", f"{work}/text"], check=True, capture_output=True)
    whole, parts = f"{work}/whole", f"{work}/parts"
    ended = None
    one, two = write("one.yaml", RECIPE, out=whole, mid=3), write("two.yaml", RECIPE, out=parts, mid=3)

    @tap.case
    def one_behind_the_other():
        global ended
        r = train(one)
        ended = weights(whole)
        tap.check("four stages in one command", r.returncode == 0 and finished(whole) == ["base", "mid", "sft", "grpo"], r.stderr[-800:])
        starts = [json.loads(open(f"{whole}/{s}/metrics.jsonl").readline()) for s in ("base", "mid", "sft", "grpo")]
        tap.check("each with its own steps", [s["steps"] for s in starts] == [4, 3, 3, 2], starts)
        alone = train("--out", f"{work}/mid", "--steps", "3", "--device", "cpu", "--threads", "1", "--model.init", f"{whole}/base/model", "--data.tokenizer", golden, "--data.train", f"{work}/text", "--data.seq", "96",
                      "--batch.size", "4", "--lr.schedule", "constant", "--lr.warmup", "0", "--optim.lr", "1e-2", "--sample.tokens", "0")
        same = alone.returncode == 0 and open(f"{work}/mid/model/model.safetensors", "rb").read() == open(f"{whole}/mid/model/model.safetensors", "rb").read()
        tap.check("a stage has the bits of a run that begins with the model before it", same, alone.stderr[-400:])
        before = os.stat(f"{whole}/grpo/model/model.safetensors").st_mtime_ns
        r = train(one)
        tap.check("a finished life is left as it is", r.returncode == 0 and os.stat(f"{whole}/grpo/model/model.safetensors").st_mtime_ns == before, r.stderr[-400:])
        r = train(write("longer.yaml", RECIPE.replace("steps: 2\n", "steps: 4\n"), out=whole, mid=3))
        steps = [x["step"] for x in map(json.loads, open(f"{whole}/grpo/metrics.jsonl")) if x["kind"] == "train"]
        tap.check("the last stage takes more steps from where it ended", r.returncode == 0 and steps == [1, 2, 3, 4] and len(finished(whole)) == 4, (r.stderr[-400:], steps))

    @tap.case
    def killed():
        fails("a stage needs those before it", train(two, "--stage", "sft"), "stage base before it is not finished", 1)
        r = train(two, "--stage", "base")
        tap.check("a stage by itself", r.returncode == 0 and finished(parts) == ["base"], r.stderr[-400:])
        open(f"{work}/KILL", "w").close()
        r = train(two)
        tap.check("the run is killed in its last stage", r.returncode == -9 and finished(parts) == ["base", "mid", "sft"], r.stderr[-400:])
        r = train(two)
        tap.check("the same command goes on there, to the same bits", r.returncode == 0 and weights(parts) == ended, r.stderr[-400:])

    @tap.case
    def refused():
        fails("a finished stage whose options changed", train(two, "--seed", "7"), "stage base is finished, and its seed was 1234, now 7", 1)
        fails("more steps of a stage that others began from", train(write("more.yaml", RECIPE, out=parts, mid=5)), "stage mid is finished, and its steps was 3, now 5", 1)
        fails("another stage in its place", train(write("other.yaml", RECIPE.replace("  mid:", "  middle:"), out=parts, mid=3)), "stage mid has been finished in its place", 1)
        fresh = dict(out=f"{work}/none", mid=3)
        fails("a model in a later stage", train(write("a.yaml", RECIPE.replace("grpo:", "grpo:\n    model.init: x"), **fresh)), "stage grpo: model.init = x, but it begins with what stage sft has made")
        fails("a stage that leaves no model", train(write("b.yaml", RECIPE.replace("{{steps: 4,", "{{export: false, steps: 4,"), **fresh)), "stage base: export = false leaves no model, with which stage mid begins")
        fails("an option that is not there", train(write("c.yaml", RECIPE.replace("{{steps: 4,", "{{stesp: 4,"), **fresh)), "stesp")
        fails("a stage without data", train(write("d.yaml", RECIPE.replace("data.train: {work}/text", "seed: 3"), **fresh)), "stage base: no data")
        fails("a name that is no folder", train(write("e.yaml", RECIPE.replace("  base:", "  ../base:"), **fresh)), "is not a name of a stage")
        fails("a list", train(write("f.yaml", "out: x\nstages: [a, b]\n")), "each stage has a name")
        fails("a stage that is not there", train(two, "--stage", "bse"), "the recipe has no such stage")
        fails("--stage without stages", train("--stage", "base", "--out", f"{work}/none", "--data.train", f"{work}/text"), "--stage base needs a recipe with stages")
        fails("a flag that no stage reads", train(two, "--lora.alpha", "3"), "--lora.alpha 3 has no effect")
        r = subprocess.run([lateen, "launch", "--ranks", "2", "train", write("g.yaml", RECIPE, **fresh)], capture_output=True, text=True)
        fails("several ranks", r, "start each stage by itself, --stage base first", 1)


sys.exit(tap.end())
