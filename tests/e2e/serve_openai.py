"""Drive every endpoint of `lateen serve` with OpenAI's own Python client, and Anthropic's endpoints by plain HTTP. TAP on stdout.

usage: serve_openai.py BASE_URL MODEL_NAME
The model is stories260K or one as small. The test checks the protocol, and everything that greedy decoding determines."""
import base64
import json
import re
import struct
import sys
import urllib.request

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tap import Tap

base, model = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
tap = Tap()
check, case = tap.check, tap.case


def refused(name, status, param, call):
    try:
        call()
        check(name, False, "was not refused")
    except openai.APIStatusError as e:
        body = e.body if isinstance(e.body, dict) else {}
        check(name, e.status_code == status and (param is None or body.get("param") == param) and bool(body.get("message")),
              f"{e.status_code} {e.body}")


def strict(kind, value):
    """The client accepts any fields; its types say which are required."""
    try:
        TypeAdapter(kind).validate_json(value.content if hasattr(value, "headers") else value.to_json())
    except Exception as e:
        check(f"fields of {getattr(kind, '__name__', 'an event')}", False, str(e)[-600:])


def complete(**kw):
    return client.completions.create(**{"model": model, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, **kw})


def chat(**kw):
    return client.chat.completions.create(**{"model": model, "messages": [{"role": "user", "content": "Once upon a time"}],
                                             "max_tokens": 16, "temperature": 0, **kw})


@case
def models():
    listed = client.models.list().data
    check("models: list", [m.id for m in listed] == [model])
    check("models: retrieve", client.models.retrieve(model).id == model)
    refused("models: another is 404", 404, "model", lambda: client.models.retrieve("nobody"))


@case
def completions():
    r = complete()
    check("completions: text", r.object == "text_completion" and len(r.choices[0].text) > 5, r)
    check("completions: length", r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 16, r)
    check("completions: usage", r.usage.total_tokens == r.usage.prompt_tokens + 16)
    parts = list(complete(stream=True, stream_options={"include_usage": True}))
    text = "".join(p.choices[0].text for p in parts if p.choices)
    check("completions: streamed equals whole", text == r.choices[0].text, text)
    check("completions: usage in the stream", parts[-1].usage is not None and parts[-1].usage.completion_tokens == 16)
    check("completions: cached prefix equals fresh", complete().choices[0].text == r.choices[0].text)
    ids = json.load(urllib.request.urlopen(urllib.request.Request(
        base + "/tokenize", json.dumps({"prompt": "Once upon a time"}).encode())))["tokens"]
    check("completions: ids as prompt", complete(prompt=ids).choices[0].text == r.choices[0].text)
    many = complete(prompt=["Once upon a time", "The"])
    check("completions: a list of prompts", len(many.choices) == 2 and many.choices[0].text == r.choices[0].text)
    check("completions: a list of lists", complete(prompt=[ids, ids]).choices[1].text == r.choices[0].text)
    e = complete(echo=True, logprobs=3)
    check("completions: echo", e.choices[0].text == "Once upon a time" + r.choices[0].text, e.choices[0].text)
    lp = e.choices[0].logprobs
    check("completions: logprobs of prompt and answer", len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs)
          == len(lp.text_offset) == r.usage.prompt_tokens + 16 and lp.token_logprobs[0] is None, lp)
    check("completions: 3 alternatives, and the token itself", all(t is None or (3 <= len(t) <= 4 and t[token] == own)
          for t, token, own in zip(lp.top_logprobs, lp.tokens, lp.token_logprobs)), lp.top_logprobs)
    none = complete(logprobs=0, temperature=1, seed=1).choices[0].logprobs
    check("completions: no alternative, only the token", none.top_logprobs == [{t: p} for t, p in zip(none.tokens, none.token_logprobs)], none)
    only = complete(echo=True, max_tokens=0, logprobs=0)
    check("completions: echo alone", only.choices[0].text == "Once upon a time" and only.usage.completion_tokens == 0, only)
    check("completions: n", len({c.text for c in complete(n=4, temperature=1.5, seed=1).choices}) > 1)
    best = complete(n=1, best_of=4, temperature=1.0, seed=3)
    check("completions: best_of", len(best.choices) == 1)


@case
def sampling():
    a, b, c = (complete(temperature=1.2, seed=s).choices[0].text for s in (7, 7, 8))
    check("seed: same seed, same text", a == b)
    check("seed: another seed, another text", a != c)
    check("logit_bias", "xxxx" not in complete().choices[0].text)
    check("top_k 1 is greedy", complete(temperature=1.0, extra_body={"top_k": 1}).choices[0].text == complete().choices[0].text)
    check("top_p 0 is greedy", complete(temperature=1.0, top_p=0).choices[0].text == complete().choices[0].text)
    for extra in ({"min_p": 0.1}, {"typical_p": 0.9}, {"repetition_penalty": 1.2}, {"ignore_eos": True}, {"min_tokens": 4},
                  {"priority": 3}, {"cache_prompt": True}, {"return_token_ids": True}):
        check(f"extension {next(iter(extra))}", complete(extra_body=extra).choices[0].finish_reason in ("stop", "length"))
    p = complete(presence_penalty=1.5, frequency_penalty=1.5, max_tokens=64)
    check("penalties change the text", p.choices[0].text != complete(max_tokens=64).choices[0].text)


@case
def stops():
    whole = complete(max_tokens=40).choices[0].text
    stop = whole[12:17]
    r = complete(max_tokens=40, stop=stop)
    check("stop: cut before the string", r.choices[0].text == whole[:whole.index(stop)], (r.choices[0].text, whole, stop))
    check("stop: finish_reason", r.choices[0].finish_reason == "stop")
    parts = [p.choices[0].text for p in complete(max_tokens=40, stop=[stop, "zzzz"], stream=True)]
    check("stop: nothing of it leaks into a stream", "".join(parts) == whole[:whole.index(stop)], parts)
    r = complete(max_tokens=40, stop=stop, extra_body={"include_stop_str_in_output": True})
    check("stop: included on request", r.choices[0].text == whole[:whole.index(stop) + len(stop)])
    refused("stop: empty string", 400, "stop", lambda: complete(stop=""))
    refused("stop: too many", 400, "stop", lambda: complete(stop=[str(i) for i in range(99)]))


@case
def chats():
    r = chat()
    strict(ChatCompletion, client.chat.completions.with_raw_response.create(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2, logprobs=True, top_logprobs=2))
    check("chat: message", r.choices[0].message.role == "assistant" and len(r.choices[0].message.content) > 5, r)
    parts = list(chat(stream=True, stream_options={"include_usage": True}))
    for p in parts:
        strict(ChatCompletionChunk, p)
    text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    check("chat: streamed equals whole", text == r.choices[0].message.content, text)
    check("chat: role first, reason last", parts[0].choices[0].delta.role == "assistant" and parts[-2].choices[0].finish_reason == "length")
    check("chat: usage in the stream", parts[-1].usage.completion_tokens == r.usage.completion_tokens and not parts[-1].choices)
    check("chat: parts of text", chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Once upon"},
          {"type": "text", "text": " a time"}]}]).choices[0].message.content == r.choices[0].message.content)
    n = chat(n=3, temperature=1.3, seed=5)
    check("chat: n", [c.index for c in n.choices] == [0, 1, 2] and len({c.message.content for c in n.choices}) > 1)
    seen = {}
    for p in chat(n=3, temperature=1.3, seed=5, stream=True):
        for c in p.choices:
            seen[c.index] = seen.get(c.index, "") + (c.delta.content or "")
    check("chat: n streamed equals n whole", [seen[i] for i in range(3)] == [c.message.content for c in n.choices])
    lp = chat(logprobs=True, top_logprobs=5).choices[0].logprobs.content
    check("chat: logprobs", len(lp) == 16 and all(len(t.top_logprobs) == 5 and t.logprob <= 0 for t in lp))
    check("chat: bytes of tokens", all(bytes(t.bytes).decode(errors="replace") == t.token for t in lp))
    streamed = [t for p in chat(logprobs=True, top_logprobs=5, stream=True) for c in p.choices
                if c.logprobs for t in c.logprobs.content]
    check("chat: logprobs streamed", [t.logprob for t in streamed] == [t.logprob for t in lp], len(streamed))
    check("chat: harmless fields", chat(user="u", metadata={"a": "b"}, store=False, service_tier="auto",
                                        parallel_tool_calls=True).choices[0].finish_reason == "length")
    chat(messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    raw = client.chat.completions.with_raw_response.create(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
    check("chat: content type", raw.headers["content-type"].startswith("application/json"))
    check("chat: _request_id", raw.parse()._request_id and raw.parse().id == "chatcmpl-" + raw.parse()._request_id, raw.headers)


@case
def stored():
    store = client.chat.completions
    one, two = chat(store=True, metadata={"k": "one"}), chat(store=True, metadata={"k": "two"})
    check("chat: stored, and found again", store.retrieve(one.id).choices == one.choices and store.retrieve(one.id).metadata == {"k": "one"})
    for _ in chat(store=True, stream=True, metadata={"k": "streamed"}):
        pass
    check("chat: the list, a page after the other", [c.metadata["k"] for c in store.list(limit=1)] == ["one", "two", "streamed"])
    check("chat: by metadata", [c.id for c in store.list(metadata={"k": "two"}, order="desc")] == [two.id])
    check("chat: the messages of one", [(m.role, m.content) for m in store.messages.list(one.id)] == [("user", "Once upon a time")])
    check("chat: update", store.update(one.id, metadata={"k": "three"}).metadata == {"k": "three"} == store.retrieve(one.id).metadata)
    deleted = store.delete(one.id)
    check("chat: delete", deleted.deleted and deleted.id == one.id and deleted.object == "chat.completion.deleted" and [c.metadata["k"] for c in store.list()] == ["two", "streamed"])
    refused("chat: deleted", 404, "completion_id", lambda: store.retrieve(one.id))


@case
def refusals():
    refused("temperature out of range", 400, "temperature", lambda: chat(temperature=-1))
    refused("top_logprobs without logprobs", 400, "top_logprobs", lambda: chat(top_logprobs=2))
    refused("n of 0", 400, "n", lambda: chat(n=0))
    refused("n of a million", 400, "n", lambda: chat(n=10**6))
    refused("max_tokens over the context", 400, "max_tokens", lambda: chat(max_tokens=10**7))
    refused("max_tokens of 0", 400, "max_tokens", lambda: chat(max_tokens=0))
    refused("a prompt over the context", 400, None, lambda: complete(prompt="word " * 20000))
    refused("another model", 404, "model", lambda: chat(model="gpt-9"))
    refused("no messages", 400, "messages", lambda: chat(messages=[]))
    refused("an unknown role", 400, "messages[0]", lambda: chat(messages=[{"role": "ghost", "content": "x"}]))
    refused("an image", 400, "messages[0]", lambda: chat(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,"}}]}]))
    refused("audio by name", 400, "audio", lambda: chat(audio={"voice": "alloy", "format": "wav"}))
    refused("functions by name", 400, "functions", lambda: chat(functions=[{"name": "f"}]))
    refused("web search by name", 400, "web_search_options", lambda: chat(web_search_options={}))
    refused("store that is no boolean", 400, "store", lambda: chat(store="yes"))
    refused("suffix by name", 400, "suffix", lambda: complete(suffix="x"))
    refused("an unknown field by name", 400, "temprature", lambda: chat(extra_body={"temprature": 1}))
    refused("logit_bias of a token that is none", 400, "logit_bias", lambda: chat(logit_bias={"99999999": 1}))
    refused("best_of below n", 400, "best_of", lambda: complete(n=3, best_of=2))
    refused("stream_options without stream", 400, "stream_options", lambda: chat(stream_options={"include_usage": True}))
    refused("ids outside the vocabulary", 400, "prompt", lambda: complete(prompt=[1, 10**8]))
    refused("a schema that is none", 400, None, lambda: chat(response_format={"type": "json_schema"}))
    refused("an unknown format", 400, None, lambda: chat(response_format={"type": "yaml"}))


@case
def codes():
    """Clients read these to know what to leave out, or to correct."""
    for body, code in (({"temprature": 1}, "unknown_parameter"), ({"functions": []}, "unsupported_parameter"), ({"echo": True}, "unsupported_value"),
                       ({"temperature": "hot"}, "invalid_type"), ({"temperature": 1000}, "invalid_value"), ({"n": 1.5}, "invalid_type"), ({"stream": 1}, "invalid_type")):
        try:
            chat(extra_body=body)
            check(f"code of {body}", False)
        except openai.BadRequestError as e:
            check(f"code of {body}", e.code == code and e.param == list(body)[0] and e.type == "invalid_request_error", e.body)


@case
def responses():
    r = client.responses.create(model=model, input="Once upon a time", max_output_tokens=16, temperature=0)
    check("responses: text", len(r.output_text) > 5 and r.status == "incomplete"
          and r.incomplete_details.reason == "max_output_tokens", r)
    check("responses: usage", r.usage.output_tokens == 16 and r.usage.total_tokens == r.usage.input_tokens + 16)
    check("responses: stored, and found again", r.store is True and client.responses.retrieve(r.id).output_text == r.output_text)
    again = client.responses.create(model=model, input="And then?", previous_response_id=r.id, max_output_tokens=4)
    check("responses: previous_response_id", again.previous_response_id == r.id and again.usage.input_tokens > r.usage.input_tokens)
    check("responses: input items", [i.content[0].text for i in client.responses.input_items.list(r.id)] == ["Once upon a time"])
    check("responses: input tokens", client.responses.input_tokens.count(model=model, input="Once upon a time").input_tokens == r.usage.input_tokens)
    client.responses.delete(r.id)
    refused("responses: deleted", 404, None, lambda: client.responses.retrieve(r.id))
    kinds, text, final = [], "", None
    strict(Response, client.responses.with_raw_response.create(model=model, input="Once", max_output_tokens=4))
    for e in client.responses.create(model=model, input="Once upon a time", max_output_tokens=16, temperature=0, stream=True):
        kinds.append(e.type)
        strict(ResponseStreamEvent, e)
        check_number = e.sequence_number == len(kinds) - 1
        if not check_number:
            check("responses: sequence numbers", False, (e.type, e.sequence_number))
        if e.type == "response.output_text.delta":
            text += e.delta
        if e.type in ("response.completed", "response.incomplete"):
            final = e.response
    check("responses: streamed equals whole", text == r.output_text and final.output_text == text, text)
    check("responses: order of events", kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added"] and kinds[-4:] == ["response.output_text.done", "response.content_part.done",
                                                            "response.output_item.done", "response.incomplete"], kinds)
    r = client.responses.create(model=model, instructions="Be brief.", max_output_tokens=4, input=[
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"}])
    check("responses: items", r.usage.output_tokens <= 4)
    lp = client.responses.create(model=model, input="Hi", max_output_tokens=4, top_logprobs=2,
                                 include=["message.output_text.logprobs"]).output[0].content[0].logprobs
    check("responses: logprobs", lp and len(lp[0].top_logprobs) == 2, lp)
    refused("responses: previous_response_id", 400, "previous_response_id",
            lambda: client.responses.create(model=model, input="x", previous_response_id="resp_1"))
    refused("responses: conversation", 400, "conversation",
            lambda: client.responses.create(model=model, input="x", conversation="conv_1"))
    refused("responses: built-in tools", 400, "tools",
            lambda: client.responses.create(model=model, input="x", tools=[{"type": "web_search"}]))


@case
def embeddings():
    a = client.embeddings.create(model=model, input=["Once", "upon"], encoding_format="float")
    check("embeddings: of length 1", all(abs(sum(x * x for x in d.embedding) - 1) < 1e-3 for d in a.data))
    # The client requests base64 by itself.
    b = client.embeddings.create(model=model, input=["Once", "upon"])
    check("embeddings: base64 equals float", max(abs(x - y) for x, y in zip(a.data[1].embedding, b.data[1].embedding)) < 1e-6)
    raw = json.load(urllib.request.urlopen(urllib.request.Request(base + "/v1/embeddings", json.dumps(
        {"input": "Once", "encoding_format": "base64"}).encode())))
    data = base64.b64decode(raw["data"][0]["embedding"])
    check("embeddings: base64 is little-endian float32", abs(struct.unpack(f"<{len(data) // 4}f", data)[0] - a.data[0].embedding[0]) < 1e-6)
    refused("embeddings: other dimensions", 400, "dimensions", lambda: client.embeddings.create(model=model, input="x", dimensions=3))


@case
def structured():
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["name", "age"], "additionalProperties": False}
    for seed in range(3):
        r = chat(temperature=1.0, seed=seed, max_tokens=200, response_format={
            "type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}})
        value = json.loads(r.choices[0].message.content)
        check(f"json_schema {seed}", set(value) == {"name", "age"} and isinstance(value["age"], int), value)
    r = chat(max_tokens=400, temperature=1.0, seed=1, response_format={"type": "json_object"})
    if r.choices[0].finish_reason == "stop":
        check("json_object", isinstance(json.loads(r.choices[0].message.content), dict))
    check("choice", chat(extra_body={"guided_choice": ["red", "green"]}).choices[0].message.content in ("red", "green"))
    digits = chat(extra_body={"guided_regex": "[0-9]{3}-[0-9]{2}"}).choices[0].message.content
    check("regex", len(digits) == 6 and digits[3] == "-" and digits.replace("-", "").isdigit(), digits)
    g = chat(extra_body={"grammar": 'root ::= "yes" | "no"'}).choices[0].message.content
    check("grammar", g in ("yes", "no"), g)
    lark = 'start: "n=" INT ("+" INT)* "."\n%import common.INT\n%ignore " "'
    for body in ({"guided_grammar": lark}, {"structured_outputs": {"grammar": lark}}):
        g = chat(max_tokens=60, temperature=1.0, seed=2, extra_body=body).choices[0]
        check(f"a grammar in Lark's notation: {list(body)[0]}", g.finish_reason == "length" or re.fullmatch(r" *n= *[0-9]+( *\+ *[0-9]+)* *\. *", g.message.content), g)
    refused("two forms at once", 400, None, lambda: chat(extra_body={"grammar": 'root ::= "a"', "guided_regex": "b"}))
    refused("a broken grammar", 400, "grammar", lambda: chat(extra_body={"grammar": "root ::= ("}))

@case
def extras():
    """What users of vLLM request."""
    def post(path, **kw):
        return json.load(urllib.request.urlopen(urllib.request.Request(base + path, json.dumps(kw).encode(), {"content-type": "application/json"})))
    ids = lambda text: post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
    plain = complete(extra_body={"return_token_ids": True}).choices[0]
    few = sorted({i for t in (" dog", " cat", ".") for i in ids("Tim" + t)[-2:]})
    for kw in ({}, {"temperature": 2.0}):
        r = complete(extra_body={"allowed_token_ids": few, "return_token_ids": True}, **kw).choices[0]
        check(f"allowed_token_ids {kw}", len(r.token_ids) == 16 and set(r.token_ids) <= set(few), r)
    refused("allowed_token_ids: none", 400, "allowed_token_ids", lambda: complete(extra_body={"allowed_token_ids": []}))
    refused("allowed_token_ids: outside", 400, "allowed_token_ids", lambda: complete(extra_body={"allowed_token_ids": [10**8]}))
    refused("allowed_token_ids beside a form", 400, None, lambda: complete(extra_body={"allowed_token_ids": few, "guided_regex": "a"}))
    word = plain.text.split()[2]
    r = complete(extra_body={"bad_words": [word]}).choices[0]
    check("bad_words", word in plain.text and word not in r.text.split(), (plain.text, r.text))
    long = " ".join(plain.text.split()[1:4])
    r = complete(extra_body={"bad_words": [long]}).choices[0]
    check("bad_words of several tokens", long in plain.text and long not in r.text, (plain.text, r.text))
    check("bad_words leave the beginning as it was", r.text[:3] == plain.text[:3], r.text)
    refused("bad_words: an empty one", 400, "bad_words", lambda: complete(extra_body={"bad_words": [""]}))
    prompt = post("/tokenize", prompt="Once upon a time there was a little girl", add_special_tokens=True)["tokens"]
    r = complete(prompt=prompt, extra_body={"truncate_prompt_tokens": 4})
    check("truncate_prompt_tokens", r.usage.prompt_tokens == 4 and r.choices[0].text == complete(prompt=[prompt[0], *prompt[-3:]]).choices[0].text, r)
    r = complete(prompt="word " * 2000, max_tokens=8, extra_body={"truncate_prompt_tokens": -1})
    check("truncate_prompt_tokens -1: as much as fits", r.usage.prompt_tokens == 512 - 8 and r.usage.completion_tokens == 8, r.usage)
    refused("truncate_prompt_tokens 0", 400, "truncate_prompt_tokens", lambda: complete(prompt=prompt, extra_body={"truncate_prompt_tokens": 0}))
    r = chat(messages=[{"role": "user", "content": "word " * 400}], extra_body={"truncate_prompt_tokens": 20})
    check("truncate_prompt_tokens: chat", r.usage.prompt_tokens == 20, r.usage)
    r = complete(logprobs=2, extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True}).choices[0]
    check("return_tokens_as_token_ids", r.logprobs.tokens == [f"token_id:{i}" for i in r.token_ids] and all(k.startswith("token_id:") for t in r.logprobs.top_logprobs for k in t), r.logprobs)
    r = chat(logprobs=True, top_logprobs=1, extra_body={"return_tokens_as_token_ids": True}).choices[0].logprobs.content
    check("return_tokens_as_token_ids: chat", all(t.token.startswith("token_id:") and t.top_logprobs[0].token.startswith("token_id:") for t in r), r)
    info = json.load(urllib.request.urlopen(base + "/tokenizer_info"))
    check("tokenizer_info", info["eos_token"].strip() == "</s>" and info["bos_token"].strip() == "<s>" and "chat_template" in info, info)
    spec = json.load(urllib.request.urlopen(base + "/openapi.json"))
    check("openapi.json", spec["components"]["schemas"]["chat"]["properties"]["n"]["maximum"] == 128, list(spec))
    check("ping", urllib.request.urlopen(base + "/ping").status == 200)
    refused("enable_thinking: a word", 400, "enable_thinking", lambda: chat(extra_body={"enable_thinking": "no"}))


@case
def tools():
    tool = {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"]}}}
    r = chat(tools=[tool], tool_choice="required", max_tokens=200)
    call = r.choices[0].message.tool_calls[0]
    check("tools: required gives a call", call.function.name == "get_weather" and r.choices[0].finish_reason == "tool_calls", r)
    check("tools: arguments are JSON", set(json.loads(call.function.arguments)) == {"city"}, call.function.arguments)
    deltas = [t for p in chat(tools=[tool], tool_choice={"type": "function", "function": {"name": "get_weather"}}, max_tokens=200, stream=True)
              for c in p.choices for t in c.delta.tool_calls or []]
    args = "".join(t.function.arguments or "" for t in deltas)
    check("tools: a named one, streamed: id and name first", deltas[0].id and deltas[0].function.name == "get_weather"
          and deltas[0].function.arguments == "" and not any(t.id or t.function.name for t in deltas[1:]), deltas)
    check("tools: then its arguments in pieces", len(deltas) > 4 and set(json.loads(args)) == {"city"}, args)
    other = json.loads(json.dumps(tool))
    other["function"]["name"] = "other"
    r = chat(tools=[tool, other], max_tokens=200, tool_choice={"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}})
    check("tools: allowed_tools", r.choices[0].message.tool_calls[0].function.name == "other", r)
    r = client.responses.create(model=model, input="Hi", max_output_tokens=200, tools=[
        {"type": "function", "name": n, "strict": True, "parameters": tool["function"]["parameters"]} for n in ("a", "b")],
        tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]})
    check("responses: allowed_tools", [o.name for o in r.output] == ["b"], r.output)
    for seed in range(4):
        r = chat(tools=[tool], seed=seed, temperature=1.5, max_tokens=40).choices[0]
        check("tools: auto: text or a call", bool(r.message.content) != bool(r.message.tool_calls), r)
    told = json.load(urllib.request.urlopen(urllib.request.Request(base + "/apply-template", json.dumps({"tools": [tool], "messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"}]}).encode())))["prompt"]
    check("tools: if the template has no tools, the prompt contains them, calls and results all the same", all(x in told for x in ("The weather", '{"name":"get_weather","arguments":{"city":"Bern"}}', "sunny")), told)
    refused("tools: a name that no prompt should hold", 400, "tools", lambda: chat(tools=[{"type": "function", "function": {"name": "a\"b"}}]))
    weather, tomorrow = ({"type": "function", "function": {"name": "weather", "description": d}} for d in ("of today", "of tomorrow"))
    refused("tools: two of one name", 400, "tools", lambda: chat(tools=[weather, tomorrow]))
    refused("responses: two tools of one name", 400, "tools", lambda: client.responses.create(model=model, input="a", tools=[{"type": "function", "name": "weather", "description": d} for d in ("a", "b")]))
    check("tools: the same one twice", chat(tools=[weather, weather], max_tokens=2).choices[0].finish_reason is not None)
    refused("tools: a schema beyond masks, by name", 400, "tools", lambda: chat(tool_choice="required", tools=[
        {"type": "function", "function": {"name": "f", "parameters": {"not": {"format": "date"}}}}]))
    r = client.responses.create(model=model, input="Hi", tool_choice="required", max_output_tokens=200, tools=[
        {"type": "function", "name": "get_weather", "parameters": tool["function"]["parameters"]}])
    calls = [o for o in r.output if o.type == "function_call"]
    check("responses: a call", calls and calls[0].name == "get_weather", r.output)
    check("tools: none gives no call", chat(tools=[tool], tool_choice="none").choices[0].message.tool_calls is None)
    refused("tools: a named one that is not there", 400, "tool_choice",
            lambda: chat(tools=[tool], tool_choice={"type": "function", "function": {"name": "other"}}))


@case
def messages():
    """Anthropic's format by plain HTTP."""
    def post(**kw):
        body = {"model": model, "max_tokens": 60, "messages": [{"role": "user", "content": "Hi"}], **kw}
        return urllib.request.urlopen(urllib.request.Request(base + "/v1/messages", json.dumps(body).encode()))
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"], "additionalProperties": False}
    r = json.load(post(output_config={"format": {"type": "json_schema", "schema": schema}}))
    check("messages: output_config", set(json.loads(r["content"][0]["text"])) == {"city"}, r)
    events = []
    for line in post(stream=True, max_tokens=200, tools=[{"name": "f", "input_schema": schema}], tool_choice={"type": "any"}):
        if line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
    kinds = [e["type"] for e in events]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    check("messages: order of events", kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] ==
          ["content_block_stop", "message_delta", "message_stop"] and set(kinds[2:-3]) == {"content_block_delta"}, kinds)
    check("messages: a call's input in pieces", len(deltas) > 3 and all(d["type"] == "input_json_delta" for d in deltas)
          and set(json.loads("".join(d["partial_json"] for d in deltas))) == {"city"}, deltas)
    check("messages: tool_use", events[1]["content_block"]["type"] == "tool_use" and events[-2]["delta"]["stop_reason"] == "tool_use", events[-2])


sys.exit(tap.end())
