#!/usr/bin/env python3
"""Keeps bench/results/RESULTS.md, which is made from the JSON files beside it, and what
README.md shows of them.

    results.py record NAME COMMAND...   run a benchmark (fabench ... --json) and keep
                                        what it says as NAME.json
    results.py keep NAME FILE COMMIT    keep what bench/race.py --json wrote on another
                                        machine, with a build of COMMIT
    results.py keep-all PREFIX DIRECTORY COMMIT
                                        the same of all that bench/all.py wrote there, each
                                        PART.json as PREFIX-PART.json
    results.py write                    make RESULTS.md and the tables of README.md anew
    results.py check                    fail if they are not what write makes, or if a file
                                        cites a commit that nobody can look at

A NAME.json holds the results and, for each, what was run, where and when.

targets.json says which numbers are wanted, of a "gpu": files of another one have none; a name
there may be a pattern. With ratio_min it is the
ratio to the peer, with any_ratio_min one of the ratios to several, else the value itself.

shortfalls.json says why numbers that are wanted are not there: entries of a title, patterns of
names, and paragraphs. A number that is missed belongs to the first entry that has its name; one
without an entry is an error, as is a pattern without a number that is missed.

tables.json has the tables of README.md: {FILE:NAME} in a cell is the value of that result in
FILE.json, and {FILE:NAME|PEER} what its peer had.
"""

import datetime
import fnmatch
import json
import math
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
SHORTFALLS = "shortfalls.json"

# Rows of builds that no commit has, and why they are here all the same.
UNCOMMITTED = {
    "epyc-2cores": "recorded before this was checked; nothing else has the CPU's kernels",
    "epyc-2cores-requests": "recorded before this was checked; no later one has requests on two processors",
}

HEAD = """# Benchmark results

Made by `bench/results/results.py write` from the JSON files beside it; not to be edited.
A ratio is speed against the peer, measured in the same run: above 1 is faster than it.
"""


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def number(value):
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"


class Row:
    """The results of one name: their value, and the ratio to each peer."""

    def __init__(self, result):
        self.name, self.value, self.unit = result["name"], result["value"], result["unit"]
        self.ratios = {}

    def verdicts(self, targets):
        """Of each target for it: what is wanted, and how much of that there is."""
        for target in targets:
            if not fnmatch.fnmatchcase(self.name, target["name"]):
                continue
            if "any_ratio_min" in target:
                least = target["any_ratio_min"]
                if not least.keys() <= self.ratios.keys():
                    continue
                yield (
                    " or ".join(f"{peer} ≥ {number(ratio)}" for peer, ratio in least.items()),
                    max(self.ratios[peer] / ratio for peer, ratio in least.items()),
                )
            elif "ratio_min" in target:
                if target["peer"] in self.ratios:
                    yield (
                        f"{target['peer']} ≥ {number(target['ratio_min'])}",
                        self.ratios[target["peer"]] / target["ratio_min"],
                    )
            elif target.get("peer") not in (None, *self.ratios):
                continue
            elif "value_min" in target:
                yield f"≥ {number(target['value_min'])} {self.unit}", self.value / target["value_min"]
            else:
                most = target["value_max"]
                yield (
                    f"≤ {number(most)} {self.unit}",
                    most / self.value if self.value > 0 else 1.0,
                )


def rows_of(results):
    """Results of the same name and value that follow one another are a row."""
    rows = []
    for result in results:
        peer = result.get("peer")
        last = rows[-1] if rows else None
        if (
            not last
            or (last.name, last.value, last.unit) != (result["name"], result["value"], result["unit"])
            or not peer
            or peer in last.ratios
        ):
            rows.append(Row(result))
        if peer:
            rows[-1].ratios[peer] = result["ratio"]
    return rows


def told(verdicts):
    return "; ".join(f"{text}: {'met' if share >= 1 else '**missed**'}" for text, share in verdicts)


def geometric_means(rows, peers):
    """Of kernels' rates, where each has all peers: of the ratios to each, and to the best."""
    if len(rows) < 2 or any(row.unit != "TFLOP/s" or row.ratios.keys() != set(peers) for row in rows):
        return []

    def mean(ratios):
        return number(math.exp(sum(map(math.log, ratios)) / len(rows)))

    means = [f"{peer} {mean([row.ratios[peer] for row in rows])}" for peer in peers]
    best = mean([min(row.ratios.values()) for row in rows])
    return [f"\nGeometric means of the ratios: {', '.join(means)}; to the best of them {best}."]


def section(name, recorded, targets):
    commits = sorted({result["commit"] for result in recorded["results"]})
    rows = rows_of(recorded["results"])
    peers = list(dict.fromkeys(peer for row in rows for peer in row.ratios))
    # Where no row has two of them a column for each would be empty for the most part.
    wide = any(len(row.ratios) > 1 for row in rows)
    columns = peers if wide else ["peer", "ratio"]
    lines = [
        f"\n## {name}\n",
        f"`{recorded['command']}`, {recorded['date']}, {recorded['machine']}, "
        f"commit {', '.join(commits)}\n",
        f"| name | value | unit | {' | '.join(columns)} | wanted |",
        "|---|---:|---|" + ("---:|" * len(peers) if wide else "---|---:|") + "---|",
    ]
    for row in rows:
        ratios = {peer: number(ratio) for peer, ratio in row.ratios.items()}
        if wide:
            cells = [ratios.get(peer, "") for peer in peers]
        else:
            cells = next(iter(ratios.items()), ("", ""))
        lines.append(
            f"| {row.name} | {number(row.value)} | {row.unit} | {' | '.join(cells)} | "
            f"{told(row.verdicts(targets))} |"
        )
    lines += geometric_means(rows, peers) if wide else []
    return "\n".join(lines) + "\n"


def is_profile(recorded):
    """Whether it is of bench/profiles.py, whose rows are no measurements. One may have a note."""
    return any("profile" in result for result in recorded["results"])


def is_of_other_gpu(recorded, gpu):
    """Whether a GPU is named in it, and not @gpu (None: any will do)."""
    devices = [result.get("device", "").split(";")[0] for result in recorded["results"]]
    return gpu is not None and any("NVIDIA" in device and gpu not in device for device in devices)


def profile_table(results):
    lines = [
        "| name | us | GB/s | memory | tensor cores* | issue* | a warp's cycles |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for result in results:
        how = result["profile"]
        stalls = ", ".join(f"{name} {share:.0%}" for name, share in how["stalls"].items())
        lines.append(
            f"| {result['name']} | {number(result['value'])} | {how['GB/s']:.0f} | {how['memory']:.0%} | "
            f"{'' if how['tensor'] is None else format(how['tensor'], '.0%')} | {how['issue']:.0%} | {stalls} |"
        )
    return lines


def profile_section(name, recorded):
    commits = sorted({result["commit"] for result in recorded["results"]})
    lines = [
        f"\n## {name}\n",
        f"`{recorded['command']}`, {recorded['date']}, {recorded['machine']}, commit {', '.join(commits)}\n",
        "No measurements: what ncu says of one launch of each kernel, which it runs several times over. Shares of "
        "what the memory, the tensor cores and the schedulers could do (* of SMs, while they have work), and what "
        "a warp did in its cycles, by ncu's names of stalls, from 3 % on.\n",
        *([recorded["note"] + "\n"] if "note" in recorded else []),
        *profile_table(recorded["results"]),
    ]
    return "\n".join(lines) + "\n"


def shortfalls(files, targets, entries, profiles):
    """What is wanted and not there, with the reasons; @files are (name, recorded), and @profiles."""
    n_wanted, missed, used = 0, [[] for _ in entries], set()
    for file, recorded in files:
        for row in rows_of(recorded["results"]):
            for text, share in row.verdicts(targets):
                n_wanted += 1
                if share >= 1:
                    continue
                for i, entry in enumerate(entries):
                    patterns = [p for p in entry["names"] if fnmatch.fnmatchcase(row.name, p)]
                    if patterns:
                        break
                else:
                    sys.exit(f"{SHORTFALLS} does not say why {row.name} of {file}.json is missed ({text})")
                used.update((i, p) for p in patterns)
                missed[i].append((row, file, text, share))
    for i, entry in enumerate(entries):
        for pattern in entry["names"]:
            if (i, pattern) not in used:
                sys.exit(f"{SHORTFALLS} has {pattern} under {entry['title']!r}, of which nothing is missed")
    n_missed = sum(map(len, missed))
    lines = [
        "\n## What falls short, and why\n",
        f"{n_wanted} numbers are wanted, {n_wanted - n_missed} of them met. The others, with the share that "
        "they have of what is wanted, as a speed:",
    ]
    for entry, rows in zip(entries, missed):
        lines += [f"\n### {entry['title']}\n", *[paragraph + "\n" for paragraph in entry["why"]]]
        lines += ["| name | value | unit | wanted | share | of |", "|---|---:|---|---|---:|---|"]
        lines += [
            f"| {row.name} | {number(row.value)} | {row.unit} | {text} | {share:.3f} | {file} |"
            for row, file, text, share in rows
        ]
        names = {row.name for row, _, _, _ in rows}
        for file, recorded in profiles:
            found = [result for result in recorded["results"] if result["name"] in names]
            if found:
                note = f" ({recorded['note']})" if "note" in recorded else ""
                lines += [f"\nTheir profiles, of {file}{note}:\n", *profile_table(found)]
    return "\n".join(lines) + "\n"


def load_rows():
    """Of each file with rows its name and what it holds."""
    names = sorted(n for n in os.listdir(HERE) if n.endswith(".json") and n not in (TARGETS, TABLES, SHORTFALLS))
    return [(n[: -len(".json")], load(n)) for n in names]


def generate():
    wanted = load(TARGETS)
    targets, gpu = wanted["targets"], wanted.get("gpu")
    every = load_rows()
    profiles = [(name, recorded) for name, recorded in every if is_profile(recorded)]
    files = [(name, recorded) for name, recorded in every if not is_profile(recorded)]
    others = [(name, recorded) for name, recorded in files if is_of_other_gpu(recorded, gpu)]
    files = [file for file in files if file not in others]
    return (
        HEAD
        + shortfalls(files, targets, load(SHORTFALLS)["shortfalls"], profiles)
        + "".join(section(name, recorded, targets) for name, recorded in files)
        + "".join(section(name, recorded, []) for name, recorded in others)
        + "".join(profile_section(name, recorded) for name, recorded in profiles)
    )


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
        return f"{number_:,.0f} {unit}" if number_ >= 100 else f"{number_:.1f} {unit}"

    return re.sub(r"\{([^:{}]+):([^{}|]+)(\|([^{}]+))?\}", value, template)


def table(name, rows):
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    lines = [re.sub(r"\|  (?=\|)", "| ", line) for line in lines]
    return "\n".join([f"<!-- {name}: made by bench/results/results.py write -->", *lines, f"<!-- end of {name} -->"])


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


def history():
    """The commits that a clone of this has; None where they cannot be known: this is no checkout,
    or a shallow one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments):
        try:
            done = subprocess.run(["git", "-C", HERE, *arguments], env=environment, capture_output=True, text=True,
                                  check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    # Unpacked inside of another repository it is none of that.
    if not top or not os.path.samefile(top, os.path.join(HERE, "../..")):
        return None
    if git("rev-parse", "--is-shallow-repository") != "false":
        return None
    commits = git("rev-list", "HEAD")
    return commits.split() if commits else None


def check_commits():
    known = history()
    for name, recorded in load_rows():
        commits = sorted({result["commit"] for result in recorded["results"]})
        dirty = [commit for commit in commits if commit.endswith("-dirty")]
        if name in UNCOMMITTED:
            if not dirty:
                sys.exit(f"{name}.json cites commits only: take it from UNCOMMITTED in results.py")
            continue
        if dirty:
            sys.exit(f"{name}.json cites {dirty[0]}, a build with changes that no commit has")
        for commit in commits if known else []:
            if not commit or not any(full.startswith(commit) for full in known):
                sys.exit(f"{name}.json cites {commit or 'no commit'}, which is not in this history")


def check():
    check_commits()
    for path, text in generated().items():
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit(f"{os.path.basename(path)} is not what 'bench/results/results.py write' makes "
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
