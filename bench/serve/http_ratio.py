#!/usr/bin/env python3
"""Compare HTTP with the engine alone: `lateen bench engine` and `lateen bench serve` alternate, with the same model and prompts of 16 tokens.

LATEEN can name a program other than build/lateen. For each number of streams it prints both rates (median and best), their ratios, and the CPU time of the
server's HTTP thread for each token. The first run of each side is not counted. It needs an idle machine, with one core more than the engine's threads."""
import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model")
parser.add_argument("--new", type=int, default=64, help="tokens of each answer (default 64)")
parser.add_argument("--threads", type=int, default=1, help="threads of the engine; 0: all cores (default 1)")
parser.add_argument("--repeats", type=int, default=5, help="runs of each side, which alternate (default 5)")
parser.add_argument("--streams", default="1,8,32", help="numbers of concurrent streams, one row for each (default 1,8,32)")
parser.add_argument("--device", default="cpu", help="where the engine computes (default cpu)")
wish = parser.parse_args()
new, repeats = wish.new, wish.repeats
common = ["--threads", str(wish.threads), "--device", wish.device]
lateen = os.environ.get("LATEEN", "build/lateen")
env = dict(os.environ, OMP_WAIT_POLICY="passive")


def last(*args):
    r = subprocess.run([lateen, "bench", *args, "--json"], capture_output=True, text=True, env=env, check=True)
    # One object, or one line for each of several runs, of which the last is warm.
    return json.loads(r.stdout[max(r.stdout.rfind("\n{"), r.stdout.find("{")):])


def engine(n):
    r = last("engine", "--model", wish.model, "--streams", f"{n},{n}", "--prompt", "16", "--new", str(new), *common)
    return n * new / (r["first_s"] + n * (new - 1) / r["decode_tokens_per_s"])


def serve(n):
    def cpu_ns():
        with open(f"/proc/{server.pid}/task/{server.pid}/schedstat") as f:
            return int(f.read().split()[0])
    before = cpu_ns()
    r = last("serve", url, "--requests", str(n), "--concurrency", str(n), "--prompt-tokens", "16", "--max-tokens", str(new))
    return r["output_tokens_per_s"], (cpu_ns() - before) / r["output_tokens"]


def ready():
    try:
        return urllib.request.urlopen(url + "/health").status == 200
    except OSError:  # The server is not listening yet, or answers 503.
        return False


server = subprocess.Popen([lateen, "serve", wish.model, "--port", "0", "--quiet", *common, "--prefix-cache=false"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
url = server.stdout.readline().strip()
while not ready():
    time.sleep(0.1)
for n in map(int, wish.streams.split(",")):
    serve(n)
    rows = [(engine(n), *serve(n)) for _ in range(repeats)]
    median = [sorted(column)[repeats // 2] for column in zip(*rows)]
    best = [max(column) for column in zip(*rows)]
    print(f"{n:3d} streams: engine {median[0]:8.1f} (best {best[0]:.1f}), HTTP {median[1]:8.1f} (best {best[1]:.1f}) tok/s; ratios "
          f"{' '.join('%.3f' % (h / e) for e, h, _ in rows)}, of the best {best[1] / best[0]:.3f}; HTTP thread {median[2] / 1e3:.1f} us per token", flush=True)
server.terminate()
sys.exit(server.wait())
