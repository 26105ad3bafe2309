#!/usr/bin/env python3
"""The example in README.md is client/examples/attention.c, and it has 30 lines at most.

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
    if shown != [example]:
        sys.exit("README.md must show client/examples/attention.c, and nothing else in C")
    if len(example.splitlines()) > 30:
        sys.exit("client/examples/attention.c has more than 30 lines")


if __name__ == "__main__":
    main(sys.argv[1])
