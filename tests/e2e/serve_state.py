"""State that a server keeps between requests, and state that clients carry, by plain HTTP: /v1/responses with previous_response_id, store, sealed
reasoning and truncation; /v1/responses/{id}; /v1/chat/completions with store, and the paths below it. TAP on stdout.

usage: serve_state.py PORT KEY OTHER_KEY
The server has both keys, --store-entries 6, and a chat template that writes <think> after the messages and shows the reasoning_content of
earlier messages in brackets."""
import json
import sys
import urllib.error
import urllib.parse
import urllib.request

from tap import Tap

port, key, other = sys.argv[1:4]
tap = Tap()
check, case = tap.check, tap.case


def call(method, path, body=None, who=None):
    data = json.dumps(body).encode() if body is not None else None
    headers = {"content-type": "application/json", "authorization": f"Bearer {who or key}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def create(who=None, **kw):
    status, text = call("POST", "/v1/responses", {"max_output_tokens": 24, "temperature": 0, **kw}, who)
    if kw.get("stream") and status == 200:
        return status, [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    return status, json.loads(text)


def refused(name, status, code, answer):
    error = answer[1].get("error") or {}
    check(name, answer[0] == status and (code is None or error.get("code") == code) and error.get("message"), answer)


def prompt_tokens(who=None, **kw):
    return json.loads(call("POST", "/v1/responses/input_tokens", kw, who)[1])["input_tokens"]


@case
def stored():
    first = create(input="Once upon a time", metadata={"k": "v"})[1]
    check("a response is kept unless store is false", first["store"] is True and first["metadata"] == {"k": "v"}, first)
    status, text = call("GET", f"/v1/responses/{first['id']}")
    check("GET returns it as it was first returned", status == 200 and json.loads(text) == first, text)
    items = json.loads(call("GET", f"/v1/responses/{first['id']}/input_items")[1])
    check("its input items have ids", items["object"] == "list" and items["data"][0]["content"] == [{"type": "input_text", "text": "Once upon a time"}]
          and items["first_id"] == items["last_id"] == items["data"][0]["id"] and items["has_more"] is False, items)
    check("another key does not find it", call("GET", f"/v1/responses/{first['id']}", who=other)[0] == 404)
    refused("nor continues it", 400, "previous_response_not_found", create(who=other, input="x", previous_response_id=first["id"]))
    check("nor forgets it", call("DELETE", f"/v1/responses/{first['id']}", who=other)[0] == 404)
    status, body = call("POST", "/v1/responses/compact", {})[:2]
    check("an unknown verb is not an id", status == 404 and "there is no POST /v1/responses/compact here" in str(body), body)
    check("it cannot be cancelled", call("POST", f"/v1/responses/{first['id']}/cancel", {})[0] == 400)
    check("DELETE", json.loads(call("DELETE", f"/v1/responses/{first['id']}")[1]) == {"id": first["id"], "object": "response", "deleted": True})
    check("then it is gone", call("GET", f"/v1/responses/{first['id']}")[0] == 404 == call("DELETE", f"/v1/responses/{first['id']}")[0])
    refused("and cannot be continued", 400, "previous_response_not_found", create(input="x", previous_response_id=first["id"]))
    none = create(input="Once", store=False)[1]
    check("store false is honoured", none["store"] is False and call("GET", f"/v1/responses/{none['id']}")[0] == 404, none)
    check("an id that does not exist", call("GET", "/v1/responses/resp_nobody")[0] == 404 == call("GET", "/v1/responses/")[0])


def refused_cursor(name, path):
    for after in ("nobody", "x" * 300):
        status, text = call("GET", f"{path}?after={after}")
        error = json.loads(text)["error"]
        check(f"{name}: a page behind an item that is not in the list ({len(after)} letters)", status == 404 and error["param"] == "after" and after[:90] in error["message"], text)


@case
def pages():
    many = [{"role": "user", "content": str(i)} for i in range(5)]
    r = create(input=many)[1]
    get = lambda query: json.loads(call("GET", f"/v1/responses/{r['id']}/input_items?{query}")[1])
    up, down = get("order=asc&limit=2"), get("limit=100")
    texts = lambda page: [i["content"] for i in page["data"]]
    check("input items: a page", texts(up) == ["0", "1"] and up["has_more"] is True, up)
    check("the next page", texts(get(f"order=asc&limit=2&after={up['last_id']}")) == ["2", "3"])
    check("newest first unless asked otherwise", texts(down) == ["4", "3", "2", "1", "0"] and down["has_more"] is False, down)
    check("a limit out of range", call("GET", f"/v1/responses/{r['id']}/input_items?limit=0")[0] == 400)
    refused_cursor("input items", f"/v1/responses/{r['id']}/input_items")
    create(input="x")


def chat(who=None, text="Once upon a time", **kw):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 1, **kw}
    status, text = call("POST", "/v1/chat/completions", body, who)
    return status, json.loads(text) if not kw.get("stream") else [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def ids_of(query="", who=None):
    return [c["id"] for c in json.loads(call("GET", f"/v1/chat/completions{query}", who=who)[1])["data"]]


@case
def completions():
    at = lambda c, more="": f"/v1/chat/completions/{c['id']}{more}"
    first = chat(store=True, metadata={"topic": "a & b", "n": "1"}, n=2)[1]
    status, text = call("GET", at(first))
    told = json.loads(text)
    check("a chat completion that asks for it is stored as it was returned", status == 200 and told.pop("metadata") == {"topic": "a & b", "n": "1"} and told == first, text)
    pieces = chat(store=True, stream=True)[1]
    streamed = json.loads(call("GET", at(pieces[0]))[1])
    whole = chat()[1]["choices"]
    check("so is one that was streamed", streamed["choices"] == whole and streamed["metadata"] == {} and streamed["object"] == "chat.completion"
          and streamed["usage"]["completion_tokens"] == 12 and len(whole[0]["logprobs"]["content"]) == 12, (streamed, whole))
    check("not stored unless asked for", [call("GET", at(chat(**kw)[1]))[0] for kw in ({}, {"store": False}, {"store": None, "metadata": {"a": 1}})] == [404] * 3)
    refused("store that is no boolean", 400, None, chat(store=1))
    for name, metadata in (("a number", {"a": 1}), ("a long value", {"a": "x" * 513}), ("a long name", {"x" * 65: ""}), ("17 pairs", {str(i): "" for i in range(17)}), ("a list", [])):
        refused(f"metadata with {name}", 400, None, chat(store=True, metadata=metadata))
    check("the longest metadata, in characters", chat(store=True, metadata={"\u00e9" * 64: "\u00e9" * 512, **{str(i): "" for i in range(15)}})[0] == 200)

    parts = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Once "}, {"type": "text", "text": "more"}]}]
    asked = chat(store=True, messages=parts)[1]
    page = json.loads(call("GET", at(asked, "/messages"))[1])
    check("its messages", page["object"] == "list" and page["has_more"] is False and page["first_id"] == f"{asked['id']}-0" and page["last_id"] == f"{asked['id']}-1"
          and [(m["role"], m["content"], m["content_parts"]) for m in page["data"]] == [("system", "Be brief.", None), ("user", "Once more", parts[1]["content"])], page)
    page = json.loads(call("GET", at(asked, f"/messages?limit=1&after={asked['id']}-0"))[1])
    check("the second page of them", [m["role"] for m in page["data"]] == ["user"] and page["has_more"] is False, page)

    # Listing an entry is not a use, so on a slow machine it could be dropped below.
    for i in ids_of():
        call("GET", f"/v1/chat/completions/{i}")
    check("the list is in the order of making", ids_of() == ids_of("?order=asc") and ids_of()[0] == first["id"] and ids_of()[1] == streamed["id"] and ids_of()[-1] == asked["id"])
    check("or the other way", ids_of("?order=desc") == ids_of()[::-1])
    page = json.loads(call("GET", "/v1/chat/completions?limit=2")[1])
    check("a page", [c["id"] for c in page["data"]] == [first["id"], streamed["id"]] and page["has_more"] is True and page["last_id"] == streamed["id"], page)
    check("the next page", ids_of(f"?after={page['last_id']}") == ids_of()[2:])
    check("after the last there is nothing, and that is not an error", ids_of(f"?after={asked['id']}") == [])
    refused_cursor("completions", "/v1/chat/completions")
    refused_cursor("their messages", at(asked, "/messages"))
    query = lambda **metadata: "?" + urllib.parse.urlencode({f"metadata[{k}]": v for k, v in metadata.items()})
    check("by metadata", ids_of(query(topic="a & b")) == [first["id"]] == ids_of(query(topic="a & b", n="1")) and ids_of(query(topic="a & b", n="2")) == [] == ids_of(query(n="")))
    check("by model", len(ids_of("?model=" + first["model"])) == len(ids_of()) and ids_of("?model=another") == [])
    check("a list's wrong query", [call("GET", f"/v1/chat/completions?{q}")[0] for q in ("limit=0", "limit=101", "limit=x", "order=up")] == [400] * 4)

    refused("an update without metadata", 400, None, (lambda a: (a[0], json.loads(a[1])))(call("POST", at(first), {})))
    refused("of a wrong kind", 400, None, (lambda a: (a[0], json.loads(a[1])))(call("POST", at(first), {"metadata": {"a": []}})))
    check("what was wrong changed nothing", json.loads(call("GET", at(first))[1])["metadata"]["n"] == "1")
    status, text = call("POST", at(first), {"metadata": {"n": "2"}})
    check("new metadata in the place of the old", status == 200 and json.loads(text) == {**first, "metadata": {"n": "2"}} == json.loads(call("GET", at(first))[1]), text)
    check("it keeps its place in the list", ids_of()[0] == first["id"] and ids_of(query(n="2")) == [first["id"]])
    check("its messages are left", len(json.loads(call("GET", at(first, "/messages"))[1])["data"]) == 1)
    check("null removes all", json.loads(call("POST", at(first), {"metadata": None})[1])["metadata"] == {})

    check("another key finds nothing of it", ids_of(who=other) == [] and [call(m, at(first), b, other)[0] for m, b in (("GET", None), ("POST", {"metadata": {}}), ("DELETE", None))] == [404] * 3
          and call("GET", at(first, "/messages"), who=other)[0] == 404)
    check("a path after it that does not exist", call("GET", at(first, "/nothing"))[0] == 404 == call("POST", at(first, "/x"), {"metadata": {}})[0])
    response = create(input="x")[1]
    check("a response is not a chat completion, nor the reverse", call("GET", f"/v1/chat/completions/{response['id']}")[0] == 404 == call("GET", f"/v1/responses/{first['id']}")[0]
          and response["id"] not in ids_of())
    check("DELETE of a completion", json.loads(call("DELETE", at(first))[1]) == {"id": first["id"], "object": "chat.completion.deleted", "deleted": True})
    check("then it is gone, too", call("GET", at(first))[0] == 404 == call("DELETE", at(first))[0] and first["id"] not in ids_of())


@case
def turns():
    """A conversation by previous_response_id reads the same prompt as one that sends all its items again."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}}
    one = create(input="Once upon a time", tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, thinking_budget=6)[1]
    check("the first turn calls", [i["type"] for i in one["output"]] == ["reasoning", "function_call"], one["output"])
    result = {"type": "function_call_output", "call_id": one["output"][-1]["call_id"], "output": "42"}
    by_id = create(input=[result], tools=[tool], previous_response_id=one["id"])[1]
    whole = create(input=[{"role": "user", "content": "Once upon a time"}, *one["output"], result], tools=[tool])[1]
    check("the second turn by id reads as much as with all items", by_id["usage"]["input_tokens"] == whole["usage"]["input_tokens"] > one["usage"]["input_tokens"],
          (by_id["usage"], whole["usage"]))
    check("and says the same", [i.get("content") for i in by_id["output"]] == [i.get("content") for i in whole["output"]], (by_id["output"], whole["output"]))
    check("it names the previous one", by_id["previous_response_id"] == one["id"])
    call("DELETE", f"/v1/responses/{one['id']}")
    three = create(input="Go on", tools=[tool], previous_response_id=by_id["id"])
    check("a third turn, when the first can no longer be found", three[0] == 200 and three[1]["usage"]["input_tokens"] > by_id["usage"]["input_tokens"], three)
    fork = create(input="Go on", tools=[tool], previous_response_id=by_id["id"])
    check("a turn may be continued twice", fork[1]["usage"]["input_tokens"] == three[1]["usage"]["input_tokens"])
    check("instructions are each request's own", create(input="Go on", instructions="x", previous_response_id=by_id["id"])[1]["instructions"] == "x")
    refer = lambda i: {"type": "item_reference", "id": i["id"]}
    named = create(input=[{"role": "user", "content": "Go on"}, *map(refer, by_id["output"]), {"role": "user", "content": "?"}])
    meant = create(input=[{"role": "user", "content": "Go on"}, *by_id["output"], {"role": "user", "content": "?"}])
    check("items by reference", named[0] == 200 and named[1]["usage"]["input_tokens"] == meant[1]["usage"]["input_tokens"], (named, meant))
    refused("another key's item", 404, "not_found", create(who=other, input=[refer(by_id["output"][0])]))
    refused("an item that is none", 404, "not_found", create(input=[{"type": "item_reference", "id": "msg_none"}]))
    refused("a turn that is none", 400, "previous_response_not_found", create(input="x", previous_response_id="resp_1"))


@case
def sealed():
    ask = dict(input="Once upon a time", include=["reasoning.encrypted_content"], store=False, thinking_budget=6)
    one = create(**ask)[1]
    thought = one["output"][0]
    check("reasoning comes sealed when it is asked for", thought["type"] == "reasoning" and len(thought["encrypted_content"]) > 40 and thought["summary"] == [], thought)
    check("and not otherwise", "encrypted_content" not in create(input="Once", store=False)[1]["output"][0])
    events = create(stream=True, **ask)[1]
    final = events[-1]["response"]["output"][0]
    check("as a stream, too", final["encrypted_content"] and final["content"] == thought["content"] and
          [e["item"].get("encrypted_content") is None for e in events if "output_item" in e["type"]][:2] == [True, False], final)
    bare = {"type": "reasoning", "id": thought["id"], "summary": [], "encrypted_content": thought["encrypted_content"]}
    back = lambda *items: prompt_tokens(input=[{"role": "user", "content": "Once upon a time"}, *items, {"role": "assistant", "content": "So."}, {"role": "user", "content": "?"}])
    check("sealed reasoning is read as the open one", back(bare) == back(dict(bare, encrypted_content=None, content=thought["content"])) > back(), (back(bare), back()))
    summary = dict(bare, encrypted_content=None, summary=[{"type": "summary_text", "text": thought["content"][0]["text"]}])
    check("and as a summary", back(summary) == back(bare))
    check("reasoning that led to nothing is left out", prompt_tokens(input=[{"role": "user", "content": "a"}, bare, {"role": "user", "content": "b"}]) ==
          prompt_tokens(input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]))
    changed = dict(bare, encrypted_content=("A" if bare["encrypted_content"][30] != "A" else "B").join([bare["encrypted_content"][:30], bare["encrypted_content"][31:]]))
    say = [{"role": "user", "content": "?"}]
    refused("a seal that was changed", 400, "invalid_encrypted_content", create(input=[changed, *say]))
    refused("another key's seal", 400, "invalid_encrypted_content", create(who=other, input=[bare, *say]))
    refused("a seal of another vendor", 400, "invalid_encrypted_content", create(input=[dict(bare, encrypted_content="gAAAAABoISQ24OyVRYbkYfukdJoqdzWT-3uiErKInHDC-lgAaXeky44N77j7aibc"), *say]))


@case
def summaries():
    ask = dict(input="Once upon a time", reasoning={"effort": "low", "summary": "auto"}, store=False, thinking_budget=6)
    whole, events = create(**ask)[1], create(stream=True, **ask)[1]
    thought = whole["output"][0]
    text = thought["summary"][0]["text"]
    check("a summary tells the reasoning", thought["summary"][0]["type"] == "summary_text" and text and "content" not in thought, thought)
    check("it says what it is", whole["reasoning"] == {"effort": "low", "summary": "detailed"}, whole["reasoning"])
    kinds = [e["type"] for e in events if e.get("output_index") == 0 or e.get("output_index") is None]
    check("its events", kinds[2:4] == ["response.output_item.added", "response.reasoning_summary_part.added"] and
          [k for k in kinds if "delta" not in k][4:7] == ["response.reasoning_summary_text.done", "response.reasoning_summary_part.done", "response.output_item.done"], kinds)
    check("streamed equals whole", "".join(e["delta"] for e in events if e["type"] == "response.reasoning_summary_text.delta") == text)
    refused("a summary of another kind", 400, None, create(input="x", reasoning={"summary": "short"}))


@case
def incomplete():
    """What was complete when the tokens ran out is returned as completed, streamed or not."""
    ask = dict(input="Once upon a time", store=False, thinking_budget=6)
    whole, events = create(**ask)[1], create(stream=True, **ask)[1]
    told = [e["item"]["status"] for e in events if e["type"] == "response.output_item.done"]
    check("only the last item is incomplete", [i["status"] for i in whole["output"]] == told == ["completed", "incomplete"] and whole["status"] == "incomplete"
          == events[-1]["response"]["status"], (whole, told))


@case
def truncation():
    talk = [{"role": "system", "content": "Be kind."}]
    for i in range(60):
        talk += [{"role": "user", "content": f"Tell me of day {i} and of all the birds."}, {"role": "assistant", "content": f"On day {i} a bird sang."}]
    talk += [{"role": "user", "content": "And now?"}]
    refused("a conversation beyond the context", 400, "context_length_exceeded", create(input=talk))
    r = create(input=talk, truncation="auto")
    check("truncation auto leaves its oldest turns out", r[0] == 200 and r[1]["truncation"] == "auto" and 100 < r[1]["usage"]["input_tokens"] <= 512 - 24, r)
    long = [{"role": "user", "content": "bird " * 600}]
    refused("a last turn that is too long", 400, "context_length_exceeded", create(input=long, truncation="auto"))
    check("what fits is left as it is", prompt_tokens(input=talk[-3:], truncation="auto") == prompt_tokens(input=talk[-3:]))
    refused("an unknown truncation", 400, None, create(input="x", truncation="middle"))


@case
def forms():
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "name": "f", "parameters": schema}
    r = create(input="x", tools=[tool], tool_choice={"type": "function", "name": "f"}, text={"format": {"type": "json_schema", "name": "n", "schema": schema}, "verbosity": "low"}, max_output_tokens=200, thinking_budget=6)
    check("a forced call beside a format is a call", r[0] == 200 and [i["type"] for i in r[1]["output"]][-1] == "function_call" and json.loads(r[1]["output"][-1]["arguments"]) == {"a": 1}, r)
    check("verbosity is returned, and the model is told", r[1]["text"]["verbosity"] == "low" and prompt_tokens(input="x", text={"verbosity": "high"}) > prompt_tokens(input="x"), r)
    refused("an unknown verbosity", 400, None, create(input="x", text={"verbosity": "loud"}))
    asked = dict(max_tool_calls=3, parallel_tool_calls=False, prompt_cache_key="k", safety_identifier="s", service_tier="auto", user="u", top_logprobs=2,
                 metadata={"a": "b"}, instructions="Be brief.", context_management=[], background=False, conversation=None, prompt=None)
    r = create(input="x", include=["file_search_call.results", "message.output_text.logprobs"], **asked)
    check("what clients send is returned", r[0] == 200 and all(r[1][k] == asked[k] for k in ("max_tool_calls", "parallel_tool_calls", "prompt_cache_key", "safety_identifier",
          "user", "top_logprobs", "metadata", "instructions", "background")) and r[1]["service_tier"] == "default", r)
    part = r[1]["output"][-1]
    check("log-probabilities of the message alone", part["type"] != "message" or len(part["content"][0]["logprobs"]) < r[1]["usage"]["output_tokens"], part)
    refused("in the background", 400, None, create(input="x", background=True))
    refused("an unknown include", 400, None, create(input="x", include=["everything"]))


@case
def bounds():
    ids = [create(input=str(i))[1]["id"] for i in range(8)]
    check("the oldest are forgotten beyond --store-entries", [call("GET", f"/v1/responses/{i}")[0] for i in ids] == [404] * 2 + [200] * 6)
    ids = [chat(store=True)[1]["id"] for i in range(8)]
    check("chat completions count with them", ids_of() == ids[2:])


sys.exit(tap.end())
