#!/usr/bin/env python3
"""Run every command of docs/plan/*.md again and write its output below it: tools/plan_docs.py [build/lateen]"""
import glob
import re
import shlex
import subprocess
import sys

binary = sys.argv[1] if len(sys.argv) > 1 else "build/lateen"


def block(match):
    command = match.group(1)
    if command.startswith("lateen plan --model ./") or "points.csv" in command:
        return match.group(0)
    run = subprocess.run([binary] + shlex.split(command)[1:], capture_output=True, text=True)
    return "```\n$ " + command + "\n" + (run.stdout + run.stderr).rstrip() + "\n```"


for path in sorted(glob.glob("docs/plan/*.md")):
    if path.endswith("README.md") or path.endswith("validation.md"):
        continue
    text = open(path).read()
    open(path, "w").write(re.sub(r"```\n\$ (lateen [^\n]*)\n(?:[^`]*\n)?```", block, text))
