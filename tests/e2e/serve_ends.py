"""Every API of a server whose model names several ending tokens and its own sampling defaults (tests/e2e/serve.sh ends). Arguments: URL, the ids that end a text."""
import json
import sys
import urllib.request

url, ends = sys.argv[1], [int(x) for x in sys.argv[2].split(",")]
n = bad = 0


def say(name, ok, more=""):
    global n, bad
    n += 1
    bad |= not ok
    print(f"{'ok' if ok else 'not ok'} {n} - {name}" + ("" if ok else f"\n  # {more}"))


def post(path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        return json.load(r)


def completion(**more):
    return post("/v1/completions", {"prompt": "Once upon a time", "return_token_ids": True} | more)


def ids_of(choice):
    return choice.get("token_ids") or []


free = completion(ignore_eos=True, max_tokens=40)["choices"][0]
say("ignore_eos: none of them ends it", free["finish_reason"] == "length" and set(ends) & set(ids_of(free)), free)
a = completion()["choices"][0]
say("completions: it ends at the first of them", a["finish_reason"] == "stop" and ids_of(a)[-1] in ends and not set(ids_of(a)[:-1]) & set(ends), a)
say("and is the beginning of the free text", free["text"].startswith(a["text"]), (a, free))
b = completion(min_tokens=30, max_tokens=30)["choices"][0]
say("min_tokens: none of them is chosen before", b["finish_reason"] == "length" and not set(ids_of(b)) & set(ends), b)
c = completion(guided_regex="[A-Za-z ,.]{40}", max_tokens=60)["choices"][0]
say("a pattern: none of them before it is complete", c["finish_reason"] == "stop" and len(c["text"]) == 40, c)
d = completion(guided_regex="[A-Za-z ,.]*", max_tokens=60)["choices"][0]
say("a pattern that may end anywhere: any of them ends it", d["finish_reason"] == "stop" and ids_of(d)[-1] in ends, d)
e = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 200})["choices"][0]
say("chat", e["finish_reason"] == "stop", e)
f = post("/v1/responses", {"input": "Once upon a time", "max_output_tokens": 200})
say("responses", f["status"] == "completed", f)
g = post("/v1/messages", {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 200})
say("messages", g["stop_reason"] == "end_turn", g)
h = post("/completion", {"prompt": "Once upon a time", "n_predict": 200})
say("llama-server's completion", h["stop_type"] == "eos", h)
with urllib.request.urlopen(url + "/props", timeout=60) as r:
    params = json.load(r)["default_generation_settings"]["params"]
say("/props: the defaults are the model's", params["temperature"] == 0 and params["top_k"] == 7, params)
print(f"1..{n}")
sys.exit(bad)
