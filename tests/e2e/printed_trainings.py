"""Each training of recipes/demo.yaml that a page prints runs without warnings: as printed, but with two steps of a tiny model and few tokens, in a folder with the data where `make run` leaves them. Commands that need a store, a shared folder or Slurm are left out.

    python3 tests/e2e/printed_trainings.py build/lateen"""
import os
import re
import subprocess
import sys
import tempfile

from tap import Tap

lateen = os.path.abspath(sys.argv[1])
root = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
pages = subprocess.run(["git", "ls-files", "docs/*.md", "README.md"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
ELSEWHERE = re.compile(r"s3://|/mnt/|srun|sbatch|^SLURM")
SMALL = "--steps 2 --model.width 48 --model.ffn 64 --data.seq 32 --eval.rows 8 --sample.every 0 --threads 1"


def printed():
    for page in pages:
        with open(os.path.join(root, page), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                text = re.split(r"\s{2,}#|\s{3,}\S", line.strip())[0].rstrip("& ")
                if "train recipes/demo.yaml" in text and re.match(r"(build/)?lateen |mpirun ", text) and not ELSEWHERE.search(text):
                    yield f"{page}:{number}", text


def shortened(text):
    text = re.sub(r"^mpirun -n (\d+) lateen", r"lateen launch --ranks \1", text)
    text = re.sub(r" --(trace-step|diloco\.every) \d+", r" --\1 1", text)
    # Other tests may use these ports.
    text = text.replace("127.0.0.1:9400", "127.0.0.1:0").replace("--page 8080", "--page 0")
    # Those of the recipe are longer than two steps.
    rate = "" if "--lr." in text else " --lr.warmup 0 --lr.cooldown 0"
    return re.sub(r"^(build/)?lateen", lateen, text) + rate + " " + SMALL


tap = Tap()
with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, "runs", "demo-data")
    os.makedirs(data)
    os.symlink(os.path.join(root, "recipes"), os.path.join(folder, "recipes"))
    os.symlink(os.path.join(root, "tests/golden/data/demo_tokenizer.json"), os.path.join(data, "tokenizer.json"))
    with open(os.path.join(folder, "text.txt"), "w") as f:
        f.write("The old house stood at the end of the lane. It was a dark night, and the river rose.\n" * 200)
    for name in ("train", "valid"):
        subprocess.run([lateen, "tokenize", "text.txt", "--split-on", "line", "--tokenizer", "runs/demo-data/tokenizer.json", "--append-eod", "--out", f"runs/demo-data/{name}"],
                       cwd=folder, capture_output=True, check=True)
    commands = list(printed())
    tap.check("pages print trainings of the demo", len(commands) >= 12, commands)
    for where, text in commands:
        done = subprocess.run(["sh", "-c", shortened(text)], cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        wrong = [line for line in done.stderr.splitlines() if re.search(r"warn: |lateen: |error: ", line)]
        tap.check(f"{where}: {text}", done.returncode == 0 and not wrong, wrong or done.stderr[-500:])
sys.exit(tap.end())
