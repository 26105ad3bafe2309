#!/usr/bin/env python3
"""Keeps tests/bench/RESULTS.md, which is made from the JSON files beside it, and what
README.md shows of them.

    results.py record NAME COMMAND...   run a benchmark (fabench ... --json) and keep
                                        what it says as NAME.json
    results.py keep NAME FILE COMMIT    keep what tests/gpu/race.py --json wrote on another
                                        machine, with a build of COMMIT
    results.py keep-all PREFIX DIRECTORY COMMIT
                                        the same of all that tests/gpu/all.py wrote there, each
                                        PART.json as PREFIX-PART.json
    results.py write                    make RESULTS.md and the tables of README.md anew
    results.py check                    fail if they are not what write makes

A NAME.json holds the results and, for each, what was run, where and when.
targets.json says which numbers are wanted; a name there may be a pattern. tables.json has the
tables of README.md: {FILE:NAME} in a cell is the value of that result in FILE.json, and
{FILE:NAME|PEER} what its peer had.
"""

import datetime
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "RESULTS.md")
README = os.path.join(HERE, "../../README.md")
TARGETS = "targets.json"
TABLES = "tables.json"

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
        elif "value_min" in target:
            met = result["value"] >= target["value_min"]
            text = f"≥ {number(target['value_min'])} {result['unit']}"
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
    names = sorted(n for n in os.listdir(HERE) if n.endswith(".json") and n not in (TARGETS, TABLES))
    return HEAD + "".join(section(n[: -len(".json")], load(n), targets) for n in names)


def cell(template):
    """A cell of a table of README.md, with the numbers that it names."""

    def value(match):
        name, peer = match.group(2), match.group(4)
        found = [
            r
            for r in load(match.group(1) + ".json")["results"]
            if r["name"] == name and (not peer or r.get("peer") == peer)
        ]
        if not found:
            sys.exit(f"{TABLES} wants {match.group(0)}, which {match.group(1)}.json does not have")
        number_, unit = found[0]["value"], found[0]["unit"].replace("us", "µs")
        if peer:
            # Ratios are of speeds.
            number_ = number_ / found[0]["ratio"] if "/" in unit else number_ * found[0]["ratio"]
        return f"{number_:.0f} {unit}" if number_ >= 100 else f"{number_:.1f} {unit}"

    return re.sub(r"\{([^:{}]+):([^{}|]+)(\|([^{}]+))?\}", value, template)


def table(name, rows):
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    lines = [re.sub(r"\|  (?=\|)", "| ", line) for line in lines]
    return "\n".join([f"<!-- {name}: made by tests/bench/results.py write -->", *lines, f"<!-- end of {name} -->"])


def generate_readme(text):
    """@text with its tables made anew."""
    for name, rows in load(TABLES).items():
        text, n = re.subn(f"<!-- {name}: .*?<!-- end of {name} -->", lambda _: table(name, rows), text,
                          flags=re.DOTALL)
        if n != 1:
            sys.exit(f"README.md has {n} tables called {name}, not one")
    return text


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


def keep_all(prefix, directory, commit):
    names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    if not names:
        sys.exit(f"{directory} has no results")
    for name in names:
        keep(f"{prefix}-{name[: -len('.json')]}", os.path.join(directory, name), commit)


def generated():
    """The files that are made, and what is to be in them."""
    with open(README, encoding="utf-8") as file:
        return {RESULTS: generate(), README: generate_readme(file.read())}


def write():
    for path, text in generated().items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def check():
    for path, text in generated().items():
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit(f"{os.path.basename(path)} is not what 'tests/bench/results.py write' makes "
                         "of the JSON files")


def main(arguments):
    if len(arguments) >= 3 and arguments[0] == "record":
        record(arguments[1], arguments[2:])
        write()
    elif len(arguments) == 4 and arguments[0] == "keep":
        keep(*arguments[1:])
        write()
    elif len(arguments) == 4 and arguments[0] == "keep-all":
        keep_all(*arguments[1:])
        write()
    elif arguments == ["write"]:
        write()
    elif arguments == ["check"]:
        check()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
