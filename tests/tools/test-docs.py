#!/usr/bin/env python3
"""Checks the project's documents: every file and folder that one names exists, lines are short
enough to be read in a terminal, and README.md keeps to its size and says at first whom fad is for.

Run as: test-docs.py SOURCE_DIRECTORY
"""

import os
import re
import sys

README_LINES_MAX = 200
README_COLUMNS_MAX = 110
COLUMNS_MAX = 120
# Generated, with tables of many columns.
WIDE = ("bench/results/RESULTS.md",)
# A terminal shows so many lines at once.
FIRST_SCREEN_LINES = 24
# A path in backquotes or as the target of a link.
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`|\]\(([^)#:]+)\)")
TOP = ("client", "common", "daemon", "docs", "kernels", "schema", "tests", "tools", "bench", "demo",
       "packaging", "python", "rust", "go")


def documents(source):
    for folder, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders
                         if not name.startswith((".", "build"))]
        for name in names:
            if name.endswith(".md"):
                yield os.path.join(folder, name)


def exists(source, document, path, is_link):
    """A link is relative to its document; a path in backquotes starts at the top, if at a folder
    of the project at all."""
    if is_link:
        return os.path.exists(os.path.join(os.path.dirname(document), path))
    if path.split("/")[0] not in TOP or "/" not in path.rstrip("/"):
        return True
    return any(os.path.exists(os.path.join(base, path))
               for base in (source, os.path.dirname(document)))


def missing(source, document):
    with open(document, encoding="utf-8") as file:
        text = re.sub(r"^```.*?^```", "", file.read(), flags=re.MULTILINE | re.DOTALL)
    for quoted, linked in NAMED.findall(text):
        if not exists(source, document, quoted or linked, bool(linked)):
            yield f"{os.path.relpath(document, source)} names {quoted or linked}, which is not there"


def wide(source, document):
    name = os.path.relpath(document, source)
    most = README_COLUMNS_MAX if name == "README.md" else COLUMNS_MAX
    with open(document, encoding="utf-8") as file:
        for number, line in enumerate(file.read().splitlines(), 1):
            if len(line) > most and name not in WIDE:
                yield f"{name}:{number} has {len(line)} columns; expected at most {most}"


def oversize(source):
    with open(os.path.join(source, "README.md"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    if len(lines) > README_LINES_MAX:
        yield f"README.md has {len(lines)} lines; expected at most {README_LINES_MAX}"
    for words in ("**You want it if**", "**You do not want it if**"):
        if not any(words in line for line in lines[:FIRST_SCREEN_LINES]):
            yield f"README.md does not say '{words}' in its first {FIRST_SCREEN_LINES} lines"


def main(source):
    found = list(oversize(source))
    for document in sorted(documents(source)):
        found += missing(source, document)
        found += wide(source, document)
    for sentence in found:
        print(sentence)
    # The check can fail.
    probe = os.path.join(source, "README.md")
    if exists(source, probe, "daemon/no-such-file.c", False) or not exists(
            source, probe, "daemon/service/main.c", False):
        sys.exit("the check itself is broken")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
