#!/usr/bin/env python3
"""
Profiles the kernels that bench/time-paged and bench/race.py measure, with ncu: one launch of each
cell (their option --profile), after a cache flush, at the GPU's current clock. Runs in the GPU
bundle, with ncu on PATH:

    bench/profiles.py --json FILE [--only PATTERN]

PATTERN, a shell pattern, selects commands from the list below. FILE is the input of
bench/results/results.py keep: for each cell the duration, bytes read, the share of the peak that
tensor cores and schedulers reach while an SM has work, and what warps spend their cycles on. The
durations only serve these shares: ncu runs each kernel many times, with other kernels between.
"""
import argparse
import csv
import datetime
import fnmatch
import json
import os
import shlex
import subprocess
import sys
import tempfile

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TIME_PAGED = ["bench/time-paged", "--profile", "--only"]
RACE = [sys.executable, "bench/race.py", "--library", "lib/libfagpu.so", "--profile"]
COMMANDS = (
    *([*TIME_PAGED, "decode", *shape.split()] for shape in (
        "", "--heads 64 --kv-heads 8", "--heads 32 --kv-heads 32", "--heads 8 --kv-heads 1",
        "--heads 40 --kv-heads 8", "--new 4", "--dim 64", "--dim 256", "--page 16")),
    [*TIME_PAGED, "codes"],
    [*TIME_PAGED, "shared"],
    *([*TIME_PAGED, "prefill", *shape.split()] for shape in ("", "--dim 64", "--dim 256 --heads 16 --kv-heads 4")),
    [*RACE, "--seqlens", "512,4096,16384"],
    [*RACE, "--dtypes", "f16", "--dims", "64,128", "--seqlens", "4096"],
    [*RACE, "--masks", "window1024", "--seqlens", "16384"],
    [*RACE, "--masks", "full-alibi,causal-alibi,causal-softcap", "--seqlens", "4096"],
)

STALLED = "smsp__average_warps_issue_stalled_"
PER_ISSUE = "_per_issue_active.ratio"
# The metrics of a row. "dram" counts all cycles of the launch, "tensor" and "issue" only those in
# which an SM had warps.
METRICS = {
    "us": "gpu__time_duration.sum",
    "bytes": "dram__bytes_read.sum",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
}
SECTIONS = ("WarpStateStats",)  # stall reasons


def launches(path):
    """Yields the metrics of each launch in a file of ncu, in base units."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if line.startswith('"')))
    # The first row has the units.
    for row in rows[1:]:
        found = {}
        for name, value in row.items():
            try:
                found[name] = float(value.replace(",", ""))
            except (AttributeError, ValueError):
                pass
        yield found


def stalls(metrics):
    """The stall reasons of warps as shares of their cycles, greatest first."""
    found = {name[len(STALLED): -len(PER_ISSUE)]: value for name, value in metrics.items()
             if name.startswith(STALLED) and name.endswith(PER_ISSUE) and not name.endswith("_not_issued" + PER_ISSUE)}
    total = sum(found.values())
    return {name.replace("_", " "): round(value / total, 3)
            for name, value in sorted(found.items(), key=lambda item: -item[1]) if total and value / total >= 0.03}


def row(name, metrics):
    missing = [metric for metric in METRICS.values() if metric not in metrics]
    waits = stalls(metrics)
    if not waits:
        missing.append(f"any {STALLED}...")
    if missing:
        sys.exit(f"{name}: ncu did not report {', '.join(missing)}")
    us = metrics[METRICS["us"]] / 1e3
    return {
        "name": name,
        "value": round(us, 2),
        "unit": "us",
        "profile": {
            "GB/s": round(metrics[METRICS["bytes"]] / us / 1e3, 1),
            "memory": round(metrics[METRICS["dram"]] / 100, 3),
            "tensor": round(metrics[METRICS["tensor"]] / 100, 3),
            "issue": round(metrics[METRICS["issue"]] / 100, 3),
            "stalls": waits,
        },
    }


def profile(ncu, bundle, command):
    """Returns the rows of one command, and the name of the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        told, named = os.path.join(folder, "told"), os.path.join(folder, "named")
        asked = [ncu, "--clock-control", "none", "--cache-control", "all", "--target-processes", "application-only",
                 "--kernel-name-base", "function", "-k", "regex:^fa_sm",
                 *(word for name in SECTIONS for word in ("--section", name)),
                 "--metrics", ",".join(METRICS.values()),
                 "--csv", "--page", "raw", "--print-units", "base", "--log-file", told]
        more = ["--json", named] if "bench/race.py" in command else []
        status = subprocess.run([*asked, *command, *more], cwd=bundle, stdout=subprocess.PIPE, check=False)
        if status.returncode:
            with open(told, encoding="utf-8", errors="replace") as file:
                sys.stderr.write(file.read()[-2000:])
            sys.exit(f"{shlex.join(command)}: status {status.returncode}")
        if more:
            with open(named, encoding="utf-8") as file:
                said = json.load(file)
        else:
            # ncu adds lines of its own.
            text = status.stdout.decode()
            said = json.loads("\n".join(line for line in text.splitlines() if not line.startswith("==")))
        names = [result["name"] for result in said["results"]]
        if not names:
            sys.exit(f"{shlex.join(command)}: no cell fits this GPU")
        found = list(launches(told))
        if len(names) != len(found):
            sys.exit(f"{shlex.join(command)}: {len(found)} launches for {len(names)} cells")
        return [row(name, metrics) for name, metrics in zip(names, found)], said.get("device") or said["results"][0]["device"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", default=BUNDLE, help="directory of bench/ (default: that of this script)")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--only", metavar="PATTERN", default="*")
    parser.add_argument("--json", metavar="FILE", required=True)
    args = parser.parse_args()

    commands = [command for command in COMMANDS if fnmatch.fnmatchcase(shlex.join(command), args.only)]
    if not commands:
        parser.error(f"no command matches {args.only}")
    device, results, known = "", [], set()
    for command in commands:
        rows, device = profile(args.ncu, args.bundle, command)
        for result in rows:
            if result["name"] in known:
                continue
            known.add(result["name"])
            result.update(commit="?", device=device)
            results.append(result)
            how = result["profile"]
            waits = ", ".join(f"{name} {share:.0%}" for name, share in list(how["stalls"].items())[:4])
            print(f"{result['name']:<52} {result['value']:10.4g} us  memory {how['memory']:.0%}  "
                  f"tensor {how['tensor']:.0%}  issue {how['issue']:.0%}  {waits}", flush=True)
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"command": "bench/profiles.py" + (f" --only {shlex.quote(args.only)}" if args.only != "*" else ""),
                       "machine": device, "date": datetime.date.today().isoformat(), "results": results},
                      file, indent=1, ensure_ascii=False)
            file.write("\n")


if __name__ == "__main__":
    main()
