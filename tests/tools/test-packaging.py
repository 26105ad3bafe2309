#!/usr/bin/env python3
"""What the Debian packages repeat of the tree: the libraries that the build needs, the symbols of the
library, and that no maintainer is named. Also: packaging/build-debs refuses to name nobody.

usage: test-packaging.py SOURCE_DIRECTORY"""
import os
import re
import subprocess
import sys

# build-essential has them.
ESSENTIAL = {"gcc", "g++", "libc6-dev", "binutils"}
failed = False


def check(condition, what):
    global failed
    if not condition:
        print("FAILED:", what)
        failed = True


def same(found, expected, what):
    check(found == expected,
          f"{what}: {sorted(expected - found)} missing, {sorted(found - expected)} too many")


def main(source):
    def read(*path):
        with open(os.path.join(source, "packaging", *path), encoding="utf-8") as file:
            return file.read()

    control = read("debian", "control.in")
    found = re.search(r"^Build-Depends:\n((?: .*\n)+)", control, re.MULTILINE)[1]
    found = set(re.findall(r"[a-z][\w+.-]*", re.sub(r"\(.*?\)|<.*?>", "", found)))
    section = re.search(r"^\[build\]\n(.*?)^\[", read("build-deps"), re.MULTILINE | re.DOTALL)[1]
    lines = [line.split()[:-1] for line in section.split("\n") if line and line[0] != "#"]
    check(len(lines) > 10, "the list of what the build needs is not found")
    for names in lines:
        names = set(names) - {"|"}
        check(names & found or names & ESSENTIAL, f"debian/control.in builds without any of {sorted(names)}")

    symbols = dict(re.findall(r"^ (\w+)@(\w+) ", read("debian", "libfaclient0.symbols"), re.MULTILINE))
    expected = {}
    with open(os.path.join(source, "client", "libfaclient.map"), encoding="utf-8") as file:
        for version, text in re.findall(r"(\w+) \{\nglobal:\n(.*?)(?:local:|\})", file.read(), re.DOTALL):
            expected[version] = version
            expected.update({name: version for name in re.findall(r"(\w+);", text)})
    check(len(expected) > 50, "the symbols of the library are not found")
    same(set(symbols.items()), set(expected.items()), "debian/libfaclient0.symbols")

    with open(os.path.join(source, "meson.build"), encoding="utf-8") as file:
        version = re.search(r"^  version: '(.*)',$", file.read(), re.MULTILINE)[1]
    check(f"\nVersion:        {version}\n" in read("fad.spec"), f"fad.spec is not for version {version}")

    check("Maintainer: @MAINTAINER@\n" in control, "debian/control.in names a maintainer")
    nobody = {name: value for name, value in os.environ.items() if name not in ("DEBFULLNAME", "DEBEMAIL")}
    done = subprocess.run([os.path.join(source, "packaging", "build-debs"), "--source"],
                          capture_output=True, text=True, env=nobody)
    check(done.returncode == 1 and "DEBFULLNAME" in done.stderr, "build-debs builds without a maintainer")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
