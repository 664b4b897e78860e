"""Drive Ollama's /api with its own Python client. TAP on stdout.

usage: serve_ollama.py BASE_URL MODEL_NAME
The model is stories260K or one as small, with a chat template that opens the reasoning; the test checks the protocol."""
import json
import sys
import urllib.error
import urllib.request

import ollama
from pydantic import BaseModel
from tap import Tap

base, model = sys.argv[1:3]
client = ollama.Client(host=base)
tap = Tap()
check, case = tap.check, tap.case


def refused(name, status, word, call):
    try:
        r = call()
        list(r) if not hasattr(r, "model_dump") else r
        check(name, False, "was not refused")
    except ollama.ResponseError as e:
        check(name, e.status_code == status and word in e.error, (e.status_code, e.error))


def lines(path, body):
    with urllib.request.urlopen(urllib.request.Request(base + path, json.dumps(body).encode(), {"content-type": "application/json"})) as r:
        return r.headers["content-type"], [json.loads(x) for x in r.read().decode().splitlines()]


say = [{"role": "user", "content": "Once upon a time"}]
opts = {"temperature": 0, "num_predict": 40}


@case
def chat():
    off = client.chat(model, say, options=opts, think=False)
    check("chat: think false", off.message.content and not off.message.thinking and off.done and off.done_reason == "length" and off.eval_count == 40
          and off.prompt_eval_count > 3 and off.total_duration >= off.eval_duration > 0 and off.model == model, off)
    parts = list(client.chat(model, say, options=opts, think=False, stream=True))
    check("chat: streamed equals whole", "".join(p.message.content for p in parts) == off.message.content and [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
          and parts[-1].eval_count == 40, parts[-1])
    on = client.chat(model, say, options=opts, think=True)
    streamed = list(client.chat(model, say, options=opts, think=True, stream=True))
    check("chat: thinking", on.message.thinking and on.message.thinking == "".join(p.message.thinking or "" for p in streamed), on)
    kind, raw = lines("/api/chat", {"model": model + ":latest", "messages": say, "options": opts})
    check("chat: streams unless told not to, as lines, with a tag", kind == "application/x-ndjson" and len(raw) > 10 and raw[-1]["done"] and raw[0]["model"] == model + ":latest", raw[-1:])
    check("chat: created_at", raw[0]["created_at"][:2] == "20" and raw[0]["created_at"].endswith("Z"))
    lp = client.chat(model, say, options=opts, think=False, logprobs=True, top_logprobs=2).logprobs
    check("chat: logprobs", 38 <= len(lp) <= 41 and all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in lp), lp)
    check("chat: no messages: loaded", client.chat(model, []).done_reason == "load")
    check("chat: stop", client.chat(model, say, options={**opts, "stop": ["a"]}, think=False).done_reason == "stop")
    long = [m for i in range(60) for m in ({"role": "user", "content": f"Tell me of day {i} and of all the birds."}, {"role": "assistant", "content": f"On day {i} a bird sang."})] + say
    check("chat: a long conversation loses its oldest turns", 100 < client.chat(model, long, options=opts).prompt_eval_count < 512)
    try:
        lines("/api/chat", {"model": model, "messages": long, "truncate": False})
        check("chat: unless told not to", False)
    except urllib.error.HTTPError as e:
        check("chat: unless told not to", e.code == 400 and "exceeds" in json.load(e)["error"])
    refused("chat: another model", 404, "not found", lambda: client.chat("nobody", say))
    refused("chat: an image", 400, "images", lambda: client.chat(model, [{"role": "user", "content": "x", "images": ["QUJD"]}]))
    refused("chat: an option that is none", 400, "tempature", lambda: client.chat(model, say, options={"tempature": 1}))
    refused("chat: a context over ours", 400, "num_ctx", lambda: client.chat(model, say, options={"num_ctx": 100000}))
    client.chat(model, say, options={**opts, "num_ctx": 256, "num_gpu": 1, "num_thread": 2, "repeat_penalty": 1.1, "min_p": 0.05, "seed": 1}, keep_alive="5m")


@case
def forms():
    class Answer(BaseModel):
        a: bool
        b: bool
    r = client.chat(model, say, format=Answer.model_json_schema(), options={**opts, "num_predict": 200}, think=False)
    check("format: a schema", isinstance(Answer.model_validate_json(r.message.content).a, bool), r)
    r = client.generate(model, "x", format="json", options={"num_predict": 300, "temperature": 1, "seed": 1}, think=False)
    check("format: json", r.done_reason == "length" or isinstance(json.loads(r.response), dict), r)
    refused("format: another", 400, "format", lambda: client._request(ollama.ChatResponse, "POST", "/api/chat", json={"model": model, "messages": say, "format": "yaml"}))


def weather(today: bool) -> str:
    """The weather.

    Args:
      today: or tomorrow
    """
    return "sunny"


@case
def tools():
    first = "Call it. " * 3
    for stream in (False, True):
        for seed in range(12):  # The model may call the tool, or answer.
            ask = dict(tools=[weather], options={"num_predict": 120, "temperature": 1.3, "seed": seed}, think=False)
            r = client.chat(model, [{"role": "user", "content": first}], stream=stream, **ask)
            parts = list(r) if stream else [r]
            calls = [c for p in parts for c in p.message.tool_calls or []]
            if calls:
                break
        check(f"tools: arguments are an object, stream {stream}", all(c.function.name == "weather" and isinstance(c.function.arguments, dict) for c in calls), calls)
    calls = calls or [{"function": {"name": "weather", "arguments": {"today": True}}}]
    back = client.chat(model, [*say, {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "tool_name": "weather", "content": "sunny"}], tools=[weather], options=opts)
    check("tools: a result goes back", back.prompt_eval_count > 20, back)


@case
def generate():
    raw = client.generate(model, "Once upon a time", raw=True, options=opts)
    done = json.load(urllib.request.urlopen(urllib.request.Request(base + "/v1/completions", json.dumps({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}).encode(),
                                                                   {"content-type": "application/json"})))
    check("generate: raw is a completion", raw.response == done["choices"][0]["text"], (raw.response, done))
    parts = list(client.generate(model, "Once upon a time", raw=True, options=opts, stream=True))
    check("generate: streamed equals whole", "".join(p.response for p in parts) == raw.response)
    one = client.generate(model, "Hello", system="Be kind.", options=opts, think=False)
    two = client.generate(model, "And then?", context=one.context, options=opts, think=False)
    check("generate: the context is continued", len(one.context) == one.prompt_eval_count + one.eval_count and two.prompt_eval_count > len(one.context), (len(one.context), two.prompt_eval_count))
    check("generate: no prompt: loaded", client.generate(model).done_reason == "load")
    refused("generate: a suffix", 400, "suffix", lambda: client.generate(model, "a", suffix="b"))


@case
def embeddings():
    r = client.embed(model, ["Once", "upon a time"])
    v = json.load(urllib.request.urlopen(urllib.request.Request(base + "/v1/embeddings", json.dumps({"input": ["Once", "upon a time"]}).encode(), {"content-type": "application/json"})))
    check("embed", [list(e) for e in r.embeddings] == [d["embedding"] for d in v["data"]] and r.prompt_eval_count == v["usage"]["prompt_tokens"])
    check("embeddings", list(client.embeddings(model, "Once").embedding) == list(r.embeddings[0]))
    check("embed: truncates", len(client.embed(model, "word " * 2000).embeddings) == 1)
    refused("embed: unless told not to", 400, "exceeds", lambda: client.embed(model, "word " * 2000, truncate=False))


@case
def about():
    listed = client.list().models
    check("tags", [m.model for m in listed] == [model + ":latest"] and listed[0].size > 1000 and listed[0].details.family and listed[0].modified_at.year > 2000, listed)
    check("ps", client.ps().models[0].model == model + ":latest")
    r = client.show(model)
    check("show", r.modelinfo[f"{r.modelinfo['general.architecture']}.context_length"] == 512 and {"completion", "tools", "thinking"} <= set(r.capabilities) and r.template, r)
    check("version", json.load(urllib.request.urlopen(base + "/api/version"))["version"][0].isdigit())
    for name, call in (("pull", lambda: client.pull("x")), ("push", lambda: client.push("x")), ("create", lambda: client.create("x", from_="y")),
                       ("copy", lambda: client.copy("x", "y")), ("delete", lambda: client.delete("x"))):
        try:
            call()
            check(f"{name} is refused", False)
        except ollama.ResponseError as e:
            check(f"{name} is refused", e.status_code == 501 and "not supported" in e.error, (e.status_code, e.error))
    refused("show: another", 404, "not found", lambda: client.show("x"))


sys.exit(tap.end())
