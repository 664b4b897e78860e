"""What `lateen serve` may use and whom it lets in: memory under a limit, caches, bodies, keys, hosts, origins, TLS. Each with a server of its own.
Standard library only; TAP on stdout.

usage: serve_safe.py LATEEN MODEL [TOKENIZER]"""
import re
import resource
import sys

import serve_client
from serve_client import check

lateen, model = sys.argv[1:3]
command = [lateen, "serve", *serve_client.words_of(model, sys.argv[3] if len(sys.argv) > 3 else "")]


def Server(*flags, **how):
    return serve_client.Server(command, *flags, **how)


# ---- Memory ----
def pool_of(server):
    """(tokens, pages, page's tokens, MiB, why) as the log tells at the start."""
    found = re.search(r"keys and values of (\d+) tokens in (\d+) pages of (\d+), \S+ ([\d.]+) MiB \((.*?)\); ([\d.]+) MiB", server.said())
    return (*map(int, found.groups()[:3]), float(found[4]), found[5]) if found else (0, 0, 0, 0.0, "")


s = Server()
context, free = s.stats()["context"], pool_of(s)
check("the pool's size is told at the start", free[0] == free[1] * free[2] >= context and free[3] > 0, s.said())
s.end()
s = Server("--context", str(4 * context))
check(f"--context over the model's: pages for the {context} tokens that are served, and a line that says so",
      s.stats()["context"] == context and pool_of(s)[1] == free[1] and f"more than the model's {context}" in s.said(), (free, pool_of(s), s.said()))
s.end()
s = Server("--context", str(context // 4))
check("--context below the model's: as many fewer pages", s.stats()["context"] == context // 4 and abs(pool_of(s)[1] * 4 - free[1]) <= 4 * 256, (free, pool_of(s)))
s.end()
if "san" not in lateen:  # A sanitizer's shadow takes terabytes of addresses.
    least = (s_bytes := 2 << 30) // 2
    s = Server("--max-running", "4096", limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (s_bytes, s_bytes)))
    pool = pool_of(s)
    check(f"under ulimit -v the pool is at most half of what the limit leaves ({pool[3]:.0f} MiB)", 0 < pool[3] < least >> 20 and "RLIMIT_AS" in pool[4], s.said())
    check("and requests are served", s.post("/v1/completions", {"prompt": "Once", "max_tokens": 8})[0] == 200)
    s.end()


def cached_of(server, prompt, **fields):
    import json
    status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})
    return json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] if status == 200 else (status, body)


prompts = ["".join(chr(97 + (i * 7 + k * k * (i + 3)) % 26) + (" " if k % 5 == 4 else "") for k in range(120)) for i in range(8)]
s = Server("--max-running", "16")
page = s.stats()["page_tokens"]
first, again = [cached_of(s, p) for p in prompts], [cached_of(s, p) for p in prompts]
check("a prompt that comes again is found in the prefix cache", max(first) < page * 2 <= min(again), (first, again))
s.end()
page_bytes = int(free[3] * (1 << 20) / free[1])
s = Server("--max-running", "16", "--prefix-cache-bytes", str(6 * page_bytes))
again = [cached_of(s, p) for p in prompts * 2][len(prompts):]
stat = s.stats()
check("--prefix-cache-bytes: what nobody uses is kept up to that, the newest of it", 0 < stat["pages_cached"] <= 7 and max(again) < page * 2 and
      cached_of(s, prompts[-1]) >= page * 2, (stat["pages_cached"], again, page_bytes))
s.end()
serve_client.finish()
