#!/usr/bin/env python3
"""HTTP against the engine alone: `lateen bench engine` and `lateen bench serve` in turn, same model, prompts of 16 tokens.

usage: http_ratio.py MODEL [NEW_TOKENS [THREADS [REPEATS]]]      LATEEN names another program than build/lateen
Prints for 1, 8 and 32 streams both rates (median and best), their ratios, and the CPU time a token of the server's HTTP thread. Both are warm: the engine's
first run is not counted, nor the server's. Wants a machine at rest, with a core free beside the engine's threads."""
import json
import os
import subprocess
import sys
import time

model = sys.argv[1]
new, threads, repeats = (int(a) for a in (sys.argv[2:] + ["64", "1", "5"][len(sys.argv) - 2:]))
lateen = os.environ.get("LATEEN", "build/lateen")
env = dict(os.environ, OMP_WAIT_POLICY="passive")


def last(*args):
    r = subprocess.run([lateen, "bench", *args, "--json"], capture_output=True, text=True, env=env, check=True)
    # One object, or a line for each of several runs: the last is the warm one.
    return json.loads(r.stdout[max(r.stdout.rfind("\n{"), r.stdout.find("{")):])


def engine(n):
    r = last("engine", "--model", model, "--streams", f"{n},{n}", "--prompt", "16", "--new", str(new), "--threads", str(threads))
    return n * new / (r["first_s"] + n * (new - 1) / r["decode_tokens_per_s"])


def serve(n):
    def cpu_ns():
        with open(f"/proc/{server.pid}/task/{server.pid}/schedstat") as f:
            return int(f.read().split()[0])
    before = cpu_ns()
    r = last("serve", url, "--requests", str(n), "--concurrency", str(n), "--prompt-tokens", "16", "--max-tokens", str(new))
    return r["output_tokens_per_s"], (cpu_ns() - before) / r["output_tokens"]


server = subprocess.Popen([lateen, "serve", model, "--port", "0", "--quiet", "--threads", str(threads), "--prefix-cache=false"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
url = server.stdout.readline().strip()
while subprocess.run(["curl", "-sf", url + "/health"], stdout=subprocess.DEVNULL).returncode:
    time.sleep(0.1)
for n in (1, 8, 32):
    serve(n)
    rows = [(engine(n), *serve(n)) for _ in range(repeats)]
    median = [sorted(column)[repeats // 2] for column in zip(*rows)]
    best = [max(column) for column in zip(*rows)]
    print(f"{n:3d} streams: engine {median[0]:8.1f} (best {best[0]:.1f}), HTTP {median[1]:8.1f} (best {best[1]:.1f}) tok/s; ratios "
          f"{' '.join('%.3f' % (h / e) for e, h, _ in rows)}, of the best {best[1] / best[0]:.3f}; HTTP thread {median[2] / 1e3:.1f} us a token", flush=True)
server.terminate()
sys.exit(server.wait())
