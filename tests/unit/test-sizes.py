#!/usr/bin/env python3
"""No file that people write has more than 800 lines, and no internal header of the daemon or the
client more than 400 (usage: test-sizes.py SOURCE_ROOT). First checks that the check can fail."""

import os
import re
import sys

LINES_MAX = 800
HEADER_LINES_MAX = 400
SUFFIXES = (".c", ".h", ".cc", ".cpp", ".cu", ".cuh", ".S", ".py", ".pyi", ".rs", ".go", ".sh",
            ".def", ".fbs", ".build")
# Programs make these.
GENERATED = ("rust/faclient-sys/src/bindings.rs",)
# Installed headers hold the documentation of every function.
INSTALLED = re.compile(r"client/faclient(_\w+)?\.h")


def most_lines(path):
    internal = path.endswith(".h") and path.startswith(("daemon/", "client/"))
    return HEADER_LINES_MAX if internal and not INSTALLED.fullmatch(path) else LINES_MAX


def wrong(path, text):
    """Returns what is wrong with the size of the file @path, or None."""
    n = len(text.splitlines())
    if n <= most_lines(path):
        return None
    return f"{path} has {n} lines; expected at most {most_lines(path)}: cut it by topic"


def check_the_check():
    for path, n, is_wrong in (("common/x.c", 801, True), ("common/x.c", 800, False),
                              ("python/x.py", 801, True), ("daemon/kv/x.h", 401, True),
                              ("daemon/kv/x.h", 400, False), ("client/faclient_kv.h", 700, False),
                              ("client/faclientele.h", 401, True), ("kernels/x.h", 401, False)):
        if bool(wrong(path, "\n" * n)) != is_wrong:
            sys.exit(f"the check is broken: {path} of {n} lines")


def written(root):
    """Yields (path, text) of every source file and script that is not generated."""
    for folder, subfolders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        # build directories hold generated code
        subfolders[:] = [name for name in subfolders
                         if not name.startswith((".", "build-")) and name not in ("build", "target")
                         and not os.path.exists(os.path.join(folder, name, "build.ninja"))]
        for name in names:
            path = os.path.normpath(os.path.join(inside, name))
            if path in GENERATED or os.path.islink(os.path.join(root, path)):
                continue
            with open(os.path.join(root, path), "rb") as file:
                is_script = file.read(2) == b"#!"
                if not is_script and not name.endswith(SUFFIXES):
                    continue
                file.seek(0)
                yield path, file.read().decode("utf-8")


def main():
    check_the_check()
    n_files = 0
    found = []
    for path, text in written(sys.argv[1]):
        n_files += 1
        if sentence := wrong(path, text):
            found.append(sentence)
    for sentence in sorted(found):
        print(sentence)
    print(f"{n_files} files, {len(found)} too long")
    return 1 if found or n_files < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
