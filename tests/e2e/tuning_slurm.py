#!/usr/bin/env python3
"""Jobs of fine-tuning as jobs of a real Slurm of two nodes: one that succeeds while its server is killed and started again, one that its owner cancels, one that another user cancels,
one that is paused and resumed, one whose trainer fails, one that exceeds its time limit, one that Slurm accepts only later, one that was submitted by a server that died before it knew its number; and what is refused at the start. tuning_slurm.py LATEEN MODEL [TOKENIZER]. Skipped without Debian's slurm-wlm; needs root, as slurmd does."""
import glob
import json
import os
import shutil
import subprocess
import sys
import time

import slurm
from serve_client import Server, call, check, finish, scratch, tap, upload, words_of

if not slurm.is_here():
    tap.skip("Slurm", "needs root, and Debian's slurm-wlm")
    finish()
lateen, model = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
base = os.path.basename(model).rsplit(".", 1)[0]
command = [lateen, "serve", *words_of(model, os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None)]
ENDED = ("succeeded", "failed", "cancelled")
folder = os.path.join(scratch, "it's jobs")
os.makedirs(f"{scratch}/slurm")
os.makedirs(folder)
cluster = slurm.Slurm(f"{scratch}/slurm", ["n1", "n2"], more="PartitionName=closed Nodes=n1 State=DOWN\n")


cluster.start()


def flags(*more, where=folder):
    return ["--quiet", "--fine-tuning", where, "--fine-tuning-rank", "2", "--fine-tuning-threads", "1", "--fine-tuning-submit", "slurm", *more]


def start(*more, where=folder, **env):
    return Server(command, *flags(*more, where=where), env=env)


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def drain():
    """From now on no job begins."""
    run("scontrol", "update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test")


def resume():
    run("scontrol", "update", "NodeName=n[1-2]", "State=RESUME")


def send(s, rows):
    return upload(s, "\n".join(json.dumps(row) for row in rows).encode(), "", b"fine-tune")[1]["id"]


def talks(n):
    return [{"messages": [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"There were {i} cats."}]} for i in range(n)]


def create(s, epochs=50, n=20):
    how = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 1}}}
    return call(s, "POST", "/v1/fine_tuning/jobs", {"model": base, "training_file": send(s, talks(n)), "seed": 3, "method": how})[1]["id"]


def get(s, job):
    return call(s, "GET", f"/v1/fine_tuning/jobs/{job}")[1]


def until(what, seconds=240):
    end = time.time() + seconds
    while not (got := what()) and time.time() < end:
        time.sleep(0.1)
    return got


def wait(s, job, states=ENDED, seconds=240):
    until(lambda: get(s, job)["status"] in states or get(s, job)["status"] in ENDED, seconds)
    return get(s, job)


def events(s, job):
    rows, after = [], ""
    while True:
        page = call(s, "GET", f"/v1/fine_tuning/jobs/{job}/events?limit=100{after}")[1]
        rows += page["data"]
        if not page["has_more"]:
            return rows[::-1]
        after = "&after=" + page["data"][-1]["id"]


def messages(s, job):
    return [e["message"] for e in events(s, job) if e["type"] == "message"]


def steps(s, job):
    return [e["data"]["step"] for e in events(s, job) if "train_loss" in e["data"]]


def state_file(job):
    with open(glob.glob(f"{scratch}/*/{job}/job.json")[0]) as f:
        return json.load(f)


def weights(job):
    with open(glob.glob(f"{scratch}/*/{job}/run/adapter/adapter_model.safetensors")[0], "rb") as f:
        return f.read()


def number(job):
    """Slurm's number of the job, once it is known."""
    return until(lambda: state_file(job)["slurm_job"])


def queue():
    """{name: (state, number)} of the jobs that Slurm has not ended."""
    r = run("squeue", "--noheader", "--format=%j|%T|%A")
    return {line.split("|")[0]: (line.split("|")[1], int(line.split("|")[2])) for line in r.stdout.splitlines()}


@tap.case
def refused():
    where = os.path.join(scratch, "refused")
    no_slurm = os.path.join(scratch, "bin")
    os.makedirs(no_slurm)
    os.makedirs(where)
    for what, more, says, env in (("an unknown partition", ("--fine-tuning-sbatch", "--partition=nope"), ("--partition=nope", "Invalid partition name specified"), {}),
                                  ("an unknown option", ("--fine-tuning-sbatch", "--bogus=1"), ("unrecognized option '--bogus=1'",), {}),
                                  ("an option that is ours", ("--fine-tuning-sbatch", "--array=0-3"), ("--array",), {}),
                                  ("a time limit without time to save", ("--fine-tuning-sbatch", "--time=1:30"), ("90 s", "120 s"), {}),
                                  ("a GPU of a number", ("--fine-tuning-device", "cuda:1"), ("cuda:1",), {}),
                                  ("GPUs that the nodes do not know", ("--fine-tuning-device", "cuda"), ("generic resource",), {}),
                                  ("a machine without sbatch", (), ("sbatch: No such file",), {"PATH": no_slurm})):
        s = Server(command, *flags(*more, where=where), ready=False, env=env)
        check(f"{what} is refused at the start", s.p.wait(60) != 0 and all(x in s.said() for x in says), s.said())
    s = Server(command, "--fine-tuning", where, "--fine-tuning-sbatch", "--partition=x", ready=False)
    check("options of sbatch have no effect without Slurm", s.p.wait(60) == 2 and "--fine-tuning-submit slurm" in s.said(), s.said())


@tap.case
def killed():
    """The server is killed while Slurm trains; the job continues, and the next server finds it."""
    s = start()
    job = create(s, n=19)
    slurm_id = number(job)
    check("Slurm has the job under its name", queue().get(job, ("", 0))[1] == slurm_id, (queue(), slurm_id, messages(s, job)))
    check("it is running", wait(s, job, ("running",))["status"] == "running", messages(s, job))
    check("its steps are reported while it runs", until(lambda: len(steps(s, job)) > 3 and get(s, job)["status"] == "running"), get(s, job))
    s.p.kill()
    s.p.wait()
    before = state_file(job)
    check("the server that was killed knew it", before["slurm_job"] == slurm_id, before)
    s = start()
    check("the next one finds it as it was", get(s, job)["status"] in ("running", "succeeded"), get(s, job))
    done = wait(s, job)
    told = messages(s, job)
    check("it succeeds, by the same job of Slurm", done["status"] == "succeeded" and sum("Submitted to Slurm" in m for m in told) == 1 and sum("RUNNING" in m for m in told) == 1, (done, told))
    check("each step is reported once", steps(s, job) == list(range(1, 951)), (len(steps(s, job)), steps(s, job)[:5]))
    here = Server(command, "--quiet", "--fine-tuning", os.path.join(scratch, "here"), "--fine-tuning-rank", "2", "--fine-tuning-threads", "1")
    alone = create(here, n=19)
    wait(here, alone)
    check("with the bits of a job that the server trains by itself", weights(job) == weights(alone), get(here, alone))
    here.end()
    r = call(s, "POST", "/v1/chat/completions", {"model": done["fine_tuned_model"], "messages": [{"role": "user", "content": "Say 7"}], "max_tokens": 12, "temperature": 0})
    check("its model answers", r[0] == 200 and r[1]["choices"][0]["message"]["content"], r)
    check("checkpoints are reported and listed", any(m.startswith("Checkpoint created") for m in told) and len(call(s, "GET", f"/v1/fine_tuning/jobs/{job}/checkpoints")[1]["data"]) == 3, told)
    check("its data are removed, and Slurm's number too", not os.path.exists(f"{folder}/{job}/train.jsonl") and state_file(job)["slurm_job"] == 0, os.listdir(f"{folder}/{job}"))
    s.end()


@tap.case
def ends():
    """What ends a job early. All of these jobs wait for two nodes with one core."""
    os.makedirs(f"{scratch}/late")
    copy = shutil.copy(lateen, f"{scratch}/lateen")
    other_server = Server([copy, *command[1:]], *flags(where=f"{scratch}/late"))
    drain()
    # It exceeds its limit, because its program does not save when it is asked to.
    late = create(other_server, n=100)
    run("scontrol", "update", f"JobId={number(late)}", "TimeLimit=1")
    with open(f"{scratch}/stubborn", "w") as f:
        f.write("#!/bin/bash\ntrap '' USR2\necho 'lateen: not yet' >&2\nwhile :; do sleep 1; done\n")
    os.chmod(f"{scratch}/stubborn", 0o755)
    os.rename(f"{scratch}/stubborn", copy)
    resume()
    wait(other_server, late, ("running",))

    s = start()
    cancelled, waits = create(s, n=100), create(s, epochs=45)
    wait(s, cancelled, ("running",))
    check("a job for which there is no node is queued, and says why", until(lambda: any("PENDING (Resources)" in m or "PENDING (Priority)" in m for m in messages(s, waits)))
          and get(s, waits)["status"] == "queued", messages(s, waits))
    until(lambda: steps(s, cancelled))
    status, job = call(s, "POST", f"/v1/fine_tuning/jobs/{cancelled}/cancel")
    check("a job is cancelled at once", status == 200 and job["status"] == "cancelled", job)
    check("and Slurm's job soon", until(lambda: cancelled not in queue()) and until(lambda: not os.path.exists(f"{folder}/{cancelled}/train.jsonl")), queue())

    wait(s, waits, ("running",))
    until(lambda: len(steps(s, waits)) > 3)
    status, job = call(s, "POST", f"/v1/fine_tuning/jobs/{waits}/pause")
    check("a job is paused", status == 200 and job["status"] == "paused", job)
    resumed = call(s, "POST", f"/v1/fine_tuning/jobs/{waits}/resume")[1]
    check("and resumed before Slurm has ended it", resumed["status"] == "queued", resumed)
    job = wait(s, waits)
    check("it succeeds by a second job of Slurm, and reports each step once", job["status"] == "succeeded" and sum("Submitted to Slurm" in m for m in messages(s, waits)) == 2
          and steps(s, waits) == list(range(1, 901)), (job, messages(s, waits), len(steps(s, waits))))

    other = create(s, n=100)
    wait(s, other, ("running",))
    run("scancel", str(number(other)))
    job = wait(s, other)
    check("a job that somebody else cancels is cancelled, and says so", job["status"] == "cancelled" and "CANCELLED" in messages(s, other)[-1] and "not by this server" in messages(s, other)[-1],
          (job, messages(s, other)))

    drain()
    wrong = create(s, n=100)
    number(wrong)
    with open(f"{folder}/{wrong}/train.jsonl", "w") as f:
        f.write("no JSON\n")
    resume()
    job = wait(s, wrong)
    check("a job whose trainer fails says why", job["status"] == "failed" and job["error"]["code"] == "training_failed" and "FAILED (NonZeroExitCode)" in job["error"]["message"]
          and "train.jsonl:1: " in job["error"]["message"] and "srun" not in job["error"]["message"], job["error"])

    job = wait(other_server, late)
    check("so does one that exceeds its time limit", job["status"] == "failed" and "TIMEOUT (TimeLimit): not yet" in job["error"]["message"], (job, queue()))
    other_server.end()
    s.end()


@tap.case
def again():
    """Before its time limit and when it is preempted, a job saves and queues again."""
    s = start()
    job = create(s, n=100)
    until(lambda: steps(s, job) and get(s, job)["status"] == "running")
    slurm_id = number(job)
    drain()
    run("scancel", "--signal=USR2", str(slurm_id))  # As Slurm does before the limit.
    check("a job that saves and queues again is queued", wait(s, job, ("queued",))["status"] == "queued", messages(s, job))
    check("and is the same job of Slurm", number(job) == slurm_id and queue()[job] == ("PENDING", slurm_id) and until(lambda: "PENDING" in "".join(messages(s, job)[-2:])), messages(s, job))
    resume()
    done, told = wait(s, job), steps(s, job)
    check("it continues, and succeeds", done["status"] == "succeeded" and told == sorted(set(told)) and told[-1] == 5000, (done, told[-5:]))
    s.end()


@tap.case
def later():
    """A Slurm that accepts no jobs at present; a server that died between sbatch and its answer."""
    s = start("--fine-tuning-sbatch", "--partition=closed")
    job = create(s, epochs=2)
    check("a job that Slurm does not take waits, and says why", until(lambda: any("is asked again" in m or "PartitionDown" in m for m in messages(s, job))) and get(s, job)["status"] == "queued",
          messages(s, job))
    run("scontrol", "update", "PartitionName=closed", "State=UP")
    done = wait(s, job)
    check("it succeeds when Slurm takes it", done["status"] == "succeeded", (done, messages(s, job)))

    drain()
    lost = create(s, epochs=2)
    slurm_id = number(lost)
    s.p.kill()
    s.p.wait()
    path = f"{folder}/{lost}/job.json"
    text = json.dumps({**state_file(lost), "slurm_job": 0})
    with open(path, "w") as f:
        f.write(text)
    s = start("--fine-tuning-sbatch", "--partition=closed")
    check("a server whose nodes are all drained starts, and finds the job by its name", until(lambda: state_file(lost)["slurm_job"]) == slurm_id, state_file(lost))
    resume()
    done = wait(s, lost)
    check("it succeeds", done["status"] == "succeeded" and sum("Submitted" in m for m in messages(s, lost)) == 1, (done, messages(s, lost)))
    s.end()


cluster.end()
finish()
