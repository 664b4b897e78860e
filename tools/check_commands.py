#!/usr/bin/env python3
"""Compare the names in the documentation with the program and the sources, without running the printed commands:

    commands     `lateen VERB ...`: the verb, its second word, its options, the choices of an option
    run folders  two different training commands of a page must not share one, because the second would be refused
    options      `--name` in a sentence: an option of some verb, or of a script of ours
    recipe keys  `lr.warmup`: an option of `lateen train`
    files        recipes/..., tools/..., and so on: they exist
    targets      `make NAME`
    names        `lt_tensor`, `LATEEN_CACHE_DIR`, `accepted_tokens`: an identifier of the sources

    tools/check_commands.py PROGRAM [PAGE...]     build/lateen; without a page every *.md and the comments of recipes

Prints a line for each name that does not exist, and then exits with 1. tools/check_links.py checks links."""
import glob
import os
import re
import shlex
import subprocess
import sys

FENCE = re.compile(r"^\s*(```|~~~)")
PLACEHOLDER = re.compile(r"^[A-Z][A-Z0-9_./-]*$|[<>…]|\.\.\.")
FOLDERS = ("recipes", "tools", "tests", "bench", "src", "include", "examples", "deploy", "data/demo")
# Names of other programs, which need not be in our sources.
OTHERS = {
    "target_clones", "evict_last",  # GCC, PTX
    "MPI_Isend", "MPI_Irecv", "MPI_Test",
    "gsm8k_cot", "bnb_4bit_use_double_quant", "loss_add_tail",  # lm-evaluation-harness, transformers, TRL
    "--long", "--environment", "--kv-cache-dtype", "--minimal",  # zstd, sbatch of Alps, vLLM, lcov
}
# Files with names that do not exist, to test this.
OWN = ("tools/check_commands.py", "tests/suites/59_docs.sh")
# Pages that quote the output of other programs, or the results of a day.
SKIPPED = ("bench/results/",)


def ask(program, *words):
    r = subprocess.run([program, *words], capture_output=True, text=True)
    return r.stdout


class Verbs:
    """The text of `lateen VERB [SECOND] --help`."""

    def __init__(self, program):
        self.program, self.helps = program, {}
        self.names = set(ask(program, "completion", "verbs").split())
        self.seconds = {}
        for verb in self.names:
            found = set()
            for line in ask(program, verb, "--help").split("\n\n")[0].splitlines():
                for part in re.split(r"\|", re.sub(r"^\s*(usage:)?\s*", "", line)):
                    m = re.match(rf"\s*(?:lateen )?{verb} ([a-z|]+)(?=[\s|]|$)", part)
                    if m:
                        found.update(m[1].split("|"))
                m = re.search(rf"lateen {verb} ([a-z]+(?:\|[a-z]+)+)", line)
                if m:
                    found.update(m[1].split("|"))
            self.seconds[verb] = found

    def options(self, verb, second=None):
        """A dict from names to choices, or to None if any value is allowed."""
        key = (verb, second)
        if key not in self.helps:
            text = ask(self.program, verb, *([second] if second else []), "--help")
            found = {}
            for m in re.finditer(r"^  (--[\w.-]+)(.*)$", text, re.M):
                choices = re.search(r": ([\w.-]+(?:\|[\w.-]+)+)(?: \(default|$)", m[2])
                found[m[1].replace("_", "-")] = choices[1].split("|") if choices else None
                if re.search(r"\(default (true|false)\)$", m[2]):
                    found["--no-" + m[1][2:].replace("_", "-")] = None
            self.helps[key] = found
        return self.helps[key]

    def every_option(self):
        out = {"--help", "--version", "--verbose", "--log-json"}
        for verb in self.names:
            for second in [None, *self.seconds[verb]]:
                out.update(self.options(verb, second))
        return out


def code(path):
    """(number, text, whole) for each piece of code: a command of a block, with its continuation lines, or code in a sentence."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    fenced, i = False, 0
    if path.endswith((".yaml", ".sbatch")):  # The comments of a recipe.
        for number, line in enumerate(lines, 1):
            m = re.match(r"\s*#\s+((?:srun |mpirun -n \d+ )?(?:build/)?lateen .*)", line)
            if m:
                yield number, m[1], True
        return
    while i < len(lines):
        line, number = lines[i], i + 1
        i += 1
        if FENCE.match(line):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            text = line.strip()
            while i < len(lines) and (text.endswith("\\") or text.count("'") % 2 == 1 and re.match(r"(\$ )?(build/)?(lateen|curl|python3) ", text)) and lines[i].strip():
                text = text.rstrip("\\") + " " + lines[i].strip()
                i += 1
            yield number, text, True
        else:
            for m in re.finditer(r"(`+)(.+?)\1", line):
                yield number, m[2].strip(), False


def words_of(text):
    """The words of a command line up to a wide gap, which is followed by an explanation."""
    text = re.split(r"\s{2,}(?![^'\"]*['\"](?:\s|$))|\s#\s", text)[0]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def words_of_sources():
    files = subprocess.run(["git", "ls-files", "src", "include", "tests", "tools", "bench", "recipes", "examples", "deploy", "Makefile"],
                           capture_output=True, text=True, check=True).stdout.split()
    words, all_text = set(), []
    for path in files:
        if path.endswith((".md", ".gguf", ".safetensors", ".bin", ".png", ".svg")) or path in OWN or os.path.getsize(path) > 1 << 20:
            continue
        with open(path, encoding="utf-8", errors="ignore") as f:
            text = f.read()
        words.update(re.findall(r"[A-Za-z_]\w*", text))
        all_text.append(text)
    return words, "\n".join(all_text)


class Check:
    def __init__(self, program):
        self.verbs = Verbs(program)
        self.options = self.verbs.every_option()
        self.keys = {o[2:].replace("-", "_") for o in self.verbs.options("train")}
        self.sections = {k.split(".")[0] for k in self.keys if "." in k}
        self.broken = []
        self.words, self.spelled = words_of_sources()
        self.folders = {}
        listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
        self.files = {name for f in listed for name in (os.path.basename(f), os.path.basename(f).split(".")[0])}
        self.targets = set()
        for path in listed:
            if path.endswith(("Makefile", ".mk")):
                with open(path, encoding="utf-8") as f:
                    self.targets.update(" ".join(re.findall(r"^([a-z][\w -]*):(?!=)", f.read(), re.M)).split())

    def command(self, where, words):
        """words begin with the verb."""
        if not words or PLACEHOLDER.search(words[0]) or words[0] in ("VERB", "help"):
            return
        verb = words[0]
        if verb in ("--help", "--version", "--verbose", "--log-json"):
            self.command(where, words[1:])
            return
        if verb not in self.verbs.names:
            self.broken.append(f"{where}: there is no verb {verb}")
            return
        if verb == "train":
            self.folder(where, words)
        second = None
        if len(words) > 1 and words[1] in self.verbs.seconds[verb]:
            second = words[1]
        options = {**self.verbs.options(verb, second)}
        options.update({"--help": None, "--verbose": None, "--log-json": None})
        i = 1
        while i < len(words):
            word = words[i]
            i += 1
            if word in ("|", "&&", "||", ";", "&", ">", ">>", "<", "2>", "2>&1") or word.endswith(";"):
                return
            if word == "--":
                if verb == "submit":
                    self.command(where, ["train", *words[i:]])
                return
            if verb == "launch" and word in self.verbs.names:
                self.command(where, words[i - 1:])
                return
            if not word.startswith("--") or " " in word or PLACEHOLDER.search(word) or word == "--KEY":
                continue
            name, _, value = word.partition("=")
            name = name.rstrip(",.;:)").replace("_", "-")
            if name not in options and verb != "sandbox":
                self.broken.append(f"{where}: lateen {verb}{' ' + second if second else ''} has no option {name}")
            elif options.get(name) and i < len(words) and not value:
                value = words[i]
                if re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", value) and value not in options[name]:
                    self.broken.append(f"{where}: {name} of lateen {verb} cannot be {value}, only {', '.join(options[name])}")
            if verb == "sandbox" and name not in options and "--" not in words[:i]:
                self.broken.append(f"{where}: lateen sandbox has no option {name}")

    def sentence(self, where, text):
        """Check code in a sentence that is not a command."""
        m = re.fullmatch(r"(--[a-z][\w.-]*)([ =].*)?", text)
        if m and m[1].replace("_", "-") not in self.options and f'"{m[1]}"' not in self.spelled and m[1] not in OTHERS:
            self.broken.append(f"{where}: no verb and no script has an option {m[1]}")
        m = re.fullmatch(r"([a-z]+)\.([a-z_0-9]+)(: .*)?", text)
        if m and m[1] in self.sections and f"{m[1]}.{m[2]}" not in self.keys and not self.is_word(f"{m[1]}.{m[2]}"):
            self.broken.append(f"{where}: lateen train has no option {m[1]}.{m[2]}")
        m = re.fullmatch(r"([A-Za-z_]\w*_\w*)(\(\))?", text)
        ours = m and (not m[1].isupper() or m[1].startswith(("LATEEN_", "LT_"))) and not re.search(r"[a-z]_[A-Z]+$", m[1])
        if ours and m[1] not in OTHERS and not self.is_word(m[1]):
            self.broken.append(f"{where}: no source has {m[1]}")

    def is_word(self, name):
        return name in self.words or name in self.spelled or name in self.files

    def paths(self, where, text):
        for m in re.finditer(r"(?<![\w/.$~}-])((?:\.\./)*(?:" + "|".join(FOLDERS) + r")/[\w.*{},/-]*)(?![<\w])", text):
            path = re.sub(r"^(\.\./)+", "", m[1]).rstrip(".,")
            if PLACEHOLDER.search(path) or re.search(r"[A-Z]{4,}", path):
                continue
            tried = [path] if "{" not in path else [re.sub(r"\{([^}]*)\}", x, path) for x in re.search(r"\{([^}]*)\}", path)[1].split(",")]
            for one in tried:
                if not any(glob.glob(one + end) for end in ("", ".c", ".h", ".cu", ".cuh")):
                    self.broken.append(f"{where}: there is no {one}")
        for m in re.finditer(r"(?:^|\s)make ([a-z][a-z-]+)(?=$|\s|[,.;:])", text):
            if text.startswith(("make", "$ make")) and m[1] not in self.targets:
                self.broken.append(f"{where}: the Makefile has no target {m[1]}")

    def folder(self, where, words):
        """Check that no other command of the page trains into the same folder with other options."""
        page, out = where.rsplit(":", 1)[0], None
        recipe = words[1] if len(words) > 1 and words[1].endswith(".yaml") else None
        if "--out" in words[:-1]:
            out = words[words.index("--out") + 1]
        elif recipe and os.path.exists(recipe):
            with open(recipe, encoding="utf-8") as f:
                named = re.search(r"^out: (\S+)", f.read(), re.M)
            out = named[1] if named else None
        if out is None or PLACEHOLDER.search(out):
            return
        # Options that a resumed run may change.
        same = re.sub(r" --(metrics\.listen|log\.tensorboard|page|resume|trace.step|guard\.\w+|steps)( [^-]\S*)?", "", " ".join(words))
        before = self.folders.setdefault((page, out), (same, where))
        if before[0] != same:
            self.broken.append(f"{where}: trains into {out} as {before[1]} does, with other options")

    def piece(self, where, text, whole):
        text = re.sub(r"^\$ ", "", text)
        for m in re.finditer(r"(?:^|[\s(&|])(?:build/)?lateen (?=[a-z-])", text):
            rest = text[m.end():]
            begins = not text[:m.start()].strip() or re.search(r"(^|\s)(srun|mpirun|run|nohup|\w+=\S*|\||&&|\|\||;|for|do|\[\w+\])", text[:m.start()])
            if begins and (whole is False or words_of(rest)[:1] and words_of(rest)[0] in self.verbs.names | {"--help"} or text.startswith(("lateen", "build/lateen"))):
                self.command(where, words_of(rest))


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    program = sys.argv[1] if len(sys.argv) > 1 else "build/lateen"
    check = Check(program)
    files = sys.argv[2:] or subprocess.run(["git", "ls-files", "*.md", "recipes/*.yaml", "recipes/*.sbatch"], capture_output=True, text=True, check=True).stdout.split()
    n = 0
    for path in files:
        if path.startswith(SKIPPED) or not os.path.exists(path):
            continue
        for number, text, whole in code(path):
            n += 1
            where = f"{path}:{number}"
            check.piece(where, text, whole)
            check.paths(where, text)
            if not whole:
                check.sentence(where, text)
    print("\n".join(check.broken) if check.broken else f"{len(files)} files, {n} pieces of code: all names in them exist")
    return 1 if check.broken else 0


if __name__ == "__main__":
    sys.exit(main())
