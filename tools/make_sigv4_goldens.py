#!/usr/bin/env python3
"""Make golden signatures (AWS Signature Version 4) for tests/unit/platform/test_sigv4.c, as JSON lines.

    pip install botocore; pip download --no-deps --no-binary :all: botocore, unpacked to SDIST
    tools/make_sigv4_goldens.py SDIST/tests/unit/auth/aws4_testsuite tests/golden/platform

sigv4_suite.jsonl     AWS's published test suite (Apache-2.0), each test's request, canonical request, text to sign and Authorization header
sigv4_botocore.jsonl  the results of botocore's signer for S3 for keys and queries that are easily signed wrongly
"""
import datetime
import json
import os
import sys
from unittest import mock

import botocore
import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
ACCESS = "AKIDEXAMPLE"


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read().replace("\r", "")


def suite(folder):
    for at, _, names in sorted(os.walk(folder)):
        if any(name.endswith(".req") for name in names):
            base = os.path.join(at, os.path.basename(at))
            yield {"name": os.path.relpath(at, folder), **{part: read(f"{base}.{part}") for part in ("req", "creq", "sts", "authz")}}


KEYS = ["plain.txt", "a+b=c.txt", "with space & more", "100%.txt", "already%20encoded", "double//slash", "./dot/../dots", "~tilde_under-score.x",
        "*star'quote(par)!", "ünï/çödé/日本語", "semi;colon:comma,at@", "q?mark#hash", "model-00001-of-00002.safetensors", "back\\slash|pipe"]
QUERIES = [[], [("uploads", "")], [("partNumber", "7"), ("uploadId", "VXBs+b2Fk/SWQ=")], [("list-type", "2"), ("prefix", "a b/c+d=e&f"), ("delimiter", "/")],
           [("continuation-token", "1ueGcx/PJ+=="), ("list-type", "2"), ("encoding-type", "url")], [("b", "2"), ("B", "1"), ("a-", "3"), ("a", "4")]]
ENDPOINTS = [("https://examplebucket.s3.eu-central-2.amazonaws.com", "", "eu-central-2"), ("http://127.0.0.1:9000", "/examplebucket", "us-east-1")]


def sign(method, endpoint, path, query, region, token, body):
    """botocore gets the encoded URL; our signer gets the key and query before encoding."""
    from urllib.parse import quote
    encoded = quote(path, safe="/~")
    text = "&".join(f"{quote(n, safe='~')}={quote(v, safe='~')}" for n, v in query)
    request = AWSRequest(method=method, url=endpoint + encoded + ("?" + text if text else ""), data=body)
    signer = botocore.auth.S3SigV4Auth(Credentials(ACCESS, SECRET, token), "s3", region)
    request.context["client_config"] = mock.Mock(s3=None)
    request.context["payload_signing_enabled"] = body is not None
    if body is None:
        request.context["has_streaming_input"] = True
        request.context["checksum"] = {}
        signer.payload = lambda _: "UNSIGNED-PAYLOAD"
    date = datetime.datetime(2026, 2, 28, 23, 59, 58, tzinfo=datetime.timezone.utc)
    with mock.patch("botocore.auth.get_current_datetime", return_value=date):
        signer.add_auth(request)
    authorization = request.headers["Authorization"]
    del request.headers["Authorization"]
    headers = signer.headers_to_sign(request)
    canonical = signer.canonical_request(request)
    return {"method": method, "path": path, "query": query, "headers": [[n, v] for n, v in headers.items()],
            "payload": request.headers["X-Amz-Content-SHA256"], "date": "20260228T235958Z", "region": region,
            "canonical": canonical, "authorization": authorization}


def cases():
    n = 0
    for key in KEYS:
        for query in QUERIES:
            endpoint, prefix, region = ENDPOINTS[n % 2]
            token = "FwoGZXIvYXdzEBYaD+token/with=signs" if n % 3 == 0 else None
            n += 1
            if key != KEYS[1] and n % 4:  # One key with every query; the others with some.
                continue
            yield sign("PUT" if n % 5 == 0 else "GET", endpoint, f"{prefix}/{key}", query, region, token, None if n % 2 else b"payload %d" % n)


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    folder, out = sys.argv[1:]
    write(os.path.join(out, "sigv4_suite.jsonl"), suite(folder))
    write(os.path.join(out, "sigv4_botocore.jsonl"), cases())
    print("botocore", botocore.__version__)
