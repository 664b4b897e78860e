"""Jobs of fine-tuning: files checked line by line, adapters trained and served under their own names, events, checkpoints, pausing, cancelling, preferences, owners,
limits, and kill -9 of the server while a trainer runs: the job ends with the bits of an undisturbed one. TAP on stdout. Starts servers of its own.

usage: serve_tuning.py LATEEN MODEL [TOKENIZER]
With the module openai, also its Python client, unchanged."""
import glob
import hashlib
import json
import os
import sys
import time

from serve_client import Server, call, check, exchange, finish, scratch, tap, upload, words_of

lateen, model = sys.argv[1], sys.argv[2]
base = os.path.basename(model).rsplit(".", 1)[0]
command = [lateen, "serve", *words_of(model, sys.argv[3] if len(sys.argv) > 3 else None)]
ENDED = ("succeeded", "failed", "cancelled")


def start(folder, *flags):
    return Server(command, "--quiet", "--fine-tuning", folder, "--fine-tuning-rank", "2", "--fine-tuning-threads", "1", *flags)


def talk(i, **more):
    return {"messages": [{"role": "user", "content": f"Say {i}"}, {"role": "assistant", "content": f"There were {i} cats.", **more}]}


def pair(i):
    return {"input": {"messages": [{"role": "user", "content": f"Say {i}"}]}, "preferred_output": [{"role": "assistant", "content": f"Yes, {i} cats."}],
            "non_preferred_output": [{"role": "assistant", "content": "No."}]}


def lines(rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


def send(s, rows, key="one"):
    return upload(s, lines(rows), key, b"fine-tune")[1]["id"]


def create(s, file_id, key="one", **more):
    return call(s, "POST", "/v1/fine_tuning/jobs", {"model": base, "training_file": file_id, **more}, key)


def supervised(**hyper):
    return {"type": "supervised", "supervised": {"hyperparameters": hyper}}


def wait(s, job_id, until=ENDED, seconds=120):
    end = time.time() + seconds
    while True:
        job = call(s, "GET", f"/v1/fine_tuning/jobs/{job_id}")[1]
        if job["status"] in until or job["status"] in ENDED or time.time() > end:
            return job
        time.sleep(0.05)


def events(s, job_id, key="one"):
    """All of them, oldest first, page by page."""
    rows, after = [], ""
    while True:
        page = call(s, "GET", f"/v1/fine_tuning/jobs/{job_id}/events?limit=100{after}", key=key)[1]
        rows += page["data"]
        if not page["has_more"]:
            return rows[::-1]
        after = "&after=" + page["data"][-1]["id"]


def losses(rows):
    return [e["data"]["train_loss"] for e in rows if "train_loss" in e["data"]]


def steps(rows):
    return [e["data"]["step"] for e in rows if e["type"] == "metrics" and "train_loss" in e["data"]]


def wait_step(s, job_id, step, seconds=120):
    end = time.time() + seconds
    while time.time() < end and not any(x >= step for x in steps(events(s, job_id))):
        time.sleep(0.02)


def answer(s, name, key="one"):
    return call(s, "POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Say 7"}], "max_tokens": 12, "temperature": 0}, key)


def weights(folder, job_id):
    with open(os.path.join(folder, job_id, "run", "adapter", "adapter_model.safetensors"), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def names(s, key="one"):
    return [m["id"] for m in call(s, "GET", "/v1/models", key=key)[1]["data"]]


@tap.case
def cycle():
    folder = os.path.join(scratch, "cycle")
    s = start(folder, "--api-key", "one,two")
    before = answer(s, base)[1]["choices"][0]["message"]["content"]
    f = send(s, [talk(i) for i in range(12)])
    status, job = create(s, f, suffix="cats", seed=5, validation_file=f, metadata={"k": "v"}, method=supervised(n_epochs=4, batch_size=4))
    check("a job is created in OpenAI's shape", status == 200 and job["object"] == "fine_tuning.job" and job["status"] == "validating_files" and job["fine_tuned_model"] is None
          and job["seed"] == 5 and job["error"] is None and job["method"]["supervised"]["hyperparameters"]["learning_rate_multiplier"] == "auto" and job["metadata"] == {"k": "v"}, job)
    job = wait(s, job["id"])
    name = job["fine_tuned_model"]
    check("it succeeds", job["status"] == "succeeded" and name.startswith(f"ft:{base}:cats:") and job["trained_tokens"] > 0 and job["finished_at"] >= job["created_at"], job)
    told = events(s, job["id"])
    check("each step is an event: 12 examples, 4 a step, 4 times", steps(told) == list(range(1, 13)) and told[-1]["message"].startswith("The job has succ"), told)
    check("the loss falls", told and [e for e in told if "valid_loss" in e["data"]][-1]["data"]["valid_loss"] < 0.7 *
          [e for e in told if "train_loss" in e["data"]][0]["data"]["train_loss"])
    rows = exchange(s, "GET", f"/v1/files/{job['result_files'][0]}/content")[1].decode().splitlines()
    check("its metrics are a file", rows[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy" and [r.split(",")[0] for r in rows[1:]] == [str(i) for i in range(1, 13)]
          and rows[3].split(",")[3] != "" and rows[1].split(",")[3] == "", rows)
    saved = call(s, "GET", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints")[1]["data"]
    check("the last three epochs are checkpoints", [c["step_number"] for c in saved] == [12, 9, 6] and all(c["metrics"]["full_valid_loss"] > 0 for c in saved), saved)
    after = answer(s, name)
    check("its model is served, and answers differently", after[0] == 200 and after[1]["model"] == name and after[1]["choices"][0]["message"]["content"] != before, after)
    last = answer(s, saved[0]["fine_tuned_model_checkpoint"])[1]["choices"][0]["message"]["content"]
    for path in ("", f"/{job['id']}/events", f"/{job['id']}/checkpoints"):
        lost = call(s, "GET", f"/v1/fine_tuning/jobs{path}?after=nobody")
        check(f"jobs{path[-12:]}: a page behind an id that is not in the list", lost[0] == 404 and "nobody" in lost[1]["error"]["message"], lost)
    check("the checkpoint of the last step is the model", last == after[1]["choices"][0]["message"]["content"], last)
    check("the base is as it was", answer(s, base)[1]["choices"][0]["message"]["content"] == before)
    check("it is listed for its owner alone", name in names(s) and not any(n.startswith("ft:") for n in names(s, "two")), names(s, "two"))
    other = [answer(s, name, "two"), call(s, "GET", f"/v1/models/{name}", key="two"), call(s, "GET", f"/v1/fine_tuning/jobs/{job['id']}", key="two"),
             call(s, "DELETE", f"/v1/models/{name}", key="two"), create(s, f, "two"), create(s, send(s, [talk(1)], "two"), "two", model=name)]
    check("another key cannot use, see, delete or continue any of it", [a[0] for a in other] == [404, 404, 404, 404, 400, 404], other)
    check("nor by the field lora", call(s, "POST", "/v1/chat/completions", {"model": base, "lora": [{"id": name, "scale": 1}], "messages": [{"role": "user", "content": "x"}]}, "two")[0] == 400)
    listed = call(s, "GET", "/v1/fine_tuning/jobs?metadata%5Bk%5D=v")[1]["data"]
    check("jobs are listed, by metadata too", [j["id"] for j in listed] == [job["id"]] and call(s, "GET", "/v1/fine_tuning/jobs?metadata%5Bk%5D=w")[1]["data"] == [])
    status, deeper = create(s, f, model=name, method=supervised(n_epochs=1, batch_size=4))
    deeper = wait(s, deeper["id"])
    rest = losses(events(s, deeper["id"]))
    check("a model of fine-tuning is the base of another job", deeper["status"] == "succeeded" and deeper["model"] == name and rest[0] < 0.5 * losses(told)[0], (deeper, rest))
    s.p.kill()
    s.p.wait()
    s = start(folder, "--api-key", "one,two")
    check("models outlive the server", answer(s, name)[1]["choices"][0]["message"] == after[1]["choices"][0]["message"] and call(s, "GET", f"/v1/fine_tuning/jobs/{job['id']}")[1] == job)
    gone = call(s, "DELETE", f"/v1/models/{name}")
    check("a model is deleted", gone == (200, {"id": name, "object": "model", "deleted": True}) and answer(s, name)[0] == 404 and name not in names(s)
          and not os.path.exists(os.path.join(folder, job["id"], "run", "adapter")), gone)
    check("the base is not", call(s, "DELETE", f"/v1/models/{base}")[0] == 403)
    check("an ended job keeps neither its data nor its checkpoints", not glob.glob(os.path.join(folder, job["id"], "*.jsonl.*")) and
          not os.path.exists(os.path.join(folder, job["id"], "train.jsonl")) and not os.path.exists(os.path.join(folder, job["id"], "run", "checkpoints")))
    metrics = exchange(s, "GET", "/metrics")[1].decode()
    check("/metrics counts jobs", 'lateen_fine_tuning_jobs{status="succeeded"} 2' in metrics)
    s.end()


@tap.case
def refused():
    folder = os.path.join(scratch, "refused")
    s = start(folder, "--api-key", "one")
    good = send(s, [talk(0)])
    for what, rows, line, said in (
            ("what is no JSON", [talk(0), "{bad"], 2, ""), ("no messages", [{"prompt": "a", "completion": "b"}], 1, "prompt"), ("an unknown role", [{"messages": [{"role": "me", "content": "x"}]}], 1, "role"),
            ("nothing to learn", [talk(0), "", {"messages": [{"role": "user", "content": "x"}]}], 3, "assistant"), ("a weight of 2", [talk(0, weight=2)], 1, "weight"),
            ("all weights 0", [talk(0, weight=0)], 1, "assistant"), ("an image", [{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}], 1, "image_url"),
            ("a conversation that is too long", [talk(0), talk("x " * 2000)], 2, "tokens"), ("a member without effect", [{**talk(0), "colour": 1}], 1, "colour"),
            ("pairs for supervised", [pair(0)], 1, "input"), ("a blank file", ["", " "], None, "no line")):
        job = wait(s, create(s, send(s, rows))[1]["id"])
        check(f"{what}: failed with its line", job["status"] == "failed" and job["error"]["code"] == "invalid_training_file" and job["error"]["param"] == "training_file"
              and job["error"]["line"] == line and said in job["error"]["message"], job.get("error"))
    job = wait(s, create(s, send(s, [{**pair(0), "non_preferred_output": pair(0)["preferred_output"]}]), method={"type": "dpo"})[1]["id"])
    check("a pair of the same answers: failed with its line", job["status"] == "failed" and job["error"]["line"] == 1 and "the same" in job["error"]["message"], job.get("error"))
    job = wait(s, create(s, good, validation_file=send(s, ["\ufeff[]"]))[1]["id"])
    check("a byte order mark before a line of the validation file is no part of it", "must be a JSON object" in job["error"]["message"], job["error"])
    check("a line of the validation file, too", job["error"]["code"] == "invalid_validation_file" and job["error"]["line"] == 1, job["error"])
    for what, more, said in (("another model", {"model": "gpt-4o"}, "gpt-4o"), ("integrations", {"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, "integrations"),
                             ("reinforcement", {"method": {"type": "reinforcement"}}, "reinforcement"), ("beta of supervised", {"method": supervised(beta=0.1)}, "beta"),
                             ("0 epochs", {"hyperparameters": {"n_epochs": 0}}, "n_epochs"), ("half a batch", {"method": supervised(batch_size=1.5)}, "batch_size"),
                             ("an unknown hyperparameter", {"hyperparameters": {"lr": 1}}, "lr"), ("a suffix with a colon", {"suffix": "a:b"}, "suffix"),
                             ("an unknown field", {"colour": 1}, "colour"), ("no such file", {"validation_file": "file-none"}, "file-none")):
        status, text = create(s, good, **more)
        check(f"{what}: refused by name", status in (400, 404) and said in text["error"]["message"], text)
    check("a file for batches is not one for fine-tuning", create(s, upload(s, lines([talk(0)]))[1]["id"])[0] == 400)
    check("jobs and paths that do not exist", [call(s, *x)[0] for x in (("GET", "/v1/fine_tuning/jobs/ftjob-x"), ("POST", "/v1/fine_tuning/jobs/ftjob-x/cancel"),
          ("GET", "/v1/fine_tuning/jobs/..%2F..%2Flock"))] == [404, 404, 404])
    said = call(s, "GET", "/v1/fine_tuning/jobs/ftjob-x/events")[1]["error"]["message"]
    check("a job that does not exist is named by its id alone", said == "No fine-tuning job found with id 'ftjob-x'.", said)
    s.end()
    plain = Server(command, "--quiet")
    check("without --fine-tuning, jobs are refused by name", create(plain, "file-x")[0] == 501 and "--fine-tuning" in create(plain, "file-x")[1]["error"]["message"])
    plain.end()
    several = Server(command, "--fine-tuning", folder, "--models", f"b={model}", ready=False)
    check("so is --fine-tuning with several models", several.p.wait(60) == 2 and "--models" in several.said())


@tap.case
def interrupted():
    """Two jobs with the same seed: one undisturbed; one whose server is killed, which is paused
    and resumed, and whose trainer is killed."""
    folder = os.path.join(scratch, "interrupted")
    s = start(folder, "--api-key", "one", "--fine-tuning-waiting", "2", "--fine-tuning-jobs", "1")
    f = send(s, [talk(i) for i in range(20)])
    how = {"seed": 3, "method": supervised(n_epochs=15, batch_size=1)}
    alone = create(s, f, **how)[1]["id"]
    second = create(s, f, **how)[1]["id"]
    third = create(s, f, **how)
    check("the number of a key's jobs that have not ended is bounded", third[0] == 429 and third[1]["error"]["code"] == "fine_tuning_limit", third)
    wait_step(s, alone, 1)
    job = call(s, "GET", f"/v1/fine_tuning/jobs/{second}")[1]
    check("a second job waits for the trainer", job["status"] in ("validating_files", "queued") or call(s, "GET", f"/v1/fine_tuning/jobs/{alone}")[1]["status"] == "succeeded", job)
    check("a file can be deleted when its lines were checked", wait(s, second, ("queued", "running"))["status"] in ("queued", "running") and call(s, "DELETE", f"/v1/files/{f}")[0] == 200)
    check("the first succeeds", wait(s, alone)["status"] == "succeeded")
    wait_step(s, second, 3)
    s.p.kill()
    s.p.wait()
    s = start(folder, "--api-key", "one")
    check("after kill -9 of the server the job continues", call(s, "GET", f"/v1/fine_tuning/jobs/{second}")[1]["status"] in ("queued", "running", "succeeded"))
    job = wait(s, second, ("running",))
    status, job = call(s, "POST", f"/v1/fine_tuning/jobs/{second}/pause")
    if status == 200:
        check("it is paused", job["status"] == "paused" and call(s, "POST", f"/v1/fine_tuning/jobs/{second}/pause")[0] == 400, job)
        check("and resumed", call(s, "POST", f"/v1/fine_tuning/jobs/{second}/resume")[1]["status"] == "queued")
    job = wait(s, second)
    told = events(s, second)
    check("it ends with the bits of the undisturbed one", job["status"] == "succeeded" and weights(folder, second) == weights(folder, alone), job)
    check("each step is reported once", steps(told) == list(range(1, 301)), steps(told))
    f = send(s, [talk(i) for i in range(20)])
    third = create(s, f, method=supervised(n_epochs=50, batch_size=1))[1]["id"]
    wait_step(s, third, 1)
    status, job = call(s, "POST", f"/v1/fine_tuning/jobs/{third}/cancel")
    check("a job is cancelled at once, and for ever", status == 200 and job["status"] == "cancelled" and call(s, "POST", f"/v1/fine_tuning/jobs/{third}/cancel")[0] == 400
          and call(s, "POST", f"/v1/fine_tuning/jobs/{third}/resume")[0] == 400, job)
    end = time.time() + 60
    left = [os.path.join(folder, third, *x) for x in (("run", "checkpoints"), ("train.jsonl",))]
    while any(os.path.exists(x) for x in left) and time.time() < end:
        time.sleep(0.05)
    check("and its data are removed when its trainer has ended", not any(os.path.exists(x) for x in left), left)
    s.end()


@tap.case
def preferences():
    folder = os.path.join(scratch, "preferences")
    s = start(folder)
    f = send(s, [pair(i) for i in range(8)], "")
    status, job = create(s, f, method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 2, "batch_size": 4}}})
    check("a job of dpo is created", status == 200 and job["method"]["dpo"]["hyperparameters"]["beta"] == 0.2, job)
    job = wait(s, job["id"])
    loss = losses(events(s, job["id"]))
    rows = exchange(s, "GET", f"/v1/files/{job['result_files'][0]}/content")[1].decode().splitlines() if job["result_files"] else []
    check("it begins at the loss of no preference, ln 2, and falls", job["status"] == "succeeded" and len(loss) == 4 and abs(loss[0] - 0.6931) < 1e-3 and loss[-1] < loss[0], (job["error"], loss))
    check("its metrics have the share of pairs that are right", rows and rows[0].endswith("valid_accuracy") and rows[-1].split(",")[2] == "1", rows)
    check("its model answers", answer(s, job["fine_tuned_model"])[0] == 200)
    wrong = wait(s, create(s, send(s, [pair(0), talk(0)], ""), method={"type": "dpo"})[1]["id"])
    check("a conversation is not a pair", wrong["error"]["line"] == 2 and "messages" in wrong["error"]["message"], wrong["error"])
    s.end()


@tap.case
def client():
    folder = os.path.join(scratch, "client")
    try:
        import openai
    except ImportError:
        tap.skip("OpenAI's client", "python3 has no openai")
        return
    s = start(folder)
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none")
    f = c.files.create(file=("chats.jsonl", lines([talk(i) for i in range(10)])), purpose="fine-tune")
    job = c.fine_tuning.jobs.create(model=base, training_file=f.id, suffix="of-client", hyperparameters={"n_epochs": 2, "batch_size": 5})
    end = time.time() + 120
    while c.fine_tuning.jobs.retrieve(job.id).status not in ENDED and time.time() < end:
        time.sleep(0.1)
    job = c.fine_tuning.jobs.retrieve(job.id)
    check("client: jobs.create, retrieve", job.status == "succeeded" and job.hyperparameters.n_epochs == 2 and job.error is None, job)
    told = list(c.fine_tuning.jobs.list_events(job.id, limit=3))
    check("client: jobs.list_events, page by page", len(told) > 6 and len({e.id for e in told}) == len(told) and told[0].message.startswith("The job has succ"), told[:1])
    check("client: jobs.list, checkpoints.list", [j.id for j in c.fine_tuning.jobs.list(limit=1)] == [job.id] and [k.step_number for k in c.fine_tuning.jobs.checkpoints.list(job.id)] == [4, 2])
    said = c.chat.completions.create(model=job.fine_tuned_model, messages=[{"role": "user", "content": "Say 7"}], max_tokens=8)
    check("client: chat with the model", said.model == job.fine_tuned_model and said.usage.completion_tokens > 0)
    check("client: files.content of the results", c.files.content(job.result_files[0]).text.startswith("step,train_loss"))
    check("client: models.delete", c.models.delete(job.fine_tuned_model).deleted and job.fine_tuned_model not in [m.id for m in c.models.list()])
    other = c.fine_tuning.jobs.create(model=base, training_file=f.id, method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 50}}})
    check("client: jobs.cancel", c.fine_tuning.jobs.cancel(other.id).status == "cancelled")
    s.end()


finish()
