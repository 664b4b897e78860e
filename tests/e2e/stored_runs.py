"""Small training runs on one machine whose data or checkpoints are in an object store; everything that they print is kept."""
import json
import os
import shutil
import subprocess
import tempfile

from object_store import KEYS

# Seconds; DEADLINE_FACTOR multiplies them like the deadlines of suites (tests/run.sh).
DEADLINE_S = 120 * int(os.environ.get("DEADLINE_FACTOR", "1"))
SMALL = ["--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.vocab", "64", "--data.seq", "16", "--batch.size", "4", "--device", "cpu", "--threads", "1",
         "--export", "false", "--lr.schedule", "constant"]


class Runs:
    """options, variables: for every run. A run's folder and log have its name, in a folder that
    close removes."""

    def __init__(self, lateen, store, options, **variables):
        self.lateen, self.store, self.options, self.variables, self.printed = lateen, store, options, variables, []
        self.dir = tempfile.mkdtemp(prefix="lateen-stored-")

    def path(self, name):
        return os.path.join(self.dir, name)

    def environment(self, machine="a", **more):
        """machine: its files on disk besides the run folders, such as the records of uploads and
        of downloads."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}
        return {**keep, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": KEYS["AKIDEXAMPLE"], "AWS_ENDPOINT_URL": self.store.url,
                "LATEEN_CACHE_DIR": self.path(f"cache-{machine}"), "HOME": self.path(f"home-{machine}"), "OMP_NUM_THREADS": "1", **self.variables, **more}

    def start(self, out, *words, ranks=1, before=None, **more):
        """before: called in the process before the program begins."""
        launch = ["launch", "--ranks", str(ranks)] if ranks > 1 else []
        with open(self.path(f"{out}.log"), "wb") as log:
            return subprocess.Popen([self.lateen, *launch, "train", "--out", self.path(out), *SMALL, *self.options, *words], env=self.environment(**more), stdout=log,
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=before)

    def said(self, out):
        with open(self.path(f"{out}.log"), errors="replace") as log:
            return log.read()

    def run(self, out, *words, **how):
        p = self.start(out, *words, **how)
        p.wait(DEADLINE_S)
        self.printed.append(self.said(out))
        return p.returncode

    def rows(self, out, kind):
        try:
            return [r for r in map(json.loads, open(self.path(f"{out}/metrics.jsonl"))) if r["kind"] == kind]
        except FileNotFoundError:
            return []

    def losses(self, out):
        return {r["step"]: r["loss"] for r in self.rows(out, "train")}

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)
