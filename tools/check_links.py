#!/usr/bin/env python3
"""Check the links of every *.md without a network: a relative target must exist, and so must the heading that an anchor names.

    tools/check_links.py             every *.md that git tracks
    tools/check_links.py --site DIR  also the pages of a built site: every relative href, src and anchor

Prints a line for each broken link and exits with 1 if there is one."""
import html.parser
import os
import re
import subprocess
import sys
import unicodedata
import urllib.parse

FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)<>\s]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\s{0,3}\[[^\]]+\]:\s+(\S+)")


def prose(path):
    """The lines outside code, as (number, line), with inline code blanked out."""
    fenced = False
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if FENCE.match(line):
                fenced = not fenced
            elif not fenced and not line.startswith("    "):
                yield number, re.sub(r"`[^`]*`", lambda m: "`" + "x" * (len(m[0]) - 2) + "`", line)


def slug(title):
    """The anchor that GitHub makes for a heading."""
    title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
    title = unicodedata.normalize("NFC", title.strip().lower())
    return re.sub(r"[^\w\- ]", "", title).replace(" ", "-")


def anchors(path):
    seen, out, fenced = {}, set(), False
    with open(path, encoding="utf-8") as f:
        for line in f:
            if FENCE.match(line):
                fenced = not fenced
            heading = None if fenced else re.match(r"^#{1,6}\s+(.*?)\s*#*$", line)
            if heading:
                name = slug(heading[1])
                seen[name] = seen.get(name, -1) + 1
                out.add(name if seen[name] == 0 else f"{name}-{seen[name]}")
            out.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return out


def targets(path):
    for number, line in prose(path):
        for m in LINK.finditer(line):
            yield number, m[1]
        m = REFERENCE.match(line)
        if m:
            yield number, m[1]


def check_sources(files):
    broken = []
    for path in files:
        for number, target in targets(path):
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            where = f"{path}:{number}: {target}"
            file = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path))) if parts.path else path
            if not os.path.exists(file):
                broken.append(f"{where}: there is no {file}")
            elif parts.fragment and not (file.endswith(".md") and parts.fragment in anchors(file)):
                broken.append(f"{where}: {file} has no heading #{parts.fragment}")
    return broken


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids = [], set()

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif value and (tag, name) in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
                self.links.append(value)


def check_site(root):
    pages, broken = {}, []
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(folder, name)
                pages[os.path.normpath(path)] = page = Page()
                with open(path, encoding="utf-8") as f:
                    page.feed(f.read())
    for path, page in pages.items():
        if os.path.basename(path) == "404.html":  # Its links begin at the root of the server.
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or link in ("#", ""):
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(parts.path))) if parts.path else path
            if os.path.isdir(file):
                file = os.path.join(file, "index.html")
            if not os.path.exists(file):
                broken.append(f"{path}: {link}: there is no {file}")
            elif parts.fragment and file in pages and urllib.parse.unquote(parts.fragment) not in pages[file].ids:
                broken.append(f"{path}: {link}: no such anchor")
    return broken if pages else [f"{root}: no page"]


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    files = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    broken = check_sources([f for f in files if os.path.exists(f)])
    if len(sys.argv) == 3 and sys.argv[1] == "--site":
        broken += check_site(sys.argv[2])
    print("\n".join(broken) if broken else f"{len(files)} pages: no broken link")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
