"""Seeds of a script that disturbs programs, and a file of results. Standard library only.

    FAULT_SEEDS=A..B       the seeds A to B (one number: that one), instead of those that the command names
    FAULT_RESULTS=FILE     a line of JSON is added to this file for each seed

Scripts share no port and no folder, so as many can run beside each other as there are cores for them; and they may add to the same file, since each line is written by one call. The cores on
which a script may run are divided among the threads of its programs: on a machine with many cores, taskset gives each script its own.

    seq 1 60 | xargs -P 60 -I{} sh -c 'FAULT_SEEDS={}01..{}99 FAULT_RESULTS=faults.jsonl taskset -c $(({} * 2)),$(({} * 2 + 1)) python3 tests/e2e/run_faults.py build/lateen >faults-{}.log'"""
import json
import os
import re
import sys
import time


def of(first, count):
    """The seeds from first on, or those of the environment."""
    asked = os.environ.get("FAULT_SEEDS")
    if not asked:
        return range(first, first + count)
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", asked)
    if not found or int(found[2] or found[1]) < int(found[1]):
        sys.exit(f"FAULT_SEEDS is '{asked}'; it is A..B, two whole numbers of which the second is not smaller, or one number")
    return range(int(found[1]), int(found[2] or found[1]) + 1)


def append(path, lines):
    """Write each line as JSON by one write, so that scripts that run beside this one can append
    to the file."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        while data:
            data = data[os.write(fd, data):]
    finally:
        os.close(fd)


def done(seed, start, wrong, **more):
    """A seed that began at `start` (time.time()) has ended. wrong: the faults found; empty: none.
    It is recorded if the environment names a file."""
    if path := os.environ.get("FAULT_RESULTS"):
        append(path, [{"script": os.path.basename(sys.argv[0]), "seed": seed, **more, "wrong": wrong, "seconds": round(time.time() - start, 1), "unix_s": round(start),
                       "load": round(os.getloadavg()[0], 1)}])
