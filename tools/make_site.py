#!/usr/bin/env python3
"""Collect the pages of the documentation for mkdocs: `make docs` runs this, then mkdocs, then tools/check_links.py on the result.

    tools/make_site.py DIR

Every *.md that git tracks is copied into DIR: docs/X becomes X, README.md becomes project.md, and all others keep their paths. Links are rewritten.
If a link names another file of the repository (a script, a result), that file is copied too. A link to a folder leads to its README.md, or becomes
plain text if it has none."""
import os
import posixpath
import shutil
import subprocess
import sys
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_links  # noqa: E402

JQUERY = "/usr/share/javascript/jquery/jquery.min.js"


def place(path):
    """The path of a repository's file in the site."""
    if path == "README.md":
        return "project.md"
    return path[len("docs/"):] if path.startswith("docs/") else path


def resolve(page, target):
    """The repository's file to which a link of a page leads; None if that is not a file."""
    file = posixpath.normpath(posixpath.join(posixpath.dirname(page), urllib.parse.unquote(target)))
    if os.path.isdir(file):
        file = posixpath.join(file, "README.md")
    return file if os.path.isfile(file) else None


def rewrite(page, line, masked, wanted):
    """A line with its links rewritten for the site; the files to which they lead are added to `wanted`."""
    out, end = [], 0
    for m in check_links.LINK.finditer(masked):
        parts = urllib.parse.urlsplit(m[1])
        if parts.scheme or parts.netloc or not parts.path:
            continue
        file = resolve(page, parts.path)
        start, stop = m.span(1)
        if file is None:  # A folder without a page: its name is kept as text.
            text = line[m.start():m.end()]
            out += [line[end:m.start()], text[text.index("[") + 1:text.rindex("](")]]
            end = m.end()
            continue
        wanted.add(file)
        link = posixpath.relpath(place(file), posixpath.dirname(place(page)) or ".")
        out += [line[end:start], link + ("#" + parts.fragment if parts.fragment else "")]
        end = stop
    return "".join(out) + line[end:]


def copy_page(page, root, wanted):
    masked = dict(check_links.prose(page))
    to = os.path.join(root, place(page))
    os.makedirs(os.path.dirname(to), exist_ok=True)
    with open(page, encoding="utf-8") as f, open(to, "w", encoding="utf-8") as out:
        for number, line in enumerate(f, 1):
            out.write(rewrite(page, line, masked[number], wanted) if number in masked else line)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: tools/make_site.py DIR")
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    root = sys.argv[1]
    shutil.rmtree(root, ignore_errors=True)
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    pages = [f for f in files if f.endswith(".md") and os.path.isfile(f)]
    wanted = {f for f in files if f.startswith("docs/img/") or f.startswith(("docs/css/", "docs/js/"))}
    for page in pages:
        copy_page(page, root, wanted)
    for file in sorted(wanted - set(pages)):
        to = os.path.join(root, place(file))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(file, to)
    # Debian 12's theme requests jQuery under a name that Debian's package does not have.
    if os.path.isfile(JQUERY):
        shutil.copyfile(JQUERY, os.path.join(root, "js", "jquery-3.6.0.min.js"))


if __name__ == "__main__":
    main()
