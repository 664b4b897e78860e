"""Methods of alignment in `lateen generate` and `lateen eval`: they are those of the server, and sample the same texts as without a method. Standard library only; TAP on
stdout.

usage: align_verbs.py LATEEN"""
import json
import os
import subprocess
import sys
import tempfile

from tap import Tap

lateen = sys.argv[1]
tap = Tap()
check = tap.check
SHARED = "tests/golden/stories260k"
MODEL = ["--model", f"{SHARED}/stories260K.bin", "--tokenizer", f"{SHARED}/tok512.bin", "--threads", "1"]


def run(verb, *args):
    done = subprocess.run([lateen, verb, *MODEL, *args], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def generate(method=None, *args):
    return run("generate", "--prompt", "Once upon a time", "--max-tokens", "30", "--seed", "4", *(["--align", json.dumps(method)] if method else []), *args)


plain = generate()
check("generate: one candidate is the plain text", generate({"method": "best_of_n", "n": 1})[:2] == plain[:2] and plain[0] == 0, plain)
for words in (["--temperature", "0"], ["--top-k", "5", "--min-p", "0.05"], ["--repetition-penalty", "1.3", "--frequency-penalty", "0.5"], ["--logit-bias", "300=4,400=-3"], ["--ignore-eos", "--echo"]):
    check(f"generate: and with {' '.join(words)}", generate({"method": "best_of_n", "n": 1}, *words)[:2] == generate(None, *words)[:2])
code, out, _ = generate({"method": "best_of_n", "n": 3, "return_candidates": True}, "--json")
says = json.loads(out)
check("generate --json: the server's answer, whose first candidate is the plain text", code == 0 and says["alignment"]["candidates"][0]["text"] == plain[1].removesuffix("\n")
      and says["alignment"]["chosen"] == max(range(3), key=lambda i: says["alignment"]["candidates"][i]["score"]), says)
code, out, err = generate({"method": "best_of_n", "n": 3}, "--stats")
check("generate: prints the chosen text, and --stats what the method says", out.removesuffix("\n") == says["choices"][0]["text"] and json.loads(err)["chosen"] == says["alignment"]["chosen"], (out, err))
code, out, err = generate({"method": "beam", "n": 3})
check("generate: a beam search takes no temperature that was not given", code == 0 and out, err)
code, out, err = generate({"method": "dexperts", "expert": "twin", "anti": "twin"}, "--second", f"twin={SHARED}/stories260K.bin", "--temperature", "0")
check("generate: models beside it", code == 0 and out == generate(None, "--temperature", "0")[1], (out, err))
code, out, err = generate({"method": "best_of_n", "n": 2, "reward": "reward"}, "--reward", "tests/golden/serve/reward", "--reward-tokenizer", f"{SHARED}/tok512.bin", "--stats")
check("generate: a reward model", code == 0 and json.loads(err)["tokens"]["reward"] > 0, (out, err))
for name, words, args in [("another method", "best_of_n", ({"method": "best_of_m", "n": 2},)), ("a temperature for beams", "temperature", ({"method": "beam", "n": 2}, "--temperature", "0.5")),
                          ("a reward without a method", "--align", (None, "--reward", "x")), ("a tokenizer without its reward model", "--reward-tokenizer", ({"method": "best_of_n", "n": 2}, "--reward-tokenizer", f"{SHARED}/tok512.bin")),
                          ("a method's reward that is not there", "--reward", ({"method": "best_of_n", "n": 2, "reward": "reward"},)),
                          ("JSON that is none", "--align", (None, "--align", "{best"))]:
    code, out, err = generate(*args)
    check(f"generate refuses: {name}", code in (1, 2) and words in err and out == "", (code, out, err))

with tempfile.TemporaryDirectory() as d:
    data = os.path.join(d, "gsm8k.jsonl")
    with open(data, "w") as f:
        f.writelines(json.dumps({"question": f"Lily has {i} toys and finds 2. How many has she?", "answer": f"{i + 2}\n#### {i + 2}"}) + "\n" for i in range(4))

    def evaluate(*args):
        responses = os.path.join(d, "out.jsonl")
        code, out, err = run("eval", "--task", "gsm8k", data, "--max-tokens", "12", "--outputs", responses, "--json", *args)
        return code, json.loads(out) if code == 0 else err, [json.loads(line)["response"] for line in open(responses)] if code == 0 else []

    greedy, drawn = evaluate(), evaluate("--request", '{"temperature": 1, "seed": 3}')
    one = evaluate("--request", '{"seed": 3}', "--align", '{"method": "best_of_n", "n": 1}')
    three = evaluate("--request", '{"seed": 3}', "--align", '{"method": "best_of_n", "n": 8}')
    check("eval: greedy unless the request says", greedy[0] == 0 and greedy[2] == evaluate("--request", '{"temperature": 0}')[2] != drawn[2], (greedy, drawn))
    check("eval: one candidate is what is drawn", one[2] == drawn[2], (one, drawn))
    check("eval: of eight another is kept, and their tokens are reported", three[2] != one[2] and 2 * one[1]["tokens"] < three[1]["tokens"] <= 96, (three, one))
    check("eval: an answer from known answers' check", evaluate("--align", '{"method": "best_of_n", "n": 2, "reward": {"check": "number", "answer": "3"}}')[0] == 0)
    code, err, _ = evaluate("--align", '{"method": "best_of_m"}')
    check("eval refuses another method", code != 0 and "best_of_n" in err, err)
    code, out, err = run("eval", data, "--align", '{"method": "best_of_n", "n": 2}')
    check("eval refuses a method if the model writes nothing", code == 2 and "--align" in err, (code, err))
sys.exit(tap.end())
