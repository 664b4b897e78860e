"""The exact edges of a server's limits: a prompt that leaves exactly one token of context, or none; a stop string at min_tokens; which stop was reported; max_tokens of one and of zero; the number of alternatives; the bounds of a histogram. Standard library only; TAP on stdout.

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

# A token's text and bytes are those that it adds to the answer, with a space where SentencePiece writes U+2581.
a = complete(prompt="Once upon a time", max_tokens=30, logprobs=2)[1]["choices"][0]
check("the tokens of log-probabilities are the text", "".join(a["logprobs"]["tokens"]) == a["text"] and a["text"].count(" ") > 5, a)
a = ask("/completion", {"prompt": "Once upon a time", "n_predict": 30, "temperature": 0, "n_probs": 2})[1]
raw = b"".join(bytes(p["bytes"]) for p in a["completion_probabilities"])
check("and so are their bytes", raw.decode() == a["content"] and all(bytes(t["bytes"]).decode() == t["token"] for p in a["completion_probabilities"]
                                                                      for t in p["top_logprobs"] if min(t["bytes"]) < 0x80), a)
a = ask("/completion", {"prompt": "Once upon a time,", "n_predict": 20, "temperature": 0, "return_tokens": True,
                        "grammar": 'root ::= " there was a cat"'})[1]
check("a grammar's spaces may be those of words", a["content"] == " there was a cat" and a["tokens"][:5] == [383, 286, 261, 280, 294], a)

a = ask("/tokenize", {"content": "a cat\n\u00e9", "with_pieces": True})[1]["tokens"]  # The pieces are llama.cpp's.
check("the pieces of /tokenize are texts, or bytes that are none", [t["piece"] for t in a] == [" a", " c", "at", "\n", "\u00e9"] or
      [t["piece"] for t in a] == [" a", " c", "at", "\n", [195], [169]], a)

# A stop string counts from token min_tokens on (docs/serve.md).
free = complete(prompt="Once upon a time", max_tokens=40)[1]
ids, text = ids_of(free), free["choices"][0]["text"]
pieces = [complete(prompt="Once upon a time", max_tokens=k)[1]["choices"][0]["text"] for k in range(1, 41)]
k = next(i for i in range(3, 40) if len(pieces[i]) > len(pieces[i - 1]) and text.find(pieces[i][len(pieces[i - 1]):]) == len(pieces[i - 1])
         # Token k is the first that adds this text.
         and len(pieces[i]) - len(pieces[i - 1]) >= 2)
stop = pieces[k][len(pieces[k - 1]):]
for least, ends in ((0, True), (k, True), (k + 1, True), (k + 2, False)):
    a = complete(prompt="Once upon a time", max_tokens=40, stop=[stop], min_tokens=least)[1]["choices"][0]
    got = a["text"]
    again = text.find(stop, len(pieces[k]))  # The next place where it occurs.
    want = pieces[k - 1] if ends else text[:again] if again >= 0 else text
    check(f"stop string in token {k + 1}, min_tokens = {least}: {'ends' if ends else 'continues'}", got == want, (got, want, stop))
# Which of several stop strings or tokens was reported: the first of the list as well as the last.
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

# Alternatives of a token: as many as requested, none if none were requested.
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

# Integers beyond 64 bits: exact if a model reads or writes them, refused by name in a field that
# cannot hold them.
most = 2**64 - 1
tool = {"type": "function", "function": {"name": "seek", "parameters": {"type": "object", "properties": {"at": {"type": "integer", "maximum": most}}}}}
called = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "seek", "arguments": json.dumps({"at": most - 1})}}]}
shown = ask("/apply-template", {"messages": [{"role": "user", "content": "x"}, called, {"role": "tool", "tool_call_id": "1", "content": "y"}], "tools": [tool]})
check("a tool's and a call's large integers reach the template exactly", shown[0] == 200 and (str(most - 1) in shown[1]["prompt"] or "1.84" not in shown[1]["prompt"]), shown)
for field, value, says in (("seed", 2**64, str(2**64)), ("max_tokens", 10**30, str(10**30)), ("prompt", 2**70, "prompt"), ("model", 2**70, "a number"), ("stop", 2**70, "stop")):
    status, a = complete(**{"prompt": "x", "max_tokens": 1, field: value})
    check(f"{field} = {value} is refused", status == 400 and says in a["error"]["message"], a)
for where, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": 2**70}]}), ("/v1/responses", {"input": 2**70}), ("/completion", {"prompt": 2**70}), ("/v1/embeddings", {"input": [2**70]})):
    check(f"{where}: a number is not a text", ask(where, body)[0] == 400)
status, a = complete(prompt="x", max_tokens=30, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "minimum": 2**63, "maximum": most}}})
check("a schema's bounds may be large", status == 200 or "1e+18" not in str(a), a)

# As many tools as are allowed, and one more; a copy of a tool is the same tool, another one of
# its name is refused.
def with_tools(names, **more):
    tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in names]
    return ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [*tools, *more.get("last", [])], "tool_choice": "none", "max_tokens": 1})


for n, status in ((2048, 200), (2049, 400)):
    got = with_tools([f"f{i}" for i in range(n)])
    check(f"{n} tools: {status}", got[0] == status and (status == 200 or "2049" in got[1]["error"]["message"]), got)
check("a copy of a tool", with_tools(["a", "b", "a"])[0] == 200)
got = with_tools(["a", "b"], last=[{"type": "function", "function": {"name": "b", "parameters": {}}}])
check("two tools of one name", got[0] == 400 and "'tools[1]' and 'tools[2]' are both called 'b'" in got[1]["error"]["message"], got)

# Ollama's requests when its client is done with a model, and what its file's weights are.
name = ask("/v1/models")[1]["data"][0]["id"]
for path, more in (("/api/generate", {}), ("/api/chat", {"messages": []})):
    for keep, reason in ((0, "unload"), ("0", "unload"), ("0s", "unload"), (None, "load"), ("5m", "load"), (-1, "load")):
        status, a = ask(path, {"model": name, "keep_alive": keep, **more})
        check(f"{path} of nothing, keep_alive {keep!r}: {reason}", status == 200 and a["done_reason"] == reason, a)
    check(f"{path}: a keep_alive that is not a duration", ask(path, {"model": name, "keep_alive": "soon", **more})[0] == 400)
told = [ask("/api/show", {"model": name})[1]["details"], ask("/api/tags")[1]["models"][0]["details"]]
check("the type of the weights", [t["quantization_level"] for t in told] == ["F32", "F32"], told)

# OpenAI's deletion of a model that fine-tuning has not made.
for which, status, says in ((name, 403, "cannot be deleted"), ("nobody", 404, "nobody"), ("ft:x:y::z", 404, "ft:x:y::z")):
    try:
        urllib.request.urlopen(urllib.request.Request(f"{base}/v1/models/{which}", method="DELETE"))
        check(f"DELETE {which}", False)
    except urllib.error.HTTPError as e:
        error = json.load(e)["error"]
        check(f"DELETE {which}: {status}", e.code == status and says in error["message"], (e.code, error))
sys.exit(tap.end())
