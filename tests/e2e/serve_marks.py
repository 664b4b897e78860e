"""Control of the reasoning of a model whose reasoning does not end with </think>: trials, and the text that ends the reasoning, use its own mark. The
server is deterministic; its template opens the reasoning. Standard library only; TAP on stdout.

usage: serve_marks.py BASE_URL CLOSE   CLOSE: the text that ends the reasoning"""
import json
import math
import sys

import serve_http
from tap import Tap

base, CLOSE = sys.argv[1:]
tap = Tap()
check = tap.check
BODY = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 120, "seed": 4, "temperature": 0, "return_token_ids": True}
SAID = " Lily said:"


def send(path, body):
    return json.loads(serve_http.send(base + path, body)[1])


def chat(also={}, **reasoning):
    return send("/v1/chat/completions", {**BODY, **also, **({"reasoning": reasoning} if reasoning else {})})


def encode(text):
    return send("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]


def behind(ids, n, **also):
    return send("/v1/completions", {"prompt": prompt + ids, "max_tokens": n, "temperature": 0, "return_token_ids": True, **also})["choices"][0]


plain = chat()
prompt, ids, close = plain["prompt_token_ids"], plain["choices"][0]["token_ids"], encode(CLOSE)
check("the template opens the reasoning, and all of the text is reasoning", not plain["choices"][0]["message"]["content"] and len(plain["choices"][0]["message"]["reasoning"]) > 100, plain)
for how in ({"control": "deer", "threshold": 1, "border": [".", ","], "probe": SAID}, {"control": "probe", "every": 7, "agree": 64, "probe": SAID}):
    a = chat(**how)
    check(f"{how['control']}: what never ends it changes nothing", a["choices"][0]["token_ids"] == ids and a["reasoning_control"]["n_trials"] > 1, a["reasoning_control"])
for name, how, why in (("deer", {"border": [".", ","], "threshold": 0}, "confident"), ("probe", {"every": 5, "agree": 2}, "agreed"), ("entropy", {"border": [".", ","], "alpha": 1, "delta": 1e6, "repetition": 1}, "settled")):
    a = chat(control=name, **({"probe": "\n"} if name == "entropy" else {"probe": SAID, "probe_tokens": 40}), **how)
    c, r = a["choices"][0], a["reasoning_control"]
    at = r["trials"][-1]["at"]
    want = ids[:at] + close
    want += behind(want, 120 - len(want))["token_ids"]
    check(f"{name}: the model's own mark ends the reasoning, and its answer follows", r["stopped_by"] == why and c["token_ids"] == want and at < 100, (r, c["token_ids"], want))
    check(f"{name}: the mark is not part of the answer", c["message"]["reasoning"] and plain["choices"][0]["message"]["reasoning"].startswith(c["message"]["reasoning"])
          and len(c["message"]["content"]) > 5 and CLOSE[-8:] not in c["message"]["reasoning"] + c["message"]["content"][:20], c["message"])
    _, stream = serve_http.send(base + "/v1/chat/completions", {**BODY, "stream": True, "reasoning": {"control": name, **({"probe": "\n"} if name == "entropy" else {"probe": SAID, "probe_tokens": 40}), **how}})
    deltas = [x["delta"] for e in stream.split("\n\n") if e.startswith("data: {") for x in json.loads(e[6:])["choices"]]
    check(f"{name}: a stream says the same", ["".join(d.get(k) or "" for d in deltas) for k in ("reasoning", "content")] == [c["message"]["reasoning"], c["message"]["content"]], stream[-400:])
    if name == "entropy":
        top = behind(ids[:at] + close + encode("\n"), 1, logprobs=20)["logprobs"]["top_logprobs"][0].values()
        low, rest = -sum(x * math.exp(x) for x in top), 1 - sum(map(math.exp, top))
        check("entropy: it is that after the model's own mark", low - rest * math.log(rest) - 1e-3 < r["trials"][-1]["entropy"] < low - rest * math.log(rest / 492) + 1e-3, (r, low, rest))
budget = chat({"thinking_budget": 15})
if "<|channel|>" in CLOSE:
    check("channels: a budget is refused by name", budget["error"]["param"] == "thinking_budget", budget)
    tools = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "required"}
    check("channels: a call that is required is refused by name", chat(tools, control="deer")["error"]["param"] == "tool_choice")
else:
    check("a budget ends with the model's own mark", budget["choices"][0]["token_ids"][:15 + len(close)] == ids[:15] + close, budget)
sys.exit(tap.end())
