#!/usr/bin/env python3
"""Tests bench/results/results.py: rows with several peers, targets, and that every missed target
has a reason, and no other has.
    test-results.py RESULTS.PY
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile


def result(name, value, peer=None, ratio=None, unit="us"):
    made = {"name": name, "value": value, "unit": unit, "commit": "1234567", "device": "D"}
    return made if peer is None else {**made, "peer": peer, "ratio": ratio}


RESULTS = [
    result("decode/a/us", 10, "bare", 0.9),
    result("decode/a/us", 10, "fa3", 1.4),
    result("decode/b/us", 20, "bare", 0.96),
    result("decode/b/us", 20, "fa3", 1.1),
    result("decode/c/us", 30, "bare", 0.8),
    result("decode/c/us", 30, "fa3", 1.04),
    result("decode/d/us", 40, "bare", 0.5),
]
PLAIN = [
    result("noop", 0.8, "socket", 5),
    result("lost", 0),
    result("pair", 15),
    result("busy", 97, unit="%"),
]
RATES = [
    result("prefill/x", 400, "cudnn", 2, "TFLOP/s"),
    result("prefill/x", 400, "fa3", 0.9, "TFLOP/s"),
    result("prefill/y", 500, "cudnn", 0.5, "TFLOP/s"),
    result("prefill/y", 500, "fa3", 1.6, "TFLOP/s"),
]
TARGETS = [
    {"name": "decode/*", "any_ratio_min": {"bare": 0.95, "fa3": 1.3}},
    {"name": "decode/*", "peer": "fa3", "ratio_min": 1.05},
    {"name": "noop", "peer": "socket", "value_max": 1},
    {"name": "lost", "value_max": 0},
    {"name": "pair", "value_max": 14},
    {"name": "busy", "value_min": 90},
    {"name": "busy", "peer": "nobody", "ratio_min": 2},
]
SHORTFALLS = [
    {"title": "Pairs", "names": ["pair"], "why": ["They are slow.", "Very."]},
    {"title": "Decode", "names": ["decode/c/*"], "why": ["It is far."]},
]


PROFILES = [
    {**result("decode/c/us", 29), "profile": {"GB/s": 2500.4, "memory": 0.805, "tensor": 0.02, "issue": 0.17,
                                              "stalls": {"long scoreboard": 0.456, "wait": 0.19}}},
    {**result("decode/a/us", 9), "profile": {"GB/s": 3000, "memory": 0.9, "tensor": 0.02, "issue": 0.1, "stalls": {}}},
]


class Folder:
    def __init__(self, script):
        self.root = tempfile.mkdtemp(prefix="fad-test.")
        self.bench = os.path.join(self.root, "bench", "results")
        os.makedirs(self.bench)
        shutil.copy(script, self.bench)
        with open(os.path.join(self.root, "README.md"), "w", encoding="utf-8") as file:
            file.write("nothing\n")
        self.put("tables.json", {})
        self.put("targets.json", {"targets": TARGETS})
        self.put("shortfalls.json", {"shortfalls": SHORTFALLS})
        for name, results in (("one", RESULTS), ("plain", PLAIN), ("rates", RATES)):
            self.put(name + ".json", {"command": "c", "machine": "M", "date": "D", "results": results})

    def put(self, name, what):
        with open(os.path.join(self.bench, name), "w", encoding="utf-8") as file:
            json.dump(what, file)

    def run(self, what, error=None):
        done = subprocess.run([sys.executable, os.path.join(self.bench, "results.py"), what],
                              capture_output=True, text=True, check=False)
        if error is None:
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode != 0, f"{what} succeeded; expected: {error}"
            assert error in done.stderr, f"{done.stderr!r} does not say {error!r}"

    def text(self):
        with open(os.path.join(self.bench, "RESULTS.md"), encoding="utf-8") as file:
            return file.read()


def git(folder, *arguments):
    # The environment may name another repository, and the user may have settings.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@t", "-c",
                           "commit.gpgsign=false", *arguments], check=True, capture_output=True, text=True,
                          env=environment).stdout.strip()


def commits(script):
    """Cited commits must be in the history, if this is a complete checkout."""
    folder = Folder(script)
    clone = folder.root + "-clone"

    def put(name, commit):
        folder.put(name + ".json", {"command": "c", "machine": "M", "date": "D",
                                    "results": [{**result("lost", 0), "commit": commit}]})

    def check(error=None):
        folder.run("write")
        folder.run("check", error)

    try:
        # Without a repository only uncommitted changes are found.
        put("more", "7654321")
        check()
        put("more", "1234567-dirty")
        check("more.json cites 1234567-dirty, a build with uncommitted changes")
        os.remove(os.path.join(folder.bench, "more.json"))
        put("epyc-2cores-requests", "1234567-dirty")
        check()
        put("epyc-2cores-requests", "1234567")
        check("epyc-2cores-requests.json cites only commits")
        os.remove(os.path.join(folder.bench, "epyc-2cores-requests.json"))
        if not shutil.which("git"):
            print("no git: commits are not looked up here")
            return

        git(folder.root, "init", "-q")
        check()
        git(folder.root, "add", ".")
        git(folder.root, "commit", "-q", "-m", "one")
        check("one.json cites 1234567, which is not in this history")
        here = git(folder.root, "rev-parse", "--short", "HEAD")
        for name in ("one", "plain", "rates"):
            path = os.path.join(folder.bench, name + ".json")
            with open(path, encoding="utf-8") as file:
                text = file.read().replace("1234567", here)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        check()
        # A commit that no branch has is in no clone.
        git(folder.root, "commit", "-q", "--allow-empty", "-m", "two")
        put("more", git(folder.root, "rev-parse", "--short", "HEAD"))
        check()
        git(folder.root, "reset", "-q", "HEAD^")
        check("more.json cites")
        put("more", "")
        check("more.json cites no commit")
        # A shallow clone is incomplete; a folder inside another repository has no history of its own.
        git(folder.root, "add", ".")
        git(folder.root, "commit", "-q", "-m", "three")
        git(folder.root, "clone", "-q", "--depth", "1", "file://" + folder.root, clone)
        whole, folder.bench = folder.bench, os.path.join(clone, "bench", "results")
        folder.run("check")
        folder.bench = os.path.join(folder.root, "inner", "bench", "results")
        shutil.copytree(clone, os.path.join(folder.root, "inner"), ignore=shutil.ignore_patterns(".git"))
        folder.run("check")
        folder.bench = whole
        folder.run("check", "more.json cites no commit")
    finally:
        shutil.rmtree(folder.root)
        shutil.rmtree(clone, ignore_errors=True)


def main():
    commits(sys.argv[1])
    folder = Folder(sys.argv[1])
    try:
        folder.run("write")
        folder.run("check")
        text = folder.text()
        for line in (
            # 3 decode cells with two targets each, and 4 plain ones.
            "Of 10 targets 7 are met. The tables show the others, with the share of the target that is reached, "
            "as a speed.",
            "### Pairs\n\nThey are slow.\n\nVery.\n",
            "| pair | 15 | us | ≤ 14 us | 0.933 | plain |",
            "| decode/c/us | 30 | us | bare ≥ 0.95 or fa3 ≥ 1.3 | 0.842 | one |",
            "| decode/c/us | 30 | us | fa3 ≥ 1.05 | 0.990 | one |",
            "| name | value | unit | bare | fa3 | target |\n|---|---:|---|---:|---:|---|\n"
            "| decode/a/us | 10 | us | 0.9 | 1.4 | bare ≥ 0.95 or fa3 ≥ 1.3: met; fa3 ≥ 1.05: met |",
            "| decode/c/us | 30 | us | 0.8 | 1.04 | bare ≥ 0.95 or fa3 ≥ 1.3: **missed**; "
            "fa3 ≥ 1.05: **missed** |",
            # No target applies without its peer.
            "| decode/d/us | 40 | us | 0.5 |  |  |",
            "| name | value | unit | peer | ratio | target |",
            "| noop | 0.8 | us | socket | 5 | ≤ 1 us: met |",
            "| lost | 0 | us |  |  | ≤ 0 us: met |",
            "| busy | 97 | % |  |  | ≥ 90 %: met |",
            "Geometric means of the ratios: cudnn 1, fa3 1.2; to the best of them 0.6708.",
        ):
            assert line in text, f"{line!r} is not in:\n{text}"

        # Each missed target needs a reason, and no other has one.
        folder.put("shortfalls.json", {"shortfalls": SHORTFALLS[:1]})
        folder.run("check", "shortfalls.json has no reason why decode/c/us of one.json misses")
        folder.put("shortfalls.json", {"shortfalls": [*SHORTFALLS, {"title": "Noops", "names": ["noop"],
                                                                    "why": ["?"]}]})
        folder.run("write", "shortfalls.json has noop under 'Noops', but no such target is missed")
        assert folder.text() == text, "a failed run changed the file"

        # The first matching entry counts.
        entries = [{"title": "All", "names": ["*"], "why": ["?"]}, *SHORTFALLS]
        folder.put("shortfalls.json", {"shortfalls": entries})
        folder.run("check", "has pair under 'Pairs', but no such target is missed")

        # Profiles are shown with missed targets, are not rows, and have no targets.
        folder.put("shortfalls.json", {"shortfalls": SHORTFALLS})
        folder.put("looked.json", {"command": "c", "machine": "M", "date": "D", "note": "Old.", "results": PROFILES})
        folder.run("write")
        text = folder.text()
        assert "Of 10 targets 7 are met." in text, text
        line = "| decode/c/us | 29 | 2500 | 80% | 2% | 17% | long scoreboard 46%, wait 19% |"
        table, section = text.split("## looked")
        assert "Profiles, from looked (Old.):" in table and "\nOld.\n" in section and table.count(line) == 1, text
        assert "decode/a/us | 9 |" not in table and "| decode/a/us | 9 | 3000 | 90% | 2% | 10% |  |" in section, text
        assert line in section, text

        # Results of another GPU are shown without targets.
        folder.put("targets.json", {"gpu": "H200", "targets": TARGETS})
        folder.put("other.json", {"command": "c", "machine": "M", "date": "D", "results": [
            {**row, "device": "NVIDIA H100; a processor"} for row in PLAIN]})
        folder.run("write")
        text = folder.text()
        assert "Of 10 targets 7 are met." in text, text
        assert "| noop | 0.8 | us | socket | 5 |  |" in text.split("## other")[1], text

        # A target may be 0.
        folder.put("shortfalls.json", {"shortfalls": SHORTFALLS})
        folder.put("plain.json", {"command": "c", "machine": "M", "date": "D",
                                  "results": [*PLAIN[:1], result("lost", 1), *PLAIN[2:]]})
        folder.run("check", "has no reason why lost of plain.json misses ≤ 0 us")
    finally:
        shutil.rmtree(folder.root)


if __name__ == "__main__":
    main()
