#!/usr/bin/env python3
"""The program in README.md is client/examples/attention.c, and it has 30 lines at most. Other
C there is parts of programs, which call what the library has.

Run as: test-readme.py SOURCE_DIRECTORY
"""

import os
import re
import sys


def main(source):
    with open(os.path.join(source, "README.md"), encoding="utf-8") as file:
        shown = re.findall(r"^```c\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    with open(os.path.join(source, "client/examples/attention.c"), encoding="utf-8") as file:
        example = file.read()
    if shown[:1] != [example]:
        sys.exit("the first C that README.md shows must be client/examples/attention.c")
    declared = ""
    for header in ("client/faclient.h", "client/faclient_kv.h", "client/faclient_timeline.h"):
        with open(os.path.join(source, header), encoding="utf-8") as file:
            declared += file.read()
    for call in re.findall(r"\bfa_\w+(?=\()", "".join(shown[1:])):
        if call + "(" not in declared:
            sys.exit(f"README.md calls {call}, which the library does not have")
    if len(example.splitlines()) > 30:
        sys.exit("client/examples/attention.c has more than 30 lines")


if __name__ == "__main__":
    main(sys.argv[1])
