"""Jobs of fine-tuning that Slurm trains, with sbatch, squeue, sacct and scancel replaced: the effect of each of Slurm's answers, and how often it is asked. tests/e2e/tuning_slurm.py has
a real Slurm. TAP on stdout. tuning_queue.py LATEEN MODEL TOKENIZER [all]      all: also cases with long waits"""
import json
import os
import sys
import time

from serve_client import Server, call, check, finish, scratch, tap, upload, words_of

lateen, model = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
base = os.path.basename(model).rsplit(".", 1)[0]
command = [lateen, "serve", *words_of(model, os.path.abspath(sys.argv[3]))]
for name in ("bin", "queue", "accounts", "jobs"):
    os.makedirs(f"{scratch}/{name}")
ENV = {"PATH": f"{scratch}/bin:{os.environ['PATH']}"}


def tool(name, text):
    with open(f"{scratch}/bin/{name}", "w") as f:
        f.write(f'#!/bin/bash\ncd "{scratch}"\necho "{name} $*" >>calls\n{text}\n')
    os.chmod(f"{scratch}/bin/{name}", 0o755)


# A file of the queue is the line of a job; a file of the accounts is what sacct prints about a
# number.
tool("sbatch", """case "$*" in *--test-only*) exit 0 ;; esac
if [ -e closed ]; then echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)" >&2; exit 1; fi
for script; do :; done
name=$(sed -n 's/^#SBATCH --job-name="\\(.*\\)"$/\\1/p' "$script")
exec 9>>numbers
flock 9
echo >&9
id=$(wc -l <numbers)
echo "$id|PENDING|$name|Priority" >"queue/$name"
echo "sbatch: warning: the moon is full" >&2
echo "$id" """)
tool("squeue", """if [ -e down ]; then echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1; fi
cat queue/* 2>/dev/null; exit 0""")
tool("sacct", """for last; do :; done
id=${last#--jobs=}
if [ -e "accounts/$id" ]; then cat "accounts/$id"; else echo "Slurm accounting storage is disabled" >&2; exit 1; fi""")
tool("scancel", "exit 0")


def send(s):
    rows = [{"messages": [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"There were {i} cats."}]} for i in range(3)]
    return upload(s, "\n".join(map(json.dumps, rows)).encode(), "", b"fine-tune")[1]["id"]


def create(s, how="queue"):
    """A job that was submitted to Slurm; with how "", perhaps not."""
    job = call(s, "POST", "/v1/fine_tuning/jobs", {"model": base, "training_file": send(s)})[1]["id"]
    if how:
        until(lambda: os.path.exists(f"{scratch}/queue/{job}") and state_file(job)["slurm_job"])
    return job


def state_file(job):
    with open(f"{scratch}/jobs/{job}/job.json") as f:
        return json.load(f)


def get(s, job):
    return call(s, "GET", f"/v1/fine_tuning/jobs/{job}")[1]


def until(what, seconds=40):
    end = time.time() + seconds
    while not (got := what()) and time.time() < end:
        time.sleep(0.05)
    return got


def wait(s, job, *states):
    until(lambda: get(s, job)["status"] in states)
    return get(s, job)["status"]


def said(s, job):
    return [e["message"] for e in call(s, "GET", f"/v1/fine_tuning/jobs/{job}/events?limit=100")[1]["data"]][::-1]


def put(job, word, reason="None"):
    """From now on Slurm reports this about the job; returns its number."""
    path = f"{scratch}/queue/{job}"
    with open(path) as f:
        line = f.read().split("|")
    with open(f"{scratch}/line", "w") as f:
        f.write(f"{line[0]}|{word}|{job}|{reason}\n")
    os.rename(f"{scratch}/line", path)
    return int(line[0])


def forget(job, account=None):
    with open(f"{scratch}/queue/{job}") as f:
        number = f.read().split("|")[0]
    if account:
        with open(f"{scratch}/accounts/{number}", "w") as f:
            f.write(f"{number}|{account}|{job}|None\n")
    os.unlink(f"{scratch}/queue/{job}")


def calls(what):
    with open(f"{scratch}/calls") as f:
        return [line for line in f if line.startswith(what + " ")]


def next_number(job, before):
    """The number of the next job of Slurm for this job."""
    return until(lambda: state_file(job)["slurm_job"] not in (0, before) and state_file(job)["slurm_job"])


def start(*more):
    return Server(command, "--quiet", "--fine-tuning", f"{scratch}/jobs", "--fine-tuning-rank", "2", "--fine-tuning-threads", "3", "--fine-tuning-submit", "slurm",
                  "--fine-tuning-waiting", "50", *more, env=ENV)


@tap.case
def answers():
    s = start("--fine-tuning-sbatch", "--partition=gpu -t90")
    began = time.time()
    job = create(s)
    check("options of sbatch are given to it", calls("sbatch")[-1].startswith("sbatch --parsable --partition=gpu -t90 "), calls("sbatch"))
    with open(f"{scratch}/jobs/{job}/job.sbatch") as f:
        text = f.read()
    check("the script asks for the cores of a trainer", "--mincpus=3\n" in text and "'--threads' '3'" in text and '--time="90"' in text, text[:1500])
    check("a job that waits is queued, with the reason", until(lambda: any(f"Slurm's job {state_file(job)['slurm_job']} is PENDING (Priority)" == m for m in said(s, job)))
          and get(s, job)["status"] == "queued", said(s, job))
    for word, status in (("RUNNING", "running"), ("REQUEUED", "queued"), ("RUNNING", "running"), ("SUSPENDED", "queued"), ("RESIZING", "running")):
        put(job, word)
        check(f"{word}: {status}", wait(s, job, status) == status, said(s, job))
    n = len(calls("squeue"))
    put(job, "COMPLETING")
    until(lambda: len(calls("squeue")) > n + 1)
    check("COMPLETING: the state is as before", get(s, job)["status"] == "running", said(s, job))
    put(job, "A_NEW_WORD")
    until(lambda: len(calls("squeue")) > n + 3)
    check("an unknown word: as before", get(s, job)["status"] == "running", said(s, job))
    put(job, "COMPLETED")
    check("COMPLETED: succeeded", wait(s, job, "succeeded") == "succeeded", said(s, job))

    jobs = {}
    for word, status in (("FAILED", "failed"), ("TIMEOUT", "failed"), ("OUT_OF_MEMORY", "failed"), ("DEADLINE", "failed"), ("CANCELLED", "cancelled")):
        jobs[create(s)] = (word, status)
    for job, (word, status) in jobs.items():
        with open(f"{scratch}/jobs/{job}/log", "w") as f:
            f.write("[0] step 1\n[0] lateen: the reason\nsrun: error: exit code 1\n")
        put(job, word, "Why")
    for job, (word, status) in jobs.items():
        check(f"{word}: {status}", wait(s, job, status) == status, said(s, job))
        error = get(s, job)["error"]
        check(f"{word}: with Slurm's words", (error or {}).get("message", said(s, job)[-1]).endswith("the reason" if error else "not by this server") and f"is {word} (Why)" in said(s, job)[-1],
              (error, said(s, job)))
    took = time.time() - began
    check("squeue is called once every three seconds for all jobs", 3 < len(calls("squeue")) <= took / 3 + 2, (len(calls("squeue")), took))
    s.end()


@tap.case
def lost():
    s = start()
    preempted, failing = create(s), create(s)
    accounted, unknown = create(s), create(s)
    numbers = {job: state_file(job)["slurm_job"] for job in (preempted, failing, accounted, unknown)}
    forget(accounted, "COMPLETED")
    forget(unknown)
    for i in range(4):
        put(preempted, "PREEMPTED")
        if i < 3:
            put(failing, "NODE_FAIL", "NodeDown")
            if i < 2:
                new = next_number(failing, numbers[failing])
                check(f"a job that lost its node is submitted again, {i + 1}", new > numbers[failing], said(s, failing))
                numbers[failing] = new
            else:
                check("but not a third time", wait(s, failing, "failed") == "failed" and "NODE_FAIL (NodeDown)" in get(s, failing)["error"]["message"], get(s, failing))
        new = next_number(preempted, numbers[preempted])
        check(f"a preempted job is submitted again, {i + 1}", new and new > numbers[preempted] and get(s, preempted)["status"] == "queued", said(s, preempted))
        numbers[preempted] = new
    check("a job that squeue has forgotten and sacct knows", wait(s, accounted, "succeeded") == "succeeded", said(s, accounted))
    check("one that Slurm does not know is submitted again", state_file(unknown)["slurm_job"] > numbers[unknown] and any("no longer knows" in m for m in said(s, unknown)), said(s, unknown))
    s.end()


def out_of_order():
    s = start()
    job = create(s)
    put(job, "RUNNING")
    check("a job runs", wait(s, job, "running") == "running")
    open(f"{scratch}/down", "w").close()
    n = len(calls("squeue"))
    until(lambda: len(calls("squeue")) > n + 1)
    os.unlink(f"{scratch}/down")
    check("while squeue does not answer it stays, and the server says so once", get(s, job)["status"] == "running" and s.said().count("squeue does not answer") == 1
          and "Unable to contact" in s.said(), s.said())
    status = call(s, "POST", f"/v1/fine_tuning/jobs/{job}/cancel")[0]
    number = state_file(job)["slurm_job"]
    check("scancel is called until the job has ended", status == 200 and until(lambda: calls("scancel").count(f"scancel {number}\n") >= 2) and state_file(job)["slurm_job"] == number, calls("scancel"))
    put(job, "CANCELLED by 0")
    check("then it has ended", until(lambda: state_file(job)["slurm_job"] == 0) and not os.path.exists(f"{scratch}/jobs/{job}/train.jsonl"), state_file(job))

    paused = create(s)
    call(s, "POST", f"/v1/fine_tuning/jobs/{paused}/pause")
    call(s, "POST", f"/v1/fine_tuning/jobs/{paused}/resume")
    number = state_file(paused)["slurm_job"]
    until(lambda: f"scancel {number}\n" in calls("scancel"))
    check("a job that was paused and resumed keeps its number until Slurm has ended it", get(s, paused)["status"] == "queued" and state_file(paused)["slurm_job"] == number, state_file(paused))
    put(paused, "CANCELLED")
    check("and is submitted again then", next_number(paused, number) and get(s, paused)["status"] == "queued", said(s, paused))

    open(f"{scratch}/closed", "w").close()
    refused = create(s, "")
    check("a job that sbatch refuses waits with its message", until(lambda: any("job submit limit" in m for m in said(s, refused))) and get(s, refused)["status"] == "queued", said(s, refused))
    n = len(calls("sbatch"))
    time.sleep(2)
    check("and sbatch is not called again at once", len(calls("sbatch")) == n, calls("sbatch"))
    os.unlink(f"{scratch}/closed")
    check("but later", until(lambda: state_file(refused)["slurm_job"] > 0), said(s, refused))

    runs = create(s)
    put(runs, "RUNNING")
    wait(s, runs, "running")
    s.p.kill()  # As if it had died between sbatch and its answer.
    s.p.wait()
    number = state_file(refused)["slurm_job"]
    n = len(calls("sbatch"))
    for job, more in ((refused, {}), (paused, {"state": 6})):  # 6: cancelled meanwhile.
        text = json.dumps({**state_file(job), "slurm_job": 0, **more})
        with open(f"{scratch}/jobs/{job}/job.json", "w") as f:
            f.write(text)
    s = start()
    check("a job that runs is running for the next server", get(s, runs)["status"] == "running", said(s, runs))
    check("the next server finds the job by its name", until(lambda: state_file(refused)["slurm_job"]) == number and len([c for c in calls("sbatch") if "--test-only" not in c]) <= n, calls("sbatch"))
    check("and ends one that was cancelled", until(lambda: any(c == f"scancel {state_file(paused)['slurm_job']}\n" for c in calls("scancel"))) and get(s, paused)["status"] == "cancelled", calls("scancel"))
    s.end()


if "all" in sys.argv[4:]:
    tap.case(out_of_order)
finish()
