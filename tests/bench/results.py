#!/usr/bin/env python3
"""Keeps tests/bench/RESULTS.md, which is made from the JSON files beside it.

    results.py record NAME COMMAND...   run a benchmark (fabench ... --json) and keep
                                        what it says as NAME.json
    results.py keep NAME FILE COMMIT    keep what tests/gpu/race.py --json wrote on another
                                        machine, with a build of COMMIT
    results.py write                    make RESULTS.md anew
    results.py check                    fail if RESULTS.md is not what write makes

A NAME.json holds the results and, for each, what was run, where and when.
targets.json says which numbers are wanted; a name there may be a pattern.
"""

import datetime
import fnmatch
import json
import os
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "RESULTS.md")
TARGETS = "targets.json"

HEAD = """# Benchmark results

Made by `tests/bench/results.py write` from the JSON files beside it; not to be edited.
A ratio is speed against the peer, measured in the same run: above 1 is faster than it.
"""


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def number(value):
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"


def wanted(result, targets):
    """What is wanted of this result, and whether it is so."""
    for target in targets:
        if not fnmatch.fnmatchcase(result["name"], target["name"]) or target.get("peer") != result.get("peer"):
            continue
        if "ratio_min" in target:
            met = result["ratio"] >= target["ratio_min"]
            text = f"ratio ≥ {number(target['ratio_min'])}"
        else:
            met = result["value"] <= target["value_max"]
            text = f"≤ {number(target['value_max'])} {result['unit']}"
        return f"{text}: {'met' if met else '**missed**'}"
    return ""


def section(name, recorded, targets):
    commits = sorted({result["commit"] for result in recorded["results"]})
    lines = [
        f"\n## {name}\n",
        f"`{recorded['command']}`, {recorded['date']}, {recorded['machine']}, "
        f"commit {', '.join(commits)}\n",
        "| name | value | unit | peer | ratio | wanted |",
        "|---|---:|---|---|---:|---|",
    ]
    for result in recorded["results"]:
        peer = result.get("peer")
        lines.append(
            f"| {result['name']} | {number(result['value'])} | {result['unit']} | "
            f"{peer or ''} | {number(result['ratio']) if peer else ''} | "
            f"{wanted(result, targets)} |"
        )
    return "\n".join(lines) + "\n"


def generate():
    targets = load(TARGETS)["targets"]
    names = sorted(n for n in os.listdir(HERE) if n.endswith(".json") and n != TARGETS)
    return HEAD + "".join(section(n[: -len(".json")], load(n), targets) for n in names)


def record(name, command):
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    results = json.loads(output)["results"]
    if not results:
        sys.exit("the benchmark gave no results")
    recorded = {
        "command": shlex.join(command),
        "machine": results[0]["device"],
        "date": datetime.date.today().isoformat(),
        "results": results,
    }
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(recorded, file, indent=1, ensure_ascii=False)
        file.write("\n")


def keep(name, path, commit):
    with open(path, encoding="utf-8") as file:
        recorded = json.load(file)
    for result in recorded["results"]:
        result["commit"] = commit
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as file:
        json.dump(recorded, file, indent=1, ensure_ascii=False)
        file.write("\n")


def write():
    with open(RESULTS, "w", encoding="utf-8") as file:
        file.write(generate())


def check():
    with open(RESULTS, encoding="utf-8") as file:
        if file.read() != generate():
            sys.exit("RESULTS.md is not what 'tests/bench/results.py write' makes of the JSON files")


def main(arguments):
    if len(arguments) >= 3 and arguments[0] == "record":
        record(arguments[1], arguments[2:])
        write()
    elif len(arguments) == 4 and arguments[0] == "keep":
        keep(*arguments[1:])
        write()
    elif arguments == ["write"]:
        write()
    elif arguments == ["check"]:
        check()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
