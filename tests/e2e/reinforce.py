"""Reinforcement learning as its users run it: the recipe, a reward command, a run that is killed and resumes. Standard library only; TAP on stdout.

usage: reinforce.py LATEEN"""
import json
import os
import signal
import subprocess
import sys
import tempfile

from tap import Tap

lateen, model = sys.argv[1], "tests/golden/sft"
tap = Tap()

# Rewards short answers. If the file KILL exists, it kills its parent, the run, while it judges a
# draw.
REWARD = """
import json, os, signal, sys
for i, line in enumerate(sys.stdin):
    asked = json.loads(line)
    if i == 70 and os.path.exists(sys.argv[1]):
        os.remove(sys.argv[1])
        os.kill(os.getppid(), signal.SIGKILL)
    if asked["problem"]["answer"] != "42" or not isinstance(asked["completion"], str):
        sys.exit(9)
    print(json.dumps({"reward": asked["ended"] - asked["tokens"] / 16}), flush=True)
"""


def train(out, *more, ranks=1):
    args = [*(["launch", "--ranks", str(ranks)] if ranks > 1 else []), "train", "recipes/grpo.yaml", "--out", out, "--model.init", model, "--data.train", f"{work}/problems.jsonl", "--data.seq", "48", "--rl.tokens", "16", "--batch.size", "16",
            "--steps", "8", "--checkpoint.every", "2", "--optim.lr", "1e-2", "--rl.resample", "0", "--threads", "1"]
    return subprocess.run([lateen, *args, *more], capture_output=True, text=True)


def lines(out, kind):
    return [row for row in map(json.loads, open(f"{out}/metrics.jsonl")) if row["kind"] == kind]


def weights(out):
    return open(f"{out}/checkpoints/step-000000008/weights.safetensors", "rb").read()


with tempfile.TemporaryDirectory() as work:
    with open(f"{work}/problems.jsonl", "w") as f:
        for q in ("2+2?", "6*7?", "Who?"):
            f.write(json.dumps({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": "The answer is 42."}], "answer": "42", "checker": "number"}) + "\n")
    with open(f"{work}/reward.py", "w") as f:
        f.write(REWARD)
    command = ["--rl.rewards", "command,answer:0.5", "--rl.command", f"exec {sys.executable} {work}/reward.py {work}/KILL"]

    @tap.case
    def recipe_and_command():
        r = train(f"{work}/whole", *command)
        rl, answers = lines(f"{work}/whole", "rl"), lines(f"{work}/whole", "answers") if r.returncode == 0 else []
        tap.check("recipes/grpo.yaml with a reward command", r.returncode == 0 and len(rl) == 8 and rl[-1]["reward"] > rl[0]["reward"], r.stderr[-800:] or rl)
        tap.check("a group of answers with their rewards", answers and len(answers[0]["answers"]) == 8 and set(answers[0]["rewards"]) == {"command", "answer"}, answers)

    @tap.case
    def killed():
        open(f"{work}/KILL", "w").close()
        first = train(f"{work}/killed", *command)
        left = sorted(os.listdir(f"{work}/killed/checkpoints"))
        again = train(f"{work}/killed", *command)
        tap.check("a run killed while it judges continues to the same bits", first.returncode == -signal.SIGKILL and left and again.returncode == 0
                  and weights(f"{work}/killed") == weights(f"{work}/whole"), (first.returncode, left, again.stderr[-500:]))
        tap.check("and to the same metrics", [(r["step"], r["reward"], r["entropy"]) for r in lines(f"{work}/killed", "rl")]
                  == [(r["step"], r["reward"], r["entropy"]) for r in lines(f"{work}/whole", "rl")])

    @tap.case
    def drawn_ahead():
        ahead = ["--rl.staleness", "1", "--rl.correction", "token-truncate"]
        whole = train(f"{work}/ahead", *command, *ahead, "--checkpoint.every", "4")
        open(f"{work}/KILL", "w").close()
        first = train(f"{work}/ahead-killed", *command, *ahead, "--checkpoint.every", "4")
        again = train(f"{work}/ahead-killed", *command, *ahead, "--checkpoint.every", "4")
        tap.check("answers drawn ahead: a run killed meanwhile goes on to the same bits", whole.returncode == 0 and first.returncode == -signal.SIGKILL and again.returncode == 0
                  and weights(f"{work}/ahead-killed") == weights(f"{work}/ahead"), (whole.stderr[-300:], first.returncode, again.stderr[-500:]))
        more = ["--rl.rewards", "ended,length:-0.5", "--rl.exact", "true", "--rl.group", "4", "--checkpoint.every", "4", *ahead]
        one, two = train(f"{work}/ahead-one", *more), train(f"{work}/ahead-two", *more, "--mesh.zero", "3", ranks=2)
        a, b = (lines(f"{work}/ahead-{out}", "rl") for out in ("one", "two")) if one.returncode == two.returncode == 0 else ([], [])
        tap.check("and two ranks that divide the model draw ahead as one does", len(a) == len(b) == 8 and all(abs(x[k] - y[k]) < 1e-4 for x, y in zip(a, b) for k in ("reward", "answer_tokens", "entropy")),
                  two.stderr[-600:] or one.stderr[-600:] or (a, b))
        r = train(f"{work}/ahead-dead", *ahead, "--rl.rewards", "command", "--rl.command", "for i in $(seq 20); do read -r line; echo 1; done; exit 5")
        tap.check("a command that ends meanwhile ends the run", r.returncode == 1 and "ended with status 5" in r.stderr, r.stderr[-500:])

    @tap.case
    def unit_tests():
        with open(f"{work}/code.jsonl", "w") as f:
            f.write(json.dumps({"text": "Square x.", "test_list": ["assert f(2) == 4", "assert f(3) == 9"]}) + "\n")
        tests = ["--rl.rewards", "ended,unit_tests,unit_tests_share", "--steps", "1", "--checkpoint.every", "0"]
        r = train(f"{work}/tests", *tests, "--data.train", f"{work}/code.jsonl", "--rl.sandbox", "rlimits", "--rl.test_limit", "60")
        said = lines(f"{work}/tests", "answers")[0]["rewards"] if r.returncode == 0 else {}
        tap.check("unit tests as rewards", set(said) == {"ended", "unit_tests", "unit_tests_share"} and said["unit_tests"] == said["unit_tests_share"] == 0, r.stderr[-500:] or said)
        r = train(f"{work}/none", *tests, "--rl.sandbox", "rlimits")
        tap.check("a problem without tests is named", r.returncode == 1 and "problems.jsonl:1: unit tests: no \"tests\"" in r.stderr, r.stderr[-500:])
        r = train(f"{work}/idle", "--rl.rewards", "ended", "--rl.test_limit", "3")
        tap.check("a limit of tests that no reward reads", r.returncode != 0 and "rl.test_limit" in r.stderr, r.stderr[-500:])

    @tap.case
    def other_problems():
        with open(f"{work}/problems.jsonl", "a") as f:
            f.write(json.dumps({"prompt": "New?", "answer": "42"}) + "\n")
        r = train(f"{work}/whole", *command, "--steps", "10")
        tap.check("problems that have changed are refused by name", r.returncode == 1 and "data.train: the problems" in r.stderr, r.stderr[-500:])

    @tap.case
    def two_ranks():
        more = ["--rl.rewards", "ended,length:-0.5", "--rl.exact", "true", "--steps", "4", "--rl.group", "4"]
        one, two = train(f"{work}/one", *more), train(f"{work}/two", *more, ranks=2)
        a, b = (lines(f"{work}/{out}", "rl") for out in ("one", "two")) if one.returncode == two.returncode == 0 else ([], [])
        near = len(a) == len(b) == 4 and all(abs(x[k] - y[k]) < 1e-4 for x, y in zip(a, b) for k in ("reward", "reward_std", "equal_groups", "answer_tokens", "ended", "entropy", "mismatch", "questions"))
        tap.check("two ranks ask and answer like one", near, two.stderr[-600:] or one.stderr[-600:] or (a, b))
        more[more.index("--steps") + 1] = "8"
        r = train(f"{work}/two", *more)
        tap.check("one rank continues from what two have done", r.returncode == 0 and len(lines(f"{work}/two", "rl")) == 8, r.stderr[-600:])
        r = train(f"{work}/three", *more, "--rl.resample", "2", ranks=2)
        tap.check("dynamic sampling on two ranks is refused by name", r.returncode == 1 and "rl.resample = 2 with 2 ranks" in r.stderr, r.stderr[-500:])
        r = train(f"{work}/four", "--rl.rewards", "command", "--rl.command", "read -r line; exit 5", ranks=2)
        tap.check("a command that ends on a rank ends the run", r.returncode != 0 and "ended with status 5" in r.stderr, r.stderr[-500:])
        # A job is cancelled: its signal also ends the reward command, here that of one rank.
        stop = f"exec sh -c 'for i in $(seq 43); do read -r line; echo 1; done; mkdir {work}/stopped && kill -TERM $PPID && exit 5; while read -r line; do echo 1; done'"
        r = train(f"{work}/five", "--rl.rewards", "command", "--rl.command", stop, ranks=2)
        tap.check("unless a stop is asked as well: all ranks save, and nothing is lost", r.returncode == 75 and "everything is saved" in r.stderr and os.listdir(f"{work}/five/checkpoints"), f"{r.returncode}: {r.stderr[-500:]}")

    @tap.case
    def meshes():
        keys = ("reward", "reward_std", "equal_groups", "answer_tokens", "ended", "entropy", "questions")
        # If all rewards are equal the gradient is rounding noise, which Adam makes large.
        with open(f"{work}/differ.py", "w") as f:
            f.write("import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'reward': sum(map(ord, json.loads(line)['completion'])) % 11}), flush=True)\n")
        more = ["--rl.rewards", "command", "--rl.command", f"exec {sys.executable} {work}/differ.py", "--steps", "4", "--rl.group", "4", "--rl.passes", "2", "--rl.kl", "0.1"]
        r = train(f"{work}/undivided", *more, "--rl.exact", "true")
        one = lines(f"{work}/undivided", "rl") if r.returncode == 0 else []
        for mesh, ranks, options in (("tp=2", 2, ["--rl.exact", "true"]), ("cp=2", 2, ["--rl.exact", "true"]), ("pp=2", 2, ["--rl.exact", "true"]), ("dp=2,tp=2", 4, ["--mesh.zero", "3", "--rl.exact", "true"])):
            r = train(f"{work}/{mesh}", *more, "--mesh", mesh, *options, ranks=ranks)
            many = lines(f"{work}/{mesh}", "rl") if r.returncode == 0 else []
            near = len(one) == len(many) == 4 and all(abs(a.get(k, 0) - b.get(k, 0)) < 1e-4 for a, b in zip(one, many) for k in keys) and all(b["mismatch"] < 1e-5 for b in many if "mismatch" in b)
            tap.check(f"ranks of {mesh} share out the questions, and answer as one rank does", near, (r.stderr[-300:] if not many else [[(k, a.get(k), b.get(k)) for k in (*keys, "mismatch")] for a, b in zip(one, many)]))
            if "--rl.exact" in options:
                tap.check(f"ranks of {mesh} compute a token's log-probability with the bits of the engine", near and [b["mismatch"] for b in many if "mismatch" in b] == [0, 0], many)
        adapted = [*more, "--lora.rank", "4", "--lora.targets", "all-linear"]
        r = train(f"{work}/tp-exact-dora", *adapted, "--lora.dora", "true", "--mesh", "tp=2", "--rl.exact", "true", ranks=2)
        tap.check("refused: rl.exact with tp and DoRA", r.returncode != 0 and "tp (mesh) and lora.dora" in r.stderr, r.stderr[-500:])
        r = train(f"{work}/undivided-adapters", *adapted)
        one = lines(f"{work}/undivided-adapters", "rl") if r.returncode == 0 else []
        for mesh, ranks, options in (("tp=2", 2, ["--rl.exact", "true"]), ("dp=2", 2, ["--mesh.zero", "3"]), ("pp=2", 2, [])):
            r = train(f"{work}/adapters-{mesh}", *adapted, "--mesh", mesh, *options, ranks=ranks)
            many = lines(f"{work}/adapters-{mesh}", "rl") if r.returncode == 0 else []
            near = len(one) == len(many) == 4 and all(abs(a.get(k, 0) - b.get(k, 0)) < 1e-4 for a, b in zip(one, many) for k in keys) and all(b["mismatch"] < 1e-5 for b in many if "mismatch" in b)
            near = near and ("--rl.exact" not in options or all(b.get("mismatch", 0) == 0 for b in many))
            tap.check(f"so do the adapters of ranks of {mesh}", near, r.stderr[-300:] if not many else [[(k, a.get(k), b.get(k)) for k in (*keys, "mismatch")] for a, b in zip(one, many)])
        r = train(f"{work}/tp-dead", "--rl.rewards", "command", "--rl.command", "read -r line; exit 5", "--mesh", "tp=2", ranks=2)
        tap.check("a command that ends on a rank of tp ends the run", r.returncode != 0 and "ended with status 5" in r.stderr, r.stderr[-500:])
        stale = [*more[:more.index("--rl.passes")], "--rl.staleness", "1", "--rl.correction", "token-truncate", "--checkpoint.every", "3", "--data.valid", f"{work}/problems.jsonl", "--eval.every", "1"]
        one, two = train(f"{work}/stale-one", *stale), train(f"{work}/stale-two", *stale, "--mesh", "tp=2", ranks=2)
        a, b = (lines(f"{work}/stale-{out}", "rl") for out in ("one", "two")) if one.returncode == two.returncode == 0 else ([], [])
        tap.check("ranks of tp=2 draw ahead as one rank does", len(a) == len(b) == 4 and all(abs(x[k] - y[k]) < 1e-4 for x, y in zip(a, b) for k in keys), two.stderr[-600:] or one.stderr[-600:] or (a, b))
        r = train(f"{work}/stale-dead", *stale, "--rl.command", "for i in $(seq 11); do read -r line; echo 1; done; exit 5", "--mesh", "tp=2", ranks=2)
        tap.check("a command that ends on one of them meanwhile ends the run", r.returncode != 0 and "ended with status 5" in r.stderr, r.stderr[-500:])

    @tap.case
    def dead_command():
        r = train(f"{work}/dead", "--rl.rewards", "command", "--rl.command", "read -r line; exit 5")
        tap.check("a command that ends", r.returncode == 1 and "ended with status 5 at answer 1 of 16" in r.stderr, r.stderr[-500:])

    @tap.case
    def idle_options():
        r = train(f"{work}/idle", "--rl.cap", "3")
        tap.check("an option without effect is refused by name", r.returncode == 2 and "--rl.cap 3 has no effect: it needs objective.kind = cispo" in r.stderr, r.stderr[-500:])

sys.exit(tap.end())
