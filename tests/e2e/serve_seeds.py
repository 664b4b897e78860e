#!/usr/bin/env python3
"""A seed gives the same text from `lateen generate`, `lateen chat` and `lateen serve`, as TAP.

    tests/e2e/serve_seeds.py PORT DEVICE all|few -- COMMAND...

COMMAND begins a command line of the program (tests/emu/run build/lateen, on the emulated GPU); the
server at PORT has the same model and device, and the chat template that TEMPLATE names.
"""
import json
import os
import subprocess
import sys
import urllib.request

port, device, few = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "few"
command = sys.argv[5:]
model = os.environ["SEEDS_MODEL"].split()
template = os.environ["SEEDS_TEMPLATE"]
fixed = ["--device", device, "--dtype", "fp32", "--generation-config", "none"]
n = failed = 0

# A field of a request, and the name of its flag if that differs.
FLAGS = {"repetition_penalty": "--repetition-penalty", "frequency_penalty": "--frequency-penalty",
         "presence_penalty": "--presence-penalty", "top_k": "--top-k", "top_p": "--top-p",
         "min_p": "--min-p", "typical_p": "--typical-p", "max_tokens": "--max-tokens"}
CASES = [
    {"temperature": 0},
    {"temperature": 1, "seed": 1},
    {"temperature": 1.3, "seed": 2**40 + 17, "top_k": 40},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9},
    {"temperature": 1.1, "seed": 4, "min_p": 0.05},
    {"temperature": 1, "seed": 5, "typical_p": 0.7},
    {"temperature": 1, "seed": 6, "top_k": 30, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 0.8, "seed": 7, "repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 8, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"temperature": 1, "seed": 9, "logit_bias": {"261": 4, "410": 2.5, "265": -100}},
    {"temperature": 0.7, "seed": 10, "top_p": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.3,
     "logit_bias": {"300": 3}},
]


def say(name, ok, why=""):
    global n, failed
    n += 1
    print(f"{'ok' if ok else 'not ok'} {n} - {name}")
    if not ok:
        failed += 1
        print("  #", str(why).replace("\n", "\n  # "))
    sys.stdout.flush()


def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=180) as r:
        return json.load(r)


def flags(options):
    out = []
    for key, value in options.items():
        if key == "logit_bias":
            out += ["--logit-bias", ",".join(f"{i}={b}" for i, b in value.items())]
        else:
            out += [FLAGS.get(key, "--" + key), str(value)]
    return out


def program(verb, options, text=None):
    run = command + [verb, "--model", *model, *fixed, *flags(options)]
    done = subprocess.run(run, input=text, capture_output=True, text=True, timeout=280)
    if done.returncode != 0:
        raise RuntimeError(" ".join(run) + "\n" + done.stderr[-800:])
    return done.stdout


texts = set()
if few:  # The emulated GPU is slow, so all options are set at once.
    CASES = [{"temperature": 1, "seed": 2}, CASES[-1]]
for case in CASES:
    options = dict(case, max_tokens=16 if few else 48)
    prompt = "Once upon a time"
    served = post("/v1/completions", dict(options, prompt=prompt))["choices"][0]["text"]
    generated = program("generate", dict(options, prompt=prompt))
    texts.add(served)
    say(f"generate is serve's choice 0: {case}", generated == served,
        f"generate: {generated!r}\nserve:    {served!r}")
say("the options make different texts", len(texts) == len(CASES), texts)

both = post("/v1/completions", {"prompt": "Once upon a time", "n": 3, "temperature": 1, "seed": 1,
                                "max_tokens": 16})["choices"]
alone = post("/v1/completions", {"prompt": "Once upon a time", "temperature": 1, "seed": 1,
                                 "max_tokens": 16})["choices"][0]["text"]
say("choices have draws of their own, and choice 0 those of a request with one choice",
    both[0]["text"] == alone and len({c["text"] for c in both}) == 3, both)

# Three turns, the second of which is cut off in the middle of a message.
for case in [{"temperature": 1, "seed": 21}, {"temperature": 0.9, "seed": 22, "repetition_penalty": 1.2},
             {"temperature": 1, "seed": 23, "frequency_penalty": 0.5, "top_p": 0.9}][few * 2:]:
    options = dict(case, max_tokens=12 if few else 24)
    turns, messages, served = ["Once upon", "a big dog", "and then"], [], []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        served.append(post("/v1/chat/completions", dict(options, messages=messages))
                      ["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": served[-1]})
    said = program("chat", dict(options, **{"chat-template": template, "context": 512}),
                   "".join(t + "\n" for t in turns))
    say(f"chat is serve's conversation: {case}", said == "".join(t + "\n" for t in served),
        f"chat:  {said!r}\nserve: {served!r}")
print(f"1..{n}")
sys.exit(failed > 0)
