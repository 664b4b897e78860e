"""/v1/messages by plain HTTP: the parts of an answer, whole and streamed; thinking that is shown, hidden and returned; edits of the context; forced tools;
threads; refusals. Values are worked out from other answers of the server: counts with and without a part, a thread against the whole conversation. serve_anthropic.py does the same with Anthropic's client, if it is installed. Standard library only; TAP on stdout.

usage: serve_messages.py PORT KEY OTHER_KEY
The server has both keys, and a chat template that writes <think> after the messages and shows earlier reasoning."""
import json
import sys
import urllib.error
import urllib.request

from tap import Tap

port, key, other = sys.argv[1:4]
tap = Tap()
check, case = tap.check, tap.case
SAY = [{"role": "user", "content": "Once upon a time"}]
FEW = {"type": "enabled", "budget_tokens": 6}


def post(path, body, who=None):
    headers = {"content-type": "application/json", "x-api-key": who or key}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers), timeout=120) as r:
            text = r.read().decode()
            return r.status, [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")] if body.get("stream") else json.loads(text)
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read().decode())


def create(who=None, **kw):
    return post("/v1/messages", {"max_tokens": 40, "messages": SAY, "temperature": 0, "thinking": FEW, **kw}, who)[1]


def count(**kw):
    return post("/v1/messages/count_tokens", {"messages": SAY, "thinking": FEW, **kw})[1]["input_tokens"]


def refused(name, status, kind, code=None, words="", who=None, **kw):
    got, a = post("/v1/messages", {"max_tokens": 8, "messages": SAY, "thinking": FEW, **kw}, who)
    error = a.get("error", {})
    check(name, got == status and a.get("type") == "error" and error.get("type") == kind and words in error.get("message", "")
          and (code is None or error.get("details", {}).get("error_code") == code), (got, a))


def read(m):
    return m["usage"]["input_tokens"] + m["usage"]["cache_read_input_tokens"]


@case
def plain():
    r = create()
    check("an answer: thinking with a signature, then text", [b["type"] for b in r["content"]] == ["thinking", "text"] and len(r["content"][0]["signature"]) > 40, r)
    check("usage and reason", r["usage"]["output_tokens"] == 40 and 0 < r["usage"]["output_tokens_details"]["thinking_tokens"] < 40 and r["stop_reason"] == "max_tokens"
          and r["stop_sequence"] is None, r)
    check("count_tokens is what is read", count() == read(r), (count(), r["usage"]))
    events = create(stream=True)
    kinds = [e["type"] + ":" + e.get("delta", {}).get("type", "") for e in events]
    order = [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]]
    check("streamed: the order of events", order == ["message_start:", "content_block_start:", "content_block_delta:thinking_delta", "content_block_delta:signature_delta",
          "content_block_stop:", "content_block_start:", "content_block_delta:text_delta", "content_block_stop:", "message_delta:", "message_stop:"], order)
    text = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
    thought = "".join(e["delta"].get("thinking", "") for e in events if e["type"] == "content_block_delta")
    check("streamed: the same texts, by the same indexes", (thought, text) == (r["content"][0]["thinking"], r["content"][1]["text"])
          and [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1]
          == [e["index"] for e in events if e["type"] == "content_block_stop"], (thought, text, r))
    check("streamed: usage and reason at the end", events[-2]["usage"]["output_tokens"] == 40 and events[-2]["delta"]["stop_reason"] == "max_tokens"
          and read(events[0]["message"]) == read(r), events[-2])
    stop = r["content"][1]["text"].strip()[3]
    for stops in (["\x01never", stop], [stop, "\x01never"]):
        s = create(stop_sequences=stops)
        check("the stop sequence that came", s["stop_reason"] == "stop_sequence" and s["stop_sequence"] == stop, (stop, s))
    check("its kind and role, whole and streamed", all(m["type"] == "message" and m["role"] == "assistant" and m["id"].startswith("msg_") for m in (r, events[0]["message"])), r)


@case
def thinking():
    r = create()
    hidden = create(thinking={**FEW, "display": "omitted"})["content"][0]
    check("display omitted: no text, a signature", hidden["thinking"] == "" and len(hidden["signature"]) > 40, hidden)
    check("display summarized: the thinking", create(thinking={**FEW, "display": "summarized"})["content"][0]["thinking"] == r["content"][0]["thinking"] != "")
    refused("another display", 400, "invalid_request_error", words="it may be summarized or omitted", thinking={**FEW, "display": "short"})
    begun = create(messages=[*SAY, {"role": "assistant", "content": r["content"][1]["text"][:9]}], thinking={"type": "disabled"}, max_tokens=4)
    told = count(messages=[*SAY, {"role": "assistant", "content": r["content"][1]["text"][:9]}, {"role": "user", "content": ""}])
    check("an answer that was begun continues: no turn and no mark after it", read(begun) < told and begun["content"][0]["type"] == "text", (begun, told))
    check("disabled: text alone", [b["type"] for b in create(thinking={"type": "disabled"})["content"]] == ["text"])

    def of(block):
        return count(messages=[*SAY, {"role": "assistant", "content": [block, {"type": "text", "text": "So."}]}, {"role": "user", "content": "?"}])
    shown, none = r["content"][0], {"type": "text", "text": ""}
    check("thinking that is given back is read", of(shown) == of({**shown, "signature": ""}) == of(hidden) > of(none), (of(shown), of(hidden), of(none)))
    check("another's is left out", of({**shown, "signature": "ErUBCkYIBxgCIkDTz"}) == of(none) == of({"type": "redacted_thinking", "data": "abc"}))
    turn = [*SAY, {"role": "assistant", "content": [shown, {"type": "text", "text": "So."}]}] * 3 + SAY
    edits = lambda *e: create(max_tokens=4, messages=turn, context_management={"edits": list(e)})
    check("no edit, none applied", edits()["context_management"]["applied_edits"] == [])
    check("and none is returned where none was requested", "context_management" not in r, r)
    for keep, cleared in (("all", 0), (3, 0), (2, 1), (1, 2)):
        value = keep if keep == "all" else {"type": "thinking_turns", "value": keep}
        a = edits({"type": "clear_thinking_20251015", "keep": value})
        done = a["context_management"]["applied_edits"]
        check(f"clear_thinking keeps {keep} of 3 turns", len(done) == (cleared > 0) and all(d["cleared_thinking_turns"] == cleared and
              d["cleared_input_tokens"] == cleared * (of(shown) - of(none)) for d in done) and read(a) == count(messages=turn) - cleared * (of(shown) - of(none)), a)
    refused("an edit that is not here", 400, "invalid_request_error", context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})


@case
def tools():
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"], "additionalProperties": False}
    asked = dict(max_tokens=200, tools=[{"name": "get_weather", "input_schema": schema}], tool_choice={"type": "tool", "name": "get_weather"})
    r = create(**asked)
    call = r["content"][-1]
    check("a forced tool", r["stop_reason"] == "tool_use" and call["type"] == "tool_use" and call["name"] == "get_weather" and set(call["input"]) == {"city"}, r)
    events = create(stream=True, **asked)
    pieces = "".join(e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta")
    check("streamed, the same input", json.loads(pieces) == call["input"] and events[-2]["delta"]["stop_reason"] == "tool_use", pieces)
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "Sunny"}]}
    back = [*SAY, {"role": "assistant", "content": r["content"]}, {"role": "user", "content": [result]}]
    check("the result goes back", create(tools=asked["tools"], messages=back)["usage"] and count(tools=asked["tools"], messages=back) > count(tools=asked["tools"]))
    check("a tool counts", count(tools=asked["tools"]) > count())
    twice = [*asked["tools"], {"name": "other", "input_schema": schema}, *asked["tools"]]
    words = "'tools[0]' and 'tools[2]' have the same name, get_weather"
    refused("two tools of one name", 400, "invalid_request_error", words=words, tools=twice)
    status, a = post("/v1/messages/count_tokens", {"messages": SAY, "tools": twice})
    check("which are not counted either", status == 400 and words in a["error"]["message"], a)
    refused("tools of the vendor's", 400, "invalid_request_error", tools=[{"type": "web_search_20250305", "name": "web_search"}])


@case
def threads():
    one = create(system="Be kind.", max_tokens=24, thread={"type": "create"})
    more = {"type": "continue", "previous_message_id": one["id"]}
    asked = [{"role": "user", "content": "And then?"}]
    two = create(max_tokens=24, messages=asked, thread=more)
    whole = create(max_tokens=24, system="Be kind.", messages=[*SAY, {"role": "assistant", "content": one["content"]}, *asked])
    check("a thread reads what the whole conversation reads", read(two) == read(whole) > read(one) and two["content"][-1] == whole["content"][-1], (two, whole))
    refused("a thread that is not there", 404, "not_found_error", "thread_not_found", thread={"type": "continue", "previous_message_id": "msg_none"})
    refused("a thread keeps its system", 400, "invalid_request_error", system="x", messages=asked, thread=more)
    refused("another key", 404, "not_found_error", "thread_not_found", who=other, messages=asked, thread=more)


@case
def errors():
    refused("a wrong key", 401, "authentication_error", who="x")
    refused("another model", 404, "not_found_error", model="claude-x")
    refused("no messages", 400, "invalid_request_error", messages=[])
    refused("an image", 400, "invalid_request_error", messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}])
    refused("a prompt that is too long, in the words that agents know", 400, "invalid_request_error", words="prompt is too long", messages=[{"role": "user", "content": "word " * 3000}])
    got, a = post("/v1/messages", {"messages": SAY})
    check("max_tokens is missing", got == 400 and "'max_tokens' is missing" in a["error"]["message"], a)
    refused("thinking without end", 400, "invalid_request_error", max_tokens=4, thinking={"type": "enabled", "budget_tokens": -2})


sys.exit(tap.end())
