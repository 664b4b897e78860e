"""`lateen eval --task gsm8k|ifeval|humaneval|mbpp|problems`: the scores of given responses are those of lm-evaluation-harness; a model's own responses are written, and have the same scores when they are given again; faults are named. TAP on stdout. Standard library only.

usage: eval_generative.py LATEEN MODEL TOKENIZER"""
import json
import os
import subprocess
import sys
import tempfile

from tap import Tap

lateen, model, tokenizer = sys.argv[1:4]
golden = os.path.join(os.path.dirname(__file__), "..", "golden", "eval", "generative")
tap = Tap()
check, case = tap.check, tap.case
folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


def run(*flags):
    p = subprocess.run([lateen, "eval", *flags], capture_output=True, text=True, timeout=120)
    return p.returncode, p.stdout, p.stderr


def rows(name):
    return [json.loads(line) for line in open(name)]


@case
def gsm8k():
    file = os.path.join(golden, "gsm8k.jsonl")
    want = [r["right"] for r in rows(file)]
    status, out, err = run("--task", "gsm8k", file, "--responses", file, "--json", "--outputs", path("out.jsonl"))
    got = json.loads(out or "{}")
    for i, name in enumerate(("exact_match,strict-match", "exact_match,flexible-extract")):
        mean = sum(w[i] for w in want) / len(want)
        check(f"{name} is the harness's", abs(got.get(name, -1) - mean) < 1e-9 and abs(got[name + "_stderr"] - (mean * (1 - mean) / (len(want) - 1)) ** .5) < 1e-9, (out, err))
    check("each response has its scores", [list(r["scores"].values()) for r in rows(path("out.jsonl"))] == want)


@case
def ifeval():
    file = os.path.join(golden, "ifeval.jsonl")
    extra = ["--nltk", os.environ["NLTK_DATA"]] if "NLTK_DATA" in os.environ else []
    status, out, err = run("--task", "ifeval", file, "--responses", file, "--json", "--outputs", path("out.jsonl"), *extra)
    got, outputs = json.loads(out or "{}"), rows(path("out.jsonl"))
    sums = {}
    for r, o in zip(rows(file), outputs):
        scores = [i["strict"] for i in o["scores"]["instructions"]]
        for x, want in zip(scores, r["follows"]):
            sums["wrong"] = sums.get("wrong", 0) + (x is not None and want[0] is not None and x != want[0])
            if x is not None:
                sums.setdefault("inst", []).append(x)
        if None not in scores:
            sums.setdefault("prompt", []).append(all(scores))
    check("instructions are followed where the harness says so", sums["wrong"] == 0 and len(sums["inst"]) > 200)
    check("the means are those of the instructions that are scored", abs(got["inst_level_strict_acc"] - sum(sums["inst"]) / len(sums["inst"])) < 1e-9
          and got["inst_level_strict_acc_of"] == len(sums["inst"]), out)
    check("a prompt with an instruction that is not scored counts nowhere", got["prompt_level_strict_acc_of"] == len(sums["prompt"])
          and abs(got["prompt_level_strict_acc"] - sum(sums["prompt"]) / len(sums["prompt"])) < 1e-9 and got["unscored_instructions"] > 0, out)


@case
def a_model():
    problems = path("problems.jsonl")
    with open(problems, "w") as f:
        for i in range(12):
            f.write(json.dumps({"question": f"What is {i} + 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"}) + "\n")
    flags = ["--model", model, "--tokenizer", tokenizer, "--task", "gsm8k", problems, "--shots", "2", "--examples", problems, "--max-tokens", "12", "--json"]
    first = run(*flags, "--outputs", path("a.jsonl"))
    again = run(*flags, "--max-running", "1", "--outputs", path("b.jsonl"))
    check("a model answers, and the answers do not depend on how many run at once", first[0] == 0 and first[1] == again[1] and rows(path("a.jsonl")) == rows(path("b.jsonl")), first)
    check("no response goes beyond the limit or its stop", all("Question:" not in r["response"] for r in rows(path("a.jsonl"))) and len(rows(path("a.jsonl"))) == 12)
    scored = json.loads(first[1])
    check("the tokens of an answer are reported", 0 < scored.pop("tokens") <= 12, first)
    check("given again, they score the same", json.loads(run("--task", "gsm8k", problems, "--responses", path("a.jsonl"), "--json")[1]) == scored)


@case
def programs():
    kind = ["--sandbox", "namespaces" if subprocess.run([lateen, "sandbox", "--", "true"], capture_output=True).returncode == 0 else "rlimits", "--test-limit", "120"]
    with open(path("humaneval.jsonl"), "w") as f, open(path("samples.jsonl"), "w") as g:
        for i, right in enumerate((1, 3, 0)):
            f.write(json.dumps({"task_id": f"T/{i}", "prompt": f"def f{i}(x):\n    \"\"\"x + {i}\"\"\"\n", "entry_point": f"f{i}",
                                "test": f"def check(candidate):\n    assert candidate(1) == {i + 1}\n    assert candidate(5) == {i + 5}\n"}) + "\n")
            for s in range(4):
                g.write(json.dumps({"task_id": f"T/{i}", "completion": f"    return x + {i if s < right else 7}\n"}) + "\n")
    flags = ["--task", "humaneval", path("humaneval.jsonl"), "--samples", "4", *kind]
    status, out, err = run(*flags, "--responses", path("samples.jsonl"), "--k", "1,2,4", "--json", "--outputs", path("o.jsonl"))
    got = json.loads(out or "{}")
    check("pass@k of given programs", all(abs(got.get(f"pass@{k}", -1) - want) < 1e-9 for k, want in ((1, 4 / 12), (2, (.5 + 1) / 3), (4, 2 / 3))), (out, err))
    check("each program has its verdict", [r["scores"]["passed"] for r in rows(path("o.jsonl"))] == [True] + [False] * 3 + [True] * 3 + [False] * 5)
    with open(path("mbpp.jsonl"), "w") as f, open(path("code.jsonl"), "w") as g:
        f.write(json.dumps({"text": "Square x.", "code": "def f(x):\n    return x * x", "test_list": ["assert f(2) == 4", "assert f(3) == 9"], "test_setup_code": ""}) + "\n")
        g.write(json.dumps({"response": "def f(x):\n    return x * x\n[DONE]\nand more ("}) + "\n")
    status, out, err = run("--task", "mbpp", path("mbpp.jsonl"), "--responses", path("code.jsonl"), "--json", *kind)
    check("a program ends at [DONE]", json.loads(out or "{}").get("pass@1") == 1, (out, err))
    asked = ["--task", "mbpp", path("mbpp.jsonl"), "--model", model, "--tokenizer", tokenizer, "--max-tokens", "8", "--samples", "3", *kind]
    status, out, err = run(*asked, "--request", '{"temperature": 1}', "--outputs", path("o.jsonl"), "--json")
    check("a model is asked for samples, which differ", status == 0 and len({r["response"] for r in rows(path("o.jsonl"))}) > 1, (out, err))
    for said, flags, want in (("samples of greedy answers", asked, "temperature"), ("answers in a stream", [*asked, "--request", '{"temperature": 1, "stream": true}'], "stream"), ("more than the samples", [*flags, "--k", "5", "--responses", path("samples.jsonl")], "--k 5"),
                              ("an option of other tasks", ["--task", "gsm8k", path("mbpp.jsonl"), "--samples", "2"], "--samples"),
                              ("responses to other questions", ["--task", "humaneval", path("humaneval.jsonl"), *kind, "--responses", path("samples.jsonl")], "task_id")):
        status, out, err = run(*flags)
        check(f"{said}: refused by name", status in (1, 2) and want in err, (status, err))


@case
def problems():
    made = path("made.jsonl")
    subprocess.run([lateen, "data", "make", "algebra", "--count", "6", "--level", "1", "--out", made], capture_output=True, check=True)
    lines = rows(made)
    with open(path("said.jsonl"), "w") as f:
        for i, line in enumerate(lines):
            for s in range(3):  # Of three answers i % 4 are right; the wrong ones are equal.
                said = line["answer"] if s < i % 4 else "-7777"
                f.write(json.dumps({"response": f"<think>\nThe answer is -1.\n</think>\n\nThe answer is {said}."}) + "\n")
    flags = ["--task", "problems", made, "--json", "--samples", "3", "--outputs", path("judged.jsonl")]
    status, out, err = run(*flags, "--k", "1,3", "--responses", path("said.jsonl"))
    got = json.loads(out or "{}")
    want = {"pass@1": (1 + 2 + 3 + 1) / 18, "pass@3": 4 / 6, "maj@1": 7 / 18, "maj@3": 2 / 6}
    check("pass@k and maj@k of given answers", all(abs(got.get(k, -1) - x) < 1e-9 for k, x in want.items()), (out, err))
    check("each problem has its verdicts", [sum(r["right"]) for r in rows(path("judged.jsonl"))] == [0, 1, 2, 3, 0, 1])
    again = subprocess.run([lateen, "data", "check", path("judged.jsonl"), "--k", "1,3", "--json"], capture_output=True, text=True)
    check("and data check agrees", all(abs(json.loads(again.stdout)["all"][k] - x) < 1e-9 for k, x in want.items()), again)
    asked = ["--task", "problems", made, "--model", model, "--tokenizer", tokenizer, "--max-tokens", "8", "--json", "--outputs", path("o.jsonl")]
    status, out, err = run(*asked)
    check("a model is asked greedily", status == 0 and [len(r["completions"]) for r in rows(path("o.jsonl"))] == [1] * 6, (out, err))
    status, out, err = run(*asked, "--samples", "3", "--request", '{"temperature": 1}')
    check("and for samples, which differ", status == 0 and all(len(set(r["completions"])) > 1 for r in rows(path("o.jsonl"))), (out, err))
    with open(path("none.jsonl"), "w") as f:
        f.write(json.dumps({"answer": "1", "checker": "number", "messages": [{"role": "assistant", "content": "1"}]}) + "\n")
    with open(path("text.jsonl"), "w") as f:
        f.write(json.dumps({"answer": "one", "checker": "number", "messages": [{"role": "user", "content": "?"}]}) + "\n")
    for said, flags, want in (("a line without a question", [path("none.jsonl")], "question 1"), ("an answer that is no number", [path("text.jsonl")], "question 1"),
                              ("a line without a checker", [os.path.join(golden, "gsm8k.jsonl")], "checker"), ("a sandbox", [made, "--sandbox", "rlimits"], "--sandbox")):
        status, out, err = run("--task", "problems", *flags, "--responses", path("said.jsonl"))
        check(f"{said}: refused by name", status in (1, 2) and want in err, (status, err))


@case
def wrong():
    file = os.path.join(golden, "gsm8k.jsonl")
    with open(path("short.jsonl"), "w") as f:
        f.write('{"response": "x"}\n')
    with open(path("bad.jsonl"), "w") as f:
        f.write('{"question": "x"}\n')
    with open(path("words.jsonl"), "w") as f:
        for words in (300, "300"):
            f.write(json.dumps({"prompt": "x", "instruction_id_list": ["length_constraints:number_words"], "kwargs": [{"num_words": words, "relation": "at least"}]}) + "\n")
    for name, flags, want in (("too few responses", ["--task", "gsm8k", file, "--responses", path("short.jsonl")], "1 responses to 80"),
                              ("a line without an answer", ["--task", "gsm8k", path("bad.jsonl"), "--responses", file], "bad.jsonl:1"),
                              ("shots without examples", ["--task", "gsm8k", file, "--shots", "3", "--responses", file], "--examples"),
                              ("shots of ifeval", ["--task", "ifeval", os.path.join(golden, "ifeval.jsonl"), "--shots", "3", "--responses", file], "--shots"),
                              ("an instruction whose argument has another type", ["--task", "ifeval", path("words.jsonl"), "--responses", file],
                               'words.jsonl:2: length_constraints:number_words: "num_words" is "300"'),
                              ("NLTK's data that is not there", ["--task", "ifeval", os.path.join(golden, "ifeval.jsonl"), "--nltk", path("none"), "--responses", file], "punkt_tab"),
                              ("adapters with --responses, which asks no model", ["--task", "gsm8k", file, "--responses", file, "--lora", path("none")], "--lora"),
                              ("a length of sequences for a task that generates", ["--task", "gsm8k", file, "--responses", file, "--seq", "64"], "--seq"),
                              ("responses at once for another task", ["--task", "piqa", file, "--max-running", "2"], "--max-running"),
                              ("shots of a task without examples", ["--task", "piqa", file, "--shots", "2"], "piqa has no examples"),
                              ("shots of a text", [file, "--shots", "2"], "--shots 2"),
                              ("--responses for another task", ["--task", "piqa", file, "--responses", file], "--responses")):
        status, out, err = run(*flags)
        check(f"{name}: refused by name", status in (1, 2) and want in err, (status, err))


sys.exit(tap.end())
