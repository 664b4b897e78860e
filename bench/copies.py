#!/usr/bin/env python3
"""Time `lateen copy` over loopback beside the AWS command line, boto3, curl and `hf`, in turn. Prints a table: MB/s (median,
lowest to highest), and seconds of CPU per GB, which depend less on other work of the machine.

    pip install awscli boto3 huggingface_hub; apt-get install nginx-light
    bench/copies.py build/lateen VENV/bin [--bytes 1000000000] [--rounds 5] [--folder /dev/shm]

Down: nginx serves a file; it checks no signatures, so its cost is the least possible, and objects have no checksum but their length (lateen is timed
with --sha256, too). Up, and the hub: the store of the tests (tests/e2e/object_store.py), which is written in Python and checks everything, is the limit.
Each program syncs its copy or not, as is its default; in /dev/shm that costs nothing."""
import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "tests", "e2e"))
import object_store  # noqa: E402

a = argparse.ArgumentParser()
a.add_argument("lateen")
a.add_argument("venv")
a.add_argument("--bytes", type=int, default=10**9)
a.add_argument("--up-bytes", type=int, default=2 * 10**8)
a.add_argument("--rounds", type=int, default=5)
a.add_argument("--folder", default="/dev/shm")
o = a.parse_args()
lateen = os.path.abspath(o.lateen)
dir = tempfile.mkdtemp(prefix="lateen-bench-", dir=o.folder)
os.chmod(dir, 0o755)
os.makedirs(f"{dir}/www/bucket")
piece = os.urandom(1 << 20)
with open(f"{dir}/www/bucket/file", "wb") as f:
    for at in range(0, o.bytes, len(piece)):
        f.write((at.to_bytes(8, "big") + piece[8:])[:o.bytes - at])
sha256 = hashlib.sha256(open(f"{dir}/www/bucket/file", "rb").read()).hexdigest()
store = object_store.Store()
port = store.port + 1
with open(f"{dir}/nginx.conf", "w") as f:
    f.write(f"daemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/error.log; events {{}} http {{ access_log off; sendfile on; tcp_nopush on;"
            f" server {{ listen 127.0.0.1:{port}; root {dir}/www; }} }}\n")
nginx = subprocess.Popen(["nginx", "-c", f"{dir}/nginx.conf"], stderr=subprocess.DEVNULL)
time.sleep(0.5)
env = {**os.environ, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": object_store.KEYS["AKIDEXAMPLE"], "AWS_REGION": "us-east-1", "HOME": dir,
       "LATEEN_CACHE_DIR": f"{dir}/cache", "HF_HOME": f"{dir}/hf", "HF_ENDPOINT": f"{store.url}/hub", "HF_TOKEN": object_store.HUB_TOKEN, "HF_HUB_DISABLE_XET": "1",
       "HF_HUB_DISABLE_TELEMETRY": "1", "AWS_MAX_ATTEMPTS": "3"}
down_url, up_url = f"http://127.0.0.1:{port}", store.url
up = open(f"{dir}/up", "wb")
up.write(os.urandom(o.up_bytes))
up.close()
data = open(f"{dir}/up", "rb").read()
store.repositories["org/model"] = object_store.Repository({"config.json": b"{}", "model.safetensors": data}, large=["model.safetensors"])
boto3 = ("import boto3,sys; c = boto3.client('s3', endpoint_url=sys.argv[1]); "
         "c.download_file('bucket', 'file', sys.argv[2]) if sys.argv[3] == 'down' else c.upload_file(sys.argv[2], 'bucket', 'up-boto3')")
OUT = f"{dir}/out"
CASES = {
    f"down, {o.bytes / 1e9:g} GB": (o.bytes, {
        "lateen": [lateen, "copy", "s3://bucket/file", OUT, "--force", "--endpoint", down_url],
        "lateen --sha256": [lateen, "copy", "s3://bucket/file", OUT, "--force", "--endpoint", down_url, "--sha256", sha256],
        "aws s3 cp": [f"{o.venv}/aws", "s3", "cp", "s3://bucket/file", OUT, "--endpoint-url", down_url, "--quiet"],
        "boto3": [f"{o.venv}/python", "-c", boto3, down_url, OUT, "down"],
        "curl": ["curl", "-s", "-o", OUT, f"{down_url}/bucket/file"],
        "cp": ["cp", f"{dir}/www/bucket/file", OUT],
    }),
    f"up, {o.up_bytes / 1e9:g} GB": (o.up_bytes, {
        "lateen": [lateen, "copy", f"{dir}/up", "s3://bucket/up-lateen", "--force", "--endpoint", up_url],
        "aws s3 cp": [f"{o.venv}/aws", "s3", "cp", f"{dir}/up", "s3://bucket/up-aws", "--endpoint-url", up_url, "--quiet"],
        "boto3": [f"{o.venv}/python", "-c", boto3, up_url, f"{dir}/up", "up"],
    }),
    f"hub, {o.up_bytes / 1e9:g} GB": (o.up_bytes, {
        "lateen": [lateen, "copy", "hf://org/model"],
        "hf": [f"{o.venv}/hf", "download", "org/model", "--quiet"],
    }),
}

try:
    for case, (n, programs) in CASES.items():
        times, cpu = {name: [] for name in programs}, {name: [] for name in programs}
        for _ in range(o.rounds):
            for name, command in programs.items():
                shutil.rmtree(f"{dir}/hf", ignore_errors=True)
                if os.path.exists(OUT):
                    os.unlink(OUT)
                begin, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
                p = subprocess.run(command, env=env, capture_output=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times[name].append(time.time() - begin)
                cpu[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                if p.returncode:
                    sys.exit(f"{name}: {p.stdout.decode()} {p.stderr.decode()}")
                if case.startswith("down") and os.path.getsize(OUT) != n:
                    sys.exit(f"{name}: {os.path.getsize(OUT)} bytes of {n}")
        for name, values in times.items():
            print(f"| {case} | {name} | {n / statistics.median(values) / 1e6:.0f} | {n / max(values) / 1e6:.0f} to {n / min(values) / 1e6:.0f} | {statistics.median(cpu[name]) / n * 1e9:.2f} |", flush=True)
        store.buckets["bucket"].clear()
finally:
    nginx.terminate()
    nginx.wait()
    store.close()
    shutil.rmtree(dir, ignore_errors=True)
