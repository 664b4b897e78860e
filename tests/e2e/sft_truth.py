"""Fine-tuning against transformers, PyTorch and PEFT (tests/golden/sft, tools/make_sft_goldens.py): ids and masks of conversations in every shape, and the
loss and gradient norm of every step. Standard library only; TAP on stdout.

usage: sft_truth.py LATEEN"""
import json
import math
import os
import subprocess
import sys
import tempfile

lateen, golden = sys.argv[1], "tests/golden/sft"
truth = json.load(open(f"{golden}/truth.json"))
count = failed = 0
LOSS, NORM = 1e-5, 1e-4  # PyTorch ran in double, this in float.


def check(name, wrong):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f"\n  # {str(wrong)[:600]}" if wrong else ""), flush=True)


def run(*args, **more):
    return subprocess.run([lateen, *args], capture_output=True, text=True, **more)


def train(out, **options):
    """Every step sees all conversations; best-fit rows hold several each."""
    args = {"out": out, "model.init": golden, "data.train": f"{golden}/chat.jsonl", "data.seq": truth["seq"], "batch.size": truth["rows"], "steps": truth["steps"], "optim.lr": truth["lr"],
            "optim.beta2": 0.999, "optim.decay": 0, "lr.schedule": "constant", "data.shuffle": "none", "threads": 2, "sample.tokens": 0, **options}
    return run("train", *(w for n, v in args.items() for w in (f"--{n}", str(v))))


def steps_of(out):
    return [r for r in map(json.loads, open(f"{out}/metrics.jsonl")) if r["kind"] == "train"]


def compare(want, got):
    if len(want) != len(got):
        return f"{len(got)} steps, not {len(want)}"
    for i, (w, g) in enumerate(zip(want, got)):
        if not (math.isclose(w["loss"], g["loss"], rel_tol=LOSS) and math.isclose(w["grad_norm"], g["grad_norm"], rel_tol=NORM)):
            return f"step {i + 1}: {w}, not {dict((n, g[n]) for n in w)}"
    return ""


def rows_equal():
    lines = run("tokenize", "--tokenizer", golden, "--jsonl", "--chat", stdin=open(f"{golden}/chat.jsonl"))
    got = [json.loads(x) for x in lines.stdout.splitlines()]
    if len(got) != len(truth["conversations"]):
        return lines.stderr
    return [i for i, (w, g) in enumerate(zip(truth["conversations"], got)) if (w["ids"], w["mask"]) != (g["ids"], g["mask"])]


with tempfile.TemporaryDirectory() as work:
    check("ids and masks of every shape, as transformers has them", rows_equal())
    out = f"{work}/full"
    done = train(out)
    check("20 steps of full fine-tuning, as PyTorch takes them", done.stderr[-600:] if done.returncode != 0 else compare(truth["full"], steps_of(out)))
    again = train(f"{work}/stream", **{"data.packing": "stream", "data.mask_documents": "false", "steps": 1})
    leaks = steps_of(f"{work}/stream")[0]["loss"] if again.returncode == 0 else None
    check("rows that leak have another loss", leaks is None or math.isclose(leaks, truth["full"][0]["loss"], rel_tol=LOSS))
    said = run("chat", "--model", f"{out}/model", "--max-tokens", "4", input="Hi\n")
    check("the exported model talks by its template", said.stderr if said.returncode != 0 or not os.path.exists(f"{out}/model/tokenizer.json") else "")

    # Bad rows, by file and line; a second start; another file.
    chats, out = f"{work}/some.jsonl", f"{work}/bad"
    good = open(f"{golden}/chat.jsonl").read()
    open(chats, "w").write(good + '{"messages": [{"role": "user", "content": "and?"}]}\nnot JSON\n')
    line = good.count("\n")
    first = train(out, **{"data.train": chats, "steps": 1})
    wanted = [f"some.jsonl:{line + 1}: no turn of the assistant to learn; the conversation is left out", f"some.jsonl:{line + 2}: column", "2 conversations left out, 0 cut", f"{line} conversations"]
    check("bad rows are named and left out", [w for w in wanted if w not in first.stderr] or first.returncode)
    more = train(out, **{"data.train": chats, "steps": 2})
    check("a second start goes on with the tokens of the first", more.stderr[-300:] if more.returncode != 0 or "tokens from an earlier start" not in more.stderr or len(steps_of(out)) != 2 else "")
    open(chats, "a").write(good)
    other = train(out, **{"data.train": chats, "steps": 3})
    check("other conversations are not taken for the same", "" if other.returncode == 1 and "data.train" in other.stderr else other.stderr[-300:])
    fails = train(f"{work}/fails", **{"data.train": chats, "data.bad_rows": "fail"})
    check("data.bad_rows = fail names the first", "" if fails.returncode == 1 and f"some.jsonl:{line + 1}: no turn" in fails.stderr else fails.stderr[-300:])
    none = run("train", "--out", f"{work}/none", "--model.init", "models/polyglot-46m.gguf", "--data.train", chats, "--steps", "1")
    check("a model without a template says how to give one", "" if none.returncode == 1 and "no chat template; give one with data.chat_template" in none.stderr else none.stderr[-300:])
print(f"1..{count}")
sys.exit(failed > 0)
