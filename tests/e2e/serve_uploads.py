"""Uploads in parts: parts in any order and several at once become the file that the client names, with its MD5; what does not match is refused and may be corrected; uploads that have ended accept no part; limits, owners, expiry, restarts; no part is left on disk. TAP on stdout. Starts servers of its own.

usage: serve_uploads.py LATEEN MODEL [TOKENIZER]
With the module openai, also its Python client, unchanged."""
import hashlib
import io
import json
import os
import random
import sys
import threading
import time

from serve_client import Server, call, check, exchange, finish, form, scratch, tap, upload, words_of

lateen, model = sys.argv[1], sys.argv[2]
command = [lateen, "serve", *words_of(model, sys.argv[3] if len(sys.argv) > 3 else None)]
state = os.path.join(scratch, "state")


def start(*flags):
    return Server(command, "--quiet", "--state", state, *flags)


def create(s, n, key="one", **more):
    return call(s, "POST", "/v1/uploads", {"filename": "in.jsonl", "purpose": "batch", "bytes": n, "mime_type": "text/jsonl", **more}, key)


def add(s, u, data, key="one", name="data"):
    status, text = exchange(s, "POST", f"/v1/uploads/{u}/parts", form({name: data}), key, "multipart/form-data; boundary=b0undary")
    return status, json.loads(text)


def complete(s, u, ids, key="one", **more):
    return call(s, "POST", f"/v1/uploads/{u}/complete", {"part_ids": ids, **more}, key)


def cancel(s, u, key="one"):
    return call(s, "POST", f"/v1/uploads/{u}/cancel", key=key)


def refused(name, answer, param, *words, status=400):
    check(f"{name}: refused", answer[0] == status and answer[1]["error"]["param"] == param and all(w in answer[1]["error"]["message"] for w in words), answer)


def parts_on_disk():
    return len(os.listdir(os.path.join(state, "uploads")))


@tap.case
def life():
    s = start("--api-key", "one,two")
    pieces = [b'{"a": 1}\n', b"\x00\xff\r\n--b0undary is no boundary here", b"end"]
    whole = b"".join(pieces)
    status, u = create(s, len(whole), expires_after={"anchor": "created_at", "seconds": 7200})
    check("an upload is pending", status == 200 and u["object"] == "upload" and u["status"] == "pending" and u["file"] is None and u["bytes"] == len(whole)
          and u["filename"] == "in.jsonl" and u["purpose"] == "batch" and u["expires_at"] - u["created_at"] == 3600, u)
    sent = {i: add(s, u["id"], pieces[i]) for i in (2, 0, 1)}
    check("parts have ids", all(a[0] == 200 and a[1]["object"] == "upload.part" and a[1]["upload_id"] == u["id"] for a in sent.values()) and len({a[1]["id"] for a in sent.values()}) == 3, sent)
    ids = [sent[i][1]["id"] for i in range(3)]
    check("they lie on disk", parts_on_disk() == 3)
    refused("an unknown part", complete(s, u["id"], [*ids[:2], "part_0"]), "part_ids", "part_0", u["id"])
    refused("a part too few", complete(s, u["id"], ids[:2]), "part_ids", str(len(whole) - 3), str(len(whole)))
    refused("a part twice", complete(s, u["id"], [*ids, ids[0]]), "part_ids", "twice", ids[0])
    refused("no parts", complete(s, u["id"], []), "part_ids")
    refused("parts that are no list", complete(s, u["id"], "x"), "part_ids")
    refused("a part that is no text", complete(s, u["id"], [3]), "part_ids")
    refused("an unknown field", complete(s, u["id"], ids, sha256="x"), "sha256")
    wrong = hashlib.md5(b"".join(pieces[::-1])).hexdigest()
    right = hashlib.md5(whole).hexdigest()
    refused("another MD5", complete(s, u["id"], ids, md5=wrong), "md5", wrong, right)
    refused("parts in another order, by the MD5", complete(s, u["id"], ids[::-1], md5=right), "md5")
    check("nothing of that is a file", call(s, "GET", "/v1/files")[1]["data"] == [] and os.listdir(os.path.join(state, "files")) == [])
    for name, answer in (("another key's part", add(s, u["id"], b"x", "two")), ("its end", complete(s, u["id"], ids, "two")), ("its cancelling", cancel(s, u["id"], "two")), ("an upload that is none", cancel(s, "upload_0"))):
        refused(name, answer, "upload_id", status=404)
    status, done = complete(s, u["id"], ids, md5=right.upper())
    check("all of that can be corrected: it is complete", status == 200 and done["status"] == "completed" and {**done, "status": "pending", "file": None} == u, done)
    f = done["file"]
    check("its file", f["object"] == "file" and f["bytes"] == len(whole) and f["filename"] == "in.jsonl" and f["purpose"] == "batch" and f["expires_at"] - f["created_at"] == 7200
          and call(s, "GET", f"/v1/files/{f['id']}")[1] == f and [x["id"] for x in call(s, "GET", "/v1/files")[1]["data"]] == [f["id"]], f)
    check("the file's content is that of the parts, in the order of the list", exchange(s, "GET", f"/v1/files/{f['id']}/content") == (200, whole))
    check("no part is left", parts_on_disk() == 0)
    refused("to complete it twice", complete(s, u["id"], ids), "upload_id", "completed")
    refused("a part behind its end", add(s, u["id"], b"x"), "upload_id", "completed")
    refused("to cancel it then", cancel(s, u["id"]), "upload_id", "completed")
    v = create(s, 3)[1]["id"]
    p = add(s, v, b"abc")[1]["id"]
    refused("a part of another upload", complete(s, v, ids[:1]), "part_ids", ids[0], v)
    status, gone = cancel(s, v)
    check("an upload is cancelled, and its part deleted", status == 200 and gone["status"] == "cancelled" and gone["file"] is None and parts_on_disk() == 0, gone)
    refused("a part of a cancelled upload", add(s, v, b"x"), "upload_id", "cancelled")
    refused("to complete it", complete(s, v, [p]), "upload_id", "cancelled")
    refused("to cancel it twice", cancel(s, v), "upload_id", "cancelled")
    w = create(s, 4)[1]["id"]
    add(s, w, b"ab")
    check("parts that were sent again have a place", [add(s, w, b"abc")[0] for _ in range(2)] == [200, 200])
    refused("but not more than the bytes twice", add(s, w, b"x"), "data", "8", "4")
    refused("an empty part", add(s, w, b""), "data")
    refused("a form with another field", add(s, w, b"x", name="file"), "data")
    refused("a body that is no form", call(s, "POST", f"/v1/uploads/{w}/parts", {}), None)
    refused("another path", call(s, "POST", f"/v1/uploads/{w}/nothing"), None, status=404)
    for name, param, body in (("no bytes", None, {"bytes": None}), ("0 bytes", "bytes", {"bytes": 0}), ("no name", None, {"filename": None}), ("a name with a folder", "filename", {"filename": "../x"}),
                              ("an empty name", "filename", {"filename": ""}), ("no type", None, {"mime_type": None}), ("another purpose", "purpose", {"purpose": "vision"}),
                              ("a short expiry", "expires_after[seconds]", {"expires_after": {"anchor": "created_at", "seconds": 5}}), ("another anchor", "expires_after[anchor]", {"expires_after": {"seconds": 3600}}),
                              ("an unknown field", "colour", {"colour": "red"})):
        refused(name, call(s, "POST", "/v1/uploads", {"filename": "x", "purpose": "batch", "bytes": 1, "mime_type": "x", **body}), param)
    s.p.kill()
    s.p.wait()
    s = start("--api-key", "one,two")
    check("an upload does not outlive the server, but its file does", cancel(s, w)[0] == 404 and parts_on_disk() == 0 and exchange(s, "GET", f"/v1/files/{f['id']}/content")[1] == whole)
    call(s, "DELETE", f"/v1/files/{f['id']}")
    s.end()


@tap.case
def limits():
    s = start("--api-key", "one,two", "--files", "2", "--files-bytes", "100")
    refused("more bytes than a key may have", create(s, 101), "bytes", "101", "100", "--files-bytes")
    a, b = create(s, 60)[1]["id"], create(s, 40)[1]["id"]
    refused("more uploads than a key may have files", create(s, 1), "bytes", "2 uploads of 100 bytes", "--files")
    check("another key has its own", create(s, 100, "two")[0] == 200)
    cancel(s, b)
    refused("uploads that are pending count by the bytes announced", create(s, 41), "bytes", "60 bytes")
    for _ in range(5):  # Those that have ended are dropped for new ones.
        c = create(s, 40)[1]["id"]
        cancel(s, c)
    ids = [add(s, a, b"x" * 30)[1]["id"] for _ in range(2)]
    upload(s, b"y" * 50)
    refused("a file that the key has no more room for", complete(s, a, ids), "file", "50 bytes", "60 bytes")
    check("then nothing of it is left but its parts", len(os.listdir(os.path.join(state, "files"))) == 2 and parts_on_disk() == 2)
    s.end()
    s = start("--api-key", "one,two", "--upload-s", "1")
    a = create(s, 60)[1]["id"]
    before = time.monotonic()
    while (last := add(s, a, b"x"))[0] == 200 and time.monotonic() - before < 30:
        time.sleep(0.05)
    refused("a part of an upload whose time is over", last, "upload_id", "expired")
    check("its parts are deleted", parts_on_disk() == 0)
    s.end()
    p = Server(command, "--quiet", "--upload-s", "3", ready=False)
    check("--upload-s without --state", p.p.wait(20) == 2 and "--state" in p.said())
    s = Server(command, "--quiet")
    check("without a folder there are no uploads", create(s, 1)[0] == 501)
    s.end()


@tap.case
def at_once():
    """Parts of several uploads are sent at once, while some are cancelled and completed:
    completed files are whole, and nothing else is left."""
    s = start()
    rng = random.Random(int(os.environ.get("SEED", "7")))
    whole, left, bad = {}, [], []

    def one(seed):
        r = random.Random(seed)
        pieces = [r.randbytes(r.randint(1, 300000)) for _ in range(r.randint(1, 6))]
        u = create(s, sum(map(len, pieces)))[1]["id"]
        ids = [None] * len(pieces)

        def send(i):
            ids[i] = add(s, u, pieces[i])[1].get("id")
        threads = [threading.Thread(target=send, args=(i,)) for i in range(len(pieces))]
        for t in threads:
            t.start()
        if seed % 3 == 0:  # In the middle.
            cancel(s, u)
        for t in threads:
            t.join()
        ends = [complete(s, u, ids, md5=hashlib.md5(b"".join(pieces)).hexdigest()) for _ in range(2)]
        if seed % 3 == 0:
            left.append(u)
            bad.extend(e for e in ends if e[0] == 200)
        else:
            whole[ends[0][1].get("file", {}).get("id")] = b"".join(pieces)
            bad.extend(e for e in ends[1:] if e[0] != 400)
    threads = [threading.Thread(target=one, args=(rng.randrange(10**6) * 3 + i % 3,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("parts at once: every file is whole", len(whole) == 8 and all(exchange(s, "GET", f"/v1/files/{i}/content")[1] == data for i, data in whole.items()), list(whole))
    check("an upload ends once", not bad, bad[:2])
    check("and no part is left", parts_on_disk() == 0)
    u = create(s, 3)[1]["id"]
    ids = [add(s, u, b"abc")[1]["id"]]
    ends = []
    threads = [threading.Thread(target=lambda: ends.append(complete(s, u, ids)[0])) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("of several calls that complete it at once, one succeeds", sorted(ends) == [200] + [400] * 7, ends)
    s.end()


@tap.case
def client():
    try:
        import openai
    except ImportError:
        tap.skip("OpenAI's client", "python3 has no openai")
        return
    s = start("--max-body", "1MiB")
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none")
    row = json.dumps({"custom_id": "r%d", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 4}})
    data = "\n".join(row % i for i in range(3)).encode()
    u = c.uploads.create(filename="in.jsonl", purpose="batch", bytes=len(data), mime_type="text/jsonl", expires_after={"anchor": "created_at", "seconds": 3600})
    parts = [c.uploads.parts.create(u.id, data=io.BytesIO(data[i:i + 100])) for i in range(0, len(data), 100)]
    done = c.uploads.complete(u.id, part_ids=[p.id for p in parts], md5=hashlib.md5(data).hexdigest())
    check("client: create, parts, complete", u.status == "pending" and done.status == "completed" and done.id == u.id and c.files.content(done.file.id).read() == data, done)
    b = c.batches.create(input_file_id=done.file.id, endpoint="/v1/completions", completion_window="24h")
    end = time.time() + 30
    while time.time() < end and c.batches.retrieve(b.id).status != "completed":
        time.sleep(0.05)
    check("client: its file is the input of a batch", c.batches.retrieve(b.id).request_counts.completed == 3)
    big = random.Random(1).randbytes(3 << 20)
    done = c.uploads.upload_file_chunked(file=big, filename="big.jsonl", bytes=len(big), mime_type="text/jsonl", purpose="fine-tune", part_size=1000000, md5=hashlib.md5(big).hexdigest())
    check("client: upload_file_chunked, a file over --max-body", done.file.bytes == len(big) and done.file.purpose == "fine-tune" and c.files.content(done.file.id).read() == big, done)
    gone = c.uploads.cancel(c.uploads.create(filename="x", purpose="batch", bytes=1, mime_type="text/jsonl").id)
    check("client: cancel", gone.status == "cancelled" and gone.file is None, gone)
    try:
        c.uploads.complete(gone.id, part_ids=["part_x"])
        check("client: errors are its own", False)
    except openai.BadRequestError as e:
        check("client: errors are its own", e.param == "upload_id", e)
    s.end()


finish()
