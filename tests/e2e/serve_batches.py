"""Files and batches: uploads, lists, every line answered exactly once across kill -9 and restarts, bad lines by number, cancelling, expiry, owners and limits, and the latency of an interactive request while a batch runs. TAP on stdout. Starts servers of its own.

usage: serve_batches.py LATEEN MODEL [TOKENIZER]
With the module openai, also its Python client, unchanged."""
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time

from serve_client import Server, call, check, exchange, finish, form, scratch, tap, upload, words_of

lateen, model = sys.argv[1], sys.argv[2]
command = [lateen, "serve", *words_of(model, sys.argv[3] if len(sys.argv) > 3 else None)]
state = os.path.join(scratch, "state")


def start(*flags, folder=state):
    return Server(command, "--quiet", "--state", folder, *flags)


def line(i, n=8, url="/v1/chat/completions", **more):
    body = {"/v1/chat/completions": {"messages": [{"role": "user", "content": f"Number {i}"}], "max_tokens": n},
            "/v1/completions": {"prompt": f"Number {i}", "max_tokens": n}, "/v1/embeddings": {"input": f"Number {i}"}}[url]
    return json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": {**body, **more}})


def create(s, file_id, url="/v1/chat/completions", window="24h", key="one", **more):
    return call(s, "POST", "/v1/batches", {"input_file_id": file_id, "endpoint": url, "completion_window": window, **more}, key)


def wait(s, batch_id, seconds=60, until=("completed", "failed", "expired", "cancelled")):
    end = time.time() + seconds
    while time.time() < end:
        b = call(s, "GET", f"/v1/batches/{batch_id}")[1]
        if b["status"] in until:
            return b
        time.sleep(0.05)
    return b


def results(s, b):
    rows = []
    for which in ("output_file_id", "error_file_id"):
        text = exchange(s, "GET", f"/v1/files/{b[which]}/content")[1].decode() if b[which] else ""
        rows.append([json.loads(row) for row in text.splitlines()])
    return rows


def running(s):
    return json.loads(exchange(s, "GET", "/status.json")[1])["running"]


@tap.case
def files():
    s = start("--api-key", "one,two", "--files", "3", "--files-bytes", "5000")
    status, f = upload(s, b'{"a": 1}\n')
    check("an upload is kept", status == 200 and f["object"] == "file" and f["bytes"] == 9 and f["filename"] == "in.jsonl" and f["purpose"] == "batch", f)
    check("its content is what was sent", exchange(s, "GET", f"/v1/files/{f['id']}/content") == (200, b'{"a": 1}\n'))
    head = s.ask(f"HEAD /v1/files/{f['id']}/content HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer one\r\n\r\n".encode())
    check("HEAD has no body", head == (200, b""), head)
    check("it is described", call(s, "GET", f"/v1/files/{f['id']}") == (200, f))
    check("another key does not find it", call(s, "GET", f"/v1/files/{f['id']}", key="two")[0] == 404 and call(s, "DELETE", f"/v1/files/{f['id']}", key="two")[0] == 404)
    said = [call(s, m, p)[1]["error"]["message"] for m, p in (("GET", "/v1/files/file-none/content"), ("GET", "/v1/files/file-none"), ("POST", "/v1/batches/batch_none/cancel"))]
    check("what is not there is named by its id alone", said == ["No such File object: file-none"] * 2 + ["No batch found with id 'batch_none'."], said)
    check("nor reads it, nor lists it", call(s, "GET", f"/v1/files/{f['id']}/content", key="two")[0] == 404 and call(s, "GET", "/v1/files", key="two")[1]["data"] == [])
    g = upload(s, b"x" * 300000)
    check("a file over the bytes of a key is refused, with the numbers", g[0] == 400 and "300000" in g[1]["error"]["message"], g)
    ids = [f["id"]] + [upload(s, b"y")[1]["id"] for _ in range(2)]
    check("so is one over their count", upload(s, b"y")[0] == 400)
    page = call(s, "GET", "/v1/files?order=asc&limit=2")[1]
    check("lists come in pages", [x["id"] for x in page["data"]] == ids[:2] and page["has_more"] and
          [x["id"] for x in call(s, "GET", f"/v1/files?order=asc&after={ids[1]}")[1]["data"]] == ids[2:], page)
    for path in ("files", "batches"):
        lost = call(s, "GET", f"/v1/{path}?after=nobody")
        check(f"{path}: a page behind an id that is not in the list", lost[0] == 404 and lost[1]["error"]["param"] == "after" and "nobody" in lost[1]["error"]["message"], lost)
    check("files: another key's id is not in the list", call(s, "GET", f"/v1/files?after={ids[1]}", key="two")[0] == 404)
    s.p.kill()
    s.p.wait()
    os.remove(os.path.join(state, "files", ids[1] + ".json"))  # An upload that a crash cut off.
    s = start("--api-key", "one,two")
    check("files outlive kill -9; one without a description does not exist", [x["id"] for x in call(s, "GET", "/v1/files?order=asc")[1]["data"]] == [ids[0], ids[2]])
    check("a file is deleted", call(s, "DELETE", f"/v1/files/{ids[2]}")[1] == {"id": ids[2], "object": "file", "deleted": True} and
          call(s, "GET", f"/v1/files/{ids[2]}")[0] == 404)
    for name, parts in (("no file", {"purpose": b"batch"}), ("no purpose", {"file": b"x"}), ("another purpose", {"purpose": b"assistants", "file": b"x"}),
                        ("an unknown field", {"purpose": b"batch", "file": b"x", "colour": b"red"}),
                        ("a time that is too short", {"purpose": b"batch", "file": b"x", "expires_after[anchor]": b"created_at", "expires_after[seconds]": b"5"})):
        status, text = exchange(s, "POST", "/v1/files", form(parts), kind="multipart/form-data; boundary=b0undary")
        check(f"{name}: refused by name", status == 400 and json.loads(text)["error"]["message"], text)
    check("what is not a form", exchange(s, "POST", "/v1/files", b"{}")[0] == 400)
    check("an id is not a path", call(s, "GET", "/v1/files/..%2Fbatches")[0] == 404 and call(s, "GET", "/v1/files/../lock")[0] == 404)
    second = Server(command, "--quiet", "--state", state, ready=False)
    check("a second server does not write to the same folder", second.p.wait(10) == 1)
    s.end()
    s = Server(command, "--quiet")
    check("without --state, files and batches are refused by name", call(s, "GET", "/v1/files")[0] == 501 and "--state" in create(s, "file-x")[1]["error"]["message"])
    for flags, needs in ((("--batches", "3"), "--state"), (("--files-bytes", "5GiB"), "--state"), (("--fine-tuning-rank", "4"), "--fine-tuning"), (("--draft-tokens", "3"), "--speculate"),
                         (("--no-prefix-cache", "--prefix-cache-by-key"), "--prefix-cache"), (("--store-s", "5", "--store-entries", "0"), "--store-entries")):
        r = subprocess.run([*command, "--quiet", *flags], capture_output=True, text=True, timeout=60)
        check(f"{' '.join(flags)}: no effect, refused", r.returncode == 2 and f"has no effect without {needs}" in r.stderr, r.stderr)
    status, _ = s.ask(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 0\r\n\r\n")
    check("a form that any page may send is refused where there is no key", status == 415, status)
    s.end()


@tap.case
def endpoints():
    s = start("--api-key", "one,two")
    for url in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
        f = upload(s, "\n".join(line(i, url=url) for i in range(20)).encode())[1]
        status, b = create(s, f["id"], url, metadata={"k": "v"})
        check(f"{url}: a batch begins", status == 200 and b["object"] == "batch" and b["status"] == "validating" and b["metadata"] == {"k": "v"}
              and b["expires_at"] - b["created_at"] == 86400, b)
        b = wait(s, b["id"])
        good, bad = results(s, b)
        check(f"{url}: every line is answered once", b["status"] == "completed" and b["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
              and sorted(r["custom_id"] for r in good) == sorted(f"r{i}" for i in range(20)) and not bad and b["error_file_id"] is None, b)
        check(f"{url}: answers are those of the endpoint", all(r["response"]["status_code"] == 200 and r["error"] is None and r["response"]["request_id"]
              and (r["response"]["body"].get("choices") or r["response"]["body"]["data"]) for r in good), good[:1])
    other = create(s, f["id"], key="two")
    check("the file of another key is no input", other[0] == 400, other)
    check("its batch is not found", call(s, "GET", f"/v1/batches/{b['id']}", key="two")[0] == 404 and call(s, "GET", "/v1/batches", key="two")[1]["data"] == [])
    page = call(s, "GET", "/v1/batches?limit=2")[1]
    check("batches are listed, the newest first", page["data"][0]["id"] == b["id"] and page["has_more"] and len(page["data"]) == 2, page)
    for name, answer in (("endpoint", create(s, f["id"], "/v1/responses")), ("window", create(s, f["id"], window="soon")), ("file", create(s, "file-none"))):
        check(f"a wrong {name} is refused", answer[0] == 400 and answer[1]["error"]["param"], answer)
    metrics = s.get("/metrics")[1].decode()
    metrics = s.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer one\r\n\r\n")[1].decode()
    check("/metrics counts them", 'lateen_batch_requests_total{result="completed"} 60' in metrics and "lateen_batches_unfinished 0" in metrics)
    check("and keeps them out of the times that clients wait", "vllm:time_to_first_token_seconds_count" in metrics
          and any(m.startswith("vllm:time_to_first_token_seconds_count") and m.endswith(" 0") for m in metrics.splitlines()))
    s.end()


@tap.case
def bad_lines():
    s = start("--api-key", "one")
    lines = [line(0), "{not json", "", line(1, url="/v1/completions"), json.dumps({"custom_id": "x", "method": "GET", "url": "/v1/chat/completions", "body": {}}),
             line(0), json.dumps({"method": "POST", "url": "/v1/chat/completions", "body": {}}), line(2, temperature=-3), line(3, stream=True),
             json.dumps({**json.loads(line(4)), "colour": 1}), "[]", line(5)]
    b = create(s, upload(s, "\n".join(lines).encode("utf-8-sig"))[1]["id"])[1]
    b = wait(s, b["id"])
    good, bad = results(s, b)
    codes = {r["error"]["line"]: (r["custom_id"], r["error"]["code"]) for r in bad if r["error"]}
    check("lines that are not requests go to the errors with their number", codes == {
        2: (None, "invalid_json_line"), 4: ("r1", "mismatched_url"), 5: ("x", "invalid_method"), 6: ("r0", "duplicate_custom_id"),
        7: (None, "missing_custom_id"), 9: ("r3", "invalid_body"), 10: ("r4", "unknown_member"), 11: (None, "invalid_json_line")}, codes)
    refused = [r for r in bad if r["response"]]
    check("a request that its endpoint refuses keeps the endpoint's answer", len(refused) == 1 and refused[0]["custom_id"] == "r2"
          and refused[0]["response"]["status_code"] == 400 and "temperature" in refused[0]["response"]["body"]["error"]["message"], refused)
    check("the others are answered", sorted(r["custom_id"] for r in good) == ["r0", "r5"] and b["request_counts"] == {"total": 11, "completed": 2, "failed": 9}, b)
    check("errors name the batch's lines", all(r["id"] == f"batch_req_{b['id'][6:]}_{r['error']['line']}" for r in bad if r["error"]))
    empty = wait(s, create(s, upload(s, b"\n\n")[1]["id"])[1]["id"])
    check("an input without a line: failed, with the reason", empty["status"] == "failed" and empty["errors"]["data"][0]["message"], empty)
    s.end()


@tap.case
def killed():
    """kill -9 at random moments; with an incomplete line in the results, as a crash of the
    machine leaves it."""
    n, kills, seen = 400, 0, 0
    s = start("--api-key", "one", "--max-running", "16")
    f = upload(s, "\n".join([line(i, 24) for i in range(n)] + ["{bad"]).encode())[1]
    b = create(s, f["id"])[1]
    check("the input of a running batch cannot be deleted", call(s, "DELETE", f"/v1/files/{f['id']}")[0] == 400)
    while kills < 4:
        until, end = seen + random.randrange(1, 60), time.time() + 20
        while time.time() < end and call(s, "GET", f"/v1/batches/{b['id']}")[1]["request_counts"]["completed"] < until:
            time.sleep(0.002)
        s.p.kill()
        s.p.wait()
        kills += 1
        path = os.path.join(state, "files", f"file-{b['id']}-output")
        with open(path, "ab") as out:
            out.write(b'{"id":"batch_req_')
        s = start("--api-key", "one", "--max-running", "16")
        at = call(s, "GET", f"/v1/batches/{b['id']}")[1]
        check(f"after kill {kills}: {at['request_counts']['completed']} answers are kept", at["status"] in ("validating", "in_progress") and
              at["request_counts"]["completed"] > seen, at)
        seen = at["request_counts"]["completed"]
    b = wait(s, b["id"], 120)
    good, bad = results(s, b)
    ids = [r["custom_id"] for r in good]
    check("every line is answered exactly once", b["status"] == "completed" and len(ids) == n and len(set(ids)) == n and
          [r["error"]["line"] for r in bad] == [n + 1] and b["request_counts"] == {"total": n + 1, "completed": n, "failed": 1}, (b, len(ids), len(set(ids))))
    s.p.send_signal(signal.SIGTERM)
    check("SIGTERM ends it cleanly", s.p.wait(20) == 0)
    s = start("--api-key", "one")
    check("a batch that has ended is as it was", call(s, "GET", f"/v1/batches/{b['id']}")[1] == b and results(s, b) == [good, bad])
    s.end()
    path = os.path.join(state, "batches", b["id"] + ".json")
    old = json.load(open(path))
    old["batch"]["completed_at"] -= 31 * 86400
    json.dump(old, open(path, "w"))
    s = start("--api-key", "one")
    check("30 days later it is forgotten, and its results are not", call(s, "GET", f"/v1/batches/{b['id']}")[0] == 404 and results(s, b) == [good, bad])
    s.end()


@tap.case
def ends():
    s = start("--api-key", "one", "--batches", "2", "--batch-lines", "3000", "--max-running", "16")
    data = "\n".join(line(i, 100, temperature=1) for i in range(3000)).encode()
    f = upload(s, data)[1]
    b = create(s, f["id"])[1]
    wait(s, b["id"], until=("in_progress",))
    status, c = call(s, "POST", f"/v1/batches/{b['id']}/cancel")
    check("a batch is cancelled", status == 200 and c["status"] in ("cancelling", "finalizing"), c)
    c = wait(s, b["id"])
    good, bad = results(s, c)
    check("its other lines are reported as such, each line once", c["status"] == "cancelled" and len(good) + len(bad) == 3000 and c["request_counts"]["total"] == 3000
          and len({r["custom_id"] for r in good + bad}) == 3000 and {r["error"]["code"] for r in bad} == {"batch_cancelled"}, c)
    check("it cannot be cancelled again", call(s, "POST", f"/v1/batches/{b['id']}/cancel")[0] == 400)
    b = create(s, f["id"], window="1s")[1]
    e = wait(s, b["id"], 20)
    good, bad = results(s, e)
    check("a batch expires, and reports its other lines as expired", e["status"] == "expired" and len(good) + len(bad) == 3000 and
          {r["error"]["code"] for r in bad} == {"batch_expired"}, e)
    check("a batch with more lines than allowed is refused with the numbers", "3001" in create(s, upload(s, data + b"\n{}")[1]["id"])[1]["error"]["message"])
    first = [create(s, f["id"])[1] for _ in range(3)]
    check("the number of a key's running batches is bounded", [x.get("status") for x in first] == ["validating", "validating", None] and first[2]["error"]["code"] == "batch_limit", first[2])
    end = time.time() + 20
    while time.time() < end and not all(call(s, "GET", f"/v1/batches/{x['id']}")[1]["request_counts"]["completed"] > 0 for x in first[:2]):
        time.sleep(0.05)
    check("two batches take turns", all(call(s, "GET", f"/v1/batches/{x['id']}")[1]["request_counts"]["completed"] > 0 for x in first[:2]))
    s.end()


@tap.case
def latency():
    """The text of one interactive request takes as long beside a batch that fills all places as
    alone. In steps with 31 others it would take about 30 times as long (--batch-tokens 1000),
    so the bound is generous enough for a busy machine."""
    s = start("--api-key", "one", "--max-running", "32")

    def ask():
        begin = time.perf_counter()
        status, answer = call(s, "POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 96, "ignore_eos": True, "temperature": 0})
        check_ok.append(status == 200 and answer["usage"]["completion_tokens"] == 96)
        return time.perf_counter() - begin
    check_ok = []
    alone = sorted(ask() for _ in range(9))
    b = create(s, upload(s, "\n".join(line(i, 200, ignore_eos=True) for i in range(3000)).encode())[1]["id"])[1]
    end = time.time() + 20
    while time.time() < end and running(s) < 32:
        time.sleep(0.01)
    full = running(s)
    beside = sorted(ask() for _ in range(9))
    b = call(s, "GET", f"/v1/batches/{b['id']}")[1]
    check("a batch takes all places that are free", full == 32, full)
    check("a request that someone waits for is not slower beside it", all(check_ok) and beside[4] < 5 * alone[4] + 0.1,
          f"median alone {alone[4]:.4f} s, beside a batch {beside[4]:.4f} s")
    print(f"# median of 9: alone {alone[4] * 1e3:.1f} ms, beside a batch {beside[4] * 1e3:.1f} ms", flush=True)
    check("the batch ran meanwhile", b["status"] == "in_progress" and b["request_counts"]["completed"] < 3000, b)
    s.end()


@tap.case
def full_disk():
    """No result can be written, as on a full disk: each file is at most 48 KiB, until the limit
    is raised."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (48 << 10, resource.RLIM_INFINITY))
    s = Server(command, "--quiet", "--state", os.path.join(scratch, "full"), limit=limit)
    n = 250
    f = upload(s, "\n".join(line(i, 2, "/v1/completions") for i in range(n)).encode())[1]
    b = create(s, f["id"], "/v1/completions")[1]
    end = time.time() + 20
    while time.time() < end and "cannot be kept" not in s.said():
        time.sleep(0.05)
    kept = call(s, "GET", f"/v1/batches/{b['id']}")[1]["request_counts"]["completed"]
    check("results that cannot be written stop a batch on its way", 0 < kept < n and "in 1 s" in s.said(), (kept, s.said()))
    time.sleep(4)
    said = [row for row in s.said().splitlines() if b["id"] in row]
    check("it is reported once for each attempt, and attempts become rare: after 1, 2 and 4 s", 2 <= len(said) <= 3 and "in 2 s" in said[1], said)
    check("the server answers others meanwhile", call(s, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200)
    resource.prlimit(s.p.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    b = wait(s, b["id"], 20)
    rows = results(s, b)[0]
    check("when there is room it ends, with each line once", b["status"] == "completed" and sorted(r["custom_id"] for r in rows) == sorted(f"r{i}" for i in range(n)), b)
    s.end()


@tap.case
def client():
    try:
        import openai
    except ImportError:
        tap.skip("OpenAI's client", "python3 has no openai")
        return
    s = start()
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none")
    f = c.files.create(file=("in.jsonl", io.BytesIO("\n".join(line(i) for i in range(5)).encode())), purpose="batch",
                       expires_after={"anchor": "created_at", "seconds": 3600})
    check("client: files.create, retrieve, list", c.files.retrieve(f.id) == f and f.id in [x.id for x in c.files.list(purpose="batch")]
          and f.expires_at - f.created_at == 3600, f)
    check("client: files.content", c.files.content(f.id).text.count("\n") == 4)
    b = c.batches.create(input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"})
    end = time.time() + 30
    while time.time() < end and c.batches.retrieve(b.id).status != "completed":
        time.sleep(0.05)
    b = c.batches.retrieve(b.id)
    rows = [json.loads(row) for row in c.files.content(b.output_file_id).text.splitlines()]
    check("client: batches.create, retrieve, content", b.request_counts.completed == 5 and sorted(r["custom_id"] for r in rows) == [f"r{i}" for i in range(5)], b)
    check("client: batches.list", b.id in [x.id for x in c.batches.list()])
    slow = c.files.create(file=("in.jsonl", "\n".join(line(i, 400) for i in range(2000)).encode()), purpose="batch")
    x = c.batches.cancel(c.batches.create(input_file_id=slow.id, endpoint="/v1/chat/completions", completion_window="24h").id)
    check("client: batches.cancel", x.status in ("cancelling", "finalizing", "cancelled"), x)
    check("client: files.delete", c.files.delete(f.id).deleted)
    s.end()


finish()
