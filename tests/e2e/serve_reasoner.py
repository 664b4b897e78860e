"""The model that `lateen serve` serves without a model: it answers held-out problems of each kind, most of them rightly, and thinks before; thinking can be switched off; a later question of a conversation is answered like a first one. Standard library only; TAP on stdout.

usage: serve_reasoner.py BASE_URL LATEEN"""
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import serve_http
from tap import Tap

base, lateen = sys.argv[1:]
tap = Tap()
check = tap.check
KINDS = ["arithmetic", "algebra", "units", "logic", "lists", "strings"]
# Right answers of 24, always with the same seed: 23 when this was written. Rounding differs
# between machines.
EACH, RIGHT = 4, 18


def run(*words, text=""):
    return subprocess.run([lateen, *words], input=text, capture_output=True, text=True, check=True).stdout


def chat(messages, **fields):
    code, body = serve_http.send(base + "/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})[:2]
    choice = json.loads(body)["choices"][0]
    return choice["message"], choice["finish_reason"]


check("the model that ships with Lateen for chats", json.loads(serve_http.send(base + "/v1/models")[1])["data"][0]["id"] == "reasoner-23m")
defaults = json.loads(serve_http.send(base + "/props")[1])["default_generation_settings"]["params"]
check("it brings its temperature", abs(defaults["temperature"] - 0.6) < 1e-6, defaults["temperature"])

problems = [json.loads(line) for kind in KINDS for line in run("data", "make", kind, "--split", "held-out", "--level", "1-2", "--seed", "2027", "--count", str(EACH)).splitlines()]
check("held-out problems", len(problems) == EACH * len(KINDS))
with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(lambda p: chat(p["messages"][:1]), problems))
check("each answer ends by itself", all(end == "stop" for _, end in answers))
check("a thought comes before each", all(m.get("reasoning_content") for m, _ in answers) and not any("think>" in m["content"] for m, _ in answers),
      [m for m, _ in answers if not m.get("reasoning_content")][:2])
judged = json.loads(run("data", "check", "-", "--json", text="".join(json.dumps({**p, "completions": [m["content"]]}) + "\n" for p, (m, _) in zip(problems, answers))))["all"]
check(f"most are right: {judged['right'] * len(problems):.0f} of {len(problems)}", judged["right"] * len(problems) >= RIGHT, judged)

sums = [p for p in problems if p["kind"] == "arithmetic"]
first, second = sums[0]["messages"][:1], sums[1]["messages"][:1]
talk = [{"role": "system", "content": "Be brief."}, *first, {"role": "assistant", "content": answers[0][0]["content"]}, *second]
check("a later question is answered as a first one", chat(talk)[0] == chat(second)[0])
for name, off in {"reasoning_effort": {"reasoning_effort": "none"}, "enable_thinking": {"enable_thinking": False},
                  "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}}}.items():
    m, end = chat(first, **off)
    check(f"{name} switches thinking off", not m.get("reasoning_content") and m["content"].startswith("The answer is") and end == "stop", m)
# The newline after the mark that opens the thought is not a border, because nothing has been
# thought before it.
code, body = serve_http.send(base + "/v1/chat/completions", {"messages": first, "temperature": 0, "reasoning": {"control": "deer", "threshold": 1, "border": "\n"}})[:2]
trials = json.loads(body)["reasoning_control"]["trials"]
check("deer tries an answer at borders of the thought, none before its first line", trials and trials[0]["at"] > 5 and "think>" not in json.loads(body)["choices"][0]["message"]["content"], trials)
# The marks of thoughts are special tokens, which the parser reads; other special tokens stay out
# of the text.
for fields, shown in (({}, False), ({"skip_special_tokens": True}, False), ({"skip_special_tokens": False}, True)):
    texts = [str(m.get(k)) for effort in ("none", "low") for k in ("content", "reasoning_content")
             for m in [chat(first, ignore_eos=True, max_tokens=200, reasoning_effort=effort, **fields)[0]]]
    check(f"{fields}: the ending token is {'in' if shown else 'not in'} the text", any("<|im_end|>" in t for t in texts) == shown, texts)
# A field for real numbers accepts every number in its range.
for temperature, status in ((1e18, 200), (1e19, 200), (1e300, 200), (1.1e300, 400)):
    code, body = serve_http.send(base + "/v1/completions", {"prompt": "x", "max_tokens": 1, "alignment": {"method": "soft_best_of_n", "n": 2, "temperature": temperature}})[:2]
    check(f"alignment.temperature {temperature:g}: {status}", code == status, body)
sys.exit(tap.end())
