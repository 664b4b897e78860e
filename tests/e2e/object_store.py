"""An object store and a model hub for tests, in memory: enough of S3's protocol for a copy, with faults on demand. Standard library only.

Every request to S3 must be signed: the signature is computed again here, from Amazon's description of Signature Version 4, with hmac and hashlib, over the received bytes; dates may be off by 15 minutes. Content-MD5 and x-amz-content-sha256 must match the body.

    store = Store(); store.put("bucket", "key", b"..."); store.url; store.close()
    store.fault = function(request) -> None or a fault:
        ("status", 503, "SlowDown", {"Retry-After": "1"})   refuse
        ("cut", n)        break the connection after n bytes of the answer's body
        ("drop",)         break it before any answer; nothing was done
        ("lost",)         do it, then break it before the answer
        ("slow", s)       wait before the answer
        ("hang", s)       wait, then break it before any answer; nothing was done
        ("short", n)      an answer with n bytes less, which is consistent in itself
        ("long", n)       the same with n bytes more
        ("range", n)      another range of the same length
        ("total",)        the right range, of another size of the whole
        ("flip", n)       one bit of byte n of the body
        ("late_error",)   status 200 with an error as its body
        ("etag",)         the ETag of other bytes than those that came

    store.kms: ETags are not MD5s, like those of a service that encrypts with its own keys; store.public: objects can be read without a signature
"""
import base64
import datetime
import email.utils
import functools
import hashlib
import hmac
import json
import re
import ssl
import threading
import time
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

KEYS = {"AKIDEXAMPLE": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "AKIDTOKEN": "secret-of-the-session-key/+"}
TOKEN = "FwoGZXIvYXdzEBYaDHsession//token+with=signs"
HUB_TOKEN = "hf_secretTokenOfTheHub"
SECRETS = [*KEYS.values(), TOKEN, HUB_TOKEN]


def md5(data):
    return hashlib.md5(data).hexdigest()


class Object:
    def __init__(self, data, parts=None, meta=None, modified=None, headers=None):
        self.data, self.parts, self.meta = data, parts or [len(data)], meta or {}
        self.modified = modified if modified is not None else int(time.time())
        self.headers = headers or {}
        if parts is None:
            self.etag = md5(data)
        else:
            digests, at = b"", 0
            for n in parts:
                digests += hashlib.md5(data[at:at + n]).digest()
                at += n
            self.etag = f"{md5(digests)}-{len(parts)}"


def hidden(etag):
    """An ETag that is not the MD5 of the content."""
    return md5(b"hidden" + etag.encode())


class Upload:
    def __init__(self, bucket, key, meta):
        self.bucket, self.key, self.meta, self.parts = bucket, key, meta, {}


class Request:
    """The request as faults see it."""
    def __init__(self, method, path, query, headers, body):
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body


class Error(Exception):
    def __init__(self, status, code, message="", headers=None):
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message, headers or {}


class Broken(Exception):
    """The connection ends here."""


def quote(text):
    return urllib.parse.quote(text, safe="-._~")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are written separately; otherwise each answer would wait for an
    # acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (Broken, ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    def do_any(self):
        store = self.server.store
        raw, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise Broken
        parameters = urllib.parse.parse_qsl(query, keep_blank_values=True)
        request = Request(self.command, urllib.parse.unquote(raw), dict(parameters), self.headers, body)
        with store.lock:
            store.requests.append(request)
            self.fault = store.fault(request) if store.fault else None
        if self.fault and self.fault[0] == "drop":
            raise Broken
        if self.fault and self.fault[0] == "slow":
            time.sleep(self.fault[1])
        if self.fault and self.fault[0] == "hang":
            time.sleep(self.fault[1])
            raise Broken
        try:
            if self.fault and self.fault[0] == "status":
                raise Error(self.fault[1], self.fault[2], "as the test asked", self.fault[3] if len(self.fault) > 3 else {})
            if raw.startswith("/hub/") or raw.startswith("/cdn/") or raw.startswith("/web/"):
                self.other(raw, request)
            else:
                self.check_signature(raw, parameters, body)
                self.s3(request)
        except Error as e:
            text = (f"<?xml version=\"1.0\"?>\n<Error><Code>{e.code}</Code><Message>{escape(e.message)}</Message>"
                    f"<AWSAccessKeyId>{self.headers.get('Authorization', '')[:60]}</AWSAccessKeyId></Error>").encode()
            self.answer(e.status, text if self.command != "HEAD" else b"", e.headers, faulty=False)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any

    def answer(self, status, body=b"", headers=None, faulty=True, length=None):
        fault = self.fault if faulty and self.fault else ("none",)
        if fault[0] == "lost":
            raise Broken
        if fault[0] == "short" and len(body) > fault[1]:
            body = body[:len(body) - fault[1]]
        elif fault[0] == "long" and body:
            body += b"x" * fault[1]
        elif fault[0] == "flip" and body:
            at = fault[1] % len(body)
            body = body[:at] + bytes([body[at] ^ 4]) + body[at + 1:]
        elif fault[0] == "late_error":
            body = b"<Error><Code>InternalError</Code><Message>late</Message></Error>"
        self.send_response(status)
        sent = {"Content-Length": str(length if length is not None else len(body)), **(headers or {})}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        rate = self.server.store.rate
        if fault[0] == "cut":
            self.wfile.write(body[:fault[1]])
            self.wfile.flush()
            raise Broken
        if rate:
            step = max(1, rate // 50)
            for at in range(0, len(body), step):
                self.wfile.write(body[at:at + step])
                self.wfile.flush()
                time.sleep(step / rate)
        else:
            self.wfile.write(body)

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate((timestamp or time.time()) + self.server.store.skew_s, usegmt=True)

    def check_signature(self, raw, parameters, body):
        store = self.server.store
        h = self.headers
        if store.public and "Authorization" not in h and self.command in ("GET", "HEAD"):
            return
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, SignedHeaders=([^,]+), Signature=([0-9a-f]{64})",
                             h.get("Authorization", ""))
        if not found:
            raise Error(403, "AccessDenied", "not signed")
        access, day, region, names, signature = found.groups()
        if access not in KEYS:
            raise Error(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
        if access == "AKIDTOKEN" and h.get("x-amz-security-token") != TOKEN:
            raise Error(403, "InvalidToken", "The provided token is malformed or otherwise invalid.")
        date = h["x-amz-date"]
        then = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc).timestamp()
        if abs(then - time.time() - store.skew_s) > 900:
            raise Error(403, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.")
        if region != store.region:
            raise Error(400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{store.region}'",
                        {"x-amz-bucket-region": store.region})
        signed = names.split(";")
        must = {"host"} | {n.lower() for n in h if n.lower().startswith("x-amz-") or n.lower() == "content-md5"}
        if signed != sorted(signed) or not must <= set(signed):
            raise Error(403, "AccessDenied", f"headers that must be signed are not: {must - set(signed)}")
        lines = "".join(f"{n}:{' '.join((h.get(n) or '').split())}\n" for n in signed)
        encoded = "&".join(f"{quote(n)}={quote(v)}" for n, v in sorted(parameters, key=lambda p: (quote(p[0]), quote(p[1]))))
        payload = h["x-amz-content-sha256"]
        path = "/".join(quote(urllib.parse.unquote(p)) for p in raw.split("/"))
        if path != raw:
            raise Error(403, "SignatureDoesNotMatch", "the path is not encoded as it must be")
        canonical = f"{self.command}\n{path}\n{encoded}\n{lines}\n{names}\n{payload}"
        scope = f"{day}/{region}/s3/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = b"AWS4" + KEYS[access].encode()
        for part in (day, region, "s3", "aws4_request", to_sign):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(key.hex(), signature):
            raise Error(403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
        if payload != "UNSIGNED-PAYLOAD" and payload != hashlib.sha256(body).hexdigest():
            raise Error(400, "XAmzContentSHA256Mismatch")
        if h.get("Content-MD5") and base64.b64decode(h["Content-MD5"]) != hashlib.md5(body).digest():
            raise Error(400, "BadDigest")

    def s3(self, r):
        store = self.server.store
        host = self.headers["Host"].split(":")[0]
        if host.endswith(".localhost"):
            bucket, key = host[:-len(".localhost")], r.path[1:]
        else:
            bucket, _, key = r.path[1:].partition("/")
        with store.lock:
            if bucket not in store.buckets:
                raise Error(404, "NoSuchBucket", "The specified bucket does not exist")
            result = self.s3_do(store, bucket, key, r)
        self.answer(*result)

    def s3_do(self, store, bucket, key, r):
        objects, q = store.buckets[bucket], r.query
        if r.method == "GET" and q.get("list-type") == "2" and not key:
            return self.list(objects, q)
        if r.method == "POST" and "uploads" in q:
            upload = f"{md5(key.encode())}+/={len(store.uploads)}"
            store.uploads[upload] = Upload(bucket, key, self.meta())
            return 200, f"<InitiateMultipartUploadResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode()
        if "uploadId" in q:
            upload = store.uploads.get(q["uploadId"])
            if upload is None or (upload.bucket, upload.key) != (bucket, key):
                raise Error(404, "NoSuchUpload", "The specified upload does not exist.")
            return self.upload(store, upload, q, r)
        if r.method == "PUT":
            objects[key] = Object(r.body, meta=self.meta())
            store.history.append((bucket, key))
            return 200, b"", self.etag(objects[key].etag)
        if r.method == "DELETE":
            objects.pop(key, None)
            store.deleted.append((bucket, key))
            return 204, b""
        if r.method in ("GET", "HEAD"):
            if key not in objects:
                raise Error(404, "NoSuchKey", "The specified key does not exist.")
            return self.read(objects[key], q)
        raise Error(405, "MethodNotAllowed")

    def shown(self, etag):
        return hidden(etag) if self.server.store.kms else md5(b"other") if self.fault and self.fault[0] == "etag" else etag

    def etag(self, etag):
        return {"ETag": f'"{self.shown(etag)}"', **({"x-amz-server-side-encryption": "aws:kms"} if self.server.store.kms else {})}

    def meta(self):
        return {n: v for n, v in self.headers.items() if n.lower().startswith("x-amz-meta-")}

    def upload(self, store, upload, q, r):
        if r.method == "PUT":
            number = int(q["partNumber"])
            upload.parts[number] = r.body
            return 200, b"", self.etag(md5(r.body))
        if r.method == "DELETE":
            del store.uploads[q["uploadId"]]
            return 204, b""
        if r.method == "GET":
            after = int(q.get("part-number-marker", 0))
            rest = sorted(n for n in upload.parts if n > after)
            page = rest[:store.page]
            rows = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{self.shown(md5(upload.parts[n]))}&quot;</ETag><Size>{len(upload.parts[n])}</Size></Part>" for n in page)
            more = len(rest) > len(page)
            end = f"<NextPartNumberMarker>{page[-1]}</NextPartNumberMarker>" if more else ""
            return 200, f"<ListPartsResult><IsTruncated>{str(more).lower()}</IsTruncated>{end}{rows}</ListPartsResult>".encode()
        if self.fault and self.fault[0] == "late_error":
            return 200, b""
        wanted = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>\"([^\"]+)\"</ETag>", r.body.decode())
        for number, etag in wanted:
            if int(number) not in upload.parts or self.shown(md5(upload.parts[int(number)])) != etag:
                raise Error(400, "InvalidPart")
        sizes = [len(upload.parts[int(n)]) for n, _ in wanted]
        data = b"".join(upload.parts[int(n)] for n, _ in wanted)
        made = store.buckets[upload.bucket][upload.key] = Object(data, parts=sizes, meta=upload.meta)
        store.history.append((upload.bucket, upload.key))
        del store.uploads[q["uploadId"]]
        etag = self.etag(md5(b"other") + made.etag[32:] if store.wrong_end else made.etag)
        return 200, f"<CompleteMultipartUploadResult><ETag>{etag['ETag'].replace(chr(34), '&quot;')}</ETag></CompleteMultipartUploadResult>".encode(), etag

    def list(self, objects, q):
        after = q.get("continuation-token", "")
        after = base64.b64decode(after).decode() if after else ""
        keys = sorted(k for k in objects if k.startswith(q.get("prefix", "")) and k > after)
        page = keys[:self.server.store.page]
        encode = urllib.parse.quote_plus if q.get("encoding-type") == "url" else escape
        rows = "".join(f"<Contents><Key>{encode(k)}</Key><LastModified>{datetime.datetime.utcfromtimestamp(objects[k].modified).isoformat()}.000Z</LastModified>"
                       f"<ETag>&quot;{objects[k].etag}&quot;</ETag><Size>{len(objects[k].data)}</Size></Contents>" for k in page)
        more = len(keys) > len(page)
        token = f"<NextContinuationToken>{base64.b64encode(page[-1].encode()).decode()}</NextContinuationToken>" if more else ""
        kind = "<EncodingType>url</EncodingType>" if q.get("encoding-type") == "url" else ""
        return 200, (f"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><!-- a page -->"
                     f"<IsTruncated>{str(more).lower()}</IsTruncated>{rows}{token}{kind}</ListBucketResult>").encode()

    def read(self, o, q):
        headers = {**self.etag(o.etag), "Last-Modified": email.utils.formatdate(o.modified, usegmt=True), "Accept-Ranges": "bytes", **o.meta}
        if self.headers.get("x-amz-checksum-mode") == "ENABLED":
            headers.update(o.headers)
        if self.headers.get("If-Match") not in (None, headers["ETag"]):
            raise Error(412, "PreconditionFailed")
        if "partNumber" in q:
            return 206, b"", {**headers, "x-amz-mp-parts-count": str(len(o.parts))}, True, o.parts[int(q["partNumber"]) - 1]
        if self.command == "HEAD":
            return 200, b"", headers, True, len(o.data)
        return self.range(o.data, headers)

    def range(self, data, headers):
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not found or not self.server.store.ranges:
            return 200, data, headers
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        if first >= len(data):
            raise Error(416, "InvalidRange", "", {"Content-Range": f"bytes */{len(data)}"})
        if self.fault and self.fault[0] == "range":
            shift = min(self.fault[1], len(data) - 1 - last)
            first, last = first + shift, last + shift
        total = {"total": len(data) + 1, "vast": 2**63 - 1}.get(self.fault[0] if self.fault else "", len(data))
        return 206, data[first:last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{total}"}

    def check_token(self):
        if self.headers.get("Authorization", "Bearer hf_of_another") not in (f"Bearer {HUB_TOKEN}", "Bearer hf_of_another"):
            raise Error(401, "Unauthorized", "", {"X-Error-Message": "Invalid credentials in Authorization header"})

    def other(self, raw, r):
        """The hub is at /hub, the target of its redirections at /cdn, a web server at /web."""
        store = self.server.store
        path = urllib.parse.unquote(raw)
        if raw.startswith("/web/"):
            name = path[len("/web/"):]
            if "to" in r.query:
                return self.answer(302, b"", {"Location": r.query["to"]})
            if name not in store.web or ("token" in r.query and r.query["token"] != HUB_TOKEN):
                raise Error(404, "NotFound")
            o = store.web[name]
            if self.headers.get("Authorization"):
                raise Error(400, "AuthorizationLeaked")
            tag = {"strong": {"ETag": f'"{o.etag}"'}, "weak": {"ETag": f'W/"{o.etag}"'}, "none": {}}[store.tags]
            date = {"Last-Modified": email.utils.formatdate(o.modified, usegmt=True)} if o.modified else {}
            return self.answer(*self.range(o.data, {**tag, **date}))
        if raw.startswith("/cdn/"):
            if self.headers.get("Authorization"):
                raise Error(400, "AuthorizationLeaked")
            blob, expires = path[len("/cdn/"):], r.query.get("Expires", "0")
            if int(expires) < store.cdn_epoch or r.query.get("Signature") != HUB_TOKEN:
                raise Error(403, "Expired")
            return self.answer(*self.range(store.blobs[blob], {}))
        found = re.fullmatch(r"/hub/api/(?:models/|(?=datasets/))((?:datasets/)?[^/]+/[^/]+)/revision/(.+)", path)
        if found:
            repo = store.repositories.get(found[1])
            self.check_token()
            if repo and repo.renamed:
                return self.answer(307, b"", {"Location": self.path.replace(found[1], repo.renamed)})
            if repo and repo.private and self.headers.get("Authorization") != f"Bearer {HUB_TOKEN}":
                raise Error(401, "Unauthorized", "", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
            if not repo:
                raise Error(404, "NotFound", "", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            if not repo or found[2] not in (*repo.revisions, repo.commit):
                raise Error(404, "NotFound", "", {"X-Error-Message": "Revision Not Found"})
            return self.answer(200, json.dumps(repo.listing()).encode(), {"Content-Type": "application/json"})
        found = re.fullmatch(r"/hub/api/models/([^/]+/[^/]+)/tree/([0-9a-f]{40})", path)
        if found:  # What huggingface_hub requests.
            rows = [{"type": "file", "path": s["rfilename"], "size": s["size"], "oid": s["blobId"],
                     **({"lfs": {"oid": s["lfs"]["sha256"], "size": s["size"], "pointerSize": 134}} if "lfs" in s else {})}
                    for s in store.repositories[found[1]].listing()["siblings"]]
            return self.answer(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})
        found = re.fullmatch(r"/hub/resolve-cache/([^/]+/[^/]+)/(\w+)", path)
        if found:
            if store.repositories[found[1]].private and self.headers.get("Authorization") != f"Bearer {HUB_TOKEN}":
                raise Error(401, "Unauthorized")
            return self.answer(*self.range(store.blobs[found[2]], {}))
        found = re.fullmatch(r"/hub/((?:datasets/)?[^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path)
        if found:
            repo = store.repositories[found[1]]
            if repo.renamed:
                return self.answer(307, b"", {"Location": self.path.replace(found[1], repo.renamed)})
            if repo.gated and self.headers.get("Authorization") != f"Bearer {HUB_TOKEN}":
                raise Error(403 if "Authorization" in self.headers else 401, "Restricted", "",
                            {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."})
            if repo.private and self.headers.get("Authorization") != f"Bearer {HUB_TOKEN}":
                raise Error(401, "Unauthorized")
            data = repo.files[found[3]][:repo.only]
            info = {"X-Repo-Commit": repo.commit, "ETag": f'"{repo.checksum(found[3])}"', "X-Linked-Etag": f'"{repo.checksum(found[3])}"',
                    "X-Linked-Size": str(len(data)), "Accept-Ranges": "bytes"}
            if found[3] not in repo.large:
                return self.answer(*(self.range(data, info) if self.command != "HEAD" else (200, b"", info, True, len(data))))
            store.blobs[repo.checksum(found[3])] = data
            if repo.own_host:  # As for small files: to another path of the hub, relative.
                return self.answer(307, b"", {"Location": f"/hub/resolve-cache/{found[1]}/{repo.checksum(found[3])}", **info}, faulty=False)
            host = "localhost" if store.other_host else "127.0.0.1"
            to = f"{store.scheme}://{host}:{store.port}/cdn/{repo.checksum(found[3])}?Expires={store.cdn_epoch}&Signature={HUB_TOKEN}"
            return self.answer(302, b"", {"Location": to, **info}, faulty=False)
        raise Error(404, "NotFound")


class Repository:
    def __init__(self, files, large=(), private=False, revisions=("main",), gated=False, renamed=None, only=None, own_host=False):
        """gated: its list is public and its files are not; renamed: its present name; only: this
        many bytes of each file exist; own_host: the files are at the hub, too."""
        self.files, self.large, self.private, self.revisions, self.gated = files, set(large), private, revisions, gated
        self.renamed, self.only, self.own_host = renamed, only, own_host
        self.commit = hashlib.sha1(json.dumps({n: md5(d) for n, d in files.items()}, sort_keys=True).encode()).hexdigest()

    @functools.lru_cache(None)
    def checksum(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if name in self.large else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def listing(self):
        rows = []
        for name, data in self.files.items():
            row = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
            if name in self.large:
                row["lfs"] = {"sha256": self.checksum(name), "size": len(data), "pointerSize": 134}
            rows.append(row)
        return {"id": "x", "sha": self.commit, "siblings": rows}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        pass


class Store:
    def __init__(self, tls=None):
        self.lock = threading.RLock()
        self.buckets, self.uploads, self.requests, self.history, self.deleted = {"bucket": {}}, {}, [], [], []
        self.web, self.repositories, self.blobs = {}, {}, {}
        self.fault, self.skew_s, self.region, self.page, self.ranges, self.rate = None, 0, "us-east-1", 1000, True, 0
        # The ETag of the web server for a file: strong, weak or none. It ignores If-Match.
        self.tags = "strong"
        self.cdn_epoch, self.other_host, self.kms, self.public, self.wrong_end = 1, True, False, False, False
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.store = self
        self.scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.port = self.server.server_address[1]
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def put(self, bucket, key, data, **how):
        self.buckets[bucket][key] = Object(data, **how)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def crc32_base64(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


# A store by itself, to try things: prints its address, then runs until it is ended.
if __name__ == "__main__":
    import signal
    alone = Store()
    print(alone.url, flush=True)
    signal.pause()
