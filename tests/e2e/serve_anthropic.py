"""Drive /v1/messages with Anthropic's own Python client: whole answers, streams, threads, the tool runner, thinking, errors. TAP on stdout.

usage: serve_anthropic.py BASE_URL MODEL_NAME KEY
The model is stories260K or one as small, with a chat template that opens the reasoning; the test checks the protocol."""
import json
import sys

import anthropic
from anthropic import beta_tool
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter
from tap import Tap

base, model, key = sys.argv[1:4]
client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0)
tap = Tap()
check, case = tap.check, tap.case


def strict(kind, text):
    """The client accepts any fields; its types say which are required."""
    try:
        TypeAdapter(kind).validate_json(text)
        return True
    except Exception as e:
        check("fields of an answer", False, str(e)[-800:])


say = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"temperature": 0}  # The client no longer has such an argument.
few = {"type": "enabled", "budget_tokens": 6}


def create(**kw):
    return client.messages.create(**{"model": model, "max_tokens": 40, "messages": say, "extra_body": GREEDY, "thinking": few, **kw})


def lines(**kw):
    """The events of a stream, in order."""
    body = {"model": model, "max_tokens": 40, "messages": say, "extra_body": GREEDY, "thinking": few, "stream": True, **kw}
    with client.messages.with_streaming_response.create(**body) as r:
        return [json.loads(x[6:]) for x in r.iter_lines() if x.startswith("data: ")]


def refused(name, kind, error_type, call, code=None):
    try:
        call()
        check(name, False, "was not refused")
    except anthropic.APIStatusError as e:
        error = e.body["error"]
        check(name, isinstance(e, kind) and error["type"] == error_type and error["message"] and e.body["type"] == "error"
              and e.body["request_id"] == e.request_id and (code is None or error["details"]["error_code"] == code), (type(e), e.body))


@case
def plain():
    raw = client.messages.with_raw_response.create(model=model, max_tokens=40, messages=say, extra_body=GREEDY, thinking=few)
    r = raw.parse()
    strict(Message, raw.http_response.text)
    strict(BetaMessage, raw.http_response.text)
    check("message: thinking, then text", [b.type for b in r.content] == ["thinking", "text"] and r.content[0].signature, r)
    check("message: usage", r.usage.output_tokens == 40 and 0 < r.usage.output_tokens_details.thinking_tokens < 40 and r.stop_reason == "max_tokens", r)
    events = lines()
    for e in events:
        strict(RawMessageStreamEvent, json.dumps(e))
        strict(BetaRawMessageStreamEvent, json.dumps(e))
    with client.messages.stream(model=model, max_tokens=40, messages=say, extra_body=GREEDY, thinking=few) as s:
        final = s.get_final_message()
    check("stream: the same as whole", [(b.type, getattr(b, "text", None) or b.thinking) for b in final.content] ==
          [(b.type, getattr(b, "text", None) or b.thinking) for b in r.content], (final.content, r.content))
    check("stream: usage and reason", final.usage.output_tokens == 40 and final.stop_reason == r.stop_reason, final)
    kinds = [e["type"] + ":" + e.get("delta", {}).get("type", "") for e in events]
    order = [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]]
    check("stream: order of events", order == ["message_start:", "content_block_start:", "content_block_delta:thinking_delta", "content_block_delta:signature_delta",
          "content_block_stop:", "content_block_start:", "content_block_delta:text_delta", "content_block_stop:", "message_delta:", "message_stop:"], order)
    check("count_tokens equals usage", client.messages.count_tokens(model=model, messages=say, thinking=few).input_tokens ==
          r.usage.input_tokens + r.usage.cache_read_input_tokens)
    cached = [{"role": "user", "content": [{"type": "text", "text": "Once upon a time", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]
    check("cache_control changes nothing", create(messages=cached, cache_control={"type": "ephemeral"}).content[1].text == r.content[1].text)
    check("stop sequences", create(stop_sequences=["a"]).stop_reason == "stop_sequence")
    listed = client.models.list()
    check("models", [m.id for m in listed] == [model] and listed.data[0].display_name and listed.data[0].created_at.year > 2000)


@case
def thinking():
    r = create()
    hidden = create(thinking=dict(few, display="omitted"))
    check("display omitted: no text, a signature", hidden.content[0].thinking == "" and len(hidden.content[0].signature) > 40, hidden)
    check("display omitted, streamed", not [e for e in lines(thinking=dict(few, display="omitted")) if e.get("delta", {}).get("type") == "thinking_delta"])

    def count_of(block):
        return client.messages.count_tokens(model=model, thinking=few, messages=[*say, {"role": "assistant", "content": [block, {"type": "text", "text": "So."}]},
                                                                                  {"role": "user", "content": "?"}]).input_tokens
    shown, none = r.content[0].to_dict(), {"type": "text", "text": ""}
    check("thinking given back is read", count_of(shown) == count_of(dict(shown, signature="")) > count_of(none), (count_of(shown), count_of(none)))
    check("by its signature, too", count_of(hidden.content[0].to_dict()) == count_of(shown))
    check("what was changed is read as it was signed", count_of(dict(shown, thinking="x" * 200)) == count_of(shown))
    check("another's is left out", count_of(dict(shown, signature="ErUBCkYIBxgCIkDTz")) == count_of(none) == count_of({"type": "redacted_thinking", "data": "abc"}))
    check("disabled", [b.type for b in create(thinking={"type": "disabled"}).content] == ["text"])
    turn = [*say, {"role": "assistant", "content": [shown, {"type": "text", "text": "So."}]}] * 3 + say
    edits = lambda *e: client.beta.messages.create(model=model, max_tokens=8, messages=turn, thinking=few, context_management={"edits": list(e)})
    check("an empty context_management", edits().context_management.applied_edits == [])
    check("clear_thinking keeps all", edits({"type": "clear_thinking_20251015", "keep": "all"}).context_management.applied_edits == [])
    done = edits({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}).context_management.applied_edits[0]
    check("clear_thinking", done.cleared_thinking_turns == 2 and done.cleared_input_tokens == 2 * (count_of(shown) - count_of(none)), done)
    refused("an edit that is not here", anthropic.BadRequestError, "invalid_request_error", lambda: edits({"type": "clear_tool_uses_20250919"}))


@beta_tool
def get_weather(today: bool) -> str:
    """The weather.

    Args:
        today: or tomorrow
    """
    return f"Sunny: {today}"


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"], "additionalProperties": False}


@case
def tools():
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    r = create(max_tokens=200, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"})
    call = r.content[-1]
    check("a forced tool", r.stop_reason == "tool_use" and call.type == "tool_use" and set(call.input) == {"city"}, r)
    events = lines(max_tokens=200, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"})
    pieces = "".join(e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta")
    check("streamed, the same input", json.loads(pieces) == call.input, pieces)
    back = create(tools=[tool], messages=[*say, {"role": "assistant", "content": r.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny"}]}]}])
    check("the result goes back with the thinking", back.usage.input_tokens + back.usage.cache_read_input_tokens > r.usage.input_tokens, back.usage)
    form = create(max_tokens=200, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    check("a forced tool beside a format", form.content[-1].type == "tool_use", form)

    class Place(BaseModel):
        n: bool
    parsed = client.messages.parse(model=model, max_tokens=200, messages=say, thinking=few, output_format=Place)
    check("parse: a pydantic model", isinstance(parsed.parsed_output, Place), parsed)


@case
def runner():
    """The runner keeps its conversation on the server unless told not to; forced calls never end,
    so the number of turns is bounded."""
    for name, kw in (("on a thread", {}), ("without a thread", {"thread": False})):
        answers = list(client.beta.messages.tool_runner(model=model, max_tokens=150, extra_body=GREEDY, tools=[get_weather], messages=say, thinking=few, max_iterations=2,
                                                        tool_choice={"type": "any", "disable_parallel_tool_use": True}, **kw))
        uses = [b for a in answers for b in a.content if b.type == "tool_use"]
        check(f"the tool runner {name}", len(answers) == 2 and len(uses) == 2 and all(u.name == "get_weather" for u in uses), answers)
        tokens = [a.usage.input_tokens + a.usage.cache_read_input_tokens for a in answers]
        check(f"{name} the second turn reads the first", tokens[1] > tokens[0], tokens)
    streams = 0
    for stream in client.beta.messages.tool_runner(model=model, max_tokens=150, extra_body=GREEDY, tools=[get_weather], messages=say, thinking=few, max_iterations=2, stream=True,
                                                   tool_choice={"type": "any", "disable_parallel_tool_use": True}):
        last = stream.get_final_message()
        streams += last.stop_reason == "tool_use"
    check("the tool runner, streamed", streams == 2, last)


@case
def threads():
    beta = dict(model=model, max_tokens=24, extra_body=GREEDY, thinking=few)
    one = client.beta.messages.create(messages=say, system="Be kind.", thread={"type": "create"}, **beta)
    more = {"type": "continue", "previous_message_id": one.id}
    two = client.beta.messages.create(messages=[{"role": "user", "content": "And then?"}], thread=more, **beta)
    whole = client.beta.messages.create(messages=[*say, {"role": "assistant", "content": one.content}, {"role": "user", "content": "And then?"}], system="Be kind.", **beta)
    read = lambda m: m.usage.input_tokens + m.usage.cache_read_input_tokens
    check("a thread reads what the whole conversation reads", read(two) == read(whole) > read(one) and two.content[-1].text == whole.content[-1].text, (two, whole))
    refused("a thread that is not there", anthropic.NotFoundError, "not_found_error", lambda: client.beta.messages.create(
        messages=say, thread={"type": "continue", "previous_message_id": "msg_none"}, **beta), "thread_not_found")
    refused("a thread keeps its system", anthropic.BadRequestError, "invalid_request_error", lambda: client.beta.messages.create(messages=say, system="x", thread=more, **beta))
    other = anthropic.Anthropic(base_url=base, api_key=key + "-other", max_retries=0)
    refused("another key", anthropic.NotFoundError, "not_found_error", lambda: other.beta.messages.create(messages=say, thread=more, **beta), "thread_not_found")


@case
def errors():
    refused("a wrong key", anthropic.AuthenticationError, "authentication_error", lambda: anthropic.Anthropic(base_url=base, api_key="x", max_retries=0).messages.create(
        model=model, max_tokens=1, messages=say))
    refused("another model", anthropic.NotFoundError, "not_found_error", lambda: create(model="claude-x"))
    refused("no messages", anthropic.BadRequestError, "invalid_request_error", lambda: create(messages=[]))
    refused("an image", anthropic.BadRequestError, "invalid_request_error", lambda: create(messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}]))
    try:
        create(messages=[{"role": "user", "content": "word " * 3000}])
    except anthropic.BadRequestError as e:
        check("a prompt that is too long, in the words that agents know", "prompt is too long" in e.body["error"]["message"], e.body)
    r = create(messages=[{"role": "user", "content": "word " * 100}], max_tokens=500, thinking={"type": "disabled"})
    check("the context's end is not max_tokens'", r.stop_reason in ("model_context_window_exceeded", "end_turn"), r.stop_reason)
    refused("tools of the vendor's", anthropic.BadRequestError, "invalid_request_error", lambda: create(tools=[{"type": "web_search_20250305", "name": "web_search"}]))


sys.exit(tap.end())
