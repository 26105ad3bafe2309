#!/usr/bin/env python3
"""Checks the project's documents: every file, folder, section and function that one names exists,
lines are short enough to be read in a terminal, README.md keeps to its size and says at first whom fad is
for, and NEWS.md has a line for each change. Files that comments in C name exist, too.

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
# A terminal shows this many lines at once.
FIRST_SCREEN_LINES = 24
# A path in backquotes or as the target of a link.
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`|\]\(([^)#:]+)(?:#[^)]*)?\)")
# A link to a section, of this document or another.
SECTION = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
CALL = re.compile(r"`(fa_\w+)\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
SOURCES = (".c", ".h", ".cc", ".cu", ".S", ".def")
# A source file by its name alone, or by its path. A leading dot or dash: part of another name.
FILE = re.compile(r"(?<![\w./<*-])((?:\w[\w.-]*/)*\w[\w-]*\.(?:c|h|cc|cu|py|md|fbs|def))\b(?![\w(])")
# Files of others, and of a reader.
FOREIGN = {"cuda.h", "FILE.py", "test-MODULE.c"}
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


def sections(path):
    """The names by which links reach the headings of a document."""
    with open(path, encoding="utf-8") as file:
        headings = re.findall(r"^#+ (.*)$", file.read(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing(source, document, names, code):
    """@names: those of all files; @code: all sources as one text."""
    with open(document, encoding="utf-8") as file:
        text = re.sub(r"^```.*?^```", "", file.read(), flags=re.MULTILINE | re.DOTALL)
    document_name = os.path.relpath(document, source)
    for quoted, linked in NAMED.findall(text):
        bare = FILE.fullmatch(quoted) and "/" not in quoted
        if not exists(source, document, quoted or linked, bool(linked)) or (
                bare and quoted not in names | FOREIGN):
            yield f"{document_name} names {quoted or linked}, which is not there"
    for linked, section in SECTION.findall(text):
        path = os.path.join(os.path.dirname(document), linked) if linked else document
        if os.path.exists(path) and section not in sections(path):
            yield f"{document_name} links to section {section} of {linked or 'itself'}, which is not there"
    for call in sorted(set(CALL.findall(text))):
        # NEWS.md has the former names of what was renamed.
        if call + "(" not in code and call != "fa_noun_verb" and document_name != "NEWS.md":
            yield f"{document_name} names {call}(), which no source has"


def missing_in_comments(path, text, names, paths):
    for comment in COMMENT.findall(text):
        for name in FILE.findall(comment):
            if name in FOREIGN:
                continue
            if os.path.basename(name) not in names or (
                    "/" in name and not any(known.endswith("/" + name) for known in paths)):
                yield f"{path}: a comment names {name}, which is not there"


def project_files(source):
    for folder, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders
                         if not name.startswith((".", "build")) and name != "target"]
        yield from (os.path.join(folder, name) for name in names)


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
    with open(os.path.join(source, "NEWS.md"), encoding="utf-8") as file:
        for number, line in enumerate(file.read().splitlines(), 1):
            if line.startswith(" "):
                yield f"NEWS.md:{number} goes on with the line before; expected one line for each change"


def main(source):
    found = list(oversize(source))
    paths = list(project_files(source))
    names = {os.path.basename(path) for path in paths}
    texts = {}
    for path in paths:
        if path.endswith(SOURCES):
            with open(path, encoding="utf-8") as file:
                texts[os.path.relpath(path, source)] = file.read()
    code = "\n".join(texts.values())
    for document in sorted(documents(source)):
        found += missing(source, document, names, code)
        found += wide(source, document)
    for path, text in sorted(texts.items()):
        found += missing_in_comments(path, text, names, paths)
    for sentence in found:
        print(sentence)
    # The check can fail.
    probe = os.path.join(source, "README.md")
    if exists(source, probe, "daemon/no-such-file.c", False) or not exists(
            source, probe, "daemon/service/main.c", False):
        sys.exit("the check itself is broken")
    for comment, n in (("/* see kv/store.h and ring.h */", 0), ("// no-such-file.h", 1),
                       ("/* kv/ring.h */", 1), ('"no-such-file.h"', 0)):
        if len(list(missing_in_comments("x.c", comment, names, paths))) != n:
            sys.exit(f"the check itself is broken: {comment}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
