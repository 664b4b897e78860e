"""Context shift: an answer that reaches the end of the context continues. TAP on stdout.

usage: serve_shift.py BASE_URL
The server is stories260K in fp32 with --context 64 --context-shift. tests/golden/serve/shift.json is by transformers (tools/make_shift_goldens.py)."""
import json
import sys
import urllib.error
import urllib.request

from tap import Tap

base = sys.argv[1]
tap = Tap()
check = tap.check


def post(path, **body):
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, json.dumps(body).encode(), {"content-type": "application/json"}), timeout=60) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def complete(prompt, **more):
    return json.loads(post("/completion", **{"prompt": prompt, "temperature": 0, "ignore_eos": True, "return_tokens": True, **more})[1])


for case in json.load(open("tests/golden/serve/shift.json")):
    # BOS is in the prompt's ids; the server adds 1 to n_keep for it, as llama-server does.
    keep = case["n_keep"] - 1 if case["n_keep"] > 0 else case["n_keep"]
    r = complete(case["prompt"], n_keep=keep, n_discard=case["n_discard"], n_predict=len(case["tokens"]), add_special_tokens=False)
    check(f"as transformers: prompt {len(case['prompt'])}, n_keep {case['n_keep']}, n_discard {case['n_discard']}",
          r["tokens"] == case["tokens"] and r["truncated"] and r["stop_type"] == "limit", [i for i, (a, b) in enumerate(zip(r["tokens"], case["tokens"])) if a != b][:3])

once = {"prompt": "Once upon a time", "n_keep": 4, "n_predict": 150}
want = complete(**once)
check("an answer that fits is not truncated", complete("Once upon a time", n_predict=20)["truncated"] is False)
# The first token fills the context, which is shifted at once; the second continues the shifted
# one.
ids = (complete("Once upon a time", n_predict=1)["tokens"] * 63)[:63]
first = complete(ids, n_predict=1, add_special_tokens=False)["content"]
check("an answer that a stop string ends before the shift is not truncated", complete(ids, n_predict=9, add_special_tokens=False, stop=[first])["truncated"] is False, first)
check("one that ends behind it is", complete(ids, n_predict=2, add_special_tokens=False)["truncated"] is True)
check("without a limit: as many tokens as the context has", complete("Once upon a time", n_predict=-1)["tokens_predicted"] == 64)
beside = [complete(**once, seed=i) for i in range(3)]
check("again, with pages of the prefix cache", all(b["tokens"] == want["tokens"] for b in beside))
status, text = post("/v1/completions", prompt="Once upon a time", max_tokens=150, temperature=0, ignore_eos=True, n_keep=4, n=3, logprobs=1)
r = json.loads(text)
check("several choices, OpenAI's form", [c["text"] for c in r["choices"]] == [want["content"]] * 3 and r["truncated"] is True and r["usage"]["completion_tokens"] == 450, text[-300:])
check("log-probabilities of all tokens", [len(c["logprobs"]["tokens"]) for c in r["choices"]] == [150] * 3)
status, text = post("/v1/completions", prompt="Once upon a time", max_tokens=150, temperature=0, ignore_eos=True, n_keep=4, stream=True)
parts = [json.loads(x[6:]) for x in text.splitlines() if x.startswith("data: {")]
check("streamed equals whole", "".join(p["choices"][0]["text"] for p in parts) == want["content"] and parts[-1].get("truncated") is True, parts[-1])
# Penalties, a grammar and sampling see all tokens, not only those that are left.
r = complete("Once upon a time", n_predict=200, grammar='root ::= ("ab" "c"? "d")*', n_keep=2)
check("a grammar holds across shifts", set(r["content"]) <= set("abcd") and r["content"].replace("abcd", "").replace("abd", "") in ("", "a", "ab", "abc") and r["truncated"], r["content"])
a, b = (complete("Once upon a time", n_predict=150, temperature=1, seed=5)["tokens"] for _ in range(2))
check("a seed repeats the text", a == b)
check("a chat", json.loads(post("/v1/chat/completions", messages=[{"role": "user", "content": "Once"}], max_tokens=100, ignore_eos=True)[1])["usage"]["completion_tokens"] == 100)
status, text = post("/api/generate", model="stories260K", prompt="Once upon a time", raw=True, stream=False, options={"num_predict": 150, "num_keep": 4, "temperature": 0})
check("Ollama's num_keep", status == 200 and want["content"].startswith(json.loads(text)["response"]), text)
for field, value in (("n_keep", -2), ("n_discard", -1), ("n_keep", "a")):
    status, text = post("/completion", prompt="x", **{field: value})
    check(f"refused: {field} {value}", status == 400 and field in text, text)
status, text = post("/v1/completions", prompt="x", max_tokens=2000000)
check("refused: more tokens than an answer may have", status == 400 and "1048576" in text, text)
sys.exit(tap.end())
