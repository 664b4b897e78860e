"""Groups of candidates ("alignment"): what is kept follows, by rules that are computed here, from the candidates of a plain request with the same seed. Standard library only; TAP on stdout.

usage: serve_groups.py BASE_URL"""
import collections
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
N = 6
PROMPT = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 5, "temperature": 1.0}


def send(path, body=None):
    return serve_http.send(base + path, body)


def ask(body, path="/v1/completions"):
    status, text = send(path, body)
    return status, json.loads(text)


def group(method, n=N, also={}, **fields):
    return ask({**PROMPT, **also, "alignment": {"method": method, **({"n": n} if n else {}), "return_candidates": True, **fields}})[1]


def near(a, b):
    return abs(a - b) < 1e-4 * (1 + abs(b))


def chi_square(counts, law, draws):
    return sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in enumerate(law))


# ---- The candidates are those of a plain request, and their scores follow from its
# log-probabilities ----
plain = ask({**PROMPT, "n": N, "logprobs": 20})[1]["choices"]
texts = [c["text"] for c in plain]
logprobs = [c["logprobs"]["token_logprobs"] for c in plain]
mean = [sum(x) / len(x) for x in logprobs]
best = max(range(N), key=lambda i: mean[i])
check("the candidates differ, and the best is not the first (else the tests below say little)", len(set(texts)) == N and best != 0, (texts, best))
a = group("best_of_n")
says = a["alignment"]
check("best_of_n: its candidates are those of n choices with the same seed", [c["text"] for c in says["candidates"]] == texts)
check("best_of_n: the score is the mean log-probability", all(near(c["score"], m) for c, m in zip(says["candidates"], mean)), (says, mean))
check("best_of_n: the best is kept", says["chosen"] == best and a["choices"][0]["text"] == texts[best] and near(says["score"], mean[best]), says)
check("best_of_n: one choice, of index 0, without log-probabilities", len(a["choices"]) == 1 and a["choices"][0]["index"] == 0 and a["choices"][0]["logprobs"] is None)
check("best_of_n: log n - 1 + 1 / n nats", near(says["kl_bound"], math.log(N) - 1 + 1 / N), says["kl_bound"])
check("best_of_n: all tokens are counted", a["usage"]["completion_tokens"] == sum(len(x) for x in logprobs)
      and says["tokens"] == {"kept": len(logprobs[best]), "dropped": sum(len(x) for x in logprobs) - len(logprobs[best]), "saved": 0}, (a["usage"], says["tokens"]))
check("more candidates begin with the same", [c["text"] for c in group("best_of_n", 9)["alignment"]["candidates"]][:N] == texts)
a = group("best_of_n", also={"logprobs": 2})
check("log-probabilities are returned if requested, as many as requested", a["choices"][0]["logprobs"]["token_logprobs"] == logprobs[best]
      and all(len(t) <= 3 for t in a["choices"][0]["logprobs"]["top_logprobs"]))
for reward, value in (("logprob", lambda i: sum(logprobs[i])), ("probability", lambda i: math.exp(mean[i]))):
    says = group("best_of_n", reward=reward)["alignment"]
    want = max(range(N), key=value)
    check(f"reward {reward}", all(near(c["score"], value(i)) for i, c in enumerate(says["candidates"])) and says["chosen"] == want and says["reward"] == reward, says)

# ---- DeepConf's confidence: minus the mean of the 20 most likely log-probabilities; the lowest
# mean over a window ----
token = [[-sum(sorted(t.values(), reverse=True)[:20]) / 20 for t in c["logprobs"]["top_logprobs"]] for c in plain]
for window in (4, 100):
    want = [min(sum(t[k:k + window]) / min(window, len(t)) for k in range(max(1, len(t) - window + 1))) for t in token]
    says = group("best_of_n", reward="confidence", window=window)["alignment"]
    check(f"confidence over {window} tokens", all(abs(c["score"] - w) < 0.02 * w for c, w in zip(says["candidates"], want)), (want, [c["score"] for c in says["candidates"]]))

says = group("best_of_n", return_confidence=True)["alignment"]
check("confidence traces: of each token of each candidate", all(len(c["confidence"]) == c["tokens"] and all(abs(a - b) < 0.02 * b for a, b in zip(c["confidence"], t))
                                                                for c, t in zip(says["candidates"], token)), says["candidates"][0])

# ---- Random choices follow their distribution ----
DRAWS, T = 400, 0.3
law = [math.exp(m / T) for m in mean]
law = [w / sum(law) for w in law]
says = group("soft_best_of_n", temperature=T)["alignment"]
check("soft_best_of_n: probabilities are exp(score / temperature)", all(near(c["probability"], p) for c, p in zip(says["candidates"], law)), says)
counts = collections.Counter(ask({**PROMPT, "alignment": {"method": "soft_best_of_n", "n": N, "temperature": T, "seed": s}})[1]["alignment"]["chosen"] for s in range(DRAWS))
x = chi_square(counts, law, DRAWS)
# The 0.999 quantile at 5 degrees of freedom.
check("soft_best_of_n: what is kept follows them", x < 20.5, (x, counts, law))
ns = [group("best_of_poisson", None, mu=3.0, seed=s, also={"max_tokens": 1})["alignment"]["n"] for s in range(200)]
check("best_of_poisson: 1 + Poisson(mu) candidates", abs(sum(ns) / len(ns) - 4) < 0.5 and min(ns) >= 1 and len(set(ns)) > 4, ns)
says = group("best_of_poisson", None, mu=3.0, seed=3)["alignment"]
check("best_of_poisson: the best of them", says["chosen"] == max(range(says["n"]), key=lambda i: says["candidates"][i]["score"]), says)
says = group("best_of_tails", temperature=0.2, reward="probability")["alignment"]
check("best_of_tails: better candidates are likelier", sorted(range(N), key=lambda i: says["candidates"][i]["score"]) == sorted(range(N), key=lambda i: says["candidates"][i]["probability"]), says)

# ---- A group that is decided ends early ----
order = sorted(mean, reverse=True)
threshold = (order[1] + order[2]) / 2  # Two are good enough.
first = next(i for i in range(N) if mean[i] >= threshold)
a = group("rejection", threshold=threshold)
check("rejection: the first that is good enough", a["alignment"]["chosen"] == first and a["choices"][0]["text"] == texts[first], a["alignment"])
a = group("rejection", threshold=1.0)
check("rejection: the best, if none is good enough", a["alignment"]["chosen"] == best and a["alignment"]["cut"] == 0 and a["alignment"]["stopped_by"] == "end", a["alignment"])
# The first one ends after 2 of the tokens that the others may have: only its text contains its
# stop string.
stop = next((w for w in re.findall(r"\S+", texts[0])[6:] if all(w not in t for t in texts[1:])), None)
a = group("rejection", threshold=-9.0, also={"stop": [stop], "max_tokens": 100})
check("rejection: the others are cut", a["alignment"]["chosen"] == 0 and a["alignment"]["cut"] == N - 1 and a["alignment"]["stopped_by"] == "accepted"
      and a["usage"]["completion_tokens"] < N * 90, (stop, a["alignment"]["cut"], a["usage"]))
SHORT = {"max_tokens": 7}  # Most say "there was a little".
shorts = [c["text"].strip() for c in ask({**PROMPT, **SHORT, "n": 16})[1]["choices"]]
leader, votes = collections.Counter(shorts).most_common(1)[0]
a = group("self_consistency", 16, SHORT)
says = a["alignment"]
check("self_consistency: the most frequent answer", says["answer"] == leader and a["choices"][0]["text"].strip() == leader and votes > 4, (says["answer"], collections.Counter(shorts)))
ended = [c for c in says["candidates"] if c["finish_reason"] != "cut"]
sames = [c for c in ended if c["answer"] == leader]
check("self_consistency: texts that agree share the probability", all(near(c["probability"], 1 / len(sames)) for c in sames) and near(sum(c["probability"] for c in ended), 1), says)
# All end in one step, in the order of their indices.
for needed in range(1, 17):
    (_, one), two = (collections.Counter(shorts[:needed]).most_common(2) + [("", 0)])[:2]
    if one - two[1] > 16 - needed:
        break
check("self_consistency: it stops as soon as the lead exceeds what is still to come", len(ended) == needed < 16 and says["cut"] == 16 - needed and says["stopped_by"] == "majority", (needed, says))

# ---- DeepConf online: the warm-up sets a threshold; a candidate that falls below it is cut, and
# the confident ones vote, weighted by confidence ----
WINDOW, WARM = 3, 8
sure = [c["score"] for c in group("best_of_n", 16, SHORT, reward="confidence", window=WINDOW)["alignment"]["candidates"]]


def deepconf(n=16, **fields):
    a = group("deepconf", n, SHORT, window=WINDOW, warmup=WARM, eta=0.5, **fields)
    return a["alignment"], a


def share(begun):
    """The leading answer and its share of the votes of the first `begun`."""
    votes = collections.Counter()
    for i in range(begun):
        votes[shorts[i]] += sure[i] if sure[i] >= least else 0
    return votes.most_common(1)[0][0], votes.most_common(1)[0][1] / votes.total()


ranked = sorted(sure[:WARM])
least = (ranked[3] + ranked[4]) / 2  # The median of eight, as numpy.percentile interpolates.
low = [i for i in range(WARM, 16) if sure[i] < least]
says, a = deepconf(tau=1)
check("deepconf: some later candidates are below the threshold, some above (else the tests below say little)", 0 < len(low) < 8, (low, sure, least))
check("deepconf: the threshold is the quantile of the warm-up's confidences", near(says["threshold"], least) and says["warmup"] == WARM, (says["threshold"], least))
check("deepconf: later candidates that fall below it are cut, and only those", [i for i, c in enumerate(says["candidates"]) if c["finish_reason"] == "cut"] == low and says["cut"] == len(low), (says, low))
leader, part = share(16)
check("deepconf: the answer with the most confidence wins, and its share is reported", says["answer"] == leader and near(says["consensus"], part) and says["stopped_by"] == "end", (says, leader, part))
voters = [i for i in range(16) if sure[i] >= least and shorts[i] == leader]
check("deepconf: one of the confident ones is kept", says["chosen"] in voters and near(says["probability"], 1 / len(voters)), (says["chosen"], voters))
check("deepconf: candidates are those of a plain request", [c["text"].strip() for i, c in enumerate(says["candidates"]) if i not in low] == [t for i, t in enumerate(shorts) if i not in low])
says, a = deepconf(tau=0)
check("deepconf: with enough consensus after the warm-up nothing else begins", says["stopped_by"] == "consensus" and says["cut"] == 16 - WARM
      and [c["tokens"] for c in says["candidates"][WARM:]] == [0] * 8 and a["usage"]["completion_tokens"] == says["tokens"]["kept"] + says["tokens"]["dropped"], says)
check("deepconf: what was saved is estimated from those that ended", says["tokens"]["saved"] == 8 * (sum(c["tokens"] for c in says["candidates"]) // WARM), says["tokens"])
shares = {n: share(n)[1] for n in range(WARM, 17)}
stop = next(n for n in range(WARM, 17) if shares[n] >= max(shares.values()))
says, _ = deepconf(tau=shares[stop] - 1e-9, round=1)
check("deepconf: round by round, it stops when there is consensus", len([c for c in says["candidates"] if c["tokens"] > 0]) == stop
      and says["stopped_by"] == ("consensus" if stop < 16 or says["cut"] else "end") and near(says["consensus"], shares[stop]), (stop, shares, says))
says, _ = deepconf(n=WARM)
check("deepconf: n up to the warm-up is DeepConf offline", says["cut"] == 0 and says["answer"] == share(WARM)[0] and says["warmup"] == WARM, says)

# ---- A known answer as the reward ----
a = group("best_of_n", 16, SHORT, reward={"check": "text", "answer": leader})
check("a check: 1 where the answer is right, else 0", [c["score"] for c in a["alignment"]["candidates"]] == [1.0 if t == leader else 0.0 for t in shorts] and a["alignment"]["score"] == 1, a["alignment"])

# ---- Speculative rejection: every round cuts the worse half, by the scores at that length ----
LONG = {"max_tokens": 48, "ignore_eos": True}
plain = ask({**PROMPT, **LONG, "n": 8, "logprobs": 0})[1]["choices"]
rows = [c["logprobs"]["token_logprobs"] for c in plain]
left, lengths = list(range(8)), {}
for length in (12, 24, 36):
    left.sort(key=lambda i: -sum(rows[i][:length]) / length)
    for i in left[math.ceil(len(left) / 2):]:
        lengths[i] = length
    left = left[:math.ceil(len(left) / 2)]
a = group("speculative_rejection", 8, LONG, every=12)
says = a["alignment"]
check("speculative_rejection: the candidates that are left at the end", says["chosen"] == left[0] and a["choices"][0]["text"] == plain[left[0]]["text"], (says["chosen"], left))
cut = {i: c["tokens"] for i, c in enumerate(says["candidates"]) if c["finish_reason"] == "cut"}
# The engine may have run some more steps before it is told.
check("speculative_rejection: the candidates that were cut, and none too early", sorted(cut) == sorted(lengths) and all(cut[i] >= lengths[i] for i in cut), (says, lengths))
check("speculative_rejection: tokens that were not spent", 4 * 12 + 2 * 24 + 36 + 48 <= a["usage"]["completion_tokens"] < 8 * 48, a["usage"])

# ---- Streams and chats ----
_, stream = send("/v1/completions", {**PROMPT, "stream": True, "stream_options": {"include_usage": True}, "alignment": {"method": "best_of_n", "n": N}})
events = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
check("a stream: the answer of one that is not streamed", "".join(c["text"] for e in events for c in e["choices"]) == texts[best] and stream.rstrip().endswith("data: [DONE]"), stream)
check("a stream: what the group reports comes with the end", [e["alignment"]["chosen"] for e in events if "alignment" in e] == [best] and events[-1]["usage"]["completion_tokens"] > 24)
CHAT = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 24, "seed": 7, "temperature": 1.0}
plain = ask({**CHAT, "n": N, "logprobs": True}, "/v1/chat/completions")[1]["choices"]
mean = [(lambda x: sum(x) / len(x))([t["logprob"] for t in c["logprobs"]["content"]]) for c in plain]
best = max(range(N), key=lambda i: mean[i])
a = ask({**CHAT, "alignment": {"method": "best_of_n", "n": N}}, "/v1/chat/completions")[1]
check("a chat: the best is kept, which is not the first", best != 0 and a["alignment"]["chosen"] == best and [c["message"]["content"] for c in a["choices"]] == [plain[best]["message"]["content"]] and a["choices"][0]["index"] == 0, a)
_, stream = send("/v1/chat/completions", {**CHAT, "stream": True, "alignment": {"method": "best_of_n", "n": N}})
events = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
check("a chat's stream: the same", "".join(c["delta"].get("content") or "" for e in events for c in e["choices"]) == plain[best]["message"]["content"]
      and {c["index"] for e in events for c in e["choices"]} == {0} and [e["alignment"]["chosen"] for e in events if "alignment" in e] == [best], stream)

# ---- Responses: the same groups, in that API's format ----
def respond(also={}, stream=False):
    body = {"input": "Once upon a time", "max_output_tokens": 24, "seed": 7, "temperature": 1.0, "stream": stream, **also}
    status, text = send("/v1/responses", body)
    return [json.loads(e.split("data: ", 1)[1]) for e in text.strip().split("\n\n")] if stream else json.loads(text)


def said(response):
    return [p["text"] for i in response["output"] for p in i["content"]]


a = respond({"alignment": {"method": "best_of_n", "n": N, "return_candidates": True}, "include": ["message.output_text.logprobs"]})
says = a["alignment"]
check("a response: the best is kept, of the candidates of a chat", said(a) == [plain[best]["message"]["content"]] and says["chosen"] == best
      and [c["text"] for c in says["candidates"]] == [c["message"]["content"] for c in plain] and a["status"] == "incomplete", a)
check("a response: log-probabilities are those of the answer", near(sum(t["logprob"] for t in a["output"][0]["content"][0]["logprobs"]) / 24, mean[best]), a)
check("a response: all tokens are counted", a["usage"]["output_tokens"] == 24 * N == says["tokens"]["kept"] + says["tokens"]["dropped"], a["usage"])
check("a response: what is stored is what was returned", json.loads(send(f"/v1/responses/{a['id']}")[1]) == a)
events = respond({"alignment": {"method": "best_of_n", "n": N}, "include": ["message.output_text.logprobs"]}, stream=True)
kinds = [e["type"] for e in events]
check("a response's stream: one item, from its beginning to its end", kinds == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
      "response.output_text.delta", "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
      and [e["sequence_number"] for e in events] == list(range(len(events))), kinds)
check("a response's stream: the same answer", events[4]["delta"] == events[5]["text"] == plain[best]["message"]["content"] and len(events[4]["logprobs"]) == 24
      and said(events[-1]["response"]) == [events[4]["delta"]] and events[-1]["response"]["alignment"]["chosen"] == best, events[4:])
votes = {"method": "self_consistency", "n": N, "extract": "text"}
check("a response: votes", said(respond({"alignment": votes})) == [ask({**CHAT, "alignment": votes}, "/v1/chat/completions")[1]["choices"][0]["message"]["content"]])
blocks = {"method": "blockwise", "n": 3, "every": 8}
told = ask({**CHAT, "alignment": blocks}, "/v1/chat/completions")[1]
a, events = respond({"alignment": blocks}), respond({"alignment": blocks}, stream=True)
check("a response: block by block", said(a) == [told["choices"][0]["message"]["content"]] == ["".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")]
      and a["alignment"] == told["alignment"] == events[-1]["response"]["alignment"], (a, told))
check("a response: a stream sends blocks as they are kept", sum(e["type"] == "response.output_text.delta" for e in events) > 2)
negative = {"method": "guidance", "negative": "A dull story.", "scale": 1.5}
check("a response: guidance by a negative prompt", said(respond({"alignment": negative})) == [ask({**CHAT, "alignment": negative}, "/v1/chat/completions")[1]["choices"][0]["message"]["content"]]
      != [plain[0]["message"]["content"]])
for name, param, fields in [("an unknown method", "alignment.method", {"method": "best_of_m"}), ("no object", "alignment", 3), ("an unknown field", "alignment.lambda", {"method": "best_of_n", "n": 2, "lambda": 1})]:
    e = respond({"alignment": fields})["error"]
    check(f"a response: {name} is refused", e["param"] == param, e)

# ---- What is refused, and by what name ----
for name, param, body in [
        ("a method that does not exist", "alignment.method", {"method": "best_of_m", "n": 2}),
        ("candidates of a method that has none", "alignment.n", {"method": "contrastive", "n": 2}),
        ("deepconf whose confident share is empty", "alignment.eta", {"method": "deepconf", "n": 2, "eta": 0}),
        ("a percentage for eta", "alignment.eta", {"method": "deepconf", "n": 2, "eta": 10}),
        ("a reward for deepconf", "alignment.reward", {"method": "deepconf", "n": 2, "reward": "logprob"}),
        ("a warm-up without deepconf", "alignment.warmup", {"method": "best_of_n", "n": 2, "warmup": 1}),
        ("no method", "alignment.method", {"n": 2}),
        ("no object", "alignment", 3),
        ("a missing temperature", "alignment.temperature", {"method": "soft_best_of_n", "n": 2}),
        ("a temperature of 0", "alignment", {"method": "soft_best_of_n", "n": 2, "temperature": 0}),
        ("a temperature that changes nothing", "alignment.temperature", {"method": "best_of_n", "n": 2, "temperature": 1}),
        ("n for best_of_poisson", "alignment.n", {"method": "best_of_poisson", "n": 2, "mu": 1}),
        ("129 candidates", "alignment.n", {"method": "best_of_n", "n": 129}),
        ("an unknown field", "alignment.lambda", {"method": "best_of_n", "n": 2, "lambda": 1}),
        ("an unknown reward", "alignment.reward", {"method": "best_of_n", "n": 2, "reward": "goodness"}),
        ("a check without an answer", "alignment.reward", {"method": "best_of_n", "n": 2, "reward": {"check": "number"}}),
        ("an answer that is no number", "alignment.reward.answer", {"method": "best_of_n", "n": 2, "reward": {"check": "number", "answer": "?"}}),
        ("votes with weights that may be negative", "alignment.reward", {"method": "self_consistency", "n": 2, "reward": "logprob"}),
        ("best_of_tails with scores outside [0, 1]", "alignment.reward", {"method": "best_of_tails", "n": 2, "temperature": 1}),
        ("a window without confidence", "alignment.window", {"method": "best_of_n", "n": 2, "window": 4})]:
    status, e = ask({**PROMPT, "alignment": body})
    check(f"refused: {name}", status == 400 and e["error"]["param"] == param, (status, e))
for name, param, also in [("n beside it", "n", {"n": 2}), ("best_of beside it", "best_of", {"best_of": 3}), ("two prompts", "alignment", {"prompt": ["a", "b"]})]:
    status, e = ask({**PROMPT, "alignment": {"method": "best_of_n", "n": 2}, **also})
    check(f"refused: {name}", status == 400 and e["error"]["param"] == param, (status, e))

for path, param, body in [("/v1/messages", "alignment", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "alignment": {"method": "best_of_n", "n": 2}}),
                          ("/v1/messages", "reasoning", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "reasoning": {"control": "budget"}})]:
    status, e = ask(body, path)
    check(f"refused by name: {param} in {path}", status == 400 and f"'{param}'" in e["error"]["message"] and "/v1/chat/completions" in e["error"]["message"], (status, e))

# ---- Clients that disconnect at any time, between rounds and while the worst are cut, leave
# nothing behind ----
host, port = base.removeprefix("http://").split(":")
for i in range(30):
    method = [{"method": "deepconf", "n": 16, "warmup": 4, "window": 4, "eta": 0.5, "tau": 1, "round": 3}, {"method": "speculative_rejection", "n": 8, "every": 5},
              {"method": "blockwise", "n": 3, "every": 20, "border": "."}, {"method": "blockwise", "n": 6, "width": 3, "every": 7}][i % 4]
    body = json.dumps({**PROMPT, "max_tokens": 60, "alignment": method}).encode()
    with socket.create_connection((host, int(port))) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.0013 * i)
deadline = time.monotonic() + 60
while time.monotonic() < deadline:
    _, text = send("/metrics")
    if all(re.search(rf"vllm:num_requests_{s}\{{.*\}} 0\n", text) for s in ("running", "waiting")):
        break
    time.sleep(0.05)
check("no page is held by a group that was cut", re.search(r"vllm:(?:gpu_cache_usage_perc|kv_cache_usage_perc)\{.*\} (\S+)\n", text)[1] in ("0", "0.0"), re.findall(r"vllm:.*cache_usage.*", text))

# ---- Nothing is left behind ----
_, text = send("/metrics")
tokens = {p: int(v) for p, v in re.findall(r'lateen_alignment_tokens_total\{.*purpose="(\w+)"\} (\d+)', text)}
check("/metrics: tokens by how they were used", tokens["kept"] > 0 and tokens["dropped"] > tokens["kept"], tokens)
check("/metrics: nothing runs or waits any longer", all(re.search(rf"vllm:num_requests_{s}\{{.*\}} 0\n", text) for s in ("running", "waiting")))
sys.exit(tap.end())
