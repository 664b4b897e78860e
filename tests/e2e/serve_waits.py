"""A minimum number of tokens of reasoning ("reasoning": {"control": "budget", "min_tokens": N}): if the model would end its reasoning too early, "Wait" follows instead. The model's mark is one token. Standard library only; TAP on stdout.

usage: serve_waits.py BASE_URL"""
import json
import sys

import serve_http
from tap import Tap

base = sys.argv[1]
tap = Tap()
check = tap.check


def send(path, body):
    status, text = serve_http.send(base + path, body)
    return status, json.loads(text)


def encode(text):
    return send("/tokenize", {"content": text, "add_special": False, "parse_special": True})[1]["tokens"]


CLOSE, WAIT = encode("</think>"), encode("Wait")
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "seed": 3, "temperature": 1, "ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False,
        "logit_bias": {str(CLOSE[0]): 3.0}}


def chat(also={}, **reasoning):
    return send("/v1/chat/completions", {**CHAT, **also, **({"reasoning": {"control": "budget", **reasoning}} if reasoning else {})})[1]


def ids(a):
    return a["choices"][0]["token_ids"]


check("the mark that closes the reasoning is one token, and the model soon writes it", len(CLOSE) == 1 and CLOSE[0] in ids(chat())[:24], ids(chat()))
plain = ids(chat())
first = plain.index(CLOSE[0])
check("a minimum that is reached changes nothing", ids(chat(min_tokens=first)) == plain and chat(min_tokens=first)["reasoning_control"]["waits"] == 0, (plain, chat(min_tokens=first)))
for least in (first + 1, 20, 45):
    a = chat(min_tokens=least)
    got, r = ids(a), a["reasoning_control"]
    check(f"at least {least}: it continues with Wait where it would have ended", got[:first + len(WAIT)] == plain[:first] + WAIT and r["waits"] >= 1, (got, plain, r))
    check(f"at least {least}: then it ends, not before", CLOSE[0] not in got[:least] and got.count(CLOSE[0]) >= (least < 40) and len(got) == 60 and a["usage"]["completion_tokens"] == 60, (got, r))
a = chat(min_tokens=20, wait="Hmm", max_tokens=30)
got = ids(a)
check("another word, and a budget beside it", encode("Hmm") == got[first:first + len(encode("Hmm"))] and CLOSE[0] in got[20:31], got)
_, text = serve_http.send(base + "/v1/chat/completions", {**CHAT, "stream": True, "reasoning": {"control": "budget", "min_tokens": 20}})
events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
message = chat(min_tokens=20)["choices"][0]["message"]
check("a stream says the same", "".join(x["delta"].get("reasoning") or "" for e in events for x in e["choices"]) == (message.get("reasoning") or "")
      and "".join(x["delta"].get("content") or "" for e in events for x in e["choices"]) == message["content"], (text[-500:], message))
a = chat({"max_tokens": first + 1}, min_tokens=50)
check("no room for Wait: it ends at the limit", len(ids(a)) == first + 1 and a["choices"][0]["finish_reason"] == "length", a)
for name, param, also, reasoning in [("nothing", "reasoning.max_tokens", {}, {"control": "budget"}), ("an empty Wait", "reasoning.wait", {}, {"control": "budget", "min_tokens": 3, "wait": ""}),
                                     ("Wait without a least number", "reasoning.wait", {}, {"control": "budget", "max_tokens": 3, "wait": "x"}), ("least over most", "reasoning.min_tokens", {}, {"control": "budget", "min_tokens": 9, "max_tokens": 3}),
                                     ("two choices", "n", {"n": 2}, {"control": "budget", "min_tokens": 3})]:
    status, e = send("/v1/chat/completions", {**CHAT, **also, "reasoning": reasoning})
    check(f"refused: {name}", status == 400 and e["error"]["param"] == param, (status, e))
sys.exit(tap.end())
