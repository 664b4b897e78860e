"""Requests to a running server, for the scripts serve_*.py. Standard library only."""
import json
import urllib.error
import urllib.request


def send(url, body=None):
    """(status, text) of a GET, or of a POST of the body as JSON. An error status raises no
    exception."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
