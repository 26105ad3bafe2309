#!/usr/bin/env python3
"""Checks that the support matrix of docs/kernels.md is what checks and plans say.

Run as: test-support.py SUPPORT_MATRIX SOURCE_DIRECTORY [--write]
"""

import pathlib
import subprocess
import sys

BEGIN, END = "<!-- support: printed by build/tests/unit/support-matrix -->\n", "<!-- end of support -->\n"


def main():
    program, source, *options = sys.argv[1:]
    path = pathlib.Path(source) / "docs/kernels.md"
    said = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
    before, rest = path.read_text().split(BEGIN)
    written, after = rest.split(END)
    if "--write" in options:
        path.write_text(before + BEGIN + said + END + after)
    elif written != said:
        print("The support matrix of docs/kernels.md is not what the code says: "
              "tests/unit/test-support.py build/tests/unit/support-matrix . --write")
        for line in sorted(set(said.splitlines()) - set(written.splitlines())):
            print(f"+ {line}")
        for line in sorted(set(written.splitlines()) - set(said.splitlines())):
            print(f"- {line}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
