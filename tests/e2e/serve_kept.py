"""Prompts that requests ask to keep in the prefix cache: Anthropic's cache_control, OpenAI's prompt_cache_retention. TAP on stdout.

usage: serve_kept.py BASE_URL
The server is stories260K with a cache of 40 pages, each of 16 tokens."""
import json
import sys

from serve_http import send
from tap import Tap

base = sys.argv[1]
tap = Tap()
check = tap.check
words = "girl boy dog cat tree house sun moon park ball hat bird frog fish cake book door lake hill star".split()


def post(path, **body):
    status, answer = send(base + path, body)
    return status, json.loads(answer)


def text(i):
    return " ".join(words[(i + k * k) % len(words)] for k in range(60))


def message(i, control=None, **more):
    block = {"type": "text", "text": text(i), **({"cache_control": control} if control else {})}
    return post("/v1/messages", max_tokens=1, model="stories260K", messages=[{"role": "user", "content": [block]}], **more)


def chat(i, **more):
    return post("/v1/chat/completions", max_tokens=1, messages=[{"role": "user", "content": text(i)}], **more)


def others():
    for i in range(100, 120):
        post("/v1/completions", prompt=text(i), max_tokens=1)


marked, plain, day = {"type": "ephemeral", "ttl": "1h"}, None, {"prompt_cache_retention": "24h"}
message(1, marked)
message(2, plain)
chat(3, **day)
chat(4, prompt_cache_retention="in-memory")
others()
check("a marked prompt is still there", message(1, marked)[1]["usage"]["cache_read_input_tokens"] > 32, message(1)[1])
check("one that was not marked is gone", message(2, plain)[1]["usage"]["cache_read_input_tokens"] == 0)
check("prompt_cache_retention 24h keeps a prompt", chat(3)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 32)
check("in-memory does not", chat(4)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0)
message(5, cache_control={"type": "ephemeral"})
others()
check("cache_control of the whole request", message(5)[1]["usage"]["cache_read_input_tokens"] > 0)
for name, control in ("type", {"type": "forever"}), ("ttl", {"type": "ephemeral", "ttl": "2h"}), ("form", "ephemeral"):
    status, r = message(1, control)
    check(f"a wrong {name} is refused", status == 400 and "cache_control" in r["error"]["message"], r)
status, r = chat(1, prompt_cache_retention="1h")
check("and another retention", status == 400 and "24h" in r["error"]["message"], r)
check("null means none", message(1, cache_control=None)[0] == 200 == chat(1, prompt_cache_retention=None)[0])
sys.exit(tap.end())
