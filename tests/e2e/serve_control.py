"""Control of the reasoning ("reasoning" in chats): a control that does not end it changes nothing, a trial gives the answer of a request with the same text, and the reasoning ends where the rule says. The server is deterministic; its template opens the reasoning. Standard library only; TAP on stdout.

usage: serve_control.py BASE_URL"""
import json
import math
import re
import socket
import sys
import time

import serve_http
from tap import Tap

base = sys.argv[1]
tap = Tap()
check = tap.check
CHAT = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 120, "seed": 4, "temperature": 0.8, "return_token_ids": True}
SAID = " Lily said:"


def send(path, body=None):
    return serve_http.send(base + path, body)


def chat(also={}, **reasoning):
    return json.loads(send("/v1/chat/completions", {**CHAT, **also, **({"reasoning": reasoning} if reasoning else {})})[1])


def message(a):
    return a["choices"][0]["message"].get("reasoning"), a["choices"][0]["message"]["content"], a["choices"][0]["token_ids"], a["choices"][0]["finish_reason"]


def encode(text):
    return json.loads(send("/tokenize", {"content": text, "add_special": False, "parse_special": True})[1])["tokens"]


# ---- A reasoning that is stopped and continued equals one that was never stopped ----
CASES = {"plainly": {}, "greedily": {"temperature": 0}, "with penalties": {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.1},
         "with a grammar": {"guided_regex": "[A-Za-z ]*\\."}, "with bad words": {"bad_words": [" Lily"]}, "with a budget": {"thinking_budget": 60}}
for name, also in CASES.items():
    plain = message(chat(also))
    for how in ({"control": "deer", "threshold": 1, "border": [".", ","], "probe": SAID}, {"control": "probe", "every": 7, "agree": 64, "probe": SAID}):
        a = chat(also, **how)
        check(f"{how['control']} that never ends it changes nothing, {name}", message(a) == plain and a["reasoning_control"]["n_trials"] > 1
              and a["reasoning_control"]["stopped_by"] == "end", (message(a), plain, a["reasoning_control"]["n_trials"]))

# ---- A trial gives the answer of a request with the same text; the reasoning ends at the first
# trial that is sure enough ----
plain = chat()
prompt, ids = plain["prompt_token_ids"], plain["choices"][0]["token_ids"]
borders = [i + 1 for i, piece in enumerate(json.loads(send("/detokenize", {"tokens": [t]})[1])["content"] for t in ids) if "." in piece]
a = chat(control="deer", threshold=1, border=".", probe=SAID)
trials = a["reasoning_control"]["trials"]
check("deer: a trial at each border", [t["at"] for t in trials] == [b for b in borders if b + 9 < 120], (trials, borders))


def said(at, geometric=False):
    """The trial after `at` tokens, by a separate request: (answer or None, tokens, confidence)."""
    c = json.loads(send("/v1/completions", {"prompt": prompt + ids[:at] + encode(SAID), "max_tokens": 20, "temperature": 0, "logprobs": 0})[1])["choices"][0]
    text, n, logs = "", 0, c["logprobs"]["token_logprobs"]
    for n, piece in enumerate(c["logprobs"]["tokens"], 1):
        text += piece
        if "\n" in text.lstrip("\n"):
            break
    closed = "\n" in text.lstrip("\n")
    mean = sum(logs[:n] if geometric else map(math.exp, logs[:n])) / n
    return text.lstrip("\n").split("\n")[0].strip() if closed else None, n, math.exp(mean) if geometric else mean


want = [said(t["at"]) for t in trials]
check("deer: answer, tokens and confidence of each trial", all(t["answer"] == w[0] and t["tokens"] == w[1] and abs(t["confidence"] - w[2]) < 1e-3 for t, w in zip(trials, want)), (trials, want))
check("some end their line (else the tests below say little)", any(w[0] for w in want), want)
geometric = chat(control="deer", threshold=1, border=".", probe=SAID, mean="geometric")["reasoning_control"]["trials"]
check("deer: the geometric mean", all(abs(t["confidence"] - said(t["at"], True)[2]) < 1e-3 for t in geometric), geometric)
sure = [w[2] for w in want if w[0]]
threshold = sorted(sure)[len(sure) // 2] - 1e-3
first = next(t["at"] for t, w in zip(trials, want) if w[0] and w[2] > threshold)
a = chat(control="deer", threshold=threshold, border=".", probe=SAID)
c, close = a["choices"][0], encode("</think>")
check("deer: ends at the first that is sure enough", a["reasoning_control"]["stopped_by"] == "confident" and a["reasoning_control"]["trials"][-1]["at"] == first
      and c["token_ids"][:first + len(close)] == ids[:first] + close, (first, a["reasoning_control"]))
check("deer: then the answer comes", len(c["token_ids"]) == 120 and len(c["message"]["content"]) > 10 and plain["choices"][0]["message"]["reasoning"].startswith(c["message"]["reasoning"]), c["message"])
greedy = chat({"temperature": 0})
ids = greedy["choices"][0]["token_ids"]
a = chat({"temperature": 0}, control="probe", every=10, agree=2, probe=SAID)
r, c = a["reasoning_control"], a["choices"][0]
want = [said(t["at"])[0] for t in r["trials"]]
check("probe: a trial every 10 tokens", [t["at"] for t in r["trials"]] == [10 * (i + 1) for i in range(len(r["trials"]))], r)
check("probe: ends when two in succession agree, and not before", r["stopped_by"] == "agreed" and want[-1] and want[-1] == want[-2]
      and not any(x and x == y for x, y in zip(want[:-1], want[1:-1])) and [t["answer"] for t in r["trials"]] == want, (r, want))
at = r["trials"][-1]["at"]
rest = json.loads(send("/v1/completions", {"prompt": prompt + ids[:at] + close, "max_tokens": 120 - at - len(close), "temperature": 0, "return_token_ids": True})[1])["choices"][0]
check("probe: what follows is what the model says after the closed reasoning", c["token_ids"] == ids[:at] + close + rest["token_ids"], (c["token_ids"], rest["token_ids"]))
check("the trials' tokens are reported and counted", a["usage"]["completion_tokens"] == len(c["token_ids"]) + r["trial_tokens"] and r["trial_tokens"] == sum(t["tokens"] for t in r["trials"]), (a["usage"], r))

# ---- A budget; streams ----
check("budget: as thinking_budget", message(chat(control="budget", max_tokens=15)) == message(chat({"thinking_budget": 15})))
_, stream = send("/v1/chat/completions", {**CHAT, "stream": True, "temperature": 0, "reasoning": {"control": "probe", "every": 10, "agree": 2, "probe": SAID}})
events = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
check("a stream says the same", "".join(x["delta"].get("reasoning") or "" for e in events for x in e["choices"]) == c["message"]["reasoning"]
      and "".join(x["delta"].get("content") or "" for e in events for x in e["choices"]) == c["message"]["content"]
      and [e["reasoning_control"]["n_trials"] for e in events if "reasoning_control" in e] == [r["n_trials"]], stream[-600:])

# ---- Responses ----
BODY = {"input": "Once upon a time", "max_output_tokens": 120, "seed": 4, "temperature": 0}
CONTROL = {"control": "probe", "every": 10, "agree": 2, "probe": SAID}
told = json.loads(send("/v1/responses", {**BODY, "reasoning": {**CONTROL, "effort": "medium"}})[1])
parts = [i["content"][0]["text"] for i in told["output"]]
check("a response says the same", parts == [c["message"]["reasoning"], c["message"]["content"]] and told["reasoning_control"] == r and told["reasoning"]["effort"] == "medium", told)
_, stream = send("/v1/responses", {**BODY, "stream": True, "reasoning": CONTROL})
events = [json.loads(e.split("data: ", 1)[1]) for e in stream.strip().split("\n\n")]
check("so does its stream", ["".join(e["delta"] for e in events if e["type"] == kind) for kind in ("response.reasoning_text.delta", "response.output_text.delta")] == parts
      and events[-1]["response"]["reasoning_control"] == r, stream[-600:])
for name, param, reasoning in (("a control that does not exist", "reasoning.control", {"control": "magic"}), ("a member of a control without one", "reasoning.every", {"every": 10}),
                               ("a member that the control does not read", "reasoning.agree", {"control": "deer", "agree": 3}), ("another mode", "reasoning.mode", {"control": "deer", "mode": "pro"})):
    e = json.loads(send("/v1/responses", {**BODY, "reasoning": reasoning})[1])["error"]
    check(f"a response: {name} is refused", e["param"] == param, e)
check("a response: a control of null is no control", "reasoning_control" not in json.loads(send("/v1/responses", {**BODY, "max_output_tokens": 2, "reasoning": {"control": None}})[1]))

# ---- Entropy: a trial reports how sure the model would be of the first word of its answer ----
a = chat(control="entropy", border=".", alpha=0.9, delta=0, repetition=1)
check("entropy: what is never settled changes nothing", message(a) == message(plain) and a["reasoning_control"]["n_trials"] > 4 and a["reasoning_control"]["stopped_by"] == "end", a["reasoning_control"])
trials, behind = a["reasoning_control"]["trials"], encode("\n")
ids = plain["choices"][0]["token_ids"]
text = prompt + ids[:trials[1]["at"]] + close + behind
top = json.loads(send("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 20})[1])["choices"][0]["logprobs"]["top_logprobs"][0].values()
low, rest = -sum(x * math.exp(x) for x in top), 1 - sum(map(math.exp, top))
# The rest of the vocabulary adds at least what one token would, and at most what all of it
# together would.
check("entropy: it is that of the whole vocabulary after the closing mark", low - rest * math.log(rest) - 1e-3 < trials[1]["entropy"] < low - rest * math.log(rest / 492) + 1e-3, (trials[1], low, rest))


def settles(trials, alpha, delta):
    """The moving variances, and the index of the trial at which they have settled."""
    m, v, end = trials[0]["entropy"], 0, None
    variances = []
    for i, t in enumerate(trials):
        m = alpha * t["entropy"] + (1 - alpha) * m
        v = alpha * (t["entropy"] - m) ** 2 + (1 - alpha) * v
        variances.append(v)
        end = i if end is None and i + 1 > 4 / alpha and v < delta else end
    return variances, end


variances, _ = settles(trials, 0.9, 0)
check("entropy: the moving variance", all(abs(t["variance"] - v) < 1e-5 for t, v in zip(trials, variances)), (trials, variances))
delta = sorted(variances[4:])[len(variances[4:]) // 2] * 1.001
_, end = settles(trials, 0.9, delta)
a = chat(control="entropy", border=".", alpha=0.9, delta=delta, repetition=1)
r, c = a["reasoning_control"], a["choices"][0]
check("entropy: ends where it is settled", r["stopped_by"] == "settled" and r["trials"][-1]["at"] == trials[end]["at"] and c["token_ids"][:r["trials"][-1]["at"] + len(close)] == ids[:r["trials"][-1]["at"]] + close, (r, end))
check("entropy: tokens spent and what may have been saved", r["trial_tokens"] == end + 1 and r["saved_most"] == 120 - trials[end]["at"]
      and a["usage"]["completion_tokens"] == len(c["token_ids"]) + r["trial_tokens"], (r, a["usage"]))

# ---- A reasoning that repeats itself is folded back ----
few = {"allowed_token_ids": encode(" Lily said .") + [encode("a.")[-1]]}


def repeats(ids, window, most):
    for n in range(window, len(ids) + 1):
        part = [tuple(ids[i:i + 4]) for i in range(n - window, n - 3)]
        if n % 16 == 0 and 1 - len(set(part)) / len(part) > most:
            return n, n - window + next(i for i, g in enumerate(part) if g in part[:i])
    return None, None


LOOK = {"control": "entropy", "border": ".", "delta": 0, "window": 32, "repetition": 0.3}
for name, also in (("drawn", few), ("greedy", {**few, "temperature": 0})):
    plain_ids = message(chat(also))[2]
    n, first = repeats(plain_ids, 32, 0.3)
    a = chat(also, **LOOK)
    r, c = a["reasoning_control"], a["choices"][0]
    dots = [i + 1 for i, t in enumerate(plain_ids[:n]) if "." in json.loads(send("/detokenize", {"tokens": [t]})[1])["content"]]
    keep = max([d for d in dots if d <= first], default=first)
    cut = r["cuts"][0]
    check(f"{name}: the path is cut where it repeats itself, to the border before", (cut["at"], cut["tokens"]) == (keep, n - keep) and c["token_ids"][:n] == plain_ids[:n]
          and cut["text"] == json.loads(send("/detokenize", {"tokens": plain_ids[keep:n]})[1])["content"], (cut, n, first, keep))
    check(f"{name}: its tokens count in every limit", len(c["token_ids"]) == 120 and a["usage"]["completion_tokens"] == 120 + r["trial_tokens"] and cut["text"].strip() in c["message"]["reasoning"], (len(c["token_ids"]), a["usage"]))
    if name == "drawn":
        check("drawn: it continues with other draws", c["token_ids"][n:n + n - keep] != plain_ids[keep:n] and len(r["cuts"]) <= 2 and (r["stopped_by"] == "repeated") == (len(r["cuts"]) == 2), r)
    else:
        rest = json.loads(send("/v1/completions", {"prompt": prompt + plain_ids[:keep] + close, "max_tokens": 20, "temperature": 0, "return_token_ids": True, **few})[1])["choices"][0]
        check("greedy: the reasoning ends, and the answer follows as if the path had not been", r["stopped_by"] == "repeated" and len(r["cuts"]) == 1
              and c["token_ids"][n:n + len(close)] == close and c["token_ids"][n + len(close):][:20] == rest["token_ids"][:120 - n - len(close)], (r, c["token_ids"][n:], rest["token_ids"]))
check("with repetition 1 nothing is cut", chat(few, **{**LOOK, "repetition": 1})["reasoning_control"]["cuts"] == [])
r = chat(few, **{**LOOK, "folds": 0})["reasoning_control"]
check("no folds: the reasoning ends at the first", r["stopped_by"] == "repeated" and len(r["cuts"]) == 1, r)

# ---- DeepConf is the group of that name ----
deepconf = {"n": 6, "warmup": 3, "window": 4, "eta": 0.5}
a, b = chat(control="deepconf", max_tokens=40, **deepconf), chat({"thinking_budget": 40, "alignment": {"method": "deepconf", **deepconf}})
check("deepconf: the same as the method of that name", message(a) == message(b) and a["alignment"]["chosen"] == b["alignment"]["chosen"] and a["alignment"]["method"] == "deepconf"
      and a["alignment"]["threshold"] == b["alignment"]["threshold"], (a["alignment"], b["alignment"]))

# ---- What is refused, and by what name ----
for name, param, reasoning, also in [
        ("a control that does not exist", "reasoning.control", {"control": "dear"}, {}), ("deepconf without a number of texts", "alignment.n", {"control": "deepconf"}, {}), ("deepconf beside a group", "alignment", {"control": "deepconf", "n": 2}, {"alignment": {"method": "best_of_n", "n": 2}}),
        ("none", "reasoning.control", {"threshold": 0.5}, {}), ("a field without effect", "reasoning.every", {"control": "deer", "every": 3}, {}),
        ("a budget without a number", "reasoning.max_tokens", {"control": "budget"}, {}), ("a least number where the mark is several tokens", "reasoning.min_tokens", {"control": "budget", "min_tokens": 3}, {}), ("two budgets", "reasoning.max_tokens", {"control": "budget", "max_tokens": 3}, {"thinking_budget": 4}),
        ("an empty border", "reasoning.border", {"control": "deer", "border": ""}, {}), ("an empty probe", "reasoning.probe", {"control": "deer", "probe": ""}, {}),
        ("a field of another control", "reasoning.alpha", {"control": "deer", "alpha": 0.5}, {}), ("an entropy's rate of 0", "reasoning.alpha", {"control": "entropy", "alpha": 0}, {}),
        ("a window of 4 tokens", "reasoning.window", {"control": "entropy", "window": 4}, {}), ("another mean", "reasoning.mean", {"control": "deer", "mean": "harmonic"}, {}), ("several choices", "n", {"control": "deer"}, {"n": 2}),
        ("a group", "alignment", {"control": "deer"}, {"alignment": {"method": "best_of_n", "n": 2}}), ("an unknown field", "reasoning.effort", {"control": "deer", "effort": "low"}, {})]:
    status, text = send("/v1/chat/completions", {**CHAT, **also, "reasoning": reasoning})
    check(f"refused: {name}", status == 400 and json.loads(text)["error"]["param"] == param, (status, text))

# ---- Clients that disconnect at any time leave nothing behind ----
body = json.dumps({**CHAT, "reasoning": {"control": "probe", "every": 1, "agree": 64, "probe": SAID}}).encode()
host, port = base.removeprefix("http://").split(":")
for i in range(20):
    with socket.create_connection((host, int(port))) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.002 * i)
for _ in range(1200):
    metrics = send("/metrics")[1]
    idle = all(re.search(rf"vllm:num_requests_{s}\{{.*\}} 0\n", metrics) for s in ("running", "waiting"))
    if idle:
        break
    time.sleep(0.05)
check("clients that disconnect leave nothing that runs or waits", idle)
check("and the server answers as before", message(chat()) == message(plain))
check("/metrics: tokens of trials", int(re.search(r'lateen_alignment_tokens_total\{.*purpose="trial"\} (\d+)', metrics)[1]) > 100)
sys.exit(tap.end())
