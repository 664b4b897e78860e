#!/usr/bin/env python3
"""Count the rows of tests/mutation.md, and write the table at its beginning.

    tools/make_mutation_table.py           rewrite the table
    tools/make_mutation_table.py --check   fail if the table is not that of the rows
    tools/make_mutation_table.py --rows    print what each row is read as

A row names files and the results of one or more samples, the latest one last: "8 of 12; 9 of 12", or one result for each file: "6, 4 and 5 of 6". Faults that
are listed in tests/mutants.tsv are not counted. A sample is left out if each of its files has been sampled again in a later row."""
import argparse
import glob
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = f"{TOP}/tests/mutation.md"
BEGIN, END = "<!-- counted by tools/make_mutation_table.py -->", "<!-- end -->"


class Sample:
    def __init__(self, line, room, files, killed, drawn):
        self.line, self.room, self.files, self.killed, self.drawn = line, room, files, killed, drawn


def files_of(room, text):
    """The files of src/ROOM that the first cell of a row names: `a.c`, `folder/`, `name*.c`. Other names are those of programs, or of files that are gone."""
    under, found = f"{TOP}/src/{room}/", []
    without = [os.path.basename(name) for name in re.findall(r"without `([^`]+)`", text)]
    for name in re.findall(r"`([^`]+)`", re.sub(r"without `[^`]+`", "", text)):
        name = name.removeprefix(f"src/{room}/")
        if name.endswith("/"):
            paths = glob.glob(f"{under}**/{name}**/*.c", recursive=True)
        elif name.endswith(".c"):
            paths = glob.glob(under + name) or glob.glob(f"{under}**/{os.path.basename(name)}", recursive=True)
        else:
            paths = []
        found += [p for p in (os.path.relpath(p, under) for p in sorted(paths)) if p not in found and os.path.basename(p) not in without]
    return found


def results_of(text, n_files):
    """(killed, drawn) of each result in the latest sample of a cell."""
    last = [part for part in text.split(";") if " of " in part][-1:]
    results = []
    for killed, drawn, each in re.findall(r"(\d+(?:, \d+)*(?: and \d+)?) of (\d+)( each)?", last[0] if last else ""):
        numbers = [int(n) for n in re.findall(r"\d+", killed)]
        results += [(n, int(drawn)) for n in numbers] * (n_files if each else 1)
    return results


def listed_of(text, n_results):
    last = text.split(";")[-1]
    numbers = [int(n) for n in re.findall(r"\d+", last)]
    return numbers if len(numbers) == n_results else [numbers[0]] * n_results if numbers and "each" in last else [sum(numbers)] + [0] * (n_results - 1)


def samples():
    head = []
    for line, text in enumerate(open(PAGE), 1):
        cells = [c.strip() for c in text.strip().strip("|").split("|")] if text.startswith("|") else []
        if not cells:
            head = []
            continue
        if not head:
            head = cells
            continue
        killed = next((i for i, c in enumerate(head) if c.startswith("killed") and c != "killed now"), None)
        if killed is None or set(cells[0]) <= set("-") or " of " not in cells[killed]:
            continue
        room, _, rest = cells[0].partition(":")
        files = files_of(room, rest)
        results = results_of(cells[killed], len(files))
        listed = listed_of(cells[killed + 1], len(results))
        if len(results) == len(files):
            for f, (k, n), l in zip(files, results, listed):
                yield Sample(line, room, [f], k, n - l)
        else:
            yield Sample(line, room, files, sum(k for k, _ in results), sum(n for _, n in results) - sum(listed))


def latest(every):
    """Samples of which a file is in no later one."""
    for i, s in enumerate(every):
        later = {f for t in every[i + 1:] if t.room == s.room and t.line > s.line for f in t.files}
        rooms = [t for t in every[i + 1:] if t.room == s.room and t.files]
        if (s.files and not set(s.files) <= later) or (not s.files and not rooms):
            yield s


def table():
    every = list(samples())
    rows = ["| room | files | faults | killed | rate |", "| --- | --- | --- | --- | --- |"]
    total = [0, 0, 0]
    kept = list(latest(every))
    for room in sorted({s.room for s in every}):
        own = [s for s in kept if s.room == room]
        named = {f for s in own for f in s.files}
        drawn, killed = sum(s.drawn for s in own), sum(s.killed for s in own)
        rows.append(f"| {room} | {len(named) if named else 'all, as one'} | {drawn} | {killed} | {100 * killed / drawn:.0f} % |")
        total = [total[0] + len(named), total[1] + drawn, total[2] + killed]
    rows.append(f"| all | {total[0]} | {total[1]} | {total[2]} | {100 * total[2] / total[1]:.0f} % |")
    return "\n".join(rows) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--rows", action="store_true")
    a = p.parse_args()
    if a.rows:
        for s in samples():
            print(f"{s.line}: {s.room}: {s.killed} of {s.drawn}: {', '.join(s.files)}")
        return 0
    page = open(PAGE).read()
    if BEGIN not in page:
        return f"{PAGE} has no place for the table"
    before, rest = page.split(BEGIN, 1)
    new = f"{before}{BEGIN}\n{table()}{END}{rest.split(END, 1)[1]}"
    if a.check:
        return 0 if new == page else f"{PAGE}: its first table is not that of its rows; tools/make_mutation_table.py writes it"
    open(PAGE, "w").write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
