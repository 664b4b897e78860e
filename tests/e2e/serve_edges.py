"""The exact edges of a server's limits: a prompt that leaves exactly one token of context, or none; a stop string at min_tokens; which stop came; max_tokens of
one and of none; how many alternatives; the bounds of a histogram. Standard library only; TAP on stdout.

usage: serve_edges.py BASE_URL"""
import json
import re
import sys
import urllib.error
import urllib.request

from tap import Tap

base = sys.argv[1]
tap = Tap()
check = tap.check


def ask(path, body=None):
    try:
        request = urllib.request.Request(base + path, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as r:
            text = r.read().decode()
            return r.status, json.loads(text) if text[:1] in "{[" else text
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read().decode())


def complete(**body):
    return ask("/v1/completions", {"temperature": 0, "ignore_eos": True, "return_token_ids": True, **body})


def ids_of(answer):
    return answer["choices"][0]["token_ids"]


context = ask("/v1/models")[1]["data"][0]["max_model_len"]
once = ask("/tokenize", {"content": "Once upon a time, there was a little girl"})[1]["tokens"]
prompt = [1] + (once * context)[:context - 2]
for n, want in ((context - 2, 2), (context - 1, 1)):
    status, a = complete(prompt=prompt[:n], max_tokens=5)
    check(f"a prompt of {n} tokens leaves {want} of {context}", status == 200 and len(ids_of(a)) == want and a["usage"]["prompt_tokens"] == n
          and a["choices"][0]["finish_reason"] == "length", a)
one = ids_of(complete(prompt=prompt[:context - 1], max_tokens=1)[1])
check("the one token is what a longer answer begins with", one == ids_of(a) and len(one) == 1, (one, a))
status, a = complete(prompt=prompt + [5], max_tokens=1)
check(f"a prompt of {context} tokens leaves none: 400", status == 400 and str(context) in a["error"]["message"], a)
status, a = complete(prompt=prompt[:context - 1], max_tokens=1, stream=False, n=3)
check("one token of each of three samples", status == 200 and [len(c["token_ids"]) for c in a["choices"]] == [1, 1, 1], a)

# A stop string counts from token min_tokens on (docs/serve.md).
free = complete(prompt="Once upon a time", max_tokens=40)[1]
ids, text = ids_of(free), free["choices"][0]["text"]
pieces = [complete(prompt="Once upon a time", max_tokens=k)[1]["choices"][0]["text"] for k in range(1, 41)]
k = next(i for i in range(3, 40) if len(pieces[i]) > len(pieces[i - 1]) and text.find(pieces[i][len(pieces[i - 1]):]) == len(pieces[i - 1])
         and len(pieces[i]) - len(pieces[i - 1]) >= 2)  # Token k is the first that brings this text.
stop = pieces[k][len(pieces[k - 1]):]
for least, ends in ((0, True), (k, True), (k + 1, True), (k + 2, False)):
    a = complete(prompt="Once upon a time", max_tokens=40, stop=[stop], min_tokens=least)[1]["choices"][0]
    got = a["text"]
    again = text.find(stop, len(pieces[k]))  # Where it stands once more.
    want = pieces[k - 1] if ends else text[:again] if again >= 0 else text
    check(f"stop string in token {k + 1}, min_tokens = {least}: {'ends' if ends else 'goes on'}", got == want, (got, want, stop))
# Which of several stop strings or tokens came: the first of the list as well as the last.
for stops in ([stop], [stop, "\x01"], ["\x01", stop]):
    a = complete(prompt="Once upon a time", max_tokens=40, stop=stops)[1]["choices"][0]
    check(f"stop_reason is the one that came, number {stops.index(stop)} of {len(stops)}", a["finish_reason"] == "stop" and a["stop_reason"] == stop, a)
a = complete(prompt="Once upon a time", max_tokens=40, stop_token_ids=[ids[5]])[1]["choices"][0]
check("or the token", a["finish_reason"] == "stop" and a["stop_reason"] == ids[5], a)
check("and null where none did", free["choices"][0]["finish_reason"] == "length" and free["choices"][0]["stop_reason"] is None, free)
a = complete(prompt="Once upon a time", max_tokens=0, echo=True)[1]
check("max_tokens = 0: the prompt alone", a["choices"][0]["text"] == "Once upon a time" and a["choices"][0]["finish_reason"] == "length" and a["usage"]["completion_tokens"] == 0, a)
for most in (1, 2):
    status, a = complete(prompt="Once", max_tokens=most)
    check(f"max_tokens = {most}", len(ids_of(a)) == most == a["usage"]["completion_tokens"] and a["choices"][0]["finish_reason"] == "length", a)

# Alternatives of a token: as many as asked for, none where none were.
for top in (None, 0, 1, 2, 20):
    more = {} if top is None else {"top_logprobs": top}
    a = ask("/v1/responses", {"input": "Once upon a time", "max_output_tokens": 3, "temperature": 0, "include": ["message.output_text.logprobs"], **more})[1]
    told = [len(t["top_logprobs"]) for o in a["output"] if o["type"] == "message" for c in o["content"] for t in c["logprobs"]]
    check(f"responses: top_logprobs = {top}", told == [top or 0] * 3, a)
    a = ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 3, "temperature": 0, "logprobs": True, **more})[1]
    check(f"chat: top_logprobs = {top}", [len(t["top_logprobs"]) for t in a["choices"][0]["logprobs"]["content"]] == [top or 0] * 3, a)
for top in (-1, 21):
    check(f"top_logprobs = {top} is refused", ask("/v1/responses", {"input": "x", "top_logprobs": top})[0] == 400)
body = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 1}
a = ask("/v1/chat/completions/input_tokens", body)
check("the tokens of a chat's prompt", a == (200, {"input_tokens": ask("/v1/chat/completions", body)[1]["usage"]["prompt_tokens"]}), a)
a = ask("/v1/chat/completions/input_tokens", {**body, "model": "nobody"})
check("of another model: 404", a[0] == 404 and "nobody" in a[1]["error"]["message"], a)
check("of no messages: 400", ask("/v1/chat/completions/input_tokens", {"messages": 1})[0] == 400)

# Requests of 1, 2, 5, 6 tokens: a bound belongs to its bucket.
def buckets(name):
    page = ask("/metrics")[1]
    return {float(le): int(n) for le, n in re.findall(rf'(?m)^{re.escape(name)}_bucket\{{.*le="([0-9.e+]+)"\}} (\d+)$', page)}


before = buckets("vllm:request_generation_tokens")
for n in (1, 2, 5, 6):
    complete(prompt="Once", max_tokens=n)
after = buckets("vllm:request_generation_tokens")
check("a histogram's bound counts what equals it", [after[b] - before[b] for b in (1, 2, 5, 10)] == [1, 2, 3, 4], (before, after))
sys.exit(tap.end())
